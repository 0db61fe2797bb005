"""Driven by what the upstream says of its own limit: limit, remaining and reset on every answer.

Theory. With exact feedback there is nothing to search for. What remains is spread over the time to the reset, so
that a window ends just spent and a bucket stays just short of empty (see `policies.allowance`, also for the two
meanings of reset). When nothing remains, nothing is sent until something is back: no refusal is needed to find out.

    rate      a window: left / (time to its end, less a second); a bucket: limit / period + (left - reserve) / 10 s
    hold      while left < cost: to the window's end, or until a bucket has earned the cost

Without hints for `fresh_for` seconds this is a careful AIMD, an `Aimd` held inside: at first one with slow start,
later one that begins at 0.7 of the rate that the headers last allowed. It keeps the epochs, holds and probes all the
time. Headers may tell less than all (a limit per minute shown, one per second enforced; other clients on the key):
after three refusals in spite of a promised allowance its rate bounds ours, until it has climbed past it again.

Rules for editors. The rate rises only on an acceptance that was limited by it, as everywhere, though a header would
be true for others: who is not held back by the rate needs no higher one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import ClassVar, Self, assert_never

from attrs import frozen

from policies.aimd import CREEPS, PACED_SLACK, SLOWLY, Aimd, AimdOptions
from policies.allowance import Allowance, Style
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
from policies.fields import number, number_in, numbers_in, part_of

GRAIN = 0.01  # smaller changes of the rate are not made: each cut makes what is in flight stale
SLOWEST, FASTEST = 1e-6, 1e9  # units/s; a pace must be finite and positive whatever the headers say
CONTRADICTIONS = 3  # refusals in spite of a promise, within the time below
CONTRADICTED_FOR = 300.0  # s
PROMISE = 0.05  # of a window's limit; less may have been taken by others since the answer


@frozen(kw_only=True)
class HeadersOptions:
    """Larger values trust the headers longer, or start faster."""

    start_rate: float = number(5.0, low=1e-6, high=1e6, unit="units/s", text="refill_rate before any answer")
    period: float = number(
        60.0, low=1e-3, high=1e6, unit="s", text="what the limit is meant for, where the upstream does not tell"
    )
    fresh_for: float = number(300.0, low=1, high=1e5, unit="s", text="without hints for so long: back to AIMD")
    longest_hold: float = number(900.0, low=1, high=1e6, unit="s", text="one attempt so often, however far the reset")


class Headers:
    """One header-driven controller; `pace` and `allowance` are its visible state."""

    options_class: ClassVar[type] = HeadersOptions
    claims: ClassVar[frozenset[str]] = frozenset({"one_cut_per_epoch"})
    declines: ClassVar[Mapping[str, str]] = {"growth_is_measured_by_what_was_sent": CREEPS, "key_is_shared": SLOWLY}

    def __init__(self, options: HeadersOptions, *, seed: int, now: float, remembered: Remembered | None = None) -> None:
        self.options = options
        self.allowance = Allowance(options.period)
        self._aimd = Aimd(_inner(options), seed=seed, now=now, remembered=remembered)
        self._driven = False  # by headers, now
        self._bounded = False  # by the Aimd inside
        self._contradicted: deque[float] = deque(maxlen=CONTRADICTIONS)  # instants
        self._newest = -1  # highest permit admitted so far
        self._epoch = -1  # permits up to this one are stale
        self._pace = self._aimd.pace

    @property
    def pace(self) -> Pace:
        """The answer in force."""
        return self._pace

    def on(self, event: Event) -> Pace:
        """See `policies.contract.Policy.on`."""
        match event:
            case Admitted():
                self._newest = max(self._newest, event.permit)
                self._aimd.on(event)
                self.allowance.spend(event)
                self._answer(event, self._pace.refill_rate)
            case Accepted() | Refused():
                if event.permit > self._epoch:
                    self._heard(event)
                else:
                    self.allowance.hear(event)  # old news of the rate, but not of what is left
            case Settled() | Unknown():
                pass
            case _:
                assert_never(event)
        return self._pace

    def _heard(self, event: Accepted | Refused) -> None:
        if isinstance(event, Refused):
            self._note_contradiction(event)
        self._aimd.on(event)
        heard = self.allowance.hear(event)
        if heard:
            self._driven = True
        elif event.now - self.allowance.told_at > self.options.fresh_for and self._driven:
            self._driven = self._bounded = False
            limit = Remembered(limit=self._pace.refill_rate, age=0.0)
            self._aimd = Aimd(_inner(self.options), seed=0, now=event.now, remembered=limit)
        self._answer(event, self._wanted(event))
        if isinstance(event, Refused):
            self._epoch = max(self._newest, event.permit)

    def _note_contradiction(self, event: Refused) -> None:
        windows = self.allowance.style is Style.WINDOW
        promised = max(2 * event.cost, PROMISE * self.allowance.limit) if windows else 0.0
        probing = self._pace.unresolved_limit is not None
        if probing or not self._driven or event.scope is Scope.OVERLOAD or self.allowance.left + event.cost < promised:
            return
        self._contradicted.append(event.now)
        first = self._contradicted[0]
        if len(self._contradicted) == CONTRADICTIONS and event.now - first < CONTRADICTED_FOR and not self._bounded:
            self._bounded = True
            start = min(max(self._pace.refill_rate, SLOWEST), 1e6)
            self._aimd = Aimd(AimdOptions(start_rate=start), seed=0, now=event.now)

    def _wanted(self, event: Accepted | Refused) -> float:
        """The rate that the headers or the Aimd call for; what the event permits of it is taken."""
        wanted = own = self._aimd.pace.refill_rate
        if self._driven:
            wanted = min(max(self.allowance.rate(event.now, event.cost), SLOWEST), FASTEST, 2 * self._pace.refill_rate)
            if self._bounded and own < wanted:
                wanted = own
            else:
                self._bounded = False
        old = self._pace.refill_rate
        may_rise = isinstance(event, Accepted) and event.limited_by is LimitedBy.RATE
        may_fall = isinstance(event, Accepted) or event.scope is not Scope.OVERLOAD
        if self._driven and abs(wanted - old) < GRAIN * old:
            return old
        return wanted if (may_rise and wanted > old) or (may_fall and wanted < old) else old

    def _answer(self, event: Admitted | Accepted | Refused, rate: float) -> None:
        inner, now = self._aimd.pace, event.now
        free_at = self.allowance.free_at(now, event.cost) if self._driven else -math.inf
        held_until = max(inner.held_until, min(free_at, now + self.options.longest_hold))
        old = self._pace
        if rate < old.refill_rate:
            self._epoch = self._newest
        pace = Pace(
            refill_rate=rate,
            capacity=1.0 + PACED_SLACK * rate,
            unresolved_limit=inner.unresolved_limit,
            held_until=held_until,
            drain=inner.drain or held_until > now,
            learned_limit=self._learned(event),
            reason=self._reason(rate, held_until > now),
        )
        # An equal answer is the same object: nothing changed.
        self._pace = old if pace == old else pace

    def _learned(self, event: Admitted | Accepted | Refused) -> float | None:
        if isinstance(event, Refused) and event.scope is Scope.OVERLOAD:
            return self._pace.learned_limit
        return self.allowance.fair or None if self._driven else self._aimd.pace.learned_limit

    def _reason(self, rate: float, held: bool) -> Reason:
        if not self._driven:
            return self._aimd.pace.reason
        if rate != self._pace.refill_rate:
            return Reason.INCREASE if rate > self._pace.refill_rate else Reason.CUT
        if held:
            return Reason.HOLD
        return Reason.CLEARED if self._pace.reason is Reason.HOLD else self._pace.reason

    def snapshot(self, now: float) -> dict[str, JSON]:
        """See `policies.contract.Policy.snapshot`."""
        return {
            "refill_rate": self._pace.refill_rate,
            "learned_limit": self._pace.learned_limit,
            "held_for": max(self._pace.held_until - now, -1.0),
            "drain": self._pace.drain,
            "reason": self._pace.reason.value,
            "driven": self._driven,
            "bounded": self._bounded,
            "contradicted": [now - instant for instant in self._contradicted],
            "newest": self._newest,
            "epoch": self._epoch,
            "aimd": self._aimd.snapshot(now),
            "allowance": self.allowance.snapshot(now),
        }

    @classmethod
    def restore(cls, options: HeadersOptions, snapshot: Mapping[str, JSON], *, seed: int, now: float) -> Self:
        """See `policies.contract.Policy.restore`."""
        policy = cls(options, seed=seed, now=now)
        policy._aimd = Aimd.restore(_inner(options), part_of(snapshot, "aimd"), seed=seed, now=now)
        policy.allowance = Allowance.restore(part_of(snapshot, "allowance"), now)
        policy._driven = snapshot.get("driven") is True
        policy._bounded = snapshot.get("bounded") is True
        policy._newest, policy._epoch = int(number_in(snapshot, "newest")), int(number_in(snapshot, "epoch"))
        policy._contradicted.extend(now - age for age in numbers_in(snapshot, "contradicted"))
        rate = number_in(snapshot, "refill_rate")
        policy._pace = Pace(
            refill_rate=rate,
            capacity=1.0 + PACED_SLACK * rate,
            unresolved_limit=policy._aimd.pace.unresolved_limit,
            held_until=now + number_in(snapshot, "held_for"),
            drain=snapshot.get("drain") is True,
            learned_limit=None if snapshot.get("learned_limit") is None else number_in(snapshot, "learned_limit"),
            reason=Reason(snapshot.get("reason")),
        )
        return policy


def _inner(options: HeadersOptions) -> AimdOptions:
    return AimdOptions(start_rate=options.start_rate)
