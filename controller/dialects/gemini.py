"""Gemini's own API, at Google AI and at Vertex AI: https://ai.google.dev/api/generate-content.

What differs from OpenAI's chat: model and method stand in the URL (`:streamGenerateContent?alt=sse` streams,
`:generateContent` does not), turns are `contents` of `parts` with the roles user and model, the system text is a
`systemInstruction`, parameters live in `generationConfig`. Limits are announced nowhere; a refusal names its quotas and
its delay in the details of the error (google.rpc.QuotaFailure, RetryInfo). Vertex AI
(https://cloud.google.com/vertex-ai/generative-ai/docs/model-reference/inference) differs in the URL and in the key: an
OAuth token that lives an hour, so give it by --api-key-file. Streams: gemini_fold.py; prompts: gemini_prompt.py.
`contents`, `generationConfig`, `safetySettings` and
whatever else is Google's own go as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import quote

from attrs import define, evolve

from controller.charges import Charge
from controller.dialects.asking import (
    UnfitError,
    joined,
    json_request,
)
from controller.dialects.bodies import excerpt, parsed
from controller.dialects.complaints import find_error
from controller.dialects.contract import About, Fold, Request
from controller.dialects.gemini_fold import CandidatesFold
from controller.dialects.gemini_prompt import candidates_asked, gemini_body
from controller.dialects.openai_chat import bearer
from controller.dialects.prefix import Prefix
from controller.dialects.refusals import ORDINARY, refusal
from controller.outcome import Answer, Completed, Failed, Kind, Outcome
from controller.records import Prompt
from controller.sse import Event
from policies.contract import JSON, Hints

GOOGLE_AI = About(
    auth="x-goog-api-key",
    path="/v1beta/models/M:streamGenerateContent?alt=sse",
    proof="finishReason on every candidate (with usage, or a clean end), or a blocked prompt",
    delays="RetryInfo, text",
    usage="usageMetadata: last value of any chunk",
    key_env=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    hosts=("generativelanguage.googleapis.com",),
)
VERTEX_AI = evolve(
    GOOGLE_AI,
    auth="Authorization: Bearer (OAuth token)",
    path="/v1/projects/P/locations/L/publishers/google/models/M:streamGenerateContent?alt=sse",
    key_env=("GOOGLE_OAUTH_ACCESS_TOKEN",),
    hosts=("aiplatform.googleapis.com", "-aiplatform.googleapis.com"),
)


def google_key(key: str) -> dict[str, str]:
    """The key of Google AI."""
    return {"x-goog-api-key": key}


def google_path(base: str, model: str) -> str:
    """The model below a base URL with or without its version."""
    version = "" if base.rsplit("/", 1)[-1].startswith(("v1", "v2")) else "v1beta/"
    return version + (model if "/" in model else f"models/{model}")


def vertex_path(base: str, model: str) -> str:
    """The model below a location; one of another publisher by its whole path."""
    if model.startswith(("publishers/", "endpoints/")):
        return model
    return f"models/{model}" if base.endswith("/publishers/google") else f"publishers/google/models/{model}"


@define(kw_only=True)
class Gemini:
    """Gemini's own API at one of its two homes."""

    name: str = "gemini"
    about: About = GOOGLE_AI
    refuses_inside_200: bool = False
    charge: Charge = Charge.INPUT
    unsaid_output: int | None = None
    carry: Callable[[str], dict[str, str]] = google_key
    path: Callable[[str, str], str] = google_path  # of a model below a base URL

    def request(self, base_url: str, prompt: Prompt) -> Request | Failed:
        """Streamed unless the line said otherwise."""
        request = dict(prompt.request)
        streamed = request.get("stream") is not False
        model = request.pop("model", None)
        try:
            if prompt.endpoint == "embeddings":
                raise UnfitError("its embeddings have another form")
            if not isinstance(model, str) or not model:
                raise UnfitError("it names no model (give --model), and the model is part of the URL")
            body = gemini_body(request)
        except UnfitError as error:
            return error.failed(self.name)
        method, query = ("streamGenerateContent", "alt=sse") if streamed else ("generateContent", "")
        path = self.path(base_url.partition("?")[0], quote(model, safe="/@:-._"))
        return json_request(joined(base_url, f"{path}:{method}", query=query), body, streamed=streamed)

    def continued(self, prompt: Prompt, text: str) -> Prompt | None:
        """The answer so far as a turn of the model's."""
        return Prefix().continued(prompt, text) if text and "contents" not in prompt.request else None

    def key_headers(self, key: str) -> dict[str, str]:
        """The headers that carry the API key."""
        return self.carry(key)

    def hints(self, headers: Mapping[str, str]) -> dict[str, Hints]:
        """Nothing as a rule; a gateway may say something."""
        return ORDINARY.hints(headers)

    def classify(self, status: int, headers: Mapping[str, str], body: bytes, *, wall_now: float) -> Outcome:
        """Errors by the classifier of all; a 2xx is one response, or the list of them that a stream without SSE is."""
        document = parsed(body)
        complaint = None if _is_response(document) else find_error(document)
        if complaint is not None or not 200 <= status < 300:
            return refusal(status, complaint, body, headers, wall_now=wall_now)
        outcome = _folded(body)
        if isinstance(outcome, Answer):
            return Completed(answer=outcome, status=status)
        if outcome is None or (isinstance(outcome, Failed) and outcome.kind is Kind.MALFORMED):
            words = excerpt(body) or "an empty body"
            return Failed(kind=Kind.MALFORMED, message=f"no answer but: {words}", status=status, body=document)
        return outcome

    def fold(self, prompt: Prompt | None = None) -> Fold:
        """An empty fold for one stream; without the prompt, only its end shows that all candidates were there."""
        return CandidatesFold(expected=None if prompt is None else candidates_asked(prompt.request))


GEMINI = Gemini()
VERTEX = Gemini(name="vertex", about=VERTEX_AI, carry=bearer, path=vertex_path)


def _is_response(document: JSON) -> bool:
    return isinstance(document, dict) and bool({"candidates", "promptFeedback"} & document.keys())


def _folded(body: bytes) -> Outcome | Answer | None:
    """The response that the body holds, whole or in a list of pieces; None if it holds none."""
    fold = CandidatesFold()
    refused = fold.feed(Event(data=body.decode("utf-8", "replace")))
    return (refused or fold.end()) if fold.begun else None
