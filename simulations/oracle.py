"""The most that any client could have got accepted: one that knows the hidden limit and takes what there is.

Counted are units of the limit, and prompts where requests and LLM tokens are both limited. First come, first served:
the head of the queue goes as soon as all limits let it, and nobody overtakes it. Such a greedy schedule is best for
every quota here, and for several together. Let another schedule accept the prompts at s1 <= s2 <= ..., the greedy one
at g1 <= g2 <= ..., and all before the i-th no later than the other. At the instant si, whatever of them still counts in
a window, a log or a bucket under the greedy schedule counts under the other as well, in each dimension: what came
earlier leaves earlier. So prompt i fits by si, and gi <= si.

What a prompt comes to in each dimension is booked when it is accepted, in whole: max_tokens where nothing comes back,
else what the answer turns out to be, which the oracle knows. Where the upstream holds more until it gives some back,
this is a bound from above. Where it books the output only when it is produced, a client may be ahead of the oracle by
what is under way at the end, of two hours a tenth of a per cent: the oracle does not borrow from beyond the end.

It counts every window it touches, so that even a perfectly paced client stays a little below it (in two hours of
minutes by 1 %). The refusals it would need to find all that out are none.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache
from itertools import accumulate
from math import inf
from random import Random

from attrs import field, frozen

from simulations.charging import Booked
from simulations.knobs import Profile
from simulations.limits import quotas_of
from simulations.quota import Concurrency
from simulations.scenario import Clients, Latency, Outage, Scenario
from simulations.steps import Steps
from simulations.workload import Arrival, Backlog, Workload

LEAST_WAIT = 1e-6  # seconds; a rounded delay must not be asked for ever


@frozen
class Ideal:
    """Instants of the oracle's acceptances and the units accepted up to each."""

    at: tuple[float, ...]
    units: tuple[float, ...]

    def between(self, start: float, end: float) -> float:
        """Units accepted in [start, end)."""
        return self._until(end) - self._until(start)

    def _until(self, end: float) -> float:
        index = bisect_left(self.at, end)
        return self.units[index - 1] if index else 0.0


@frozen(kw_only=True)
class _World:
    """What the oracle's figures depend on; hashable, since many runs share them."""

    upstream: Profile
    offset: float
    duration: float
    outages: tuple[Outage, ...]
    speed: float
    clients: Clients
    workload: Workload
    latency: Latency
    seed: int = field(default=0)


def ideal_of(scenario: Scenario, seed: int) -> Ideal:
    """Of all clients together, with no neighbour about; the slope and the router are not counted against anyone."""
    return _ideal(
        _World(
            upstream=scenario.upstream,
            offset=scenario.offset,
            duration=scenario.duration,
            outages=scenario.outages,
            speed=scenario.habits.served_per_second,
            clients=scenario.clients,
            workload=scenario.work,
            latency=scenario.latency,
            seed=seed if scenario.workload.is_random else 0,
        )
    )


def backlogs_of(workload: Workload, clients: Clients, seed: int) -> list[Backlog]:
    """One for each client; the same for the same seed."""
    return [workload.backlog(Random(f"{seed}/prompts/{index}"), at) for index, at in enumerate(clients.joins)]


@lru_cache(maxsize=64)
def _ideal(world: _World) -> Ideal:
    quotas = [
        quota for quota in quotas_of(world.upstream, world.offset).items() if not isinstance(quota[1], Concurrency)
    ]
    backlogs = backlogs_of(world.workload, world.clients, world.seed)
    pace = _pace(world)
    at: list[float] = []
    costs: list[float] = []
    now = 0.0
    while True:
        backlog = min(backlogs, key=Backlog.next_at)
        now = max(now, backlog.next_at())
        if now >= world.duration:
            return Ideal(tuple(at), tuple(accumulate(costs)))
        cost = backlog.head.cost
        booked = _booked(world, backlog.head)
        wait = max([_outage_left(world, now), *(quota.ask(now, booked.get(name, 1.0)) for name, quota in quotas)])
        if wait > 0:
            now += max(wait, LEAST_WAIT)
            continue
        for name, quota in quotas:
            quota.take(now, booked.get(name, 1.0))
        backlog.take()
        at.append(now)
        costs.append(cost)
        now += pace


def _booked(world: _World, prompt: Arrival) -> Booked:
    """What it comes to in all, by dimension; 1 in those that are not there."""
    return {"tokens": prompt.cost} if prompt.sized is None else prompt.sized.booked(world.upstream.charge)


def _outage_left(world: _World, now: float) -> float:
    return max((outage.until - now for outage in world.outages if outage.start <= now < outage.until), default=0.0)


def _pace(world: _World) -> float:
    """Seconds between acceptances by what is no quota per period: a queue's speed, or places that are given back."""
    places = world.upstream.concurrency
    by_places = 0.0 if places is None else world.latency.mean_end() / places
    return max(by_places, 1 / world.speed if world.speed else 0.0)


def allowed(scenario: Scenario, start: float, end: float) -> float:
    """The integral of the hidden limit over [start, end), outages left out; inf without a limit."""
    if scenario.limit_at(start) == inf:
        return inf
    steps = limit_steps(scenario)
    gaps = ((max(start, outage.start), min(end, outage.until)) for outage in scenario.outages)
    lost = sum(steps.earned(until) - steps.earned(since) for since, until in gaps if until > since)
    return steps.earned(end) - steps.earned(start) - lost


def limit_steps(scenario: Scenario) -> Steps:
    """The hidden limit in units per second over time; asked only where there is one."""
    if scenario.dimension == "requests" and not scenario.is_mixed and scenario.upstream.quota != "none":
        return scenario.upstream.per_second
    return Steps.constant(scenario.limit_at(0.0))
