"""The hidden upstream of the closed loop: quotas, outages, a neighbour and bad habits decide about each arrival.

The quotas are those of `simulations.quota`, which judge our own bucket; nothing here knows who asks.
"""

from __future__ import annotations

from collections import deque
from math import ceil, exp, inf, isfinite
from random import Random

from attrs import define, field

from policies.contract import Hints
from simulations.client import NOTHING, Answer, Attempt, Told
from simulations.limits import quotas_of
from simulations.quota import Concurrency, Quota, Quotas
from simulations.scenario import HEADERS, NONE, Latency, Neighbour, Outage, Scenario, Span
from simulations.sliding_log import SlidingLog
from simulations.slope import Slope
from simulations.standing import Standing

UNKNOWN_DELAY = 1.0  # seconds; the hint for a refusal whose end nobody knows (concurrency)


ACCEPTED = Answer(200)


@define(eq=False)
class HiddenUpstream:
    """Decides at arrival, in the order of arrivals; time never goes back. `left` ends an accepted attempt."""

    scenario: Scenario
    feedback: str
    neighbour_took: list[float] = field(factory=list, init=False)  # instants
    _outages: tuple[Outage, ...] = field(init=False)
    _in_tokens: bool = field(init=False)  # the cost counts, else each attempt as one
    _speed: float = field(init=False)
    _quotas: Quotas = field(init=False)
    _gives_back: bool = field(init=False)  # places among concurrent ones
    _only: Quota | None = field(init=False)  # the quota, if there is just one that needs no care
    _slope: Slope | None = field(init=False)
    _free_at: float = field(default=-inf, init=False)  # the queue is worked off by then
    _neighbours: deque[float] = field(init=False)  # instants at which neighbours will ask

    def __attrs_post_init__(self) -> None:
        """Begin with fresh quotas."""
        scenario, habits = self.scenario, self.scenario.habits
        self._outages, self._speed = scenario.outages, habits.served_per_second
        self._in_tokens = scenario.dimension == "tokens"
        quotas = quotas_of(scenario.upstream, scenario.offset)
        self._quotas = Quotas(quotas)
        self._gives_back = any(isinstance(quota, Concurrency) for quota in quotas.values())
        single = next(iter(quotas.values())) if len(quotas) == 1 else None
        self._only = None if isinstance(single, SlidingLog) and single.counts_refused else single
        self._slope = Slope(habits.slope_seconds, habits.slope_free) if habits.slope_seconds else None
        self._neighbours = deque(sorted(at for each in scenario.neighbours for at in _asks(each)))

    def arrive(self, attempt: Attempt, now: float) -> Answer:
        """The fate of one attempt."""
        if self._neighbours:
            self.advance(now)
        for outage in self._outages:
            if outage.start <= now < outage.until:
                return Answer(outage.status)
        delay = self._take(now, attempt.cost)
        if delay > 0:
            return self._refusal(now, delay)
        hints = self._hints(now) if self.feedback == HEADERS else NOTHING
        queued = self._queue(now) if self._speed else 0.0
        return Answer(200, None, hints, queued) if hints is not NOTHING or queued else ACCEPTED

    def answers(self, attempt: Attempt, begins_at: float, ends_at: float) -> None:
        """An accepted attempt will have its answer between these instants."""

    def left(self, attempt: Attempt, now: float) -> None:  # noqa: ARG002 - the shape that both upstreams share
        """An accepted attempt is over."""
        if self._gives_back:
            self._quotas.leave()

    def advance(self, now: float) -> None:
        """Let the neighbours take what is theirs until now."""
        while self._neighbours and self._neighbours[0] <= now:
            at = self._neighbours.popleft()
            if self._take(at, self.scenario.workload_unit) <= 0:
                self.neighbour_took.append(at)

    def _take(self, now: float, cost: float) -> float:
        """Book it and say 0, or say after how many seconds it would pass."""
        if self._slope is not None and (wait := self._slope.ask(now)) > 0:
            return wait
        if self._only is None:
            refusal = self._quotas.take(now, {"tokens": cost})
            delay = 0.0 if refusal is None else refusal.delay
        else:
            cost = cost if self._in_tokens else 1.0
            delay = self._only.ask(now, cost)
            if delay <= 0:
                self._only.take(now, cost)
        if self._slope is not None and delay <= 0:
            self._slope.take(now)
        return delay

    def _refusal(self, now: float, delay: float) -> Answer:
        if self.scenario.habits.hides_429:
            return Answer(502)
        if self.feedback == NONE:
            return Answer(429)
        told = float(ceil(delay)) if isfinite(delay) else UNKNOWN_DELAY if self._gives_back else None
        return Answer(429, told, self._hints(now) if self.feedback == HEADERS else NOTHING)

    def _hints(self, now: float) -> Told:
        dimension = self.scenario.dimension
        quota = self._quotas.by_dimension.get(dimension)
        return NOTHING if quota is None else {dimension: printed(quota.standing(now))}

    def _queue(self, now: float) -> float:
        began_at = max(now, self._free_at)
        self._free_at = began_at + 1 / self._speed
        return began_at - now


def printed(standing: Standing) -> Hints:
    """As a provider prints it: whole units, and no period."""
    return Hints(limit=float(round(standing.limit)), remaining=float(int(standing.remaining)), reset=standing.reset)


def _asks(neighbour: Neighbour) -> list[float]:
    count = int((neighbour.until - neighbour.start) * neighbour.per_second)
    return [neighbour.start + number / neighbour.per_second for number in range(count)]


@define(eq=False)
class Delays:
    """Draws how long things take. All in seconds after a request was sent."""

    latency: Latency
    rng: Random
    _arrival: Span = field(init=False)
    _head: Span = field(init=False)
    _end: Span = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Have at hand what is asked for each attempt."""
        self._arrival, self._head, self._end = self.latency.arrival, self.latency.head, self.latency.end

    def arrival(self) -> float:
        """Until the upstream decides."""
        span = self._arrival
        return span.low + (span.high - span.low) * self.rng.random()

    def head(self) -> float:
        """Until the head of a 2xx is here."""
        span = self._head
        return span.low + (span.high - span.low) * self.rng.random()

    def end(self) -> float:
        """Until the answer is over."""
        drawn, sigma, span = self.latency.end_median, self.latency.end_sigma, self._end
        if sigma:
            drawn *= exp(self.rng.gauss(0.0, sigma))
        return span.low if drawn < span.low else span.high if drawn > span.high else drawn
