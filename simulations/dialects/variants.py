"""Errors of other upstreams that serve OpenAI's endpoints: each shape is one function in a table by its name.

Azure OpenAI, DeepSeek, vLLM before version 0.10 (flat), OpenRouter, Mistral, the LiteLLM proxy, and Ollama, whose shim
loses what goes wrong within a stream. Some have words of their own for what limit is in the way. Seen in their sources,
their documentation and their users' reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil

from attrs import frozen

from policies.contract import JSON
from simulations.answers import dump, sse
from simulations.asked import Asked
from simulations.dialects.contract import Refusing, Said, Trouble
from simulations.dialects.openai_errors import ROWS, refusal_text


@frozen
class Plain:
    """A trouble with everything looked up: what a shape puts into its own keys."""

    kind: str
    status: int
    type: str
    code: str | None
    text: str


Shape = Callable[[Plain], JSON]
STATUSES: Mapping[str, Mapping[str, int]] = {  # where they differ from OpenAI's
    "azure": {"quota": 403},
    "deepseek": {"billing": 402, "quota": 402, "invalid": 422},
    "openrouter": {"billing": 402, "blocked": 403, "quota": 402},
    "mistral": {"invalid": 422},
    "litellm": {"quota": 400},
}


@frozen
class Variant:
    """The wording of one of them, by its name in SHAPES."""

    name: str

    def say(self, trouble: Trouble, asked: Asked | None) -> Said:
        """The body, and what stands in a stream instead."""
        row = ROWS[trouble.kind]
        status = trouble.status or STATUSES.get(self.name, {}).get(trouble.kind, row.status)
        wording = TEXTS.get(self.name, refusal_text)
        text = trouble.message if trouble.refusing is None else wording(trouble.refusing)
        plain = Plain(trouble.kind, status, row.type, trouble.code or row.code, text)
        value, in_stream = SHAPES[self.name](plain), IN_STREAM.get(self.name)
        event = value if in_stream is None else in_stream(plain, asked)
        return Said(status, dump(value), sse(event))


def _azure(plain: Plain) -> JSON:
    """A code for the rate that is a word or a number, and the filter's verdict within."""
    if plain.kind == "blocked":
        verdict: JSON = {"hate": {"filtered": True, "severity": "high"}}
        inner: JSON = {"code": "ResponsibleAIPolicyViolation", "content_filter_result": verdict}
        return {
            "error": {
                "message": plain.text,
                "type": None,
                "param": "prompt",
                "code": "content_filter",
                "status": 400,
                "innererror": inner,
            }
        }
    names = {"rate": "RateLimitReached", "auth": "401", "missing": "DeploymentNotFound", "quota": "QuotaExceeded"}
    return {"error": {"code": names.get(plain.kind, plain.code or str(plain.status)), "message": plain.text}}


def _azure_text(refusing: Refusing) -> str:
    """It names calls or tokens, no numbers but the delay, and that in whole seconds."""
    if refusing.per_day or refusing.never_fits:
        return refusal_text(refusing)
    unit = "token" if refusing.of_tokens else "call"
    hint = "" if refusing.told is None else f" Please retry after {ceil(refusing.told)} seconds."
    return f"Requests to the ChatCompletions_Create Operation have exceeded {unit} rate limit of your S0 tier.{hint}"


def _deepseek(plain: Plain) -> JSON:
    """OpenAI's keys; no code for the rate has been reported."""
    rate = plain.kind == "rate"
    kind, code = ("rate_limit_error", None) if rate else (plain.type, plain.code)
    return {"error": {"message": plain.text, "type": kind, "param": None, "code": code}}


def _deepseek_text(refusing: Refusing) -> str:
    """How many are open, this one among them: https://github.com/tarigelamin1997/jobfetcher/pull/42."""
    if refusing.dimension != "concurrency":
        return refusal_text(refusing)
    limit = refusing.standing.limit
    return f"Your current concurrency is {limit + 1:g}, which exceeds your concurrency limit of {limit:g}."


