"""What was sent and what of it was refused, so that any span of the last two minutes can be counted.

The log is coarse on purpose: what is sent within GRAIN is one entry, so its length depends on time, not on the rate.
A span is counted from running totals by bisection, never by going through it.
"""

from __future__ import annotations

from bisect import bisect_right

from attrs import define, field

GRAIN = 0.05  # s; at 33/s a border of a counted minute is then off by at most 2 of 2,000
MANY = 256  # refusals kept singly at most; more than that in two minutes is no measurement any more


@define(eq=False)
class SendLog:
    """Instants in seconds, units in running totals; `keep` seconds can be counted."""

    keep: float
    total: float = 0.0  # units admitted so far
    refused: float = 0.0  # units of it that were refused
    times: list[float] = field(factory=list)
    totals: list[float] = field(factory=list)  # total up to and with the entry
    refusals: list[list[float]] = field(factory=list)  # [instant of sending, units]
    base: float = 0.0  # total before the first entry

    def add(self, at: float, units: float) -> None:
        """An attempt was admitted."""
        self.total += units
        times = self.times
        if times and at - times[-1] < GRAIN:
            self.totals[-1] = self.total
            return
        times.append(at)
        self.totals.append(self.total)
        if times[0] < at - 2 * self.keep:  # seldom, and then half of it: constant time on average
            self._forget(at - self.keep)

    def take_back(self, at: float, units: float) -> None:
        """An attempt sent at that instant was refused after all."""
        self.refused += units
        index = bisect_right(self.times, at)
        # By its entry's instant, or a border within an entry would count its attempts and not their refusals.
        self.refusals.append([self.times[index - 1] if index else at, units])
        if len(self.refusals) > MANY:
            del self.refusals[: MANY // 2]

    def sent(self, after: float) -> float:
        """Units admitted after an instant, refused or not."""
        return self.total - self._total_at(after)

    def accepted(self, after: float, until: float) -> float:
        """Units sent in (after, until] that were not refused, as far as known."""
        lost = sum(units for at, units in self.refusals if after < at <= until)
        return max(self._total_at(until) - self._total_at(after) - lost, 0.0)

    def accepted_until(self, until: float) -> float:
        """The same since the beginning of all: a mark; differences of two marks count what lies between."""
        later = sum(units for at, units in self.refusals if at > until)
        return self._total_at(until) - (self.refused - later)

    def _total_at(self, instant: float) -> float:
        index = bisect_right(self.times, instant)
        return self.totals[index - 1] if index else self.base

    def _forget(self, before: float) -> None:
        cut = bisect_right(self.times, before)
        self.base = self.totals[cut - 1] if cut else self.base
        del self.times[:cut], self.totals[:cut]
        self.refusals = [entry for entry in self.refusals if entry[0] > before]
