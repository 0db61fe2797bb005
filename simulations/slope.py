"""A limit on how fast the rate may rise, whatever the rate is; some providers refuse what doubles too quickly."""

from __future__ import annotations

from collections import deque

from attrs import define, field


@define(eq=False)
class Slope:
    """At most twice as many within `seconds` as in the time of that length before it, `free` at least."""

    seconds: float
    free: float
    _log: deque[float] = field(factory=deque, init=False)

    def ask(self, now: float) -> float:
        """0, or the seconds until the oldest of the crowded time has moved on."""
        while self._log and self._log[0] <= now - 2 * self.seconds:
            self._log.popleft()
        recent = sum(at > now - self.seconds for at in self._log)
        if recent < max(self.free, 2 * (len(self._log) - recent)):
            return 0.0
        return self._log[len(self._log) - recent] + self.seconds - now

    def take(self, now: float) -> None:
        """Enter it in the log."""
        self._log.append(now)
