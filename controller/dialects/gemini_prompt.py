"""An OpenAI-style prompt as the body of a Gemini request; what is Google's own already goes as it is."""

from __future__ import annotations

from collections.abc import Mapping

from controller.dialects.asking import (
    UnfitError,
    calls_of,
    functions_of,
    image_of,
    listed,
    messages_of,
    output_limit,
    parts_of,
    plain_text,
    split_system,
    without_ours,
)
from policies.contract import JSON

# OpenAI's name -> where it lives in generationConfig.
_CONFIG = {
    "temperature": "temperature", "top_p": "topP", "top_k": "topK", "n": "candidateCount", "seed": "seed",
    "presence_penalty": "presencePenalty", "frequency_penalty": "frequencyPenalty", "logprobs": "responseLogprobs",
    "top_logprobs": "logprobs",
}  # fmt: skip
_MODES = {"auto": "AUTO", "required": "ANY", "none": "NONE"}


def gemini_body(request: dict[str, JSON]) -> dict[str, JSON]:
    """The body without model: they go into the URL. Raises UnfitError."""
    body = without_ours(request)
    system, messages = split_system(messages_of(request))
    if system:
        body.setdefault("systemInstruction", {"parts": [{"text": system}]})
    body.setdefault("contents", _contents(messages))
    own = body.get("generationConfig")
    config = _config(body)
    if config or own is not None:
        body["generationConfig"] = {**config, **(own if isinstance(own, dict) else {})}
    functions = functions_of(body.get("tools"))
    if functions is not None:
        body["tools"] = [{"functionDeclarations": [_declared(function) for function in functions]}]
    choice = body.pop("tool_choice", None)
    if choice is not None:
        body["toolConfig"] = {"functionCallingConfig": _calling(choice)}
    return {key: value for key, value in body.items() if value is not None}


def candidates_asked(request: Mapping[str, JSON]) -> int | None:
    """How many candidates an answer must have; None if that can't be told."""
    config = request.get("generationConfig", request.get("generation_config"))
    native = config.get("candidateCount", config.get("candidate_count")) if isinstance(config, dict) else None
    asked = native if native is not None else request.get("n")
    if asked is None:
        return 1
    return asked if isinstance(asked, int) and asked > 0 else None


def _config(body: dict[str, JSON]) -> dict[str, JSON]:
    """Takes OpenAI's parameters out of the body."""
    config: dict[str, JSON] = {name: body.pop(ours) for ours, name in _CONFIG.items() if ours in body}
    config["maxOutputTokens"] = output_limit(body)
    stop = body.pop("stop", None)
    config["stopSequences"] = None if stop is None else listed(stop)
    form = body.pop("response_format", None)
    if isinstance(form, dict) and form.get("type") in ("json_object", "json_schema"):
        config["responseMimeType"] = "application/json"
        schema = form.get("json_schema")
        config["responseJsonSchema"] = schema.get("schema") if isinstance(schema, dict) else None
    return {name: value for name, value in config.items() if value is not None}


def _declared(function: dict[str, JSON]) -> JSON:
    """`parametersJsonSchema` takes JSON Schema as it is; `parameters` would want Google's subset."""
    declared = {
        "name": function.get("name"),
        "description": function.get("description"),
        "parametersJsonSchema": function.get("parameters"),
    }
    return {key: value for key, value in declared.items() if value is not None}


def _calling(choice: JSON) -> JSON:
    function = choice.get("function") if isinstance(choice, dict) else None
    if isinstance(function, dict):
        return {"mode": "ANY", "allowedFunctionNames": [function.get("name")]}
    if not isinstance(choice, str) or choice not in _MODES:
        raise UnfitError("tool_choice is neither auto, required, none nor a function")
    return {"mode": _MODES[choice]}


def _contents(messages: list[dict[str, JSON]]) -> JSON:
    contents: list[JSON] = []
    names: dict[str, str] = {}  # of the functions, by the id of their call
    results: list[JSON] = []
    for message in messages:
        role = message.get("role")
        if role == "tool":
            if not results:
                contents.append({"role": "user", "parts": results})
            name = names.get(str(message.get("tool_call_id")), str(message.get("name") or ""))
            answer: JSON = {"result": plain_text(message.get("content"))}
            results.append({"functionResponse": {"name": name, "response": answer}})
            continue
        results = []
        if role not in ("user", "assistant"):
            raise UnfitError(f"a message has the role {str(role)[:40]!r}")
        parts = [_part(part) for part in parts_of(message.get("content"))]
        for call, name, given in calls_of(message):
            names[call] = name
            parts.append({"functionCall": {"name": name, "args": given}})
        contents.append({"role": "model" if role == "assistant" else "user", "parts": parts})
    return contents


def _part(part: dict[str, JSON]) -> JSON:
    """A part of a message; what has no `type` is Google's own."""
    match part.get("type"):
        case "text":
            return {"text": part.get("text")}
        case "image_url":
            image = image_of(part)
            if image.base64:
                return {"inlineData": {"mimeType": image.media_type, "data": image.base64}}
            return {"fileData": {"fileUri": image.url}}
        case None:
            return part
    raise UnfitError(f"a message holds a part of type {str(part.get('type'))[:40]}")
