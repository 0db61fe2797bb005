"""What a dialect is: pure data and functions that turn a prompt into a request and an answer into an Outcome.

A new provider is one row in `table.py`, and one file beside this one if its format is new; the file's docstring says
what differs and where that is written. Nothing here raises on what an upstream sends: any bytes at all give an Outcome.
What is the same for all, the meaning of errors (refusals.py) and of delay hints (hints.py), no dialect does by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from attrs import frozen

from controller.charges import Charge
from controller.outcome import Answer, Delta, Failed, Outcome, Throttled, Usage
from controller.records import Prompt
from controller.sse import Event
from policies.contract import Hints


@frozen(kw_only=True)
class Request:
    """One HTTP POST, without its key. url is absolute; body is JSON in UTF-8."""

    url: str
    headers: dict[str, str]
    body: bytes
    streamed: bool = True  # False: the answer is one JSON document


@frozen(kw_only=True)
class About:
    """A provider in words and names: what the README's table shows, and where its keys are and may go."""

    auth: str = "Authorization: Bearer"
    path: str = "/chat/completions"
    proof: str  # of completion
    delays: str  # forms in which it says how long to wait
    usage: str  # where it counts tokens
    key_env: tuple[str, ...] = ()  # variables that hold its key by custom, best first
    hosts: tuple[str, ...] = ()  # its own, with all below them; empty: it runs anywhere


class Fold(Protocol):
    """Takes the events of one stream in and knows when the answer is whole."""

    @property
    def finished(self) -> bool:
        """The proof of completion has been seen; nothing after it matters."""

    @property
    def usage(self) -> Usage | None:
        """Tokens counted so far: kept for a stream that breaks off."""

    def feed(self, event: Event) -> Throttled | Failed | None:
        """Take one event in; an error inside the stream comes back as the outcome it means."""

    def fresh(self) -> list[Delta]:
        """The pieces of text that came since the last call, in order; once finished, nothing is held back."""

    def end(self) -> Answer | Failed:
        """The stream is over (or finished): the whole answer, or why it is none."""


class Dialect(Protocol):
    """One provider's request and answer format."""

    name: str
    about: About
    refuses_inside_200: bool  # accept at the first payload that is no error, not at the headers
    charge: Charge  # how the provider books LLM tokens, as far as it says
    unsaid_output: int | None  # LLM tokens asked for where the prompt does not say how many; None: it stays unsaid

    def request(self, base_url: str, prompt: Prompt) -> Request | Failed:
        """The request for a prompt, or why this dialect can't put it. `base_url` has no trailing slash."""

    def key_headers(self, key: str) -> dict[str, str]:
        """The headers that carry the API key."""

    def hints(self, headers: Mapping[str, str]) -> dict[str, Hints]:
        """What the headers (names in lower case) say of each quota dimension."""

    def classify(self, status: int, headers: Mapping[str, str], body: bytes, *, wall_now: float) -> Outcome:
        """What an answer that is no stream means: errors, and plain JSON answers with status 200.

        headers: names in lower case. wall_now: seconds since the epoch, for HTTP dates where `Date` is missing.
        """

    def continued(self, prompt: Prompt, text: str) -> Prompt | None:
        """The prompt that asks for the rest of an answer after `text`; None where no prefix is known to be taken.

        The bodies of such answers must be chat.completions: continued.py joins them.
        """

    def fold(self, prompt: Prompt | None = None) -> Fold:
        """An empty fold for one stream. prompt: what was asked, where it shows how much must come."""
