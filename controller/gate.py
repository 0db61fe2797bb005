"""The queue before the limiter: first come, first served, one timer for the head.

A sibling of `trio.CapacityLimiter`. Only the head asks the limiter; it sleeps until the instant it was told or
until something changes, and asks again. A prompt that was refused goes before all that were never admitted.
A head that leaves, admitted or cancelled, wakes the next. Nothing awaits between the limiter's yes and the caller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio
from attrs import define, field

from controller.limiter import Limiter
from controller.outcome import Failed, Kind, Outcome, Usage
from controller.permits import Booking, Cost, Decision, Settlement, Wait
from policies.contract import Hints


@define
class Seen:
    """What an attempt saw of the upstream so far; it survives a cancellation, so that the limiter can settle."""

    sent: bool = False  # a byte of the request may have reached the upstream
    first_token_at: float | None = None  # trio.current_time() of the first payload
    usage: Usage | None = None
    repeats: int = 0  # requests beyond the first, each counted as an attempt: with a key that was read again


@define(eq=False)
class Permit:
    """The right to make one attempt, settled once, by leaving `Gate.admit`."""

    _gate: Gate
    _booking: Booking
    seen: Seen = field(factory=Seen, init=False)
    outcome: Outcome | None = field(default=None, init=False)  # set inside the block; None at its end: cancelled
    true_cost: Cost | None = field(default=None, init=False)  # set inside the block; None: as reserved
    settlement: Settlement | None = field(default=None, init=False)  # set when the block has been left

    @property
    def admitted_at(self) -> float:
        """The instant of admission."""
        return self._booking.admitted_at

    @property
    def cost(self) -> Cost:
        """What was reserved."""
        return self._booking.cost

    def accept(self, hints: dict[str, Hints]) -> None:
        """The upstream took the attempt; called by upstream.py."""
        self._gate.accepted(self._booking, hints)


@define(eq=False)
class _Ticket:
    """A place in the queue. waited: what its holder, or the head it stood behind, was told last."""

    wake: trio.Event = field(factory=trio.Event)
    waited: Wait | None = None


@define(eq=False)
class Gate:
    """Admissions of one limiter. on_decision is called with every change of pace, for the log."""

    limiter: Limiter
    on_decision: Callable[[Decision], None] = lambda _: None
    _again: deque[_Ticket] = field(factory=deque, init=False)  # refused ones: they go first
    _fresh: deque[_Ticket] = field(factory=deque, init=False)
    _closed: bool = field(default=False, init=False)

    @asynccontextmanager
    async def admit(
        self, reserve: Callable[[], Cost], *, owner: str = "", again: bool = False
    ) -> AsyncIterator[Permit | None]:
        """Wait for a permit; None when the gate closed first. The cost is asked at the head of the queue."""
        booking = await self._queue_up(reserve, owner, again)
        if booking is None:
            yield None
            return
        permit = Permit(self, booking)
        try:
            yield permit
        finally:
            self._settle(permit, booking)

    async def _queue_up(self, reserve: Callable[[], Cost], owner: str, again: bool) -> Booking | None:
        ticket = _Ticket()
        (self._again if again else self._fresh).append(ticket)
        try:
            await trio.lowlevel.checkpoint()
            while not self._closed:
                ticket.wake = trio.Event()
                until = float("inf")
                if self._head() is ticket:
                    answer = self.limiter.admit(reserve(), trio.current_time(), owner=owner, waited=ticket.waited)
                    if isinstance(answer, Booking):
                        return answer
                    ticket.waited, until = answer, answer.until
                with trio.move_on_at(until):
                    await ticket.wake.wait()
            return None
        finally:
            self._leave(ticket)

    def _head(self) -> _Ticket | None:
        return self._again[0] if self._again else self._fresh[0] if self._fresh else None

    def _leave(self, ticket: _Ticket) -> None:
        was_head = self._head() is ticket
        (self._again if ticket in self._again else self._fresh).remove(ticket)
        following = self._head()
        if was_head and following is not None:
            # Whoever stood behind a waiting head was held back by the same thing, even if it may go at once now.
            following.waited = following.waited or ticket.waited
            following.wake.set()

    def accepted(self, booking: Booking, hints: dict[str, Hints]) -> None:
        """The upstream took the attempt."""
        self._changed(self.limiter.accept(booking, hints, trio.current_time()))

    def _settle(self, permit: Permit, booking: Booking) -> None:
        outcome = permit.outcome or Failed(kind=Kind.CANCELLED, message="cancelled", sent=permit.seen.sent)
        first = permit.seen.first_token_at
        permit.settlement = self.limiter.settle(
            booking, outcome, trio.current_time(), first_token_at=first, true_cost=permit.true_cost
        )
        self._changed(permit.settlement.decisions)

    def _changed(self, decisions: tuple[Decision, ...]) -> None:
        for decision in decisions:
            self.on_decision(decision)
        head = self._head()
        if head is not None:
            head.wake.set()

    def wake(self) -> None:
        """The limiter was changed from outside: the head asks again."""
        self._changed(())

    def close(self) -> None:
        """Admit nobody any more: everyone in the queue gets None."""
        self._closed = True
        for ticket in (*self._again, *self._fresh):
            ticket.wake.set()

    @property
    def waiting(self) -> int:
        """Prompts in the queue."""
        return len(self._again) + len(self._fresh)

    @property
    def blocked(self) -> Wait | None:
        """What the head of the queue waits for; None without a head."""
        head = self._head()
        return head.waited if head else None
