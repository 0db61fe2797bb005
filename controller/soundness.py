"""Whether a pace can be kept at all: the policy that answered it may be a stranger's."""

from __future__ import annotations

import math

from policies.contract import Bounds, Pace, Reason


def sound(pace: Pace) -> Pace:
    """The same pace if it can be kept; ValueError or TypeError otherwise."""
    if not isinstance(pace, Pace):
        raise TypeError(f"it answered {pace!r} instead of a Pace")
    if not (math.isfinite(pace.refill_rate) and pace.refill_rate > 0):
        raise ValueError(f"refill_rate is {pace.refill_rate!r}")
    if not (math.isfinite(pace.capacity) and pace.capacity >= 1):
        raise ValueError(f"capacity is {pace.capacity!r}")
    if not pace.held_until < math.inf:  # NaN, too
        raise ValueError(f"held_until is {pace.held_until!r}")
    if not (pace.learned_limit is None or pace.learned_limit >= 0):  # NaN is not, and a word raises TypeError
        raise ValueError(f"learned_limit is {pace.learned_limit!r}")
    if not isinstance(pace.reason, Reason):
        raise TypeError(f"reason is {pace.reason!r}")
    if not (pace.bounds is None or isinstance(pace.bounds, Bounds)):
        raise TypeError(f"bounds are {pace.bounds!r}")
    for limit in (pace.in_flight_limit, pace.unresolved_limit):
        if not (limit is None or isinstance(limit, int)):
            raise TypeError(f"a limit is {limit!r}")
    return pace
