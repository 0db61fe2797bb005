"""The user's own limit for any minute: a log of what was admitted in the last one, and a pace that spreads it.

In no window of PERIOD seconds is more admitted than the ceiling, whatever came before: a start, a pause, a step of the
clock. A cost above the ceiling goes alone, into an empty minute, and what follows waits until the average is kept
again: it is neither refused nor starved. The cost of an attempt stays in the log as reserved until it is settled, then
as it truly was; it also stays for an attempt that was refused upstream, since a ceiling is on what is sent.
"""

from __future__ import annotations

from collections import deque

from attrs import define, field

from controller.bucket import TokenBucket
from controller.knowledge import GRAIN, Sent, Spending

PERIOD = 60.0  # s
GUARD = 1e-3  # s over the period: rounding must not let two ends of a window in
SLACK = 0.01  # s of the pace that may be saved up, since timers are late


@define(eq=False)
class Entry:
    """One admission in the log. kept: it still counts."""

    at: float
    cost: float
    kept: bool = True


@define(eq=False)
class Ceiling:
    """Of one dimension; per_minute in requests or LLM tokens."""

    per_minute: float
    started_at: float
    _log: deque[Entry] = field(factory=deque, init=False)
    _sum: float = field(default=0.0, init=False)  # of the log
    _pace: TokenBucket = field(init=False)

    def __attrs_post_init__(self) -> None:
        rate = self.per_minute / PERIOD
        self._pace = TokenBucket(max(SLACK * rate, 1e-6), rate, level=0.0, updated_at=self.started_at)

    def delay(self, cost: float, now: float) -> float:
        """Seconds until it may be admitted, as far as is known now."""
        self._forget(now)
        over = self._sum + min(cost, self.per_minute) - self.per_minute
        delay = self._pace.delay(cost, now)
        for entry in self._log:
            if over <= 0:
                break
            over -= entry.cost
            delay = max(delay, entry.at + PERIOD + GUARD - now)
        return delay

    def take(self, cost: float, now: float) -> Entry:
        """Book an admission; the caller has seen delay(cost, now) == 0."""
        self._forget(now)
        entry = Entry(now, cost)
        self._log.append(entry)
        self._sum += cost
        self._pace.take(cost, now)
        return entry

    def correct(self, entry: Entry, cost: float, now: float) -> None:
        """What an admission really cost."""
        more = cost - entry.cost
        if more > 0:
            self._pace.take(more, now)
        elif more < 0:
            self._pace.refund(-more, now)
        if entry.kept:
            self._sum += more
            entry.cost = cost

    def move(self, per_minute: float, now: float) -> None:
        """Another ceiling from now on; what was admitted in the last minute counts against it."""
        rate = per_minute / PERIOD
        self.per_minute = per_minute
        self._pace.set_pace(rate, max(SLACK * rate, 1e-6), now)

    def take_over(self, spent: Spending) -> None:
        """Go on from where earlier runs were; before the first admission."""
        for sent in spent.log:
            self._log.append(Entry(sent.at, sent.cost))
            self._sum += sent.cost
        self._pace.level -= spent.debt

    def spending(self, now: float) -> Spending:
        """What the next run must know, coarse, and rather too much and too late than too little."""
        self._forget(now)
        log: list[Sent] = []
        for entry in self._log:
            if log and entry.at // GRAIN == log[-1].at // GRAIN:
                log[-1] = Sent(entry.at, log[-1].cost + entry.cost)
            else:
                log.append(Sent(entry.at, entry.cost))
        return Spending(log=tuple(log), debt=self._pace.delay(0.0, now) * self._pace.refill_rate)

    def _forget(self, now: float) -> None:
        log = self._log
        while log and log[0].at + PERIOD + GUARD <= now:
            entry = log.popleft()
            entry.kept = False
            self._sum -= entry.cost
        if not log:
            self._sum = 0.0  # what rounding left is not carried on
