"""The cap on attempts in flight, as far as the upstream has one.

It is found by refusals that name concurrency, or that look like it (controller.crowd). Such a refusal says how many
fit: those that were open beside it. So the cap comes down to that number at once, and no rate is cut for it. It goes up
again by one, after so many acceptances at the full cap that a probe that fails stays a rare thing, and rarer each time;
one that holds makes the next come soon and reach twice as far, for the cap may have been lowered by what others had
open, or long ago by another run. A cap that no answer named is dropped when something is let through that could not be
if it were one, or when refusals go on below it; then it takes twice the evidence to believe in it again.
"""

from __future__ import annotations

from attrs import define, field

from controller.crowd import Crowd

CONCURRENCY = "concurrency"  # a dimension without a rate: it bounds what is in flight
PATIENCE, MOST_PATIENCE = 20, 800  # acceptances at the cap before one more is tried; doubled by each that fails
EAGER = 20  # the same after one more has held
LATE = 3  # refusals at a cap that is not on trial; a place may be free a moment later there than here


@define(eq=False)
class Room:
    """limit: attempts that may be open, None as long as no refusal showed it."""

    limit: int | None = None
    found: bool = False  # by this run
    _named: bool = False  # some refusal has said what it is about
    _crowd: Crowd = field(factory=Crowd)
    _held: int = 0  # acceptances with the cap full
    _patience: int = EAGER  # a cap from an earlier run is on trial
    _next_patience: int = PATIENCE  # after a probe that fails
    _step: int = 1  # by how much the next probe raises the cap
    _proved: int | None = None  # while the last places are on trial: the cap before
    _late: int = 0  # refusals at the cap since it last held
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
        if self.limit is None:
            fits = self._crowd.refused(beside)
            if fits is not None:
                self._lower(fits, newest)
            return fits is not None
        on_trial = self._proved is not None and beside >= self._proved
        self._late += not on_trial
        if on_trial or (beside >= self.limit - 1 and self._late < LATE):
            self._lower(beside, newest)
            return True
        self._drop()  # refused with room to spare: it is not about that
        return False

    def _lower(self, fits: int, newest: int) -> None:
        self._held, self._patience, self._probe = 0, self._next_patience, newest
        self._next_patience = min(2 * self._next_patience, MOST_PATIENCE)
        self.limit, self.found = max(fits if self.limit is None else min(fits, self.limit), 1), True
        self._step, self._proved = 1, None

    def _drop(self) -> None:
        self.limit, self._step, self._proved, self._late = None, 1, None, 0
        self._crowd.doubt()

    def accepted(self, permit: int, in_flight: int, beside: int, newest: int) -> bool:
        """An attempt was taken, with `beside` others open at least; True if the cap has changed."""
        if self.limit is None:
            self._crowd.accepted(beside)
            return False
        if not self._named and beside >= (self.limit if self._proved is None else self._proved):
            self._drop()
            return True
        if in_flight < self.limit or permit < self._probe:
            return False
        if self._proved is not None:
            self._next_patience = PATIENCE
        self._held += 1
        if self._held < self._patience:
            return False
        self._late, self._step = 0, 1 if self._proved is None else 2 * self._step
        self._proved, self.limit = self.limit, self.limit + self._step
        self._held, self._patience, self._probe = 0, EAGER, newest
        return True
