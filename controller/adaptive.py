"""What adapts: a policy with its bucket for one quota dimension, and the hold after a row of bad ends.

A policy may be a stranger's code, so this is the border where its faults end. One that raises, or answers a pace that
can't be kept, is replaced for good: by `aimd`, from the last good pace and never faster than it.
"""

from __future__ import annotations

import math

from attrs import define, field

from controller.bucket import TokenBucket
from controller.permits import Booking
from policies.aimd import Aimd, AimdOptions
from policies.contract import Admitted, Event, Pace, Policy, Reason, Remembered
from policies.words import in_one_line

FLOOR = 1 / 60  # units/s; a higher one is above the smallest real limits (5 per minute) and refuses for ever
UNKNOWNS = 5  # bad ends in a row that look like an upstream in trouble
FIRST_HOLD, LONGEST_HOLD = 0.3, 30.0  # s, after UNKNOWNS, doubling


@define(eq=False)
class AdaptiveBucket:
    """One quota dimension: policy and bucket. floor and ceiling in units/s are the user's."""

    policy: Policy
    started_at: float  # only to start the bucket's clock
    floor: float = FLOOR
    ceiling: float = float("inf")
    bucket: TokenBucket = field(init=False)
    fault: str | None = field(default=None, init=False)  # how the policy failed; None while it is the one at work
    pace: Pace = field(init=False)  # in force, and sound whatever the policy says
    _to_be_told: bool = field(default=False, init=False)  # the fault has not been returned as a reason yet

    def __attrs_post_init__(self) -> None:
        self.floor = min(self.floor, self.ceiling)  # a user's ceiling below the floor wins
        try:
            self.pace = sound(self.policy.pace)
        except Exception as error:  # a stranger's code: see the top
            self._replace(error, last_good=None)
        pace = self.pace
        self.floor = min(self.floor, pace.refill_rate)  # and who starts below it is not sped up
        self.bucket = TokenBucket(pace.capacity, self._clamp(pace.refill_rate), level=1.0, updated_at=self.started_at)

    @property
    def at_ceiling(self) -> bool:
        """The policy wishes for at least what the user allows."""
        return self.pace.refill_rate >= self.ceiling

    def tell(self, event: Event) -> Reason | None:
        """Tell the policy and apply its answer; the reason if the pace changed."""
        before = self.pace
        try:
            pace = self._ask(event)
        except Exception as error:  # a stranger's code: see the top
            self._replace(error, last_good=before)
            pace = self._ask(event)  # a refusal that was too much for the policy is still a refusal
        if pace is before and not self._to_be_told:
            return None
        if pace is not before:
            self.pace = pace
            self.bucket.set_pace(self._clamp(pace.refill_rate), pace.capacity, event.now)
            if pace.held_until > event.now and pace.drain:
                self.bucket.pause(pace.held_until, event.now)
        if self._to_be_told and not isinstance(event, Admitted):  # nobody logs what an admission leads to
            self._to_be_told = False
            return Reason.FALLBACK
        return None if pace is before else pace.reason

    def hold_back(self, until: float, now: float) -> None:
        """Nothing accrues until then. A lone probe goes at once; at five attempts a minute its refill would be 12 s."""
        lone = self.pace.unresolved_limit == 1 and not self.pace.drain
        self.bucket.pause(until, now, keep=1.0 if lone else 0.0)

    def _ask(self, event: Event) -> Pace:
        pace = self.policy.on(event)
        if pace is not self.pace:
            sound(pace)
        if self.policy.pace is not pace and self.policy.pace != pace:
            raise ValueError("its pace is not what it answered last")
        return pace

    def _replace(self, error: Exception, last_good: Pace | None) -> None:
        self.fault = f"{type(self.policy).__name__}: {in_one_line(error)}"
        self._to_be_told = True
        options, remembered = AimdOptions(), None
        if last_good is not None:
            self.ceiling = min(self.ceiling, max(last_good.refill_rate, self.floor))
            # What aimd starts at is its cut of the limit it is told.
            remembered = Remembered(limit=self._clamp(last_good.refill_rate) / options.decrease_factor, age=0.0)
        self.policy = Aimd(options, seed=0, now=self.started_at, remembered=remembered)
        self.pace = self.policy.pace

    def _clamp(self, refill_rate: float) -> float:
        return max(self.floor, min(refill_rate, self.ceiling))


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
    for limit in (pace.in_flight_limit, pace.unresolved_limit):
        if not (limit is None or isinstance(limit, int)):
            raise TypeError(f"a limit is {limit!r}")
    return pace


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
