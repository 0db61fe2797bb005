"""The words of a simulated upstream: answers, embeddings and errors as the bytes that go over the wire.

Chat completions as in https://platform.openai.com/docs/api-reference/chat-streaming, embeddings as in
https://platform.openai.com/docs/api-reference/embeddings, errors also as Gemini's OpenAI-compatible endpoint writes
them (a list around the object, a numeric code: https://ai.google.dev/gemini-api/docs/openai).
"""

from __future__ import annotations

import base64
import json
import re
import struct
from itertools import chain, zip_longest
from random import Random

from attrs import frozen

from policies.contract import JSON
from simulations.asked import Asked, count_tokens
from simulations.quota import Refusal, Standing

CREATED = 1_790_000_000  # Unix seconds; fixed, so that runs can be compared byte by byte

# Scripts of several widths in UTF-8, letters that combine, an emoji of several code points, and U+2028, which is a
# line end to str.splitlines but not to Server-Sent Events.
WORDS = (
    *("tide", "gate", "water", "level", "pace", "stream", "answer", "prompt", "steady", "river", "harbour", "lock"),
    *("Schleuse", "Fluß", "über", "größer", "naïve", "e\u0301tang", "μέτρο", "ροή", "вода", "прилив"),
    *("水位", "潮門", "流れ", "수문", "بوابة", "المد", "שער", "जल", "🌊", "👩\u200d🔬", "line\u2028end"),
)


@frozen(kw_only=True)
class Choice:
    """One completed choice and how it ended: "stop" or "length"."""

    text: str
    finish_reason: str

    @property
    def output_tokens(self) -> int:
        """As the usage reports it."""
        return count_tokens(self.text)


@frozen(kw_only=True)
class Events:
    """A streamed answer by what its events carry, each event as bytes."""

    opening: tuple[bytes, ...]  # role chunks
    content: tuple[bytes, ...]
    closing: tuple[bytes, ...]  # finish chunks, usage, [DONE]


def write_choices(asked: Asked, seed: int, mean_words: int) -> tuple[Choice, ...]:
    """The same seed and prompt give the same text for each choice, whatever the attempt."""
    return tuple(_write(Random(f"{seed}/{asked.digest}/{i}"), asked, mean_words) for i in range(asked.choices))


def chat_events(asked: Asked, choices: tuple[Choice, ...], number: int) -> Events:
    """A chat completion as Server-Sent Events."""
    texts = [re.findall(r"\S+\s*|\s+", choice.text) for choice in choices]
    rows = zip_longest(*([(i, piece) for piece in pieces] for i, pieces in enumerate(texts)))
    deltas = [entry for row in rows for entry in row if entry is not None]
    finished = [_chunk(asked, number, i, {}, choice.finish_reason) for i, choice in enumerate(choices)]
    totals: dict[str, JSON] = {**_chunk_head(asked, number), "choices": [], "usage": _usage(asked, choices)}
    return Events(
        opening=tuple(
            _chunk(asked, number, i, {"role": "assistant", "content": "", "refusal": None}) for i in range(len(choices))
        ),
        content=tuple(_chunk(asked, number, i, {"content": piece}) for i, piece in deltas),
        closing=tuple(chain(finished, [_event(totals)] if asked.include_usage else [], [b"data: [DONE]\n\n"])),
    )


def chat_body(asked: Asked, choices: tuple[Choice, ...], number: int) -> bytes:
    """A chat completion in one piece."""
    listed: list[JSON] = [
        {
            "index": index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": None,
            "finish_reason": choice.finish_reason,
        }
        for index, choice in enumerate(choices)
    ]
    head = {**_chunk_head(asked, number), "object": "chat.completion"}
    return dump({**head, "choices": listed, "usage": _usage(asked, choices)})


def embeddings_body(asked: Asked, seed: int) -> bytes:
    """Small vectors with components in [-1, 1), the same for the same seed and text."""
    data: list[JSON] = []
    for index, text in enumerate(asked.texts):
        rng = Random(f"{seed}/{text!r}")
        vector = [rng.uniform(-1.0, 1.0) for _ in range(asked.dimensions)]
        packed = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")
        data.append({"object": "embedding", "index": index, "embedding": packed if asked.as_base64 else [*vector]})
    usage: JSON = {"prompt_tokens": asked.input_tokens, "total_tokens": asked.input_tokens}
    return dump({"object": "list", "data": data, "model": asked.model, "usage": usage})


