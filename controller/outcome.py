"""What one attempt came to: a closed union, matched in one place each by limiter and worker.

Completed carries a whole answer. Throttled is a refusal for the rate: the prompt goes round again and no failure
budget is used. Failed says whose fault it was; its kind decides whether another attempt may help.
"""

from __future__ import annotations

from enum import Enum
from typing import assert_never

from attrs import field, frozen

from policies.contract import JSON, Hints, Scope


class Kind(Enum):
    """Why an attempt failed; the value is the `error.kind` of a result line."""

    CONNECT = "connect"  # no connection: nothing was sent
    NETWORK = "network"  # the connection broke after the request was sent, before an answer
    TIMEOUT = "timeout"  # one of our clocks ran out
    SERVER = "server"  # 5xx and kin
    TRUNCATED = "truncated"  # the stream ended without its proof of completion
    MALFORMED = "malformed"  # a 200 that is no answer: HTML, empty, not the dialect
    PROMPT = "prompt"  # the upstream will never answer this prompt (400, 413, 422, content policy)
    FATAL = "fatal"  # it will answer none: bad key, no credit, unknown model, spent quota
    INPUT = "input"  # the line is no prompt, or its id was used before: no attempt was made
    DEADLINE = "deadline"  # it had no answer in the time that the user gave it
    CANCELLED = "cancelled"  # our own doing


TRANSIENT = frozenset(
    {Kind.CONNECT, Kind.NETWORK, Kind.TIMEOUT, Kind.SERVER, Kind.TRUNCATED, Kind.MALFORMED}
)  # another attempt may help


@frozen(kw_only=True)
class Usage:
    """LLM tokens as the upstream counted them; None where it did not say."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    details: dict[str, JSON] = field(factory=dict)  # cached, reasoning, ...: numbers under the provider's names


@frozen
class Delta:
    """A piece of a text as it came, never empty and always encodable. index: of the choice it belongs to."""

    index: int
    text: str
    reasoning: bool = False


@frozen(kw_only=True)
class Part:
    """What had come of an answer's first choice when it broke off. No answer: at best the next attempt asks for the
    rest."""

    text: str = ""
    reasoning: str = ""
    usage: Usage | None = None


@frozen(kw_only=True)
class Answer:
    """A whole answer. `body` is what a plain, unstreamed request would have returned."""

    text: str
    reasoning: str = ""
    finish_reason: str | None
    model: str | None
    usage: Usage | None
    body: dict[str, JSON]


@frozen(kw_only=True)
class Completed:
    """The upstream proved that the answer is whole."""

    answer: Answer
    status: int = 200


@frozen(kw_only=True)
class Throttled:
    """Refused for the rate, by the quota it named; None where it named none.

    dimension: "requests", "tokens", "input_tokens", "output_tokens" or "concurrency". period: its window in seconds.
    """

    status: int
    message: str
    code: str | None = None
    dimension: str | None = None
    period: float | None = None
    scope: Scope = Scope.UNKNOWN
    retry_after: float | None = None  # seconds, finite, > 0, as the server said it
    hints: dict[str, Hints] = field(factory=dict)  # by dimension


@frozen(kw_only=True)
class Failed:
    """It came to nothing. status: HTTP status, None without one. sent: the request may have reached the upstream."""

    kind: Kind
    message: str
    status: int | None = None
    code: str | None = None
    sent: bool = True
    body: JSON = None  # the error body as the upstream sent it, for Batch output
    part: Part | None = field(default=None, repr=False)  # text that had come by then
    of_day: bool = False  # fatal because a quota per day is spent: the next day it will be answered
    retry_after: float | None = None  # seconds, as the server said it: for a spent day it may be those of a minute
    kept: bool = False  # its part stays and will be continued: as good as an answer to whoever counts trouble


Outcome = Completed | Throttled | Failed


def describe(outcome: Outcome) -> str:
    """One line for a log: the kind and the upstream's own words."""
    match outcome:
        case Completed():
            return "ok"
        case Throttled(status=status, message=message):
            return f"throttled ({status}): {message}"
        case Failed(kind=kind, status=status, message=message):
            return f"{kind.value}{f' ({status})' if status else ''}: {message}"
        case _:
            assert_never(outcome)
