"""The period that a told limit is for, where no header says it: learnt from how far `reset` ever is.

Most limits are per minute, but gateways enforce some second by second and Azure in windows of ten. A window of a minute
shows a reset above half a minute before long; one that has turned over and never did is shorter. It may be longer than
the farthest reset by no more than the time between two looks. A bucket's reset is small, too, while it is nearly full;
it is told apart by arithmetic, being what is missing over the limit. A refusal in spite of it all lengthens the period.
"""

from __future__ import annotations

from policies.recall_state import NEVER, Period

LOOKS = 3  # that no bucket of a whole period would have given
SHORT = 0.5  # of the assumed period; what is not clearly shorter is left as it is
SLACK = 1.0  # s; resets come in whole seconds, rounded up
USED = 0.5  # of the limit; where more is in use the told limit is one for the assumed period
VAGUE = 0.1  # of the learnt period; a limit spread over that much more than its period loses as much
DOUBT = 1.25  # times the period after each block


def learn_period(seen: Period, assumed: float, sent_at: float, limit: float, remaining: float, reset: float) -> float:
    """One look more, at an answer to an attempt sent at that instant; seconds that the limit is for."""
    if seen.looked_at == NEVER:
        seen.since = sent_at
    else:
        seen.gap = max(seen.gap, sent_at - seen.looked_at)
    seen.looked_at = max(seen.looked_at, sent_at)
    seen.farthest = max(seen.farthest, reset)
    to_full = assumed * (1 - remaining / limit)
    seen.odd += abs(reset - to_full) > 0.02 * assumed + 0.05 * reset
    seen.looks += 1
    current, longest = seen.length or assumed, seen.farthest + seen.gap
    busy = limit - remaining > USED * limit and not seen.length
    if busy or 2 * seen.odd < seen.looks or longest > SHORT * assumed:
        return current
    if seen.looks >= LOOKS and sent_at - seen.since > longest + SLACK:
        if longest < current:
            seen.length, seen.unsure = longest, seen.gap
        _look_anew(seen)
    return seen.length or assumed


def is_vague(seen: Period) -> bool:
    """The looks are so far apart, or the windows so short, that measuring tells more than the headers do."""
    return seen.unsure > VAGUE * seen.length


def doubt_period(seen: Period, assumed: float) -> None:
    """A refusal although headers tell the limit: if the period was learnt, it is longer."""
    if seen.length:
        seen.length = min(DOUBT * seen.length, assumed)
        _look_anew(seen)


def _look_anew(seen: Period) -> None:
    """More is sent from now on, so the looks are closer."""
    seen.looked_at, seen.gap, seen.farthest, seen.odd, seen.looks = NEVER, 0.0, 0.0, 0, 0
