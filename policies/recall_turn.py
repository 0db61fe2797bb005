"""When the upstream's window turns over, learnt from the ends of blocks.

Each end of a long block says: the turn lies after the last refused attempt and before the first accepted one. Taken
modulo the period and intersected, a few of them tell the turn to a fraction of a second. A sliding log has no turn:
its blocks end at odd instants that do not agree, and the memory starts again.
"""

from __future__ import annotations

import math

from policies.recall_state import Turn

ARRIVAL = 0.05  # s; an attempt is judged this much after it was sent, at most
NARROW = 3.0  # s; a turn known less exactly is no help
DRIFT = 3.0  # s; a window that begins with its first attempt turns a little later every time
CREEP = 0.005  # s per second, by which such a window may be late
AGREEING = 2  # turns that must agree


def learn_turn(turn: Turn, period: float, low: float, high: float, *, sure: bool) -> None:
    """The window turned over in (low, high]; not sure: if it was one at all."""
    high += ARRIVAL
    if not 0 <= high - low < period / 2:
        return
    known_low, known_high = _near(turn, period, high)
    common_low, common_high = max(low, known_low), min(high, known_high)
    if turn.seen and common_low <= common_high:
        turn.low, turn.high, turn.seen = common_low, common_high, turn.seen + sure
    else:
        turn.low, turn.high, turn.seen = low, high, 1


def agrees(turn: Turn, period: float, low: float, high: float) -> bool:
    """A window that turned over in (low, high] would be the one that is known."""
    if not turn.seen:
        return False
    known_low, known_high = _near(turn, period, high)
    return max(low, known_low) - min(high, known_high) <= DRIFT


def turn_is_known(turn: Turn, period: float) -> bool:
    """Well enough to wait for it."""
    return turn.seen >= AGREEING and turn.high - turn.low <= min(NARROW, period / 4)


def next_turn(turn: Turn, period: float, now: float) -> float:
    """The first instant after now by which the window will have turned over; inf if nothing is known."""
    if not turn.seen:
        return math.inf
    return turn.high + (math.floor((now - turn.high) / period) + 1) * period


def turn_span(turn: Turn, period: float, low: float, high: float) -> tuple[float, float]:
    """The window turned over in (low, high]; where in it, as far as is known."""
    if not turn_is_known(turn, period):
        return low, high
    known_low, known_high = _near(turn, period, high)
    common = max(low, known_low), min(high, known_high)
    return common if common[0] <= common[1] else (low, high)


def _near(turn: Turn, period: float, instant: float) -> tuple[float, float]:
    """The known turn, carried to the one nearest to an instant; it may have moved later meanwhile."""
    if not turn.seen:
        return -math.inf, math.inf
    ahead = round((instant - turn.high) / period) * period
    return turn.low + ahead, turn.high + ahead + CREEP * max(ahead, 0.0)
