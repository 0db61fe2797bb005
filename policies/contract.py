"""What a rate policy is told and what it answers: the one file a policy author reads.

A policy is a pure state machine. It is told what happened (an `Event`) and answers with a `Pace`. It has
no clock (every event carries `now`), no randomness (jitter is derived from `seed` and an epoch number), does no
I/O and never raises. One instance controls one quota dimension of one (upstream, key, model).

The limiter applies the answer: it clamps the refill_rate into the user's [floor, ceiling], takes the later of
`held_until` and the server's own Retry-After, and turns everything into admissions. A policy therefore never
clamps for the user and never sees Retry-After as a command, only as a fact.

Words: an *epoch* runs from one cut to the next. A refusal of an attempt admitted before the last cut is *stale*:
it reports a rate that has been corrected already. Permits are numbered upwards in the order of admission, so
"admitted before the cut" is `event.permit <= the highest permit seen when the cut was made`; comparing
instants would fail when both happen in the same one.
"""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Protocol

from attrs import define, frozen

if TYPE_CHECKING:
    from attrs import frozen as event
else:  # three are made for each attempt, and one that is frozen at run time, too, takes twice as long to make
    event = partial(define, unsafe_hash=True)

JSON = None | bool | int | float | str | list["JSON"] | dict[str, "JSON"]


class LimitedBy(Enum):
    """What held an attempt back just before it was admitted; only RATE successes may raise a rate."""

    RATE = "rate"  # this dimension's bucket: the largest positive delay at the head of the queue
    APP = "app"  # nothing: the application had not asked for more (RFC 9002, section 7.8)
    IN_FLIGHT = "in-flight"  # the cap on concurrent attempts
    CEILING = "ceiling"  # this dimension's bucket, at the user's ceiling: the policy wished for more
    OTHER = "other"  # another dimension, or a hold


class Scope(Enum):
    """What a refusal says about this dimension."""

    DIMENSION = "dimension"  # the answer named this dimension's quota
    UNKNOWN = "unknown"  # it named none; this dimension is the most likely one
    OVERLOAD = "overload"  # the upstream is short of capacity: hold, but learn nothing about the quota


class Reason(Enum):
    """Why a pace is what it is, for the decision log."""

    START = "start"
    SLOW_START = "slow-start"
    INCREASE = "increase"
    CUT = "cut"
    HOLD = "hold"
    CLEARED = "cleared"
    FIXED = "fixed"
    FALLBACK = "fallback"  # the limiter's own word: the policy failed, and its last good pace took over


@frozen(kw_only=True)
class Hints:
    """What the answer's headers told about this dimension; None where they are silent."""

    limit: float | None = None  # units per period, > 0
    remaining: float | None = None  # units left, >= 0
    reset: float | None = None  # seconds from now, >= 0; window end or time to full, providers differ
    period: float | None = None  # seconds, > 0


# Shared fields of the events, which nobody may change. now, admitted_at: instants in seconds on one monotonic clock.
# permit: the attempt's number. cost: units reserved from the bucket, > 0. limited_by: decided at admission. in_flight:
# attempts open at `now`, this one included. refill_rate: units/s as applied by the limiter at `now`, after its clamps.


@event
class Admitted:
    """An attempt may go; now == admitted_at."""

    now: float
    permit: int
    admitted_at: float
    cost: float
    limited_by: LimitedBy
    in_flight: int
    refill_rate: float


@event
class Accepted:
    """The upstream took the attempt (2xx headers); at most once for a permit."""

    now: float
    permit: int
    admitted_at: float
    cost: float
    limited_by: LimitedBy
    in_flight: int
    refill_rate: float
    hints: Hints = Hints()


@event
class Refused:
    """The upstream refused for its rate (429 and kin). May follow Accepted when the refusal came inside a 200."""

    now: float
    permit: int
    admitted_at: float
    cost: float
    limited_by: LimitedBy
    in_flight: int
    refill_rate: float
    scope: Scope = Scope.UNKNOWN
    retry_after: float | None = None  # seconds, > 0, as the server said it; the limiter obeys it anyway
    hints: Hints = Hints()
    owed: float = 0.0  # units reserved for attempts in flight that the upstream charges later, >= 0


@event
class Settled:
    """An accepted attempt is over; true_cost in units replaces what was reserved."""

    now: float
    permit: int
    admitted_at: float
    cost: float
    limited_by: LimitedBy
    in_flight: int
    refill_rate: float
    true_cost: float
    first_token_at: float | None = None  # instant of the first payload, None if none came


@event
class Unknown:
    """The attempt ended with no word on its quota: lost, timed out, cancelled, 5xx, or refused for its content.

    It frees the probe's place and must not change refill_rate.
    """

    now: float
    permit: int
    admitted_at: float
    cost: float
    limited_by: LimitedBy
    in_flight: int
    refill_rate: float


Event = Admitted | Accepted | Refused | Settled | Unknown


@frozen(kw_only=True)
class Bounds:
    """Of a limit that is still looked for, in units/s: a rate that was kept up, and a higher one that was refused."""

    held: float
    refused: float

    def __attrs_post_init__(self) -> None:
        if not 0 < self.held < self.refused < float("inf"):
            raise ValueError(f"bounds are {self.held!r} and {self.refused!r}")


@frozen(kw_only=True)
class Pace:
    """How fast to go from now on. The same object is returned when nothing changed."""

    refill_rate: float  # units/s, finite, > 0
    capacity: float  # units, >= 1: the most the bucket holds
    in_flight_limit: int | None = None  # None: no opinion
    unresolved_limit: int | None = None  # attempts admitted since it was set, neither accepted nor ended
    held_until: float = float("-inf")  # nothing is sent before this instant
    drain: bool = False  # a bucket with saved-up level is emptied when the hold ends
    learned_limit: float | None = None  # units/s the policy believes the upstream allows
    bounds: Bounds | None = None  # of the limit, while none is learned; only the next run is told of them
    reason: Reason = Reason.START


@frozen(kw_only=True)
class Remembered:
    """What an earlier run learned: limit in units/s and its age in seconds.

    refused: of a run that ended while it still looked for the limit, which then is only a rate that held.
    """

    limit: float
    age: float
    refused: float | None = None  # units/s


class Policy(Protocol):
    """A rate law as an instance: the verbs the limiter uses.

    The class itself is called as `cls(options, *, seed, now, remembered=None)`, where options is an instance of
    its `options_class`, a frozen attrs class whose fields carry `unit` and `help` in their metadata and validate
    their range. `cls.restore(options, snapshot, *, seed, now)` continues exactly where `snapshot` was taken and
    raises ValueError for a snapshot that is not its own.

    `tidegate policies check module:Class` puts a policy to the laws that every policy must hold. `claims` names those
    that this one promises beside them. Where the nature of a policy forbids a law, an optional class attribute
    `declines: ClassVar[Mapping[str, str]]` maps the law's name to the reason; the reason is shown in its stead.
    """

    options_class: ClassVar[type]
    claims: ClassVar[frozenset[str]]

    @property
    def pace(self) -> Pace:
        """The answer in force."""

    def on(self, event: Event) -> Pace:
        """Take one event in and answer; never raises, whatever the numbers in the event are."""

    def snapshot(self, now: float) -> dict[str, JSON]:
        """The state as JSON, with ages instead of instants, so that it means the same on another clock."""
