"""Requests of any dialect: URLs below a base, bodies as JSON, and the parts of an OpenAI-style prompt.

A dialect that translates raises `UnfitError` inside this package where a prompt has something that its provider has no
place for; `request` of the dialect turns it into a Failed of that prompt, and nothing is sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from attrs import frozen

from controller.dialects.bodies import dicts
from controller.dialects.contract import Request
from controller.outcome import Failed, Kind
from policies.contract import JSON

_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(?:;[\w.=+-]+)*?;base64,(.*)", re.DOTALL | re.IGNORECASE)


class UnfitError(ValueError):
    """The prompt can't be put in this dialect; the message says why."""

    def failed(self, dialect: str) -> Failed:
        """The outcome it means: of this prompt alone, and without a request."""
        return Failed(kind=Kind.PROMPT, message=f"the dialect {dialect} can't send this prompt: {self}", sent=False)


@frozen(kw_only=True)
class Image:
    """An image of a prompt: either base64 with its media type, or a URL."""

    url: str
    media_type: str = ""
    base64: str = ""


def joined(base_url: str, path: str, *, query: str = "") -> str:
    """The path below the base URL; a query of the base (Azure's api-version) stays behind the path."""
    base, _, given = base_url.partition("?")
    both = "&".join(part for part in (query, given) if part)
    return f"{base.rstrip('/')}/{path}{'?' if both else ''}{both}"


def json_request(url: str, body: Mapping[str, JSON], *, streamed: bool, headers: Mapping[str, str] = {}) -> Request:
    """A POST of JSON. ASCII with escapes, so that a lone surrogate in a prompt can be sent at all."""
    accept = "text/event-stream" if streamed else "application/json"
    return Request(
        url=url,
        headers={"content-type": "application/json", "accept": accept, **headers},
        body=json.dumps(body, separators=(",", ":")).encode("ascii"),
        streamed=streamed,
    )


def messages_of(request: Mapping[str, JSON]) -> list[dict[str, JSON]]:
    """The messages of a chat prompt."""
    return dicts(request.get("messages"))


def split_system(messages: list[dict[str, JSON]]) -> tuple[str, list[dict[str, JSON]]]:
    """The text of all system and developer messages, and the others in their order."""
    system = [plain_text(one.get("content")) for one in messages if one.get("role") in ("system", "developer")]
    return "\n\n".join(system), [one for one in messages if one.get("role") not in ("system", "developer")]


def parts_of(content: JSON) -> list[dict[str, JSON]]:
    """The parts of a message: a text is one part, nothing is none."""
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list) or len(dicts(content)) != len(content):
        raise UnfitError("the content of a message is neither text nor a list of parts")
    return dicts(content)


def plain_text(content: JSON) -> str:
    """The text of a message that may hold nothing else."""
    texts = [part.get("text") for part in parts_of(content)]
    if not all(isinstance(text, str) for text in texts):
        raise UnfitError("a system or tool message holds something else than text")
    return "".join(text for text in texts if isinstance(text, str))


def image_of(part: Mapping[str, JSON]) -> Image:
    """An `image_url` part."""
    given = part.get("image_url")
    url = given.get("url") if isinstance(given, dict) else given
    if not isinstance(url, str) or not url:
        raise UnfitError("an image_url part has no url")
    if url[:5].lower() != "data:":
        return Image(url=url)
    found = _DATA_URL.fullmatch(url)
    if found is None:
        raise UnfitError("the data URL of an image is not base64")
    return Image(url=url, media_type=found[1] or "image/png", base64=found[2])


def calls_of(message: Mapping[str, JSON]) -> list[tuple[str, str, dict[str, JSON]]]:
    """The tool calls of an assistant message: id, name, arguments."""
    calls = []
    for call in dicts(message.get("tool_calls")):
        function = call.get("function")
        function = function if isinstance(function, dict) else {}
        calls.append((str(call.get("id") or ""), str(function.get("name") or ""), arguments_of(function)))
    return calls


def arguments_of(function: Mapping[str, JSON]) -> dict[str, JSON]:
    """The arguments of a call as an object."""
    given = function.get("arguments")
    try:
        arguments: JSON = json.loads(given or "{}") if given is None or isinstance(given, str) else given
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise UnfitError("the arguments of a tool call are no JSON object")
    return arguments


def functions_of(tools: JSON) -> list[dict[str, JSON]] | None:
    """The functions in OpenAI's `tools`; None if these are not OpenAI's but the provider's own."""
    functions = [tool.get("function") for tool in dicts(tools)]
    found = [function for function in functions if isinstance(function, dict)]
    return found if found and len(found) == len(functions) else None


def output_limit(request: dict[str, JSON]) -> JSON:
    """Takes the limit of output tokens out, under either of its names."""
    names = ("max_completion_tokens", "max_tokens")
    given = [request.pop(name, None) for name in names]
    return next((value for value in given if value is not None), None)


def without_ours(request: Mapping[str, JSON]) -> dict[str, JSON]:
    """The parameters, without what belongs to OpenAI's form alone: how to stream, one choice, the messages."""
    ours = {"messages", "stream", "stream_options"} | ({"n"} if request.get("n") in (None, 1) else set())
    return {key: value for key, value in request.items() if key not in ours}


def listed(value: JSON) -> list[JSON]:
    """A value that may be one or many, as many."""
    return value if isinstance(value, list) else [value]