def _vllm(plain: Plain) -> JSON:
    """Flat, with a numeric code; without a key just a word."""
    if plain.kind == "auth":
        return {"error": "Unauthorized"}
    names = {400: "BadRequestError", 404: "NotFoundError", 429: "RateLimitError", 503: "ServiceUnavailableError"}
    kind = names.get(plain.status, "InternalServerError")
    return {"object": "error", "message": plain.text, "type": kind, "param": None, "code": plain.status}


def _openrouter(plain: Plain) -> JSON:
    """A numeric code, and who really failed in the metadata."""
    metadata: dict[str, JSON] = {"provider_name": "Sim", "raw": plain.text}
    if plain.kind == "blocked":
        metadata = {"reasons": ["violence"], "flagged_input": "...", "provider_name": "Sim"}
    return {"error": {"code": plain.status, "message": plain.text, "metadata": metadata}, "user_id": "user_1"}


def _mistral(plain: Plain) -> JSON:
    """No `error` at all; what is invalid is told in a message that is an object."""
    if plain.kind == "auth":
        return {"message": "Unauthorized", "request_id": "1"}
    message: JSON = plain.text
    if plain.kind == "invalid":
        message = {"detail": [{"type": "extra_forbidden", "loc": ["body", "x"], "msg": plain.text}]}
    kinds = {"rate": "rate_limited", "overloaded": "service_tier_capacity_exceeded"}
    codes = {"rate": "1300", "overloaded": "3505"}
    kind, code = kinds.get(plain.kind, plain.type), codes.get(plain.kind)
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}


def _litellm(plain: Plain) -> JSON:
    """Everything is text, "None" as well."""
    names = {429: "RateLimitError", 401: "AuthenticationError", 400: "BadRequestError"}
    text = f"litellm.{names.get(plain.status, 'APIError')}: OpenAIException - {plain.text}"
    kind = "budget_exceeded" if plain.kind == "quota" else "throttling_error" if plain.kind == "rate" else "None"
    return {"error": {"message": text, "type": kind, "param": "None", "code": str(plain.status)}}


def _ollama(plain: Plain) -> JSON:
    """OpenAI's keys with types of its own."""
    kinds = {400: "invalid_request_error", 404: "not_found_error"}
    busy = "server busy, please try again.  maximum pending requests exceeded"
    text = busy if plain.kind == "overloaded" else plain.text
    error: JSON = {"message": text, "type": kinds.get(plain.status, "api_error"), "param": None, "code": None}
    return {"error": error}


def _openrouter_chunk(plain: Plain, asked: Asked | None) -> JSON:
    """An error beside a choice that says so as well."""
    choice: JSON = {"index": 0, "delta": {"content": ""}, "finish_reason": "error", "native_finish_reason": "error"}
    error: JSON = {"code": plain.status, "message": plain.text, "metadata": {"error_type": "provider_unavailable"}}
    return {**_chunk(asked), "provider": "Sim", "error": error, "choices": [choice]}


def _ollama_chunk(plain: Plain, asked: Asked | None) -> JSON:  # noqa: ARG001 - the error is lost, that is the point
    """One more empty delta; only the missing terminator tells."""
    choice: JSON = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    return {**_chunk(asked), "choices": [choice]}


def _chunk(asked: Asked | None) -> dict[str, JSON]:
    return {"id": "gen-1", "object": "chat.completion.chunk", "model": "" if asked is None else asked.model}


IN_STREAM: Mapping[str, Callable[[Plain, Asked | None], JSON]] = {
    "openrouter": _openrouter_chunk,
    "ollama": _ollama_chunk,
}
TEXTS: Mapping[str, Callable[[Refusing], str]] = {"azure": _azure_text, "deepseek": _deepseek_text}
SHAPES: Mapping[str, Shape] = {
    "azure": _azure,
    "deepseek": _deepseek,
    "vllm": _vllm,
    "openrouter": _openrouter,
    "mistral": _mistral,
    "litellm": _litellm,
    "ollama": _ollama,
}
