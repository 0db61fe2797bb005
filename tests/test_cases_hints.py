"""Failures of other people's tools, chapter 4 and quotas: how long to wait, and when waiting is hopeless.

Each test is a 429 on the wire and then the instant of the next request, by a clock that cost no time.
"""

from __future__ import annotations

from email.utils import formatdate

import pytest
from wire_answers import FINE, error, response, said
from wired import DIALECTS, WALL, Wired, wired

from controller.telemetry import Exit
from policies.contract import JSON

dialects = pytest.mark.parametrize("dialect", DIALECTS)
LIMITED: JSON = {"error": {"message": "Rate limit reached.", "type": "requests", "code": "rate_limit_exceeded"}}
NEW_PROBE = 1.0  # s more than the hint that may pass until the next request


def after(*refusals: bytes, dialect: str = "openai") -> Wired:
    """A run that is refused so, and then answered."""
    out = wired([*refusals, response(*said("fine", dialect))], dialect=dialect)
    assert (out.exit, out.result["text"], out.result["throttled"]) == (Exit.OK, "fine", len(refusals))
    return out


def limited(**headers: str) -> bytes:
    """A 429 with these headers."""
    return error(LIMITED, 429, **headers)


USELESS = [
    {"retry_after": "-1"},
    {"retry_after_ms": "-5"},
    {"retry_after": "0"},
    {"retry_after": "Wed, 21 Oct 2015 07:28:00 GMT"},
    {"retry_after": "Wed, 21 Oct 2015 07:28:00 GMT", "date": formatdate(WALL, usegmt=True)},
    {"retry_after": "soon"},
    {"retry_after": "NaN"},
    {"retry_after": "inf"},
    {"retry_after": "-9999999999999999999999"},
]


@pytest.mark.parametrize("headers", USELESS, ids=str)
@dialects
def test_c40_a_negative_or_past_retry_after_is_no_hint(headers: dict[str, str], dialect: str) -> None:
    # https://github.com/openai/openai-java/issues/853
    useless, none = (after(*[limited(**more)] * 3, dialect=dialect) for more in (headers, {}))
    assert useless.gaps == none.gaps, "our own back-off, as without any hint"
    assert all(gap > 0.1 for gap in none.gaps)


DATES = [
    "{day}, {rest} GMT",
    "{day}, {rest}",  # without a zone
    "{day}, {rest} -0000",
    "{day}, {rest} +0000",
]


@pytest.mark.parametrize("form", DATES)
@pytest.mark.parametrize("skew", [0.0, 3600.0, -3600.0])
def test_c43_a_date_is_waited_for_by_the_servers_own_clock(form: str, skew: float) -> None:
    # https://github.com/NousResearch/hermes-agent/issues/84738
    day, _, rest = formatdate(WALL + skew + 20, usegmt=True).removesuffix(" GMT").partition(", ")
    answered = formatdate(WALL + skew, usegmt=True)
    out = after(limited(retry_after=form.format(day=day, rest=rest), date=answered))
    assert 20 <= out.gaps[0] < 20 + NEW_PROBE


def test_c43_a_date_without_a_date_of_the_answer_is_read_by_our_clock() -> None:
    out = after(limited(retry_after=formatdate(WALL + 20, usegmt=True)))
    assert 20 - 1 <= out.gaps[0] < 20 + NEW_PROBE


@pytest.mark.parametrize("seconds", [61, 75, 600])
@dialects
def test_c44_a_wait_over_a_minute_is_kept_to_the_second(seconds: int, dialect: str) -> None:
    # https://github.com/openai/openai-python/pull/3555
    out = after(limited(retry_after=f"{seconds}"), dialect=dialect)
    assert seconds <= out.gaps[0] < seconds + NEW_PROBE


def test_c44_a_wait_beyond_the_ceiling_parks_the_run_and_is_never_shortened() -> None:
    out = wired([limited(retry_after="75"), FINE], 3, longest_wait=60.0)
    assert (out.exit, out.results, len(out.requests)) == (Exit.UPSTREAM, [], 1)
    assert "asks to wait 75 s" in str(out.stop.reason)


