"""The cap on attempts in flight, as far as the upstream has one.

It is found by refusals that name concurrency, or that look like it (controller.crowd). Such a refusal says how many
fit: those that were open beside it. So the cap comes down to that number at once, and no rate is cut for it. It goes up
again by one at a time, after so many acceptances at the full cap that a probe that fails stays a rare thing, and rarer
each time; one that holds makes the next come soon.
"""

from __future__ import annotations

from attrs import define, field

from controller.crowd import Crowd

CONCURRENCY = "concurrency"  # a dimension without a rate: it bounds what is in flight
PATIENCE, MOST_PATIENCE = 200, 800  # acceptances at the cap before one more is tried; 1/200 is half a per cent
EAGER = 20  # the same after one more has held


@define(eq=False)
class Room:
    """limit: attempts that may be open, None as long as no refusal showed it."""

    limit: int | None = None
    found: bool = False  # by this run
    _named: bool = False  # some refusal has said what it is about
    _crowd: Crowd = field(factory=Crowd)
    _held: int = 0  # acceptances with the cap full
    _patience: int = PATIENCE
    _next_patience: int = PATIENCE  # after a probe that fails
    _probe: int = 0  # permits from here on were admitted after the last change

    def crowded(self, beside: int, *, named: str | None, newest: int) -> bool:
        """An attempt was refused with so many others open, at most; True if for want of room.

        named: the dimension that the answer blames. newest: the number of the next permit.
        """
        if named == CONCURRENCY:
            self._named = True
            self._lower(beside, newest)
            return True
        if named is not None or self._named:
            return False
        if self.limit is not None and beside >= self.limit - 1:  # the last place may be one that was tried
            self._lower(beside, newest)
            return True
        fits = self._crowd.refused(beside) if self.limit is None else None
        if self.limit is not None:  # refused with room to spare: it is not about that
            self.limit = None
            self._crowd.forget()
        if fits is None:
            return False
        self._lower(fits, newest)
        return True

    def _lower(self, fits: int, newest: int) -> None:
        self._held, self._patience, self._probe = 0, self._next_patience, newest
        self._next_patience = min(2 * self._next_patience, MOST_PATIENCE)
        self.limit, self.found = max(fits if self.limit is None else min(fits, self.limit), 1), True

    def accepted(self, permit: int, in_flight: int, beside: int, newest: int) -> bool:
        """An attempt was taken, with `beside` others open at least; True if one more may be tried."""
        if self.limit is None:
            self._crowd.accepted(beside)
            return False
        if in_flight < self.limit or permit < self._probe:
            return False
        if self._patience == EAGER:
            self._next_patience = PATIENCE
        self._held += 1
        if self._held < self._patience:
            return False
        self.limit, self._held, self._patience, self._probe = self.limit + 1, 0, EAGER, newest
        return True
