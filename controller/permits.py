"""The limiter's words: what it is asked, what it answers, what it keeps of an attempt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from attrs import define, frozen

from controller.ceiling import Entry
from policies.contract import LimitedBy, Reason

if TYPE_CHECKING:
    from attrs import frozen as record
else:  # of what is made for many attempts; see the events in policies.contract
    record = partial(define, unsafe_hash=True)

Cost = Mapping[str, float]  # requests or LLM tokens, by dimension
NO_ENTRIES: Mapping[str, Entry] = {}
# At hand, since Python 3.11 takes a call of its own to look a member of an enum up, and these are asked all the time.
APP, RATE, OTHER = LimitedBy.APP, LimitedBy.RATE, LimitedBy.OTHER


# What every event begins with, in the order of its fields (see policies.contract): by name they take twice as long to
# make, and there are three for each attempt.
Facts = tuple[float, int, float, float, LimitedBy, int, float]


class Blocked(Enum):
    """What keeps the head of the queue waiting."""

    RATE = "rate"
    IN_FLIGHT = "in-flight"
    HOLD = "hold"
    PROBE = "probe"  # held, and the one attempt allowed is under way


@record
class Wait:
    """Not yet. until: the instant to ask again, inf when only a change can help; dimension: whose bucket is behind."""

    by: Blocked
    until: float = float("inf")
    dimension: str | None = None
    at_ceiling: bool = False


@record
class Decision:
    """A change of pace, for the log. Rates in requests or LLM tokens per second, held_until an instant."""

    now: float
    dimension: str
    old: float
    new: float
    reason: Reason
    held_until: float


@define(eq=False)
class Ledger:
    """Sums of one dimension since its start, in requests or LLM tokens.

    charged = settled + refunded + what is reserved for attempts in flight.
    """

    charged: float = 0.0
    settled: float = 0.0
    refunded: float = 0.0

    @property
    def in_flight(self) -> float:
        """What is reserved."""
        return self.charged - self.settled - self.refunded


@define(eq=False)
class Booking:
    """An admitted attempt, as the limiter keeps it. owner: whose attempt, so that one bad prompt is told from many.

    cost: what is reserved, in every dimension that the caller knows. limited_by: in those that booked it. beside: other
    attempts that were open when it was admitted.
    """

    number: int
    owner: str
    admitted_at: float
    cost: Cost
    limited_by: Mapping[str, LimitedBy]
    beside: int = 0
    accepted: bool = False
    entries: Mapping[str, Entry] = NO_ENTRIES  # in the logs of ceilings


@frozen(kw_only=True)
class Settlement:
    """What settling an attempt led to. spends_budget: a failure counts against its prompt's failure budget."""

    decisions: tuple[Decision, ...] = ()
    spends_budget: bool = True


@frozen(kw_only=True)
class Statistics:
    """The limiter in one look."""

    in_flight: int
    max_in_flight: int
    refill_rate: Mapping[str, float]
    held_for: float  # seconds left of the longest hold
    probing: bool


def limited_by(names: Iterable[str], waited: Wait | None) -> dict[str, LimitedBy]:
    """What held an attempt back in each dimension, from what the head of the queue was told last."""
    if waited is None:
        return dict.fromkeys(names, APP)
    if waited.dimension is None:
        return dict.fromkeys(names, LimitedBy.IN_FLIGHT if waited.by is Blocked.IN_FLIGHT else OTHER)
    limited = dict.fromkeys(names, OTHER)
    if waited.dimension in limited:
        limited[waited.dimension] = LimitedBy.CEILING if waited.at_ceiling else RATE
    return limited
