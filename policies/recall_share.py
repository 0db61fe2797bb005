"""Recall beside others on one quota: when it is believed, and what it does then.

Three refusals in a row below the limit mean that others take part of it. Then it is plain AIMD, for only that is fair,
until four refusals in a row have measured the same share.
"""

from __future__ import annotations

import math

from policies.recall_climb import cruise
from policies.recall_evidence import Evidence
from policies.recall_state import ENOUGH, Phase, RecallOptions, State

TOLD_STEP, TOLD_MARGIN = 0.01, 0.04  # of a told limit: left alone after each refusal in spite of it; at most
SHARED = 0.95  # of the told limit; a learnt one below it is our share beside others
CROWD = 3  # unexpected refusals, each within CROWD_PERIODS of the last, mean that others share the quota
CROWD_PERIODS = 5.0
AGREEING_PEAKS, PEAK_SPREAD = 4, 1.06  # CONTEND ends when so many refusals measured the same limit
LEAST = 1e-6  # units/s; the floor is the limiter's, but a rate is never nothing


def count_unexpected(state: State, options: RecallOptions) -> int:
    """One refusal below the limit more; how many there were in a row."""
    if state.now - state.unexpected_at > CROWD_PERIODS * options.period:
        state.level = 0
    state.level += 1
    state.unexpected_at = state.now
    return state.level


def told(state: State, options: RecallOptions, found: Evidence) -> None:
    """Refused although headers tell the limit: a learnt share of it stays, a limit that is all ours is believed."""
    assert state.told_limit is not None
    shared = state.limit is not None and state.limit < SHARED * state.told_limit
    if shared and not found.windowlike and found.block.phase is not Phase.START:
        contend(state, options, found)
        return
    state.limit = state.told_limit
    if not found.windowlike and found.block.phase is Phase.CRUISE:
        # A bucket of one unit refuses whatever overtakes on its way.
        state.told_margin = min(state.told_margin + TOLD_STEP, TOLD_MARGIN)
    if not found.windowlike and count_unexpected(state, options) >= CROWD:
        contend(state, options, found)
    else:
        cruise(state, options, fresh=True)


def contend(state: State, options: RecallOptions, found: Evidence) -> None:
    """Plain AIMD. Growth by the root of the rate makes shares converge; growth in proportion would freeze them."""
    state.peaks = [*state.peaks, min(found.estimate, found.renewal or math.inf)][-AGREEING_PEAKS:]
    if len(state.peaks) == AGREEING_PEAKS and max(state.peaks) <= PEAK_SPREAD * min(state.peaks):
        state.level, limit = 0, max(state.peaks)
        state.peaks = []
        settle(state, options, limit)
        return
    rate = found.block.rate
    sure = found.count >= ENOUGH or found.duration > options.period / 4
    base = found.estimate if sure and found.estimate < 0.6 * rate else rate
    base = max(base, LEAST)
    state.phase, state.limit = Phase.CONTEND, base
    state.rate = options.contention_factor * base
    state.slope = (1 - options.contention_factor) * math.sqrt(base) / max(60.0, 30.0 / base)


def settle(state: State, options: RecallOptions, limit: float) -> None:
    """This is the limit, and nobody takes from it."""
    state.limit, state.level = max(limit, LEAST), 0
    cruise(state, options)
