"""Recall while refused: one attempt at a time, and when the next one is worth its price.

A block begins with a refusal and ends with an acceptance of an attempt admitted after it. A bucket is open again
after 1 / limit seconds, a log within moments, a fixed window only at its turn; so the first pause is short, later
ones double, and an instant at which a window may turn over is tried in any case.
"""

from __future__ import annotations

import math

from policies.contract import LimitedBy, Refused, Scope
from policies.recall_state import ENOUGH, NEVER, Block, Phase, RecallOptions, State
from policies.recall_turn import next_turn, turn_is_known

SHORTEST_HOLD, LONGEST_FIRST_HOLD = 0.3, 10.0  # s
ROUNDED = 1.0  # s; Retry-After comes in whole seconds, rounded up
RANDOM_HOLD = 2.0  # s; where refusals come at random it is the number of attempts that gets prompts answered
EXACT = 1.0  # s; a turn known less exactly is tried in the middle, and so becomes known better
MISSED = 6.0  # s; a window that was to turn this long ago still may
DEBT_HOLD = 1.0  # s; what refuses because it is in debt goes on filling, so that waiting loses nothing
CHARGED = 1.5  # of a stream's time, after which all is charged that was let in before a cut
BELIEVED = 86400.0  # s; the longest Retry-After that is taken as a word on when the upstream opens


def refused(state: State, options: RecallOptions, event: Refused, sent_at: float) -> None:
    """A refusal that is not stale: begins a block or lengthens it."""
    block = state.block
    if block is None:
        block = state.block = _begin(state, options, sent_at, event)
    else:
        block.failures += 1
        block.refusals += 1
        block.failed_at = max(block.failed_at, sent_at)
        # What is surely no bucket opens late rather than soon, and to a small limit every refusal is dear.
        small = counted(state, options, block)[1] < ENOUGH
        longer = 3 if small or block.owed or looks_like_a_window(state, options, block) else 2
        block.hold = min(longer * block.hold, RANDOM_HOLD if state.is_random else options.longest_hold)
        block.again_at = _next_try(state, options, block)
    block.overload |= event.scope is Scope.OVERLOAD
    if not block.failures and not block.overload:
        block.overload = block.owed > 0 and state.now - state.cut_at < CHARGED * state.lasting
        state.cut_at = state.cut_at if block.overload else state.now
    _obey(state, block, event.retry_after, sent_at)
    state.epoch = state.newest = max(state.newest, event.permit)


def _begin(state: State, options: RecallOptions, sent_at: float, event: Refused) -> Block:
    hold = _first_hold(state, options, sent_at)
    block = Block(
        sent_at=sent_at,
        began_at=state.now,
        rate=_sent_rate(state),
        phase=state.phase,
        hold=hold,
        again_at=state.now,
        failed_at=sent_at,
        shut_until=NEVER,
        partial=event.limited_by is LimitedBy.OTHER,
        owed=max(event.owed, 0.0) if math.isfinite(event.owed) else 0.0,
    )
    block.hold = max(hold, DEBT_HOLD if block.owed else 0.0)
    block.again_at = _first_try(state, options, block)
    return block


def _sent_rate(state: State) -> float:
    """While it rises, the rate may be ahead of what there is to send."""
    if state.phase not in (Phase.START, Phase.CLIMB):
        return state.rate
    return min(state.rate, 1.2 * max(state.log.sent(state.now - 1.0), 1.0))


def shut_for(block: Block) -> float:
    """Seconds for which the upstream was surely shut."""
    return max(block.failed_at, block.shut_until) - block.sent_at


def looks_like_a_window(state: State, options: RecallOptions, block: Block) -> bool:
    """Shut for longer than a bucket can be.

    A bucket holds a minute's worth at most, so it accepted at most elapsed + period seconds' worth of its rate, and
    its next token is due within (elapsed + period) / count, once what is owed is paid.
    """
    if state.brief:
        return False
    elapsed, count = counted(state, options, block)
    return shut_for(block) > (1 + block.owed) * (elapsed + options.period) / max(count, 1.0) + 0.1


def counted(state: State, options: RecallOptions, block: Block) -> tuple[float, float]:
    """Seconds before the refusal that were counted, one period at most, and the units accepted in them."""
    first_at = block.sent_at if state.first_at is None else state.first_at
    elapsed = min(options.period, block.sent_at - first_at)
    return elapsed, state.log.accepted(block.sent_at - options.period, block.sent_at)


def _first_hold(state: State, options: RecallOptions, sent_at: float) -> float:
    """A part of the spacing of what was accepted, when a whole period tells it; of small limits a larger one."""
    if state.is_random or state.first_at is None or sent_at - state.first_at < options.period:
        return SHORTEST_HOLD
    count = state.log.accepted(sent_at - options.period, sent_at)
    part = 0.25 if count >= ENOUGH else 0.5
    return min(max(part * options.period / max(count, 1.0), SHORTEST_HOLD), LONGEST_FIRST_HOLD)


def _first_try(state: State, options: RecallOptions, block: Block) -> float:
    """After a refused probe of a window: its turn; its rest is what the probe sent too early."""
    soon, period = state.now + block.hold, options.period
    if block.phase is not Phase.PROBE or state.limit is None or state.is_random:
        return soon
    small = state.limit * period < ENOUGH
    if not state.windows and not small:
        return soon
    rest = period * (1 - state.limit / block.rate) * 1.02 + 0.1
    turns_at = next_turn(state.turn, period, state.now)
    if turn_is_known(state.turn, period) and turns_at - state.now < 3 * rest:
        width = state.turn.high - state.turn.low
        return max(soon, turns_at - width / 2 if width > EXACT else turns_at)
    return max(soon, state.now + rest)


def _next_try(state: State, options: RecallOptions, block: Block) -> float:
    soon, period = state.now + block.hold, options.period
    turns_at = next_turn(state.turn, period, state.now)
    ahead = turns_at - state.now
    if state.is_random or (state.turn.seen and (ahead > period - MISSED or turns_at - block.sent_at > period + 1.0)):
        return soon  # it should have turned just now: what is known is a little early
    if not looks_like_a_window(state, options, block):
        small = counted(state, options, block)[1] < ENOUGH and state.now - (state.first_at or 0.0) > period
        return turns_at if small and ahead < period / 2 else soon
    if turn_is_known(state.turn, period):
        return turns_at
    first_at = math.inf if state.first_at is None else state.first_at + period + 0.05
    middle = turns_at - (state.turn.high - state.turn.low) / 2 if state.turn.seen else math.inf
    return min([soon, *(at for at in (turns_at, middle, first_at) if at > state.now)])


def _obey(state: State, block: Block, retry_after: float | None, sent_at: float) -> None:
    """A hint is the limiter's to obey; here it is only a word on when the upstream opens."""
    if retry_after is not None and 0 < retry_after < math.inf:
        block.again_at = state.now
        block.shut_until = max(block.shut_until, sent_at + min(retry_after, BELIEVED) - ROUNDED)