GROQ: JSON = {
    "error": {
        "message": "Rate limit reached for model `m` on tokens per minute (TPM): Limit 6000, Used 5000, Requested "
        "1528. Please try again in 5.289s.",
        "type": "tokens",
        "code": "rate_limit_exceeded",
    }
}


def test_c46_the_header_comes_before_the_text() -> None:
    # https://github.com/Aider-AI/aider/issues/3265
    out = after(error(GROQ, 429, retry_after="6", x_ratelimit_reset_tokens="5.289s"), dialect="groq")
    assert 6 <= out.gaps[0] < 6 + NEW_PROBE


@pytest.mark.parametrize("headers", [{}, {"x_ratelimit_reset_tokens": "5.289s"}, {"x_ratelimit_reset_tokens": "60s"}])
def test_c46_the_text_is_read_where_no_header_says_when_to_retry(headers: dict[str, str]) -> None:
    """A reset header means "full again"; the text means this request."""
    out = after(error(GROQ, 429, **headers), dialect="groq")
    assert 5.289 <= out.gaps[0] < 5.289 + NEW_PROBE


def gemini(*details: JSON, message: str = "Quota exceeded. Please retry in 53.016342224s.") -> JSON:
    """A 429 of Gemini's."""
    return {"error": {"code": 429, "message": message, "status": "RESOURCE_EXHAUSTED", "details": list(details)}}


def violation(quota: str) -> JSON:
    """A google.rpc.QuotaFailure."""
    violations: JSON = [{"quotaMetric": "generate_requests", "quotaId": quota}]
    return {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": violations}


def retry_info(delay: str) -> JSON:
    """A google.rpc.RetryInfo."""
    return {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}


PER_MINUTE = violation("GenerateRequestsPerMinutePerProjectPerModel-FreeTier")


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("dialect", ["gemini", "gemini-openai"])
def test_c47_a_delay_in_the_body_is_kept_and_never_rounded_down(dialect: str, listed: bool) -> None:
    # https://github.com/googleapis/python-genai/issues/1875
    document = gemini(PER_MINUTE, retry_info("53s"))
    out = after(error([document] if listed else document, 429), dialect=dialect)
    assert 53.016342224 <= out.gaps[0] < 53.02 + NEW_PROBE


def test_c47_the_delay_counts_without_words_too() -> None:
    out = after(error(gemini(retry_info("53s"), message="Quota exceeded."), 429), dialect="gemini")
    assert 53 < out.gaps[0] < 53 + NEW_PROBE, "with a little slack"


# -- when waiting is hopeless

SPENT = [
    ("openai", 429, {"error": {"message": "x", "type": "insufficient_quota", "code": "insufficient_quota"}}),
    ("openai", 429, {"error": {"message": "x", "type": "insufficient_quota", "code": None}}),
    ("openai", 429, {"error": {"message": "x", "type": "billing_not_active", "code": "billing_not_active"}}),
    ("openai", 402, {"error": {"message": "Insufficient Balance", "type": "unknown_error", "code": "x"}}),
    ("openai", 200, {"error": {"message": "x", "type": "insufficient_quota", "code": "insufficient_quota"}}),
    ("azure", 403, {"error": {"code": "QuotaExceeded", "message": "x"}}),
    ("anthropic", 400, {"type": "error", "error": {"type": "x", "message": "Your credit balance is too low"}}),
    ("openrouter", 402, {"error": {"code": 402, "message": "Insufficient credits"}}),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "status", "document"), SPENT)
