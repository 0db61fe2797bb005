"""Recall's growth: what acceptances do to the rate in each phase.

Everything is counted in busy time (cost / refill_rate of each success that the rate held back), so that idle time,
a jump of the clock or another bottleneck never raises anything.
"""

from __future__ import annotations

from policies.contract import Bounds, Reason
from policies.recall_probe import begin_probe, is_timed, verdict_of_probe
from policies.recall_state import ENOUGH, NEVER, TRUSTED, Phase, RecallOptions, State

MEASURED = 10.0  # s over which "really sent" is counted; at the start since the first admission, 1 s at least
MOST_OVER_SENT = 2.2  # growth never asks for more than this times what was really sent
LATE = 2.0  # times the doubling time of a slow start that begins when a period has passed
CLIMB_DOUBLING = 12.0  # s of busy time; overshoot costs about 1 + 0.1 * rate refusals
SEARCH_SECONDS, SEARCH_UNITS = 10.0, 6.0  # a rate holds if it survives both
CLOSE = 1.12  # SEARCH ends when its bounds are this close
ECHO_PERIODS = 1.1  # after so long all that was sent too fast has left a log
LEAVING, LEAST_ECHO = 5.0, 0.2  # s ahead that a full log is looked at; of the cruising rate, at least
SHORTEST_WAIT, LONGEST_WAIT = 45.0, 2400.0  # s between probes
TIMED_WAIT = 1.25  # periods between probes that end with the window, at least
LOST_SHARE = 0.016  # of the time, that blocks of refused probes may cost
STEADY = 0.03  # a limit that moves less than this has stood
OLD, RARER = 20.0, 1.6  # periods; a limit that has stood longer is probed more rarely the older it is, by at most this
OUTGROWN = 1.25  # CONTEND: this far above the remembered limit there are no others any more
# At hand: Python 3.11 takes a call of its own to look a member of an enum up.
START, SEARCH, CRUISE = Phase.START, Phase.SEARCH, Phase.CRUISE
SLOW_START, INCREASE = Reason.SLOW_START, Reason.INCREASE


def grow(state: State, options: RecallOptions, busy: float, sent_at: float, *, fresh: bool) -> None:
    """One success of `busy` seconds that the rate had held back, sent then. fresh: headers tell the limit."""
    phase = state.phase
    if phase is CRUISE:  # nearly always
        _stay_or_probe(state, options, fresh=fresh)
        return
    if phase is START:
        _start(state, options, busy, fresh=fresh)
        return
    match phase:
        case Phase.SEARCH:
            _search(state, options, busy)
        case Phase.PROBE:
            match verdict_of_probe(state, options, busy, sent_at):
                case True:
                    state.phase = Phase.CLIMB
                    state.clears.clear()  # they measured the old limit
                    state.stood, state.level = 0.0, 0  # so it was not where it was believed to be, but above
                case False:
                    cruise(state, options, fresh=fresh)
        case Phase.CLIMB:
            _climb(state, options, busy, fresh=fresh)
        case Phase.CONTEND:
            _contend(state, busy)


def _start(state: State, options: RecallOptions, busy: float, *, fresh: bool) -> None:
    """It is slower when nothing was limited for a whole period: part of a window may be used up unseen."""
    limit, first_at, doublings = state.limit, state.first_at, busy / options.doubling_time
    if limit is None and first_at is not None and state.now - first_at > options.period:
        doublings /= LATE
    _multiply(state, 2.0 ** (doublings if doublings < 1.0 else 1.0))
    state.reason = SLOW_START
    if limit is not None and state.rate >= (1 - options.margin) * limit:
        cruise(state, options, fresh=fresh)


