"""Recall's probes: more than the limit for a while, to learn whether it still is where it was.

Two kinds. Where the turn of the upstream's window is known, the excess is sent in the last seconds before it: that is
conclusive at once, fills what the margin left of the window, and if it is refused the window opens again right away.
Elsewhere the rate stays a little above the limit for as long as any window's count or bucket's burst may hide it.
"""

from __future__ import annotations

from policies.contract import Reason
from policies.recall_state import ENOUGH, NEVER, Phase, RecallOptions, State
from policies.recall_turn import ARRIVAL, next_turn, turn_is_known

SURE_WINDOWS = 2  # blocks in a row that lasted as windows do
PROBE_PERIODS = 1.4  # a probe this long exceeds the limit in some window, whatever its phase
PROBE_PERIODS_ELSE = 0.6  # where no window was seen: a log is full much sooner, a bucket's burst outlasts both
RUSH, TOO_LATE = 1.5, 3.0  # of the limit: the rate of a timed probe, at least and at most
EXCESS, EXCESS_SHARE = 2.0, 0.005  # units, share of the limit: by how much a timed probe exceeds it


def is_timed(state: State, options: RecallOptions) -> bool:
    """The turn of the window is known well enough to probe right before it."""
    assert state.limit is not None
    small = state.limit * options.period < ENOUGH
    return not small and state.windows >= SURE_WINDOWS and turn_is_known(state.turn, options.period)


def begin_probe(state: State, options: RecallOptions) -> None:
    """Go above the limit, or stay and wait for the end of the window."""
    assert state.limit is not None
    rate = state.limit * (
        1 + max(options.probe_step, 1.5 / (options.period * state.limit))
    )  # 1 more than fits, at least
    state.probed_from = NEVER
    if is_timed(state, options):
        turns_at = next_turn(state.turn, options.period, state.now)
        left = turns_at - (state.turn.high - state.turn.low) - ARRIVAL - state.now
        missing = _excessive(state, options) - state.log.accepted(turns_at - options.period, state.now)
        rate = missing / max(left, 1e-3)
        if left <= 0 or not RUSH * state.limit <= rate <= TOO_LATE * state.limit:
            return
        state.probed_from = turns_at - options.period
    state.phase, state.rate, state.survived = Phase.PROBE, rate, 0.0
    state.stepped_at, state.reason = state.now, Reason.INCREASE


def verdict_of_probe(state: State, options: RecallOptions, busy: float, sent_at: float) -> bool | None:
    """True: there is more than the limit, which is raised to what there surely is. False: nothing was learnt."""
    assert state.limit is not None
    state.survived += busy
    if state.probed_from == NEVER:
        if state.survived >= _length(state, options):
            state.limit = state.rate
            return True
        return None
    if sent_at >= state.probed_from + options.period:
        return False  # too little was sent in time
    count = state.log.accepted(state.probed_from, sent_at)
    if count <= _excessive(state, options) - 1.0:
        return None
    state.limit = count / options.period
    return True


def _excessive(state: State, options: RecallOptions) -> float:
    """So many in one window are more than the limit."""
    assert state.limit is not None
    full = options.period * state.limit
    return full + max(EXCESS, EXCESS_SHARE * full)


def _length(state: State, options: RecallOptions) -> float:
    assert state.limit is not None
    if state.windows or state.limit * options.period < ENOUGH:  # windows of few attempts are hardly seen as such
        return PROBE_PERIODS * options.period
    return PROBE_PERIODS_ELSE * options.period
