"""Chat completions and embeddings in OpenAI's format, which nearly every provider and inference server speaks.

https://platform.openai.com/docs/api-reference/chat. What differs between providers is in the fields of the class
and the rows of table.py; what their errors mean is in openai_errors.py, how a stream becomes an answer in
openai_fold.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from attrs import define, evolve, field

from controller.dialects.bodies import excerpt, parsed
from controller.dialects.contract import Fold, Request
from controller.dialects.hints import rate_limits
from controller.dialects.openai_errors import find_error, refusal
from controller.dialects.openai_fold import ChatFold, answer_from, broken_by, usage_from
from controller.dialects.prefix import Prefix
from controller.outcome import Answer, Completed, Failed, Kind, Outcome, Throttled
from controller.records import Prompt
from policies.contract import JSON, Hints

EMBEDDINGS = "embeddings"


@define(kw_only=True)
class OpenAIChat:
    """One provider of the family. periods: seconds per quota dimension, where its documentation states them.

    prefix: how it is asked for the rest of an answer; None: it can't be.
    """

    name: str = "openai"
    refuses_inside_200: bool = False
    key_header: str = "authorization"  # Azure has one of its own, without "Bearer"
    periods: dict[str, float] = field(factory=dict)
    prefix: Prefix | None = None

    def request(self, base_url: str, prompt: Prompt) -> Request:
        """Streamed with usage unless the line said otherwise; a line's `"stream_options": null` leaves them out."""
        body = dict(prompt.request)
        streamed = prompt.endpoint != EMBEDDINGS and body.get("stream") is not False
        if streamed:
            body["stream"] = True
            options = body.pop("stream_options", {})
            if options is not None:
                body["stream_options"] = {"include_usage": True} | (options if isinstance(options, dict) else {})
        base = base_url if self.prefix is None else self.prefix.base(base_url, body)
        return Request(
            url=f"{base}/{prompt.endpoint}",
            headers={
                "content-type": "application/json",
                "accept": "text/event-stream" if streamed else "application/json",
            },
            # ASCII with escapes, so that a lone surrogate in a prompt can be sent at all.
            body=json.dumps(body, separators=(",", ":")).encode("ascii"),
            streamed=streamed,
        )

    def key_headers(self, key: str) -> dict[str, str]:
        """The headers that carry the API key."""
        return {self.key_header: f"Bearer {key}" if self.key_header == "authorization" else key}

    def hints(self, headers: Mapping[str, str]) -> dict[str, Hints]:
        """What the x-ratelimit headers say of requests and tokens."""
        return rate_limits(headers, periods=self.periods)

    def classify(self, status: int, headers: Mapping[str, str], body: bytes, *, wall_now: float) -> Outcome:
        """Errors by status, then body, then wording; a 2xx is an answer only if it holds one."""
        document = parsed(body)
        complaint = find_error(document)
        if complaint is not None or not 200 <= status < 300:
            outcome = refusal(status, complaint, body, headers, wall_now=wall_now)
            return evolve(outcome, hints=self.hints(headers)) if isinstance(outcome, Throttled) else outcome
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

    def fold(self) -> Fold:
        """An empty fold for one stream."""
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