def cruise(state: State, options: RecallOptions, *, fresh: bool = False) -> None:
    """Settle just below the limit until the next probe is affordable.

    A refused probe costs probe_cost 429s; one in every probe_cost / (refused_share * rate) seconds keeps their share
    below refused_share, from 15 to 3,000 attempts a minute.
    """
    assert state.limit is not None
    state.phase, state.reason = Phase.CRUISE, Reason.INCREASE
    state.rate = state.limit if fresh else (1 - options.margin) * state.limit
    wait = state.probe_cost / (options.refused_share * max(state.rate, 1e-9)) * _rarer(state, options)
    wait = max(wait, state.probe_loss / LOST_SHARE)
    longest = LONGEST_WAIT / 2.0 ** max(TRUSTED - state.trust, 0)
    shortest = TIMED_WAIT * options.period if is_timed(state, options) else SHORTEST_WAIT
    wait = min(max(wait, shortest), longest)
    state.probe_at = state.now + wait * (0.8 + 0.4 * state.jitter())


def _rarer(state: State, options: RecallOptions) -> float:
    """Note where the limit stands; how much rarer probes are because it stood for long: what lasted will last."""
    assert state.limit is not None
    if abs(state.limit - state.stood) > STEADY * state.stood:
        state.stood, state.stood_since = state.limit, state.now
    return min(max((state.now - state.stood_since) / (OLD * options.period), 1.0), RARER)


def _stay_or_probe(state: State, options: RecallOptions, *, fresh: bool) -> None:
    if state.echo_until > NEVER:
        follow_echo(state, options)
    elif state.now >= state.probe_at and not (fresh and state.limit == state.told_limit):
        begin_probe(state, options)


def follow_echo(state: State, options: RecallOptions) -> None:
    """A full log lets in what leaves it, which is what was sent a period ago."""
    assert state.limit is not None
    begin = state.now - options.period
    free = 0.995 * options.period * state.limit - state.log.accepted(begin, state.now)
    leaving = state.log.accepted(begin, begin + LEAVING)
    cruising = (1 - options.margin) * state.limit
    if state.now >= state.echo_until:
        state.rate, state.echo_until = cruising, NEVER
        return
    rate = max(min(cruising, (free + leaving) / LEAVING), LEAST_ECHO * cruising)
    if abs(rate - state.rate) > 0.05 * state.rate or rate == cruising:
        state.rate = rate


def _climb(state: State, options: RecallOptions, busy: float, *, fresh: bool) -> None:
    _multiply(state, min(1.5, 2.0 ** (busy / CLIMB_DOUBLING)))
    if fresh and state.told_limit is not None and state.rate >= state.told_limit:
        state.limit = state.told_limit
        cruise(state, options, fresh=True)


def _search(state: State, options: RecallOptions, busy: float) -> None:
    state.survived += busy
    if state.survived < max(SEARCH_SECONDS, SEARCH_UNITS / state.rate):
        return
    state.survived, state.reason, state.low = 0.0, Reason.INCREASE, state.rate
    if state.high < CLOSE * state.rate:
        state.limit = state.rate
        if state.limit * options.period < ENOUGH:
            state.trust = 0  # it held, but so few attempts are no proof that no more would
        cruise(state, options)
    else:
        state.rate = (state.rate + state.high) / 2


def search_on(state: State, low: float, high: float) -> None:
    """Where an earlier run broke off: from the rate that held."""
    state.phase, state.low, state.high, state.rate = Phase.SEARCH, low, high, low


def bounds(state: State) -> Bounds | None:
    """What is known of a limit that is still looked for."""
    if state.phase is not SEARCH or state.limit is not None or not 0 < state.low < state.high:
        return None
    return Bounds(held=state.low, refused=state.high)


def _contend(state: State, busy: float) -> None:
    assert state.limit is not None
    state.rate += state.slope * busy
    state.reason = Reason.INCREASE
    if state.rate > OUTGROWN * state.limit:
        state.limit, state.phase = state.rate, Phase.CLIMB


def _multiply(state: State, factor: float) -> None:
    now, rate = state.now, state.rate
    elapsed = 0.0 if state.first_at is None else now - state.first_at
    most = MOST_OVER_SENT * (state.log.sent(now - MEASURED) / min(MEASURED, max(elapsed, 1.0)))
    new = rate * factor
    if new > most:
        new = most
    if new > rate:
        state.rate, state.reason = new, INCREASE
