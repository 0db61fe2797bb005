"""Gemini's own API, and Vertex AI's for the same models: https://ai.google.dev/api/generate-content.

There is no terminator: the proof of completion is a chunk with a finishReason. Without `alt=sse` a stream is one JSON
array, written piece by piece. Usage stands on every chunk and is a running total.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import accumulate

from attrs import frozen

from policies.contract import JSON
from simulations.answers import Answer, Choice, Events, dump, in_turns, sse
from simulations.asked import (
    MOST_CHOICES,
    MOST_OUTPUT_TOKENS,
    Asked,
    count_tokens,
    digest,
    message,
    read_object,
    tokens_of,
    whole,
)
from simulations.dialects.contract import Endpoint, Headers, Request, Said, Trouble
from simulations.dialects.google_errors import GoogleErrors
from simulations.dialects.openai import bearer
from simulations.standing import Standing

MODEL = re.compile(r"/models/([^/:]+):(generateContent|streamGenerateContent)$")
REALM = re.compile(r"^/v1beta/(?!openai/)|^/v1beta1/|^/v1/projects/")
FINISH = {"stop": "STOP", "length": "MAX_TOKENS"}


@frozen
class Gemini:
    """The native dialect."""

    name: str = "gemini"
    usual_hint: str = "body"  # a refusal carries RetryInfo, and as a rule no Retry-After
    request_id_header: str = "x-request-id"

    def speaks(self, path: str) -> bool:
        """Everything under v1beta but the OpenAI-compatible endpoints, and whatever calls a method of a model."""
        return REALM.search(path) is not None or MODEL.search(path) is not None

    def endpoint(self, request: Request) -> Endpoint | None:
        """The path names the model and says whether it is a stream."""
        if request.path in ("/v1beta/models", "/v1beta1/models"):
            return Endpoint(name="models", method="GET")
        found = MODEL.search(request.path)
        if found is None:
            return None
        return Endpoint(name="generateContent", model=found[1], stream=found[2] == "streamGenerateContent")

    def key(self, request: Request) -> str | None:
        """The header, the query, or Vertex AI's bearer token."""
        return request.headers.get("x-goog-api-key") or request.query.get("key") or bearer(request)

    def models(self) -> bytes:
        """As GET /v1beta/models."""
        methods: JSON = ["generateContent", "streamGenerateContent"]
        return dump({"models": [{"name": "models/sim-1", "version": "1", "supportedGenerationMethods": methods}]})

    def parse(self, endpoint: Endpoint, request: Request) -> Asked:
        """`contents`, with `systemInstruction` and `generationConfig` in either spelling."""
        values = read_object(request.body)
        messages = [*_system(values), *(_message(each) for each in _listed(values, "contents"))]
        config = values.get("generationConfig", values.get("generation_config"))
        config = config if isinstance(config, dict) else {}
        return Asked(
            endpoint=endpoint.name,
            digest=digest(messages),
            model=endpoint.model.encode("utf-8", "replace").decode(),
            input_tokens=tokens_of(messages),
            stream=endpoint.stream,
            as_array=endpoint.stream and request.query.get("alt") != "sse",
            choices=whole(config, "candidateCount", MOST_CHOICES) or 1,
            max_output_tokens=whole(config, "maxOutputTokens", MOST_OUTPUT_TOKENS),
        )

    def events(self, answer: Answer) -> Events:
        """Thoughts and text as parts, each chunk with the usage so far; the finish as a chunk of its own."""
        rows = [_deltas(answer, i, choice) for i, choice in enumerate(answer.choices)]
        closing = [
            _chunk(answer, [_finish(i, choice)], answer.output_tokens) for i, choice in enumerate(answer.choices)
        ]
        content = in_turns([[dump(value) for value in row] for row in rows])
        values = [*content, *(dump(value) for value in closing)]
        if answer.asked.as_array:
            written = [*(value + b",\r\n" for value in values[:-1]), values[-1] + b"]"]
        else:
            written = [b"data: " + value + b"\r\n\r\n" for value in values]
        opening = (b"[",) if answer.asked.as_array else ()
        return Events(opening=opening, content=tuple(written[: len(content)]), closing=tuple(written[len(content) :]))

    def body(self, answer: Answer) -> bytes:
        """All in one chunk."""
        candidates: list[JSON] = []
        for i, choice in enumerate(answer.choices):
            thoughts: list[JSON] = [{"text": "".join(choice.thoughts), "thought": True}] if choice.thoughts else []
            text: list[JSON] = [{"text": choice.text}] if choice.pieces else []
            parts: dict[str, JSON] = {"parts": [*thoughts, *text]} if thoughts or text else {}
            content: JSON = {**parts, "role": "model"}
            candidates.append({"content": content, "finishReason": FINISH[choice.finish_reason], "index": i})
        return dump(_chunk(answer, candidates, answer.output_tokens))

    def padding(self, answer: Answer) -> tuple[bytes, ...]:
        """Vertex AI's first chunk with nothing but a traffic type, empty parts, no parts, usage alone."""
        empty: JSON = {"content": {"parts": [], "role": "model"}, "index": 0}
        chunks: list[JSON] = [
            {"usageMetadata": {"trafficType": "ON_DEMAND"}, "modelVersion": answer.asked.model},
            _chunk(answer, [empty], 0),
            _chunk(answer, [{"content": {"role": "model"}, "index": 0}], 0),
            _chunk(answer, [], 0),
        ]
        array = answer.asked.as_array
        return tuple(dump(chunk) + b",\r\n" if array else sse(chunk, end=b"\r\n") for chunk in chunks)

    def say(self, trouble: Trouble, asked: Asked | None) -> Said:
        """Google's; a prompt that is blocked within a stream is no error but a chunk that says so."""
        said = GoogleErrors().say(trouble, asked)
        if trouble.kind != "blocked" or asked is None:
            return said
        usage: JSON = {"promptTokenCount": asked.input_tokens, "totalTokenCount": asked.input_tokens}
        blocked: JSON = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": usage}
        event = dump(blocked) + b"]" if asked.as_array else sse(blocked, end=b"\r\n")
        return Said(200, dump(blocked), event)

    def limit_headers(self, standings: Mapping[str, Standing], wall: float) -> Headers:  # noqa: ARG002 - shared shape
        """None: Gemini announces nothing."""
        return ()


