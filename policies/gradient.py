"""Driven by latency, for upstreams that never refuse and only get slower: vLLM and other servers of one's own.

Theory. Such a server works on so many attempts at once and lets the others queue; all of the queueing lies before
the first token. TCP Vegas (Brakmo and Peterson 1995) reads the queue off the latency, by Little's law: of `limit`
attempts in flight that take `residence` seconds without a queue and `wait` seconds in it,

    wait   = first - floor                          first: median first-token time of a round
    queue  = limit * wait / (residence + wait)      attempts that only stand in line; the rest is what the server holds
    spare  = the same with wait = tolerance * floor what is allowed to stand in line
    limit' = limit + smoothing * (spare - queue)    all of the difference when wait > 2 * tolerance * floor

limit - queue is limit times the gradient of Netflix's concurrency-limits (Gradient2Limit,
https://github.com/Netflix/concurrency-limits: gradient * limit + queueSize), and spare is its queue size, chosen so
that the first token then comes after (1 + tolerance) floors. Before the first queue the limit doubles. It rises by one
for each attempt that ends, as TCP's does: the rise itself must not be a burst that makes a queue.

A round is made of attempts that were admitted after the limit was last judged, half as many as it allows; anything
older tells of another limit. Its median is used, and the floor is the least median: the least single time is an
accident (as Gradient2Limit's authors found). The limit grows only if the round reached it (RFC 9002, section 7.8).
The first floor is the time of an attempt that was alone. A floor must not grow old: after `floor_lifetime` a round is
made at half the limit, as BBR does (draft-ietf-ccwg-bbr, ProbeRTT), then one at half of that as long as it helps; the
median is the new floor. So is that of any round at half an earlier limit, if the first token comes no sooner than
then: what half the load has not cured is no queue.

Refusals are obeyed as by `policies.aimd`, which is held inside and sets the rate; here is only the in_flight_limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median
from typing import ClassVar, Self, assert_never

from attrs import evolve, frozen

from policies.aimd import CREEPS, SLOWLY, Aimd, AimdOptions
from policies.contract import JSON, Accepted, Admitted, Event, Pace, Refused, Remembered, Settled, Unknown
from policies.fields import number, number_in, numbers_in, part_of

LEAST_SAMPLES = 8  # in a round; fewer have no median worth the name
MOST_SAMPLES = 400  # in a round; more only make it late
REMEMBERED = 100  # attempts over which the mean residence is taken
HELPED = 0.8  # times the first token's time before; less than that and a halved load has shortened a queue
LEAST_FLOOR = 1e-3  # s; below it clocks and networks are measured, not servers
MOST_IN_FLIGHT = 1e6


@frozen(kw_only=True)
class GradientOptions:
    """A larger tolerance lets more attempts queue: nearer to the server's capacity, later first tokens."""

    start_rate: float = number(5.0, low=1e-6, high=1e6, unit="units/s", text="refill_rate before any answer")
    start_in_flight: float = number(16.0, low=1, high=1e5, unit="attempts", text="in_flight_limit before any answer")
    tolerance: float = number(1.2, low=0.05, high=20, unit="floors", text="of waiting for the first token")
    smoothing: float = number(0.5, low=0.05, high=1, unit="", text="share of the spare that is taken in a round")
    floor_lifetime: float = number(600.0, low=10, high=1e6, unit="s", text="then the floor is measured again")


