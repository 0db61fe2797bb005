"""Clients against a hidden upstream: a heap of events, no clock, no tasks; hours of traffic in seconds.

What happens to an attempt: sent; arrived (the upstream decides, the quota is booked); then a refusal, or the head of a
2xx and the end of its stream. After each call of a client the loop asks when it wants to act next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import inf
from random import Random

from attrs import define, field

from simulations.client import Answer, Attempt, Client, Send
from simulations.hidden import Delays, HiddenUpstream
from simulations.hidden_tokens import HiddenTokens
from simulations.limiter_client import LimiterClient, Seat, make_limiter_client
from simulations.measures import Figures, Record, figures
from simulations.oracle import backlogs_of, ideal_of
from simulations.scenario import DEFAULT_POLICY, NONE, Scenario
from simulations.tally import Head, Tally

__all__ = ["Attempt", "Client", "ClosedLoop", "LimiterClient", "Run", "Seat", "Send", "simulate", "simulate_policy"]

PATIENCE = 1000  # calls of `act` in one instant that send nothing; more is a client that spins


@define(eq=False)
class ClosedLoop:
    """One run. clients: one for each instant in the scenario's joins; rng: of all delays."""

    scenario: Scenario
    upstream: HiddenUpstream | HiddenTokens
    clients: Sequence[Client]
    rng: Random
    tallies: list[Tally] = field(init=False)
    _heap: list[tuple[float, int, Callable[[float], None]]] = field(factory=list, init=False)
    _order: count[int] = field(factory=count, init=False)  # what shares an instant happens in the order it was made
    _numbers: count[int] = field(factory=count, init=False)
    _delays: Delays = field(init=False)
    _wakes_at: list[float] = field(init=False)  # by client: the one wake in the heap that counts

    def __attrs_post_init__(self) -> None:
        """Everybody wants to be asked once."""
        self.tallies = [Tally() for _ in self.clients]
        self._delays = Delays(self.scenario.latency, self.rng)
        self._wakes_at = [inf for _ in self.clients]

    def run(self) -> list[Tally]:
        """Until the scenario's end; what is under way then counts as sent only."""
        for index, joined_at in enumerate(self.scenario.clients.joins):
            self._wake_later(index, joined_at)
        heap, duration = self._heap, self.scenario.duration
        while heap:
            now, _, happen = heappop(heap)
            if now >= duration:
                break
            happen(now)
        self.upstream.advance(duration)
        return self.tallies

    def _later(self, at: float, happen: Callable[[float], None]) -> None:
        heappush(self._heap, (at, next(self._order), happen))

    # -- clients act

    def _wake_later(self, index: int, at: float) -> None:
        self._wakes_at[index] = at
        self._later(at, partial(self._wake, index))

    def _wake(self, index: int, now: float) -> None:
        if self._wakes_at[index] == now:  # else it was moved
            self._wakes_at[index] = inf
            self._look(index, now)

    def _look(self, index: int, now: float) -> None:
        """After anything that a client was told: let it act, all that it wants to in this instant."""
        client, idle = self.clients[index], 0
        wake_at = client.wake_at()
        while wake_at <= now:
            sends = client.act(now)
            for send in sends:
                self._send(index, send, now)
            idle = 0 if sends else idle + 1
            assert idle < PATIENCE, f"client {index} spins at {now:g} s"
            wake_at = client.wake_at()
        if wake_at < self._wakes_at[index]:
            self._wake_later(index, wake_at)

    def _send(self, index: int, send: Send, now: float) -> None:
        attempt = Attempt(next(self._numbers), index, send.prompt, send.cost, now, send.sized)
        self.tallies[index].sent_at.append(now)
        self.clients[index].sent(attempt, now)
        self._later(now + self._delays.arrival(), partial(self._arrive, attempt))

    # -- what becomes of an attempt

    def _arrive(self, attempt: Attempt, now: float) -> None:
        answer = self.upstream.arrive(attempt, now)
        tally, sent_at = self.tallies[attempt.client], attempt.sent_at
        if answer.status == 200:
            tally.accept(attempt, now + answer.queued)
            head_at = sent_at + self._delays.head() + answer.queued
            self._later(head_at if head_at > now else now, partial(self._accept, attempt, answer))
            return
        answer_at = max(now, sent_at + self.scenario.latency.refusal)
        if answer.status == 502:
            tally.lose(attempt, now)
            self._later(answer_at, partial(self._lose, attempt))
        else:
            tally.refuse(attempt, now)
            self._later(answer_at, partial(self._refuse, attempt, answer))

    def _accept(self, attempt: Attempt, answer: Answer, now: float) -> None:
        if answer.queued:
            self.tallies[attempt.client].heads.append(Head(attempt.sent_at, now - attempt.sent_at))
        self.clients[attempt.client].accepted(attempt, now, answer)
        end_at = max(attempt.sent_at + answer.queued + self._delays.end(), now)
        self.upstream.answers(attempt, now, end_at)
        self._later(end_at, partial(self._end, attempt))
        self._look(attempt.client, now)

    def _end(self, attempt: Attempt, now: float) -> None:
        self.upstream.left(attempt, now)
        self.clients[attempt.client].ended(attempt, now, True)
        self._look(attempt.client, now)

    def _refuse(self, attempt: Attempt, answer: Answer, now: float) -> None:
        client = self.clients[attempt.client]
        client.refused(attempt, now, answer)
        self._look(attempt.client, now)

    def _lose(self, attempt: Attempt, now: float) -> None:
        self.clients[attempt.client].ended(attempt, now, False)
        self._look(attempt.client, now)


@define(eq=False)
class Run:
    """A run that is over: its figures, and what a plot needs."""

    figures: Figures
    record: Record
    clients: Sequence[Client]


def simulate(scenario: Scenario, maker: Callable[[Seat], Client], feedback: str, seed: int) -> Run:
    """One run of a scenario with clients from `maker`, one for each instant of joining."""
    upstream = (HiddenTokens if scenario.is_mixed else HiddenUpstream)(scenario, feedback)
    clients = [maker(seat) for seat in _seats(scenario, seed)]
    tallies = ClosedLoop(scenario, upstream, clients, Random(f"{seed}/delays")).run()
    record = Record(scenario, ideal_of(scenario, seed), tallies, upstream.neighbour_took)
    return Run(figures(record), record, clients)


def simulate_policy(
    scenario: Scenario,
    policy: str = DEFAULT_POLICY,
    feedback: str = NONE,
    seed: int = 0,
    options: Mapping[str, str] | None = None,
) -> Figures:
    """The figures of one run with our limiter and a policy by name; raises ValueError for an unknown one."""
    return simulate(scenario, partial(make_limiter_client, policy, options or {}), feedback, seed).figures


def _seats(scenario: Scenario, seed: int) -> list[Seat]:
    backlogs = backlogs_of(scenario.work, scenario.clients, seed)
    return [
        Seat(
            backlog=backlog,
            seed=1000 * seed + index,
            joined_at=joined_at,
            dimension=scenario.dimension,
            unit=scenario.workload_unit,
            max_in_flight=scenario.clients.max_in_flight,
            workers=scenario.workers,
            told_limit=scenario.limit_at(0.0),
            told_limits=scenario.limits_at(0.0),
            charge=scenario.charge if scenario.is_mixed else None,
        )
        for index, (backlog, joined_at) in enumerate(zip(backlogs, scenario.clients.joins, strict=True))
    ]
