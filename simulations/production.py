"""LLM tokens that are counted while answers are produced: each evenly, from its first token to its end.

The sum of all rates is kept, and what they come to is booked in steps of STEP seconds, so that a bucket sees a stream
and not a heap at its end. Instants are seconds on a clock that never goes back.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf

from attrs import define, field

STEP = 1.0  # seconds that are booked at once; a second of a limit per minute is a sixtieth
SHORTEST = 1e-3  # seconds; what comes in one piece is produced in no time


@define(eq=False)
class Production:
    """Of one upstream. book: told of instants and LLM tokens, in order."""

    book: Callable[[float, float], None]
    _now: float = field(default=0.0, init=False)
    _per_second: float = field(default=0.0, init=False)
    _running: int = field(default=0, init=False)
    _open: dict[int, _Stream] = field(factory=dict, init=False)
    _changes: list[tuple[float, int]] = field(factory=list, init=False)  # instant, attempt that begins or ends then

    def begin(self, number: int, begins_at: float, ends_at: float, tokens: float) -> None:
        """An attempt will produce so much between two instants that are not past."""
        ends_at = max(ends_at, begins_at + SHORTEST)
        self._open[number] = _Stream(begins_at, ends_at, tokens / (ends_at - begins_at))
        heappush(self._changes, (begins_at, number))
        heappush(self._changes, (ends_at, number))

    def stop(self, number: int, now: float) -> float:
        """It is over, or broken off: what it has produced; 0.0 for one that never began."""
        self.advance(now)
        stream = self._open.pop(number, None)
        if stream is None:
            return 0.0
        if stream.runs:
            self._run(stream, False)
        return stream.per_second * max(0.0, min(now, stream.ends_at) - stream.begins_at)

    def advance(self, now: float) -> None:
        """Book all that was produced until then."""
        while self._changes and self._now < now:
            until = min(now, self._changes[0][0], self._now + STEP if self._running else inf)
            produced = self._per_second * max(until - self._now, 0.0)
            if produced > 0:
                self.book(until, produced)
            self._now = max(until, self._now)
            while self._changes and self._changes[0][0] <= self._now:
                stream = self._open.get(heappop(self._changes)[1])
                if stream is not None:
                    self._run(stream, not stream.runs)
        self._now = max(now, self._now)

    def _run(self, stream: _Stream, runs: bool) -> None:
        stream.runs = runs
        self._running += 1 if runs else -1
        # Rounding must not leave a trickle when all is over.
        self._per_second = self._per_second + stream.per_second * (1 if runs else -1) if self._running else 0.0


@define(eq=False)
class _Stream:
    begins_at: float
    ends_at: float
    per_second: float
    runs: bool = False