class Gradient:
    """One latency-driven controller; `limit` and `floor` are its visible state."""

    options_class: ClassVar[type] = GradientOptions
    claims: ClassVar[frozenset[str]] = frozenset({"success_never_lowers", "one_cut_per_epoch"})
    declines: ClassVar[Mapping[str, str]] = {"growth_is_measured_by_what_was_sent": CREEPS, "key_is_shared": SLOWLY}

    def __init__(
        self, options: GradientOptions, *, seed: int, now: float, remembered: Remembered | None = None
    ) -> None:
        self.options = options
        self.limit = options.start_in_flight
        self.floor: float | None = None  # s; first-token time without a queue
        self._aimd = Aimd(_inner(options), seed=seed, now=now, remembered=remembered)
        self._residence = 0.0  # s; mean time of an attempt less its wait
        self._counted = 0  # attempts in that mean
        self._target = self.limit  # where the limit goes, by one for each attempt that ends
        self._floor_at = now
        self._peak = self.limit  # the highest limit that was judged, till half of it is
        self._peak_first = 0.0  # s; the longest first-token time since
        self._doubling = True
        self._resume_at: float | None = None  # the limit to go back to while the floor is measured
        self._newest = -1  # highest permit admitted so far
        self._alone = -1  # the last permit that was admitted with no other in flight
        self._since = -1  # permits up to this one belong to an older limit
        self._reached = False  # the limit, in this round
        self._firsts: list[float] = []  # s, of this round
        self._heads: dict[int, float] = {}  # by permit: when its head came, for those that tell of no first token
        self._inner = self._aimd.pace  # what our pace was made from
        self._pace = evolve(self._inner, in_flight_limit=self._whole_limit)

    @property
    def pace(self) -> Pace:
        """The answer in force."""
        return self._pace

    @property
    def _whole_limit(self) -> int:
        return max(1, int(self.limit + 1e-9))

    def on(self, event: Event) -> Pace:
        """See `policies.contract.Policy.on`."""
        match event:
            case Admitted():
                self._newest = max(self._newest, event.permit)
                self._reached = self._reached or event.in_flight >= self._whole_limit
                if event.in_flight == 1:
                    self._alone = event.permit
            case Accepted():
                self._heads[event.permit] = event.now
            case Settled():
                self._settled(event)
            case Refused() | Unknown():
                self._heads.pop(event.permit, None)
            case _:
                assert_never(event)
        inner, whole_limit = self._aimd.on(event), self._whole_limit
        if inner is not self._inner or whole_limit != self._pace.in_flight_limit:
            self._inner, self._pace = inner, evolve(inner, in_flight_limit=whole_limit)
        return self._pace

    def _settled(self, event: Settled) -> None:
        head_at = self._heads.pop(event.permit, None)
        first_at = head_at if event.first_token_at is None else event.first_token_at
        self.limit = min(self.limit + 1.0, self._target)
        first = math.nan if first_at is None else first_at - event.admitted_at
        total = event.now - event.admitted_at
        if not 0 <= first <= total < math.inf:
            return
        if self.floor is None and event.permit == self._alone:
            self.floor, self._floor_at = max(first, LEAST_FLOOR), event.now
        self._counted = min(self._counted + 1, REMEMBERED)
        stay = max(total - max(first - (first if self.floor is None else self.floor), 0.0), LEAST_FLOOR)
        self._residence += (stay - self._residence) / self._counted
        if event.permit <= self._since:
            return
        self._firsts.append(first)
        if len(self._firsts) >= min(max(LEAST_SAMPLES, self.limit / 2), MOST_SAMPLES):
            self._turn(event.now)

    def _turn(self, now: float) -> None:
        """A round is complete."""
        first = max(median(self._firsts), LEAST_FLOOR)
        old, measured = self.floor, self._resume_at is not None or self._is_no_queue(first)
        if old is None or first < old or measured:
            self.floor, self._floor_at = first, now
        assert self.floor is not None
        if self._resume_at is not None and old is not None and first < HELPED * old and self.limit > 1:
            limit, self._resume_at = self.limit / 2, self.limit
        elif self._resume_at is not None:
            limit, self._resume_at = self._resume_at, None
        elif now - self._floor_at > self.options.floor_lifetime:
            limit, self._resume_at = self.limit / 2, self.limit
        else:
            limit = self._next_limit(first - self.floor, self.floor)
        self._begin_round(limit)

    def _is_no_queue(self, first: float) -> bool:
        """Half the load has not helped."""
        halved = self.limit <= self._peak / 2
        no_queue = halved and first >= HELPED * self._peak_first
        if halved or self.limit > self._peak:
            self._peak, self._peak_first = self.limit, first
        self._peak_first = max(self._peak_first, first)
        return no_queue

    def _next_limit(self, wait: float, floor: float) -> float:
        allowed = self.options.tolerance * floor
        queue = self.limit * wait / (self._residence + wait)
        spare = self.limit * allowed / (self._residence + allowed)
        if wait > allowed:
            self._doubling = False
        if self._doubling:
            return 2 * self.limit if self._reached else self.limit
        change = (spare - queue) * (1.0 if wait > 2 * allowed else self.options.smoothing)
        return self.limit + (change if self._reached else min(change, 0.0))

    def _begin_round(self, limit: float) -> None:
        self._target = min(max(limit, 1.0), MOST_IN_FLIGHT)
        self.limit = min(self.limit, self._target)
        self._since = self._newest
        self._reached = False
        self._firsts.clear()

    def snapshot(self, now: float) -> dict[str, JSON]:
        """See `policies.contract.Policy.snapshot`."""
        return {
            "limit": self.limit,
            "floor": self.floor,
            "target": self._target,
            "residence": self._residence,
            "counted": self._counted,
            "floor_age": now - self._floor_at,
            "peak": self._peak,
            "peak_first": self._peak_first,
            "doubling": self._doubling,
            "resume_at": self._resume_at,
            "newest": self._newest,
            "alone": self._alone,
            "since": self._since,
            "reached": self._reached,
            "firsts": [*self._firsts],
            "heads": [[permit, now - at] for permit, at in self._heads.items()],
            "aimd": self._aimd.snapshot(now),
        }

    @classmethod
    def restore(cls, options: GradientOptions, snapshot: Mapping[str, JSON], *, seed: int, now: float) -> Self:
        """See `policies.contract.Policy.restore`."""
        policy = cls(options, seed=seed, now=now)
        policy._aimd = Aimd.restore(_inner(options), part_of(snapshot, "aimd"), seed=seed, now=now)
        policy.limit, policy._peak = number_in(snapshot, "limit"), number_in(snapshot, "peak")
        policy.floor = None if snapshot.get("floor") is None else number_in(snapshot, "floor")
        policy._peak_first = number_in(snapshot, "peak_first")
        policy._residence, policy._counted = number_in(snapshot, "residence"), int(number_in(snapshot, "counted"))
        policy._target = number_in(snapshot, "target")
        policy._floor_at = now - number_in(snapshot, "floor_age")
        policy._doubling = snapshot.get("doubling") is True
        policy._resume_at = None if snapshot.get("resume_at") is None else number_in(snapshot, "resume_at")
        policy._newest, policy._since = int(number_in(snapshot, "newest")), int(number_in(snapshot, "since"))
        policy._alone = int(number_in(snapshot, "alone"))
        policy._reached = snapshot.get("reached") is True
        policy._firsts = numbers_in(snapshot, "firsts")
        rows = snapshot.get("heads")
        for row in rows if isinstance(rows, list) else ():
            permit, age = numbers_in({"heads": row}, "heads")
            policy._heads[int(permit)] = now - age
        policy._inner = policy._aimd.pace
        policy._pace = evolve(policy._inner, in_flight_limit=policy._whole_limit)
        return policy


def _inner(options: GradientOptions) -> AimdOptions:
    return AimdOptions(start_rate=options.start_rate)
