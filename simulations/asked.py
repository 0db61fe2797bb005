"""A request body understood: what a simulated upstream is asked for, and what it would be charged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from attrs import frozen

from policies.contract import JSON

MOST_CHOICES = 128
MOST_DIMENSIONS = 4096
MOST_OUTPUT_TOKENS = 10**9


@frozen(kw_only=True)
class Asked:
    """One valid request. digest: the prompt's identity, whatever the other parameters are."""

    endpoint: str  # "chat/completions" or "embeddings"
    digest: str
    model: str
    input_tokens: int
    stream: bool = False
    include_usage: bool = False
    choices: int = 1
    max_output_tokens: int | None = None  # None: as long as the answer happens to be
    texts: tuple[str, ...] = ()  # the embeddings' inputs
    as_base64: bool = False
    dimensions: int = 8

    @property
    def charge(self) -> int:
        """LLM tokens a provider books on arrival: the larger of what may come back and what came in.

        https://platform.openai.com/docs/guides/rate-limits, "Reduce the max_tokens to match the size of your
        completions".
        """
        return max(self.input_tokens, self.max_output_tokens or 0)


def digest(content: JSON) -> str:
    """First 16 hex digits of the SHA-256 of `messages` or `input` as JSON: sorted keys, no blanks, ASCII escapes."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def count_tokens(text: str) -> int:
    """LLM tokens of a text, about a quarter of its UTF-8 bytes; nothing has none."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // 4)


def parse(endpoint: str, body: bytes) -> Asked:
    """Understand a request body; raises ValueError with the sentence for the 400."""
    try:
        values: JSON = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError("We could not parse the JSON body of your request.") from error
    if not isinstance(values, dict):
        raise ValueError("The JSON body of a request must be an object.")
    model = values.get("model", "sim-1")
    if not isinstance(model, str):
        raise ValueError("Invalid type for 'model': expected a string.")
    # A lone surrogate could not be sent back as UTF-8.
    model = model.encode("utf-8", "replace").decode()
    return _parse_chat(model, values) if endpoint == "chat/completions" else _parse_embeddings(model, values)


def _parse_chat(model: str, values: Mapping[str, JSON]) -> Asked:
    messages = values.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ValueError("Missing required parameter: 'messages'.")
    if not all(isinstance(message, dict) and isinstance(message.get("role"), str) for message in messages):
        raise ValueError("Missing required parameter: 'messages[].role'.")
    options = values.get("stream_options")
    limits = [
        _whole(values, key, MOST_OUTPUT_TOKENS)
        for key in ("max_completion_tokens", "max_tokens")
        if values.get(key) is not None
    ]
    return Asked(
        endpoint="chat/completions",
        digest=digest(messages),
        model=model,
        input_tokens=max(1, sum(count_tokens(_text(message)) for message in messages)),
        stream=_boolean(values, "stream"),
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        choices=_whole(values, "n", MOST_CHOICES) if values.get("n") is not None else 1,
        max_output_tokens=min(limits, default=None),
    )


def _parse_embeddings(model: str, values: Mapping[str, JSON]) -> Asked:
    given = values.get("input")
    # A list of numbers is one input, already cut into tokens by the client.
    inputs = given if isinstance(given, list) and not all(isinstance(part, int) for part in given) else [given]
    if given is None or given in ("", []) or not all(isinstance(part, str | list) for part in inputs):
        raise ValueError("Missing required parameter: 'input'.")
    encoding = values.get("encoding_format", "float")
    if encoding not in ("float", "base64"):
        raise ValueError("Invalid value for 'encoding_format': supported are 'float' and 'base64'.")
    texts = tuple(part if isinstance(part, str) else json.dumps(part) for part in inputs)
    return Asked(
        endpoint="embeddings",
        digest=digest(given),
        model=model,
        input_tokens=sum(
            len(part) if isinstance(part, list) else count_tokens(text)
            for part, text in zip(inputs, texts, strict=True)
        ),
        texts=texts,
        as_base64=encoding == "base64",
        dimensions=_whole(values, "dimensions", MOST_DIMENSIONS) if values.get("dimensions") is not None else 8,
    )


def _text(message: JSON) -> str:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "".join(text for text in texts if isinstance(text, str))


def _whole(values: Mapping[str, JSON], key: str, most: int) -> int:
    value = values[key]
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ValueError(f"Invalid value for '{key}': expected a whole number from 1 to {most}.")
    return value


def _boolean(values: Mapping[str, JSON], key: str) -> bool:
    value = values.get(key)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"Invalid type for '{key}': expected a boolean.")
    return value is True
