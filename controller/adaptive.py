"""What adapts: a policy with its bucket for one quota dimension, and the hold after a row of unknown ends."""

from __future__ import annotations

from attrs import define, field

from controller.bucket import TokenBucket
from controller.permits import Booking
from policies.contract import Event, Policy, Reason

FLOOR = 1 / 60  # units/s; a higher one is above the smallest real limits (5 per minute) and refuses for ever
UNKNOWNS = 5  # unknown ends in a row that look like an upstream in trouble
FIRST_HOLD, LONGEST_HOLD = 0.3, 30.0  # s, after UNKNOWNS, doubling


@define(eq=False)
class AdaptiveBucket:
    """One quota dimension: policy and bucket. floor and ceiling in units/s are the user's."""

    policy: Policy
    started_at: float  # only to start the bucket's clock
    floor: float = FLOOR
    ceiling: float = float("inf")
    bucket: TokenBucket = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.floor = min(self.floor, self.ceiling)  # a user's ceiling below the floor wins
        pace = self.policy.pace
        self.bucket = TokenBucket(pace.capacity, self._clamp(pace.refill_rate), level=1.0, updated_at=self.started_at)

    @property
    def at_ceiling(self) -> bool:
        """The policy wishes for at least what the user allows."""
        return self.policy.pace.refill_rate >= self.ceiling

    def tell(self, event: Event) -> Reason | None:
        """Tell the policy and apply its answer; the reason if the pace changed."""
        before = self.policy.pace
        pace = self.policy.on(event)
        if pace is before:
            return None
        self.bucket.set_pace(self._clamp(pace.refill_rate), pace.capacity, event.now)
        if pace.held_until > event.now and pace.drain:
            self.bucket.pause(pace.held_until, event.now)
        return pace.reason

    def _clamp(self, refill_rate: float) -> float:
        return max(self.floor, min(refill_rate, self.ceiling))


@define(eq=False)
class UnknownRow:
    """Attempts that ended with no word, with no acceptance between them: an upstream in trouble looks like this.

    A router that hides its 429s behind 5xx is survived this way: from UNKNOWNS on, sending is held, doubling, with
    one attempt at a time. If more than one prompt is in the row the upstream is to blame, not the prompts.
    """

    held_until: float = float("-inf")
    _count: int = 0
    _hold: float = 0.0
    _since: int = 0  # permits before this one were admitted before the hold: their ends are no news
    _owners: set[str] = field(factory=set)

    @property
    def suspicious(self) -> bool:
        """One attempt at a time until one is accepted."""
        return self._count >= UNKNOWNS

    @property
    def blames_upstream(self) -> bool:
        """Failures cost their prompts nothing."""
        return self.suspicious and len(self._owners) > 1

    def add(self, booking: Booking, next_permit: int, now: float) -> None:
        """One more unknown end."""
        self._count += 1
        self._owners.add(booking.owner)
        if self.suspicious and booking.number >= self._since:
            self._hold = min(2 * self._hold, LONGEST_HOLD) if self._hold else FIRST_HOLD
            self.held_until = now + self._hold
            self._since = next_permit

    def end(self) -> None:
        """An acceptance."""
        self._count, self._hold, self._since = 0, 0.0, 0
        self._owners.clear()
