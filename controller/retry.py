"""May a prompt try again, and after how long; the random numbers are passed in.

Back-off with full jitter, after Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015). A
throttle is no failure: it asks nothing of this file.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime

from attrs import frozen

from controller.outcome import TRANSIENT, Failed


@frozen(kw_only=True)
class Backoff:
    """allowed: transient failures a prompt may have; first and longest: bounds of the pause in seconds."""

    allowed: int = 5
    first: float = 0.5
    longest: float = 30.0

    def pause(self, failed: Failed, failures: int, rng: random.Random) -> float | None:
        """Seconds before the next attempt after the failures-th (from 1) transient failure; None: give it up."""
        if failed.kind not in TRANSIENT or failures >= self.allowed:
            return None
        most = min(self.longest, self.first * 2.0 ** min(failures - 1, 30))
        return rng.uniform(0.0, most)


def instant(wall: float) -> str:
    """An instant for people, in UTC; wall: seconds since the epoch."""
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
