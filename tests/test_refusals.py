"""The classifier that all dialects share: dimension, period, overload, transient, prompt, fatal."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.dialects.complaints import find_error
from controller.dialects.contract import Request
from controller.dialects.quotas import DAY, MINUTE, SECOND, named_dimension, named_period
from controller.dialects.refusals import refusal
from controller.dialects.table import DIALECTS
from controller.outcome import Failed, Kind, Outcome, Throttled
from controller.records import Prompt
from policies.contract import JSON, Scope


def verdict(status: int, body: JSON | bytes, headers: dict[str, str] | None = None, dialect: str = "openai") -> Outcome:
    """What an error answer of this dialect means."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return DIALECTS[dialect].classify(status, headers or {}, raw, wall_now=1_790_000_000.0)


def error(message: str = "", **more: JSON) -> JSON:
    """An error body of OpenAI's shape."""
    return {"error": {"message": message, **more}}


@given(st.text(max_size=60), st.text(max_size=12))
def test_any_words_name_a_known_dimension_and_period_or_none(text: str, kind: str) -> None:
    known = {None, "requests", "tokens", "input_tokens", "output_tokens", "concurrency"}
    assert named_dimension(text, kind=kind, hints={}) in known
    assert named_period(text) in {None, 1.0, 60.0, 3600.0, 86_400.0}


@pytest.mark.parametrize(
    ("message", "dimension", "period"),
    [
        ("Rate limit reached for m on tokens per min (TPM): Limit 9, Used 8, Requested 1.", "tokens", MINUTE),
        ("Rate limit reached for m on requests per day (RPD): Limit 9. Try again in 7m12s.", "requests", DAY),
        ("would exceed your organization's rate limit of 40,000 input tokens per minute", "input_tokens", MINUTE),
        ("would exceed the rate limit of 8,000 output tokens per minute", "output_tokens", MINUTE),
        ("on output tokens per minute (OTPM): Limit 9, Used 8, Requested 1.", "output_tokens", MINUTE),
        ("Number of concurrent connections has exceeded your rate limit", "concurrency", None),
        ("Rate limit reached for m on concurrency: Limit 4, Used 4, Requested 1.", "concurrency", None),
        ("Max parallel request limit reached. Limit: 10, current: 10", "concurrency", None),
        ("limit of 3 requests per second", "requests", SECOND),
        ("limited to 60 requests per minute and 500 requests per day; try again in 5s", "requests", None),
        ("requests per minute or tokens per minute", None, MINUTE),
        ("Rate limit exceeded: free-models-per-min.", "requests", MINUTE),
        ("slow", None, None),
    ],
)
def test_a_refusal_tells_its_dimension_and_period(message: str, dimension: str | None, period: float | None) -> None:
    outcome = verdict(429, error(message, code="rate_limit_exceeded"))
    assert isinstance(outcome, Throttled)
    assert (outcome.dimension, outcome.period) == (dimension, period)
    assert outcome.scope is (Scope.UNKNOWN if dimension is None else Scope.DIMENSION)


def test_the_type_of_the_error_names_the_dimension_where_the_text_does_not_refine_it() -> None:
    for text, dimension in [("slow", "tokens"), ("requests per min", "tokens"), ("input tokens", "input_tokens")]:
        outcome = verdict(429, error(text, type="tokens"))
        assert isinstance(outcome, Throttled)
        assert outcome.dimension == dimension


def test_without_words_the_header_that_counts_nothing_left_names_the_dimension_and_its_period() -> None:
    headers = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-remaining-tokens": "77", "retry-after": "9"}
    outcome = verdict(429, b"", headers, "groq")
    assert isinstance(outcome, Throttled)
    assert (outcome.dimension, outcome.period, outcome.retry_after) == ("requests", DAY, 9.0)


def test_a_daily_quota_without_any_hint_stops_the_run() -> None:
    spent = "Rate limit reached on requests per day (RPD): Limit 200, Used 200, Requested 1."
    assert isinstance(outcome := verdict(429, error(spent)), Failed)
    assert outcome.kind is Kind.FATAL
    assert isinstance(verdict(429, error(spent + " Please try again in 7m12s.")), Throttled)


