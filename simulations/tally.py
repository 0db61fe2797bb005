"""What came of one client's attempts: the raw material of all figures."""

from __future__ import annotations

from attrs import define, field, frozen

from simulations.client import Attempt


@frozen
class Head:
    """When an accepted attempt was sent, and the seconds until its head was here."""

    sent_at: float
    after: float


@define(eq=False)
class Tally:
    """Instants are in order; those of acceptances and refusals are the arrival's, when the upstream decided."""

    sent_at: list[float] = field(factory=list)
    accepted_at: list[float] = field(factory=list)
    accepted_cost: list[float] = field(factory=list)
    refused_at: list[float] = field(factory=list)
    lost_at: list[float] = field(factory=list)
    heads: list[Head] = field(factory=list)
    waits: list[float] = field(factory=list)  # seconds from first to accepted attempt, of prompts that had several
    pending: dict[int, float] = field(factory=dict)  # prompts refused so far -> the instant of their first attempt

    def accept(self, attempt: Attempt, now: float) -> None:
        """Its quota is booked."""
        self.accepted_at.append(now)
        self.accepted_cost.append(attempt.cost)
        if self.pending:
            first_at = self.pending.pop(attempt.prompt, None)
            if first_at is not None:
                self.waits.append(attempt.sent_at - first_at)

    def refuse(self, attempt: Attempt, now: float) -> None:
        """For rate or overload."""
        self.refused_at.append(now)
        self.pending.setdefault(attempt.prompt, attempt.sent_at)

    def lose(self, attempt: Attempt, now: float) -> None:
        """A 5xx that says nothing."""
        self.lost_at.append(now)
        self.pending.setdefault(attempt.prompt, attempt.sent_at)
