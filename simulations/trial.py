"""A policy alone against one hidden limit, in a loop small enough to be read at a glance: the court of the laws.

One client with an endless backlog drives the daemon's own Limiter; a limit of simulations/quota.py answers. Beside
its quota the upstream has incidents: spans of time in which every attempt meets the same fate.
"""

from __future__ import annotations

import heapq
import math
import random
from enum import Enum
from itertools import pairwise

from attrs import define, field, frozen

from controller.adaptive import AdaptiveBucket
from controller.limiter import Limiter
from controller.outcome import Answer, Completed, Failed, Kind, Outcome, Throttled
from controller.permits import Booking, Wait
from policies.contract import Policy, Scope
from simulations.quota import FixedWindow, Gcra, Quota
from simulations.sliding_log import SlidingLog
from simulations.steps import Steps

PERIOD = 60.0  # s, of the windows
REFUSED_AFTER = 0.1  # s from admission
ON_THE_WAY = (0.010, 0.050)  # s from admission to the quota; it reorders
MAX_IN_FLIGHT = 64
MOST_ATTEMPTS = 50_000  # who sends more is mad, and is stopped
ONE = {"requests": 1.0}
OK = Completed(answer=Answer(text="", finish_reason="stop", model=None, usage=None, body={}))


class Fate(Enum):
    """What an attempt comes to."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    OVERLOADED = "overloaded"  # refused, for want of capacity
    LOST = "lost"  # no word


@frozen(kw_only=True)
class Incident:
    """From start to end, in seconds, every attempt meets this fate."""

    start: float
    end: float
    fate: Fate


@frozen(kw_only=True)
class Setting:
    """An upstream and its story.

    limit: units/s. kind: window, sliding or gcra. step: the limit is so many times larger from step_at on.
    latency: seconds to the headers, and as many again to the end.
    """

    limit: float
    kind: str
    latency: float
    seed: int
    length: float
    hinted: bool = False  # refusals carry Retry-After, in whole seconds
    step: float = 1.0
    step_at: float = 0.0
    incidents: tuple[Incident, ...] = ()

    def words(self) -> list[str]:
        """The setting, for a reader."""
        hinted = "with" if self.hinted else "without"
        quota = f"limit {self.limit:g} units/s ({self.kind}), {hinted} Retry-After"
        lines = [f"{quota}, latency {self.latency:g} s, seed {self.seed}"]
        if self.step != 1.0:
            lines.append(f"from {self.step_at:g} s on the limit is {self.step:g} times larger")
        lines += [f"from {each.start:g} s to {each.end:g} s all are {each.fate.value}" for each in self.incidents]
        return lines


@frozen
class Attempt:
    """One attempt of the log; at: the instant of admission."""

    at: float
    fate: Fate


@define(eq=False)
class Trial:
    """One run of a policy. attempts and rates, (instant, units/s), are its log."""

    setting: Setting
    policy: Policy
    attempts: list[Attempt] = field(factory=list, init=False)
    rates: list[tuple[float, float]] = field(factory=list, init=False)
    stuck_at: float | None = field(default=None, init=False)  # nothing under way, and nothing to wait for
    fault: str | None = field(default=None, init=False)
    _ends: list[tuple[float, int, Booking, Fate | None]] = field(factory=list, init=False)  # None: only the headers
    _count: int = field(default=0, init=False)

    def run(self) -> Trial:
        """From 0 s to the setting's length; the same trial, with its log."""
        setting = self.setting
        bucket = AdaptiveBucket(self.policy, 0.0)
        limiter, upstream = Limiter({"requests": bucket}, MAX_IN_FLIGHT), _Upstream(setting)
        now, waited = 0.0, None
        while now < setting.length and len(self.attempts) < MOST_ATTEMPTS and bucket.fault is None:
            answer = limiter.admit(ONE, now, waited=waited)
            self._note(now, bucket.bucket.refill_rate)
            if isinstance(answer, Booking):
                self._send(answer, upstream, now)
                continue
            # The next prompt stands behind this one, so what holds this one back holds it back as well.
            waited = answer
            now = self._next_instant(answer)
            if now == math.inf:
                self.stuck_at = self.attempts[-1].at if self.attempts else 0.0
                break
            self._finish(limiter, upstream, now)
        self.fault = bucket.fault
        return self

    def _note(self, now: float, rate: float) -> None:
        if not self.rates or self.rates[-1][1] != rate:
            self.rates.append((now, rate))

    def _send(self, booking: Booking, upstream: _Upstream, now: float) -> None:
        fate = upstream.fate(now)
        self.attempts.append(Attempt(now, fate))
        if fate is Fate.ACCEPTED:
            self._later(now + self.setting.latency, booking, None)
            self._later(now + 2 * self.setting.latency, booking, fate)
        else:
            self._later(now + REFUSED_AFTER, booking, fate)

    def _later(self, at: float, booking: Booking, fate: Fate | None) -> None:
        self._count += 1
        heapq.heappush(self._ends, (at, self._count, booking, fate))

    def _next_instant(self, wait: Wait) -> float:
        return min(wait.until, self._ends[0][0] if self._ends else math.inf)

    def _finish(self, limiter: Limiter, upstream: _Upstream, now: float) -> None:
        while self._ends and self._ends[0][0] <= now:
            at, _, booking, fate = heapq.heappop(self._ends)
            if fate is None:
                limiter.accept(booking, {}, at)
            else:
                limiter.settle(booking, upstream.outcome(fate, at), at)

    # -- questions

    def count(self, fate: Fate | None, start: float, end: float) -> int:
        """Attempts admitted in [start, end) that met this fate, or any."""
        return sum(start <= each.at < end and fate in (None, each.fate) for each in self.attempts)

    def longest_gap(self, start: float, end: float) -> float:
        """Seconds in [start, end] without an attempt."""
        instants = [start, *(each.at for each in self.attempts if start <= each.at <= end), end]
        return max(later - sooner for sooner, later in pairwise(instants))

    def story(self, spans: int = 12) -> list[str]:
        """What became of the attempts in each of so many spans of the run, under its setting."""
        length, lines = self.setting.length / spans, self.setting.words()
        for n in range(spans):
            start, end = n * length, (n + 1) * length
            counts = {fate: self.count(fate, start, end) for fate in Fate}
            said = ", ".join(f"{count} {fate.value}" for fate, count in counts.items() if count) or "nothing sent"
            rate = next((rate for at, rate in reversed(self.rates) if at < end), math.nan)
            lines.append(f"{start:6.0f} to {end:.0f} s: {said}; refill_rate at the end {rate:.3g} units/s")
        return [*lines, *([f"stuck for ever since {self.stuck_at:.1f} s"] if self.stuck_at is not None else [])]


