"""A constant rate: for who knows the limit, and the yardstick for everybody else.

It learns nothing. The server's Retry-After still pauses sending, since the limiter obeys it for every policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

from attrs import field, frozen, validators

from policies.contract import JSON, Event, Pace, Reason, Remembered


@frozen(kw_only=True)
class FixedOptions:
    """A larger refill_rate finishes sooner until the upstream refuses."""

    refill_rate: float = field(
        default=1.0,
        validator=[validators.gt(0), validators.le(1e6)],
        metadata={"unit": "units/s", "help": "the rate, whatever the upstream answers"},
    )
    capacity: float = field(
        default=1.0,
        validator=[validators.ge(1), validators.le(1e6)],
        metadata={"unit": "units", "help": "the most that is sent at once after an idle time"},
    )


class Fixed:
    """Always the same pace."""

    options_class: ClassVar[type] = FixedOptions
    claims: ClassVar[frozenset[str]] = frozenset({"success_never_lowers", "one_cut_per_epoch"})
    declines: ClassVar[Mapping[str, str]] = {
        "limit_is_found": "its rate is the user's, and the limit may lie anywhere",
        "refusals_stay_rare": "its rate is the user's, and may lie above the limit",
        "step_up_is_followed": "its rate is the user's, whatever the limit does",
    }

    def __init__(self, options: FixedOptions, *, seed: int, now: float, remembered: Remembered | None = None) -> None:
        del seed, now, remembered
        self._pace = Pace(refill_rate=options.refill_rate, capacity=options.capacity, reason=Reason.FIXED)

    @property
    def pace(self) -> Pace:
        """The answer in force."""
        return self._pace

    def on(self, event: Event) -> Pace:
        """See `policies.contract.Policy.on`."""
        del event
        return self._pace

    def snapshot(self, now: float) -> dict[str, JSON]:
        """Nothing to keep."""
        del now
        return {}

    @classmethod
    def restore(cls, options: FixedOptions, snapshot: Mapping[str, JSON], *, seed: int, now: float) -> Self:
        """See `policies.contract.Policy`."""
        del snapshot
        return cls(options, seed=seed, now=now)
