"""Multiplicative increase, multiplicative decrease: every success multiplies the rate by 1.05, a 429 by 0.7.

Theory. Chiu and Jain (1989) show that a multiplicative increase keeps whatever shares the clients of one key began
with: this law is not fair, and it comes back to a limit faster than any additive one. As it is usually written down it
fails for another reason: successes arrive at the rate itself, so "* 1.05 per success" grows the faster the faster it
sends, and with answers half a second late it runs away (1.05 ** 50 is eleven). Here it is the same law with guards:

    increase    rate *= 1.05 per success, but by no more than a doubling per `doubling_time` of busy time; the guard
                binds above log2(1.05) ** -1 / doubling_time, 7 per second as set
    decrease    rate = 0.7 * the applied rate, once per epoch, and never below the floor

Only a success that was admitted after the last cut and was limited by this rate counts. Epochs, the hold after a cut
and the single probe are those of `policies.aimd`: an `Aimd` that never grows is held inside for them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Self, assert_never

from attrs import evolve, frozen

from policies.aimd import PACED_SLACK, Aimd, AimdOptions
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
    Settled,
    Unknown,
)
from policies.fields import number, number_in, part_of


@frozen(kw_only=True)
class MimdOptions:
    """A larger increase_factor comes back sooner and is refused more often."""

    start_rate: float = number(5.0, low=1e-6, high=1e6, unit="units/s", text="refill_rate before any answer")
    increase_factor: float = number(1.05, low=1.0, high=2.0, unit="", text="new rate = factor * old rate, per success")
    doubling_time: float = number(2.0, low=0.1, high=3600, unit="s", text="of busy time; no doubling is faster")
    decrease_factor: float = number(0.7, low=0.05, high=0.99, unit="", text="new rate = factor * old rate, at a 429")
    floor: float = number(1 / 60, low=1e-6, high=1e6, unit="units/s", text="a cut does not go below it")
    first_hold: float = number(1.0, low=0.01, high=60, unit="s", text="pause after a 429 without Retry-After")
    longest_hold: float = number(30.0, low=0.01, high=3600, unit="s", text="the pause doubles up to this")


class Mimd:
    """One MIMD controller."""

    options_class: ClassVar[type] = MimdOptions
    claims: ClassVar[frozenset[str]] = frozenset({"success_never_lowers", "one_cut_per_epoch"})
    declines: ClassVar[Mapping[str, str]] = {
        "refusals_stay_rare": "a share of the rate on every success grows exponentially, soon past any limit again",
        "growth_is_measured_by_what_was_sent": "every success multiplies the rate, however few are sent in how long",
        "step_up_is_followed": "it follows at once, but where answers take 5 s its holds take a little more than half",
        "key_is_shared": "growth and cut in proportion keep all shares as they are, and chance leaves one with nothing",
    }

    def __init__(self, options: MimdOptions, *, seed: int, now: float, remembered: Remembered | None = None) -> None:
        self.options = options
        self._keeper = Aimd(_keeping(options), seed=seed, now=now, remembered=remembered)
        self._newest = -1  # highest permit admitted so far
        self._epoch = -1  # permits up to this one are stale
        self._pace = self._keeper.pace

    @property
    def pace(self) -> Pace:
        """The answer in force."""
        return self._pace

    def on(self, event: Event) -> Pace:
        """See `policies.contract.Policy.on`."""
        match event:
            case Admitted():
                self._newest = max(self._newest, event.permit)
                self._keeper.on(event)
            case Accepted():
                if event.permit > self._epoch:
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
        before = self._keeper.pace
        after = self._keeper.on(evolve(event, limited_by=LimitedBy.APP))  # it clears a probe, and never grows
        if after is not before:
            self._take(after, self._pace.refill_rate, Reason.CLEARED)
        elif event.limited_by is LimitedBy.RATE and event.refill_rate > 0:
            busy = event.cost / event.refill_rate  # the seconds of sending that this success stands for
            factor = min(self.options.increase_factor, 2.0 ** min(1.0, busy / self.options.doubling_time))
            new = factor * self._pace.refill_rate
            if self._pace.refill_rate < new < math.inf:
                self._take(after, new, Reason.INCREASE)

    def _refused(self, event: Refused) -> None:
        old = self._pace.refill_rate
        after = self._keeper.on(event)
        self._epoch = max(self._newest, event.permit)
        new = old
        if after.reason is Reason.CUT:
            cut = self.options.decrease_factor * event.refill_rate  # of the applied rate, so that clamps don't add up
            new = min(old, max(cut, self.options.floor)) if math.isfinite(cut) else old
        self._take(after, new, after.reason)

    def _take(self, kept: Pace, rate: float, reason: Reason) -> None:
        learned = self._pace.refill_rate if rate < self._pace.refill_rate else self._pace.learned_limit
        capacity = 1.0 + PACED_SLACK * rate
        self._pace = evolve(kept, refill_rate=rate, capacity=capacity, learned_limit=learned, reason=reason)

    def snapshot(self, now: float) -> dict[str, JSON]:
        """See `policies.contract.Policy.snapshot`."""
        return {
            "refill_rate": self._pace.refill_rate,
            "learned_limit": self._pace.learned_limit,
            "reason": self._pace.reason.value,
            "newest": self._newest,
            "epoch": self._epoch,
            "keeper": self._keeper.snapshot(now),
        }

    @classmethod
    def restore(cls, options: MimdOptions, snapshot: Mapping[str, JSON], *, seed: int, now: float) -> Self:
        """See `policies.contract.Policy.restore`."""
        policy = cls(options, seed=seed, now=now)
        policy._keeper = Aimd.restore(_keeping(options), part_of(snapshot, "keeper"), seed=seed, now=now)
        policy._newest, policy._epoch = int(number_in(snapshot, "newest")), int(number_in(snapshot, "epoch"))
        rate = number_in(snapshot, "refill_rate")
        policy._pace = evolve(
            policy._keeper.pace,
            refill_rate=rate,
            capacity=1.0 + PACED_SLACK * rate,
            learned_limit=None if snapshot.get("learned_limit") is None else number_in(snapshot, "learned_limit"),
            reason=Reason(snapshot.get("reason")),
        )
        return policy


def _keeping(options: MimdOptions) -> AimdOptions:
    return AimdOptions(
        start_rate=options.start_rate,
        decrease_factor=options.decrease_factor,
        first_hold=options.first_hold,
        longest_hold=options.longest_hold,
    )
