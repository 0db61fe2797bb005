"""Traces of events: what may happen to the attempts of one key, drawn by Hypothesis and played to a policy.

A trace holds steps, not events, because what an event carries depends on the policy's answers: a step says what
happens next, and `play` keeps the books as a limiter would. Events are those the contract allows: an attempt is
accepted at most once, settled only when accepted, and refused or lost at most once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from attrs import define, field, frozen
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from policies.contract import (
    Accepted,
    Admitted,
    Event,
    Hints,
    LimitedBy,
    Pace,
    Policy,
    Refused,
    Scope,
    Settled,
    Unknown,
)
from policies.sealed import sealed

START = 1000.0  # the instant a trace begins
FLOOR = 1 / 60  # units/s; the limiter's, so that an event's refill_rate is what it would be there
LONGEST_GAP = 60.0  # s between two attempts of a flow: at the floor

LONGEST_HOLD = 86_400.0  # s; who holds a key for longer has stopped the run

ODD = (None, 1.0, 0.2, 3600.0, -1.0, 0.0, math.inf, -math.inf, math.nan, 1e308)  # what headers have said
WAITS = (0.0, 0.001, 0.05, 0.5, 5.0, 40.0, 700.0)  # s
JUMPS = (3600.0, 86_400.0)  # s; a machine that slept
BACKWARDS = (-0.001, -1.0, -3600.0)  # s
COSTS = (1.0, 0.5, 100.0, 5000.0)  # units


@frozen(kw_only=True)
class Step:
    """One thing that happens, `wait` seconds after the one before, to the open attempt that `which` picks."""

    what: str  # admit, accept, refuse, settle, lose, flow; end: all that is open; probe: admit when the hold is over
    wait: float = 0.0
    which: int = 0
    cost: float = 1.0
    limited_by: LimitedBy = LimitedBy.RATE
    scope: Scope = Scope.UNKNOWN
    retry_after: float | None = None
    hints: Hints = Hints()
    count: int = 1  # of attempts: at once or, in a flow, one after the other at the policy's own rate, all accepted


@frozen(kw_only=True)
class Trace:
    """A case. shift: seconds added to every instant; split: events before a snapshot, for the laws that use them."""

    steps: tuple[Step, ...]
    ceiling: float = math.inf  # units/s, the user's
    shift: float = 0.0
    split: int = 0


@frozen
class Told:
    """An event, and the paces before and after it."""

    before: Pace
    event: Event
    pace: Pace


def traces(
    *,
    jumps: bool = False,
    backwards: bool = False,
    costs: bool = False,
    hints: bool = False,
    shifts: bool = False,
) -> SearchStrategy[Trace]:
    """Traces of unit costs and silent headers on a clock that goes on, unless more is asked for."""
    step = _steps(
        st.sampled_from(WAITS + JUMPS * jumps + BACKWARDS * backwards),
        st.sampled_from(COSTS if costs else (1.0,)),
        _hints() if hints else st.just(Hints()),
    )
    return st.builds(
        Trace,
        # Left alone, Hypothesis prefers lists of about five, too short to reach a second epoch.
        steps=(st.lists(step, max_size=40) | st.lists(step, min_size=10, max_size=40)).map(tuple),
        ceiling=st.sampled_from((math.inf, math.inf, 2.0)),
        shift=st.sampled_from((1e6, -900.0, 0.123)) if shifts else st.just(0.0),
        split=st.integers(0, 40) if shifts else st.just(0),
    )


def _steps(
    wait: SearchStrategy[float], cost: SearchStrategy[float], told: SearchStrategy[Hints]
) -> SearchStrategy[Step]:
    """One step of any kind; a third of them admit."""
    few, which = st.sampled_from((1, 1, 2, 5)), st.integers(0, 20)
    limited_by = st.sampled_from((LimitedBy.RATE, LimitedBy.RATE, *LimitedBy))
    scope, odd = st.sampled_from(Scope), st.sampled_from(ODD)
    ended = st.sampled_from(("settle", "lose"))
    admit = st.builds(Step, what=st.just("admit"), wait=wait, limited_by=limited_by, cost=cost, count=few)
    accept = st.builds(Step, what=st.just("accept"), wait=wait, which=which, hints=told, count=few)
    refuse = st.builds(
        Step, what=st.just("refuse"), wait=wait, which=which, scope=scope, retry_after=odd, hints=told, count=few
    )
    end = st.builds(Step, what=ended, wait=wait, which=which)
    flow = st.builds(Step, what=st.just("flow"), wait=wait, limited_by=limited_by, count=st.integers(1, 12))
    return st.one_of(admit, admit, accept, refuse, end, flow)


def _hints() -> SearchStrategy[Hints]:
    limit, remaining = st.sampled_from((*ODD, 60.0, 6000.0)), st.sampled_from((*ODD, 59.0))
    return st.builds(Hints, limit=limit, remaining=remaining, reset=st.sampled_from(ODD), period=st.sampled_from(ODD))


def play(policy: Policy, trace: Trace, shift: float = 0.0) -> list[Told]:
    """Tell the policy a trace, with `shift` added to every instant."""
    return list(Player(policy=policy, ceiling=trace.ceiling, now=START + shift).play(trace.steps))


@define(eq=False, kw_only=True)
class Player:
    """The books of a limiter that admits whatever the trace says."""

    policy: Policy
    now: float
    ceiling: float = math.inf
    _next: int = field(default=0, init=False)
    _waiting: list[Admitted] = field(factory=list, init=False)  # neither accepted nor ended
    _accepted: list[Admitted] = field(factory=list, init=False)

    def play(self, steps: tuple[Step, ...]) -> Iterator[Told]:
        """The events of the steps, each told as it is asked for."""
        for step in steps:
            self.now += step.wait
            yield from self._play(step)

    def _play(self, step: Step) -> Iterator[Told]:
        for _ in range(step.count):
            match step.what:
                case "admit":
                    yield self.admit(step)
                case "accept" if self._waiting:
                    yield self.accept(self._pick(self._waiting, step), step.hints)
                case "refuse" if self._waiting or self._accepted:
                    yield self.refuse(step)
                case "settle" if self._accepted:
                    yield self.settle(self._pick(self._accepted, step))
                case "lose" if self._waiting:
                    yield self.lose(self._pick(self._waiting, step))
                case "flow":
                    self.now += min(1 / self._applied(), LONGEST_GAP)
                    yield self.admit(step)
                    yield self.accept(self._waiting.pop(), Hints())
                    yield self.settle(self._accepted.pop())
                case "probe":
                    self.now = max(self.now, min(self.policy.pace.held_until, self.now + LONGEST_HOLD))
                    yield self.admit(step)
                case "end":
                    yield from self._end_all()

    # -- the moments of an attempt

    def admit(self, step: Step) -> Told:
        """The next attempt goes."""
        at_ceiling = self.policy.pace.refill_rate >= self.ceiling and step.limited_by is LimitedBy.RATE
        event = Admitted(
            now=self.now,
            permit=self._next,
            admitted_at=self.now,
            cost=step.cost,
            limited_by=LimitedBy.CEILING if at_ceiling else step.limited_by,
            in_flight=len(self._waiting) + len(self._accepted) + 1,
            refill_rate=self._applied(),
        )
        self._next += 1
        self._waiting.append(event)
        return self._tell(event)

    def accept(self, attempt: Admitted, hints: Hints = Hints()) -> Told:
        """The upstream takes it; told twice, it is still one attempt."""
        if attempt in self._waiting:
            self._waiting.remove(attempt)
        if attempt not in self._accepted:
            self._accepted.append(attempt)
        return self._tell(Accepted(**self._facts(attempt), hints=hints))  # type: ignore[arg-type]

    def settle(self, attempt: Admitted) -> Told:
        """It ends well; its first token came half-way."""
        middle = (attempt.now + self.now) / 2
        settled = Settled(**self._facts(attempt), true_cost=attempt.cost, first_token_at=middle)  # type: ignore[arg-type]
        return self._tell(settled)

    def lose(self, attempt: Admitted) -> Told:
        """It ends with no word."""
        return self._tell(Unknown(**self._facts(attempt)))  # type: ignore[arg-type]

    def refuse(self, step: Step) -> Told:
        """The upstream refuses an open attempt, which may have been accepted before."""
        both = sorted([*self._waiting, *self._accepted], key=lambda each: each.permit)
        return self.refuse_one(both[step.which % len(both)], step)

    def refuse_one(self, attempt: Admitted, step: Step) -> Told:
        """The upstream refuses this one; it may say so twice."""
        for each in (self._waiting, self._accepted):
            if attempt in each:
                each.remove(attempt)
        facts = self._facts(attempt)
        refused = Refused(**facts, scope=step.scope, retry_after=step.retry_after, hints=step.hints)  # type: ignore[arg-type]
        return self._tell(refused)

    def _end_all(self) -> Iterator[Told]:
        while self._waiting:
            yield self.lose(self._waiting.pop(0))
        while self._accepted:
            yield self.settle(self._accepted.pop(0))

    def _pick(self, attempts: list[Admitted], step: Step) -> Admitted:
        return attempts.pop(step.which % len(attempts))

    def _facts(self, attempt: Admitted) -> dict[str, object]:
        return {
            "now": self.now,
            "permit": attempt.permit,
            "admitted_at": attempt.admitted_at,
            "cost": attempt.cost,
            "limited_by": attempt.limited_by,
            "in_flight": len(self._waiting) + len(self._accepted) + 1,
            "refill_rate": self._applied(),
        }

    def _applied(self) -> float:
        return max(FLOOR, min(self.policy.pace.refill_rate, self.ceiling))

    def _tell(self, event: Event) -> Told:
        before = self.policy.pace
        return Told(before, event, self.policy.on(sealed(event)))