class _Upstream:
    """Decides the fate of attempts."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._rng = random.Random(setting.seed)
        self._quota = _quota(setting, self._rng)
        self._seen = 0.0  # a quota's clock never goes back, arrivals that overtake do

    def fate(self, now: float) -> Fate:
        arrives = self._seen = max(self._seen, now + self._rng.uniform(*ON_THE_WAY))
        for incident in self._setting.incidents:
            if incident.start <= now < incident.end:
                return incident.fate
        if self._quota.ask(arrives, 1.0) > 0:
            return Fate.REFUSED
        self._quota.take(arrives, 1.0)
        return Fate.ACCEPTED

    def outcome(self, fate: Fate, now: float) -> Outcome:
        match fate:
            case Fate.ACCEPTED:
                return OK
            case Fate.LOST:
                return Failed(kind=Kind.NETWORK, message="")
        delay = self._quota.ask(max(self._seen, now), 1.0)
        # An incident's refusal has no hint: nobody knows its end.
        hint = float(math.ceil(delay)) if self._setting.hinted and fate is Fate.REFUSED and delay > 0 else None
        scope = Scope.OVERLOAD if fate is Fate.OVERLOADED else Scope.UNKNOWN
        return Throttled(status=429, message="", retry_after=hint, scope=scope)


def _quota(setting: Setting, rng: random.Random) -> Quota:
    per_second = Steps(((0.0, setting.limit), (setting.step_at, setting.limit * setting.step)))
    match setting.kind:
        case "window":
            return FixedWindow(per_second.scaled(PERIOD), PERIOD, offset=rng.uniform(0.0, PERIOD))
        case "sliding":
            return SlidingLog(per_second.scaled(PERIOD), PERIOD)
        case _:
            return Gcra(per_second, burst=max(1.0, setting.limit))
