"""What a peer's rules decide: when a worker may send, and what it does after a refusal."""

from __future__ import annotations

from typing import Protocol

from attrs import frozen

from policies.contract import Hints


@frozen(kw_only=True)
class News:
    """What became of an attempt. tries: how many of its prompt failed before; mark: what `passed` said of it."""

    now: float
    mark: float
    tries: int
    retry_after: float | None = None  # seconds
    hints: Hints = Hints()
    total: float = 0.0  # seconds since it was sent


class Gate(Protocol):
    """One tool's rules for all of its workers. Instants and seconds."""

    def comes(self, now: float, tries: int) -> float:
        """A worker comes to the gate; the instant before which it does not go (most gates say now)."""

    def opens_at(self, now: float, tries: int) -> float:
        """From when the next worker may pass, as far as is known; inf: only an answer can tell."""

    def passed(self, now: float, cost: float, tries: int) -> float:
        """One passes; a mark that comes back with its answer."""

    def accepted(self, news: News) -> None:
        """The head of a 2xx has come."""

    def refused(self, news: News) -> float | None:
        """A 429. The pause before the worker comes again; None: it gives the prompt up."""

    def lost(self, news: News) -> float | None:
        """A 5xx. As with a refusal."""

    def ended(self, news: News) -> None:
        """A whole answer is in."""
