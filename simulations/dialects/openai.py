"""OpenAI's chat completions and embeddings, and what others serve under the same paths with errors of their own.

https://platform.openai.com/docs/api-reference/chat-streaming and https://platform.openai.com/docs/api-reference/embeddings
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Protocol

from attrs import evolve, frozen

from policies.contract import JSON
from simulations.answers import CREATED, Answer, Events, dump, go_duration, in_turns, sse
from simulations.asked import (
    MOST_CHOICES,
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
from simulations.dialects import embeddings
from simulations.dialects.contract import Endpoint, Headers, Request, Said, Trouble
from simulations.dialects.openai_errors import limit_headers
from simulations.standing import Standing

# Where clients look for these endpoints; the last but one is Azure's, with the deployment in the path.
PREFIX = re.compile(r"^(/v1beta/openai|/openai/v1|/api/v1|/v1|/openai/deployments/[^/]+|)/")
ENDPOINTS = {
    "chat/completions": Endpoint(name="chat/completions"),
    "embeddings": Endpoint(name="embeddings"),
    "models": Endpoint(name="models", method="GET"),
}


class Wording(Protocol):
    """How errors are put."""

    def say(self, trouble: Trouble, asked: Asked | None) -> Said:
        """An error, as a body and within a stream."""


@frozen
class OpenAI:
    """The dialect that most upstreams speak; `errors` are what they differ in."""

    name: str
    errors: Wording
    reset: Callable[[float], str] = go_duration  # how headers write one
    usual_hint: str = "seconds"
    request_id_header: str = "x-request-id"

    def speaks(self, path: str) -> bool:  # noqa: ARG002 - the shape all dialects share
        """It is the one for whatever no other dialect knows."""
        return True

    def endpoint(self, request: Request) -> Endpoint | None:
        """The prefix may be any that clients are used to, or none."""
        found = PREFIX.match(request.path)
        endpoint = ENDPOINTS.get(request.path[found.end() :]) if found else None
        if endpoint is not None and found is not None and "deployments/" in found[0]:
            return evolve(endpoint, model=found[0].strip("/").rpartition("/")[2])
        return endpoint

    def key(self, request: Request) -> str | None:
        """`Authorization: Bearer`, or Azure's header."""
        return bearer(request) or request.headers.get("api-key")

    def models(self) -> bytes:
        """As GET /v1/models."""
        model: JSON = {"id": "sim-1", "object": "model", "created": CREATED, "owned_by": "tidegate"}
        return dump({"object": "list", "data": [model]})

    def parse(self, endpoint: Endpoint, request: Request) -> Asked:
        """Both endpoints' bodies."""
        values = read_object(request.body)
        model = endpoint.model or model_of(values)
        return embeddings.parse(model, values) if endpoint.name == "embeddings" else _parse_chat(model, values)

    def events(self, answer: Answer) -> Events:
        """Role, reasoning and text, finish, usage where it was asked for, [DONE]."""
        choices = answer.choices
        rows = [
            [
                *(_chunk(answer, i, {"reasoning_content": thought}) for thought in choice.thoughts),
                *(_chunk(answer, i, {"content": piece}) for piece in choice.pieces),
            ]
            for i, choice in enumerate(choices)
        ]
        finished = [_chunk(answer, i, {}, choice.finish_reason) for i, choice in enumerate(choices)]
        role: JSON = {"role": "assistant", "content": "", "refusal": None}
        return Events(
            opening=tuple(_chunk(answer, i, role) for i in range(len(choices))),
            content=in_turns(rows),
            closing=tuple(
                chain(finished, [_usage_chunk(answer)] if answer.asked.include_usage else [], [b"data: [DONE]\n\n"])
            ),
        )

    def body(self, answer: Answer) -> bytes:
        """A chat completion, or embeddings."""
        if answer.asked.endpoint == "embeddings":
            return embeddings.body(answer.asked, answer.seed)
        listed: list[JSON] = [
            {"index": i, "message": _message(answer, i), "logprobs": None, "finish_reason": choice.finish_reason}
            for i, choice in enumerate(answer.choices)
        ]
        head = {**_head(answer), "object": "chat.completion"}
        return dump({**head, "choices": listed, "usage": _usage(answer)})

    def padding(self, answer: Answer) -> tuple[bytes, ...]:
        """Azure's opening without choices and identity, deltas that are empty or missing, usage on its own."""
        filtered: JSON = {"prompt_index": 0, "content_filter_results": {"hate": {"filtered": False}}}
        azure: dict[str, JSON] = {"id": "", "object": "", "created": 0, "model": "", "choices": []}
        missing: JSON = {"index": 0, "finish_reason": None, "content_filter_offsets": {"check_offset": 0}}
        return (
            sse({**azure, "prompt_filter_results": [filtered]}),
            _chunk(answer, 0, {}),
            _chunk(answer, 0, {"content": None}),
            sse({**_head(answer), "choices": [missing], "error": None}),
            _usage_chunk(answer),
        )

    def say(self, trouble: Trouble, asked: Asked | None) -> Said:
        """In the words of whoever serves it."""
        return self.errors.say(trouble, asked)

    def limit_headers(self, standings: Mapping[str, Standing], wall: float) -> Headers:  # noqa: ARG002 - shared shape
        """x-ratelimit-*."""
        return limit_headers(standings, self.reset)


