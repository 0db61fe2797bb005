"""OpenAI's Responses: https://platform.openai.com/docs/api-reference/responses-streaming.

Every event has a name and a number, the last one repeats the whole answer, and there is no [DONE]. In-band, the codes
that a response can fail with come as response.failed, all others as a flat `error` event; clients meet both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count

from attrs import frozen

from policies.contract import JSON
from simulations.answers import CREATED, Answer, Events, dump, sse
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
from simulations.dialects.contract import Endpoint, Headers, Request, Said, Trouble
from simulations.dialects.openai import PREFIX, bearer
from simulations.dialects.openai_errors import ROWS, OpenAIErrors, limit_headers, refusal_text
from simulations.standing import Standing

FAILURES = {"server": "server_error", "rate": "rate_limit_exceeded", "invalid": "invalid_prompt"}


@frozen
class Responses:
    """The dialect of /v1/responses."""

    name: str = "responses"
    usual_hint: str = "seconds"
    request_id_header: str = "x-request-id"

    def speaks(self, path: str) -> bool:
        """Its one endpoint, under any prefix of OpenAI's."""
        found = PREFIX.match(path)
        return found is not None and path[found.end() :] == "responses"

    def endpoint(self, request: Request) -> Endpoint | None:  # noqa: ARG002 - the shape all dialects share
        """There is one."""
        return Endpoint(name="responses")

    def key(self, request: Request) -> str | None:
        """`Authorization: Bearer`, or Azure's header."""
        return bearer(request) or request.headers.get("api-key")

    def models(self) -> bytes:
        """Nobody asks for it under this path."""
        return dump({"object": "list", "data": []})

    def parse(self, endpoint: Endpoint, request: Request) -> Asked:
        """`input` as a text or a list of messages, with `instructions`."""
        values = read_object(request.body)
        messages = [*_instructions(values), *_input(values)]
        return Asked(
            endpoint=endpoint.name,
            digest=digest(messages),
            model=model_of(values),
            input_tokens=tokens_of(messages),
            stream=boolean(values, "stream"),
            max_output_tokens=whole(values, "max_output_tokens", MOST_OUTPUT_TOKENS),
        )

    def events(self, answer: Answer) -> Events:
        """Created, in progress, a summary of the reasoning if there is any, the text, and all of it once more."""
        [choice] = answer.choices
        numbers, place = count(), _place(answer)
        created = [_event(kind, next(numbers), {"response": _response(answer, "in_progress")}) for kind in OPENING]
        item: JSON = {**_message(answer, "in_progress"), "content": []}
        added = [
            _event("response.output_item.added", next(numbers), {"output_index": 0, "item": item}),
            _event("response.content_part.added", next(numbers), {**place, "part": _part("")}),
        ]
        summary: dict[str, JSON] = {"item_id": f"rs_{answer.name}", "output_index": 0, "summary_index": 0}
        thoughts = [
            _event("response.reasoning_summary_text.delta", next(numbers), {**summary, "delta": thought})
            for thought in choice.thoughts
        ]
        deltas = [
            _event("response.output_text.delta", next(numbers), {**place, "delta": piece, "logprobs": []})
            for piece in choice.pieces
        ]
        return Events(opening=(*created, *added), content=(*thoughts, *deltas), closing=_closing(answer, numbers))

    def body(self, answer: Answer) -> bytes:
        """A response in one piece."""
        [choice] = answer.choices
        return dump(_response(answer, "completed" if choice.finish_reason == "stop" else "incomplete"))

    def padding(self, answer: Answer) -> tuple[bytes, ...]:
        """What keeps a connection alive, and an event that nobody knows yet."""
        queued = _event("response.queued", 0, {"response": _response(answer, "queued")})
        return sse({"type": "keepalive", "sequence_number": 0}, "keepalive"), queued, _event("response.weather", 0, {})

    def say(self, trouble: Trouble, asked: Asked | None) -> Said:
        """OpenAI's error as a body; within a stream see the top of this file."""
        said = OpenAIErrors().say(trouble, asked)
        text = trouble.message if trouble.refusing is None else refusal_text(trouble.refusing)
        code = FAILURES.get(trouble.kind)
        if code is None:
            row = ROWS[trouble.kind]
            flat: dict[str, JSON] = {"code": row.code or row.type, "message": text, "param": None}
            return Said(said.status, said.body, _event("error", trouble.number, flat))
        failed: JSON = {
            **_bare(f"resp_{trouble.number}", "" if asked is None else asked.model, "failed"),
            "error": {"code": code, "message": text},
        }
        return Said(said.status, said.body, _event("response.failed", trouble.number, {"response": failed}))

    def limit_headers(self, standings: Mapping[str, Standing], wall: float) -> Headers:  # noqa: ARG002 - shared shape
        """x-ratelimit-*."""
        return limit_headers(standings)


