"""What a dialect of the simulated upstream must be able to say: all that the author of a new one needs to read.

A dialect is one file with one frozen class, and one row in `simulations.dialects.table`. It words what the provider
has decided and decides nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from attrs import frozen

from simulations.answers import Answer, Events
from simulations.asked import Asked
from simulations.standing import Standing

Headers = tuple[tuple[str, str], ...]  # lower-case names

# Every kind of trouble there is, with the sentence that stands in its message. Which status, type and code it has is
# the dialect's business.
KINDS: Mapping[str, str] = {
    "invalid": "The request is not valid.",
    "blocked": "The prompt was refused by the content filter.",
    "context": "This model's maximum context length is 8192 tokens. Please reduce the length of the messages.",
    "auth": "Incorrect API key provided.",
    "billing": "Your credit balance is too low. You exceeded your current quota, please check your billing details.",
    "forbidden": "You have no permission for this model.",
    "missing": "The model does not exist or you do not have access to it.",
    "large": "Request too large.",
    "rate": "Rate limit reached.",
    "quota": "You exceeded your current quota, please check your plan and billing details.",
    "server": "The server had an error.",
    "overloaded": "The model is overloaded. Please try again later.",
    "timeout": "The request timed out.",
}


@frozen(kw_only=True)
class Request:
    """What came over the wire. path: unquoted, without the query."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]  # lower-case names
    body: bytes


@frozen(kw_only=True)
class Endpoint:
    """Where a path leads. model, stream: what the path itself says about them."""

    name: str
    method: str = "POST"
    model: str = ""
    stream: bool = False


@frozen(kw_only=True)
class Refusing:
    """A refusal for the rate. told: the seconds that the text may name, None keeps them to itself."""

    asked: Asked
    dimension: str
    standing: Standing
    told: float | None
    cost: int = 1  # what was asked for, in that dimension
    per_day: bool = False  # the text blames a limit per day, whatever is told

    @property
    def of_tokens(self) -> bool:
        """A limit on LLM tokens, be it of the input or the output alone, is in the way."""
        return self.dimension.endswith("tokens")

    @property
    def never_fits(self) -> bool:
        """Alone it is more than the limit."""
        return self.of_tokens and self.cost > self.standing.limit


@frozen(kw_only=True)
class Trouble:
    """An error to be worded. kind: one of KINDS; status and code overrule what the dialect would say for that kind."""

    kind: str
    message: str
    number: int = 0  # of the attempt
    status: int | None = None
    code: str | None = None
    refusing: Refusing | None = None  # only with kind "rate"


@frozen
class Said:
    """An error in the dialect's words. event: the same within a stream that has begun."""

    status: int
    body: bytes
    event: bytes


class Dialect(Protocol):
    """One upstream's way of speaking. All of it is pure."""

    @property
    def name(self) -> str:
        """For the statistics."""

    @property
    def usual_hint(self) -> str:
        """Where a refusal usually says how long to wait: "seconds" (header and text) or "body" (text alone)."""

    @property
    def request_id_header(self) -> str:
        """The header that names an attempt."""

    def speaks(self, path: str) -> bool:
        """Whether it answers for this path at all, be it with a 404."""

    def endpoint(self, request: Request) -> Endpoint | None:
        """Where the path leads, None for nowhere."""

    def key(self, request: Request) -> str | None:
        """The API key that a request carries."""

    def models(self) -> bytes:
        """The body that lists the models: one, but every model name is served."""

    def parse(self, endpoint: Endpoint, request: Request) -> Asked:
        """Understand a body; raises ValueError with the sentence for the 400."""

    def events(self, answer: Answer) -> Events:
        """A streamed answer."""

    def body(self, answer: Answer) -> bytes:
        """The same in one piece."""

    def padding(self, answer: Answer) -> tuple[bytes, ...]:
        """Events without any text, as they may come at any place in a stream and must be read past."""

    def say(self, trouble: Trouble, asked: Asked | None) -> Said:
        """An error, or a refusal for the rate. asked: whose stream the event would stand in."""

    def limit_headers(self, standings: Mapping[str, Standing], wall: float) -> Headers:
        """What is announced of the limits on requests and tokens. wall: Unix seconds."""
