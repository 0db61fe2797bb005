"""Policies with one fault each, and the sound law they are made from: what the conformance kit must tell apart."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import ClassVar, Self

from attrs import evolve, field, frozen, validators

from policies.contract import (
    JSON,
    Accepted,
    Admitted,
    Event,
    LimitedBy,
    Pace,
    Reason,
    Refused,
    Remembered,
    Scope,
    Settled,
    Unknown,
)


@frozen(kw_only=True)
class PlainOptions:
    """One is enough to show that options arrive."""

    start_rate: float = field(
        default=2.0,
        validator=[validators.ge(0.1), validators.le(1000.0)],
        metadata={"unit": "units/s", "help": "refill_rate before any answer"},
    )
    increase: float = field(
        default=0.01, validator=validators.gt(0), metadata={"unit": "units/s per s", "help": "of busy time"}
    )


class Plain:
    """A small sound AIMD: the hooks below are where the others fail."""

    options_class: ClassVar[type] = PlainOptions
    claims: ClassVar[frozenset[str]] = frozenset({"success_never_lowers", "one_cut_per_epoch"})

    def __init__(self, options: PlainOptions, *, seed: int, now: float, remembered: Remembered | None = None) -> None:
        del seed, now, remembered
        self.options = options
        self.hold = 0.0  # s, the last pause
        self.newest = self.epoch = -1
        self.probing = False
        self.now = 0.0
        self.first_at: float | None = None  # the first admission
        self.sent: list[tuple[float, float]] = []  # (instant, units) of the last 10 s
        self.pace = Pace(refill_rate=options.start_rate, capacity=1.0)

    def on(self, event: Event) -> Pace:
        """See `policies.contract.Policy.on`."""
        self.now = event.now
        if isinstance(event, Admitted):
            self.newest = max(self.newest, event.permit)
            self.first_at = event.now if self.first_at is None else self.first_at
            self.sent = [(at, units) for at, units in self.sent if at > event.now - 10.0]
            self.sent.append((event.now, event.cost))
        elif isinstance(event, Accepted):
            self.accepted(event)
        elif isinstance(event, Refused):
            self.refused(event)
        return self.pace

    def accepted(self, event: Accepted) -> None:
        if self.is_stale(event):
            return
        if self.probing:
            self.probing = False
            self.pace = evolve(self.pace, unresolved_limit=None, drain=False, reason=Reason.CLEARED)
        elif self.may_grow(event):
            self.grow(self.options.increase * event.cost / event.refill_rate)

    def refused(self, event: Refused) -> None:
        if self.is_stale(event):
            return
        self.hold = min(2 * self.hold, 30.0) if self.probing else 1.0
        cuts = event.scope is not Scope.OVERLOAD and not self.probing
        rate = self.pace.refill_rate * (self.factor(event) if cuts else 1.0)
        self.probing, self.epoch = True, max(self.newest, event.permit)
        self.pace = Pace(
            refill_rate=rate,
            capacity=1.0,
            unresolved_limit=1,
            held_until=event.now + self.hold,
            drain=True,
            reason=Reason.CUT,
        )

    # -- where the others fail

    def is_stale(self, event: Accepted | Refused) -> bool:
        return event.permit <= self.epoch

    def may_grow(self, event: Accepted) -> bool:
        return event.limited_by is LimitedBy.RATE

    def grow(self, units: float) -> None:
        new = min(self.pace.refill_rate + units, 2 * self.pace.refill_rate, self.most())
        if new > self.pace.refill_rate:
            self.pace = evolve(self.pace, refill_rate=new, reason=Reason.INCREASE)

    def most(self) -> float:
        lately = sum(units for at, units in self.sent if at > self.now - 9.999)  # an age in a snapshot is rounded
        elapsed = 0.0 if self.first_at is None else self.now - self.first_at
        return max(self.options.start_rate, 2.2 * lately / min(10.0, max(elapsed, 1.0)))

    def factor(self, event: Refused) -> float:
        del event
        return 0.7

    # -- state

    def snapshot(self, now: float) -> dict[str, JSON]:
        """See `policies.contract.Policy.snapshot`."""
        return {
            "rate": self.pace.refill_rate,
            "hold": self.hold,
            "held_for": max(self.pace.held_until - now, -1.0),
            "newest": self.newest,
            "epoch": self.epoch,
            "probing": self.probing,
            "sending_for": None if self.first_at is None else now - self.first_at,
            "sent": [[now - at, units] for at, units in self.sent],
        }

    @classmethod
    def restore(cls, options: PlainOptions, snapshot: Mapping[str, JSON], *, seed: int, now: float) -> Self:
        """See `policies.contract.Policy`."""
        match snapshot:
            case {
                "rate": float() as rate,
                "hold": float() as hold,
                "held_for": float() as held_for,
                "newest": int() as newest,
                "epoch": int() as epoch,
                "probing": bool() as probing,
                "sending_for": None | float() as sending_for,
                "sent": list() as sent,
            }:
                policy = cls(options, seed=seed, now=now)
                policy.hold, policy.newest, policy.epoch, policy.probing = hold, newest, epoch, probing
                policy.first_at = None if sending_for is None else now - sending_for
                policy.sent = [(now - age, units) for age, units in sent]
                policy.pace = Pace(
                    refill_rate=rate,
                    capacity=1.0,
                    unresolved_limit=1 if probing else None,
                    held_until=now + held_for,
                    drain=probing,
                )
                return policy
        raise ValueError(f"no snapshot of {cls.__name__}")


class CutsPerRefusal(Plain):
    """Every 429 of a burst cuts: 0.7 to the power of the burst."""

    def is_stale(self, event: Accepted | Refused) -> bool:
        return isinstance(event, Accepted) and super().is_stale(event)

    def refused(self, event: Refused) -> None:
        self.probing = False
        super().refused(event)


class GrowsWhileAppLimited(Plain):
    """Any success will do."""

    def may_grow(self, event: Accepted) -> bool:
        return event.limited_by in (LimitedBy.RATE, LimitedBy.APP)


class ChangesItsEvents(GrowsWhileAppLimited):
    """What held an attempt back is written over, so that the growth looks right."""

    def accepted(self, event: Accepted) -> None:
        event.limited_by = LimitedBy.RATE  # type: ignore[misc]  # who has no type checker is not stopped
        super().accepted(event)


class HasAHiddenClock(Plain):
    """Grows with the seconds of the machine, whatever the events say."""

    def grow(self, units: float) -> None:
        super().grow(units * (1 + time.perf_counter() % 1.0))


class KnowsTheHour(Plain):
    """Grows in the first half of every minute of the clock only."""

    def may_grow(self, event: Accepted) -> bool:
        return event.now % 60 < 30 and super().may_grow(event)


class AnswersNan(Plain):
    """Divides by what the server said."""

    def factor(self, event: Refused) -> float:
        wait = event.retry_after
        return 0.7 if wait is None else min(0.7, wait / (1 + wait)) if wait > 0 else 0.7 * wait / (wait or math.nan)


class FreezesAfterACut(Plain):
    """A cut to next to nothing, from which additive growth per success takes for ever."""

    def factor(self, event: Refused) -> float:
        del event
        return 1e-6

    def grow(self, units: float) -> None:
        super().grow(min(units, 1e-3 * self.pace.refill_rate))


class WaitsForItsProbe(Plain):
    """Holds for an hour at a time until the very attempt it sent as a probe is accepted."""

    def on(self, event: Event) -> Pace:
        """Any later attempt waits, too."""
        super().on(event)
        if isinstance(event, Admitted) and self.probing and self.pace.held_until <= event.now:
            self.pace = evolve(self.pace, held_until=event.now + 1e6)
        return self.pace

    def accepted(self, event: Accepted) -> None:
        super().accepted(event)
        self.pace = evolve(self.pace, held_until=event.now)


class GrowsOnStaleSuccess(Plain):
    """What was sent at the old rate raises the new one."""

    def is_stale(self, event: Accepted | Refused) -> bool:
        return isinstance(event, Refused) and super().is_stale(event)


class NeverRecovers(Plain):
    """Cuts, and stays there."""

    def may_grow(self, event: Accepted) -> bool:
        return self.epoch < 0 and super().may_grow(event)


class ForgetsItsHold(Plain):
    """Its snapshot holds an instant, not an age."""

    def snapshot(self, now: float) -> dict[str, JSON]:
        """Means nothing on another clock."""
        held_until = self.pace.held_until if self.probing else -1.0
        return {**super().snapshot(now), "held_for": held_until}


class Raises(Plain):
    """Trips over a success."""

    def grow(self, units: float) -> None:
        raise ZeroDivisionError(f"after {units} units")


class RaisesAtOnce(Plain):
    """Trips over its first event, which is an admission."""

    def on(self, event: Event) -> Pace:
        """Not even once."""
        raise KeyError(event.permit)


class RaisesOnRefusal(Plain):
    """Trips over a refusal."""

    def factor(self, event: Refused) -> float:
        raise OverflowError(f"attempt {event.permit}")


class CannotBeMade(Plain):
    """Wants what nobody gives it."""

    def __init__(self, options: PlainOptions, *, colour: str) -> None:
        raise AssertionError(options, colour)


class AnswersText(Plain):
    """Says it in words."""

    def on(self, event: Event) -> Pace:
        """No Pace at all."""
        return f"fast\n{event.now}"  # type: ignore[return-value]  # that is its fault


class RateIsText(Plain):
    """A pace with a word in the place of a number."""

    def factor(self, event: Refused) -> float:
        del event
        return "half"  # type: ignore[return-value]  # that is its fault

    def refused(self, event: Refused) -> None:
        self.pace = evolve(self.pace, refill_rate=self.factor(event))


class HasNoPace(Plain):
    """Its pace is a secret."""

    @property
    def pace(self) -> Pace:
        """Not to be had."""
        raise AttributeError("no\npace")

    @pace.setter
    def pace(self, pace: Pace) -> None:
        del pace


class ClaimsOneWord(Plain):
    """A word where a set of words is meant."""

    claims = "success_never_lowers"  # type: ignore[assignment]  # that is its fault


class DeclinesWithoutReason(Plain):
    """A set where a mapping is meant."""

    declines: ClassVar[object] = {"limit_is_found"}


class Declines(NeverRecovers):
    """The same, with its reasons."""

    declines: ClassVar[Mapping[str, str]] = {
        "limit_is_found": "it only ever slows down",
        "step_up_is_followed": "it only ever slows down",
    }


class ClaimsNonsense(Plain):
    """Promises what nobody knows."""

    claims: ClassVar[frozenset[str]] = frozenset({"success_never_lower"})


class Unpromising(Plain):
    """Sound, and claims nothing."""

    claims: ClassVar[frozenset[str]] = frozenset()


class HoldsForAMoment(Plain):
    """Waits a fifth of a second after every refusal, and never longer."""

    def refused(self, event: Refused) -> None:
        super().refused(event)
        self.pace = evolve(self.pace, held_until=min(self.pace.held_until, event.now + 0.2))


class IgnoresRefusals(HoldsForAMoment):
    """Its refusals are somebody else's affair."""

    def factor(self, event: Refused) -> float:
        del event
        return 1.0


