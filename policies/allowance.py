"""What an upstream's headers still allow: limit, remaining and reset, kept up to date between two answers.

Two things are called "reset", and the headers do not say which (IETF draft-ietf-httpapi-ratelimit-headers;
https://platform.openai.com/docs/guides/rate-limits):

    window    seconds until all of the limit is back at once
    bucket    seconds until it is full: what was spent comes back bit by bit, at limit / period
    sliding   seconds until a log has lost its oldest entry: what was spent comes back as it was spent, a period later

What tells them apart is the instant that is announced, now + reset: a window's stays where it is, the others' move on
with the clock. A sliding log looks like a window until the announced instant has passed and less than half of the
limit is back. A bucket is known by its arithmetic, reset * limit / period = what it misses, three answers in a row;
the period that makes it so is its own. Until something is proved sliding is assumed, whose pace suits all three.

An answer speaks of the moment at which its attempt arrived. What was admitted after that attempt is not in it and is
subtracted; what has flowed back into a bucket is added. The end of a window is the earliest of what its answers say,
since each comes late by its own delay and none comes early: to wait until then is safe.

Rules for editors. Nothing here trusts a number: NaN, negative and absurd ones are no hint. Nothing waits for an
allowance that cannot come: what costs more than the limit asks for the limit.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import Self

from attrs import define, field

from policies.contract import JSON, Accepted, Admitted, Refused
from policies.fields import as_number, numbers_in

PERIODS = (60.0, 1.0, 3600.0, 86400.0)  # s; those that providers document, the likeliest first
VOTES = 3  # answers in a row, over SPAN at least, that prove a bucket's arithmetic; fewer agree by chance
SPAN = 3.0  # s over which the announced instant is watched, and four times what an answer takes
RETURNED = 0.5  # of the limit
LONGER = 1.05  # times the period; a reset may be rounded up
EARLY = 1.0  # s; a window is spent so long before its end: what then waits loses nothing, what is left over is lost
CATCH_UP = 10.0  # s in which a bucket is brought to its reserve; far longer than an answer takes
RESERVE = 4  # attempts that are left in a bucket: the next may cost more than this one
MOST_UNSEEN = 4096  # attempts; a log that no answer shortens must not grow for ever
ABSURD = 1e12  # units or seconds; beyond it arithmetic with infinities begins


class Style(Enum):
    """How what was spent comes back."""

    SLIDING = "sliding"
    BUCKET = "bucket"
    WINDOW = "window"


@define(eq=False)
class Allowance:
    """One dimension's allowance. period in seconds; limit, left and spent in units; instants as in the events."""

    period: float
    limit: float = 0.0
    left: float = 0.0  # what may still be sent, as of `at`
    spent: float = 0.0  # admitted since `began_at`
    style: Style = Style.SLIDING
    at: float = -math.inf
    told_at: float = -math.inf  # the newest answer with hints
    ends_at: float = math.inf  # a window's end
    began_at: float = -math.inf  # its beginning, known when it followed one that we saw
    _watched_from: float = math.inf
    _watched_end: float = math.inf
    _most: float = 0.0  # the highest remaining, before its own attempt was paid
    _votes: int = 0
    _fits_from: float = math.inf
    _permit: int = -1  # the newest attempt that told us something
    _unseen: deque[tuple[int, float]] = field(factory=lambda: deque(maxlen=MOST_UNSEEN))

    @property
    def fair(self) -> float:
        """The limit as units per second."""
        return self.limit / self.period

    def spend(self, event: Admitted) -> None:
        """An attempt goes."""
        self._pass_time(event.now)
        self.left -= event.cost
        self.spent += event.cost
        self._unseen.append((event.permit, event.cost))

    def hear(self, event: Accepted | Refused) -> bool:
        """Take in an answer's hints; False when they say nothing usable or nothing new."""
        remaining, reset = _usable(event.hints.remaining), _usable(event.hints.reset)
        if remaining is None or reset is None or event.permit < self._permit:
            return False
        if self.style is Style.WINDOW and event.admitted_at + reset <= self.began_at:
            return False  # a late word on the window before
        self._pass_time(event.now)
        self._most = max(self._most, remaining + event.cost)
        self.limit = _usable(event.hints.limit) or self._most
        self._learn_style(event, remaining, reset)
        self._learn_period(_usable(event.hints.period), remaining, reset, event.now)
        self._permit = event.permit
        while self._unseen and self._unseen[0][0] <= event.permit:
            self._unseen.popleft()
        self.left = remaining - sum(cost for _, cost in self._unseen)
        self._flow_back(event.now - event.admitted_at)
        self._set_end(event.now + reset)
        self.at = self.told_at = event.now
        return True

    def rate(self, now: float, cost: float) -> float:
        """Units per second that spend the allowance in time: all of a window or bucket; a sliding log is not hurried.

        What a log takes in a hurry it gives back in a hurry, a period later, and so for ever.
        """
        if self.style is Style.WINDOW:
            early = min(EARLY, 0.02 * self.period)
            return max(self.left / max(self.ends_at - now - early, early / 2), self.fair / 2)
        if self.style is Style.SLIDING:
            return max(self.fair + min(self.left - cost, 0.0) / CATCH_UP, self.fair / 2)
        reserve = min(RESERVE * cost, self._most / 2)
        return max(self.fair + (self.left - reserve) / CATCH_UP, self.fair / 2)

    def free_at(self, now: float, cost: float) -> float:
        """The instant from which an attempt of that cost is allowed; -inf when it is now."""
        missing = min(cost, self.limit) - self.left
        if missing <= 1e-9 * cost:
            return -math.inf
        return now + missing / self.fair if self.style is Style.BUCKET and self.fair > 0 else self.ends_at

    def _pass_time(self, now: float) -> None:
        self._flow_back(now - self.at)
        if self.style is Style.WINDOW and now >= self.ends_at:
            self.began_at = self.ends_at + math.floor((now - self.ends_at) / self.period) * self.period
            self.ends_at = self.began_at + self.period
            self.left, self.spent = self.limit, 0.0
        self.at = max(self.at, now)

    def _flow_back(self, seconds: float) -> None:
        if self.style is Style.BUCKET and 0 < seconds < math.inf:
            self.left = min(self.left + self.fair * seconds, max(self._most, self.left))

    def _learn_style(self, event: Accepted | Refused, remaining: float, reset: float) -> None:
        first_word = self.told_at < self.began_at <= event.admitted_at
        if self.style is Style.WINDOW and first_word and remaining + self.spent < RETURNED * self.limit:
            self.style = Style.SLIDING
        end, seconds = event.now + reset, event.now - self._watched_from
        moved = end - self._watched_end
        if not 0 <= moved + SPAN <= 1.5 * max(seconds, 0.0) + 2 * SPAN:  # nothing watched yet, or another window
            self._watched_from, self._watched_end = event.now, end
        elif seconds >= max(SPAN, 4 * (event.now - event.admitted_at)):
            if abs(moved) < 0.3 * seconds:
                self.style = Style.WINDOW
            elif moved > 0.7 * seconds and self.style is Style.WINDOW:
                self.style = Style.SLIDING
            self._watched_from, self._watched_end = event.now, end

    def _learn_period(self, told: float | None, remaining: float, reset: float, now: float) -> None:
        if told is not None and told >= 1e-3:
            self.period = told
        elif self.style is not Style.WINDOW:
            self._vote(self._fitting_period(remaining, reset), now)
        elif reset > LONGER * self.period:
            self.period = min((each for each in PERIODS if LONGER * each >= reset), default=reset)

    def _vote(self, fitting: float | None, now: float) -> None:
        if fitting is None:
            self._votes = 0
            return
        self._votes += 1
        self._fits_from = now if self._votes == 1 else self._fits_from
        if self._votes >= VOTES and now - self._fits_from >= SPAN:
            self.style, self.period = Style.BUCKET, fitting

    def _fitting_period(self, remaining: float, reset: float) -> float | None:
        for period in (self.period, *PERIODS):
            for full in (self.limit, self._most):
                missing, earned = full - remaining, reset * self.limit / period
                rounding = 1e-3 * max(self.limit / period, missing)  # resets come in milliseconds
                # Remaining is rounded down; of less than two units anything could be said.
                if missing >= 2 and -rounding - 1 < earned - missing < rounding:
                    return period
        return None

    def _set_end(self, ends_at: float) -> None:
        told_of = self.told_at > self.began_at  # else the end is our own guess, which the first word of it replaces
        same = told_of and abs(ends_at - self.ends_at) < self.period / 2 and self.style is Style.WINDOW
        self.ends_at = min(self.ends_at, ends_at) if same else ends_at

    def snapshot(self, now: float) -> dict[str, JSON]:
        """The state as JSON, instants as ages; None stands for an instant that is not known."""
        instants = [
            self.at,
            self.told_at,
            self.ends_at,
            self.began_at,
            self._watched_from,
            self._watched_end,
            self._fits_from,
        ]
        return {
            "ages": [now - instant if math.isfinite(instant) else None for instant in instants],
            "numbers": [self.period, self.limit, self.left, self.spent, self._most],
            "style": self.style.value,
            "counts": [self._votes, self._permit],
            "unseen": [[permit, cost] for permit, cost in self._unseen],
        }

    @classmethod
    def restore(cls, snapshot: Mapping[str, JSON], now: float) -> Self:
        """Continue from a snapshot; ValueError if it is none."""
        period, limit, left, spent, most = numbers_in(snapshot, "numbers")
        votes, permit = numbers_in(snapshot, "counts")
        made = cls(period, limit=limit, left=left, spent=spent, style=Style(snapshot.get("style")), most=most)
        made._votes, made._permit = int(votes), int(permit)
        names = ("at", "told_at", "ends_at", "began_at", "_watched_from", "_watched_end", "_fits_from")
        ages = snapshot.get("ages")
        for name, age in zip(names, ages if isinstance(ages, list) else (), strict=True):
            if age is not None:
                setattr(made, name, now - as_number(age, name))
        rows = snapshot.get("unseen")
        for row in rows if isinstance(rows, list) else ():
            number, cost = numbers_in({"unseen": row}, "unseen")
            made._unseen.append((int(number), cost))
        return made


def _usable(value: float | None) -> float | None:
    return value if value is not None and 0 <= value <= ABSURD else None
