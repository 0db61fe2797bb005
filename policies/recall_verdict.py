"""Recall's cut: what a block says about the limit.

The refusal itself measures it. A window or log that is shut has accepted its limit within the last period before it
opened again, so the count is exact. A bucket is empty at each refusal, so what it accepted between two refusals is
its rate times the time between them. A refusal at or above the remembered limit is *expected* and confirms it; one
below it is *unexpected*: the limit fell, or others share it, and three of these in a row mean the latter.
"""

from __future__ import annotations

from policies.contract import Reason
from policies.recall_block import shut_for
from policies.recall_climb import ECHO_PERIODS, cruise, follow_echo
from policies.recall_evidence import (
    DEEPEST_CUT,
    LESS,
    RENEWAL,
    Evidence,
    bracket,
    is_brief,
    is_young,
    reduced,
    weigh,
)
from policies.recall_share import CROWD, LEAST, contend, count_unexpected, settle, told
from policies.recall_state import ENOUGH, NEVER, RANDOM, TRUSTED, Block, Phase, RecallOptions, State
from policies.recall_turn import learn_turn

OUTAGE = 1.5  # periods; a longer block is no quota
LONGEST_LOSS = 5.0  # s that one block may count for
FEW = 5  # acceptances; even the smallest window lets as many in before it refuses again
STUBBORN = 5  # refused probes of one block; a bucket of two a minute would have had a token for one of them
MANY = 60  # units; so large a count is not the same twice by chance
SETTLED = 1.15  # bounds of a bucket's rate this close are a measurement
DEEP = 0.7  # of the limit; a cut below it that the server did not announce is tested at once
PAIR = 30.0  # s; refusals closer than this are of one fall of the limit, or of one burst in a log
SHORTEST_PROBE = 6.0  # s; one that is refused sooner met something else, unless a second attempt is too much
SMALL_TRUST = 4  # confirmations that the count of a small window is worth
LONG = 0.35  # periods; a block this long is of no brief window
FIRST_GUESS = 0.6  # of the rate at which slow start met a bucket: a burst of a second's worth gives 0.5
CLIMB_GUESS = 0.8  # of the rate at which a climb met one; it is slower
HARDLY = 0.7  # of the limit; a bucket lets in more between two refusals, so less is a log's, still full of a burst


def clear(state: State, options: RecallOptions, sent_at: float, *, fresh: bool) -> None:
    """An attempt admitted after the refusal was accepted: the block is over."""
    assert state.block is not None
    block, state.block = state.block, None
    found = weigh(state, options, block, sent_at)
    _count_scattered(state, block)
    judge(state, options, found, fresh=fresh)
    learn(state, options, found)
    state.resume_at = sent_at + min(1 / max(state.rate, LEAST), options.longest_hold)
    state.reason = Reason.CLEARED


def _count_scattered(state: State, block: Block) -> None:
    """When refusals turn out to come at random, what they seemed to measure is forgotten."""
    if state.passed >= FEW:
        state.scattered = 0
    elif block.failures >= STUBBORN:
        state.calm_rate = state.calm_rate if state.scattered else block.rate
        state.scattered += 1
        if state.scattered == RANDOM:
            state.limit, state.phase, state.rate = None, Phase.START, state.calm_rate
    state.passed = 1


