"""Our limiter with a policy as a client: the admission code of the daemon, and the queue rules of its gate.

First come, first served; a refused prompt goes before all that were never admitted; only the head asks the limiter;
whoever stands behind a waiting head was held back by the same thing (`controller.gate`, `Gate._leave`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from math import inf
from random import Random

from attrs import define, evolve, field, frozen

from controller import outcome
from controller.adaptive import AdaptiveBucket
from controller.charges import Charge, Meter
from controller.gates import limiter_maker
from controller.knowledge import Lessons
from controller.limiter import Limiter
from controller.outcome import Completed, Failed, Kind, Throttled, Usage
from controller.permits import Blocked, Booking, Cost, Decision, Wait
from controller.retry import Backoff
from controller.settings import Settings
from policies import registry
from policies.contract import Hints, Scope
from simulations.client import Answer, Attempt, Send, Told
from simulations.curve import Curve
from simulations.workload import Backlog

WHOLE = Completed(answer=outcome.Answer(text="", finish_reason="stop", model=None, usage=None, body={}))
BY_RATE = Blocked.RATE  # at hand: Python 3.11 takes a call of its own to look a member of an enum up
LOST = Failed(kind=Kind.SERVER, message="lost", status=502)


@define(eq=False)
class _Ticket:
    """A place in the queue. waited: what its prompt, or the head it stood behind, was told last."""

    send: Send
    cost: Cost
    owner: str
    waited: Wait | None = None


@define(eq=False)
class LimiterClient:
    """Sends what `backlog` holds as `limiter` allows. unit: one unit of `dimension` in the backlog's costs.

    meter: of the daemon, where requests and LLM tokens are both counted."""

    limiter: Limiter
    backlog: Backlog
    rng: Random  # of the pauses after lost attempts
    dimension: str = "requests"
    unit: float = 1.0
    meter: Meter | None = None
    curve: Curve = field(factory=Curve, init=False)
    _again: deque[_Ticket] = field(factory=deque, init=False)  # refused ones: they go first
    _late: list[tuple[float, int, Send]] = field(factory=list, init=False)  # lost ones, by the end of their pause
    _fresh: _Ticket | None = field(default=None, init=False)  # the head of those never admitted
    _wake_at: float = field(default=-inf, init=False)
    _blocked: Blocked | None = field(default=None, init=False)  # what the head was told last
    _admitted: deque[Booking] = field(factory=deque, init=False)  # not yet numbered by the loop
    _open: dict[int, Booking] = field(factory=dict, init=False)  # by attempt
    _failures: dict[int, int] = field(factory=dict, init=False)  # by prompt
    _asked: float = field(default=-1.0, init=False)  # the cost that was asked last, and the same by dimension
    _cost: Cost = field(factory=dict, init=False)
    _backoff: Backoff = field(factory=Backoff, init=False)

    # -- the queue

    def wake_at(self) -> float:
        """When the head may be admitted, as far as is known; at once after a change."""
        return self._wake_at

    def act(self, now: float) -> Sequence[Send]:
        """All that the limiter admits now."""
        sends: list[Send] = []
        ticket = self._head(now)
        while ticket is not None:
            if self.meter is not None and ticket.send.sized is not None:
                ticket.cost = self.meter.reserve(ticket.send.sized.seen)
            answer = self.limiter.admit(ticket.cost, now, owner=ticket.owner, waited=ticket.waited)
            if isinstance(answer, Wait):
                ticket.waited, self._blocked, self._wake_at = answer, answer.by, answer.until
                return sends
            self._admitted.append(answer)
            sends.append(ticket.send)
            ticket = self._leave(ticket, now)
        self._blocked = None
        self._wake_at = min(self.backlog.next_at(), self._late[0][0] if self._late else inf)
        return sends

    def _head(self, now: float) -> _Ticket | None:
        if self._again:
            return self._again[0]
        if self._fresh is None:
            if self._late and self._late[0][0] <= now:
                self._fresh = self._ticket(heappop(self._late)[2])
            elif self.backlog.next_at() <= now:
                self._fresh = self._ticket(self.backlog.take())
        return self._fresh

    def _leave(self, ticket: _Ticket, now: float) -> _Ticket | None:
        """The head is through; the one that follows it."""
        if self._again:
            self._again.popleft()
        else:
            self._fresh = None
        following = self._head(now)
        if following is not None and following.waited is None:
            following.waited = ticket.waited
        return following

    def _ticket(self, send: Send) -> _Ticket:
        if send.cost != self._asked:  # as a rule all cost the same
            self._asked, self._cost = send.cost, {self.dimension: send.cost / self.unit}
        return _Ticket(send, self._cost, str(send.prompt))

    @property
    def faults(self) -> list[str]:
        """Policies that failed and were replaced by the limiter: the figures are not theirs."""
        return [dimension.fault for dimension in self.limiter.dimensions.values() if dimension.fault is not None]

    # -- what the loop tells

    def sent(self, attempt: Attempt, now: float) -> None:  # noqa: ARG002 - the shape all clients share
        """Attempts are numbered in the order in which they were admitted."""
        self._open[attempt.number] = self._admitted.popleft()

    def accepted(self, attempt: Attempt, now: float, answer: Answer) -> None:
        """2xx headers."""
        self._changed(self.limiter.accept(self._open[attempt.number], self._in_units(answer.hints), now))

    def refused(self, attempt: Attempt, now: float, answer: Answer) -> None:
        """The prompt goes to the front again."""
        scope = Scope.OVERLOAD if answer.status != 429 else Scope.DIMENSION if answer.dimension else Scope.UNKNOWN
        refusal = Throttled(
            status=answer.status,
            message="",
            scope=scope,
            retry_after=answer.retry_after,
            hints=self._in_units(answer.hints),
            dimension=answer.dimension,
        )
        settlement = self.limiter.settle(self._open.pop(attempt.number), refusal, now)
        self._again.append(self._ticket(Send(attempt.prompt, attempt.cost, attempt.sized)))
        self._blocked = None
        self._changed(settlement.decisions)

    def ended(self, attempt: Attempt, now: float, ok: bool) -> None:
        """A lost prompt comes back after a pause, or is given up when its failure budget is spent."""
        booking = self._open.pop(attempt.number)
        true_cost = self._true_cost(attempt, booking) if ok else None
        settlement = self.limiter.settle(booking, WHOLE if ok else LOST, now, true_cost=true_cost)
        if not ok:
            self._blocked = None
            failures = self._failures.get(attempt.prompt, 0) + settlement.spends_budget
            self._failures[attempt.prompt] = failures
            pause = self._backoff.pause(LOST, failures, self.rng)
            if pause is not None:
                heappush(self._late, (now + pause, attempt.number, Send(attempt.prompt, attempt.cost, attempt.sized)))
        self._changed(settlement.decisions)

    def _changed(self, decisions: tuple[Decision, ...]) -> None:
        for decision in decisions:
            if decision.new != decision.old:
                self.curve.add(decision.now, decision.new)
        # A head that waits for its bucket alone would be told the same again.
        if decisions or self._blocked is not BY_RATE:
            self._wake_at = -inf

    def _true_cost(self, attempt: Attempt, booking: Booking) -> Cost | None:
        """By usage, which the meter learns from."""
        sized = attempt.sized
        if self.meter is None or sized is None:
            return None
        usage = Usage(input_tokens=sized.asked.input_tokens, output_tokens=sized.output_tokens)
        return self.meter.settle(sized.seen, booking.cost, WHOLE, usage)

    def _in_units(self, told: Told) -> Told:
        if self.unit == 1.0 or not told:
            return told
        return {name: _scaled(hints, self.unit) for name, hints in told.items()}


def _scaled(hints: Hints, unit: float) -> Hints:
    limit, remaining = hints.limit, hints.remaining
    scaled = None if limit is None else limit / unit
    return evolve(hints, limit=scaled, remaining=None if remaining is None else remaining / unit)


@frozen(kw_only=True)
class Seat:
    """What every client is made with.

    unit: the cost in the backlog of one typical request. told_limit, told_limits: such costs per second, and the same
    by dimension, only for those that are told the hidden limits. workers: only for pools. charge: how LLM tokens are
    booked where they are counted beside requests; see simulations.charging.
    """

    backlog: Backlog
    seed: int
    joined_at: float
    dimension: str
    unit: float
    max_in_flight: int
    workers: int
    told_limit: float
    told_limits: Mapping[str, float] = field(factory=dict)
    charge: str | None = None


def make_limiter_client(policy: str, options: Mapping[str, str], seat: Seat) -> LimiterClient:
    """A client that is driven by a policy, by name; raises ValueError for one that there is not."""
    if seat.charge is None:
        policy_class = registry.find(policy)
        made = policy_class(registry.make_options(policy_class, options), seed=seat.seed, now=seat.joined_at)
        limiter, meter = Limiter({seat.dimension: AdaptiveBucket(made, seat.joined_at)}, seat.max_in_flight), None
    else:
        charge = Charge(seat.charge)
        limiter, meter = _as_the_daemon(policy, options, seat, charge), Meter(charge)
    client = LimiterClient(limiter, seat.backlog, Random(f"{seat.seed}/pauses"), seat.dimension, seat.unit, meter)
    client.curve.add(seat.joined_at, limiter.statistics(seat.joined_at).refill_rate[seat.dimension])
    return client


def _as_the_daemon(policy: str, options: Mapping[str, str], seat: Seat, charge: Charge) -> Limiter:
    """With the dimensions of LLM tokens asleep."""
    pairs = tuple(f"{key}={value}" for key, value in options.items())
    settings = Settings(policy=policy, policy_option=pairs, seed=seat.seed, max_in_flight=seat.max_in_flight)
    return limiter_maker(settings, charge)(seat.joined_at, Lessons(), {})
