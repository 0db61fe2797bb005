"""OpenAI's Responses API: https://platform.openai.com/docs/api-reference/responses, its streams in responses_fold.py.

What differs from chat: messages are `input` items, in which tool calls and their results stand beside the messages;
functions are flat; `max_output_tokens`, `reasoning.effort` and `text.format` have new names; n > 1 does not exist.
Errors, limits and keys are those of chat. Azure serves it below /openai/v1 with its own key header. An answer can't be
continued: a last assistant message is answered, not prolonged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attrs import define, evolve

from controller.charges import Charge
from controller.dialects.asking import (
    UnfitError,
    functions_of,
    image_of,
    joined,
    json_request,
    messages_of,
    output_limit,
    parts_of,
    plain_text,
    without_ours,
)
from controller.dialects.azure import at_azure, azure_key, azure_path
from controller.dialects.bodies import dicts, excerpt, parsed
from controller.dialects.complaints import find_error
from controller.dialects.contract import About, Fold, Request
from controller.dialects.openai_chat import OPENAI, bearer
from controller.dialects.refusals import ORDINARY, refusal
from controller.dialects.responses_fold import ResponseFold, response_outcome
from controller.outcome import Answer, Completed, Failed, Kind, Outcome
from controller.records import Prompt
from policies.contract import JSON, Hints

ABOUT = evolve(
    OPENAI,
    path="/responses",
    proof="`response.completed` or `response.incomplete`",
    usage="response.usage of the last event",
)
AZURE_ABOUT = at_azure(ABOUT, "/openai/v1/responses")


@define(kw_only=True)
class Responses:
    """The Responses API, at OpenAI, at Azure or at a server that has it."""

    name: str = "responses"
    about: About = ABOUT
    refuses_inside_200: bool = False
    charge: Charge = Charge.LARGER
    unsaid_output: int | None = None
    carry: Callable[[str], dict[str, str]] = bearer
    address: Callable[[str, str], str] = joined

    def request(self, base_url: str, prompt: Prompt) -> Request | Failed:
        """Streamed unless the line said otherwise."""
        streamed = prompt.request.get("stream") is not False
        try:
            if prompt.endpoint == "embeddings":
                raise UnfitError("embeddings are asked in the dialect openai")
            body = {**_body(prompt.request), "stream": streamed}
        except UnfitError as error:
            return error.failed(self.name)
        return json_request(self.address(base_url, "responses"), body, streamed=streamed)

    def continued(self, prompt: Prompt, text: str) -> Prompt | None:
        """None: there is no prefix."""
        del prompt, text
        return None

    def key_headers(self, key: str) -> dict[str, str]:
        """The headers that carry the API key."""
        return self.carry(key)

    def hints(self, headers: Mapping[str, str]) -> dict[str, Hints]:
        """What the x-ratelimit headers say of requests and tokens."""
        return ORDINARY.hints(headers)

    def classify(self, status: int, headers: Mapping[str, str], body: bytes, *, wall_now: float) -> Outcome:
        """Errors by the classifier of all; a 2xx is an answer only if it is a finished response."""
        document = parsed(body)
        response = document if isinstance(document, dict) and document.get("object") == "response" else None
        complaint = None if response else find_error(document)
        if complaint is not None or not 200 <= status < 300:
            return refusal(status, complaint, body, headers, wall_now=wall_now)
        outcome = response_outcome(response) if response else None
        if isinstance(outcome, Answer):
            return Completed(answer=outcome, status=status)
        if outcome is not None:
            return outcome
        words = excerpt(body) or "an empty body"
        return Failed(kind=Kind.MALFORMED, message=f"no answer but: {words}", status=status, body=document)

    def fold(self, prompt: Prompt | None = None) -> Fold:
        """An empty fold for one stream."""
        del prompt
        return ResponseFold()


RESPONSES = Responses()
AZURE_RESPONSES = Responses(
    name="azure-responses", about=AZURE_ABOUT, charge=Charge.UP_FRONT, carry=azure_key, address=azure_path
)


def _body(request: Mapping[str, JSON]) -> dict[str, JSON]:
    body = without_ours(request)
    if "input" not in body:
        body["input"] = [item for message in messages_of(request) for item in _items(message)]
    limit, effort = output_limit(body), body.pop("reasoning_effort", None)
    if limit is not None:
        body["max_output_tokens"] = limit
    if effort is not None:
        body["reasoning"] = {"effort": effort}
    text: dict[str, JSON] = {
        "format": _format(body.pop("response_format", None)),
        "verbosity": body.pop("verbosity", None),
    }
    if "text" not in body and any(text.values()):
        body["text"] = {key: value for key, value in text.items() if value is not None}
    functions = functions_of(body.get("tools"))
    if functions is not None:
        body["tools"] = [_with_type("function", function) for function in functions]
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and isinstance(function := choice.get("function"), dict):
        body["tool_choice"] = {"type": "function", "name": function.get("name")}
    return body


def _format(form: JSON) -> JSON:
    schema = form.get("json_schema") if isinstance(form, dict) else None
    return _with_type("json_schema", schema) if isinstance(schema, dict) else form


def _with_type(kind: str, value: dict[str, JSON]) -> JSON:
    return {"type": kind, **value}


def _items(message: dict[str, JSON]) -> list[JSON]:
    """A message as input items: its text, and each of its tool calls or the result of one."""
    role, content = message.get("role"), message.get("content")
    if role == "tool":
        output = plain_text(content)
        return [{"type": "function_call_output", "call_id": message.get("tool_call_id"), "output": output}]
    if role not in ("user", "assistant", "system", "developer"):
        raise UnfitError(f"a message has the role {str(role)[:40]!r}")
    parts = [_part(part, role == "assistant") for part in parts_of(content)]
    items: list[JSON] = [{"role": role, "content": content if isinstance(content, str) else parts}] if parts else []
    for call in dicts(message.get("tool_calls")):
        function = call.get("function")
        if not isinstance(function, dict):
            raise UnfitError("a tool call names no function")
        named = {"name": function.get("name"), "arguments": function.get("arguments") or "{}"}
        items.append({"type": "function_call", "call_id": call.get("id"), **named})
    return items


def _part(part: dict[str, JSON], assistant: bool) -> JSON:
    """A part of a message; what is no part of chat's is the API's own."""
    match part.get("type"):
        case "text":
            return {"type": "output_text" if assistant else "input_text", "text": part.get("text")}
        case "image_url":
            return {"type": "input_image", "image_url": image_of(part).url}
        case "input_audio":
            raise UnfitError("a message holds a part of type input_audio")
    return part
