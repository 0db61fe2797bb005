"""Every way an upstream says how long to wait, as seconds.

Seen in the wild: Retry-After as seconds or HTTP date (RFC 9110, section 10.2.3), retry-after-ms, Go durations
(`6m0s`, `577.5ms`: the x-ratelimit-reset headers), plain seconds (Azure), epoch seconds and milliseconds
(OpenRouter), RFC 3339 (Anthropic), google.rpc.RetryInfo, and prose ("Please try again in 5.289s").

Rules: any text at all gives None or a finite number above zero; zero, negative, past and junk are no hint
(https://github.com/openai/openai-java/issues/853); a hint is never shortened, however long it is, but what is
longer than a year is none.

The reset headers are no wait: most providers mean "full again" by them, not "one request fits". They become Hints,
which a policy weighs against limit and remaining.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from attrs import frozen

from policies.contract import JSON, Hints

TEXT_LIMIT = 10_000  # characters of a message that are looked at
EPOCH_SECONDS = 1e9  # a reset from here on is an instant (2001), not a duration (31 years)
EPOCH_MILLISECONDS = 1e11
LONGEST_HINT = 366 * 86_400.0  # seconds; nobody means more: junk, or a slip of the pen
DIMENSIONS = ("requests", "tokens")

_UNITS = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "millisecond": 1e-3, "msec": 1e-3,
    "s": 1.0, "sec": 1.0, "second": 1.0, "m": 60.0, "min": 60.0, "minute": 60.0,
    "h": 3600.0, "hr": 3600.0, "hour": 3600.0, "d": 86400.0, "day": 86400.0,
}  # fmt: skip
_NUMBER = r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+"
_UNIT = r"(?:millisecond|msec|second|sec|minute|min|hour|hr|day)s?|ns|us|µs|μs|ms|h|m|s|d"
_PART = re.compile(rf"({_NUMBER})\s*({_UNIT})(?![a-zµμ])", re.IGNORECASE)
_PARTS = rf"(?:(?:{_NUMBER})\s*(?:{_UNIT})(?![a-zµμ])(?:\s*(?:,|and)\s*|\s+)?)+"
_CLOCK = r"[0-9]{1,4}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?"
_DURATION = re.compile(rf"{_PARTS}|{_CLOCK}", re.IGNORECASE)
_PROMISE = re.compile(
    rf"(?:again|retry|retrying|wait|resets?)\b[^0-9]{{0,40}}?(?<!-)\b({_CLOCK}|{_PARTS})", re.IGNORECASE
)
_ANYWHERE = re.compile(rf"\b(?:in|after)\s+({_CLOCK}|{_PARTS})", re.IGNORECASE)
# What is past, or a window: "timed out after 600 seconds", "10 requests in 60 seconds".
_NO_PROMISE = re.compile(
    rf"(?:time[- ]?out|timed out|waited|gave up|failed|requests|tokens|calls)\s+(?:in|after)\s+(?:{_CLOCK}|{_PARTS})",
    re.IGNORECASE,
)
_PLAIN = re.compile(_NUMBER)
_BETWEEN_DUPLICATES = re.compile(r",(?!\s*[0-9]{1,2}[ -][A-Za-z]{3})")  # not the comma of "Wed, 21 Oct 2015"


@frozen(kw_only=True)
class LimitHeaders:
    """Where a provider announces one dimension: names in lower case, "" for what it does not tell."""

    dimension: str
    limit: str
    remaining: str
    reset: str = ""
    period: float | None = None  # seconds, where its documentation states them


X_RATELIMIT = tuple(
    LimitHeaders(
        dimension=name,
        limit=f"x-ratelimit-limit-{name}",
        remaining=f"x-ratelimit-remaining-{name}",
        reset=f"x-ratelimit-reset-{name}",
    )
    for name in DIMENSIONS
)


def retry_after(
    headers: Mapping[str, str], *, details: JSON = None, text: str = "", wall_now: float | None = None
) -> float | None:
    """Seconds to wait by the best witness: header, then RetryInfo in the error's details, then its message.

    headers: names in lower case. wall_now: seconds since the epoch, used where the answer has no Date of its own.
    """
    from_header = _from_headers(headers, wall_now)
    if from_header is not None:
        return from_header
    from_text = _from_text(text)
    from_details = _from_details(details)
    if from_details is None:
        return from_text
    # Gemini rounds retryDelay down ("53s") where its message has 53.016342224s: waiting the shorter trips again.
    return max(from_details, from_text or 0.0)


def rate_limits(
    headers: Mapping[str, str],
    announced: Iterable[LimitHeaders] = X_RATELIMIT,
    *,
    periods: Mapping[str, float] | None = None,
    wall_now: float | None = None,
) -> dict[str, Hints]:
    """What the headers announce, by dimension. periods: seconds, where they hold for the whole provider."""
    found = {}
    answered_at = _date(headers)
    reference = wall_now if answered_at is None else answered_at
    for row in announced:
        limit = _quantity(headers.get(row.limit))
        remaining = _quantity(headers.get(row.remaining))
        reset = seconds(headers.get(row.reset, ""), wall_now=reference)
        if limit is not None or remaining is not None or reset is not None:
            period = (periods or {}).get(row.dimension, row.period)
            found[row.dimension] = Hints(limit=limit or None, remaining=remaining, reset=reset, period=period)
    return found


def seconds(text: str, *, wall_now: float | None = None) -> float | None:
    """A reset value of any form as seconds from now; instants need wall_now."""
    text = text[:TEXT_LIMIT].strip()
    if _PLAIN.fullmatch(text):
        number = float(text)
        if number < EPOCH_SECONDS:
            return _positive(number)
        instant = number / 1000 if number >= EPOCH_MILLISECONDS else number
        return None if wall_now is None else _positive(instant - wall_now)
    if _DURATION.fullmatch(text):
        return _duration(text)
    instant_at = _rfc3339(text)
    if instant_at is None:
        instant_at = _http_date(text)
    return None if instant_at is None or wall_now is None else _positive(instant_at - wall_now)


def _from_headers(headers: Mapping[str, str], wall_now: float | None) -> float | None:
    milliseconds = [_positive(_float(value) / 1000) for value in headers.get("retry-after-ms", "").split(",")]
    answered_at = _date(headers)
    reference = wall_now if answered_at is None else answered_at  # both clocks then are the server's
    values = _BETWEEN_DUPLICATES.split(headers.get("retry-after", "")[:TEXT_LIMIT])
    return _largest(milliseconds) or _largest([seconds(value, wall_now=reference) for value in values])


def _from_details(details: JSON) -> float | None:
    delays: list[float | None] = []
    for detail in details if isinstance(details, list) else []:
        if isinstance(detail, dict) and str(detail.get("@type", "")).endswith("RetryInfo"):
            delay = detail.get("retryDelay")
            if isinstance(delay, dict):
                delays.append(_positive(_float(delay.get("seconds", 0)) + _float(delay.get("nanos", 0)) / 1e9))
            else:
                delays.append(seconds(delay if isinstance(delay, str) else json.dumps(delay)))
    return _largest(delays)


def _from_text(text: str) -> float | None:
    text = _NO_PROMISE.sub("", text[:TEXT_LIMIT])
    for pattern in (_PROMISE, _ANYWHERE):
        delay = _largest([_duration(match) for match in pattern.findall(text)])
        if delay is not None:
            return delay
    return None


def _duration(text: str) -> float | None:
    if ":" in text:
        hours, minutes, rest = text.split(":")
        return _positive(float(hours) * 3600 + float(minutes) * 60 + float(rest))
    return _positive(sum(float(number) * _unit(unit) for number, unit in _PART.findall(text)))


def _unit(word: str) -> float:
    word = word.lower()
    return _UNITS[word] if word in _UNITS else _UNITS[word.removesuffix("s")]


def _date(headers: Mapping[str, str]) -> float | None:
    return _http_date(headers.get("date", ""))


def _http_date(text: str) -> float | None:
    try:
        moment = parsedate_to_datetime(text)
        # Without a zone or with -0000 the result is naive; HTTP dates are UTC (RFC 9110, section 5.6.7).
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):  # the parser's own, on junk
        return None


def _rfc3339(text: str) -> float | None:
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _quantity(text: str | None) -> float | None:
    """A count that is at least zero; Azure says -1 where it does not know."""
    value = _float((text or "").replace(",", ""))
    return value if math.isfinite(value) and value >= 0 else None


def _float(value: JSON) -> float:
    """NaN for what is no plain number: comparisons with it then fail of themselves."""
    if isinstance(value, str):
        digits = value.strip()  # float() leaves U+001C to U+001F where they are
        return float(digits) if _PLAIN.fullmatch(digits) else math.nan
    try:
        return float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:  # an int beyond 1e308
        return math.inf


def _positive(value: float) -> float | None:
    return value if 0 < value <= LONGEST_HINT else None


def _largest(values: list[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
