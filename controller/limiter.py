"""Who may send, decided synchronously: the quota dimensions of one (upstream, key, model), admitted together.

The `Limiter` holds one `AdaptiveBucket` for each dimension, the cap on attempts in flight, the server's hold and
the holds after a row of bad ends. It admits an attempt when all of them allow it, with no await between look
and booking, and returns the decisions it took instead of calling anybody back.

A permit goes through three moments: admitted; accepted (2xx headers); settled, once.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import define, field

from controller.adaptive import AdaptiveBucket, Row
from controller.outcome import TRANSIENT, Completed, Failed, Outcome, Throttled
from controller.permits import Blocked, Booking, Cost, Decision, Facts, Settlement, Statistics, Wait, limited_by
from policies.contract import (
    Accepted,
    Admitted,
    Event,
    Hints,
    LimitedBy,
    Refused,
    Scope,
    Settled,
    Unknown,
)

SLACK = 0.05  # s added to a server's hold: clocks differ, and a retry a moment early is refused again

SILENT = Hints()
FULL, ONE_AT_A_TIME = Wait(by=Blocked.IN_FLIGHT), Wait(by=Blocked.PROBE)


@define(eq=False)
class Limiter:
    """The dimensions of one (upstream, key, model) together. Instants are monotonic seconds."""

    dimensions: dict[str, AdaptiveBucket]
    max_in_flight: int
    _open: dict[int, Booking] = field(factory=dict, init=False)
    _next: int = field(default=0, init=False)
    _server_hold: float = field(default=float("-inf"), init=False)  # instant; Retry-After, never shortened
    _probes_from: int | None = field(default=None, init=False)  # permits from here on count against the probe limit
    _unheard: Row = field(factory=Row, init=False)  # no word, or refused with nobody holding; ended by an accept
    _broken: Row = field(factory=Row, init=False)  # accepted, but no whole answer; ended by a completion
    # What paces, rows and the server come to together, looked at when one has changed: the head of the queue asks far
    # more often.
    held_until: float = field(default=float("-inf"), init=False)  # nothing is sent before this instant
    _pause_until: float = field(default=float("-inf"), init=False)  # the same without the policies' holds
    _cap: int = field(default=0, init=False)
    _probes: int | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._sum_up()

    # -- admission

    def admit(self, cost: Cost, now: float, *, owner: str = "", waited: Wait | None = None) -> Booking | Wait:
        """A booking, or what to wait for. waited: what the head of the queue was told last, None if nothing."""
        wait = self._obstacle(cost, now)
        if wait is not None:
            return wait
        limited: dict[str, LimitedBy] = {}
        for name in self.dimensions:
            limited[name] = limited_by(name, waited)
        booking = Booking(number=self._next, owner=owner, admitted_at=now, cost=cost, limited_by=limited)
        self._next += 1
        self._open[booking.number] = booking
        for name, dimension in self.dimensions.items():
            dimension.bucket.take(cost[name], now)
            if dimension.tell(Admitted(**self._facts(booking, name, now))) is not None:
                self._sum_up()
        return booking

    def _obstacle(self, cost: Cost, now: float) -> Wait | None:
        if len(self._open) >= self._cap:
            return FULL
        if now < self.held_until:
            return Wait(by=Blocked.HOLD, until=self.held_until)
        if self._probes is not None and self._unresolved() >= self._probes:
            return ONE_AT_A_TIME
        longest, behind = 0.0, ""
        for name, dimension in self.dimensions.items():
            delay = dimension.bucket.delay(cost[name], now)
            if delay > longest:
                longest, behind = delay, name
        if not behind:
            return None
        at_ceiling = self.dimensions[behind].at_ceiling
        return Wait(by=Blocked.RATE, until=now + longest, dimension=behind, at_ceiling=at_ceiling)

    @property
    def accepted_open(self) -> int:
        """Attempts whose answer is on its way."""
        return sum(booking.accepted for booking in self._open.values())

    def _unresolved(self) -> int:
        """Attempts admitted since the probing began that have not shown yet what they were to show."""
        first, whole = self._probes_from or 0, self._broken.suspicious
        return sum(whole or not each.accepted for number, each in self._open.items() if number >= first)

    def _sum_up(self) -> None:
        hold = self._pause_until = max(self._server_hold, self._unheard.held_until, self._broken.held_until)
        cap, probes = self.max_in_flight, 1 if self._unheard.suspicious or self._broken.suspicious else None
        for dimension in self.dimensions.values():
            pace = dimension.pace
            hold = max(hold, pace.held_until)
            if pace.in_flight_limit is not None:
                cap = min(cap, pace.in_flight_limit)
            if pace.unresolved_limit is not None:
                probes = pace.unresolved_limit if probes is None else min(probes, pace.unresolved_limit)
        self.held_until, self._cap = hold, max(cap, 1)
        self._probes = None if probes is None else max(probes, 1)
        if self._probes is None:
            self._probes_from = None
        elif self._probes_from is None:
            self._probes_from = self._next

    # -- what becomes of an attempt

    def accept(self, booking: Booking, hints: Mapping[str, Hints], now: float) -> tuple[Decision, ...]:
        """The upstream took it (2xx headers); a second call changes nothing."""
        if booking.accepted:
            return ()
        booking.accepted = True
        if self._unheard.end():
            self._sum_up()
        events: dict[str, Event] = {}
        for name in self.dimensions:
            events[name] = Accepted(**self._facts(booking, name, now), hints=hints.get(name, SILENT))
        return self._tell(now, events)

    def settle(
        self, booking: Booking, outcome: Outcome, now: float, *, first_token_at: float | None = None
    ) -> Settlement:
        """Book the end of an attempt, exactly once. first_token_at: instant of its first payload, if one came."""
        late = isinstance(outcome, Completed) and not booking.accepted
        before = self.accept(booking, {}, now) if late else ()
        assert booking.number in self._open, "settled twice"
        facts: dict[str, Facts] = {}
        for name in self.dimensions:
            facts[name] = self._facts(booking, name, now)
        del self._open[booking.number]
        match outcome:
            case Throttled():
                return Settlement(decisions=self._refused(booking, outcome, facts, now), spends_budget=False)
            case Completed() | Failed() if booking.accepted:
                self._answered(booking, outcome, now)
                events: dict[str, Event] = {}
                for name, its in facts.items():
                    events[name] = Settled(**its, true_cost=booking.cost[name], first_token_at=first_token_at)
                decisions = before + self._tell(now, events)
                return Settlement(decisions=decisions, spends_budget=not self._broken.blames_upstream)
            case Failed():
                return self._lost(booking, outcome, facts, now)
            case _:
                raise AssertionError("a completed attempt is an accepted one")

    def _answered(self, booking: Booking, outcome: Completed | Failed, now: float) -> None:
        """An accepted attempt came to a whole answer, or to none: a maintenance page, streams that are cut."""
        if isinstance(outcome, Completed) or outcome.kept:
            changed = self._broken.end()
        else:
            changed = outcome.kind in TRANSIENT
            if changed:
                self._broken.add(booking, self._next, now)
        if changed:
            self._sum_up()

    def _refused(
        self, booking: Booking, outcome: Throttled, facts: Mapping[str, Facts], now: float
    ) -> tuple[Decision, ...]:
        if outcome.retry_after is not None:
            self._server_hold = max(self._server_hold, now + outcome.retry_after + SLACK)
            self._sum_up()
        blamed = outcome.dimension if outcome.dimension in self.dimensions else self._likeliest(booking)
        events: dict[str, Event] = {}
        for name, dimension in self.dimensions.items():
            dimension.bucket.put_back(booking.cost[name], now)
            scope = outcome.scope if name == blamed else Scope.OVERLOAD  # the others hold and learn nothing
            events[name] = Refused(
                **facts[name], scope=scope, retry_after=outcome.retry_after, hints=outcome.hints.get(name, SILENT)
            )
        decisions = self._tell(now, events)
        if self.held_until <= now:  # no hint, and a policy that does not hold: the refused prompt would be back at once
            self._unheard.add(booking, self._next, now, at_once=True)
            self._sum_up()
            self._pause(now)
        return decisions

    def _likeliest(self, booking: Booking) -> str:
        """The dimension that held this attempt back is the one most likely bound upstream, too."""
        bound = [name for name, by in booking.limited_by.items() if by is LimitedBy.RATE]
        return bound[0] if bound else next(iter(self.dimensions))

    def _lost(self, booking: Booking, outcome: Failed, facts: Mapping[str, Facts], now: float) -> Settlement:
        for name, dimension in self.dimensions.items():
            if not outcome.sent:
                dimension.bucket.put_back(booking.cost[name], now)
        if outcome.kind in TRANSIENT:
            self._unheard.add(booking, self._next, now)
            self._sum_up()
        decisions = self._tell(now, {name: Unknown(**facts[name]) for name in self.dimensions})
        return Settlement(decisions=decisions, spends_budget=not self._unheard.blames_upstream)

    # -- telling the policies

    def _facts(self, booking: Booking, name: str, now: float) -> Facts:
        return {  # twice as fast as Facts(...), and asked three times for each attempt
            "now": now,
            "permit": booking.number,
            "admitted_at": booking.admitted_at,
            "cost": booking.cost[name],
            "limited_by": booking.limited_by[name],
            "in_flight": len(self._open),
            "refill_rate": self.dimensions[name].bucket.refill_rate,
        }

    def _tell(self, now: float, events: Mapping[str, Event]) -> tuple[Decision, ...]:
        decisions: tuple[Decision, ...] = ()
        for name, event in events.items():
            dimension = self.dimensions[name]
            old = dimension.bucket.refill_rate
            reason = dimension.tell(event)
            if reason is not None:
                self._sum_up()
                new = dimension.bucket.refill_rate
                decisions += (Decision(now, name, old, new, reason, self.held_until),)
        self._pause(now)
        return decisions

    def _pause(self, now: float) -> None:
        if self._pause_until > now:
            for dimension in self.dimensions.values():
                dimension.hold_back(self._pause_until, now)

    # -- questions

    def statistics(self, now: float) -> Statistics:
        """The state in one look."""
        return Statistics(
            in_flight=len(self._open),
            max_in_flight=self.max_in_flight,
            refill_rate={name: dimension.bucket.refill_rate for name, dimension in self.dimensions.items()},
            held_for=max(self.held_until - now, 0.0),
            probing=self._probes is not None,
        )
