"""AIMD with a remembered ceiling: cut to what the refusal measured, cruise just below it, probe on a budget.

Theory. A quota of N per minute is no queue: nothing gets slower before the first 429, and a minute of memory turns
one per cent of overshoot into half a second of blocking. So the classic law (policies.aimd), which finds the limit by
running into it every minute, wastes up to a third of a fixed window and 2 % of its attempts. But a 429 *measures*:
what was accepted in the period before it is the limit of a log or window, and what was accepted between two 429s is
the rate of a bucket. Hence

    START      slow start until the first refusal
    SEARCH     between a rate that held and one that did not, until two refusals measure a bucket
    CRUISE     at (1 - margin) * learned_limit; slower for a minute while a log is still full of a burst
    PROBE      once in probe_cost / (refused_share * rate) seconds, more rarely where the limit has stood for long: in
               the last seconds of a window whose turn is known, which is conclusive at once; elsewhere up to 1.4
               periods at probe_step above the limit
    CLIMB      the probe survived, or a count was doubtful (a window that turned early, a deep cut): exponential growth
               until refused
    CONTEND    three refusals below the limit that no full log explains: others share it; additive increase
               ~ sqrt(rate), cut by 0.85

and, across all phases, a block: after a refusal one attempt at a time until one is accepted. The increase of AIMD is
spent as probes, its decrease is what was measured; CONTEND is AIMD as Chiu and Jain have it, for only that is fair
(growth in proportion to the rate freezes the shares). After an outage longer than any window the limit is kept and
approached again from a quarter, and so is one that an earlier run learned more than ten minutes ago; a later one is
used at once, and a search that it broke off goes on. Headers, when there are any, replace measuring and probing.

Source: a discrete-event prototype of this law, written before it; figures of this code are in simulations/RESULTS.md.

Where things are: recall_state (memory, options), recall_log (counting), recall_climb (growth), recall_probe,
recall_block (while refused), recall_turn (when a window turns over), recall_evidence (what a block measured),
recall_verdict (what follows from it), recall_share (beside others), recall_hints and recall_period (headers),
recall_snapshot.

Rules for editors. Only an attempt admitted after the last cut and limited by this rate may raise the pace; a verdict
that wishes for more waits for one (`State.rate` is the wish). A wish below the pace takes effect at once and begins
an epoch. An overload is a block that teaches nothing. Paces do not drain: one token survives a hold, so that a probe
goes at the instant it is meant for, which at five attempts a minute is 12 s sooner.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Self, assert_never

from policies.contract import (
    JSON,
    Accepted,
    Admitted,
    Event,
    LimitedBy,
    Pace,
    Reason,
    Refused,
    Remembered,
    Scope,
    Settled,
    Unknown,
)
from policies.recall_block import refused
from policies.recall_climb import bounds, cruise, grow, search_on
from policies.recall_hints import hear, is_fresh, take_what_is_unused
from policies.recall_log import SendLog
from policies.recall_period import doubt_period
from policies.recall_snapshot import dump, load
from policies.recall_state import Phase, RecallOptions, State
from policies.recall_verdict import clear

PACED_SLACK = 0.010  # s of saved-up rate; real timers lose 18 % at 1,000/s with none (measured)
FRESH, HINT = 600.0, 3600.0  # s; a limit learnt more recently is used at once; is approached from a quarter of it
LEARNING = 0.05  # how much of the mean time of a stream is the last one's
TICK = 1e6  # per s; instants are rounded to it, so that a snapshot on another clock compares them alike
INF = math.inf
RATE, APP = LimitedBy.RATE, LimitedBy.APP  # at hand: Python 3.11 takes a call of its own to look an enum's member up
FIRST_CUT = {Phase.START: 0.6, Phase.SEARCH: 0.9, Phase.CRUISE: 0.96}  # until the end of the block says more


class Recall:
    """One RECALL controller; `pace` and `state` are what can be seen of it."""

    options_class: ClassVar[type] = RecallOptions
    claims: ClassVar[frozenset[str]] = frozenset({"one_cut_per_epoch"})

    def __init__(self, options: RecallOptions, *, seed: int, now: float, remembered: Remembered | None = None) -> None:
        self.options = options
        self._origin = now
        self.state = State(log=SendLog(keep=2 * options.period), seed=seed, rate=options.start_rate)
        if remembered is not None and 0 <= remembered.age < HINT and 0 < remembered.limit < INF:
            self._begin_with(remembered)
        self._pace = _pace_of(self.state, self.state.rate, -INF, Reason.START)

    def _begin_with(self, known: Remembered) -> None:
        state, fresh = self.state, known.age < FRESH
        if known.refused is not None and known.limit < known.refused < INF:
            if fresh:
                search_on(state, known.limit, known.refused)
            return
        state.limit = known.limit
        if fresh:
            cruise(state, self.options)
        else:
            state.rate = max(known.limit / 4, min(self.options.start_rate, known.limit))

    @property
    def pace(self) -> Pace:
        """The answer in force."""
        return self._pace

    def on(self, event: Event) -> Pace:
        """See `policies.contract.Policy.on`."""
        state, at = self.state, event.now
        now = round((at - self._origin) * TICK) / TICK if -INF < at < INF else state.now
        if now < state.now:  # a clock that steps back: go on from here
            self._origin, now = at - state.now, state.now
        state.now = now
        match event:  # in the order of how often they come
            case Admitted():
                self._admitted(event)
            case Accepted():
                if event.permit > state.epoch:
                    self._accepted(event)
            case Settled():
                lasted = at - event.admitted_at
                state.lasting += LEARNING * ((lasted if lasted > 0.0 else 0.0) - state.lasting)
            case Refused():
                self._refused(event)
            case Unknown():
                pass  # a loss says nothing of the rate, and an end only how late it was charged
            case _:
                assert_never(event)
        return self._pace

    def _admitted(self, event: Admitted) -> None:
        state = self.state
        if event.permit > state.newest:
            state.newest = event.permit
        if state.first_at is None:
            state.first_at = state.now
        state.log.add(state.now, _units(event.cost))

    def _accepted(self, event: Accepted) -> None:
        state, options = self.state, self.options
        sent_at = self._instant(event.admitted_at)
        if event.hints.limit is not None:
            hear(state, options, event.hints, sent_at)
        limited, fresh = event.limited_by is RATE, is_fresh(state)
        if fresh or not limited:
            take_what_is_unused(state, options, limited=limited, fresh=fresh)
        state.passed += 1
        if state.block is not None:
            clear(state, options, sent_at, fresh=fresh)
        elif limited and event.refill_rate > 0:
            grow(state, options, _units(event.cost) / event.refill_rate, sent_at, fresh=fresh)
        elif event.limited_by is APP and state.phase in (Phase.PROBE, Phase.CLIMB):
            cruise(state, options, fresh=fresh)  # a probe that the application does not fill proves nothing
        self._answer(may_raise=limited)

    def _refused(self, event: Refused) -> None:
        state = self.state
        sent_at = self._instant(event.admitted_at)
        state.log.take_back(sent_at, _units(event.cost))
        if event.permit <= state.epoch:
            if state.block is not None:
                state.block.refusals += 1
            return
        begins = state.block is None
        if event.hints.limit is not None and event.scope is not Scope.OVERLOAD:
            hear(state, self.options, event.hints, sent_at)
        if begins and is_fresh(state) and event.scope is not Scope.OVERLOAD:
            doubt_period(state.told_for, self.options.period)
        refused(state, self.options, event, sent_at)
        state.reason = Reason.HOLD
        if begins and state.block is not None and not state.block.overload and not state.is_random:
            self._cut()
        self._answer(may_raise=False)

    def _cut(self) -> None:
        """At once, from what is known now; the end of the block refines it."""
        state, options = self.state, self.options
        rate = state.rate
        if state.phase is Phase.CONTEND:
            rate *= options.contention_factor
        elif is_fresh(state) and state.told_limit is not None:
            rate = min(rate, state.told_limit)
        elif state.phase in (Phase.PROBE, Phase.CLIMB) and state.limit is not None:
            rate = min(rate, (1 - options.margin) * state.limit)
        else:
            rate *= FIRST_CUT[state.phase]
        state.rate, state.reason = rate, Reason.CUT

    def _answer(self, *, may_raise: bool) -> None:
        """Make the pace what the state wishes for, as far as it may."""
        state, pace = self.state, self._pace
        old, rate = pace.refill_rate, state.rate
        if rate < old:
            state.epoch = max(state.epoch, state.newest)
        elif not may_raise:
            rate = old
        blocked = state.block is not None
        held_until = self._origin + self._held_until()
        if (
            rate == old
            and held_until == pace.held_until
            and blocked == (pace.unresolved_limit is not None)
            and state.limit == pace.learned_limit
        ):
            return
        self._pace = _pace_of(state, rate, held_until, state.reason)

    def _held_until(self) -> float:
        state = self.state
        if state.block is None:
            told, own = state.told_hold, state.resume_at
            return told if told > own else own
        return max(state.told_hold, state.now, state.block.again_at)

    def _instant(self, at: float) -> float:
        """On the policy's own clock; not after now."""
        now = self.state.now
        own = round((at - self._origin) * TICK) / TICK if -INF < at < INF else now
        return own if own < now else now

    def snapshot(self, now: float) -> dict[str, JSON]:
        """See `policies.contract.Policy.snapshot`."""
        pace = self._pace
        return {
            "elapsed": now - self._origin,
            "refill_rate": pace.refill_rate,
            "held_for": max(pace.held_until - now, -1.0),
            "reason": pace.reason.value,
            "state": dump(self.state),
        }

    @classmethod
    def restore(cls, options: RecallOptions, snapshot: Mapping[str, JSON], *, seed: int, now: float) -> Self:
        """See `policies.contract.Policy.restore`."""
        policy = cls(options, seed=seed, now=now)
        policy.state = load(State, snapshot.get("state"))
        policy._origin = now - load(float, snapshot.get("elapsed"))
        rate, held_until = load(float, snapshot.get("refill_rate")), now + load(float, snapshot.get("held_for"))
        policy._pace = _pace_of(policy.state, rate, held_until, Reason(snapshot.get("reason")))
        return policy


def _pace_of(state: State, rate: float, held_until: float, reason: Reason) -> Pace:
    return Pace(
        refill_rate=rate,
        capacity=1.0 + PACED_SLACK * rate,
        unresolved_limit=None if state.block is None else 1,
        held_until=held_until,
        learned_limit=state.limit,
        bounds=bounds(state),
        reason=reason,
    )


def _units(cost: float) -> float:
    return cost if 0 < cost < INF else 0.0
