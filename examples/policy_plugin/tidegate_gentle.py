"""Additive increase, multiplicative decrease, and a cap on growth per minute: for an upstream that scales up slowly.

Some upstreams refuse not a rate but its slope: who doubles within seconds is refused although the same rate, reached
in minutes, is welcome. So the rate grows by a share of itself per minute of sending, and never to more than
`growth_per_minute` times what it was when the minute began.

    increase    refill_rate += (growth_per_minute - 1) * refill_rate * busy / 60, busy = cost / refill_rate, the
                seconds of sending that a success stands for; so growth ends when sending does
    cap         refill_rate <= growth_per_minute * (refill_rate at the beginning of this minute)
    decrease    refill_rate *= decrease_factor, once per epoch
    hold        a second after a refusal without Retry-After, doubling to 30 s while probes are refused
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

from attrs import evolve, field, frozen, validators

from policies.contract import JSON, Accepted, Admitted, Event, LimitedBy, Pace, Reason, Refused, Remembered, Scope

MINUTE = 60.0  # s
FIRST_HOLD, LONGEST_HOLD = 1.0, 30.0  # s


@frozen(kw_only=True)
class GentleOptions:
    """Larger values speed up sooner and are refused more often."""

    start_rate: float = field(
        default=1.0,
        validator=[validators.ge(0.01), validators.le(1000.0)],
        metadata={"unit": "units/s", "help": "refill_rate before any answer"},
    )
    growth_per_minute: float = field(
        default=1.5,
        validator=[validators.gt(1.0), validators.le(4.0)],
        metadata={"unit": "", "help": "most that the rate is multiplied by in a minute"},
    )
    decrease_factor: float = field(
        default=0.7,
        validator=[validators.ge(0.1), validators.le(0.95)],
        metadata={"unit": "", "help": "new rate = factor * old rate, after a refusal"},
    )


class Gentle:
    """One controller. `pace` is the answer in force."""

    options_class: ClassVar[type] = GentleOptions
    claims: ClassVar[frozenset[str]] = frozenset({"success_never_lowers", "one_cut_per_epoch"})
    declines: ClassVar[Mapping[str, str]] = {
        "growth_is_measured_by_what_was_sent": "it looks at the minute's growth, not at how much of the rate was used",
        "key_is_shared": "it adds so little at a time that two clients come together over many hours",
    }

    def __init__(self, options: GentleOptions, *, seed: int, now: float, remembered: Remembered | None = None) -> None:
        del seed, remembered  # no jitter, and a slow start every time is what this is for
        self.options = options
        self.pace = Pace(refill_rate=options.start_rate, capacity=1.0)
        self._minute_began_at = now
        self._rate_then = options.start_rate
        self._hold = 0.0  # s, the last pause
        self._probing = False
        self._newest = -1  # the highest permit seen
        self._epoch = -1  # permits up to this one were admitted before the last cut

    def on(self, event: Event) -> Pace:
        """See `policies.contract.Policy.on`."""
        if isinstance(event, Admitted):
            self._newest = max(self._newest, event.permit)
        elif isinstance(event, Accepted) and event.permit > self._epoch:
            self._accepted(event)
        elif isinstance(event, Refused) and event.permit > self._epoch:
            self._refused(event)
        return self.pace

    def _accepted(self, event: Accepted) -> None:
        if self._probing:
            self._probing = False
            self.pace = evolve(self.pace, unresolved_limit=None, drain=False, reason=Reason.CLEARED)
        elif event.limited_by is LimitedBy.RATE:
            self._grow(event)

    def _grow(self, event: Accepted) -> None:
        old = self.pace.refill_rate
        if event.now - self._minute_began_at >= MINUTE:
            self._minute_began_at, self._rate_then = event.now, old
        busy = event.cost / event.refill_rate
        share = self.options.growth_per_minute - 1
        new = min(old + share * old * busy / MINUTE, self.options.growth_per_minute * self._rate_then)
        if new > old:
            self.pace = evolve(self.pace, refill_rate=new, reason=Reason.INCREASE)

    def _refused(self, event: Refused) -> None:
        rate, reason = self.pace.refill_rate, Reason.HOLD
        if self._probing:  # the quota is still spent, which says nothing of the rate
            self._hold = min(2 * self._hold, LONGEST_HOLD)
        else:
            self._hold = FIRST_HOLD
            if event.scope is not Scope.OVERLOAD:
                # Of the applied rate, so that a user's ceiling and our cuts don't add up.
                rate, reason = min(rate, self.options.decrease_factor * event.refill_rate), Reason.CUT
        self._probing, self._epoch = True, max(self._newest, event.permit)
        self._minute_began_at, self._rate_then = event.now, rate
        own = 0.0 if event.retry_after is not None else self._hold  # the limiter obeys Retry-After anyway
        self.pace = Pace(
            refill_rate=rate,
            capacity=1.0,
            unresolved_limit=1,
            held_until=event.now + own,
            drain=True,
            reason=reason,
        )

    def snapshot(self, now: float) -> dict[str, JSON]:
        """See `policies.contract.Policy.snapshot`: ages, not instants."""
        return {
            "refill_rate": self.pace.refill_rate,
            "held_for": max(self.pace.held_until - now, -1.0),
            "minute_age": now - self._minute_began_at,
            "rate_then": self._rate_then,
            "hold": self._hold,
            "probing": self._probing,
            "newest": self._newest,
            "epoch": self._epoch,
        }

    @classmethod
    def restore(cls, options: GentleOptions, snapshot: Mapping[str, JSON], *, seed: int, now: float) -> Self:
        """See `policies.contract.Policy`."""
        match snapshot:
            case {
                "refill_rate": float() as rate,
                "held_for": float() as held_for,
                "minute_age": float() as minute_age,
                "rate_then": float() as rate_then,
                "hold": float() as hold,
                "probing": bool() as probing,
                "newest": int() as newest,
                "epoch": int() as epoch,
            }:
                policy = cls(options, seed=seed, now=now)
                policy._minute_began_at, policy._rate_then = now - minute_age, rate_then
                policy._hold, policy._probing, policy._newest, policy._epoch = hold, probing, newest, epoch
                policy.pace = Pace(
                    refill_rate=rate,
                    capacity=1.0,
                    unresolved_limit=1 if probing else None,
                    held_until=now + held_for,
                    drain=probing,
                )
                return policy
        raise ValueError(f"not a snapshot of gentle: {snapshot!r}")
