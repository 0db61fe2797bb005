"""The quota dimensions of one limiter, charged together: those that adapt, those that sleep, and the user's ceilings.

Each attempt has a cost in every dimension. Those that adapt and the ceilings must all let it pass; the one that makes
it wait longest is what limits it. One that sleeps only counts, until a limit shows itself: see controller.dormant.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import define, evolve, field

from controller.adaptive import AdaptiveBucket
from controller.ceiling import Ceiling
from controller.dormant import Dormant
from controller.outcome import Throttled
from controller.permits import APP, OTHER, RATE, Blocked, Booking, Cost, Wait
from policies.contract import Event, Hints, LimitedBy, Refused, Scope, Unknown

PERIOD = 60.0  # s; of a stated limit, where no period is stated with it
UNLEARNED = 0.9  # share of a limit that nobody knows yet, in the dimension that held an attempt back
LARGER = 1.5  # times the mean cost at earlier refusals; it is hardly by chance that much above them
SUSPECT = "tokens"
SILENT = Hints()
BY_RATE = Blocked.RATE  # at hand, as RATE is
PARTS = ("input_tokens", "output_tokens")


@define(eq=False)
class Dimensions:
    """awake: those that adapt, by name, at least one; their order decides where nothing else does."""

    awake: dict[str, AdaptiveBucket]
    dormant: dict[str, Dormant] = field(factory=dict)
    ceilings: dict[str, Ceiling] = field(factory=dict)
    _usual: float | None = field(default=None, init=False)  # LLM tokens of a prompt, at the last refusal without a name
    _woken: str | None = field(default=None, init=False)  # by a refusal, the last one; and the first permit after it
    _woken_until: int = field(default=0, init=False)

    def obstacle(self, cost: Cost, now: float) -> Wait | None:
        """The dimension that makes an attempt wait longest; None if it may go."""
        longest, behind, by_ceiling = 0.0, "", False
        for name, dimension in self.awake.items():
            delay = dimension.delay(cost[name], now)
            if delay > longest:
                longest, behind = delay, name
        if self.ceilings:
            for name, ceiling in self.ceilings.items():
                delay = ceiling.delay(cost[name], now)
                if delay > longest:
                    longest, behind, by_ceiling = delay, name, True
        if not behind:
            return None
        at_ceiling = by_ceiling or self.awake[behind].at_ceiling
        return Wait(BY_RATE, now + longest, behind, at_ceiling)

    def compare(self, limited: dict[str, LimitedBy], now: float) -> None:
        """Of several dimensions, those that did not hold an attempt up were not asked for all they allow.

        Nor does one that has just begun to bind prove anything: what was sent in the period before is no measure of it,
        and a policy that probes then and is refused takes its limit for lower than it is.
        """
        bound = next((name for name, by in limited.items() if by is RATE), None)
        if bound is None:
            return
        for name, dimension in self.awake.items():
            binding, is_learned = dimension.binding, dimension.pace.learned_limit is not None
            if name == bound:
                if not binding.binds(now, PERIOD, is_learned=is_learned):
                    limited[name] = OTHER
            elif binding.idles(now) and is_learned:
                limited[name] = APP

    # -- what is booked

    def take(self, booking: Booking, now: float) -> None:
        """It is admitted."""
        cost, several = booking.cost, len(self.awake) > 1
        for name, dimension in self.awake.items():
            dimension.take(cost[name], now)
            if several:
                dimension.binding.add(dimension.expected(cost[name]), now)
        if self.ceilings:
            booking.entries = {name: ceiling.take(cost[name], now) for name, ceiling in self.ceilings.items()}
        if self.dormant:
            for name, dormant in self.dormant.items():
                dormant.add(booking.number, cost[name], now)

    def put_back(self, booking: Booking, now: float, *, sent: bool) -> None:
        """The upstream refused it, or (not sent) never saw it. What was sent counts against a ceiling all the same."""
        for name in booking.limited_by:
            self.awake[name].put_back(booking.cost[name], now)
        for dormant in self.dormant.values():
            dormant.take_back(booking.number)
        if not sent:
            self._correct(booking, {}, now)

    def settle(self, booking: Booking, true_cost: Cost | None, now: float) -> Cost:
        """It is over; true_cost: None, or without a dimension: as reserved. What it came to."""
        reserved = booking.cost
        true_cost = reserved if true_cost is None else {**reserved, **true_cost}
        for name in booking.limited_by:
            self.awake[name].settle(reserved[name], true_cost[name], now)
        if booking.entries:
            self._correct(booking, true_cost, now)
        if self.dormant:
            for name, dormant in self.dormant.items():
                dormant.correct(booking.number, true_cost[name])
        return true_cost

    def _correct(self, booking: Booking, true_cost: Cost, now: float) -> None:
        """What an admission was for the ceilings, those that are still there."""
        for name, entry in booking.entries.items():
            if name in self.ceilings:
                self.ceilings[name].correct(entry, true_cost.get(name, 0.0), now)

    # -- limits that show themselves

    def hear(self, hints: Mapping[str, Hints], now: float) -> Mapping[str, Hints]:
        """Wake what a limit is stated for; the hints that count."""
        if "tokens" in hints and any(part in hints for part in PARTS):
            hints = {name: told for name, told in hints.items() if name != "tokens"}  # it repeats the tightest of them
        for name in hints.keys() & self.dormant.keys():
            limit = hints[name].limit
            if limit is not None and 0 < limit < float("inf"):
                per_second = limit / (hints[name].period or PERIOD)
                self.awake[name] = self.dormant.pop(name).wake_by_header(now, per_second, hints[name].remaining)
        return hints

    def told(self, name: str, booking: Booking, hints: Hints, now: float) -> Hints:
        """What the policy of a dimension hears of an answer's headers."""
        dimension = self.awake[name]
        told = dimension.in_units(hints)
        if len(self.awake) > 1 and booking.limited_by.get(name) is APP:
            dimension.remains(hints.remaining or 0.0, now)
            told = Hints(limit=told.limit, period=told.period)  # what fills up looks like a window near its end
        return told

    def blame(self, booking: Booking, outcome: Throttled, now: float, *, next_permit: int) -> str:
        """The dimension that a refusal is booked on: the one it names, which wakes, else the most likely one."""
        named = outcome.dimension
        if named is None and outcome.scope is not Scope.OVERLOAD:
            named = self._suspect(booking, now)
        if named in self.dormant:
            self.awake[named] = self.dormant.pop(named).wake_by_refusal(booking, booking.cost[named], now)
            self._woken, self._woken_until = named, next_permit
        blamed = named if named in self.awake else self._likeliest(booking, now)
        if len(self.awake) > 1 and outcome.scope is not Scope.OVERLOAD:
            self.awake[blamed].short(booking.cost[blamed], now)
        return blamed

    # -- what a bad end tells the policies

    def unknown(self, booking: Booking, in_flight: int, now: float) -> dict[str, Event]:
        """Of an end that says nothing of any limit: the events for all policies, by dimension."""
        return {name: Unknown(*each.facts(booking, name, now, in_flight)) for name, each in self.awake.items()}

    def refused(
        self, booking: Booking, outcome: Throttled, others: Mapping[int, Booking], now: float, *, next_permit: int
    ) -> dict[str, Event]:
        """Of a refusal: only the policy of the blamed dimension learns from it. others: attempts that are still open.

        What the refusal is about, and what its headers tell of, may wake.
        """
        hints = self.hear(outcome.hints, now)
        blamed, in_flight = self.blame(booking, outcome, now, next_permit=next_permit), len(others) + 1
        dimension, events = self.awake[blamed], self.unknown(booking, in_flight, now)
        event = Refused(
            *dimension.facts(booking, blamed, now, in_flight),
            scope=outcome.scope,
            retry_after=outcome.retry_after,
            hints=dimension.in_units(hints[blamed]) if blamed in hints else SILENT,
            owed=self._owed(blamed, others),
        )
        was_idle = dimension.binding.was_idle(now, PERIOD)  # whatever it seemed to be when the attempt was admitted
        events[blamed] = evolve(event, limited_by=OTHER) if was_idle else event
        return events

    def _owed(self, name: str, others: Mapping[int, Booking]) -> float:
        """Units that the upstream may yet charge for what is in flight, from before the dimension woke, too."""
        dimension = self.awake[name]
        if not (dimension.late and others):
            return 0.0
        booked_all = name in next(iter(others.values())).limited_by  # the oldest, and so all of them
        reserved = dimension.ledger.in_flight if booked_all else sum(each.cost[name] for each in others.values())
        return dimension.expected(reserved)

    def _suspect(self, booking: Booking, now: float) -> str | None:
        """What a refusal that names no limit was for, if its attempt was admitted before that one was known.

        Prompts that are much larger than those at earlier refusals ran into another limit than those.
        """
        if booking.number < self._woken_until:
            return self._woken
        if SUSPECT not in self.dormant or any(part in self.awake for part in PARTS):
            return None
        typical = self.dormant[SUSPECT].typical(now)
        if typical is None:
            return None
        if self._usual is not None and typical > LARGER * self._usual:
            return SUSPECT
        self._usual = typical
        return None

    def _likeliest(self, booking: Booking, now: float) -> str:
        """Where most of the learned limit is in use. Of one not learned yet, that is if it held this attempt back."""
        best, most = next(iter(self.awake)), 0.0
        if len(self.awake) > 1:
            for name, dimension in self.awake.items():
                share = dimension.binding.share(dimension.pace.learned_limit, now)
                if share is None:
                    share = UNLEARNED if booking.limited_by.get(name) is RATE else 0.0
                if share > most:
                    best, most = name, share
        return best
