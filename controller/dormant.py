"""A quota dimension in which no limit has shown itself yet: it counts what is admitted, and limits nothing.

It wakes when a header states its limit, or a refusal names it. Only then is there a typical cost to measure it by: one
unit of its policy is the mean cost of the last minute, so that the constants of a policy mean the same for requests
and for LLM tokens. The unit stays what it is from then on, since all that a policy has learned is in it.

A limit of which no header told is measured by the refusal: its policy is told of the last minute as if it had been
there, and then of the refusal. Its unit is such that it would have begun at the rate of that minute at least, since a
policy that met the limit at a rate it never had would look for it too low.

A dimension of LLM tokens saves up for a minute, which is what most upstreams let through at once: what one stretch of
prompts leaves is there for the next. Where that turns out to be too much, it saves up less (`AdaptiveBucket.short`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from attrs import define, field

from controller.adaptive import AdaptiveBucket
from controller.permits import Booking
from policies.contract import Admitted, LimitedBy, Policy, Remembered

PERIOD = 60.0  # s
ENOUGH = 20  # attempts; the mean cost of fewer is chance
SAVED_UP = 60.0  # s of refill

MakePolicy = Callable[[float, Remembered | None], Policy]  # now, what is known of the limit in units/s


@define(eq=False)
class _Told:
    """One admission of the last minute."""

    at: float
    cost: float


@define(eq=False)
class Dormant:
    """Of one dimension. headroom, late: see `AdaptiveBucket`."""

    make_policy: MakePolicy
    headroom: float = 1.0
    late: bool = False
    # By permit, in the order of admission. A plain dict would look for its first key among all those deleted.
    _log: OrderedDict[int, _Told] = field(factory=OrderedDict, init=False)
    _sum: float = field(default=0.0, init=False)  # of the log

    def add(self, permit: int, cost: float, now: float) -> None:
        """An attempt was admitted."""
        if self._log:
            self._forget(now)
        self._log[permit] = _Told(now, cost)
        self._sum += cost

    def take_back(self, permit: int) -> None:
        """It was refused, or never sent."""
        told = self._log.pop(permit, None)
        if told is not None:
            self._sum -= told.cost

    def correct(self, permit: int, cost: float) -> None:
        """What an attempt really cost."""
        told = self._log.get(permit)
        if told is not None:
            self._sum += cost - told.cost
            told.cost = cost

    def typical(self, now: float) -> float | None:
        """The mean cost of the last minute; None if that is of too few."""
        self._forget(now)
        return self._sum / len(self._log) if len(self._log) >= ENOUGH else None

    def _forget(self, now: float) -> None:
        log = self._log
        while log and next(iter(log.values())).at <= now - PERIOD:
            self._sum -= log.popitem(last=False)[1].cost

    def wake_by_header(self, now: float, limit: float, remaining: float | None) -> AdaptiveBucket:
        """What adapts from now on. limit: LLM tokens per second, as stated; remaining: of them, for now."""
        unit = self._unit(now)
        bucket = self._made(now, unit, Remembered(limit=limit / unit, age=0.0))
        if remaining is not None:
            bucket.remains(remaining - self._sum, now)  # all that is on its way may be missing in it
        return bucket

    def wake_by_refusal(self, refused: Booking, cost: float, now: float) -> AdaptiveBucket:
        """The same; the caller tells of the refusal then."""
        self._log[refused.number] = _Told(refused.admitted_at, cost)
        began_at = min(each.at for each in self._log.values())
        per_second = sum(each.cost for each in self._log.values()) / max(now - began_at, 1.0)
        start_rate = AdaptiveBucket(self.make_policy(now, None), now).pace.refill_rate
        return self._made(now, max(self._unit(now), per_second / start_rate), None)

    def _unit(self, now: float) -> float:
        told = [each.cost for each in self._log.values() if each.at > now - PERIOD]
        return max(sum(told) / max(len(told), 1), 1.0)

    def _made(self, now: float, unit: float, remembered: Remembered | None) -> AdaptiveBucket:
        """Tell its policy what was admitted, lest it take for free what is under way."""
        told = sorted(self._log.items(), key=lambda pair: (pair[1].at, pair[0]))
        policy = self.make_policy(told[0][1].at if told else now, remembered)
        bucket = AdaptiveBucket(policy, now, unit=unit, headroom=self.headroom, saved_up=SAVED_UP, late=self.late)
        for permit, each in told:
            bucket.tell(
                Admitted(
                    now=each.at,
                    permit=permit,
                    admitted_at=each.at,
                    cost=each.cost / unit,
                    limited_by=LimitedBy.OTHER,
                    in_flight=1,
                    refill_rate=bucket.bucket.refill_rate,
                )
            )
        return bucket