def models_body() -> bytes:
    """The list of models: one, but every model name is served."""
    model: JSON = {"id": "sim-1", "object": "model", "created": CREATED, "owned_by": "tidegate"}
    return dump({"object": "list", "data": [model]})


def error_body(wording: str, status: int, message: str, kind: str, code: str | None) -> bytes:
    """An error other than a refusal for the rate; kind is OpenAI's `type`."""
    if wording == "gemini":
        return _gemini_error(status, message, [])
    return dump({"error": {"message": message, "type": kind, "param": None, "code": code}})


def openai_refusal(asked: Asked, refusal: Refusal, standing: Standing, delay: float | None) -> bytes:
    """A 429; delay in seconds is told in the text, None keeps it to itself."""
    tokens = refusal.dimension == "tokens"
    cost, used = asked.charge if tokens else 1, standing.limit - standing.remaining
    unit = {"tokens": "tokens per min (TPM)", "requests": "requests per min (RPM)"}.get(
        refusal.dimension, "concurrency"
    )
    if tokens and cost > standing.limit:
        message = f"Request too large for {asked.model} on {unit}: Limit {standing.limit:g}, Requested {cost}."
    else:
        figures = f"Limit {standing.limit:g}, Used {used:.0f}, Requested {cost}."
        message = f"Rate limit reached for {asked.model} on {unit}: {figures}"
    hint = "" if delay is None else f" Please try again in {go_duration(delay)}."
    kind = "tokens" if tokens else "requests"
    return dump({"error": {"message": message + hint, "type": kind, "param": None, "code": "rate_limit_exceeded"}})


def gemini_refusal(delay: float | None) -> bytes:
    """A 429; with a delay in seconds it names it, with None it says nothing that would help."""
    link: JSON = {"description": "Learn more about Gemini API quotas", "url": "https://ai.google.dev/gemini-api/docs"}
    details: list[JSON] = [{"@type": "type.googleapis.com/google.rpc.Help", "links": [link]}]
    if delay is None:
        return _gemini_error(429, "Resource has been exhausted (e.g. check quota).", details)
    details.append({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{delay:.9f}s"})
    return _gemini_error(429, f"Resource has been exhausted. Please retry in {delay:.9f}s.", details)


def go_duration(seconds: float) -> str:
    """As Go prints a time.Duration, which is the form of x-ratelimit-reset-*: 12ms, 8.64s, 6m0s, 1h12m3.5s."""
    milliseconds = round(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds else "0s"
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    large = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{large}{rest / 1000:g}s"


def dump(value: JSON) -> bytes:
    """Compact JSON in UTF-8, every script as itself."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _write(rng: Random, asked: Asked, mean_words: int) -> Choice:
    count = max(1, round(mean_words * rng.uniform(0.5, 1.5)))
    text = " ".join(rng.choices(WORDS, k=count))
    most = asked.max_output_tokens
    if most is None or count_tokens(text) <= most:
        return Choice(text=text, finish_reason="stop")
    # Cut to the bytes that many tokens stand for; half a character at the end is dropped.
    return Choice(text=text.encode()[: 4 * most].decode("utf-8", "ignore"), finish_reason="length")


def _usage(asked: Asked, choices: tuple[Choice, ...]) -> JSON:
    output = sum(choice.output_tokens for choice in choices)
    return {
        "prompt_tokens": asked.input_tokens,
        "completion_tokens": output,
        "total_tokens": asked.input_tokens + output,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def _chunk_head(asked: Asked, number: int) -> dict[str, JSON]:
    chunk_id = f"chatcmpl-{asked.digest}{number}"
    return {"id": chunk_id, "object": "chat.completion.chunk", "created": CREATED, "model": asked.model}


def _chunk(asked: Asked, number: int, index: int, delta: JSON, finish_reason: str | None = None) -> bytes:
    choice: JSON = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    usage: dict[str, JSON] = {"usage": None} if asked.include_usage else {}
    return _event({**_chunk_head(asked, number), "choices": [choice], **usage})


def _event(value: JSON) -> bytes:
    return b"data: " + dump(value) + b"\n\n"


def _gemini_error(status: int, message: str, details: list[JSON]) -> bytes:
    names = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED"}
    error: dict[str, JSON] = {"code": status, "message": message, "status": names.get(status, "INTERNAL")}
    return dump([{"error": {**error, **({"details": details} if details else {})}}])
