"""The quota dimensions of one limiter, charged together: those that adapt, those that sleep, and the user's ceilings.

Each attempt has a cost in every dimension. Those that adapt and the ceilings must all let it pass; the one that makes
it wait longest is what limits it. One that sleeps only counts, until a limit shows itself: see controller.dormant.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import define, field

from controller.adaptive import AdaptiveBucket
from controller.ceiling import Ceiling
from controller.dormant import Dormant
from controller.outcome import Throttled
from controller.permits import Blocked, Booking, Cost, Wait
from policies.contract import Hints, LimitedBy

PERIOD = 60.0  # s; of a stated limit, where no period is stated with it
UNLEARNED = 0.9  # share of a limit that nobody knows yet, in the dimension that held an attempt back
PARTS = ("input_tokens", "output_tokens")


@define(eq=False)
class Dimensions:
    """awake: those that adapt, by name, at least one; their order decides where nothing else does."""

    awake: dict[str, AdaptiveBucket]
    dormant: dict[str, Dormant] = field(factory=dict)
    ceilings: dict[str, Ceiling] = field(factory=dict)

    def obstacle(self, cost: Cost, now: float) -> Wait | None:
        """The dimension that makes an attempt wait longest; None if it may go."""
        longest, behind, by_ceiling = 0.0, "", False
        for name, dimension in self.awake.items():
            delay = dimension.delay(cost[name], now)
            if delay > longest:
                longest, behind = delay, name
        for name, ceiling in self.ceilings.items():
            delay = ceiling.delay(cost[name], now)
            if delay > longest:
                longest, behind, by_ceiling = delay, name, True
        if not behind:
            return None
        at_ceiling = by_ceiling or self.awake[behind].at_ceiling
        return Wait(by=Blocked.RATE, until=now + longest, dimension=behind, at_ceiling=at_ceiling)

    # -- what is booked

    def take(self, booking: Booking, now: float) -> None:
        """It is admitted."""
        cost, several = booking.cost, len(self.awake) > 1
        for name, dimension in self.awake.items():
            dimension.take(cost[name], now)
            if several:
                dimension.use(cost[name], now)
        if self.ceilings:
            booking.entries = {name: ceiling.take(cost[name], now) for name, ceiling in self.ceilings.items()}
        for name, dormant in self.dormant.items():
            dormant.add(booking.number, cost[name], now)

    def put_back(self, booking: Booking, now: float, *, sent: bool) -> None:
        """The upstream refused it, or (not sent) never saw it. What was sent counts against a ceiling all the same."""
        for name in booking.limited_by:
            self.awake[name].put_back(booking.cost[name], now)
        for dormant in self.dormant.values():
            dormant.take_back(booking.number)
        if not sent:
            for name, entry in booking.entries.items():
                self.ceilings[name].correct(entry, 0.0, now)

    def settle(self, booking: Booking, true_cost: Cost | None, now: float) -> Cost:
        """It is over; true_cost: None, or without a dimension: as reserved. What it came to."""
        true_cost = booking.cost if true_cost is None else {**booking.cost, **true_cost}
        for name in booking.limited_by:
            self.awake[name].settle(booking.cost[name], true_cost[name], now)
        for name, entry in booking.entries.items():
            self.ceilings[name].correct(entry, true_cost[name], now)
        return true_cost

    # -- limits that show themselves

    def hear(self, hints: Mapping[str, Hints], now: float) -> Mapping[str, Hints]:
        """Wake what a limit is stated for; the hints that count."""
        if "tokens" in hints and any(part in hints for part in PARTS):
            hints = {name: told for name, told in hints.items() if name != "tokens"}  # it repeats the tightest of them
        for name in hints.keys() & self.dormant.keys():
            limit = hints[name].limit
            if limit is not None and 0 < limit < float("inf"):
                self.awake[name] = self.dormant.pop(name).wake(now, limit=limit / (hints[name].period or PERIOD))
        return hints

    def blame(self, booking: Booking, outcome: Throttled, now: float, *, next_permit: int) -> str:
        """The dimension that a refusal is booked on: the one it names, which wakes, else the most likely one."""
        named = outcome.dimension
        if named in self.dormant:
            self.awake[named] = self.dormant.pop(named).wake(now)
            self.awake[named].first_permit = next_permit  # what it begins with is what the others would tell
        return named if named in self.awake else self._likeliest(booking, now)

    def _likeliest(self, booking: Booking, now: float) -> str:
        """Where most of the learned limit is in use. Of one not learned yet, that is if it held this attempt back."""
        best, most = next(iter(self.awake)), 0.0
        if len(self.awake) > 1:
            for name, dimension in self.awake.items():
                share, bound = dimension.share(now), booking.limited_by.get(name) is LimitedBy.RATE
                if share is None:
                    share = UNLEARNED if bound else 0.0
                if share > most:
                    best, most = name, share
        return best
