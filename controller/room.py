"""The cap on attempts in flight, as far as the upstream has one: found by refusals that name concurrency.

Such a refusal says how many fit: those that are open beside it. So the cap comes down to that number at once, and no
rate is cut for it. It goes up again by one at a time, after so many acceptances at the full cap that a probe that
fails stays a rare thing; a probe that holds makes the next one come sooner.
"""

from __future__ import annotations

from attrs import define

PATIENCE = 200  # acceptances at the cap before one more is tried: a refusal in 200 is half a per cent
EAGER = 20  # the same after one more has held


@define(eq=False)
class Room:
    """limit: attempts that may be open, None as long as no refusal named it."""

    limit: int | None = None
    found: bool = False  # by this run
    _held: int = 0  # acceptances with the cap full
    _patience: int = PATIENCE
    _probe: int | None = None  # permits from here on were admitted after the last change

    def refused(self, permit: int, still_open: int, newest: int) -> bool:
        """An attempt was refused for want of room, with so many others open; True if that changes the limit."""
        self._held, self._patience = 0, PATIENCE
        fits = max(still_open, 1)
        if self.limit is not None and fits >= self.limit and permit < (self._probe or 0):
            return False
        before = self.limit
        self.limit, self._probe, self.found = fits if before is None else min(fits, before), newest, True
        return self.limit != before

    def accepted(self, permit: int, in_flight: int, newest: int) -> bool:
        """An attempt was taken; True if one more may be tried."""
        if self.limit is None or in_flight < self.limit or permit < (self._probe or 0):
            return False
        self._held += 1
        if self._held < self._patience:
            return False
        self.limit, self._held, self._patience, self._probe = self.limit + 1, 0, EAGER, newest
        return True
