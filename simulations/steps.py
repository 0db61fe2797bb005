"""A limit that steps over time, and its integral: what a hidden quota is made of."""

from __future__ import annotations

from itertools import pairwise
from math import inf

from attrs import frozen


@frozen
class Steps:
    """A limit over time as (from instant, limit) pairs, ascending; before the first instant its limit holds already."""

    pairs: tuple[tuple[float, float], ...]

    @classmethod
    def constant(cls, limit: float) -> Steps:
        """The same limit for ever."""
        return cls(((0.0, limit),))

    def scaled(self, factor: float) -> Steps:
        """Every limit times `factor`: from per second to per period and back."""
        return Steps(tuple((start, limit * factor) for start, limit in self.pairs))

    def at(self, now: float) -> float:
        """The limit in force; a step counts from its own instant on."""
        limit = self.pairs[0][1]
        if len(self.pairs) == 1:
            return limit
        for start, later in self.pairs:
            if start > now:
                break
            limit = later
        return limit

    def changes_after(self, now: float) -> list[float]:
        """The instants still to come at which the limit changes."""
        return [start for start, _ in self.pairs if start > now]

    def earned(self, now: float) -> float:
        """The integral of the limit, read as units per second, from the first step to `now`; negative before it."""
        total = 0.0
        for (start, rate), (end, _) in pairwise(self.pairs):
            if now <= end:
                return total + rate * (now - start)
            total += rate * (end - start)
        start, rate = self.pairs[-1]
        return total + rate * (now - start)

    def when_earned(self, units: float) -> float:
        """The first instant at which `earned` has reached `units`; inf if it never does."""
        total = 0.0
        for (start, rate), (end, _) in pairwise(self.pairs):
            if total + rate * (end - start) >= units:
                return _reached(start, rate, units - total)
            total += rate * (end - start)
        start, rate = self.pairs[-1]
        return _reached(start, rate, units - total)


def _reached(start: float, rate: float, units: float) -> float:
    if rate > 0:
        return start + units / rate
    return start if units <= 0 else inf
