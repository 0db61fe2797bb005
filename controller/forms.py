"""A JSON value -> a draft of a prompt.

Forms, in the order they are looked for: a string; an OpenAI Batch line ("custom_id", "method", "url", "body");
"messages"; "prompt"; "input" beside "model", which is the body of an embeddings request. Beside "messages", "prompt"
or "input" may stand `id`, `metadata`, `deadline` (a number of seconds), `system` (a string, sent as the first message),
the request parameters of the table below, and `extra_body`, an object merged into the request last, as the OpenAI SDK
does. null is as good as absent. All other keys are carried back in the result's metadata and never sent: data sets have
"lang" and "source". In a Batch line the body is sent as it is.
"""

from __future__ import annotations

from attrs import field, frozen

from policies.contract import JSON

# Names that data sets use for columns ("reasoning", "prediction", "priority", "store") are left out: `extra_body`.
PARAMETERS_BY_ORIGIN = {
    "OpenAI chat": "model temperature top_p n stop seed max_tokens max_completion_tokens presence_penalty"
    " frequency_penalty logit_bias logprobs top_logprobs response_format tools tool_choice parallel_tool_calls"
    " functions function_call reasoning_effort verbosity service_tier user safety_identifier prompt_cache_key"
    " stream stream_options",
    "OpenAI embeddings": "model user dimensions encoding_format",
    "vLLM, SGLang": "top_k min_p repetition_penalty length_penalty min_tokens stop_token_ids ignore_eos bad_words"
    " skip_special_tokens spaces_between_special_tokens include_stop_str_in_output use_beam_search best_of"
    " prompt_logprobs truncate_prompt_tokens structured_outputs guided_json guided_regex guided_choice"
    " guided_grammar guided_decoding_backend chat_template_kwargs add_generation_prompt continue_final_message"
    " add_special_tokens",
    "OpenRouter, Mistral, Groq, Qwen, Ollama": "top_a random_seed safe_prompt reasoning_format include_reasoning"
    " enable_thinking thinking_budget keep_alive",
}
PARAMETERS = frozenset(name for names in PARAMETERS_BY_ORIGIN.values() for name in names.split())
OWN_KEYS = frozenset({"id", "metadata", "extra_body"})
BATCH_KEYS = frozenset({"custom_id", "method", "url", "body"})
CHAT, EMBEDDINGS = "chat/completions", "embeddings"
LONGEST = 1e9  # s; a deadline beyond 31 years is none
KNOWN_KEYS = {  # beside them, a key is carried
    CHAT: OWN_KEYS | PARAMETERS | {"messages", "prompt", "system"},
    EMBEDDINGS: OWN_KEYS | PARAMETERS | {"input"},
}


@frozen(kw_only=True)
class Draft:
    """A line understood, before it has a key."""

    id: JSON = None
    request: dict[str, JSON]
    endpoint: str = CHAT
    metadata: JSON = None
    deadline: float | None = None
    batch: bool = False
    form: str = field(default="messages", eq=False)  # how it was written: string, prompt, messages, input or Batch
    carried: tuple[str, ...] = ()  # keys that are neither ours nor known parameters: a misspelt one is among them


def draft(value: JSON) -> Draft:
    """What the value asks for; ValueError, naming the field, when it is no prompt."""
    if isinstance(value, str):
        return Draft(request={"messages": [_message("user", value)]}, form="string")
    if not isinstance(value, dict):
        raise ValueError(f"a line must be a string or an object, not {_kind(value)}")
    if is_batch(value):
        return _batch_draft(value)
    present: dict[str, JSON] = value
    if None in value.values():
        present = {key: child for key, child in value.items() if child is not None}
    request, extra = _form(present), dict[str, JSON]()
    endpoint = EMBEDDINGS if "input" in request else CHAT
    used, deadline = KNOWN_KEYS[endpoint], _seconds(value.get("deadline"))
    for key, child in value.items():
        if key not in used and not (key == "deadline" and deadline is not None):
            extra[key] = child
        elif key in PARAMETERS and child is not None:
            request[key] = child
    if "extra_body" in present:
        request |= _object(present["extra_body"], "extra_body")
    _check_request(request, endpoint)
    return Draft(
        id=_checked_id(present.get("id"), "id"),
        request=request,
        endpoint=endpoint,
        metadata=_metadata(present.get("metadata"), extra),
        deadline=deadline,
        form="prompt" if "prompt" in present else "messages" if "messages" in present else "input",
        carried=tuple(extra),
    )


