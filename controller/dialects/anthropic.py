"""Anthropic's Messages API: https://docs.anthropic.com/en/api/messages, its streams in anthropic_fold.py.

What differs from OpenAI's chat: the system text is a field of its own, max_tokens must be there, tool calls and their
results are blocks of content, the key goes into `x-api-key` and a version beside it. Limits are announced for requests
and for input and output tokens apart (https://docs.anthropic.com/en/api/rate-limits), their resets as instants.
Parameters without a counterpart go as they are, so Anthropic's own (`thinking`, `cache_control`, ...) can be used and
a foreign one is refused in Anthropic's words.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import define

from controller.charges import Charge
from controller.dialects.anthropic_fold import MessageFold, message_answer
from controller.dialects.asking import (
    UnfitError,
    calls_of,
    functions_of,
    image_of,
    joined,
    json_request,
    listed,
    messages_of,
    output_limit,
    parts_of,
    plain_text,
    split_system,
    without_ours,
)
from controller.dialects.bodies import excerpt, parsed
from controller.dialects.complaints import find_error
from controller.dialects.contract import About, Fold, Request
from controller.dialects.hints import LimitHeaders
from controller.dialects.prefix import Prefix
from controller.dialects.quotas import MINUTE
from controller.dialects.refusals import Habits, refusal
from controller.outcome import Completed, Failed, Kind, Outcome
from controller.records import Prompt
from policies.contract import JSON, Hints

ABOUT = About(
    auth="x-api-key",
    path="/v1/messages",
    proof="`message_stop`, or a stop_reason and a clean end",
    delays="retry-after",
    usage="message_start and message_delta, merged",
    key_env=("ANTHROPIC_API_KEY",),
    hosts=("api.anthropic.com",),
)
VERSION = "2023-06-01"
MOST_TOKENS = 4096  # of output where the prompt names no limit: the API insists on one
HABITS = Habits(
    limits=tuple(
        LimitHeaders(
            dimension=name.replace("-", "_"),
            limit=f"anthropic-ratelimit-{name}-limit",
            remaining=f"anthropic-ratelimit-{name}-remaining",
            reset=f"anthropic-ratelimit-{name}-reset",
            period=MINUTE,
        )
        for name in ("requests", "tokens", "input-tokens", "output-tokens")
    )
)
_CHOICES: dict[str, JSON] = {"auto": {"type": "auto"}, "required": {"type": "any"}, "none": {"type": "none"}}


@define(kw_only=True)
class Anthropic:
    """The Messages API, at Anthropic or at a gateway."""

    name: str = "anthropic"
    about: About = ABOUT
    refuses_inside_200: bool = False
    charge: Charge = Charge.PRODUCED
    unsaid_output: int | None = MOST_TOKENS

    def request(self, base_url: str, prompt: Prompt) -> Request | Failed:
        """Streamed unless the line said otherwise."""
        streamed = prompt.request.get("stream") is not False
        try:
            if prompt.endpoint == "embeddings":
                raise UnfitError("it has no embeddings")
            body = {**_body(prompt.request), "stream": streamed}
        except UnfitError as error:
            return error.failed(self.name)
        path = "messages" if base_url.partition("?")[0].endswith("/v1") else "v1/messages"
        return json_request(joined(base_url, path), body, streamed=streamed, headers={"anthropic-version": VERSION})

    def continued(self, prompt: Prompt, text: str) -> Prompt | None:
        """The answer so far as the last message; the API refuses white space at its end."""
        begun = text.rstrip()
        if not begun:
            return None
        return Prefix().continued(prompt, begun)

    def key_headers(self, key: str) -> dict[str, str]:
        """The headers that carry the API key."""
        return {"x-api-key": key}

    def hints(self, headers: Mapping[str, str]) -> dict[str, Hints]:
        """What the anthropic-ratelimit headers say of requests and of tokens in and out."""
        return HABITS.hints(headers)

    def classify(self, status: int, headers: Mapping[str, str], body: bytes, *, wall_now: float) -> Outcome:
        """Errors by the classifier of all; a 2xx is an answer only if it is a message."""
        document = parsed(body)
        message = document if isinstance(document, dict) and document.get("type") == "message" else None
        complaint = None if message else find_error(document)
        if complaint is not None or not 200 <= status < 300:
            return refusal(status, complaint, body, headers, wall_now=wall_now, habits=HABITS)
        answer = message_answer(message) if message else None
        if answer is None:
            words = excerpt(body) or "an empty body"
            return Failed(kind=Kind.MALFORMED, message=f"no answer but: {words}", status=status, body=document)
        return Completed(answer=answer, status=status)

    def fold(self, prompt: Prompt | None = None) -> Fold:
        """An empty fold for one stream."""
        del prompt
        return MessageFold()


def _body(request: Mapping[str, JSON]) -> dict[str, JSON]:
    body = without_ours(request)
    system, messages = split_system(messages_of(request))
    if system:
        body["system"] = system if body.get("system") is None else f"{plain_text(body['system'])}\n\n{system}"
    body["max_tokens"] = output_limit(body) or MOST_TOKENS
    if body.get("stop") is not None:
        body["stop_sequences"] = listed(body.pop("stop"))
    if body.get("user") is not None:
        body["metadata"] = {"user_id": body.pop("user")}
    body.update(_tools(body))
    body["messages"] = _messages(messages)
    return {key: value for key, value in body.items() if value is not None}


def _tools(body: dict[str, JSON]) -> dict[str, JSON]:
    """OpenAI's tools and tool_choice in Anthropic's form; its own stay."""
    translated: dict[str, JSON] = {}
    parallel, choice = body.pop("parallel_tool_calls", None), body.get("tool_choice")
    functions = functions_of(body.get("tools"))
    if functions is not None:
        translated["tools"] = [_tool(function) for function in functions]
    if isinstance(choice, str):
        choice = _CHOICES.get(choice, choice)
    elif isinstance(choice, dict) and isinstance(function := choice.get("function"), dict):
        choice = {"type": "tool", "name": function.get("name")}
    if parallel is False and translated:
        choice = {**(choice if isinstance(choice, dict) else {"type": "auto"}), "disable_parallel_tool_use": True}
    return translated if choice is None else {**translated, "tool_choice": choice}


def _tool(function: dict[str, JSON]) -> JSON:
    schema = function.get("parameters") or {"type": "object"}
    tool = {"name": function.get("name"), "description": function.get("description"), "input_schema": schema}
    return {key: value for key, value in tool.items() if value is not None}


def _messages(messages: list[dict[str, JSON]]) -> list[JSON]:
    """Results of tools are blocks of the user's turn, and all those of one turn belong together."""
    turns: list[JSON] = []
    results: list[JSON] = []
    for message in messages:
        if message.get("role") == "tool":
            if not results:
                turns.append({"role": "user", "content": results})
            text = plain_text(message.get("content"))
            results.append({"type": "tool_result", "tool_use_id": message.get("tool_call_id"), "content": text})
        else:
            results = []
            turns.append(_turn(message))
    return turns


def _turn(message: dict[str, JSON]) -> JSON:
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant"):
        raise UnfitError(f"a message has the role {str(role)[:40]!r}")
    calls = calls_of(message)
    if isinstance(content, str) and not calls:
        return {"role": role, "content": content}
    blocks = [_block(part) for part in parts_of(content)]
    blocks += [{"type": "tool_use", "id": name, "name": tool, "input": given} for name, tool, given in calls]
    return {"role": role, "content": blocks}


def _block(part: dict[str, JSON]) -> JSON:
    """A part of a message as a block; what is no part of OpenAI's is Anthropic's own."""
    if part.get("type") == "image_url":
        image = image_of(part)
        if not image.base64:
            return {"type": "image", "source": {"type": "url", "url": image.url}}
        return {
            "type": "image",
            "source": {"type": "base64", "media_type": image.media_type, "data": image.base64},
        }
    if part.get("type") in ("input_audio", "file"):
        raise UnfitError(f"a message holds a part of type {part['type']}")
    return part
