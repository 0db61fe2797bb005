"""Anthropic's Messages: https://docs.anthropic.com/en/api/messages-streaming and https://docs.anthropic.com/en/api/errors.

Usage comes in two parts: input with message_start, output as a running total with message_delta. Nothing but
message_stop proves that an answer is complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from math import ceil

from attrs import frozen

from policies.contract import JSON
from simulations.answers import Answer, Events, dump, sse
from simulations.asked import (
    MOST_OUTPUT_TOKENS,
    Asked,
    boolean,
    digest,
    message,
    model_of,
    read_object,
    tokens_of,
    whole,
)
from simulations.dialects.contract import Endpoint, Headers, Refusing, Request, Said, Trouble
from simulations.dialects.openai import bearer
from simulations.dialects.openai_errors import refusal_text
from simulations.standing import Standing

FINISH = {"stop": "end_turn", "length": "max_tokens"}
UNITS = {
    "requests": "requests per minute",
    "tokens": "tokens per minute",
    "input_tokens": "input tokens per minute",
    "output_tokens": "output tokens per minute",
}


@frozen
class Row:
    """One kind of trouble in Anthropic's words; detail: the error_code within `details`."""

    status: int
    type: str
    detail: str | None = None


ROWS: Mapping[str, Row] = {
    "invalid": Row(400, "invalid_request_error"),
    "blocked": Row(400, "invalid_request_error"),
    "context": Row(400, "invalid_request_error"),
    "auth": Row(401, "authentication_error"),
    "billing": Row(400, "invalid_request_error"),  # told by its text alone: the credit balance
    "forbidden": Row(403, "permission_error"),
    "missing": Row(404, "not_found_error"),
    "large": Row(413, "request_too_large"),
    "rate": Row(429, "rate_limit_error"),
    "quota": Row(429, "rate_limit_error", "enforced_spend_limit_reached"),
    "server": Row(500, "api_error"),
    "overloaded": Row(529, "overloaded_error"),
    "timeout": Row(504, "timeout_error"),
}


@frozen
class Anthropic:
    """The dialect of /v1/messages."""

    name: str = "anthropic"
    usual_hint: str = "seconds"
    request_id_header: str = "request-id"

    def speaks(self, path: str) -> bool:
        """Its one endpoint, with or without a gateway's prefix."""
        return path.endswith("/v1/messages")

    def endpoint(self, request: Request) -> Endpoint | None:  # noqa: ARG002 - the shape all dialects share
        """There is one."""
        return Endpoint(name="messages")

    def key(self, request: Request) -> str | None:
        """The header, or a bearer token."""
        return request.headers.get("x-api-key") or bearer(request)

    def models(self) -> bytes:
        """Nobody asks for it under this path."""
        return dump({"data": [], "has_more": False})

    def parse(self, endpoint: Endpoint, request: Request) -> Asked:
        """`messages` and `system`; max_tokens and the version of the API must be there."""
        if "anthropic-version" not in request.headers:
            raise ValueError("anthropic-version: header is required")
        values = read_object(request.body)
        messages = [*_system(values), *_messages(values)]
        most = whole(values, "max_tokens", MOST_OUTPUT_TOKENS)
        if most is None:
            raise ValueError("max_tokens: Field required")
        return Asked(
            endpoint=endpoint.name,
            digest=digest(messages),
            model=model_of(values),
            input_tokens=tokens_of(messages),
            stream=boolean(values, "stream"),
            max_output_tokens=most,
        )

    def events(self, answer: Answer) -> Events:
        """A block of thinking if there is any, a block of text, and a ping."""
        [choice] = answer.choices
        start: dict[str, JSON] = {
            "type": "message_start",
            "message": {**_head(answer), **_ending(None), "usage": _usage(answer, 1)},
        }
        thinking = _block(0, "thinking", choice.thoughts) if choice.thoughts else []
        text = _block(1 if thinking else 0, "text", choice.pieces)
        ended: JSON = {**_ending(FINISH[choice.finish_reason])}
        done: dict[str, JSON] = {
            "type": "message_delta",
            "delta": ended,
            "usage": {"output_tokens": answer.output_tokens},
        }
        return Events(
            opening=(_event(start), *(thinking or text)[:1], _event({"type": "ping"})),
            content=tuple([*thinking, *text][1:-1]),
            closing=(text[-1], _event(done), _event({"type": "message_stop"})),
        )

    def body(self, answer: Answer) -> bytes:
        """A message in one piece."""
        [choice] = answer.choices
        thinking: JSON = {"type": "thinking", "thinking": "".join(choice.thoughts), "signature": "c2lt"}
        content: list[JSON] = [thinking] if choice.thoughts else []
        if choice.pieces:
            content.append({"type": "text", "text": choice.text})
        ended = _ending(FINISH[choice.finish_reason])
        return dump({**_head(answer), **ended, "content": content, "usage": _usage(answer, answer.output_tokens)})

    def padding(self, answer: Answer) -> tuple[bytes, ...]:  # noqa: ARG002 - the shape all dialects share
        """Pings, an event that nobody knows yet, and a running total in the middle."""
        running: dict[str, JSON] = {"type": "message_delta", "delta": _ending(None), "usage": {"output_tokens": 1}}
        return _event({"type": "ping"}), _event({"type": "weather_report", "sky": "clear"}), _event(running)

    def say(self, trouble: Trouble, asked: Asked | None) -> Said:  # noqa: ARG002 - the shape all wordings share
        """{"type": "error", "error": {"type", "message", "details"}, "request_id"}, and an `event: error` of it."""
        row, refusing = ROWS[trouble.kind], trouble.refusing
        detail, text = row.detail, trouble.message if refusing is None else _refusal_text(refusing)
        if refusing is not None and refusing.per_day:
            detail = "enforced_spend_limit_reached"
        elif refusing is not None and refusing.dimension == "slope":
            detail = "ramp_limit_exceeded"
        details: JSON = None if detail is None else {"error_code": detail}
        error: JSON = {"type": row.type, "message": text, "details": details}
        value: JSON = {"type": "error", "error": error, "request_id": f"req_{trouble.number}"}
        return Said(trouble.status or row.status, dump(value), sse(value, "error"))

    def limit_headers(self, standings: Mapping[str, Standing], wall: float) -> Headers:
        """anthropic-ratelimit-*; the reset is the instant of the full refill, in RFC 3339 and whole seconds.

        "tokens" repeats the tightest of the limits on LLM tokens.
        """
        of_tokens = [standing for name, standing in standings.items() if name.endswith("tokens")]
        tightest = min(of_tokens, key=lambda standing: standing.remaining / standing.limit, default=None)
        named = {name.replace("_", "-"): standing for name, standing in standings.items()}
        if tightest is not None:
            named = {"input-tokens": tightest} | named if "tokens" in named else {**named, "tokens": tightest}
        pairs: list[tuple[str, str]] = []
        for name, standing in named.items():
            resets_at = datetime.fromtimestamp(0, UTC) + timedelta(seconds=ceil(wall + min(standing.reset, 1e9)))
            pairs += [
                (f"anthropic-ratelimit-{name}-limit", f"{standing.limit:.0f}"),
                (f"anthropic-ratelimit-{name}-remaining", f"{int(standing.remaining)}"),
                (f"anthropic-ratelimit-{name}-reset", f"{resets_at:%Y-%m-%dT%H:%M:%SZ}"),
            ]
        return tuple(pairs)