@pytest.mark.parametrize("hint", [{}, {"retry_after": "2"}])
def test_c50_a_spent_account_stops_the_run_at_once(
    dialect: str, status: int, document: JSON, hint: dict[str, str]
) -> None:
    # https://github.com/langchain-ai/langchainjs/issues/1929
    out = wired(error(document, status, **hint), 3, dialect=dialect, max_in_flight=1)
    assert (out.exit, out.results, len(out.requests)) == (Exit.UPSTREAM, [], 1), "all three are still to be done"
    assert out.tally.throttled == 0
    assert all(each["old"] == each["new"] and each["held_for"] == 0 for each in out.decisions), (
        "the rate is not to blame"
    )


@dialects
def test_c50_a_spent_quota_of_any_dialect_is_fatal(dialect: str) -> None:
    out = wired("steady?fault=http-quota", 20, dialect=dialect)
    assert (out.exit, out.results, out.tally.throttled) == (Exit.UPSTREAM, [], 0)
    assert out.elapsed < 3


PER_DAY: list[JSON] = [
    violation("GenerateRequestsPerDayPerProjectPerModel-FreeTier"),
    {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "metadata": {"quota_limit": "GenerateRequestsPerDay"}},
]


@pytest.mark.parametrize("day", PER_DAY)
@pytest.mark.parametrize("also", [[], [PER_MINUTE]])
@pytest.mark.parametrize("dialect", ["gemini", "gemini-openai"])
def test_c51_a_quota_per_day_stops_the_run_whatever_delay_is_told(dialect: str, day: JSON, also: list[JSON]) -> None:
    # https://github.com/google-gemini/gemini-cli/issues/10925
    refused = error(gemini(*also, day, retry_info("22s"), message="Please retry in 22s."), 429, retry_after="22")
    out = wired(refused, 3, dialect=dialect, max_in_flight=1)
    assert (out.exit, out.results, len(out.requests)) == (Exit.UPSTREAM, [], 1)


RPD = "Rate limit reached for m on requests per day (RPD): Limit 200, Used 200, Requested 1."


def rpd(words: str, **headers: str) -> bytes:
    """A day's refusal in OpenAI's words."""
    return error(
        {"error": {"message": f"{RPD} {words}", "type": "requests", "code": "rate_limit_exceeded"}}, 429, **headers
    )


@pytest.mark.parametrize("dialect", ["openai", "responses", "groq"])
def test_c51_a_day_whose_promised_wait_is_in_vain_stops_the_run(dialect: str) -> None:
    """Of OpenAI's words alone nobody can tell a bucket filled over the day from a day that ends at midnight."""
    out = wired(rpd("Please try again in 3s.", retry_after="3"), 30, dialect=dialect)
    assert (out.exit, out.results) == (Exit.UPSTREAM, [])
    assert "per day" in str(out.stop.reason)
    assert out.elapsed < 10


def test_c51_a_day_without_any_promise_stops_the_run_at_once() -> None:
    out = wired(rpd(""), 3, max_in_flight=1)
    assert (out.exit, out.results, len(out.requests)) == (Exit.UPSTREAM, [], 1)


def test_c51_the_wait_of_the_day_counts_and_not_that_of_the_minute_beside_it() -> None:
    out = wired(rpd("Please try again in 6h12m.", retry_after="58"), 3, max_in_flight=1)
    assert (out.exit, len(out.requests)) == (Exit.UPSTREAM, 1)
    assert "22320 s" in str(out.stop.reason)


def test_c51_a_bucket_filled_over_the_day_is_used_as_it_fills() -> None:
    """Parked, a run against a limit of 3,600 a day would need a person every 24 s."""
    out = wired("steady?limit=3600&period=86400&burst=1&hint=per-day&latency=5", 20)
    assert (out.exit, len(out.texts)) == (Exit.OK, 20)
    assert out.elapsed < 20 * 24 * 1.5


@pytest.mark.parametrize("dialect", ["gemini"])
def test_c51_gemini_never_waits_for_a_day(dialect: str) -> None:
    out = wired("steady?rate=1&burst=1&hint=per-day", 60, dialect=dialect)
    assert (out.exit, out.tally.failed) == (Exit.UPSTREAM, 0)
