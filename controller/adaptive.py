"""What adapts: a policy with its bucket for one quota dimension.

A policy may be a stranger's code, so this is the border where its faults end. One that raises, or answers a pace that
can't be kept, is replaced for good: by `aimd`, from the last good pace and never faster than it.

It is also the border between two measures. Callers speak of requests or LLM tokens; policy and bucket see *units*, of
which a typical attempt costs about one, so that one policy fits all dimensions. What is reserved is on the safe side,
and the bucket gets the rest back; a policy that counted it would take the limit for larger than it is. So it is told
what reservations turn out to be *worth* on average.
"""

from __future__ import annotations

import math

from attrs import define, evolve, field

from controller.binding import Binding
from controller.bucket import TokenBucket
from controller.permits import OTHER, RATE, Booking, Facts, Ledger
from controller.soundness import sound
from controller.worth import Worth
from policies.aimd import Aimd, AimdOptions
from policies.contract import Admitted, Event, Hints, Pace, Policy, Reason, Remembered
from policies.words import in_one_line

FLOOR = 1 / 60  # units/s; a higher one is above the smallest real limits (5 per minute) and refuses for ever
PERIOD = 60.0  # s; what a stated limit is meant for where no period is stated with it
LEAST_SAVED = 5.0  # s; with less a few large prompts in a row hold up a dimension that binds on average