def _refusal_text(refusing: Refusing) -> str:
    """It names the limit, and no delay; what can never pass is told as OpenAI does, or nobody would know."""
    if refusing.per_day or refusing.never_fits or refusing.dimension not in UNITS:
        return refusal_text(refusing)
    limit, unit = refusing.standing.limit, UNITS[refusing.dimension]
    text = f"This request would exceed the rate limit for your organization of {limit:,.0f} {unit}"
    return f"{text} (model: {refusing.asked.model}). See the response headers for current usage."


def _system(values: Mapping[str, JSON]) -> list[JSON]:
    given = values.get("system")
    return [] if given is None else [message("system", given)]


def _messages(values: Mapping[str, JSON]) -> list[JSON]:
    given = values.get("messages")
    if not isinstance(given, list) or not given:
        raise ValueError("messages: Field required")
    messages: list[JSON] = []
    for i, each in enumerate(given):
        if not isinstance(each, dict) or each.get("role") not in ("user", "assistant"):
            raise ValueError(f"messages.{i}.role: Input should be 'user' or 'assistant'")
        messages.append(message(str(each["role"]), each.get("content")))
    return messages


def _block(index: int, kind: str, pieces: tuple[str, ...]) -> list[bytes]:
    """Start, deltas and stop of one block."""
    empty: dict[str, JSON] = {"type": kind, kind: ""}
    deltas: list[JSON] = [{"type": f"{kind}_delta", kind: piece} for piece in pieces]
    if kind == "thinking":
        empty["signature"] = ""
        deltas.append({"type": "signature_delta", "signature": "c2lt"})
    return [
        _event({"type": "content_block_start", "index": index, "content_block": empty}),
        *(_event({"type": "content_block_delta", "index": index, "delta": delta}) for delta in deltas),
        _event({"type": "content_block_stop", "index": index}),
    ]


def _head(answer: Answer) -> dict[str, JSON]:
    model = answer.asked.model
    return {"id": f"msg_{answer.name}", "type": "message", "role": "assistant", "model": model, "content": []}


def _ending(stop_reason: str | None) -> dict[str, JSON]:
    return {"stop_reason": stop_reason, "stop_sequence": None}


def _usage(answer: Answer, output: int) -> JSON:
    cache: dict[str, JSON] = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    return {"input_tokens": answer.asked.input_tokens, **cache, "output_tokens": output}


def _event(value: dict[str, JSON]) -> bytes:
    return sse(value, str(value["type"]))