def _system(values: Mapping[str, JSON]) -> list[JSON]:
    given = values.get("systemInstruction", values.get("system_instruction"))
    return [message("system", given.get("parts"))] if isinstance(given, dict) else []


def _message(content: JSON) -> JSON:
    if not isinstance(content, dict) or not isinstance(content.get("parts"), list):
        raise ValueError("Invalid JSON payload received: contents[].parts must be a list.")
    return message("assistant" if content.get("role") == "model" else "user", content["parts"])


def _listed(values: Mapping[str, JSON], key: str) -> list[JSON]:
    given = values.get(key)
    if not isinstance(given, list) or not given:
        raise ValueError(f"* GenerateContentRequest.{key}: {key} is not specified")
    return given


def _deltas(answer: Answer, index: int, choice: Choice) -> list[JSON]:
    parts: list[dict[str, JSON]] = [{"text": thought, "thought": True} for thought in choice.thoughts]
    parts += [{"text": piece} for piece in choice.pieces]
    so_far = accumulate(count_tokens(str(part["text"])) for part in parts)
    return [
        _chunk(
            answer, [{"content": {"parts": [part], "role": "model"}, "index": index}], min(tokens, answer.output_tokens)
        )
        for part, tokens in zip(parts, so_far, strict=True)
    ]


def _finish(index: int, choice: Choice) -> JSON:
    return {"content": {"role": "model"}, "finishReason": FINISH[choice.finish_reason], "index": index}


def _chunk(answer: Answer, candidates: list[JSON], output: int) -> JSON:
    thoughts, read = min(output, answer.thought_tokens), answer.asked.input_tokens
    usage: dict[str, JSON] = {"promptTokenCount": read, "totalTokenCount": read + output}
    if output > thoughts:
        usage["candidatesTokenCount"] = output - thoughts
    if thoughts:
        usage["thoughtsTokenCount"] = thoughts
    head: dict[str, JSON] = {"candidates": candidates} if candidates else {}
    return {**head, "usageMetadata": usage, "modelVersion": answer.asked.model, "responseId": answer.name}
