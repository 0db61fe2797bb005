"""Policies may be strangers' code: whether a pace can be kept at all, and one that stands for what can't be made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NoReturn, Self

from attrs import frozen

from policies.contract import JSON, Bounds, Event, Pace, Reason

INF = float("inf")


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
    if not 0 < pace.refill_rate < INF:  # NaN is not, and a word raises TypeError
        raise ValueError(f"refill_rate is {pace.refill_rate!r}")
    if not 1 <= pace.capacity < INF:
        raise ValueError(f"capacity is {pace.capacity!r}")
    if not pace.held_until < INF:
        raise ValueError(f"held_until is {pace.held_until!r}")
    if not (pace.learned_limit is None or pace.learned_limit >= 0):
        raise ValueError(f"learned_limit is {pace.learned_limit!r}")
    if not isinstance(pace.reason, Reason):
        raise TypeError(f"reason is {pace.reason!r}")
    if not (pace.bounds is None or isinstance(pace.bounds, Bounds)):
        raise TypeError(f"bounds are {pace.bounds!r}")
    for limit in (pace.in_flight_limit, pace.unresolved_limit):
        if not (limit is None or isinstance(limit, int)):
            raise TypeError(f"a limit is {limit!r}")
    return pace
