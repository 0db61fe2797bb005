"""The budget as workers see it: who finds no room waits, in the order of coming, for an attempt to end.

It comes before the gate, so that nobody who waits here holds a permit; who holds a stake may wait for a permit, and
gives the stake back when none comes. So the two never wait for each other.
"""

from __future__ import annotations

import trio
from attrs import define, field

from controller.budget import Budget, Stake
from controller.charges import Reservation
from controller.gate import Permit
from controller.records import Prompt

NO_STAKE = Stake(prompt=Prompt(id=None, key="", source="", line=0, request={}), input_tokens=0, output_tokens=0)


@define(eq=False)
class Purse:
    """Stakes of one budget."""

    budget: Budget = field(factory=Budget)
    _turn: trio.Lock = field(factory=trio.Lock, init=False)  # first come, first served
    _ended: trio.Event = field(factory=trio.Event, init=False)

    async def take(self, prompt: Prompt, reservation: Reservation, *, again: bool) -> Stake | str:
        """A stake, to be settled once; or why there will never be room for it. again: before all that are new."""
        if not self.budget.bounded:
            return NO_STAKE
        if again:
            return await self._place(prompt, reservation)
        async with self._turn:
            return await self._place(prompt, reservation)

    async def _place(self, prompt: Prompt, reservation: Reservation) -> Stake | str:
        while True:
            placed = self.budget.place(reservation.stake(prompt))
            if placed is not None:
                return placed
            await self._ended.wait()

    def settle(self, stake: Stake, permit: Permit | None) -> None:
        """Its attempt has ended; permit: None where there was none."""
        if stake is NO_STAKE:
            return
        if permit is None:
            self.budget.give_back(stake)
        else:
            cut_short = permit.outcome is None and permit.seen.sent
            accepted = permit.accepted or cut_short
            self.budget.settle(stake, permit.outcome, permit.seen.usage, accepted=accepted)
        self._ended.set()
        self._ended = trio.Event()
