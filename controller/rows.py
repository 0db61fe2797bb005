"""The hold after a row of bad ends, whoever is to blame for them."""

from __future__ import annotations

from attrs import define, field

from controller.permits import Booking

UNKNOWNS = 5  # bad ends in a row that look like an upstream in trouble
FIRST_HOLD, LONGEST_HOLD = 0.3, 30.0  # s, after UNKNOWNS, doubling


@define(eq=False)
class Row:
    """Bad ends with no good one between them: an upstream in trouble looks like this.

    From UNKNOWNS on, sending is held, doubling, with one attempt at a time. A router that hides its 429s behind 5xx
    is survived this way. If more than one prompt is in the row the upstream is to blame, not the prompts.
    """

    held_until: float = float("-inf")
    _count: int = 0
    _hold: float = 0.0
    _since: int = 0  # permits before this one were admitted before the hold: their ends are no news
    _owners: set[str] = field(factory=set)

    @property
    def suspicious(self) -> bool:
        """One attempt at a time until one ends well."""
        return self._count >= UNKNOWNS

    @property
    def blames_upstream(self) -> bool:
        """Failures cost their prompts nothing."""
        return self.suspicious and len(self._owners) > 1

    def add(self, booking: Booking, next_permit: int, now: float, *, at_once: bool = False) -> None:
        """One more bad end. at_once: it is reason enough alone."""
        self._count = max(self._count + 1, UNKNOWNS if at_once else 0)
        self._owners.add(booking.owner)
        if self.suspicious and booking.number >= self._since:
            self._hold = min(2 * self._hold, LONGEST_HOLD) if self._hold else FIRST_HOLD
            self.held_until = now + self._hold
            self._since = next_permit

    def end(self) -> bool:
        """A good end; True if there was a row to end."""
        if self._count == 0:
            return False
        self._count, self._hold, self._since = 0, 0.0, 0
        self._owners.clear()
        return True