@pytest.mark.parametrize(
    ("status", "body", "headers", "kind"),
    [
        (429, error("x", details={"error_code": "enforced_spend_limit_reached"}), {}, Kind.FATAL),
        (400, error("You have reached your specified API usage limits."), {}, Kind.FATAL),
        (400, error("Your credit balance is too low to access the API", type="invalid_request_error"), {}, Kind.FATAL),
        (429, error("litellm.RateLimitError: {'code': 'insufficient_quota'}", type="None", code="429"), {}, Kind.FATAL),
        (429, error("limit: 0, model: m"), {}, Kind.FATAL),
        (500, b"", {"x-should-retry": "false"}, Kind.PROMPT),
        (400, b"", {"x-should-retry": "true"}, Kind.SERVER),
        (400, error("bad", type="invalid_request_error"), {"x-should-retry": "true"}, Kind.PROMPT),
        (404, b"", {"x-should-retry": "true"}, Kind.FATAL),
        (400, error("x", code="image_too_large"), {}, Kind.PROMPT),
        (503, b"<h1>Maintenance</h1>", {}, Kind.SERVER),
        (503, error("upstream request timed out after 1000 seconds"), {}, Kind.SERVER),
    ],
)
def test_a_failure_is_of_this_kind(status: int, body: JSON | bytes, headers: dict[str, str], kind: Kind) -> None:
    outcome = verdict(status, body, headers)
    assert isinstance(outcome, Failed)
    assert outcome.kind is kind


def test_a_limit_on_images_is_a_limit_and_no_bad_image() -> None:
    assert isinstance(verdict(429, error("slow", code="image_rate_limit")), Throttled)


def test_a_limit_below_one_is_not_a_limit_of_none() -> None:
    assert isinstance(verdict(429, error("Limit: 0.5 requests per second")), Throttled)


def test_a_503_that_says_when_to_come_back_holds_the_rate_and_teaches_nothing() -> None:
    outcome = verdict(503, b"", {"retry-after": "30"})
    assert isinstance(outcome, Throttled)
    assert (outcome.scope, outcome.retry_after, outcome.dimension) == (Scope.OVERLOAD, 30.0, None)


# What differs between the members of OpenAI's family


def test_openrouter_tells_its_limits_inside_the_body() -> None:
    limits: JSON = {"X-RateLimit-Limit": "20", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1790000040000"}
    body = error("Rate limit exceeded: free-models-per-min.", code=429, metadata={"headers": limits})
    outcome = verdict(429, body, dialect="openrouter")
    assert isinstance(outcome, Throttled)
    assert (outcome.dimension, outcome.period) == ("requests", MINUTE)
    assert (outcome.hints["requests"].remaining, outcome.hints["requests"].reset) == (0, 40.0)


def test_a_503_is_load_at_together_and_a_failure_elsewhere() -> None:
    assert isinstance(outcome := verdict(503, b"", dialect="together"), Throttled)
    assert outcome.scope is Scope.OVERLOAD
    assert isinstance(verdict(503, b""), Failed)


def test_mistral_counts_by_the_minute_and_ends_with_the_month() -> None:
    headers = {
        "x-ratelimitbysize-limit-minute": "500000", "x-ratelimitbysize-remaining-minute": "7",
        "ratelimitbysize-reset": "28", "x-ratelimit-limit-req-minute": "60", "x-ratelimit-remaining-req-minute": "59",
    }  # fmt: skip
    hints = DIALECTS["mistral"].hints(headers)
    assert (hints["tokens"].limit, hints["tokens"].reset, hints["tokens"].period) == (500_000, 28.0, MINUTE)
    assert (hints["requests"].limit, hints["requests"].period) == (60, MINUTE)
    refused: JSON = {"object": "error", "message": "Requests rate limit exceeded", "type": "rate_limited"}
    assert isinstance(outcome := verdict(429, refused, headers, "mistral"), Throttled)
    assert outcome.dimension == "requests"
    spent = verdict(429, refused, headers | {"x-ratelimitbysize-remaining-month": "0"}, "mistral")
    assert isinstance(spent, Failed)
    assert spent.kind is Kind.FATAL


def test_mistral_is_not_asked_for_usage() -> None:
    prompt = Prompt(id=None, key="0" * 32, source="-", line=1, request={"messages": []})
    for name, asked in [("mistral", False), ("openai", True)]:
        request = DIALECTS[name].request("https://h/v1", prompt)
        assert isinstance(request, Request)
        assert (b"stream_options" in request.body) is asked


@pytest.mark.parametrize(
    ("document", "status", "kind"),
    [
        ({"error": {"code": "server_error", "message": "m"}}, 500, Kind.SERVER),
        ({"error": {"code": "invalid_prompt", "message": "m"}}, 400, Kind.PROMPT),
        ({"error": {"code": "bio_policy", "message": "m"}}, 400, Kind.PROMPT),
        ({"error": {"code": "invalid_image_format", "message": "m"}}, 400, Kind.PROMPT),
        ({"error": {"type": "authentication_error"}}, 401, Kind.FATAL),
    ],
)
def test_inside_a_200_the_words_of_the_error_stand_for_a_status(document: JSON, status: int, kind: Kind) -> None:
    outcome = refusal(200, find_error(document), b"", {}, wall_now=None)
    assert isinstance(outcome, Failed)
    assert (outcome.status, outcome.kind) == (status, kind)
