"""What clients want answered: prompts by number, with the instant at which each is there and its cost.

An endless backlog, so many prompts, Poisson arrivals in phases, or the lines of a trace. Costs are 1, or LLM tokens:
a fixed reserve for the answer plus a lognormal prompt. With a mix (simulations.sizes) each prompt costs 1 and brings
its LLM tokens along.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, pairwise, repeat
from math import exp, inf
from random import Random

from attrs import define, evolve, field, frozen

from simulations.client import Send
from simulations.ranges import LARGEST, Within
from simulations.sizes import Kind, Sized, draw_all


@frozen
class Arrival:
    """A prompt is there from an instant on (seconds since its client joined); cost in units of the quota."""

    at: float
    cost: float
    sized: Sized | None = None


@frozen
class Phase:
    """From an instant on, prompts arrive at random, so many per second on average."""

    start: float
    per_second: float


@frozen(kw_only=True)
class Workload:
    """Where prompts come from: `arrivals` if given, else `phases`, else a backlog that is there from the start."""

    prompts: int | None = field(
        default=None, validator=Within(1, 10_000_000, "prompts", or_else=(None,), whole=True)
    )  # None: endless
    phases: tuple[Phase, ...] = ()
    arrivals: tuple[Arrival, ...] | None = None  # of a trace
    output_reserve: float = field(default=0.0, validator=Within(0.0, LARGEST, "LLM tokens"))
    prompt_median: float = field(default=0.0, validator=Within(0.0, LARGEST, "LLM tokens"))
    prompt_sigma: float = field(default=0.0, validator=Within(0.0, 3.0, "sigma of a lognormal"))
    mix: tuple[Kind, ...] = ()  # requests and LLM tokens are both counted

    def __attrs_post_init__(self) -> None:
        """What no single field can know."""
        if any(later.start <= earlier.start for earlier, later in pairwise(self.phases)):
            raise ValueError("phases must be in order")
        if self.mix and (self.output_reserve or self.prompt_median or self.arrivals is not None):
            raise ValueError("a mix says how large prompts are: give no other sizes and no trace")

    @property
    def is_random(self) -> bool:
        """Another seed makes other prompts or other arrivals."""
        return bool(self.phases or self.prompt_sigma or self.mix)

    @property
    def typical_cost(self) -> float:
        """The mean cost of a prompt; 1 where costs are not LLM tokens."""
        if self.arrivals:
            return sum(arrival.cost for arrival in self.arrivals) / len(self.arrivals)
        mean = self.output_reserve + self.prompt_median * exp(self.prompt_sigma**2 / 2)
        return mean or 1.0

    def in_requests(self) -> Workload:
        """The same prompts where each counts as one, whatever its size."""
        counted = self.arrivals and tuple(Arrival(arrival.at, 1.0) for arrival in self.arrivals)
        return evolve(self, arrivals=counted, output_reserve=0.0, prompt_median=0.0)

    def backlog(self, rng: Random, joined_at: float) -> Backlog:
        """The prompts of one client, from the instant at which it joins."""
        return Backlog(islice(self._arrivals(rng), self.prompts), joined_at)

    def _arrivals(self, rng: Random) -> Iterator[Arrival]:
        if self.arrivals is not None:
            yield from self.arrivals
            return
        if self.mix:
            yield from self._mixed(rng)
            return
        if not self.phases and self.prompt_median <= 0:
            yield from repeat(Arrival(0.0, self._cost(rng)))
        at = self._next_at(0.0, rng)
        while at < inf:
            yield Arrival(at, self._cost(rng))
            at = self._next_at(at, rng)

    def _mixed(self, rng: Random) -> Iterator[Arrival]:
        at = self._next_at(0.0, rng)
        for sized in draw_all(self.mix, rng):
            if at == inf:
                return
            yield Arrival(at, 1.0, sized)
            at = self._next_at(at, rng)

    def _next_at(self, at: float, rng: Random) -> float:
        """The next of a Poisson process whose rate steps: the exponential has no memory, so a phase starts it anew.

        Without phases everything is there at once.
        """
        if not self.phases:
            return at
        for index, phase in enumerate(self.phases):
            end = self.phases[index + 1].start if index + 1 < len(self.phases) else inf
            if at >= end or phase.per_second <= 0:
                continue
            at = max(at, phase.start) + rng.expovariate(phase.per_second)
            if at < end:
                return at
            at = end
        return inf

    def _cost(self, rng: Random) -> float:
        if self.prompt_median <= 0:
            return self.output_reserve or 1.0
        return float(round(self.output_reserve + self.prompt_median * rng.lognormvariate(0.0, self.prompt_sigma)))


@define(eq=False)
class Backlog:
    """Prompts in the order in which they come; each is taken once. Numbers count from 0."""

    _source: Iterator[Arrival]
    _joined_at: float
    _head: Arrival | None = field(init=False)
    _number: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        """Know the first one."""
        self._head = next(self._source, None)

    def next_at(self) -> float:
        """The instant from which the next prompt is there; inf when there are no more."""
        return inf if self._head is None else self._joined_at + self._head.at

    @property
    def head(self) -> Arrival:
        """The next prompt; asked only while there is one."""
        assert self._head is not None
        return self._head

    def take(self) -> Send:
        """The next prompt; only when its instant has come."""
        assert self._head is not None
        taken = Send(self._number, self._head.cost, self._head.sized)
        self._number += 1
        self._head = next(self._source, None)
        return taken