OPENING = ("response.created", "response.in_progress")


def _closing(answer: Answer, numbers: Iterator[int]) -> tuple[bytes, ...]:
    [choice] = answer.choices
    place, status = _place(answer), "completed" if choice.finish_reason == "stop" else "incomplete"
    item: JSON = _message(answer, status)
    return (
        _event("response.output_text.done", next(numbers), {**place, "text": choice.text, "logprobs": []}),
        _event("response.content_part.done", next(numbers), {**place, "part": _part(choice.text)}),
        _event("response.output_item.done", next(numbers), {"output_index": 0, "item": item}),
        _event(f"response.{status}", next(numbers), {"response": _response(answer, status)}),
    )


def _instructions(values: Mapping[str, JSON]) -> list[JSON]:
    given = values.get("instructions")
    return [] if given is None else [message("system", given)]


def _input(values: Mapping[str, JSON]) -> list[JSON]:
    given = values.get("input")
    if isinstance(given, str) and given:
        return [message("user", given)]
    if not isinstance(given, list) or not given:
        raise ValueError("Missing required parameter: 'input'.")
    if not all(isinstance(each, dict) and isinstance(each.get("role"), str) for each in given):
        raise ValueError("Missing required parameter: 'input[].role'.")
    return [message(str(each["role"]), each.get("content")) for each in given if isinstance(each, dict)]


def _place(answer: Answer) -> dict[str, JSON]:
    return {"item_id": f"msg_{answer.name}", "output_index": 0, "content_index": 0}


def _part(text: str) -> JSON:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _message(answer: Answer, status: str) -> dict[str, JSON]:
    content: JSON = [_part(answer.choices[0].text)]
    return {"id": f"msg_{answer.name}", "type": "message", "status": status, "role": "assistant", "content": content}


def _response(answer: Answer, status: str) -> JSON:
    bare = _bare(f"resp_{answer.name}", answer.asked.model, status)
    if status not in ("completed", "incomplete"):
        return bare
    why: JSON = None if status == "completed" else {"reason": "max_output_tokens"}
    read, written = answer.asked.input_tokens, answer.output_tokens
    usage: JSON = {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": answer.thought_tokens},
        "total_tokens": read + written,
    }
    output: JSON = [*_reasoning(answer), _message(answer, status)]
    return {**bare, "incomplete_details": why, "output": output, "usage": usage}


def _reasoning(answer: Answer) -> list[JSON]:
    thoughts = answer.choices[0].thoughts
    summary: JSON = [{"type": "summary_text", "text": "".join(thoughts)}]
    return [{"id": f"rs_{answer.name}", "type": "reasoning", "summary": summary}] if thoughts else []


def _bare(name: str, model: str, status: str) -> dict[str, JSON]:
    return {
        "id": name,
        "object": "response",
        "created_at": CREATED,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": model,
        "output": [],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": None,
    }


def _event(kind: str, number: int, values: dict[str, JSON]) -> bytes:
    return sse({"type": kind, "sequence_number": number, **values}, kind)