def bearer(request: Request) -> str | None:
    """The key of an `Authorization: Bearer` header."""
    given = request.headers.get("authorization", "")
    return given.removeprefix("Bearer ") if given.startswith("Bearer ") else None


def _parse_chat(model: str, values: Mapping[str, JSON]) -> Asked:
    messages = values.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ValueError("Missing required parameter: 'messages'.")
    if not all(isinstance(each, dict) and isinstance(each.get("role"), str) for each in messages):
        raise ValueError("Missing required parameter: 'messages[].role'.")
    options = values.get("stream_options")
    limits = [whole(values, key, MOST_OUTPUT_TOKENS) for key in ("max_completion_tokens", "max_tokens")]
    return Asked(
        endpoint="chat/completions",
        digest=digest([_plain(each) for each in messages if isinstance(each, dict)]),
        model=model,
        input_tokens=tokens_of(messages),
        stream=boolean(values, "stream"),
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        choices=whole(values, "n", MOST_CHOICES) or 1,
        max_output_tokens=min((limit for limit in limits if limit is not None), default=None),
    )


def _plain(given: dict[str, JSON]) -> JSON:
    """The message as it counts for the prompt's identity: parts of text are one string."""
    plain = message(str(given["role"]), given.get("content"))
    return given | {key: value for key, value in plain.items() if key in given}


def _message(answer: Answer, index: int) -> JSON:
    choice = answer.choices[index]
    thoughts: dict[str, JSON] = {"reasoning_content": "".join(choice.thoughts)} if choice.thoughts else {}
    return {"role": "assistant", "content": choice.text, "refusal": None, **thoughts}


def _usage(answer: Answer) -> JSON:
    return {
        "prompt_tokens": answer.asked.input_tokens,
        "completion_tokens": answer.output_tokens,
        "total_tokens": answer.asked.input_tokens + answer.output_tokens,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": answer.thought_tokens},
    }


def _usage_chunk(answer: Answer) -> bytes:
    return sse({**_head(answer), "choices": [], "usage": _usage(answer)})


def _head(answer: Answer) -> dict[str, JSON]:
    name = f"chatcmpl-{answer.name}"
    return {"id": name, "object": "chat.completion.chunk", "created": CREATED, "model": answer.asked.model}


def _chunk(answer: Answer, index: int, delta: JSON, finish_reason: str | None = None) -> bytes:
    choice: JSON = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    usage: dict[str, JSON] = {"usage": None} if answer.asked.include_usage else {}
    return sse({**_head(answer), "choices": [choice], **usage})
