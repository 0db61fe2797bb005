"""Prompts and results as lines: formats, identity, parse and dump."""

from __future__ import annotations

from attrs import field, frozen

from controller.outcome import Answer, Failed, Usage
from policies.contract import JSON


@frozen(kw_only=True)
class Prompt:
    """One input line, understood.

    key: 32 hex digits, the same for the same line in every run. endpoint: "chat/completions" or "embeddings".
    request: the body to send, in OpenAI chat form ("messages" or "input", parameters), without "stream" unless the
    line said so.
    """

    id: JSON  # as given (a string or a number), None without one
    key: str
    source: str  # "-" for stdin, else the path as the user wrote it
    line: int  # from 1
    request: dict[str, JSON]
    endpoint: str = "chat/completions"
    metadata: JSON = None
    batch: bool = False  # came as an OpenAI Batch line and is answered as one


@frozen(kw_only=True)
class Timing:
    """Durations in seconds. queued: from read to the last admission; first_token and total: of the last attempt."""

    queued: float = 0.0
    first_token: float | None = None
    total: float = 0.0


@frozen(kw_only=True)
class Result:
    """One output line: exactly one of answer and error is set."""

    prompt: Prompt
    answer: Answer | None = None
    error: Failed | None = None
    attempts: int = 0
    throttled: int = 0
    timing: Timing = Timing()
    usage: Usage | None = field(default=None)  # of the last attempt; of a failed one what was seen