def learn(state: State, options: RecallOptions, found: Evidence) -> None:
    """What stays known whatever the verdict."""
    block, period = found.block, options.period
    state.brief = state.brief and shut_for(block) < LONG * period
    if block.phase is Phase.PROBE:
        state.probe_cost = min(max(0.8 * state.probe_cost + 0.2 * block.refusals, 1.0), 2.0)
        lost = 0.0 if found.windowlike else min(found.duration, LONGEST_LOSS)
        state.probe_loss = 0.7 * state.probe_loss + 0.3 * lost
    if block.overload and block.phase is Phase.SEARCH and found.duration <= OUTAGE * period:
        state.searched_idle += found.duration  # a bucket filled meanwhile; what it was measured from stands
        return
    if block.overload or state.is_random or found.duration > OUTAGE * period:
        state.searched_from = NEVER
        return
    learn_turn(state.turn, period, block.sent_at + shut_for(block), found.ended_at, sure=found.windowlike)
    if found.windowlike:
        state.windows = min(state.windows + 1, 3)
        state.searched_from = NEVER  # a window is not empty at its refusals, so the next one measures nothing
        state.clears.clear()
        return
    if not block.failures:
        state.windows = max(state.windows - 1, 0)
    state.clears = [entry for entry in state.clears if entry[0] > found.ended_at - RENEWAL]
    state.clears.append([found.ended_at, state.log.accepted_until(found.ended_at)])
    state.searched_from, state.searched_mark = block.sent_at, state.log.accepted_until(block.sent_at)
    state.searched_count, state.searched_idle = found.count, found.duration


def judge(state: State, options: RecallOptions, found: Evidence, *, fresh: bool) -> None:
    """Decide limit, phase and rate."""
    phase = found.block.phase
    nothing = phase is Phase.START and state.limit is None and not found.count  # accepted, so nothing is measured
    if fresh and state.told_limit is not None:
        told(state, options, found)
    elif found.block.overload or state.is_random or nothing or found.duration > OUTAGE * options.period:
        _resume(state, options, found)
    elif phase in (Phase.SEARCH, Phase.CLIMB) or (phase is Phase.START and state.limit is None):
        _overshot(state, options, found)
    elif phase is Phase.PROBE and _expected(state, options, found):
        _confirm(state, options, found)
    else:
        _unexpected(state, options, found)


def _resume(state: State, options: RecallOptions, found: Evidence) -> None:
    """The block was no word on the quota: go on, after a long one in small steps."""
    block = found.block
    state.level = 0
    if state.limit is None:
        long = found.duration > OUTAGE * options.period
        state.phase, state.rate = Phase.START, block.rate / 4 if long else state.rate
    elif found.duration > OUTAGE * options.period:
        state.phase, state.rate = Phase.START, min(state.rate, state.limit / 4)
    elif block.phase in (Phase.PROBE, Phase.CLIMB, Phase.CRUISE):
        cruise(state, options)


def _overshot(state: State, options: RecallOptions, found: Evidence) -> None:
    """The rate was rising, so the limit lies below it."""
    block = found.block
    if found.windowlike:
        if block.phase is Phase.START and found.count >= ENOUGH and is_young(state, options, found):
            _climb_on(state, found)
            return
        if is_brief(state, options, found):
            state.brief, state.windows, state.searched_from = True, 0, NEVER
            _search(state, CLIMB_GUESS * block.rate, block.rate)
            return
        # Somebody else's full bucket may look like a small window to a newcomer.
        state.trust = TRUSTED if found.count >= ENOUGH else SMALL_TRUST
        level = state.level if block.phase is Phase.CLIMB else 0
        settle(state, options, found.estimate)
        state.level = level  # a climb that tested a deep cut and was refused made nothing expected
        return
    if state.searched_from != NEVER and found.count >= MANY and abs(found.count - state.searched_count) <= 1.5:
        state.limit = found.estimate  # a log is as full at every refusal
        _echo(state, options)
        if found.pair[1] < HARDLY * state.limit:
            state.burst_until = state.echo_until
        return
    low, high = bracket(state, found)
    long = state.searched_from != NEVER and block.sent_at - state.searched_from > options.period / 2
    if block.phase is Phase.SEARCH and (high <= SETTLED * low or (long and not state.low)):
        state.trust = TRUSTED if found.count >= ENOUGH else 0
        settle(state, options, low if found.count >= ENOUGH or state.low else (low + high) / 2)
        return
    if block.phase is not Phase.SEARCH:
        state.low = 0.0
    if block.phase is Phase.SEARCH and low > 0:
        _search(state, (low + high) / 2, high)
    else:
        _search(state, (FIRST_GUESS if block.phase is Phase.START else CLIMB_GUESS) * block.rate, high)