class GainsByRefusals(Plain):
    """Pushes back."""

    def factor(self, event: Refused) -> float:
        del event
        return 1.5


class CutsOnOverload(Plain):
    """Takes a tired upstream for a smaller quota."""

    def refused(self, event: Refused) -> None:
        super().refused(evolve(event, scope=Scope.UNKNOWN))


class CutsOnLoss(Plain):
    """A broken connection is no refusal."""

    def on(self, event: Event) -> Pace:
        """It is for this one."""
        super().on(event)
        if isinstance(event, Unknown):
            self.pace = evolve(self.pace, refill_rate=0.9 * self.pace.refill_rate)
        return self.pace


class GrowsAtTheEnd(Plain):
    """A success counts when its stream is over, a minute late."""

    def on(self, event: Event) -> Pace:
        """Settled means nothing for a rate."""
        super().on(event)
        if isinstance(event, Settled) and not self.probing and event.limited_by is LimitedBy.RATE:
            self.grow(self.options.increase)
        return self.pace


class GrowsByTheClock(Plain):
    """Additive per second since the last event, asleep or not."""

    last_at = math.inf

    def on(self, event: Event) -> Pace:
        """The square, so that a clock that goes back is no better."""
        self.elapsed, self.last_at = min(event.now - self.last_at, 1e6), event.now
        return super().on(event)

    def grow(self, units: float) -> None:
        new = self.pace.refill_rate + units * (self.elapsed**2 if abs(self.elapsed) < 1e6 else 0.0)
        self.pace = evolve(self.pace, refill_rate=new)


