"""Delay hints: the law that any text gives None or a finite number above zero, and every form seen in the wild."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from controller.dialects.hints import rate_limits, retry_after, seconds
from policies.contract import JSON, Hints

NOW = 1_790_000_000.0
texts = st.text(max_size=60) | st.text("0123456789.:-+ hmsµdinraftewyZT,GMT", max_size=40)
documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["@type", "retryDelay", "seconds", "nanos"]), inner, max_size=3)
    ),
    max_leaves=8,
)


def fits(value: float | None) -> bool:
    """None or a finite number above zero."""
    return value is None or (math.isfinite(value) and value > 0)


@given(texts)
@example("9" * 400)
@example("1:00:" + "9" * 400)
@example("9" * 400 + "h")
@example("Wed, 99 Oct 99999 07:28:00 GMT")
@example("١٢")
@example("0\x1f")
def test_any_text_anywhere_gives_none_or_a_finite_number_above_zero(text: str) -> None:
    assert fits(seconds(text, wall_now=NOW))
    assert fits(retry_after({}, text=text))
    assert fits(retry_after({}, text=f"try again in {text}"))
    for name in ("retry-after", "retry-after-ms", "date"):
        assert fits(retry_after({"retry-after": "5", name: text}, wall_now=NOW))
    for hints in rate_limits({f"x-ratelimit-{kind}-tokens": text for kind in ("limit", "remaining", "reset")}).values():
        assert hints.limit is None or (math.isfinite(hints.limit) and hints.limit > 0)
        assert hints.remaining is None or (math.isfinite(hints.remaining) and hints.remaining >= 0)
        assert fits(hints.reset)


@given(documents)
def test_any_details_give_none_or_a_finite_number_above_zero(details: JSON) -> None:
    assert fits(retry_after({}, details=details))
    assert fits(retry_after({}, details=[{"@type": "x/google.rpc.RetryInfo", "retryDelay": details}]))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12", 12.0), ("1.5", 1.5), (".5", 0.5), ("0", None), ("-1", None), ("", None), ("nan", None), ("inf", None),
        ("9ms", 0.009), ("577.5ms", 0.5775), ("1s", 1.0), ("8.64s", 8.64), ("6m0s", 360.0), ("2m59.56s", 179.56),
        ("1h12m3.5s", 4323.5), ("0s", None), ("-5s", None), ("20µs", 2e-5), ("00:12:34", 754.0),
        ("1790000040", 40.0), ("1790000040000", 40.0), ("1789999999", None), ("1e5", None), ("1_000", None),
        ("2026-09-21T14:14:00Z", 1_790_000_040 - NOW), ("2026-09-21T14:14:00", 40.0), ("2015-10-21T07:28:00Z", None),
        ("Mon, 21 Sep 2026 14:14:00 GMT", 40.0), ("Mon Sep 21 14:14:00 2026", 40.0),
    ],
)  # fmt: skip
def test_a_reset_of_any_form_is_seconds(text: str, expected: float | None) -> None:
    assert seconds(text, wall_now=NOW) == (None if expected is None else pytest.approx(expected))


def test_an_instant_without_a_clock_is_no_hint() -> None:
    assert seconds("1790000040") is None
    assert seconds("2026-09-21T14:14:00Z") is None


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": "7", "retry-after-ms": "6540"}, 6.54),
        ({"retry-after": "7", "retry-after-ms": "-5"}, 7.0),  # C40: https://github.com/openai/openai-java/issues/853
        ({"retry-after": "-1"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, None),
        ({"retry-after": "75"}, 75.0),  # C44: https://github.com/openai/openai-python/pull/3555
        ({"retry-after": "10800"}, 10800.0),
        ({"retry-after": "2592000"}, 2_592_000.0),  # a month: never shortened
        ({"retry-after": "1790000040"}, 40.0),  # an instant, since no duration is so long
        ({"retry-after": "4000000000"}, None),  # nobody means 70 years
        ({"retry-after-ms": "99999999999999"}, None),
        ({"retry-after": "2, 30, 5"}, 30.0),
        ({"retry-after": "junk, 5"}, 5.0),
        ({"retry-after": "2, Mon, 21 Sep 2026 14:13:40 GMT"}, 20.0),
        ({"retry-after": "6m0s"}, 360.0),
        ({"retry-after": "nan"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_read_and_never_shortened(headers: dict[str, str], expected: float | None) -> None:
    assert retry_after(headers, wall_now=NOW) == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize("form", ["GMT", "-0000", ""])
def test_an_http_date_counts_from_the_servers_own_date(form: str) -> None:
    # C43: https://github.com/NousResearch/hermes-agent/issues/84738. Our clock is an hour off and does not matter.
    date = datetime.fromtimestamp(NOW, UTC)
    stamp = format_datetime(date + timedelta(seconds=20)).removesuffix("+0000") + form
    headers = {"retry-after": stamp, "date": format_datetime(date, usegmt=True)}
    assert retry_after(headers, wall_now=NOW - 3600) == pytest.approx(20)


def test_retry_info_counts_like_the_header_and_its_message_is_not_rounded() -> None:
    # C47: https://github.com/googleapis/python-genai/issues/1875
    details: JSON = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "53s"}]
    assert retry_after({}, details=details) == 53
    assert retry_after({}, details=details, text="Please retry in 53.016342224s.") == pytest.approx(53.016342224)
    assert retry_after({"retry-after": "7"}, details=details) == 7
    delays: list[JSON] = ["34.07s", "900ms", {"seconds": "34", "nanos": 500_000_000}]
    for delay, expected in zip(delays, [34.07, 0.9, 34.5], strict=True):
        detail: JSON = [{"@type": "google.rpc.RetryInfo", "retryDelay": delay}]
        assert retry_after({}, details=detail) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Limit 15000, Used 11972, Requested 4351. Please try again in 5.289s.", 5.289),  # C46
        ("Please try again in 20ms. Visit https://example.com", 0.02),
        ("Please try again in 6m0s.", 360.0),
        ("Please retry in 34.0748s.", 34.0748),
        ("Please retry after 7 seconds.", 7.0),
        ("Rate limit is exceeded. Try again in 1 minute and 30 seconds.", 90.0),
        ("10 requests in 60 seconds are allowed; try again in 5 s", 5.0),
        ("10 requests in 60 seconds are allowed", None),
        ("upstream request timed out after 600 seconds", None),
        ("Timeout after 600s; retry after 7 seconds", 7.0),
        ("come back in 2 hours", 7200.0),
        ("retry in 00:12:34", 754.0),
        ("Please wait 30 secs", 30.0),
        ("in 2026 models will be better", None),
        ("Please try again later", None),
        ("retry after -5 seconds", None),
    ],
)
def test_a_delay_in_prose_is_found(text: str, expected: float | None) -> None:
    assert retry_after({}, text=text) == (None if expected is None else pytest.approx(expected))


def test_rate_limit_headers_become_hints_by_dimension() -> None:
    headers = {
        "x-ratelimit-limit-requests": "14400", "x-ratelimit-remaining-requests": "14399",
        "x-ratelimit-reset-requests": "2m59.56s", "x-ratelimit-limit-tokens": "160,000",
        "x-ratelimit-remaining-tokens": "-1", "x-ratelimit-reset-tokens": "0",
    }  # fmt: skip
    assert rate_limits(headers, periods={"requests": 86400.0}) == {
        "requests": Hints(limit=14400, remaining=14399, reset=179.56, period=86400.0),
        "tokens": Hints(limit=160_000),
    }
    assert rate_limits({}) == {}
