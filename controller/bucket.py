"""Token bucket arithmetic: refill, delay, take, put_back; time is an argument.

A level in [debt, capacity] that rises by refill_rate. What is taken may exceed the level by as much as the cost
exceeds the capacity: such a cost waits for a full bucket and leaves a debt, so that it is neither refused nor
starved. `pause` stops the clock: a pause ends with an empty bucket, or with one unit for a lone probe, so that nobody
leaves it as a herd.

What was reserved and not used comes back by `refund`, which pours it in over SPREAD seconds, as if the bucket were
refilled a little faster: answers that end together must not let a burst go. What does not fit below the capacity is
lost, and so is in a pause what does not pay a debt. While a queue never empties, nobody is admitted earlier than if
each had reserved from the start what it came to use.
"""

from __future__ import annotations

from attrs import define

TOLERANCE = 1e-3  # units; without it a virtual clock spins for ever on a delay of 1e-13 s
SPREAD = 2.0  # s


@define(eq=False)
class TokenBucket:
    """capacity in units, refill_rate in units/s, level in units as of the instant updated_at."""

    capacity: float
    refill_rate: float
    level: float
    updated_at: float
    _kept: float = 0.0  # units that a pause leaves
    _credit: float = 0.0  # units still to pour in as of updated_at, evenly until the instant _pours_until
    _pours_until: float = 0.0

    def delay(self, cost: float, now: float) -> float:
        """Seconds until `take(cost)` may follow; 0 when it may now."""
        paused = self.updated_at - now if self.updated_at > now else 0.0
        missing = (cost if cost < self.capacity else self.capacity) - self._level_at(now)
        if missing <= TOLERANCE:
            return paused
        return paused + (self._poured_delay(missing, now) if self._credit else missing / self.refill_rate)

    def take(self, cost: float, now: float) -> None:
        """Book an admission; the caller has seen delay(cost, now) == 0."""
        self._bank(now)
        self.level -= cost

    def put_back(self, cost: float, now: float) -> None:
        """Give back what was not used. It fills at most to the capacity, and during a pause to what that leaves."""
        self._bank(now)
        most = self._kept if self.updated_at > now else self.capacity
        self.level = min(self.level + cost, max(most, self.level))

    def refund(self, cost: float, now: float) -> None:
        """Pour in what a settled attempt did not use; what is left of earlier refunds pours on with it."""
        self._bank(now)
        if self.updated_at > now:
            self.put_back(cost, now)
        else:
            self._credit, self._pours_until = self._credit + cost, now + SPREAD

    def set_pace(self, refill_rate: float, capacity: float, now: float) -> None:
        """New rate and capacity from `now` on; what has accrued at the old rate is banked first."""
        self._bank(now)
        self.refill_rate = refill_rate
        self.capacity = capacity
        if self.level > capacity:
            self.level = capacity

    def empty(self, now: float) -> float:
        """Forget what was saved up; what that was."""
        self._bank(now)
        saved, self.level = self.level, min(self.level, 0.0)
        return saved

    def fill(self, level: float, now: float) -> None:
        """It holds so much at least, as far as that fits."""
        self._bank(now)
        if self.updated_at <= now:
            self.level = max(self.level, min(level, self.capacity))

    def pause(self, until: float, now: float, *, keep: float = 0.0) -> None:
        """Stop the clock until an instant: nothing accrues before it, and of what was saved up `keep` units survive."""
        self._bank(now)
        self.level, self._kept, self._credit = min(self.level + self._credit, keep), keep, 0.0
        self.updated_at = max(self.updated_at, until)

    def _level_at(self, now: float) -> float:
        if now <= self.updated_at:  # during a pause, or on a clock that steps back
            return self.level
        level = self.level + (now - self.updated_at) * self.refill_rate
        if self._credit:
            level += self._credit - self._left_at(now)
        return level if level < self.capacity else self.capacity

    def _bank(self, now: float) -> None:
        if now > self.updated_at:
            level = self._level_at(now)
            if self._credit:
                self._credit = self._left_at(now)
            self.level, self.updated_at = level, now

    def _left_at(self, now: float) -> float:
        """What of the credit has not been poured in."""
        whole, left = self._pours_until - self.updated_at, self._pours_until - max(now, self.updated_at)
        return self._credit * left / whole if left > 0 else 0.0

    def _poured_delay(self, missing: float, now: float) -> float:
        """Seconds until so much has accrued while a credit pours in."""
        seconds = max(self._pours_until - max(now, self.updated_at), 0.0)
        poured = self._left_at(now) + self.refill_rate * seconds  # by the end of pouring
        if missing <= poured:
            return missing * seconds / poured
        return seconds + (missing - poured) / self.refill_rate
