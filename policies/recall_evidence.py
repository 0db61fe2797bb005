"""What a block of recall says, before phase and rate follow: counts, bounds, and whether it was a window's.

A window or log that was shut has accepted its limit within the last period before it opened again. A bucket is empty
at each refusal, so what it accepted between two refusals is its rate times the time between them.
"""

from __future__ import annotations

import math

from attrs import field, frozen

from policies.recall_block import counted, looks_like_a_window, shut_for
from policies.recall_probe import SURE_WINDOWS
from policies.recall_state import ENOUGH, NEVER, Block, Phase, RecallOptions, State
from policies.recall_turn import agrees, turn_span

RENEWAL = 300.0  # s; older ends of blocks measure another limit
NARROW = 1.25  # bounds of a bucket's rate this close need no more caution
AGAIN = 1.2  # of the first window's count
LESS, SMALL_CUT = 0.96, 0.7  # of the limit: when nothing measures it; at most, when the count is small
DEEPEST_CUT = 0.2  # of the limit, in one epoch; whatever was measured may be wrong once


@frozen(kw_only=True)
class Evidence:
    """What a block came to, in units, seconds and units/s."""

    block: Block
    ended_at: float  # the attempt that passed was sent then
    windowlike: bool
    count: float  # accepted in the period before the refusal
    estimate: float  # the limit, if the count measures it
    least: float  # of a window: the limit is surely not lower
    renewal: float | None  # accepted between two ends of blocks per second: a lower bound of the limit
    pair: tuple[float, float] = field(default=(0.0, math.inf))  # bounds of a bucket's rate between two refusals

    @property
    def duration(self) -> float:
        """From the refused attempt to the one that passed."""
        return self.ended_at - self.block.sent_at


def weigh(state: State, options: RecallOptions, block: Block, ended_at: float) -> Evidence:
    """What the log says about a block that ended at that instant."""
    period, log = options.period, state.log
    elapsed, count = counted(state, options, block)
    windowlike = looks_like_a_window(state, options, block) or _ends_as_windows_do(state, options, block, ended_at)
    most = least = count
    if windowlike:
        soonest, latest = turn_span(state.turn, period, block.sent_at + shut_for(block), ended_at)
        most = log.accepted(soonest - period, block.sent_at)
        least = log.accepted(latest - period, block.sent_at)
    return Evidence(
        block=block,
        ended_at=ended_at,
        windowlike=windowlike,
        count=count,
        # A young count is no limit: of a bucket it is what it accepted in the time that there was.
        estimate=most / (period if windowlike else max(elapsed, 1.0)),
        least=least / period if windowlike else 0.0,
        renewal=_renewal(state, ended_at, 60.0 if block.phase is Phase.PROBE else 10.0),
        pair=_pair(state, block),
    )


def _ends_as_windows_do(state: State, options: RecallOptions, block: Block, ended_at: float) -> bool:
    """Nothing was tried before a window's predicted end, or it came at once: only that it agrees tells what it was."""
    if state.brief:
        return False
    waited = block.phase is Phase.PROBE and ended_at - block.sent_at > 2.0 and not block.failures
    known = waited or state.windows >= SURE_WINDOWS
    return known and agrees(state.turn, options.period, block.sent_at + shut_for(block), ended_at)


def _renewal(state: State, now: float, least: float) -> float | None:
    """Accepted since an older end of a block, `least` seconds ago or more, per second; the longest span counts."""
    mark = state.log.accepted_until(now)
    for at, accepted in state.clears:
        if least <= now - at <= RENEWAL:
            return (mark - accepted) / (now - at)
    return None


def _pair(state: State, block: Block) -> tuple[float, float]:
    elapsed = block.sent_at - state.searched_from
    if not 0 < elapsed <= RENEWAL:
        return (0.0, math.inf)
    count = state.log.accepted_until(block.sent_at) - state.searched_mark
    busy = max(elapsed - state.searched_idle, 1e-3)  # while blocked the bucket may have been full and have spilled
    return (max(count - 1, 0.0) / elapsed, (count + 1) / busy)


def is_brief(state: State, options: RecallOptions, found: Evidence) -> bool:
    """More was accepted in a period than in the first one, and yet the window opened before that one was over.

    Beside others the first count is only a share, but then the window is shut until its period is over; a log is as
    full at every refusal.
    """
    early = state.young_until != NEVER and found.ended_at < state.young_until + options.period
    return early and found.count > AGAIN * state.young_count + 2


def is_young(state: State, options: RecallOptions, found: Evidence) -> bool:
    """It turned before a whole period was over: by chance, or because its own is shorter."""
    return state.first_at is not None and found.ended_at - state.first_at < options.period


def bracket(state: State, found: Evidence) -> tuple[float, float]:
    """Between what rates the limit of a bucket lies; it would have had a token within 1 / limit."""
    block, shut = found.block, 0.0 if state.brief else shut_for(found.block)  # a window is shut whatever its rate
    high = min(block.rate, (1 + block.owed) / shut) if shut > 0 else block.rate
    if block.phase is not Phase.SEARCH:
        return 0.0, high
    if state.low:
        return min(state.low, high), high  # below the limit the bucket spilled, so two refusals measure nothing
    return min(found.pair[0], high), min(found.pair[1], high)


def reduced(limit: float, full: float, found: Evidence) -> float:
    """The limit after a refusal below it; full: what a period holds of it."""
    if found.windowlike:
        return max(min(limit, found.estimate), found.least, DEEPEST_CUT * limit)
    if found.count >= ENOUGH and found.pair[1] <= NARROW * found.pair[0]:
        return min(limit, sum(found.pair) / 2)
    if found.count >= ENOUGH:
        return LESS * min(limit, max(found.estimate, found.pair[0]), found.pair[1])
    if found.count > full - 0.5:
        return limit  # as much as fits; of so few, one that comes early is refused
    return max(SMALL_CUT * limit, min(LESS * limit, found.estimate))
