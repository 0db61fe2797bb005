"""Who may send, decided synchronously: the quota dimensions of one (upstream, key, model), admitted together.

The `Limiter` holds one `AdaptiveBucket` for each dimension, the cap on attempts in flight, the server's hold and
the holds after a row of bad ends. It admits an attempt when all of them allow it, with no await between look
and booking, and returns the decisions it took instead of calling anybody back.

A permit goes through three moments: admitted; accepted (2xx headers); settled, once. What it costs is reserved at the
first and settled at the last: a refused attempt gets its reservation back, once; a lost one is settled by what was
seen of it, else as reserved; one that was never sent costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import define, field

from controller.adaptive import AdaptiveBucket
from controller.ceiling import Ceiling
from controller.dimensions import SILENT, Dimensions
from controller.dormant import Dormant
from controller.holds import Holds, restrain_alike
from controller.outcome import TRANSIENT, Completed, Failed, Outcome, Throttled
from controller.permits import Blocked, Booking, Cost, Decision, Settlement, Statistics, Wait, limited_by
from controller.room import Room
from policies.contract import Accepted, Admitted, Event, Hints, Settled

SLACK = 0.05  # s added to a server's hold: clocks differ, and a retry a moment early is refused again
FULL, ONE_AT_A_TIME = Wait(Blocked.IN_FLIGHT), Wait(Blocked.PROBE)
AS_EVER = Settlement()  # nothing changed
NONE: tuple[Decision, ...] = ()


@define(eq=False)
class Limiter:
    """The dimensions of one (upstream, key, model) together. Instants are monotonic seconds."""

    dimensions: dict[str, AdaptiveBucket]
    max_in_flight: int
    dormant: dict[str, Dormant] = field(factory=dict)
    ceilings: dict[str, Ceiling] = field(factory=dict)
    room: Room = field(factory=Room)
    _quotas: Dimensions = field(init=False)
    _open: dict[int, Booking] = field(factory=dict, init=False)
    _next: int = field(default=0, init=False)
    accepted_open: int = field(default=0, init=False)  # attempts whose answer is on its way
    _holds: Holds = field(factory=Holds, init=False)

    def __attrs_post_init__(self) -> None:
        self._quotas = Dimensions(self.dimensions, self.dormant, self.ceilings)
        self.sum_up()

    # -- admission

    def admit(self, cost: Cost, now: float, *, owner: str = "", waited: Wait | None = None) -> Booking | Wait:
        """A booking, or what to wait for. waited: what the head of the queue was told last, None if nothing."""
        wait = self._obstacle(cost, now)
        if wait is not None:
            return wait
        limited, number, is_open = limited_by(self.dimensions, waited), self._next, self._open
        if len(limited) > 1:
            self._quotas.compare(limited, now)
        booking = Booking(number, owner, now, cost, limited, len(is_open))
        self._next = number + 1
        is_open[number] = booking
        self._quotas.take(booking, now)
        for name, dimension in self.dimensions.items():
            self._tell(name, dimension, Admitted(*dimension.facts(booking, name, now, len(is_open))))
        return booking

    def _obstacle(self, cost: Cost, now: float) -> Wait | None:
        holds = self._holds
        if len(self._open) >= holds.cap:
            return FULL
        if now < holds.until:
            return Wait(Blocked.HOLD, holds.until)
        if holds.probes is not None and holds.probing(self._open):
            return ONE_AT_A_TIME
        return self._quotas.obstacle(cost, now)

    @property
    def held_until(self) -> float:
        """Nothing is sent before this instant."""
        return self._holds.until

    @property
    def asked_until(self) -> float:
        """The latest instant that the upstream named for coming back."""
        return self._holds.server_hold

    def sum_up(self) -> None:
        """What all dimensions come to now; also to be called when one was changed from outside."""
        most = self.max_in_flight if self.room.limit is None else min(self.room.limit, self.max_in_flight)
        self._holds.sum_up([dimension.pace for dimension in self.dimensions.values()], most, self._next)

    # -- what becomes of an attempt

    def accept(self, booking: Booking, hints: Mapping[str, Hints], now: float) -> tuple[Decision, ...]:
        """The upstream took it (2xx headers); a second call changes nothing."""
        if booking.accepted:
            return ()
        booking.accepted = True
        open_now, beside, in_flight = self.accepted_open, booking.beside, len(self._open)
        self.accepted_open = open_now + 1
        if open_now < beside:
            beside = open_now
        if self._holds.unheard.end() | self.room.accepted(booking.number, in_flight, beside, self._next):
            self.sum_up()
        if hints:
            hints = self._hear(hints, now)
        decisions = NONE
        for name, dimension in self.dimensions.items():
            told = self._quotas.told(name, booking, hints[name], now) if name in hints else SILENT
            its = dimension.facts(booking, name, now, in_flight)
            decisions += self._tell(name, dimension, Accepted(*its, told))
        self._pause(now)
        return decisions

    def _hear(self, hints: Mapping[str, Hints], now: float) -> Mapping[str, Hints]:
        """Those that count; what they are about may wake."""
        awake = len(self.dimensions)
        hints = self._quotas.hear(hints, now)
        if len(self.dimensions) > awake:
            self.sum_up()
        return hints

    def settle(
        self,
        booking: Booking,
        outcome: Outcome,
        now: float,
        *,
        first_token_at: float | None = None,
        true_cost: Cost | None = None,
    ) -> Settlement:
        """Book the end of an attempt, exactly once.

        first_token_at: instant of its first payload, if one came. true_cost: by usage; None: as reserved.
        """
        late = not booking.accepted and isinstance(outcome, Completed)
        decisions = self.accept(booking, {}, now) if late else NONE
        assert booking.number in self._open, "settled twice"
        in_flight = len(self._open)
        del self._open[booking.number]
        self.accepted_open -= booking.accepted
        if isinstance(outcome, Throttled):
            return Settlement(decisions=self._refused(booking, outcome, now), spends_budget=False)
        if not booking.accepted:
            assert isinstance(outcome, Failed), "a completed attempt is an accepted one"
            return self._lost(booking, outcome, true_cost, in_flight, now)
        self._answered(booking, outcome, now)
        came_to = self._quotas.settle(booking, true_cost, now)
        for name, dimension in self.dimensions.items():
            used, its = came_to[name] / dimension.unit, dimension.facts(booking, name, now, in_flight)
            decisions += self._tell(name, dimension, Settled(*its, used, first_token_at))
        self._pause(now)
        spends_budget = not self._holds.broken.blames_upstream
        if spends_budget and not decisions:
            return AS_EVER
        return Settlement(decisions=decisions, spends_budget=spends_budget)

    def _answered(self, booking: Booking, outcome: Completed | Failed, now: float) -> None:
        """An accepted attempt came to a whole answer, or to none: a maintenance page, streams that are cut."""
        if isinstance(outcome, Completed) or outcome.kept:
            changed = self._holds.broken.end()
        else:
            changed = outcome.kind in TRANSIENT
            if changed:
                self._holds.broken.add(booking, self._next, now)
        if changed:
            self.sum_up()

    def _refused(self, booking: Booking, outcome: Throttled, now: float) -> tuple[Decision, ...]:
        if outcome.retry_after is not None:
            self._holds.server_hold = max(self._holds.server_hold, now + outcome.retry_after + SLACK)
            self.sum_up()
        self._quotas.put_back(booking, now, sent=True)
        beside = max(booking.beside, len(self._open))
        crowded = self.room.crowded(beside, named=outcome.dimension, newest=self._next)
        self.sum_up()
        if crowded:
            events = self._quotas.unknown(booking, len(self._open) + 1, now)
        else:
            events = self._quotas.refused(booking, outcome, self._open, now, next_permit=self._next)
            self.sum_up()  # something may have woken
        decisions = self._tell_all(events, now)
        full = crowded and len(self._open) >= self._holds.cap
        if self.held_until <= now and not full:  # the refused prompt would be back at once
            self._holds.unheard.add(booking, self._next, now, at_once=True)
            self.sum_up()
            self._pause(now)
        return decisions

    def _lost(
        self, booking: Booking, outcome: Failed, true_cost: Cost | None, in_flight: int, now: float
    ) -> Settlement:
        if outcome.sent:
            self._quotas.settle(booking, true_cost, now)
        else:
            self._quotas.put_back(booking, now, sent=False)
        if outcome.kind in TRANSIENT:
            self._holds.unheard.add(booking, self._next, now)
            self.sum_up()
        decisions = self._tell_all(self._quotas.unknown(booking, in_flight, now), now)
        return Settlement(decisions=decisions, spends_budget=not self._holds.unheard.blames_upstream)

    # -- telling the policies

    def _tell_all(self, events: Mapping[str, Event], now: float) -> tuple[Decision, ...]:
        decisions = NONE
        for name, event in events.items():
            decisions += self._tell(name, self.dimensions[name], event)
        self._pause(now)
        return decisions

    def _tell(self, name: str, dimension: AdaptiveBucket, event: Event) -> tuple[Decision, ...]:
        """One policy hears of an event; the decision it leads to, if any."""
        before, old, now = dimension.pace, dimension.bucket.refill_rate, event.now
        reason = dimension.tell(event)
        if reason is None:
            return NONE
        if not restrain_alike(before, dimension.pace):
            self.sum_up()
        unit, new = dimension.unit, dimension.bucket.refill_rate
        return (Decision(now, name, unit * old, unit * new, reason, self._holds.until),)

    def _pause(self, now: float) -> None:
        if self._holds.pause_until > now:
            for dimension in self.dimensions.values():
                dimension.hold_back(self._holds.pause_until, now)

    # -- questions

    def statistics(self, now: float) -> Statistics:
        """The state in one look."""
        return Statistics(
            in_flight=len(self._open),
            max_in_flight=self.max_in_flight,
            refill_rate={name: each.unit * each.bucket.refill_rate for name, each in self.dimensions.items()},
            held_for=max(self.held_until - now, 0.0),
            probing=self._holds.probes is not None,
        )