def _climb_on(state: State, found: Evidence) -> None:
    """From what such a window let in, as fast as it turned; that a period holds no more of it is not said."""
    block = found.block
    turned = max(found.ended_at - (block.sent_at if state.first_at is None else state.first_at), 1.0)
    state.limit, state.phase = max(found.estimate, LEAST), Phase.CLIMB
    state.rate = max(state.limit, min(FIRST_GUESS * found.count / turned, block.rate))
    state.young_until, state.young_count = block.failed_at, found.count


def _search(state: State, rate: float, high: float) -> None:
    state.phase, state.survived, state.stepped_at = Phase.SEARCH, 0.0, state.now
    state.high = max(high, LEAST)
    state.rate = min(max(rate, LEAST), state.high)


def _expected(state: State, options: RecallOptions, found: Evidence) -> bool:
    assert state.limit is not None
    block, full = found.block, options.period * state.limit
    rest = options.period * (1 - state.limit / block.rate)
    lasted = block.sent_at - state.stepped_at >= SHORTEST_PROBE or full < ENOUGH or state.probed_from != NEVER
    in_time = lasted and shut_for(block) <= 3 * rest + 2.0
    return found.count + 1 >= 0.993 * full and in_time


def _confirm(state: State, options: RecallOptions, found: Evidence) -> None:
    """The limit is where it was thought to be; measure it a little better."""
    assert state.limit is not None
    state.trust += 1
    if found.windowlike:
        measured = min(max(state.limit, found.least), found.estimate)
        if state.limit * options.period < ENOUGH:  # of so few, a turn that is a little off costs one that was there
            measured = max(measured, min(state.limit, (found.count + 1) / options.period))
    else:
        measured = max(state.limit, found.renewal or 0.0)
    state.limit = max(min(found.block.rate, measured), DEEPEST_CUT * state.limit)
    cruise(state, options)


def _unexpected(state: State, options: RecallOptions, found: Evidence) -> None:
    """A refusal at or below the remembered limit."""
    assert state.limit is not None
    if found.block.partial and found.block.phase is not Phase.CONTEND and not found.windowlike:
        state.limit = max(LESS * state.limit, LEAST)
        cruise(state, options)
        return
    full, since = options.period * state.limit, found.block.sent_at - state.searched_from
    logs = not state.windows and not found.windowlike and found.count >= ENOUGH
    as_full = logs and not PAIR < since < RENEWAL and abs(found.count - full) <= max(1.5, 0.004 * full)
    if as_full and state.now < state.burst_until and found.block.phase is not Phase.CONTEND:
        _echo(state, options)  # known already, so it says nothing of others
        return
    crowded = count_unexpected(state, options) >= CROWD
    if crowded or found.block.phase is Phase.CONTEND:
        contend(state, options, found)
        return
    if as_full:
        _echo(state, options)
        return
    if logs and state.level > 1 and since < PAIR:
        state.low = 0.0  # the limit of a bucket fell: two refusals in a short time already measure it
        _search(state, sum(found.pair) / 2, min(found.pair[1], found.block.rate))
        return
    limit = reduced(state.limit, full, found)
    deep = limit < DEEP * state.limit
    state.limit = max(limit, LEAST)
    cruise(state, options)
    if deep and found.block.shut_until == NEVER and not found.block.owed:
        state.phase = Phase.CLIMB  # a short outage looks the same; what is really shut says so again


def _echo(state: State, options: RecallOptions) -> None:
    """A log is full of what was sent too fast a period ago: the limit stands, but wait for it to leave."""
    state.echo_until = state.now + ECHO_PERIODS * options.period
    cruise(state, options)
    follow_echo(state, options)