def is_batch(value: JSON) -> bool:
    """It means to be an OpenAI Batch line, a whole one or not."""
    if not isinstance(value, dict) or "prompt" in value or "messages" in value:
        return False
    return "custom_id" in value or ("url" in value and "body" in value)


def id_of(value: JSON) -> JSON:
    """The id of a line that is otherwise bad, where there is a fit one."""
    found = (value.get("custom_id") if is_batch(value) else value.get("id")) if isinstance(value, dict) else None
    return None if isinstance(found, dict | list) else found


def _form(present: dict[str, JSON]) -> dict[str, JSON]:
    """What is asked: `messages` of a chat or the `input` of an embedding."""
    if "prompt" in present and "messages" in present:
        raise ValueError('has both "prompt" and "messages": keep one')
    if "input" in present and "model" in present and not present.keys() & {"prompt", "messages"}:
        return {"input": present["input"]}
    messages: JSON = present.get("messages")
    if "prompt" in present:
        messages = [_message("user", _string(present["prompt"], "prompt"))]
    elif "messages" not in present:
        raise ValueError('has neither "prompt" nor "messages" (nor "input" beside "model", for embeddings)')
    if "system" in present and isinstance(messages, list):
        messages = [_message("system", _string(present["system"], "system")), *messages]
    return {"messages": messages}


def _batch_draft(value: dict[str, JSON]) -> Draft:
    if value.get("custom_id") is None:
        raise ValueError('"custom_id" is missing from a Batch line')
    if _string(value.get("method", "POST"), "method").upper() != "POST":
        raise ValueError('"method" must be POST')
    url = _string(value.get("url"), "url")
    endpoint = next((name for name in (CHAT, EMBEDDINGS) if url.rstrip("/").endswith("/" + name)), None)
    if endpoint is None:
        raise ValueError(f'"url" must end in /chat/completions or /embeddings, not "{url[:100]}"')
    body = _object(value.get("body"), "body")
    _check_request(body, endpoint)
    extra = {key: child for key, child in value.items() if key not in BATCH_KEYS}
    return Draft(
        id=_checked_id(value["custom_id"], "custom_id"),
        request=body,
        endpoint=endpoint,
        metadata=extra or None,
        batch=True,
        form="Batch",
    )


def _seconds(value: JSON) -> float | None:
    """A deadline, None for what can't be one: a date, or a whole number that is too large for a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value <= LONGEST else None


def _check_request(request: dict[str, JSON], endpoint: str) -> None:
    if request.get("model") is not None:
        _string(request["model"], "model")
    if endpoint == CHAT:
        messages = request.get("messages")
        if not isinstance(messages, list) or not messages or not all(map(_is_object, messages)):
            raise ValueError('"messages" must be a non-empty list of objects')
    elif not _can_be_embedded(request.get("input")):
        raise ValueError('"input" must be a string, or a non-empty list of strings or token numbers')


def _is_object(value: JSON) -> bool:
    return isinstance(value, dict)


def _can_be_embedded(value: JSON) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(one, str | int | list) for one in value)
    return isinstance(value, str)


def _metadata(metadata: JSON, extra: dict[str, JSON]) -> JSON:
    if metadata is None:
        return extra or None
    return extra | metadata if isinstance(metadata, dict) else metadata


def _checked_id(value: JSON, name: str) -> JSON:
    if isinstance(value, dict | list):
        raise ValueError(f'"{name}" must be a string or a number, not {_kind(value)}')
    return value


def _message(role: str, content: str) -> dict[str, JSON]:
    return {"role": role, "content": content}


def _string(value: JSON, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f'"{name}" must be a string, not {_kind(value)}')
    return value


def _object(value: JSON, name: str) -> dict[str, JSON]:
    if not isinstance(value, dict):
        raise ValueError(f'"{name}" must be an object, not {_kind(value)}')
    return value


def _kind(value: JSON) -> str:
    names = {type(None): "null", bool: "a boolean", str: "a string", list: "a list", dict: "an object"}
    return names.get(type(value), "a number")
