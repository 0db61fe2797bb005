"""A sliding log: the hidden limit that counts what came in the last period, whatever the clock says.

What was entered runs out a period later. Costs that are given back are entries below zero: when one of them runs out,
more is in use again than a moment before. See simulations.quota for the verbs.
"""

from __future__ import annotations

from bisect import bisect_left
from math import inf

from attrs import define, field

from simulations.standing import TOLERANCE, Standing
from simulations.steps import Steps


@define(eq=False)
class SlidingLog:
    """At most `limit` units in any half-open window of `period` seconds, (now - period, now].

    counts_refused: refused attempts stay in the log as well, so that hammering keeps itself locked out.
    """

    limit: Steps
    period: float
    counts_refused: bool = False
    _at: list[float] = field(factory=list, init=False)  # instants, oldest first
    _sums: list[float] = field(factory=list, init=False)  # of the costs up to and with each
    _first: int = field(default=0, init=False)  # of those that have not run out
    _run_out: float = field(default=0.0, init=False)  # the sum of the others
    _rises: bool = field(default=True, init=False)  # nothing was given back, so the sums are in order

    def ask(self, now: float, cost: float) -> float:
        """Seconds until enough of the log has run out, or until the limit steps."""
        self._forget(now)
        begin = now
        for end in (*self.limit.changes_after(now), inf):
            instant = self._fits_from(begin, cost, self.limit.at(begin))
            if instant < end:
                return instant - now
            begin = end
        return inf

    def take(self, now: float, cost: float) -> None:
        """Enter it in the log."""
        self._forget(now)
        self._rises = self._rises and cost >= 0
        total = cost + (self._sums[-1] if self._sums else self._run_out)
        if self._at and self._at[-1] == now:  # they run out together: what is given back may not count later
            self._sums[-1] = total
        else:
            self._sums.append(total)
            self._at.append(now)

    def standing(self, now: float) -> Standing:
        """Reset is when the oldest entry runs out."""
        self._forget(now)
        limit = self.limit.at(now)
        reset = self._at[self._first] + self.period - now if self._first < len(self._at) else 0.0
        return Standing(limit=limit, remaining=max(0.0, limit - self._used), reset=max(0.0, reset))

    @property
    def _used(self) -> float:
        return self._sums[-1] - self._run_out if self._first < len(self._at) else 0.0

    def _fits_from(self, begin: float, cost: float, limit: float) -> float:
        """The first instant, not before `begin`, at which so much has run out that the cost fits below that limit."""
        too_much = self._used + cost - limit - TOLERANCE
        if self._rises and too_much <= 0:
            return begin
        wanted, count = self._run_out + too_much, len(self._sums)
        if self._rises:  # hammering makes logs of ten thousands
            index = bisect_left(self._sums, wanted, self._first)
            return max(begin, self._at[index] + self.period) if index < count else inf
        first, run_out = self._first, self._run_out
        while first < count and self._at[first] + self.period <= begin + TOLERANCE:
            run_out, first = self._sums[first], first + 1
        if run_out >= wanted:
            return begin
        index = next((each for each in range(first, count) if self._sums[each] >= wanted), count)
        return self._at[index] + self.period if index < count else inf

    def _forget(self, now: float) -> None:
        first, count = self._first, len(self._at)
        while first < count and self._at[first] + self.period <= now + TOLERANCE:
            first += 1
        if first == self._first:
            return
        self._run_out, self._first = self._sums[first - 1], first
        if 2 * first > count + 1000:
            del self._at[:first], self._sums[:first]
            self._first = 0
