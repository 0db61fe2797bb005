"""What was really sent lately: growth is measured by it, since a rate that nobody uses proves nothing."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

from attrs import define, field

from policies.contract import JSON
from policies.fields import number_in

MEASURED = 10.0  # s over which it is counted; at the start since the first admission, 1 s at least
GRAIN = 0.1  # s; what is sent within it is counted together, so that the log stays short


@define(eq=False)
class Sent:
    """Units of admitted attempts."""

    _first_at: float = field(default=math.inf, init=False)  # the first admission
    _log: deque[tuple[float, float]] = field(factory=deque, init=False)  # (instant, units) of the last MEASURED seconds
    _units: float = field(default=0.0, init=False)  # their sum

    def add(self, units: float, now: float) -> None:
        """An attempt was admitted."""
        log = self._log
        if self._first_at == math.inf:
            self._first_at = now
        self._forget(now)
        self._units += units
        if log and now - log[-1][0] < GRAIN:
            log[-1] = (log[-1][0], log[-1][1] + units)
        else:
            log.append((now, units))

    def rate(self, now: float) -> float:
        """Units per second."""
        self._forget(now)
        return self._units / min(MEASURED, max(now - self._first_at, 1.0))

    def _forget(self, now: float) -> None:
        log, oldest = self._log, now - MEASURED
        while log and log[0][0] <= oldest:
            self._units -= log.popleft()[1]
        if not log:
            self._units = 0.0  # what rounding left is not carried on

    def snapshot(self, now: float) -> dict[str, JSON]:
        """With ages instead of instants."""
        return {
            "sending_for": None if self._first_at == math.inf else now - self._first_at,
            "sent": [[now - at, units] for at, units in self._log],
        }

    def restore(self, snapshot: Mapping[str, JSON], now: float) -> None:
        """Go on from there; ValueError if it is none."""
        if snapshot.get("sending_for") is not None:
            self._first_at = now - number_in(snapshot, "sending_for")
        sent = snapshot.get("sent")
        for row in sent if isinstance(sent, list) else ():
            match row:
                case [float() | int() as age, float() | int() as units]:
                    self._log.append((now - age, units))
                    self._units += units
                case _:
                    raise ValueError(f"no snapshot of this policy: sent holds {row!r}")
