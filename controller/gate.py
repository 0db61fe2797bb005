"""The queue before the limiter: first come, first served, one timer for the head."""

from __future__ import annotations

from attrs import define, field

from controller.outcome import Outcome, Usage
from policies.contract import Hints


@define
class Seen:
    """What an attempt saw of the upstream so far; it survives a cancellation, so that the limiter can settle."""

    sent: bool = False  # a byte of the request may have reached the upstream
    first_token_at: float | None = None  # trio.current_time() of the first payload
    usage: Usage | None = None


@define(eq=False)
class Permit:
    """The right to make one attempt, settled once, by leaving `Gate.admit`."""

    seen: Seen = field(factory=Seen)
    outcome: Outcome | None = None  # set by the worker; None when the block is left: cancelled

    def accept(self, hints: dict[str, Hints]) -> None:
        """The upstream took the attempt; called at most once, by upstream.py."""
        raise NotImplementedError
