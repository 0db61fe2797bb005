"""Recall with headers: an upstream that tells its limit is believed at once, and needs no probes.

`remaining` is as old as the answer's way; what was sent since is taken off it. `reset` has two meanings in the wild:
the end of the window, or the time until a bucket is full again. The first is an instant that stays, the second moves
with the clock. Of a window all that remains is spread over its rest, and then its end is waited for.
"""

from __future__ import annotations

from policies.contract import Hints
from policies.recall_climb import cruise
from policies.recall_period import is_vague, learn_period
from policies.recall_state import NEVER, Phase, RecallOptions, State
from policies.recall_turn import ARRIVAL

FRESH = 300.0  # s; headers older than this are no longer believed
LARGEST = 1e12  # units; beyond it a header means "no limit"
SLOWEST, FASTEST = 0.9, 4.0  # of the told limit, to fill a window evenly
STEADY = 0.998  # of the told limit; attempts overtake each other on their way, and a full log refuses the first
NEARLY_FULL = 2.0  # units missing in a bucket that is hardly used
UNUSED = 0.5  # periods for which it stays so when nobody else takes from it any more
VOTING = 1.0  # s between two looks at where the reset is
SURE_WINDOW = -2  # votes, before a window's rest is filled faster than the limit's average
SAME = 1e-3  # relative; a told limit that differs less is the same


def is_fresh(state: State) -> bool:
    """Headers tell the limit."""
    return state.told_limit is not None and state.now - state.told_at < FRESH


def take_what_is_unused(state: State, options: RecallOptions, *, limited: bool, fresh: bool) -> None:
    """A bucket that stays full although the rate holds us back: who shared it has gone, so climb without a probe."""
    if not limited:
        state.drained_at = state.now
    if not fresh or state.told_limit is None:
        return
    below = state.limit is not None and state.limit < (1 - SAME) * state.told_limit
    full = state.reset_votes > 0 and state.now - state.drained_at > UNUSED * options.period
    if below and full and state.phase in (Phase.CONTEND, Phase.CRUISE, Phase.PROBE):
        state.phase = Phase.CLIMB


def hear(state: State, options: RecallOptions, hints: Hints, sent_at: float) -> None:
    """Take in what an answer to the attempt sent at that instant tells; odd numbers tell nothing."""
    limit, remaining, reset = hints.limit, hints.remaining, hints.reset
    if limit is None or not _sane(limit, 1e-9, LARGEST):
        return
    period = hints.period if _sane(hints.period, 1e-3, 1e7) else state.told_for.length or options.period
    assert period is not None
    if remaining is not None and reset is not None and _sane(remaining, 0.0, limit) and _sane(reset, 0.0, 1e7):
        learnt = learn_period(state.told_for, options.period, sent_at, limit, remaining, reset)
        if hints.period is None:
            period = learnt
            if is_vague(state.told_for):
                _measure_instead(state, options)
                return
    told = limit / period
    news = state.told_limit is None or abs(told - state.told_limit) > SAME * told or not is_fresh(state)
    state.told_limit, state.told_at = told, state.now
    if news or state.limit is None:
        state.limit, state.level = told, 0
        if state.block is None:
            cruise(state, options, fresh=True)
        else:
            state.rate = min(state.rate, told)
    if remaining is not None and reset is not None and _sane(remaining, 0.0, LARGEST) and _sane(reset, 0.0, 1e7):
        _watch(state, hints, told, period, sent_at)


def _measure_instead(state: State, options: RecallOptions) -> None:
    """How much is allowed in which time, these headers do not tell: climb from what they said to what is refused."""
    if state.told_limit is None:
        return
    if state.phase in (Phase.CRUISE, Phase.PROBE):
        known = state.limit != state.told_limit
        state.phase, state.limit = (Phase.CLIMB, state.limit) if known else (Phase.START, None)
        state.rate = state.rate if known else max(state.rate, options.start_rate)
    state.told_limit, state.told_hold, state.reset_votes = None, NEVER, 0


def _sane(value: float | None, low: float, high: float) -> bool:
    return value is not None and low <= value <= high  # NaN is not


def _watch(state: State, hints: Hints, told: float, period: float, sent_at: float) -> None:
    """Hold when nothing remains."""
    assert hints.remaining is not None
    assert hints.reset is not None
    to_full = period - hints.remaining / told  # s; what a bucket calls its reset
    _vote(state, sent_at, hints.reset, is_bucket=abs(hints.reset - to_full) < 0.02 * period + 0.05 * hints.reset)
    cruising = state.phase is Phase.CRUISE and state.limit == told
    if cruising and state.reset_votes > SURE_WINDOW:
        # A bucket or log lets the next in after 1 / limit, which is the pace itself.
        state.rate = (STEADY - state.told_margin) * told
    if state.reset_votes >= 0:
        if told * hints.reset > NEARLY_FULL:
            state.drained_at = state.now
        return
    left, turns_at = hints.remaining - state.log.sent(sent_at), sent_at + min(hints.reset, period) + ARRIVAL
    if left < 1.0:
        state.told_hold = max(state.told_hold, turns_at)
    elif cruising and state.reset_votes <= SURE_WINDOW and state.block is None:
        # Counted from the last one sent, the one after those that are left falls on the turn.
        _fill(state, told, (left + 1.0) / max(turns_at - state.log.times[-1], 1.0))


def _fill(state: State, told: float, rate: float) -> None:
    """What is left of a window is spread over the rest of it: it is lost at the turn."""
    rate = min(max(rate, SLOWEST * told), FASTEST * told)
    if abs(rate - state.rate) > 0.02 * state.rate:
        state.rate = rate


def _vote(state: State, sent_at: float, reset: float, *, is_bucket: bool) -> None:
    """The end of a window stays where it is for a while; what a bucket or log calls reset moves on with the clock.

    is_bucket: as a single look has it, which may be by chance; it is the first vote.
    """
    passed, moved = sent_at - state.reset_seen_at, sent_at + reset - state.reset_at
    if passed < VOTING:
        return
    if state.reset_seen_at == NEVER:
        state.reset_votes = 1 if is_bucket else -1
    elif abs(moved) < 0.3 * passed + 0.1:
        state.reset_votes = max(state.reset_votes - 1, -3)
    elif abs(moved - passed) < 0.7 * passed:
        state.reset_votes = min(state.reset_votes + 1, 3)
    state.reset_seen_at, state.reset_at = sent_at, sent_at + reset
