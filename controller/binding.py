"""Which of several dimensions binds, and how much of what each has learned is in use."""

from __future__ import annotations

import math

from attrs import define, field

MEMORY = 20.0  # s of sending that the share of a limit in use is taken from
BRIEF = 2.0  # s; a few large prompts in a row are no other mix
LONGEST_UNPROVED = 300.0  # s; where limits take turns all the time a rate must be tried all the same
NEVER = float("-inf")


@define(eq=False)
class Binding:
    """Whether one dimension binds, beside others. Instants are monotonic seconds."""

    _bound_at: float = field(default=NEVER, init=False)  # it held an attempt up, lately
    _idle_at: float = field(default=NEVER, init=False)  # another dimension did, and not for a moment only
    _proved_at: float = field(default=NEVER, init=False)  # its policy was told so as a proof of its rate
    _used: float = field(default=0.0, init=False)  # units admitted, forgotten at 1 / MEMORY
    _used_at: float = field(default=0.0, init=False)

    def binds(self, now: float, period: float, *, is_learned: bool) -> bool:
        """It holds an attempt up; True if it has done so for a whole period, or nothing was proved for very long.

        is_learned: its limit; as long as it is not, everything proves something.
        """
        self._bound_at = now
        if is_learned and self.was_idle(now, period) and now - self._proved_at < LONGEST_UNPROVED:
            return False
        self._proved_at = now
        return True

    def idles(self, now: float) -> bool:
        """Another dimension holds an attempt up; True if this one has not for a while."""
        if now - self._bound_at < BRIEF:
            return False
        self._idle_at = now
        return True

    def was_idle(self, now: float, period: float) -> bool:
        """Another dimension held attempts up in the last period, so that what this one accepted measures nothing."""
        return now - self._idle_at < period

    def add(self, units: float, now: float) -> None:
        """An attempt was admitted that is likely to come to so much."""
        self._used = self._used_now(now) + units
        self._used_at = now

    def share(self, limit: float | None, now: float) -> float | None:
        """How much of a learned limit (units/s) is in use; None as long as none is learned."""
        return self._used_now(now) / (MEMORY * limit) if limit is not None and 0 < limit < math.inf else None

    def _used_now(self, now: float) -> float:
        return self._used * math.exp(min(self._used_at - now, 0.0) / MEMORY)
