"""Peers without a control law: no pause at all, the SDKs' back-off, a told rate, and curator's limit from headers."""

from __future__ import annotations

from math import inf
from random import Random

from attrs import define, field

from simulations.peers_gate import News

MINUTE = 60.0  # seconds


@define(eq=False)
class Naive:
    """Refused, it asks again at once: a loop around a request, as in many a script."""

    def comes(self, now: float, tries: int) -> float:  # noqa: ARG002 - the shape all gates share
        """At once."""
        return now

    def opens_at(self, now: float, tries: int) -> float:  # noqa: ARG002 - the shape all gates share
        """Always open."""
        return now

    def passed(self, now: float, cost: float, tries: int) -> float:  # noqa: ARG002 - the shape all gates share
        """Nothing to remember."""
        return 0.0

    def accepted(self, news: News) -> None:
        """Nothing to learn."""

    def refused(self, news: News) -> float | None:  # noqa: ARG002 - the shape all gates share
        """Again."""
        return 0.0

    def lost(self, news: News) -> float | None:
        """The same."""
        return self.refused(news)

    def ended(self, news: News) -> None:
        """Nothing to learn."""


@define(eq=False)
class SdkBackoff:
    """The OpenAI and Anthropic SDKs: 0.5 s doubling to 8 s less up to a quarter, each request for itself.

    Source: `_calculate_retry_timeout` in https://github.com/openai/openai-python, src/openai/_base_client.py. A
    Retry-After of up to 60 s is obeyed, by the request that got it. max_retries is 2 unless set.
    """

    max_retries: int
    rng: Random

    def comes(self, now: float, tries: int) -> float:  # noqa: ARG002 - the shape all gates share
        """At once."""
        return now

    def opens_at(self, now: float, tries: int) -> float:  # noqa: ARG002 - the shape all gates share
        """Always open."""
        return now

    def passed(self, now: float, cost: float, tries: int) -> float:  # noqa: ARG002 - the shape all gates share
        """Nothing to remember."""
        return 0.0

    def accepted(self, news: News) -> None:
        """Nothing to learn."""

    def refused(self, news: News) -> float | None:
        """The hint, or the back-off; 408, 409, 429 and 5xx alike."""
        if news.tries >= self.max_retries:
            return None
        if news.retry_after is not None and 0 < news.retry_after <= 60:
            return news.retry_after
        return min(0.5 * 2.0 ** min(news.tries, 10), 8.0) * (1 - 0.25 * self.rng.random())

    def lost(self, news: News) -> float | None:
        """The same."""
        return self.refused(news)

    def ended(self, news: News) -> None:
        """Nothing to learn."""


@define(eq=False)
class Fixed:
    """A rate that somebody was told, evenly spaced; refused, it goes to the gate again. The yardstick, not a tool."""

    units_per_second: float
    _opens_at: float = field(default=-inf, init=False)

    def comes(self, now: float, tries: int) -> float:  # noqa: ARG002 - the shape all gates share
        """At once."""
        return now

    def opens_at(self, now: float, tries: int) -> float:  # noqa: ARG002 - the shape all gates share
        """When the one before has been paid for."""
        return max(now, self._opens_at)

    def passed(self, now: float, cost: float, tries: int) -> float:  # noqa: ARG002 - the shape all gates share
        """Pay."""
        self._opens_at = max(now, self._opens_at) + cost / self.units_per_second
        return 0.0

    def accepted(self, news: News) -> None:
        """Nothing to learn."""

    def refused(self, news: News) -> float | None:  # noqa: ARG002 - the shape all gates share
        """Back to the gate."""
        return 0.0

    def lost(self, news: News) -> float | None:
        """The same."""
        return self.refused(news)

    def ended(self, news: News) -> None:
        """Nothing to learn."""


@define(eq=False)
class Curator:
    """Told by the headers of one first request, else a default; a bucket as deep as a minute, empty at first.

    Source: https://github.com/bespokelabsai/curator, request_processor/online/base_online_request_processor.py and
    status_tracker/online_status_tracker.py: capacity accrues at limit / 60 up to the limit; after a 429 everybody
    pauses until 10 s (seconds_to_pause_on_rate_limit) have passed without another; 10 retries. Without headers it takes
    200 requests or 100,000 tokens per minute. Left out: that retries wait for the end of the first pass (with an
    endless backlog they would never come).
    """

    per_minute: float  # where no header tells
    _asked: bool = field(default=False, init=False)  # the first request is under way
    _answered: bool = field(default=False, init=False)
    _available: float = field(default=1.0, init=False)
    _at: float = field(default=0.0, init=False)
    _paused_until: float = field(default=-inf, init=False)

    def comes(self, now: float, tries: int) -> float:  # noqa: ARG002 - the shape all gates share
        """At once."""
        return now

    def opens_at(self, now: float, tries: int) -> float:  # noqa: ARG002 - the shape all gates share
        """Nobody goes while the first one is asked; then as the bucket and the pause allow."""
        if not self._answered:
            return inf if self._asked else now
        self._refill(now)
        missing = max(0.0, 1.0 - self._available - 1e-9)
        return max(self._paused_until, now + missing * MINUTE / self.per_minute)

    def passed(self, now: float, cost: float, tries: int) -> float:  # noqa: ARG002 - the shape all gates share
        """Pay; its cost is known only now, so that it may leave a debt."""
        self._refill(now)
        self._asked = True
        self._available -= cost
        return 0.0

    def accepted(self, news: News) -> None:
        """Only the first answer's headers are read."""
        self._first_answer(news)

    def refused(self, news: News) -> float | None:
        """Everybody pauses."""
        self._first_answer(news)
        self._paused_until = news.now + 10.0
        return 0.0 if news.tries < 10 else None

    def lost(self, news: News) -> float | None:
        """Only this one is tried again."""
        self._answered = True
        return 0.0 if news.tries < 10 else None

    def ended(self, news: News) -> None:
        """Nothing to learn."""

    def _first_answer(self, news: News) -> None:
        if not self._answered:
            self._answered, self._at = True, news.now
            self.per_minute = news.hints.limit or self.per_minute

    def _refill(self, now: float) -> None:
        self._available = min(self._available + (now - self._at) * self.per_minute / MINUTE, self.per_minute)
        self._at = now
