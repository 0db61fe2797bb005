"""What all workers of a run share."""

from __future__ import annotations

import random
from collections.abc import Callable

from attrs import field, frozen

from controller.breaker import Breaker
from controller.budget import Budget
from controller.charges import Meters
from controller.gate import Gate
from controller.live import Live
from controller.outbox import Outbox
from controller.patience import Patience
from controller.records import Prompt
from controller.retry import Backoff
from controller.telemetry import Stop, Tally
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
    budget: Budget = field(factory=Budget)
    deadline: float | None = None  # s from reading a prompt, for those that bring none
    continue_truncated: int = 0  # times that the rest of an answer is asked for
