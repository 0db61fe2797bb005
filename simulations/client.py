"""What the closed loop asks of a client: when it wants to act, what it sends, and how it takes the answers.

A client is our limiter with a policy, or a peer's worker pool. It never sees the hidden quota nor, before its end, how
long an answer gets; it has no clock and draws no random numbers of its own: time is an argument, its seed was given
when it was made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from attrs import define, frozen

from policies.contract import Hints
from simulations.sizes import Sized

Told = dict[str, Hints]  # by dimension
NOTHING: Told = {}


@frozen
class Send:
    """One request that a client wants sent now. cost: LLM tokens, or 1 where the quota counts requests.

    sized: its LLM tokens, where requests and tokens are both counted; cost is 1 then.
    """

    prompt: int
    cost: float
    sized: Sized | None = None


@define(eq=False)
class Attempt:
    """One request under way; numbered by the loop. client: the number of its sender; sent_at: an instant."""

    number: int
    client: int
    prompt: int
    cost: float
    sent_at: float
    sized: Sized | None = None


@frozen
class Answer:
    """What an arrival came to. status: 200, 429, 502 or 503. queued: seconds of waiting within the upstream."""

    status: int
    retry_after: float | None = None
    hints: Told = NOTHING
    queued: float = 0.0
    dimension: str | None = None  # whose limit a refusal names


class Client(Protocol):
    """One sender. After each call below the loop asks `wake_at` again."""

    def wake_at(self) -> float:
        """The next instant it wants to act, at once if it has passed; inf: only after an answer."""

    def act(self, now: float) -> Sequence[Send]:
        """What it sends now, maybe nothing; the next `wake_at` must lie in the future then."""

    def sent(self, attempt: Attempt, now: float) -> None:
        """One of what `act` returned is under way, in the same order."""

    def accepted(self, attempt: Attempt, now: float, answer: Answer) -> None:
        """The head of a 2xx has come."""

    def refused(self, attempt: Attempt, now: float, answer: Answer) -> None:
        """Refused for the rate (429) or for overload (503); nothing more comes of this attempt."""

    def ended(self, attempt: Attempt, now: float, ok: bool) -> None:
        """The stream is over, or the attempt was lost (not ok, a 5xx; without `accepted` before it).

        If ok, usage has come with it: only now may a client read the lengths in `attempt.sized`.
        """