@define(eq=False)
class AdaptiveBucket:
    """One quota dimension: policy and bucket. floor and ceiling in units/s are the user's.

    unit: requests or LLM tokens in one unit. headroom: the share of a stated or learned limit to use. saved_up: seconds
    of refill that the bucket holds beyond the policy's capacity, for what did not bind to catch up when it does. late:
    the upstream charges for what it has let in by and by, so that it may be in debt when it refuses.
    """

    policy: Policy
    started_at: float  # only to start the bucket's clock
    floor: float = FLOOR
    ceiling: float = float("inf")
    unit: float = 1.0
    headroom: float = 1.0
    tested_at: float | None = None  # when the learned limit was last changed, or all of it in use; None: not by a run
    saved_up: float = 0.0
    late: bool = False
    ledger: Ledger = field(factory=Ledger, init=False)
    binding: Binding = field(factory=Binding, init=False)
    bucket: TokenBucket = field(init=False)
    fault: str | None = field(default=None, init=False)  # how the policy failed; None while it is the one at work
    pace: Pace = field(init=False)  # in force, and sound whatever the policy says
    _to_be_told: bool = field(default=False, init=False)  # the fault has not been returned as a reason yet
    _restated: bool = field(default=False, init=False)
    _stated: float | None = field(default=None, init=False)  # units/s, by a header, and
    _is_timed: bool = field(default=False, init=False)  # it said for how long; else the policy may know better
    worth: float = field(default=1.0, init=False)  # of a reservation, when it is settled
    _weighed: Worth = field(factory=Worth, init=False)

    def __attrs_post_init__(self) -> None:
        self.floor = min(self.floor, self.ceiling)  # a user's ceiling below the floor wins
        try:
            self.pace = sound(self.policy.pace)
        except Exception as error:  # a stranger's code: see the top
            self._replace(error, last_good=None)
        pace = self.pace
        self.floor = min(self.floor, pace.refill_rate)  # and who starts below it is not sped up
        rate = self._clamp(pace.refill_rate, self._top(pace))
        self.bucket = TokenBucket(self._capacity(pace, rate), rate, level=1.0, updated_at=self.started_at)

    @property
    def at_ceiling(self) -> bool:
        """The policy wishes for at least what the user allows."""
        return self.pace.refill_rate >= self._top(self.pace)

    # -- what an attempt costs, in requests or LLM tokens

    def delay(self, cost: float, now: float) -> float:
        """Seconds until it may be taken."""
        return self.bucket.delay(cost / self.unit, now)

    def take(self, cost: float, now: float) -> None:
        """An attempt is admitted."""
        self.ledger.charged += cost
        self.bucket.take(cost / self.unit, now)

    def put_back(self, cost: float, now: float) -> None:
        """It was refused, or never sent: as if it had not been admitted."""
        self.ledger.refunded += cost
        self.bucket.put_back(cost / self.unit, now)

    def expected(self, cost: float) -> float:
        """Units that a reservation is likely to come to."""
        return cost * self.worth / self.unit

    def settle(self, reserved: float, true_cost: float, now: float) -> None:
        """It is over: what it used beyond its reservation becomes a debt, what it did not use comes back by and by."""
        more = true_cost - reserved
        self.ledger.settled += true_cost
        if true_cost and (more or self._weighed.is_known):
            self.worth = self._weighed.weigh(reserved, true_cost)
        if more > 0:
            self.ledger.charged += more
            self.bucket.take(more / self.unit, now)
        elif more < 0:
            self.ledger.refunded -= more
            self.bucket.refund(-more / self.unit, now)

    def remains(self, remaining: float, now: float) -> None:
        """What a header says is left, less all that is on its way, is there to be used."""
        if self.saved_up:
            self.bucket.fill((remaining - self.ledger.in_flight) / self.unit, now)

    def short(self, cost: float, now: float) -> None:
        """The upstream had less than such a cost: so have we. Where it refused in spite of savings, save up less."""
        rate = self.bucket.refill_rate
        too_much = (self.bucket.empty(now) - cost / self.unit) / rate if self.saved_up else 0.0
        if too_much > LEAST_SAVED:
            self.saved_up = max(self.saved_up - too_much, LEAST_SAVED)
            self.bucket.set_pace(rate, self._capacity(self.pace, rate), now)

    def in_units(self, hints: Hints) -> Hints:
        """What headers tell in requests or LLM tokens, as a policy wants it."""
        if self.headroom < 1.0 and hints.limit is not None and 0 < hints.limit < math.inf:
            stated = hints.limit / (hints.period or PERIOD) / self.unit
            self._stated, self._restated, self._is_timed = stated, stated != self._stated, hints.period is not None
        if self.unit == 1.0:
            return hints
        limit, remaining = hints.limit, hints.remaining
        scaled = None if limit is None else limit / self.unit
        return evolve(hints, limit=scaled, remaining=None if remaining is None else remaining / self.unit)

    # -- what its policy is told

    def facts(self, booking: Booking, name: str, now: float, in_flight: int) -> Facts:
        """What each event tells of an attempt; name: of this dimension."""
        cost, limited_by = booking.cost[name] * self.worth / self.unit, booking.limited_by.get(name, OTHER)
        return (now, booking.number, booking.admitted_at, cost, limited_by, in_flight, self.bucket.refill_rate)

    def tell(self, event: Event) -> Reason | None:
        """Tell the policy and apply its answer; the reason if the pace changed."""
        before, now, limited_by = self.pace, event.now, event.limited_by  # as they are: a stranger may change an event
        try:
            pace = self.policy.on(event)
            if pace is not before or self.policy.pace is not pace:
                self._check(pace)
        except Exception as error:  # a stranger's code: see the top
            self._replace(error, last_good=before)
            pace = self._fall_back(event)
        if limited_by is RATE or pace.learned_limit != before.learned_limit:
            self.tested_at = now
        if pace is not before or self._restated:
            self._restated = False
            self._keep(pace, now)
        if self._to_be_told and not isinstance(event, Admitted):  # nobody logs what an admission leads to
            self._to_be_told = False
            return Reason.FALLBACK
        return None if pace is before else pace.reason

    def _fall_back(self, event: Event) -> Pace:
        """A refusal that was too much for the policy is still a refusal, unless nothing is left of it."""
        try:
            return self.policy.on(event)
        except Exception:  # it was changed before the policy failed
            return self.policy.pace

    def _keep(self, pace: Pace, now: float) -> None:
        self.pace = pace
        rate = self._clamp(pace.refill_rate, self._top(pace))
        self.bucket.set_pace(rate, self._capacity(pace, rate), now)
        if pace.drain and pace.held_until > now:
            self.bucket.pause(pace.held_until, now)

    def hold_back(self, until: float, now: float) -> None:
        """Nothing accrues until then. A lone probe goes at once; at five attempts a minute its refill would be 12 s."""
        lone = self.pace.unresolved_limit == 1 and not self.pace.drain
        self.bucket.pause(until, now, keep=1.0 if lone else 0.0)

    def renew(self, policy: Policy | None, ceiling: float, now: float) -> None:
        """Another ceiling by the user, and another policy if he changed its options; what was reserved stays so."""
        self.ceiling, self.floor = ceiling, min(self.floor, ceiling)
        if policy is not None:
            self.policy, self.fault = policy, None
        self._keep(sound(self.policy.pace), now)

    def _check(self, pace: Pace) -> None:
        sound(pace)
        in_force = self.policy.pace
        if in_force is not pace and in_force != pace:
            raise ValueError("its pace is not what it answered last")

    def _replace(self, error: Exception, last_good: Pace | None) -> None:
        self.fault = f"{type(self.policy).__name__}: {in_one_line(error)}"
        self._to_be_told = True
        options, remembered = AimdOptions(), None
        if last_good is not None:
            self.ceiling = min(self.ceiling, max(last_good.refill_rate, self.floor))
            # What aimd starts at is its cut of the limit it is told.
            limit = self._clamp(last_good.refill_rate, self.ceiling) / options.decrease_factor
            remembered = Remembered(limit=limit, age=0.0)
        self.policy = Aimd(options, seed=0, now=self.started_at, remembered=remembered)
        self.pace = self.policy.pace

    def _capacity(self, pace: Pace, rate: float) -> float:
        if not self.saved_up:
            return pace.capacity
        known = min(pace.learned_limit or 0.0, self._top(pace))
        return pace.capacity + self.saved_up * max(rate, known)

    def _clamp(self, refill_rate: float, top: float) -> float:
        if refill_rate >= top:
            return top
        floor = self.floor if self.floor < top else top
        return refill_rate if refill_rate > floor else floor

    def _top(self, pace: Pace) -> float:
        """The most that the user allows, in units/s: the ceiling, or the headroom below what the limit seems to be."""
        if self.headroom == 1.0:
            return self.ceiling
        stated = self._stated if self._is_timed or pace.learned_limit is None else None
        limits = [limit for limit in (stated, pace.learned_limit) if limit is not None and limit > 0]
        return min([self.ceiling, *(self.headroom * limit for limit in limits)])
