"""Peers that adapt a rate: Lance, MLflow and botocore."""

from __future__ import annotations

from math import floor, inf
from random import Random

from attrs import define, field

from simulations.peers_gate import News


@define(eq=False)
class Lance:
    """AIMD on a rate, judged in windows of a second, before a bucket that may go into debt.

    Source: https://github.com/lancedb/lance, rust/lance-core/src/utils/aimd.rs and rust/lance-io/src/object_store/
    throttle.rs: from 2,000/s; a second with any refusal halves, to 1/s at least, one without adds 300, to 5,000 at
    most; the window is closed by the first answer after it. Burst 100. Who comes reserves a token and sleeps for the
    wait at the rate of that moment. Three retries after 0.1 to 0.3 s. Left out: the retries of the object store below
    it, and that it is blind to 429s which those do not show.
    """

    rng: Random
    rate: float = 2000.0
    _level: float = field(default=100.0, init=False)
    _at: float | None = field(default=None, init=False)
    _window_from: float | None = field(default=None, init=False)
    _succeeded: int = field(default=0, init=False)
    _throttled: int = field(default=0, init=False)

    def comes(self, now: float, tries: int) -> float:  # noqa: ARG002 - the shape all gates share
        """Reserve, and sleep out what is missing; a later change of the rate does not wake the sleeper."""
        elapsed = 0.0 if self._at is None else now - self._at
        self._level, self._at = min(self._level + elapsed * self.rate, 100.0) - 1.0, now
        return now + max(0.0, -self._level) / self.rate

    def opens_at(self, now: float, tries: int) -> float:  # noqa: ARG002 - the shape all gates share
        """Who has slept goes."""
        return now

    def passed(self, now: float, cost: float, tries: int) -> float:  # noqa: ARG002 - the shape all gates share
        """Paid already."""
        return 0.0

    def accepted(self, news: News) -> None:
        """An operation is over when its answer is."""

    def refused(self, news: News) -> float | None:
        """A throttle error."""
        self._judge(news.now)
        self._throttled += 1
        return self.rng.uniform(0.1, 0.3) if news.tries < 3 else None

    def lost(self, news: News) -> float | None:
        """No throttle error; the store below would have tried again."""
        self._judge(news.now)
        self._succeeded += 1
        return 1.0

    def ended(self, news: News) -> None:
        """A success."""
        self._judge(news.now)
        self._succeeded += 1

    def _judge(self, now: float) -> None:
        if self._window_from is None:
            self._window_from = 0.0  # there, the controller's making
        if now - self._window_from < 1.0:
            return
        if self._throttled:
            self.rate = max(0.5 * self.rate, 1.0)
        elif self._succeeded:
            self.rate = min(self.rate + 300.0, 5000.0)
        self._window_from, self._succeeded, self._throttled = now, 0, 0


@define(eq=False)
class Mlflow:
    """RPSRateLimiter, adaptive: AIMD on a rate, with a bucket of one second.

    Source: https://github.com/mlflow/mlflow, mlflow/genai/evaluation/rate_limiter.py: from 10/s; a 429 halves, to 1/s
    at least, once in 5 s; each success adds 1 / rate, up to five times the first rate. Three retries after 1, 2 and
    4 s, then the prompt is lost. A success is the end of the call. Left out: that its waiters race for the tokens.
    """

    rate: float = 10.0
    _most: float = field(default=10.0, init=False)  # tokens
    _level: float = field(default=10.0, init=False)
    _at: float = field(default=0.0, init=False)
    _cut_at: float = field(default=-inf, init=False)

    def comes(self, now: float, tries: int) -> float:  # noqa: ARG002 - the shape all gates share
        """At once."""
        return now

    def opens_at(self, now: float, tries: int) -> float:  # noqa: ARG002 - the shape all gates share
        """When there is a token."""
        self._refill(now)
        return now + max(0.0, 1.0 - 1e-9 - self._level) / self.rate

    def passed(self, now: float, cost: float, tries: int) -> float:  # noqa: ARG002 - the shape all gates share
        """Take one."""
        self._refill(now)
        self._level -= 1.0
        return 0.0

    def accepted(self, news: News) -> None:
        """A call is over when its answer is."""

    def refused(self, news: News) -> float | None:
        """Halve, and sleep."""
        if news.now - self._cut_at >= 5.0:
            self._cut_at = news.now
            self._set_rate(max(1.0, 0.5 * self.rate))
            self._level = min(self._level, self._most)
        return 2.0**news.tries if news.tries < 3 else None

    def lost(self, news: News) -> float | None:  # noqa: ARG002 - the shape all gates share
        """Raised to the caller."""
        return None

    def ended(self, news: News) -> None:  # noqa: ARG002 - the shape all gates share
        """A success."""
        self._set_rate(min(50.0, self.rate + 1.0 / self.rate))

    def _set_rate(self, rate: float) -> None:
        self.rate = self._most = rate

    def _refill(self, now: float) -> None:
        self._level = min(self._most, self._level + (now - self._at) * self.rate)
        self._at = now


