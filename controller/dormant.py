"""A quota dimension in which no limit has shown itself yet: it counts what is admitted, and limits nothing.

It wakes when a header states its limit, or a refusal names it. Only then is there a typical cost to measure it by: one
unit of its policy is the mean cost of the last minute, so that the constants of a policy mean the same for requests
and for LLM tokens. The unit stays what it is from then on, since all that a policy has learned is in it.

A refusal measures a limit of which no header told: it is at least what was admitted in the minute before it, less what
was refused, spread over that minute. The policy begins with it as a thing remembered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from attrs import define, field

from controller.adaptive import AdaptiveBucket
from policies.contract import Admitted, LimitedBy, Policy, Remembered

PERIOD = 60.0  # s

MakePolicy = Callable[[float, Remembered | None], Policy]  # now, what is known of the limit in units/s


@define(eq=False)
class _Told:
    """One admission of the last minute."""

    at: float
    cost: float


@define(eq=False)
class Dormant:
    """Of one dimension. headroom: see `AdaptiveBucket`."""

    make_policy: MakePolicy
    headroom: float = 1.0
    # By permit, in the order of admission. A plain dict would look for its first key among all those deleted.
    _log: OrderedDict[int, _Told] = field(factory=OrderedDict, init=False)

    def add(self, permit: int, cost: float, now: float) -> None:
        """An attempt was admitted."""
        log = self._log
        while log and next(iter(log.values())).at <= now - PERIOD:
            log.popitem(last=False)
        log[permit] = _Told(now, cost)

    def take_back(self, permit: int) -> None:
        """It was refused, or never sent."""
        self._log.pop(permit, None)

    def wake(self, now: float, *, limit: float | None = None) -> AdaptiveBucket:
        """What adapts from now on. limit: LLM tokens per second, as stated; None: the refusal measured it."""
        told = [each for each in self._log.values() if each.at > now - PERIOD]
        unit = max(sum(each.cost for each in told) / max(len(told), 1), 1.0)
        known = sum(each.cost for each in told) / PERIOD if limit is None else limit
        remembered = Remembered(limit=known / unit, age=0.0) if known > 0 else None
        first_at = told[0].at if told else now
        policy = self.make_policy(first_at, remembered)
        bucket = AdaptiveBucket(policy, now, unit=unit, headroom=self.headroom)
        if limit is not None:
            self._catch_up(bucket)
        return bucket

    def _catch_up(self, bucket: AdaptiveBucket) -> None:
        """Tell its policy what was admitted, lest it take for free what is under way."""
        for permit, each in self._log.items():
            bucket.tell(
                Admitted(
                    now=each.at,
                    permit=permit,
                    admitted_at=each.at,
                    cost=each.cost / bucket.unit,
                    limited_by=LimitedBy.OTHER,
                    in_flight=1,
                    refill_rate=bucket.bucket.refill_rate,
                )
            )
