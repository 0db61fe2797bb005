"""What other people's tools do, from their published rules, as clients of the closed loop; for comparison only.

Most are a pool of workers before a gate; those that count LLM tokens too are in peers_tokens. A worker takes
a prompt, comes to the gate, sends when the gate lets it pass, and is busy until the answer is over. Refused, it sleeps
as long as its tool's retry rule says and comes to the gate again, or gives the prompt up. Each gate names its source;
what a rule needs that a simulation does not have (error texts, polling threads, locks) is left out and said so. None
shares code with our limiter or policies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import inf
from random import Random

from attrs import define, field

from policies.contract import Hints
from simulations.client import Answer, Attempt, Client, Send, Told
from simulations.limiter_client import Seat
from simulations.peers_gate import Gate, News
from simulations.peers_limits import DataDesigner, VectorArc
from simulations.peers_plain import Curator, Fixed, Naive, SdkBackoff
from simulations.peers_rates import Botocore, Lance, Mlflow
from simulations.peers_tokens import cookbook, curator_of_both
from simulations.workload import Backlog

SILENT = Hints()


@define(eq=False)
class _Ticket:
    """A prompt in a worker's hands. tries: attempts that were refused or lost."""

    send: Send
    tries: int = 0


@define(eq=False)
class WorkerPool:
    """`idle` workers at first. dropped: prompts that were given up."""

    gate: Gate
    backlog: Backlog
    idle: int
    dropped: int = field(default=0, init=False)
    _now: float = field(default=-inf, init=False)
    _order: count[int] = field(factory=count, init=False)  # first come, first served where instants are equal
    _sleeping: list[tuple[float, int, _Ticket]] = field(factory=list, init=False)
    _queue: list[tuple[float, int, _Ticket]] = field(factory=list, init=False)  # before the gate, by instant of going
    _leaving: list[tuple[_Ticket, float]] = field(factory=list, init=False)  # not yet numbered by the loop
    _open: dict[int, tuple[_Ticket, float]] = field(factory=dict, init=False)  # by attempt, with the gate's mark

    def wake_at(self) -> float:
        """When the first sleeper wakes, the next prompt comes, or the gate opens for the first in the queue."""
        wake_at = self._sleeping[0][0] if self._sleeping else inf
        if self.idle:
            wake_at = min(wake_at, self.backlog.next_at())
        if self._queue:
            at, _, ticket = self._queue[0]
            wake_at = min(wake_at, max(at, self.gate.opens_at(max(self._now, at), ticket.tries)))
        return wake_at

    def act(self, now: float) -> Sequence[Send]:
        """Let all come to the gate that can, and pass those for whom it is open."""
        self._now = now
        while self._sleeping and self._sleeping[0][0] <= now:
            self._come(heappop(self._sleeping)[2], now)
        while self.idle and self.backlog.next_at() <= now:
            self.idle -= 1
            self._come(_Ticket(self.backlog.take()), now)
        while self._queue and self._queue[0][0] <= now:
            ticket = self._queue[0][2]
            if self.gate.opens_at(now, ticket.tries) > now:
                break
            heappop(self._queue)
            self._leaving.append((ticket, self.gate.passed(now, ticket.send.cost, ticket.tries)))
        return [ticket.send for ticket, _ in self._leaving]

    def _come(self, ticket: _Ticket, now: float) -> None:
        heappush(self._queue, (self.gate.comes(now, ticket.tries), next(self._order), ticket))

    def sent(self, attempt: Attempt, now: float) -> None:  # noqa: ARG002 - the shape all clients share
        """Attempts are numbered in the order of `act`."""
        self._open[attempt.number] = self._leaving.pop(0)

    def accepted(self, attempt: Attempt, now: float, answer: Answer) -> None:
        """The head of a 2xx."""
        self._now = now
        ticket, mark = self._open[attempt.number]
        self.gate.accepted(News(now=now, mark=mark, tries=ticket.tries, hints=_only(answer.hints)))

    def refused(self, attempt: Attempt, now: float, answer: Answer) -> None:
        """A 429, or an overload, which most tools take for any other fault."""
        self._now = now
        ticket, mark = self._open.pop(attempt.number)
        hints = _only(answer.hints)
        news = News(now=now, mark=mark, tries=ticket.tries, retry_after=answer.retry_after, hints=hints)
        self._again(ticket, self.gate.refused(news) if answer.status == 429 else self.gate.lost(news))

    def ended(self, attempt: Attempt, now: float, ok: bool) -> None:
        """Over, or lost."""
        self._now = now
        ticket, mark = self._open.pop(attempt.number)
        news = News(now=now, mark=mark, tries=ticket.tries, total=now - attempt.sent_at)
        if ok:
            self.gate.ended(news)
            self.idle += 1
        else:
            self._again(ticket, self.gate.lost(news))

    def _again(self, ticket: _Ticket, pause: float | None) -> None:
        ticket.tries += 1
        if pause is None:
            self.dropped += 1
            self.idle += 1
        else:
            heappush(self._sleeping, (self._now + pause, next(self._order), ticket))


def _only(told: Told) -> Hints:
    """These gates know of one limit: where there are several, of that on requests."""
    return told["requests"] if "requests" in told else next(iter(told.values()), SILENT)


def _pool(gate: Callable[[Seat, Random], Gate], seat: Seat) -> Client:
    return WorkerPool(gate(seat, Random(f"{seat.seed}/peer")), seat.backlog, seat.workers)


def _curator(seat: Seat) -> Client:
    return _pool(lambda _, __: Curator(100_000.0 if seat.dimension == "tokens" else 200.0), seat)


PEERS: Mapping[str, Callable[[Seat], Client]] = {
    "naive": partial(_pool, lambda _, __: Naive()),
    "sdk-2-retries": partial(_pool, lambda _, rng: SdkBackoff(2, rng)),
    "sdk-10-retries": partial(_pool, lambda _, rng: SdkBackoff(10, rng)),
    "datadesigner": partial(_pool, lambda seat, _: DataDesigner(seat.workers)),
    "lance": partial(_pool, lambda _, rng: Lance(rng)),
    "vector-arc": partial(_pool, lambda _, rng: VectorArc(rng)),
    "mlflow": partial(_pool, lambda _, __: Mlflow()),
    "botocore": partial(_pool, lambda _, rng: Botocore(rng)),
    "curator": lambda seat: _curator(seat) if seat.charge is None else curator_of_both(seat.backlog),
    "cookbook": lambda seat: cookbook(seat.backlog, seat.told_limits),
    "fixed-80": partial(_pool, lambda seat, _: Fixed(0.8 * seat.told_limit)),
}
