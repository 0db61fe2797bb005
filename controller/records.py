"""Prompts and results as values, and a result as its output line.

How an input line is read stands in `lines.py`, how it gets its key in `identity.py`.
"""

from __future__ import annotations

import json
import math
import re

from attrs import field, frozen

from controller.outcome import Answer, Failed, Usage
from policies.contract import JSON

MOST_NESTED = 200  # levels of lists and objects; json itself gives up near 1,000 less the depth of the stack
BATCH_ID = "batch_req_"  # what the Batch API puts before the number of an answered line
KEY_PATTERN = re.compile(r"[0-9a-f]{32}")


@frozen(kw_only=True)
class Prompt:
    """One input line, understood.

    key: 32 hex digits, the same for the same line in every run. endpoint: "chat/completions" or "embeddings".
    request: the body to send, in OpenAI chat form ("messages" or "input", parameters), without "stream" unless the
    line said so.
    """

    id: JSON  # as given (a string or a number), None without one
    key: str
    source: str  # "-" for stdin, else the path as the user wrote it
    line: int  # from 1
    request: dict[str, JSON]
    endpoint: str = "chat/completions"
    metadata: JSON = None
    deadline: float | None = None  # s from reading it, None without one
    batch: bool = False  # came as an OpenAI Batch line and is answered as one


@frozen(kw_only=True)
class Timing:
    """Durations in seconds. queued: from read to the last admission; first_token and total: of the last attempt."""

    queued: float = 0.0
    first_token: float | None = None
    total: float = 0.0


@frozen(kw_only=True)
class Result:
    """One output line: exactly one of answer and error is set."""

    prompt: Prompt
    answer: Answer | None = None
    error: Failed | None = None
    attempts: int = 0
    throttled: int = 0
    timing: Timing = Timing()
    usage: Usage | None = field(default=None)  # of the last attempt and the parts it continues; failed: what was seen
    seams: tuple[int, ...] = ()  # where in the text an attempt goes on after one that broke off, in characters


def dump_result(result: Result, *, with_body: bool = False) -> bytes:
    """One line of UTF-8 that ends in its only LF, in the form its prompt came in; never raises.

    with_body: keep the upstream's assembled body under "response". An embeddings result keeps it anyway: its vectors
    are nowhere else. The Batch form always has it.
    """
    if result.prompt.batch:
        return dump_line(_batch_form(result))
    native = _native_form(result)
    if result.answer is not None and result.seams:
        native["seams"] = list(result.seams)
    if result.answer is not None and (with_body or result.prompt.endpoint == "embeddings"):
        native["response"] = result.answer.body
    return dump_line(native)


def _native_form(result: Result) -> dict[str, JSON]:
    prompt, answer, timing = result.prompt, result.answer, result.timing
    usage = answer.usage if result.usage is None and answer is not None else result.usage
    return {
        "id": prompt.id,
        "key": prompt.key,
        "source": prompt.source,
        "line": prompt.line,
        "status": "error" if answer is None else "ok",
        "text": None if answer is None else answer.text,
        "reasoning": None if answer is None else answer.reasoning,
        "finish_reason": None if answer is None else answer.finish_reason,
        "model": (answer and answer.model) or prompt.request.get("model"),
        "usage": _usage(usage),
        "attempts": result.attempts,
        "throttled": result.throttled,
        "timing": {
            "queued": round(timing.queued, 6),
            "first_token": None if timing.first_token is None else round(timing.first_token, 6),
            "total": round(timing.total, 6),
        },
        "metadata": prompt.metadata,
        "error": _error(result.error),
    }


def _usage(usage: Usage | None) -> JSON:
    if usage is None:
        return None
    return {**usage.details, "input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}


def _error(error: Failed | None) -> JSON:
    if error is None:
        return None
    return {"kind": error.kind.value, "status": error.status, "code": error.code, "message": error.message}


def _batch_form(result: Result) -> dict[str, JSON]:
    response, error = _batch_outcome(result)
    name: JSON = BATCH_ID + result.prompt.key
    return {"id": name, "custom_id": result.prompt.id, "response": response, "error": error}


def _batch_outcome(result: Result) -> tuple[JSON, JSON]:
    """The `response` and `error` of a Batch line; only an answer may carry status 200, whatever a failure's was."""
    key, failed = result.prompt.key, result.error
    if result.answer is not None:
        return _batch_response(200, key, result.answer.body), None
    if failed is None:
        return None, {"code": "unknown", "message": "the prompt came to nothing"}
    if failed.status is not None and failed.status >= 400 and failed.body is not None:
        return _batch_response(failed.status, key, failed.body), None
    return None, {"code": failed.code or failed.kind.value, "message": failed.message}


def _batch_response(status: int, key: str, body: JSON) -> JSON:
    """request_id: the upstream's own number of the answer where its body has one, else our key."""
    upstream_id = body.get("id") if isinstance(body, dict) else None
    return {"status_code": status, "request_id": upstream_id if isinstance(upstream_id, str) else key, "body": body}


def dump_line(value: dict[str, JSON]) -> bytes:
    """One line of JSON with readable letters. What an upstream put into its body must not cost us the whole run."""
    try:
        text = _encode(value)
    except (ValueError, RecursionError):  # NaN, Infinity, or nested beyond reason: only an upstream's body can be
        text = _encode(_plain(value, MOST_NESTED + 10))
    # JSON allows these three raw, but readers that split at every Unicode line end would cut the record there.
    for character in "\x85\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    # Only half a surrogate pair cannot be encoded, and only inside a string, where \udXXX is its JSON escape.
    return text.encode(errors="backslashreplace") + b"\n"


def _encode(value: JSON) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _plain(value: JSON, levels: int) -> JSON:
    """The value with null for each number that JSON has no word for and for all that lies deeper than `levels`."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _plain(child, levels - 1) for key, child in value.items()} if levels else None
    if isinstance(value, list):
        return [_plain(child, levels - 1) for child in value] if levels else None
    return value
