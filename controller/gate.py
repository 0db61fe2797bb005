"""The queue before the limiter as tasks see it: one timer for the head, and everybody else asleep.

A sibling of `trio.CapacityLimiter`. The order and its rules are in controller.waiters. The head sleeps until the
instant it was told or until something changes, and asks again. A head that leaves, admitted or cancelled, wakes the
next. Nothing awaits between the limiter's yes and the caller.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio
from attrs import define, field

from controller.limiter import Limiter
from controller.outcome import Completed, Failed, Kind, Outcome, Usage
from controller.permits import Booking, Cost, Decision, Settlement, Wait
from controller.waiters import Ticket, Waiters
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

    @property
    def accepted(self) -> bool:
        """The upstream took the attempt."""
        return self._booking.accepted

    def accept(self, hints: dict[str, Hints]) -> None:
        """The upstream took the attempt; called by upstream.py."""
        self._gate.accepted(self._booking, hints)


@define(eq=False)
class Gate:
    """Admissions of one limiter. on_decision is called with every change of pace, for the log."""

    limiter: Limiter
    on_decision: Callable[[Decision], None] = lambda _: None
    _waiters: Waiters = field(init=False)
    _asleep: dict[Ticket, trio.Event] = field(factory=dict, init=False)
    _closed: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._waiters = Waiters(self.limiter)

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
        waiters = self._waiters
        ticket = waiters.join(owner, again=again)
        try:
            await trio.lowlevel.checkpoint()
            while not self._closed:
                until = float("inf")
                if waiters.head is ticket:
                    answer = waiters.ask(ticket, reserve(), trio.current_time())
                    if isinstance(answer, Booking):
                        return answer
                    until = answer.until
                await self._sleep(ticket, until)
            return None
        finally:
            self._wake(waiters.leave(ticket))

    async def _sleep(self, ticket: Ticket, until: float) -> None:
        """Until that instant or a call."""
        event = self._asleep[ticket] = trio.Event()
        try:
            if until == float("inf"):
                await event.wait()
            else:
                with trio.move_on_at(until):
                    await event.wait()
        finally:
            del self._asleep[ticket]

    def _wake(self, ticket: Ticket | None) -> None:
        """Who is not asleep is about to look for himself."""
        event = None if ticket is None else self._asleep.get(ticket)
        if event is not None:
            event.set()

    def accepted(self, booking: Booking, hints: dict[str, Hints]) -> None:
        """The upstream took the attempt."""
        self._changed(self.limiter.accept(booking, hints, trio.current_time()), more=bool(hints))

    def _settle(self, permit: Permit, booking: Booking) -> None:
        outcome = permit.outcome or Failed(kind=Kind.CANCELLED, message="cancelled", sent=permit.seen.sent)
        first, true_cost = permit.seen.first_token_at, permit.true_cost
        permit.settlement = self.limiter.settle(
            booking, outcome, trio.current_time(), first_token_at=first, true_cost=true_cost
        )
        as_reserved = true_cost is None and isinstance(outcome, Completed)
        self._changed(permit.settlement.decisions, more=not as_reserved)

    def _changed(self, decisions: tuple[Decision, ...], *, more: bool) -> None:
        """Tell of it and look who may go; more: a bucket may hold more than it was to."""
        for decision in decisions:
            self.on_decision(decision)
        self._wake(self._waiters.freed(more=more or bool(decisions)))

    def wake(self) -> None:
        """The limiter was changed from outside: the head asks again."""
        self._changed((), more=True)

    def close(self) -> None:
        """Admit nobody any more: everyone in the queue gets None."""
        self._closed = True
        for event in self._asleep.values():
            event.set()

    @property
    def waiting(self) -> int:
        """Prompts in the queue."""
        return len(self._waiters)

    @property
    def blocked(self) -> Wait | None:
        """What the head of the queue waits for; None without a head."""
        head = self._waiters.head
        return head.waited if head else None
