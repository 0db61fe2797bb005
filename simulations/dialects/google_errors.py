"""Errors as Google words them (google.rpc.Status), natively and around Gemini's OpenAI-compatible endpoint.

https://ai.google.dev/gemini-api/docs/troubleshooting; the details are google.rpc.QuotaFailure, RetryInfo and ErrorInfo.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from policies.contract import JSON
from simulations.answers import dump, sse
from simulations.asked import Asked
from simulations.dialects.contract import Refusing, Said, Trouble

GOOGLE = "type.googleapis.com/google.rpc"
METRICS: Mapping[str, str] = {
    "tokens": "generate_content_free_tier_input_token_count",
    "requests": "generate_content_free_tier_requests",
}
QUOTA_IDS: Mapping[str, str] = {
    "tokens": "GenerateContentInputTokensPerModelPerMinute-FreeTier",
    "requests": "GenerateRequestsPerMinutePerProjectPerModel-FreeTier",
}
PER_DAY = "GenerateRequestsPerDayPerProjectPerModel-FreeTier"


@frozen
class Row:
    """One kind of trouble in Google's words; reason: of an ErrorInfo."""

    code: int
    status: str
    reason: str | None = None


ROWS: Mapping[str, Row] = {
    "invalid": Row(400, "INVALID_ARGUMENT"),
    "blocked": Row(400, "INVALID_ARGUMENT"),
    "context": Row(400, "INVALID_ARGUMENT"),
    "auth": Row(400, "INVALID_ARGUMENT", "API_KEY_INVALID"),
    "billing": Row(400, "FAILED_PRECONDITION"),
    "forbidden": Row(403, "PERMISSION_DENIED"),
    "missing": Row(404, "NOT_FOUND"),
    "large": Row(413, "INVALID_ARGUMENT"),
    "rate": Row(429, "RESOURCE_EXHAUSTED"),
    "quota": Row(429, "RESOURCE_EXHAUSTED"),
    "server": Row(500, "INTERNAL"),
    "overloaded": Row(503, "UNAVAILABLE"),
    "timeout": Row(504, "DEADLINE_EXCEEDED"),
}
NAMES: Mapping[int, str] = {
    **{row.code: row.status for row in reversed(list(ROWS.values())) if row.reason is None},
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
}


@frozen
class GoogleErrors:
    """{"error": {"code", "message", "status", "details"}}; listed: as the only entry of a list."""

    listed: bool = False

    def say(self, trouble: Trouble, asked: Asked | None) -> Said:
        """The body, and a `data:` line of it, or its place in a stream that is one JSON array."""
        row = ROWS[trouble.kind]
        code = trouble.status or row.code
        status = row.status if code == row.code else NAMES.get(code, "INTERNAL")
        message, details = _details(trouble, row)
        error: dict[str, JSON] = {"code": code, "message": message, "status": status}
        body: JSON = {"error": {**error, **({"details": details} if details else {})}}
        written = dump([body] if self.listed else body)
        if asked is not None and asked.as_array:
            return Said(code, written, dump(body) + b"]")
        return Said(code, written, sse(body, end=b"\n" if self.listed else b"\r\n"))


def _details(trouble: Trouble, row: Row) -> tuple[str, list[JSON]]:
    """The message and the details."""
    if trouble.refusing is not None:
        return _refusal(trouble.refusing)
    if trouble.kind == "quota":
        return f"{trouble.message} * Quota exceeded, limit: 50", [_help(), _violation("requests", PER_DAY, 50)]
    if row.reason is None or trouble.code is not None:
        return trouble.message, []
    reason: JSON = {"@type": f"{GOOGLE}.ErrorInfo", "reason": row.reason, "domain": "googleapis.com"}
    return "API key not valid. Please pass a valid API key.", [reason]


def _refusal(refusing: Refusing) -> tuple[str, list[JSON]]:
    """With a delay it names quota and delay; without one it says nothing that would help."""
    if refusing.told is None and not refusing.per_day:
        return "Resource has been exhausted (e.g. check quota).", [_help()]
    dimension = "tokens" if refusing.of_tokens else "requests"
    quota_id = PER_DAY if refusing.per_day else QUOTA_IDS[dimension]
    details = [_violation(dimension, quota_id, refusing.standing.limit), _help()]
    if refusing.told is None:
        return "Resource has been exhausted.", details
    details.append({"@type": f"{GOOGLE}.RetryInfo", "retryDelay": f"{refusing.told:.9f}s"})
    return f"Resource has been exhausted. Please retry in {refusing.told:.9f}s.", details


def _violation(dimension: str, quota_id: str, limit: float) -> JSON:
    violation: JSON = {
        "quotaMetric": f"generativelanguage.googleapis.com/{METRICS[dimension]}",
        "quotaId": quota_id,
        "quotaDimensions": {"location": "global", "model": "sim-1"},
        "quotaValue": f"{limit:.0f}",
    }
    return {"@type": f"{GOOGLE}.QuotaFailure", "violations": [violation]}


def _help() -> JSON:
    link: JSON = {"description": "Learn more about Gemini API quotas", "url": "https://ai.google.dev/gemini-api/docs"}
    return {"@type": f"{GOOGLE}.Help", "links": [link]}
