"""Hidden limits of a simulated upstream, written from their definitions and from nothing of ours.

The controller's bucket is judged against these, so they share no arithmetic with it: a shared fault would cancel out.

Every quota answers two verbs, and nobody may come between them:
    ask(now, cost)   seconds until an attempt of that cost would pass if nobody else came: 0.0 it passes now,
                     inf never or unknowable
    take(now, cost)  book one that passed
and one question, `standing(now)`, for headers. `Quotas` asks several together: all of them book, or none does.

All instants are seconds on one clock that never goes back. Limits may step over time (`Steps`).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import floor, inf

from attrs import define, field, frozen

from simulations.sliding_log import SlidingLog
from simulations.standing import TOLERANCE, Standing
from simulations.steps import Steps


@define(eq=False)
class FixedWindow:
    """At most `limit` units in each window of `period` seconds.

    aligned: windows begin at offset + k * period (a calendar minute); else a window begins with the first attempt
    that comes while none is open.
    """

    limit: Steps
    period: float
    aligned: bool = True
    offset: float = 0.0
    _began_at: float = field(default=-inf, init=False)
    _used: float = field(default=0.0, init=False)

    def ask(self, now: float, cost: float) -> float:
        """Seconds until it would pass: now, at the window's end, or when the limit steps."""
        if self._used_at(now) + cost <= self.limit.at(now) + TOLERANCE:
            return 0.0
        end = self._began_at + self.period
        for instant in sorted({*self.limit.changes_after(now), *([end] if end > now else [])}):
            if self._used_at(instant) + cost <= self.limit.at(instant) + TOLERANCE:
                return instant - now
        return inf

    def take(self, now: float, cost: float) -> None:
        """Book it in the window of `now`."""
        self._used = self._used_at(now) + cost
        self._began_at = self._start(now)

    def standing(self, now: float) -> Standing:
        """Reset is the end of the window."""
        limit = self.limit.at(now)
        reset = max(0.0, self._start(now) + self.period - now)
        return Standing(limit=limit, remaining=max(0.0, limit - self._used_at(now)), reset=reset)

    def _start(self, now: float) -> float:
        if self.aligned:
            return self.offset + floor((now + TOLERANCE - self.offset) / self.period) * self.period
        return self._began_at if self._is_open(now) else now

    def _used_at(self, instant: float) -> float:
        return self._used if self._is_open(instant) else 0.0

    def _is_open(self, instant: float) -> bool:
        return instant + TOLERANCE < self._began_at + self.period


@define(eq=False)
class Gcra:
    """The generic cell rate algorithm (ITU-T I.371), which admits exactly what a token bucket does.

    Kept in earned units instead of seconds, so that a rate that steps needs no special case: `_arrival` is the
    theoretical arrival time on a clock that runs at the rate. limit: units per second; burst: units, the most at once;
    period: seconds, only for the limit that headers announce (per minute as a rule).
    """

    limit: Steps
    burst: float
    period: float = 60.0
    _arrival: float = field(default=-inf, init=False)

    def ask(self, now: float, cost: float) -> float:
        """Seconds until the theoretical arrival lies at most `burst` less `cost` ahead."""
        if cost > self.burst + TOLERANCE:
            return inf
        due = self._arrival + cost - self.burst
        if due <= self.limit.earned(now) + TOLERANCE:
            return 0.0
        return max(0.0, self.limit.when_earned(due) - now)

    def take(self, now: float, cost: float) -> None:
        """Move the theoretical arrival on by the cost."""
        self._arrival = max(self._arrival, self.limit.earned(now)) + cost

    def standing(self, now: float) -> Standing:
        """Limit per period; remaining is what would pass at once; reset is the time until all of the burst is back."""
        used = max(0.0, self._arrival - self.limit.earned(now))
        reset = self.limit.when_earned(self._arrival) - now if used else 0.0
        return Standing(limit=self.limit.at(now) * self.period, remaining=max(0.0, self.burst - used), reset=reset)


@define(eq=False)
class Concurrency:
    """At most `limit` attempts at once; the one kind that is given back."""

    limit: int
    _taken: int = field(default=0, init=False)

    def ask(self, now: float, cost: float) -> float:  # noqa: ARG002 - the shape all quotas share
        """Nobody knows when a place gets free: 0.0 or inf."""
        return 0.0 if self._taken < self.limit else inf

    def take(self, now: float, cost: float) -> None:  # noqa: ARG002 - the shape all quotas share
        """Occupy a place."""
        self._taken += 1

    def leave(self) -> None:
        """Free a place; once for each take."""
        assert self._taken > 0
        self._taken -= 1

    def standing(self, now: float) -> Standing:  # noqa: ARG002 - the shape all quotas share
        """Places free; the reset is unknown and said to be now."""
        return Standing(limit=self.limit, remaining=self.limit - self._taken, reset=0.0)


Quota = FixedWindow | SlidingLog | Gcra | Concurrency


@frozen(kw_only=True)
class Refusal:
    """The dimension that stands in the way longest, and the seconds until all would pass (inf: never or unknown)."""

    dimension: str
    delay: float


@define(eq=False)
class Quotas:
    """Quotas by dimension ("requests", "tokens", "concurrency"), asked all together or not at all."""

    by_dimension: Mapping[str, Quota]

    def take(self, now: float, costs: Mapping[str, float]) -> Refusal | None:
        """Book the costs (1 where none is given) with every quota, or with none and say why."""
        if self._worst(now, costs) is None:
            for dimension, quota in self.by_dimension.items():
                quota.take(now, costs.get(dimension, 1.0))
            return None
        for dimension, quota in self.by_dimension.items():
            if isinstance(quota, SlidingLog) and quota.counts_refused:
                quota.take(now, costs.get(dimension, 1.0))
        # Asked again, because the refusal itself may have put the end off.
        return self._worst(now, costs)

    def leave(self) -> None:
        """An attempt that was booked is over: its place among the concurrent ones is free."""
        for quota in self.by_dimension.values():
            if isinstance(quota, Concurrency):
                quota.leave()

    def correct(self, now: float, dimension: str, cost: float) -> None:
        """Book more, or (below zero) give back, for an attempt that was booked before; there may be no such limit."""
        if dimension in self.by_dimension:
            self.by_dimension[dimension].take(now, cost)

    def standings(self, now: float) -> dict[str, Standing]:
        """What headers would announce, by dimension."""
        return {dimension: quota.standing(now) for dimension, quota in self.by_dimension.items()}

    def _worst(self, now: float, costs: Mapping[str, float]) -> Refusal | None:
        delays = {name: quota.ask(now, costs.get(name, 1.0)) for name, quota in self.by_dimension.items()}
        worst = max(delays, key=delays.__getitem__, default=None)
        if worst is None or delays[worst] <= 0.0:
            return None
        return Refusal(dimension=worst, delay=delays[worst])
