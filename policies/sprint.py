"""Fill each window as fast as it can be filled, then wait for its end: for short jobs on upstreams that say when.

Theory. A window forgives nothing before its end and gives everything back at once, so that within it nothing is gained
by going slowly. A job that ends within a window or two is done soonest by a sprint; one that runs for hours gains
nothing, pays one refusal per window, and takes the whole window from the other clients of the key (it is not fair).

    refused, to come back in `drip` seconds or more   a window is spent: hold as long as it says, keep the rate
    refused, to come back sooner, or no word          the limit comes back drop by drop, or nobody knows: an AIMD cut
    headers say that less than the cost is left       hold until it is back; no refusal is needed

A sprint overshoots by what it sends until the refusal has come. So the units that went through between two ends of a
hold are counted, and near that count only BRAKED attempts may be unresolved at a time.

Rate, epochs, holds and the single probe after a hold are those of an `Aimd` held inside, which takes a spent window as
an overload: a pause that proves nothing against the rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Self, assert_never

from attrs import evolve, frozen

from policies.aimd import CREEPS, PACED_SLACK, Aimd, AimdOptions
from policies.allowance import Allowance
from policies.contract import (
    JSON,
    Accepted,
    Admitted,
    Event,
    Pace,
    Reason,
    Refused,
    Remembered,
    Scope,
    Settled,
    Unknown,
)
from policies.fields import number, number_in, part_of

BRAKED = 2  # attempts unresolved near the end of a window
NEAR = 0.03  # of a window, and 2 units: as near its end is expected on either side
PERIOD = 60.0  # s; what a limit in headers is meant for, where they do not say
FRESH = 300.0  # s; headers older than this say nothing


@frozen(kw_only=True)
class SprintOptions:
    """A larger fastest_rate fills a window sooner and overshoots its end by more."""

    start_rate: float = number(20.0, low=1e-6, high=1e6, unit="units/s", text="refill_rate before any answer")
    fastest_rate: float = number(50.0, low=1e-6, high=1e6, unit="units/s", text="no sprint is faster")
    drip: float = number(5.0, low=0, high=3600, unit="s", text="a shorter Retry-After is no window's end")
    longest_hold: float = number(900.0, low=1, high=86400, unit="s", text="one attempt so often, however far the reset")


class Sprint:
    """One sprinting controller; `wall` is the units that the last window took, None before one has ended."""

    options_class: ClassVar[type] = SprintOptions
    claims: ClassVar[frozenset[str]] = frozenset({"success_never_lowers", "one_cut_per_epoch"})
    declines: ClassVar[Mapping[str, str]] = {
        "growth_is_measured_by_what_was_sent": CREEPS,
        "key_is_shared": "whoever meets the end of a hold first takes as much as he can, and the others what is left",
    }

    def __init__(self, options: SprintOptions, *, seed: int, now: float, remembered: Remembered | None = None) -> None:
        self.options = options
        self.wall: float | None = None
        self.allowance = Allowance(PERIOD)
        self._aimd = Aimd(_inner(options), seed=seed, now=now, remembered=remembered)
        self._window_ended = False  # the hold in force is one for a window's end
        self._sent = 0.0  # units admitted since the last hold
        self._taken = 0.0  # and accepted
        self._newest = -1  # highest permit admitted so far
        self._epoch = -1  # permits up to this one are stale
        self._pace = self._aimd.pace
        self._answer(now, 1.0)

    @property
    def pace(self) -> Pace:
        """The answer in force."""
        return self._pace

    def on(self, event: Event) -> Pace:
        """See `policies.contract.Policy.on`."""
        match event:
            case Admitted():
                self._newest = max(self._newest, event.permit)
                self._sent += event.cost
                self._aimd.on(event)
                self.allowance.spend(event)
                self._answer(event.now, event.cost)
            case Accepted():
                self._accepted(event)
            case Refused():
                if event.permit > self._epoch:
                    self._refused(event)
            case Settled() | Unknown():
                pass
            case _:
                assert_never(event)
        return self._pace

    def _accepted(self, event: Accepted) -> None:
        self._taken += event.cost  # those of before a hold, too: they went through in the window that it ended
        self.allowance.hear(event)
        if event.permit <= self._epoch:
            return
        before = self._aimd.pace
        after = self._aimd.on(event)
        if after is not before and after.reason is Reason.CLEARED:
            if self._window_ended:
                self.wall = self._taken - event.cost
            self._window_ended, self._taken, self._sent = False, event.cost, event.cost
        self._answer(event.now, event.cost)

    def _refused(self, event: Refused) -> None:
        self.allowance.hear(event)
        told = event.retry_after
        if told is None and event.hints.remaining is not None and event.hints.remaining < event.cost:
            told = event.hints.reset
        if told is not None and self.options.drip <= told < math.inf:
            self._window_ended = True
            event = evolve(event, scope=Scope.OVERLOAD)
        self._aimd.on(event)
        self._epoch = max(self._newest, event.permit)
        self._answer(event.now, event.cost)

    def _answer(self, now: float, cost: float) -> None:
        inner, held_until = self._aimd.pace, self._aimd.pace.held_until
        if now - self.allowance.told_at < FRESH:
            held_until = max(held_until, min(self.allowance.free_at(now, cost), now + self.options.longest_hold))
        rate = min(inner.refill_rate, self.options.fastest_rate)
        near = self.wall is not None and abs(self._sent - self.wall) <= NEAR * self.wall + 2 * cost
        own = 1 if self._unsure(now, cost) else BRAKED if near else None
        pace = Pace(
            refill_rate=rate,
            capacity=1.0 + PACED_SLACK * rate,
            unresolved_limit=inner.unresolved_limit or own,
            held_until=held_until,
            drain=inner.drain or held_until > now,
            learned_limit=inner.learned_limit,
            reason=Reason.HOLD if inner.held_until < held_until and held_until > now else inner.reason,
        )
        # An equal answer is the same object: nothing changed.
        self._pace = self._pace if pace == self._pace else pace

    def _unsure(self, now: float, cost: float) -> bool:
        """The announced end has passed, and no answer has told yet what is left now."""
        heard = now - self.allowance.told_at < FRESH
        return heard and now >= self.allowance.ends_at and self.allowance.left < min(cost, self.allowance.limit)

    def snapshot(self, now: float) -> dict[str, JSON]:
        """See `policies.contract.Policy.snapshot`."""
        return {
            "held_for": max(self._pace.held_until - now, -1.0),
            "drain": self._pace.drain,
            "unresolved_limit": self._pace.unresolved_limit,
            "reason": self._pace.reason.value,
            "wall": self.wall,
            "window_ended": self._window_ended,
            "sent": self._sent,
            "taken": self._taken,
            "newest": self._newest,
            "epoch": self._epoch,
            "aimd": self._aimd.snapshot(now),
            "allowance": self.allowance.snapshot(now),
        }

    @classmethod
    def restore(cls, options: SprintOptions, snapshot: Mapping[str, JSON], *, seed: int, now: float) -> Self:
        """See `policies.contract.Policy.restore`."""
        policy = cls(options, seed=seed, now=now)
        policy._aimd = Aimd.restore(_inner(options), part_of(snapshot, "aimd"), seed=seed, now=now)
        policy.allowance = Allowance.restore(part_of(snapshot, "allowance"), now)
        policy.wall = None if snapshot.get("wall") is None else number_in(snapshot, "wall")
        policy._window_ended = snapshot.get("window_ended") is True
        policy._sent, policy._taken = number_in(snapshot, "sent"), number_in(snapshot, "taken")
        policy._newest, policy._epoch = int(number_in(snapshot, "newest")), int(number_in(snapshot, "epoch"))
        braked = snapshot.get("unresolved_limit")
        rate = min(policy._aimd.pace.refill_rate, options.fastest_rate)
        policy._pace = evolve(
            policy._aimd.pace,
            refill_rate=rate,
            capacity=1.0 + PACED_SLACK * rate,
            unresolved_limit=None if braked is None else int(number_in(snapshot, "unresolved_limit")),
            held_until=now + number_in(snapshot, "held_for"),
            drain=snapshot.get("drain") is True,
            reason=Reason(snapshot.get("reason")),
        )
        return policy


def _inner(options: SprintOptions) -> AimdOptions:
    return AimdOptions(start_rate=min(options.start_rate, options.fastest_rate))