@define(eq=False)
class Botocore:
    """The AWS SDK's adaptive mode: CUBIC on a rate, off until the first refusal.

    Source: https://github.com/boto/botocore, botocore/retries (adaptive.py, throttling.py, bucket.py, standard.py):
    beta 0.7, scale 0.4, never above twice the measured rate, fill rate 0.5/s at least, capacity one second; the
    measured rate counts answers of either kind in half seconds, smoothed by 0.8. Three attempts, with a pause of a
    random share of 1, 2, ... up to 20 s. Left out: the quota of retries.
    """

    rng: Random
    _enabled: bool = field(default=False, init=False)
    _rate: float = field(default=1.0, init=False)
    _level: float = field(default=0.0, init=False)
    _at: float = field(default=0.0, init=False)
    _w_max: float = field(default=0.0, init=False)
    _k: float = field(default=0.0, init=False)
    _failed_at: float = field(default=0.0, init=False)
    _measured: float = field(default=0.0, init=False)
    _bucket: float = field(default=0.0, init=False)  # the half second that is being counted
    _count: int = field(default=0, init=False)

    def comes(self, now: float, tries: int) -> float:  # noqa: ARG002 - the shape all gates share
        """At once."""
        return now

    def opens_at(self, now: float, tries: int) -> float:  # noqa: ARG002 - the shape all gates share
        """When there is a token."""
        if not self._enabled:
            return now
        self._refill(now)
        return now + max(0.0, 1.0 - 1e-9 - self._level) / self._rate

    def passed(self, now: float, cost: float, tries: int) -> float:  # noqa: ARG002 - the shape all gates share
        """Take one."""
        if self._enabled:
            self._refill(now)
            self._level -= 1.0
        return 0.0

    def accepted(self, news: News) -> None:
        """The response is there with its head; bodies are streamed."""
        measured = self._measure(news.now)
        self._set_rate(0.4 * (news.now - self._failed_at - self._k) ** 3 + self._w_max, measured, news.now)

    def refused(self, news: News) -> float | None:
        """Back to beta times the rate in force."""
        measured = self._measure(news.now)
        self._w_max = min(measured, self._rate) if self._enabled else measured
        self._k = (self._w_max * (1 - 0.7) / 0.4) ** (1 / 3)
        self._failed_at = news.now
        self._enabled = True
        self._set_rate(0.7 * self._w_max, measured, news.now)
        return self._pause(news.tries)

    def lost(self, news: News) -> float | None:
        """Transient, but no throttling."""
        self.accepted(news)
        return self._pause(news.tries)

    def ended(self, news: News) -> None:
        """Nothing to learn."""

    def _pause(self, tries: int) -> float | None:
        return min(2.0**tries, 20.0) * self.rng.random() if tries < 2 else None

    def _measure(self, now: float) -> float:
        self._count += 1
        bucket = floor(now * 2) / 2
        if bucket > self._bucket:
            self._measured = 0.8 * self._count / (bucket - self._bucket) + 0.2 * self._measured
            self._bucket, self._count = bucket, 0
        return self._measured

    def _set_rate(self, rate: float, measured: float, now: float) -> None:
        rate = min(rate, 2 * measured)
        self._refill(now)
        self._rate = max(rate, 0.5)
        self._level = min(self._level, max(rate, 1.0))

    def _refill(self, now: float) -> None:
        self._level = min(max(self._rate, 1.0), self._level + (now - self._at) * self._rate)
        self._at = now