class ForgetsItsEpoch(Plain):
    """Its snapshot leaves out what makes refusals stale."""

    def snapshot(self, now: float) -> dict[str, JSON]:
        """Not all of it."""
        return {**super().snapshot(now), "newest": -1, "epoch": -1}


class SaysOneDoesAnother(Plain):
    """Answers a pace that it does not keep."""

    def on(self, event: Event) -> Pace:
        """Twice as fast as it is."""
        pace = super().on(event)
        return evolve(pace, refill_rate=0.5 * pace.refill_rate)


class SlowsOnSuccess(Plain):
    """Regrets its luck."""

    def grow(self, units: float) -> None:
        self.pace = evolve(self.pace, refill_rate=self.pace.refill_rate / (1 + units))


class GrowsOnLittle(Plain):
    """Counts the seconds of sending and not the pauses between them."""

    def most(self) -> float:
        return math.inf


class ForgetsTheBlock(Plain):
    """An old success that comes while it probes tells it that the block is over: the next refusal is another cut."""

    reopened = False

    def on(self, event: Event) -> Pace:
        """What is stale changes nothing that can be seen."""
        stale = isinstance(event, Accepted) and self.is_stale(event)
        self.reopened = self.probing and (self.reopened or stale)
        return super().on(event)

    def refused(self, event: Refused) -> None:
        again = self.reopened and event.scope is not Scope.OVERLOAD and not self.is_stale(event)
        super().refused(event)
        if again:
            self.reopened = False
            self.pace = evolve(self.pace, refill_rate=self.factor(event) * self.pace.refill_rate)

    def snapshot(self, now: float) -> dict[str, JSON]:
        """With what it believes."""
        return {**super().snapshot(now), "reopened": self.reopened}

    @classmethod
    def restore(cls, options: PlainOptions, snapshot: Mapping[str, JSON], *, seed: int, now: float) -> Self:
        """See `policies.contract.Policy`."""
        policy = super().restore(options, snapshot, seed=seed, now=now)
        policy.reopened = snapshot.get("reopened") is True
        return policy


class GrabsWhatOthersLeave(Plain):
    """Who has much takes more, and hardly yields; who has little is refused just as often, and does."""

    def grow(self, units: float) -> None:
        super().grow(4 * units if self.pace.refill_rate > 2.5 else units)

    def factor(self, event: Refused) -> float:
        return 0.97 if self.pace.refill_rate > 2.5 else super().factor(event)
