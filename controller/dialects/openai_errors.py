"""What an error of the OpenAI family means: Throttled or Failed, by status first, body second, wording last.

Accepted shapes: `{"error": {...}}`, the same in a list (Gemini's compatibility layer), `{"error": "text"}` (Ollama),
flat `{"object": "error", "message": ...}` (older vLLM, Mistral), `{"detail": ...}` (FastAPI), and no JSON at all.
Wording decides only what status and codes leave open, because it changes
(https://github.com/openai/openai-cookbook/pull/1050).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from http import HTTPStatus

from attrs import frozen

from controller.dialects.bodies import dicts, excerpt, parsed, shortened
from controller.dialects.hints import DIMENSIONS, retry_after
from controller.outcome import Failed, Kind, Throttled
from policies.contract import JSON, Scope

_HOPELESS = frozenset({
    "insufficient_quota", "billing_not_active", "billing_hard_limit_reached", "budget_exceeded", "quota_exhausted",
    "enforced_spend_limit_reached", "insufficient_balance", "exceeded_current_quota_error", "account_deactivated",
    "api_key_invalid", "invalid_api_key", "failed_precondition", "quotaexceeded", "dailylimitexceeded",
})  # fmt: skip
_UNFIT = frozenset({"content_filter", "content_policy_violation", "responsibleaipolicyviolation"})
_OVERLOADED = frozenset({
    "overloaded_error", "engine_overloaded", "engine_overloaded_error", "service_tier_capacity_exceeded", "unavailable"
})  # fmt: skip
_THROTTLES = frozenset({
    "rate_limit_exceeded", "rate_limit_error", "rate_limited", "ratelimitexceeded", "userratelimitexceeded",
    "resource_exhausted", "throttling_error", "too_many_requests", "ratelimitreached", *DIMENSIONS,
})  # fmt: skip
_STATUS_OF_WORD = {
    "invalid_request_error": 400, "badrequesterror": 400, "invalid_prompt": 400, "context_length_exceeded": 400,
    "authentication_error": 401, "billing_error": 402, "permission_error": 403, "not_found_error": 404,
    "model_not_found": 404, "request_too_large": 413, "timeout_error": 504,
}  # fmt: skip
_FATAL_STATUS = frozenset({401, 402, 403, 404, 405, 407, 410, 501, 505})
_TRANSIENT_STATUS = frozenset({408, 409, 424, 425, 499})
_PER_DAY = re.compile(r"per_?day|daily", re.IGNORECASE)
_HOPELESS_TEXT = re.compile(r"free-models-per-day|\blimit: 0\b|credit balance", re.IGNORECASE)
_OVERLOAD_TEXT = re.compile(
    r"overload|slow down|queue is full|(?:over|at|no|insufficient) capacity|server (?:is )?busy|pending requests",
    re.IGNORECASE,
)
_TOO_LARGE = re.compile(r"request too large", re.IGNORECASE)
_LIMIT_AND_REQUESTED = re.compile(r"\blimit:?\s+([0-9,]+).{0,200}?\brequested:?\s+([0-9,]+)", re.IGNORECASE | re.DOTALL)
_DIMENSION_TEXT = (
    (re.compile(r"tokens per (?:minute|min|day)|\bTP[MD]\b|token rate limit|tokens?per", re.IGNORECASE), "tokens"),
    (re.compile(r"requests per (?:minute|min|day)|\bRP[MD]\b|call rate limit|requestsper", re.IGNORECASE), "requests"),
)


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
        return _complaint(beside | {key: value for key, value in error.items() if value is not None})
    if error:
        return _complaint({**document, "message": error})
    flat = document.get("object") == "error" or not ({"choices", "data"} & document.keys())
    if named_error or (flat and ({"message", "detail"} & document.keys())):
        return _complaint(document)
    return None


def refusal(
    status: int, complaint: Complaint | None, body: bytes, headers: Mapping[str, str], *, wall_now: float | None
) -> Throttled | Failed:
    """What the answer means for the prompt, the rate and the run. status 200: the complaint came inside an answer."""
    complaint = complaint or _complaint({})
    if status < 300:
        status = _inner_status(complaint)
    message = complaint.message or excerpt(body) or _phrase(status)
    kind = _kind(status, complaint, message)
    if kind is None:
        return _throttled(status, complaint, message, headers, wall_now)
    document = parsed(body)
    return Failed(
        kind=kind, message=message, status=status, code=complaint.code, body=document or excerpt(body) or None
    )


def _kind(status: int, complaint: Complaint, message: str) -> Kind | None:
    """None means: throttled."""
    words = complaint.words
    if words & _HOPELESS or _PER_DAY.search(complaint.quotas) or _HOPELESS_TEXT.search(message):
        return Kind.FATAL
    if words & _UNFIT or complaint.flagged:
        return Kind.PROMPT
    if status in (413, 429) and _never_fits(message):
        return Kind.PROMPT
    if status in (429, 498, 529) or (words & (_THROTTLES | _OVERLOADED) and (status == 403 or status >= 500)):
        return None
    if status == 503 and _OVERLOAD_TEXT.search(message):
        return None
    if status in _FATAL_STATUS or 300 <= status < 400:
        return Kind.FATAL
    return Kind.SERVER if status in _TRANSIENT_STATUS or status >= 500 else Kind.PROMPT


def _throttled(
    status: int, complaint: Complaint, message: str, headers: Mapping[str, str], wall_now: float | None
) -> Throttled:
    overload = status in (503, 529) or complaint.words & _OVERLOADED or _OVERLOAD_TEXT.search(message)
    dimension = None if overload else _dimension(complaint, message)
    scope = Scope.OVERLOAD if overload else Scope.DIMENSION if dimension else Scope.UNKNOWN
    return Throttled(
        status=status,
        message=message,
        code=complaint.code,
        dimension=dimension,
        scope=scope,
        retry_after=retry_after(headers, details=complaint.details, text=message, wall_now=wall_now),
    )


def _dimension(complaint: Complaint, message: str) -> str | None:
    if complaint.type in DIMENSIONS:
        return complaint.type
    found = {name for pattern, name in _DIMENSION_TEXT if pattern.search(complaint.quotas or message)}
    return found.pop() if len(found) == 1 else None


def _never_fits(message: str) -> bool:
    """More was requested than the whole limit: no wait will help."""
    if numbers := _LIMIT_AND_REQUESTED.search(message):
        limit, requested = (int(number.replace(",", "") or "0") for number in numbers.groups())
        return requested > max(limit, 1)  # "Requested 1" counts requests, of which one is the least
    return bool(_TOO_LARGE.search(message))


def _inner_status(complaint: Complaint) -> int:
    """The status of an error that came inside a 200: its own number, else what its words stand for."""
    if complaint.status is not None:
        return complaint.status
    if complaint.words & _OVERLOADED:
        return 529
    if complaint.words & _THROTTLES:
        return 429
    return next((_STATUS_OF_WORD[word] for word in sorted(complaint.words) if word in _STATUS_OF_WORD), 500)


def _complaint(error: dict[str, JSON]) -> Complaint:
    inner = error.get("innererror")
    details = error.get("details")
    metadata = error.get("metadata")
    words = [error.get(key) for key in ("type", "code", "status", "reason")]
    words += [inner.get("code")] if isinstance(inner, dict) else []
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
    )


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


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase if status in set(HTTPStatus) else f"HTTP status {status}"
