"""How a rate went over time: what is plotted of a client."""

from __future__ import annotations

from bisect import bisect_right

from attrs import define, field


@define(eq=False)
class Curve:
    """The refill_rate in units/s from each instant on."""

    changed_at: list[float] = field(factory=list)
    refill_rates: list[float] = field(factory=list)

    def add(self, now: float, refill_rate: float) -> None:
        """From now on."""
        self.changed_at.append(now)
        self.refill_rates.append(refill_rate)

    def at(self, now: float) -> float:
        """0 before the first change."""
        index = bisect_right(self.changed_at, now)
        return self.refill_rates[index - 1] if index else 0.0
