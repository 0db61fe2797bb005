"""Peers that adapt how many attempts may be in flight: DataDesigner and Vector."""

from __future__ import annotations

from math import floor, inf, sqrt
from random import Random

from attrs import define, field

from simulations.peers_gate import News


@define(eq=False)
class DataDesigner:
    """Additive increase, multiplicative decrease of the concurrency, from its maximum downwards.

    Source: AdaptiveRequestAdmissionController in https://github.com/NVIDIA-NeMo/DataDesigner (0.9): a 429 of an
    attempt that was admitted at the limit in force or a lower one cuts it to floor(0.75 * limit), at least 1; every 429
    blocks everybody for its Retry-After, 2 s without one; 25 successes after the block add 1. Refused ones are tried
    again without end (its salvage queue). Left out: the polling of waiters every 50 ms.
    """

    limit: int  # max_parallel_requests at first
    _most: int = field(init=False)
    _in_flight: int = field(default=0, init=False)
    _streak: int = field(default=0, init=False)
    _blocked_until: float = field(default=-inf, init=False)

    def __attrs_post_init__(self) -> None:
        """It starts at the most."""
        self._most = self.limit

    def comes(self, now: float, tries: int) -> float:  # noqa: ARG002 - the shape all gates share
        """At once."""
        return now

    def opens_at(self, now: float, tries: int) -> float:  # noqa: ARG002 - the shape all gates share
        """When the block is over, if there is room."""
        return max(now, self._blocked_until) if self._in_flight < self.limit else inf

    def passed(self, now: float, cost: float, tries: int) -> float:  # noqa: ARG002 - the shape all gates share
        """The limit it was admitted at."""
        self._in_flight += 1
        return float(self.limit)

    def accepted(self, news: News) -> None:
        """Success is known at the end."""

    def refused(self, news: News) -> float | None:
        """Cut and block; a later 429 with a shorter hint shortens the block, as there."""
        self._in_flight -= 1
        self._blocked_until = news.now + (news.retry_after or 2.0)
        self._streak = 0
        if news.mark <= self.limit:
            self.limit = max(1, floor(0.75 * self.limit))
        return 0.0

    def lost(self, news: News) -> float | None:  # noqa: ARG002 - the shape all gates share
        """No reason to slow down, there."""
        self._in_flight -= 1
        return 1.0

    def ended(self, news: News) -> None:
        """Count it."""
        self._in_flight -= 1
        if news.now >= self._blocked_until:
            self._streak += 1
        if self._streak >= 25:
            self._streak, self.limit = 0, min(self.limit + 1, self._most)


@define(eq=False)
class VectorArc:
    """Adaptive request concurrency: AIMD on round-trip times and back-pressure, once per mean round trip.

    Source: https://github.com/vectordotdev/vector, src/sinks/util/adaptive_concurrency (controller.rs, mod.rs): starts
    at 1, at most 200; +1 if the limit was reached, nothing was refused and the times were no longer than the mean
    of the past (EWMA, alpha 0.4); * 0.9, rounded down, if something was refused or they were longer by 2.5 deviations.
    A request keeps its place while it is tried again: 1, 1, 2, 3, 5, ... at most 30 s, times a random share.
    """

    rng: Random
    limit: int = 1
    _holders: int = field(default=0, init=False)
    _mean: float | None = field(default=None, init=False)  # of past round trips, seconds
    _variance: float = field(default=0.0, init=False)
    _update_at: float = field(default=0.0, init=False)
    _sum: float = field(default=0.0, init=False)  # of this interval's round trips
    _count: int = field(default=0, init=False)
    _pushed_back: bool = field(default=False, init=False)
    _reached: bool = field(default=False, init=False)

    def comes(self, now: float, tries: int) -> float:
        """A retry has a place already, and does not wait behind those that have none."""
        return -inf if tries else now

    def opens_at(self, now: float, tries: int) -> float:
        """A retry has a place."""
        return now if tries or self._holders < self.limit else inf

    def passed(self, now: float, cost: float, tries: int) -> float:  # noqa: ARG002 - the shape all gates share
        """Take a place."""
        if not tries:
            self._holders += 1
            self._reached = self._reached or self._holders >= self.limit
        return 0.0

    def accepted(self, news: News) -> None:
        """A round trip ends with the answer."""

    def refused(self, news: News) -> float | None:
        """Back-pressure; the Fibonacci pause with full jitter."""
        self._pushed_back = True
        first, second = 1.0, 1.0
        for _ in range(min(news.tries, 20)):
            first, second = second, first + second
        return min(first, 30.0) * self.rng.random()

    def lost(self, news: News) -> float | None:
        """The same: 5xx are retriable, and those are back-pressure."""
        return self.refused(news)

    def ended(self, news: News) -> None:
        """Measure it, and judge the interval if it is over."""
        self._sum += news.total
        self._count += 1
        self._holders -= 1
        mean = self._sum / self._count
        if self._mean is None:
            self._mean, self._update_at = mean, news.now + mean
        elif news.now >= self._update_at:
            self._judge(mean, self._mean)
            self._update_at = news.now + self._learn(mean, self._mean)
            self._sum, self._count, self._pushed_back, self._reached = 0.0, 0, False, False

    def _judge(self, mean: float, past: float) -> None:
        if self.limit < 200 and self._reached and not self._pushed_back and mean <= past:
            self.limit += 1
        elif self.limit > 1 and (self._pushed_back or mean >= past + 2.5 * sqrt(self._variance)):
            self.limit = max(1, int(self.limit * 0.9))

    def _learn(self, mean: float, past: float) -> float:
        """Exponentially weighted mean and variance (Finch, 2009); the new mean."""
        step = 0.4 * (mean - past)
        self._variance = (1 - 0.4) * (self._variance + (mean - past) * step)
        self._mean = past + step
        return self._mean
