"""What all workers of a run share."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from attrs import field, frozen

from controller.breaker import Breaker
from controller.charges import Meters, Reservation
from controller.gate import Gate, Permit
from controller.live import Live
from controller.outbox import Outbox
from controller.patience import Patience
from controller.purse import Purse
from controller.records import Prompt
from controller.retry import Backoff
from controller.telemetry import Exit, Stop, Tally
from controller.underway import Underway
from controller.upstream import Upstream


@frozen(kw_only=True)
class Bench:
    """What a worker works with; all workers share one. live: None where only results are wanted."""

    gate_of: Callable[[Prompt], Gate]
    upstream: Upstream
    outbox: Outbox
    backoff: Backoff
    patience: Patience
    rng: random.Random
    stop: Stop
    tally: Tally
    live: Live | None = None
    underway: Underway | None = None
    meters: Meters = field(factory=Meters)
    breaker: Breaker = field(factory=lambda: Breaker(0))
    purse: Purse = field(factory=Purse)
    deadline: float | None = None  # s from reading a prompt, for those that bring none
    continue_truncated: int = 0  # times that the rest of an answer is asked for

    @asynccontextmanager
    async def admit(
        self, prompt: Prompt, cost: Reservation, *, owner: str, again: bool
    ) -> AsyncIterator[Permit | None]:
        """Wait for room in the budget, then for a permit; None when the run stops first. Leaving settles both."""
        stake = await self.purse.take(prompt, cost, again=again)
        if isinstance(stake, str):
            self.stop.ask(Exit.BUDGET, stake)
            yield None
            return
        permit = None
        try:
            async with self.gate_of(prompt).admit(cost.costs(prompt), owner=owner, again=again) as permit:
                try:
                    yield permit
                finally:
                    if permit is not None:
                        permit.true_cost = cost.settle(prompt, permit.cost, permit.outcome, permit.seen.usage)
        finally:
            self.purse.settle(stake, permit)
