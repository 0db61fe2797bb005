"""What a simulated upstream saw: the figures by which a client is judged."""

from __future__ import annotations

from collections import Counter, deque
from math import inf

from attrs import define, field

from policies.contract import JSON
from simulations.asked import Asked
from simulations.script import Script

TOLERANCE = 1e-6  # seconds; a clock that was subtracted and added up again


@define(eq=False)
class Census:
    """Counts of attempts, each from its arrival until it leaves.

    attempts = accepted + the sums of refused and rejected. Of the accepted, errors were given a fault; those that were
    given none end as completed, or as aborted when the client went away first (faulty ones may be aborted too).
    """

    last_number: int = 0
    connections: int = 0
    connections_open: int = 0
    tokens_charged: int = 0
    _attempts: int = 0
    _accepted: int = 0
    _completed: int = 0
    _aborted: int = 0
    _most_in_flight: int = 0
    _most_in_a_second: int = 0
    _refused_during_hold: int = 0
    _refused: Counter[str] = field(factory=Counter)
    _rejected: Counter[str] = field(factory=Counter)
    _errors: Counter[str] = field(factory=Counter)
    _by_prompt: Counter[str] = field(factory=Counter)
    _by_dialect: Counter[str] = field(factory=Counter)
    _lately: deque[float] = field(factory=deque)  # instants of the attempts of the last second
    _open: dict[int, Script | None] = field(factory=dict)  # in flight, with the script of those that were admitted
    _arrived_at: dict[int, float] = field(factory=dict)  # of those in flight
    _holds: dict[int, float] = field(factory=dict)  # attempts whose refusal is on its way, and its Retry-After's end
    _news: deque[tuple[float, float]] = field(factory=deque)  # (clients know of a hold from, it ends at)
    _held_until: float = -inf  # end of the Retry-After that clients know of

    def arrived(self, now: float, dialect: str, *, counts: bool) -> int:
        """The number of a new attempt, which is in flight from now on; counts: it is an attempt at an answer."""
        self.last_number += 1
        self._open[self.last_number] = None
        self._arrived_at[self.last_number] = now
        self._most_in_flight = max(self._most_in_flight, len(self._open))
        self._attempts += counts
        if counts:
            self._by_dialect[dialect] += 1
            self._count_the_second(now)
        while self._news and self._news[0][0] <= now:
            self._held_until = max(self._held_until, self._news.popleft()[1])
        self._refused_during_hold += counts and now < self._held_until - TOLERANCE
        return self.last_number

    def admitted(self, asked: Asked, script: Script, charge: int) -> None:
        """It passed every quota and is answered by that script. charge: LLM tokens booked for it."""
        self._accepted += 1
        self._by_prompt[asked.digest] += 1
        self.tokens_charged += charge
        self._open[script.number] = script
        if script.fault is not None:
            self._errors[script.fault] += 1

    def refused(self, asked: Asked, dimension: str, script: Script, retry_after: float | None) -> None:
        """A quota refused it with a hint of that many seconds, counted from when the refusal goes out."""
        self._by_prompt[asked.digest] += 1
        self._refused[dimension] += 1
        if retry_after is not None:
            self._holds[script.number] = self._arrived_at[script.number] + script.ends_at + retry_after

    def rejected(self, status: int) -> None:
        """It was no valid request; counted by status."""
        self._rejected[str(status)] += 1

    def left(self, number: int, now: float, *, gone: bool, wire: float) -> bool:
        """It is over, or its client is gone; true if it had been admitted and this is the first word of its end."""
        script, arrived_at = self._open.pop(number, None), self._arrived_at.pop(number, now)
        if number in self._holds:
            self._news.append((now + wire, self._holds.pop(number)))
        if script is None:
            return False
        # Who has everything may go, whether or not the connection is held open.
        enough = script.ends_at if script.complete_at is None else script.complete_at
        early = now < arrived_at + enough - TOLERANCE
        if early or (gone and script.complete_at is None):
            self._aborted += 1
        elif script.whole:
            self._completed += 1
        return True

    def statistics(self) -> dict[str, JSON]:
        """All figures, as JSON."""
        return {
            "attempts": self._attempts,
            "accepted": self._accepted,
            "refused": {**self._refused},
            "rejected": {**self._rejected},
            "errors": {**self._errors},
            "completed": self._completed,
            "aborted": self._aborted,
            "in_flight": len(self._open),
            "most_in_flight": self._most_in_flight,
            "most_in_a_second": self._most_in_a_second,
            "attempts_by_prompt": {**self._by_prompt},
            "attempts_by_dialect": {**self._by_dialect},
            "tokens_charged": self.tokens_charged,
            "refused_during_hold": self._refused_during_hold,
            "connections": self.connections,
            "connections_open": self.connections_open,
        }

    def _count_the_second(self, now: float) -> None:
        self._lately.append(now)
        while self._lately[0] <= now - 1.0:
            self._lately.popleft()
        self._most_in_a_second = max(self._most_in_a_second, len(self._lately))
