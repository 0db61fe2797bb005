"""Growth against what was really sent: a sender that comes in bursts, and the complaint about its rate.

Each burst is held back by the rate, so its successes count; but between the bursts nothing is sent. A rate that adds
up what they earn and never looks at the pauses ends far above anything that the upstream has seen, and the first long
queue is sent at it. Plain traces find a rate that grows on hardly anything; bursts find one that creeps.

A learned limit is the policy's own word, and as such believed here; a probe's step above it is less than a quarter.
"""

from __future__ import annotations

from collections import deque

from attrs import define, evolve, field
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from policies.complaints import NEARLY
from policies.contract import Admitted, LimitedBy, Pace
from policies.law import Subject
from policies.traces import START, Step, Told, Trace, play, traces

MEASURED = 10.0  # s over which "really sent" is counted; at the start since the first admission, 1 s at least
MOST_OVER_SENT = 2.2  # times: a doubling, and what an answer is late
MOST_OVER_LEARNED = 1.25  # times the learned limit
BRIEF = 1e-6  # s; policies round their clocks

CUT = (Step(what="admit"), Step(what="refuse"), Step(what="probe"), Step(what="accept"), Step(what="end"))


def bursts() -> SearchStrategy[Trace]:
    """Any trace, and often a cut and bursts after it."""
    bursty = st.builds(
        _with_bursts,
        trace=traces(),
        pause=st.sampled_from((15.0, 60.0, 600.0)),
        size=st.integers(1, 25),
        times=st.integers(1, 60),
    )
    return traces() | bursty


def _with_bursts(trace: Trace, pause: float, size: int, times: int) -> Trace:
    """The first of a burst has waited for nothing."""
    burst = Step(what="flow", wait=pause, limited_by=LimitedBy.APP), Step(what="flow", count=size)
    return evolve(trace, steps=(*trace.steps, *CUT, *times * burst))


@define(eq=False)
class _Sent:
    """Units admitted in the last MEASURED seconds."""

    first_at: float | None = None
    log: deque[tuple[float, float]] = field(factory=deque)  # (instant, units)

    def add(self, event: Admitted) -> None:
        self.first_at = event.now if self.first_at is None else self.first_at
        self.log.append((event.now, event.cost))

    def rate(self, now: float) -> float:
        """Units per second."""
        while self.log and self.log[0][0] < now - MEASURED - BRIEF:
            self.log.popleft()
        since = now if self.first_at is None else self.first_at
        return sum(units for _, units in self.log) / min(MEASURED, max(now - since - BRIEF, 1.0))


def outgrows(subject: Subject, trace: Trace) -> str | None:
    """Only what raises a rate is judged: who sends less than before keeps what he had."""
    policy, sent = subject.make(START), _Sent()
    start = policy.pace.refill_rate
    for told in play(policy, trace):
        if isinstance(told.event, Admitted):
            sent.add(told.event)
        if told.pace.refill_rate <= told.before.refill_rate:
            continue
        lately = sent.rate(told.event.now)
        if told.pace.refill_rate > (1 + NEARLY) * max(start, MOST_OVER_SENT * lately, _learned(told)):
            return (
                f"the rate was raised to {told.pace.refill_rate:g}, and {lately:g} units/s were sent in the last 10 s"
            )
    return None


def _learned(told: Told) -> float:
    """The most that what it learned allows, before or after the event."""
    return MOST_OVER_LEARNED * max(_limit(told.before), _limit(told.pace))


def _limit(pace: Pace) -> float:
    return pace.learned_limit or 0.0
