"""A request body understood: what a simulated upstream is asked for, and what it would be charged.

A prompt's identity is the digest of its messages as OpenAI's chat completions write them, [{"role": ..., "content":
...}, ...]. The other dialects are turned into that form first: the system prompt is the first message, "model" says
"assistant", and content made of text parts alone is one string. So a prompt keeps its digest, and gets the same
answer, in whatever dialect it is asked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from attrs import frozen

from policies.contract import JSON

MOST_CHOICES = 128
MOST_OUTPUT_TOKENS = 10**9


@frozen(kw_only=True)
class Asked:
    """One valid request. digest: the prompt's identity, whatever the other parameters are."""

    endpoint: str  # "chat/completions", "embeddings", "messages", ...
    digest: str
    model: str
    input_tokens: int
    stream: bool = False
    include_usage: bool = False
    as_array: bool = False  # a stream that is one JSON array, not Server-Sent Events
    choices: int = 1
    max_output_tokens: int | None = None  # None: as long as the answer happens to be
    texts: tuple[str, ...] = ()  # the embeddings' inputs
    as_base64: bool = False
    dimensions: int = 8


def digest(content: JSON) -> str:
    """First 16 hex digits of the SHA-256 of `messages` or `input` as JSON: sorted keys, no blanks, ASCII escapes."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def count_tokens(text: str) -> int:
    """LLM tokens of a text, about a quarter of its UTF-8 bytes; nothing has none."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // 4)


def read_object(body: bytes) -> dict[str, JSON]:
    """The body's JSON object; raises ValueError with the sentence for the 400."""
    try:
        values: JSON = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError("We could not parse the JSON body of your request.") from error
    if not isinstance(values, dict):
        raise ValueError("The JSON body of a request must be an object.")
    return values


def model_of(values: Mapping[str, JSON]) -> str:
    """The model's name as it can be sent back; raises ValueError."""
    model = values.get("model", "sim-1")
    if not isinstance(model, str):
        raise ValueError("Invalid type for 'model': expected a string.")
    # A lone surrogate could not be sent back as UTF-8.
    return model.encode("utf-8", "replace").decode()


def message(role: str, content: JSON) -> dict[str, JSON]:
    """A message as chat completions write it; content made of text parts alone is one string."""
    if isinstance(content, list) and content and all(_is_text(part) for part in content):
        return {"role": role, "content": text_of(content)}
    return {"role": role, "content": content}


def text_of(content: JSON) -> str:
    """All text in a message's content: a string, or a list of parts with a `text` each."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "".join(text for text in texts if isinstance(text, str))


def tokens_of(messages: list[JSON]) -> int:
    """LLM tokens of all messages, one at least."""
    return max(1, sum(count_tokens(text_of(each.get("content"))) for each in messages if isinstance(each, dict)))


def whole(values: Mapping[str, JSON], key: str, most: int) -> int | None:
    """A whole number from 1 on, None if there is none; raises ValueError."""
    value = values.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ValueError(f"Invalid value for '{key}': expected a whole number from 1 to {most}.")
    return value


def boolean(values: Mapping[str, JSON], key: str) -> bool:
    """True if it is there and true; raises ValueError if it is there and no boolean."""
    value = values.get(key)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"Invalid type for '{key}': expected a boolean.")
    return value is True


def _is_text(part: JSON) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str) and set(part) <= {"type", "text"}
