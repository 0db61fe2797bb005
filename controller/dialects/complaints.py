"""An error object of any provider, read without trust into one value.

Accepted shapes: `{"error": {...}}`, the same in a list (Gemini and its compatibility layer), `{"error": "text"}`
(Ollama), flat `{"object": "error", "message": ...}` (older vLLM, Mistral), `{"detail": ...}` (FastAPI). What a
complaint means for the prompt, the rate and the run is decided in refusals.py, for all dialects alike.
"""

from __future__ import annotations

import json
import re

from attrs import field, frozen

from controller.dialects.bodies import dicts, shortened
from policies.contract import JSON


@frozen(kw_only=True)
class Complaint:
    """An error object, read. words: its type, codes and reasons in lower case."""

    message: str
    words: frozenset[str]
    code: str | None
    type: str
    status: int | None  # the HTTP status it names itself
    details: JSON
    quotas: str  # names of violated quotas
    flagged: bool  # OpenRouter: moderation of the input
    headers: dict[str, str] = field(factory=dict)  # OpenRouter: those of the provider behind it, in its body


def find_error(document: JSON, *, named_error: bool = False) -> Complaint | None:
    """The complaint in a document, if it is one. named_error: it came as `event: error`, so it must be."""
    if isinstance(document, list):
        return next((found for item in document[:1] if (found := find_error(item))), None)
    if not isinstance(document, dict):
        return None
    error = document.get("error")
    groq = document.get("x_groq")
    if not error and isinstance(groq, dict):
        error = groq.get("error")
    if isinstance(error, dict) and error:
        beside = {key: document.get(key) for key in ("code", "status", "type")}  # SGLang puts the code there
        return complaint_of(beside | {key: value for key, value in error.items() if value is not None})
    if error:
        return complaint_of({**document, "message": error})
    flat = document.get("object") == "error" or not ({"choices", "data"} & document.keys())
    if named_error or (flat and ({"message", "detail"} & document.keys())):
        return complaint_of(document)
    return None


def typed_error(document: JSON, event_name: str) -> Complaint | None:
    """The complaint in an event of an API whose events carry a `type`, and perhaps a `message` that is none."""
    kind = document.get("type") if isinstance(document, dict) else None
    named = kind == "error" or event_name == "error"
    if named or not isinstance(kind, str) or (isinstance(document, dict) and document.get("error")):
        return find_error(document, named_error=named)
    return None


def complaint_of(error: dict[str, JSON]) -> Complaint:
    """An error object as a complaint, whatever is in it; of an empty one nothing is known but the status."""
    inner, details, metadata = error.get("innererror"), error.get("details"), error.get("metadata")
    words = [error.get(key) for key in ("type", "code", "status", "reason")]
    words += [inner.get("code")] if isinstance(inner, dict) else []
    words += [details.get("error_code")] if isinstance(details, dict) else []  # Anthropic's spend limits
    nested = [item for key in ("details", "errors") for item in dicts(error.get(key))]
    words += [detail.get("reason") for detail in nested]
    code = next((str(error[key]) for key in ("code", "type") if isinstance(error.get(key), str | int)), None)
    numbers = (_status(error.get(key)) for key in ("code", "status", "statusCode"))
    return Complaint(
        message=shortened(_text(error.get("message") or error.get("detail"))),
        words=frozenset(word.lower() for word in words if isinstance(word, str)),
        code=code,
        type=str(error.get("type")),
        status=next((number for number in numbers if number), None),
        details=details,
        quotas=" ".join(_quota_names(nested)),
        flagged=isinstance(metadata, dict) and ("flagged_input" in metadata or "reasons" in metadata),
        headers=_headers(metadata),
    )


def _headers(metadata: JSON) -> dict[str, str]:
    headers = metadata.get("headers") if isinstance(metadata, dict) else None
    pairs = headers.items() if isinstance(headers, dict) else ()
    return {name.lower(): str(value) for name, value in pairs if isinstance(value, str | int | float)}


def _quota_names(details: list[dict[str, JSON]]) -> list[str]:
    names: list[JSON] = []
    for detail in details:
        names += [violation.get("quotaId") for violation in dicts(detail.get("violations"))]
        metadata = detail.get("metadata")
        names += [metadata.get("quota_limit")] if isinstance(metadata, dict) else []
    return [name for name in names if isinstance(name, str)]


def _status(value: JSON) -> int | None:
    text = str(value) if isinstance(value, int | str) else ""
    return int(text) if re.fullmatch(r"[45][0-9][0-9]", text) else None


def _text(value: JSON) -> str:
    return value if isinstance(value, str) else json.dumps(value) if value else ""
