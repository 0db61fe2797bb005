"""Additive increase, multiplicative decrease: the literal law.

Theory. Chiu and Jain (1989) show that among linear controls only additive increase with multiplicative decrease
converges to an efficient and fair share. TCP (RFC 5681) adds slow start, one reaction per round trip, and the
rule that a sender which was not held back by its window must not grow it (RFC 9002, section 7.8). Here the
window is a refill_rate in units per second and the loss is a 429:

    slow start        until the first cut: a success doubles the rate per `doubling_time` of busy time
    increase          after it: + increase_per_second * cost / refill_rate per success, which is
                      increase_per_second of busy time; "+ a per success" would be exponential, since successes
                      arrive at the rate itself
    decrease          refill_rate *= decrease_factor, once per epoch
    hold and probe    after a cut nothing is sent for `hold` seconds (doubling while probes are refused), then
                      one attempt at a time until one is accepted

Rules for editors. Only an attempt admitted after the last cut and limited by this rate may raise it. A refused
probe says that the quota is still spent, not that the rate is still too high: it lengthens the hold and cuts
nothing. An overload is a hold without a cut.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Self, assert_never

from attrs import evolve, frozen

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
from policies.fields import number, number_in
from policies.sent import Sent

MOST_OVER_SENT = 2.2  # slow start never asks for more than this times what was really sent (policies.sent)
PACED_SLACK = 0.010  # s of saved-up rate; real timers lose 18 % at 1,000/s with none (measured)
FRESH, HINT = 600.0, 3600.0  # s; a limit learnt more recently is used at once; is approached from a quarter of it
CREEPS = "after a cut it adds for every busy second: those of bursts add up, and the pauses between take nothing off"
SLOWLY = "who was cut deeply grows slowly, as the increase is in proportion to the rate, so a lead may last for hours"
# At hand: Python 3.11 takes a call of its own to look a member of an enum up.
RATE, SLOW_START, INCREASE = LimitedBy.RATE, Reason.SLOW_START, Reason.INCREASE


@frozen(kw_only=True)
class AimdOptions:
    """What a user may set; larger values of every increase make refusals more frequent."""

    start_rate: float = number(5.0, low=1e-6, high=1e6, unit="units/s", text="refill_rate before any answer")
    doubling_time: float = number(2.0, low=0.1, high=3600, unit="s", text="of busy time, in slow start")
    decrease_factor: float = number(0.7, low=0.05, high=0.99, unit="", text="new rate = factor * old rate")
    increase_per_second: float = number(
        0.0, low=0.0, high=1e6, unit="units/s per s", text="additive increase; 0: back at the cut rate in recovery_time"
    )
    recovery_time: float = number(60.0, low=1, high=1e5, unit="s", text="of busy time from a cut back to its rate")
    first_hold: float = number(1.0, low=0.01, high=60, unit="s", text="pause after a 429 without Retry-After")
    longest_hold: float = number(30.0, low=0.01, high=3600, unit="s", text="the pause doubles up to this")
    capacity: float = number(1.0, low=1, high=1e9, unit="units", text="saved up at most, for a burst after a pause")


class Aimd:
    """One AIMD controller; `pace` and `ssthresh` are its visible state."""

    options_class: ClassVar[type] = AimdOptions
    claims: ClassVar[frozenset[str]] = frozenset({"success_never_lowers", "one_cut_per_epoch"})
    declines: ClassVar[Mapping[str, str]] = {"growth_is_measured_by_what_was_sent": CREEPS, "key_is_shared": SLOWLY}

    def __init__(self, options: AimdOptions, *, seed: int, now: float, remembered: Remembered | None = None) -> None:
        del seed, now  # this law has no jitter and counts from its events only
        self.options = options
        self.ssthresh: float | None = None  # refill_rate at the last cut; None in slow start
        self._increase = 0.0  # units/s per second of busy time
        self._probing = False
        self._hold = 0.0  # s, the last pause
        self._newest = -1  # highest permit admitted so far
        self._epoch = -1  # permits up to this one are stale
        self._sent = Sent()
        rate = options.start_rate
        if remembered is not None and remembered.age < HINT and 0 < remembered.limit < math.inf:
            if remembered.age < FRESH:
                self.ssthresh = remembered.limit
                rate = options.decrease_factor * remembered.limit
                self._set_increase(rate)
            else:  # slow start as ever, but not from nothing
                rate = max(remembered.limit / 4, min(rate, remembered.limit))
        self._pace = Pace(refill_rate=rate, capacity=self._capacity(rate), learned_limit=self.ssthresh)

    @property
    def pace(self) -> Pace:
        """The answer in force."""
        return self._pace

    def on(self, event: Event) -> Pace:
        """See `policies.contract.Policy.on`."""
        match event:
            case Admitted():
                self._newest = max(self._newest, event.permit)
                self._sent.add(event.cost, event.now)
            case Accepted():
                if event.permit > self._epoch:
                    self._accepted(event)
            case Refused():
                if event.permit > self._epoch:
                    self._refused(event)
            case Settled() | Unknown():
                pass  # neither an end nor a loss says anything of the rate
            case _:
                assert_never(event)
        return self._pace

    def _accepted(self, event: Accepted) -> None:
        if self._probing:
            self._probing = False
            self._pace = evolve(self._pace, unresolved_limit=None, drain=False, reason=Reason.CLEARED)
        elif event.limited_by is RATE and event.refill_rate > 0:
            self._grow(event)

    def _grow(self, event: Accepted) -> None:
        old = self._pace.refill_rate
        busy = event.cost / event.refill_rate  # the seconds of sending that this success stands for
        if self.ssthresh is None:
            most = MOST_OVER_SENT * self._sent.rate(event.now)
            new = min(old * 2.0 ** min(1.0, busy / self.options.doubling_time), most)
            reason = SLOW_START
        else:
            new = old + self._increase * busy
            reason = INCREASE
        if old < new < math.inf:
            pace = self._pace  # evolve takes twice as long
            self._pace = Pace(
                refill_rate=new,
                capacity=self._capacity(new),
                unresolved_limit=pace.unresolved_limit,
                held_until=pace.held_until,
                drain=pace.drain,
                learned_limit=pace.learned_limit,
                reason=reason,
            )

    def _refused(self, event: Refused) -> None:
        reason = Reason.HOLD
        if self._probing:
            self._hold = min(2 * self._hold, self.options.longest_hold)
        else:
            self._hold = self.options.first_hold
            if event.scope is not Scope.OVERLOAD:
                self._cut(event)
                reason = Reason.CUT
        self._probing = True
        self._epoch = max(self._newest, event.permit)
        own = 0.0 if event.retry_after is not None else self._hold  # a hint is the limiter's to obey
        self._pace = evolve(self._pace, held_until=event.now + own, unresolved_limit=1, drain=True, reason=reason)

    def _cut(self, event: Refused) -> None:
        old = self._pace.refill_rate
        cut = self.options.decrease_factor * event.refill_rate  # of the applied rate, so that clamps don't add up
        new = cut if 0 < cut < old else old
        self.ssthresh = min(old, event.refill_rate) if event.refill_rate > 0 else old
        self._set_increase(new)
        self._pace = evolve(self._pace, refill_rate=new, capacity=self._capacity(new), learned_limit=self.ssthresh)

    def _set_increase(self, rate: float) -> None:
        assert self.ssthresh is not None
        gap = max(self.ssthresh - rate, (1 - self.options.decrease_factor) * rate)  # never 0, or it would freeze
        default = gap / self.options.recovery_time
        self._increase = self.options.increase_per_second or default

    def snapshot(self, now: float) -> dict[str, JSON]:
        """See `policies.contract.Policy.snapshot`."""
        return {
            "refill_rate": self._pace.refill_rate,
            "ssthresh": self.ssthresh,
            "increase": self._increase,
            "probing": self._probing,
            "hold": self._hold,
            "held_for": max(self._pace.held_until - now, -1.0),
            "reason": self._pace.reason.value,
            "newest": self._newest,
            "epoch": self._epoch,
            **self._sent.snapshot(now),
        }

    @classmethod
    def restore(cls, options: AimdOptions, snapshot: Mapping[str, JSON], *, seed: int, now: float) -> Self:
        """See `policies.contract.Policy.restore`."""
        policy = cls(options, seed=seed, now=now)
        rate = number_in(snapshot, "refill_rate")
        policy.ssthresh = None if snapshot.get("ssthresh") is None else number_in(snapshot, "ssthresh")
        policy._increase = number_in(snapshot, "increase")
        policy._probing = snapshot.get("probing") is True
        policy._hold = number_in(snapshot, "hold")
        policy._newest = int(number_in(snapshot, "newest"))
        policy._epoch = int(number_in(snapshot, "epoch"))
        policy._sent.restore(snapshot, now)
        policy._pace = Pace(
            refill_rate=rate,
            capacity=policy._capacity(rate),
            unresolved_limit=1 if policy._probing else None,
            held_until=now + number_in(snapshot, "held_for"),
            drain=policy._probing,
            learned_limit=policy.ssthresh,
            reason=Reason(snapshot.get("reason")),
        )
        return policy

    def _capacity(self, refill_rate: float) -> float:
        """Never less than what late timers need, and never more after a refusal than before it."""
        return max(self.options.capacity, 1.0 + PACED_SLACK * refill_rate)
