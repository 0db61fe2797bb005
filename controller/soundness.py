"""Policies may be strangers' code: whether a pace can be kept at all, and one that stands for what can't be made."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isfinite
from typing import ClassVar, NoReturn, Self

from attrs import frozen

from policies.contract import JSON, Bounds, Event, Pace, Reason


@frozen
class NoOptions:
    """None."""


class Unmade:
    """In place of a policy that can't be made in the middle of a run: it fails at the first look, and is replaced."""

    options_class: ClassVar[type] = NoOptions
    claims: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, error: ValueError) -> None:
        self.error = error

    @property
    def pace(self) -> Pace:
        """Raises what was wrong, as everything here does."""
        raise self.error

    def on(self, event: Event) -> NoReturn:
        """See `policies.contract.Policy.on`."""
        del event
        raise self.error

    def snapshot(self, now: float) -> NoReturn:
        """See `policies.contract.Policy.snapshot`."""
        del now
        raise self.error

    @classmethod
    def restore(cls, options: object, snapshot: Mapping[str, JSON], *, seed: int, now: float) -> Self:
        """Nothing was ever kept of it."""
        raise NotImplementedError


def sound(pace: Pace) -> Pace:
    """The same pace if it can be kept; ValueError or TypeError otherwise."""
    if not isinstance(pace, Pace):
        raise TypeError(f"it answered {pace!r} instead of a Pace")
    # NaN is none of these, a word raises TypeError, and an int too large for a float OverflowError.
    if not (isfinite(pace.refill_rate) and pace.refill_rate > 0):
        raise ValueError(f"refill_rate is {pace.refill_rate!r}")
    if not (isfinite(pace.capacity) and pace.capacity >= 1):
        raise ValueError(f"capacity is {pace.capacity!r}")
    if not (pace.held_until == -inf or isfinite(pace.held_until)):
        raise ValueError(f"held_until is {pace.held_until!r}")
    limit = pace.learned_limit
    if not (limit is None or limit == inf or (isfinite(limit) and limit >= 0)):
        raise ValueError(f"learned_limit is {pace.learned_limit!r}")
    if not isinstance(pace.reason, Reason):
        raise TypeError(f"reason is {pace.reason!r}")
    if not (pace.bounds is None or isinstance(pace.bounds, Bounds)):
        raise TypeError(f"bounds are {pace.bounds!r}")
    for count in (pace.in_flight_limit, pace.unresolved_limit):
        if not (count is None or isinstance(count, int)):
            raise TypeError(f"a limit is {count!r}")
    return pace
