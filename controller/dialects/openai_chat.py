"""Chat completions and embeddings in OpenAI's format, which nearly every provider and inference server speaks.

https://platform.openai.com/docs/api-reference/chat. What differs between providers is in the fields of the class
and the rows of openai_family.py; what their errors mean is in refusals.py, how a stream becomes an answer in
openai_fold.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attrs import define

from controller.charges import Charge
from controller.dialects.asking import joined, json_request
from controller.dialects.bodies import excerpt, parsed
from controller.dialects.complaints import find_error
from controller.dialects.contract import About, Fold, Request
from controller.dialects.openai_fold import ChatFold, answer_from, broken_by, usage_from
from controller.dialects.prefix import Prefix
from controller.dialects.refusals import ORDINARY, Habits, refusal
from controller.outcome import Answer, Completed, Failed, Kind, Outcome
from controller.records import Prompt
from policies.contract import JSON, Hints

EMBEDDINGS = "embeddings"
OPENAI = About(
    proof="`[DONE]`, or a finish_reason on every choice and a clean end",
    delays="Retry-After, retry-after-ms, text",
    usage="stream_options.include_usage: last chunk",
    key_env=("OPENAI_API_KEY",),
    hosts=("api.openai.com",),
)


def bearer(key: str) -> dict[str, str]:
    """The key as most providers want it."""
    return {"authorization": f"Bearer {key}"}


def below(base_url: str, prompt: Prompt) -> str:
    """The endpoint below the base URL, whatever the model."""
    return joined(base_url, prompt.endpoint)


@define(kw_only=True)
class OpenAIChat:
    """One provider of the family. prefix: how it is asked for the rest of an answer; None: it can't be."""

    name: str = "openai"
    about: About = OPENAI
    refuses_inside_200: bool = False
    charge: Charge = Charge.LARGER
    unsaid_output: int | None = None
    asks_for_usage: bool = True  # by stream_options, where a server does not tell it unasked
    habits: Habits = ORDINARY
    prefix: Prefix | None = None
    carry: Callable[[str], dict[str, str]] = bearer  # a key into its headers
    address: Callable[[str, Prompt], str] = below  # where a prompt goes

    def request(self, base_url: str, prompt: Prompt) -> Request:
        """Streamed with usage unless the line said otherwise; a line's `"stream_options": null` leaves them out."""
        body = dict(prompt.request)
        streamed = prompt.endpoint != EMBEDDINGS and body.get("stream") is not False
        if streamed:
            body["stream"] = True
            options = body.pop("stream_options", {} if self.asks_for_usage else None)
            if options is not None:
                body["stream_options"] = {"include_usage": True} | (options if isinstance(options, dict) else {})
        base = base_url if self.prefix is None else self.prefix.base(base_url, body)
        return json_request(self.address(base, prompt), body, streamed=streamed)

    def key_headers(self, key: str) -> dict[str, str]:
        """The headers that carry the API key."""
        return self.carry(key)

    def hints(self, headers: Mapping[str, str]) -> dict[str, Hints]:
        """What the headers say of requests and tokens."""
        return self.habits.hints(headers)

    def classify(self, status: int, headers: Mapping[str, str], body: bytes, *, wall_now: float) -> Outcome:
        """Errors by status, then body, then wording; a 2xx is an answer only if it holds one."""
        document = parsed(body)
        complaint = find_error(document)
        if complaint is not None or not 200 <= status < 300:
            return refusal(status, complaint, body, headers, wall_now=wall_now, habits=self.habits)
        answer = _plain_answer(document) if isinstance(document, dict) else None
        if isinstance(answer, Failed):
            return answer
        if answer is None:
            words = excerpt(body) or "an empty body"
            return Failed(kind=Kind.MALFORMED, message=f"no answer but: {words}", status=status, body=document)
        return Completed(answer=answer, status=status)

    def continued(self, prompt: Prompt, text: str) -> Prompt | None:
        """The prompt with `text` as the beginning of its answer, in this provider's way."""
        return self.prefix.continued(prompt, text) if self.prefix is not None else None

    def fold(self, prompt: Prompt | None = None) -> Fold:
        """An empty fold for one stream."""
        del prompt
        return ChatFold()


def _plain_answer(document: dict[str, JSON]) -> Answer | Failed | None:
    choices = document.get("choices")
    for choice in choices if isinstance(choices, list) else []:
        if broken := broken_by(choice):
            return Failed(kind=Kind.SERVER, message=f"the upstream broke off: finish reason {broken!r}", status=200)
    return answer_from(document) or _embeddings(document)


def _embeddings(document: dict[str, JSON]) -> Answer | None:
    if not isinstance(document.get("data"), list) or not document["data"]:
        return None
    model = document.get("model")
    return Answer(
        text="",
        finish_reason=None,
        model=model if isinstance(model, str) else None,
        usage=usage_from(document.get("usage")),
        body=document,
    )
