"""Errors as OpenAI words them: https://platform.openai.com/docs/guides/error-codes/api-errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil

from attrs import frozen

from policies.contract import JSON
from simulations.answers import dump, go_duration, sse
from simulations.asked import Asked
from simulations.dialects.contract import Headers, Refusing, Said, Trouble
from simulations.standing import Standing


@frozen
class Row:
    """One kind of trouble in OpenAI's words."""

    status: int
    type: str
    code: str | None = None


INVALID = "invalid_request_error"
ROWS: Mapping[str, Row] = {
    "invalid": Row(400, INVALID),
    "blocked": Row(400, INVALID, "content_policy_violation"),
    "context": Row(400, INVALID, "context_length_exceeded"),
    "auth": Row(401, INVALID, "invalid_api_key"),
    "billing": Row(429, "billing_not_active", "billing_not_active"),
    "forbidden": Row(403, INVALID, "unsupported_country_region_territory"),
    "missing": Row(404, INVALID, "model_not_found"),
    "large": Row(413, INVALID),
    "rate": Row(429, "requests", "rate_limit_exceeded"),
    "quota": Row(429, "insufficient_quota", "insufficient_quota"),
    "server": Row(500, "server_error"),
    "overloaded": Row(503, "server_error", "engine_overloaded"),
    "timeout": Row(504, "server_error", "timeout"),
}


@frozen
class OpenAIErrors:
    """{"error": {"message", "type", "param", "code"}}, the same in an answer's body and within a stream."""

    def say(self, trouble: Trouble, asked: Asked | None) -> Said:  # noqa: ARG002 - the shape all wordings share
        """The body, and a `data:` line of it."""
        row, refusing = ROWS[trouble.kind], trouble.refusing
        tokens = refusing is not None and refusing.of_tokens
        error: JSON = {
            "message": trouble.message if refusing is None else refusal_text(refusing),
            "type": "tokens" if tokens else row.type,
            "param": None,
            "code": trouble.code or row.code,
        }
        return Said(trouble.status or row.status, dump({"error": error}), sse({"error": error}))


UNITS: Mapping[str, str] = {
    "tokens": "tokens per min (TPM)",
    "input_tokens": "input tokens per min (ITPM)",
    "output_tokens": "output tokens per min (OTPM)",
    "concurrency": "concurrency",
}


def refusal_text(refusing: Refusing) -> str:
    """Limit, what was used and asked for, and the delay where it may be told."""
    asked, standing, cost = refusing.asked, refusing.standing, refusing.cost
    hint = "" if refusing.told is None else f" Please try again in {go_duration(refusing.told)}."
    if refusing.per_day:
        limit = standing.limit if refusing.dimension == "requests_per_day" else 10_000
        figures = f"Limit {limit:g}, Used {limit:g}, Requested 1."
        return f"Rate limit reached for {asked.model} on requests per day (RPD): {figures}{hint}"
    unit = UNITS.get(refusing.dimension, "requests per min (RPM)")
    if refusing.never_fits:
        return f"Request too large for {asked.model} on {unit}: Limit {standing.limit:g}, Requested {cost}.{hint}"
    used = standing.limit - standing.remaining
    figures = f"Limit {standing.limit:g}, Used {used:.0f}, Requested {cost}."
    return f"Rate limit reached for {asked.model} on {unit}: {figures}{hint}"


def plain_seconds(seconds: float) -> str:
    """As Azure writes a reset."""
    return f"{ceil(seconds)}"


def limit_headers(standings: Mapping[str, Standing], written: Callable[[float], str] = go_duration) -> Headers:
    """x-ratelimit-*; the reset, as a Go duration or how it is `written`, is the time until the bucket is full."""
    pairs: list[tuple[str, str]] = []
    for dimension in ("requests", "tokens"):
        if dimension not in standings:
            continue
        standing = standings[dimension]
        pairs += [
            (f"x-ratelimit-limit-{dimension}", f"{standing.limit:.0f}"),
            (f"x-ratelimit-remaining-{dimension}", f"{int(standing.remaining)}"),
            (f"x-ratelimit-reset-{dimension}", written(standing.reset)),
        ]
    return tuple(pairs)
