"""Token bucket arithmetic: refill, delay, take, put_back; time is an argument.

A level in [debt, capacity] that rises by refill_rate. What is taken may exceed the level by as much as the cost
exceeds the capacity: such a cost waits for a full bucket and leaves a debt, so that it is neither refused nor
starved. `pause` stops the clock: a pause ends with an empty bucket, or one unit for a lone probe, so that nobody
leaves it as a herd.
"""

from __future__ import annotations

from attrs import define

TOLERANCE = 1e-3  # units; without it a virtual clock spins for ever on a delay of 1e-13 s


@define(eq=False)
class TokenBucket:
    """capacity in units, refill_rate in units/s, level in units as of the instant updated_at."""

    capacity: float
    refill_rate: float
    level: float
    updated_at: float
    _kept: float = 0.0  # units that a pause leaves

    def delay(self, cost: float, now: float) -> float:
        """Seconds until `take(cost)` may follow; 0 when it may now."""
        missing = min(cost, self.capacity) - self._level_at(now)
        if missing <= TOLERANCE:
            return max(self.updated_at - now, 0.0)
        return max(self.updated_at - now, 0.0) + missing / self.refill_rate

    def take(self, cost: float, now: float) -> None:
        """Book an admission; the caller has seen delay(cost, now) == 0."""
        self._bank(now)
        self.level -= cost

    def put_back(self, cost: float, now: float) -> None:
        """Give back what was not used. It fills at most to the capacity, and during a pause to what that leaves."""
        self._bank(now)
        most = self._kept if self.updated_at > now else self.capacity
        self.level = min(self.level + cost, max(most, self.level))

    def set_pace(self, refill_rate: float, capacity: float, now: float) -> None:
        """New rate and capacity from `now` on; what has accrued at the old rate is banked first."""
        self._bank(now)
        self.refill_rate = refill_rate
        self.capacity = capacity
        self.level = min(self.level, capacity)

    def pause(self, until: float, now: float, *, keep: float = 0.0) -> None:
        """Stop the clock until an instant: nothing accrues before it, and of what was saved up `keep` units survive."""
        self._bank(now)
        self.level, self._kept = min(self.level, keep), keep
        self.updated_at = max(self.updated_at, until)

    def _level_at(self, now: float) -> float:
        accrued = max(now - self.updated_at, 0.0) * self.refill_rate  # a clock that steps back gives nothing
        return min(self.level + accrued, self.capacity)

    def _bank(self, now: float) -> None:
        self.level = self._level_at(now)
        self.updated_at = max(self.updated_at, now)
