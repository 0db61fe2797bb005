"""Why nothing may be sent for a while, or only one at a time: the server's hold, rows of bad ends, the policies.

`sum_up` is called when one of them has changed, and what they come to is at hand for the head of the queue, which asks
far more often.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import define, field

from controller.permits import Booking
from controller.rows import Row
from policies.contract import Pace


def restrain_alike(one: Pace, other: Pace) -> bool:
    """They differ in nothing that `Holds.sum_up` looks at; as a rule only the rate changes."""
    return (
        one.held_until == other.held_until
        and one.in_flight_limit == other.in_flight_limit
        and one.unresolved_limit == other.unresolved_limit
    )


@define(eq=False)
class Holds:
    """until: nothing is sent before this instant. cap: attempts in flight. probes: unresolved ones, None for any."""

    server_hold: float = field(default=float("-inf"), init=False)  # instant; Retry-After, never shortened
    unheard: Row = field(factory=Row, init=False)  # no word, or refused with nobody holding; ended by an accept
    broken: Row = field(factory=Row, init=False)  # accepted, but no whole answer; ended by a completion
    until: float = field(default=float("-inf"), init=False)
    pause_until: float = field(default=float("-inf"), init=False)  # the same without the policies' holds
    cap: int = field(default=0, init=False)
    probes: int | None = field(default=None, init=False)
    _probes_from: int | None = field(default=None, init=False)  # permits from here on count against the probe limit

    def sum_up(self, paces: Iterable[Pace], max_in_flight: int, next_permit: int) -> None:
        """What all of them come to now."""
        hold = self.pause_until = max(self.server_hold, self.unheard.held_until, self.broken.held_until)
        cap, probes = max_in_flight, 1 if self.unheard.suspicious or self.broken.suspicious else None
        for pace in paces:
            hold = max(hold, pace.held_until)
            if pace.in_flight_limit is not None:
                cap = min(cap, pace.in_flight_limit)
            if pace.unresolved_limit is not None:
                probes = pace.unresolved_limit if probes is None else min(probes, pace.unresolved_limit)
        self.until, self.cap = hold, max(cap, 1)
        self.probes = None if probes is None else max(probes, 1)
        if self.probes is None:
            self._probes_from = None
        elif self._probes_from is None:
            self._probes_from = next_permit

    def probing(self, bookings: Mapping[int, Booking]) -> bool:
        """As many are unresolved as may be: admitted since, they have not shown yet what they were to show."""
        assert self.probes is not None
        first, whole = self._probes_from or 0, self.broken.suspicious
        return sum(whole or not each.accepted for number, each in bookings.items() if number >= first) >= self.probes
