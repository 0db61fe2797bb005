"""One classifier for all dialects: what an error means for the prompt, the rate and the run.

Evidence in this order: the status (of an error inside a 200 its own code or type), then the codes of the body, then
its wording, since that changes (https://github.com/openai/openai-cookbook/pull/1050), then `x-should-retry`. What
differs between providers comes in as `Habits`; how an error object is read stands in complaints.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus

from attrs import evolve, field, frozen

from controller.dialects.bodies import excerpt, parsed, shortened
from controller.dialects.complaints import Complaint, complaint_of
from controller.dialects.hints import DIMENSIONS, X_RATELIMIT, LimitHeaders, rate_limits, retry_after
from controller.dialects.quotas import DAY, named_dimension, named_period
from controller.outcome import Failed, Kind, Throttled
from policies.contract import Hints, Scope

_HOPELESS = frozenset({
    "insufficient_quota", "billing_not_active", "billing_hard_limit_reached", "budget_exceeded", "quota_exhausted",
    "insufficient_balance", "exceeded_current_quota_error", "account_deactivated", "api_key_invalid",
    "invalid_api_key", "failed_precondition", "quotaexceeded", "dailylimitexceeded",
})  # fmt: skip
_UNFIT = frozenset({"content_filter", "content_policy_violation", "responsibleaipolicyviolation"})
_OVERLOADED = frozenset({
    "overloaded_error", "engine_overloaded", "engine_overloaded_error", "service_tier_capacity_exceeded", "unavailable"
})  # fmt: skip
_THROTTLES = frozenset({
    "rate_limit_exceeded", "rate_limit_error", "rate_limited", "ratelimitexceeded", "userratelimitexceeded",
    "resource_exhausted", "throttling_error", "too_many_requests", "ratelimitreached", "ramp_limit_exceeded",
    *DIMENSIONS,
})  # fmt: skip
_STATUS_OF_WORD = {
    "invalid_request_error": 400, "badrequesterror": 400, "invalid_prompt": 400, "context_length_exceeded": 400,
    "invalid_argument": 400, "authentication_error": 401, "unauthenticated": 401, "billing_error": 402,
    "permission_error": 403, "permission_denied": 403, "unsupported_country_region_territory": 403,
    "not_found_error": 404, "not_found": 404, "model_not_found": 404, "invalid_api_key": 401,
    "insufficient_quota": 429, "billing_not_active": 429,
    "request_too_large": 413, "cancelled": 499, "timeout_error": 504, "deadline_exceeded": 504,
}  # fmt: skip
_FATAL_STATUS = frozenset({401, 402, 403, 404, 405, 407, 410, 501, 505})
_TRANSIENT_STATUS = frozenset({408, 409, 424, 425, 499})
_HOPELESS_WORD = re.compile(r"spend_limit_reached")
_UNFIT_WORD = re.compile(r"\Abio_policy|_policy\Z|image(?:_|\Z)")  # the Responses API's codes
_HOPELESS_TEXT = re.compile(
    r"free-models-per-day|\blimit: 0(?![.,]?[0-9])|credit balance|insufficient_quota|specified .{0,20}usage limits",
    re.IGNORECASE,
)
_OVERLOAD_TEXT = re.compile(
    r"overload|slow down|queue is full|(?:over|at|no|insufficient) capacity|server (?:is )?busy|pending requests",
    re.IGNORECASE,
)
_TOO_LARGE = re.compile(r"request too large", re.IGNORECASE)
_LIMIT_AND_REQUESTED = re.compile(r"\blimit:?\s+([0-9,]+).{0,200}?\brequested:?\s+([0-9,]+)", re.IGNORECASE | re.DOTALL)


@frozen(kw_only=True)
class Habits:
    """What differs between providers. periods: seconds by dimension, where they hold for all its limits."""

    limits: tuple[LimitHeaders, ...] = X_RATELIMIT
    periods: dict[str, float] = field(factory=dict)
    overloaded_statuses: frozenset[int] = frozenset()  # that mean overload without saying so in words
    hopeless_at_zero: tuple[str, ...] = ()  # headers that count what is left of a month

    def hints(self, headers: Mapping[str, str], *, wall_now: float | None = None) -> dict[str, Hints]:
        """What the headers (names in lower case) announce, by dimension."""
        return rate_limits(headers, self.limits, periods=self.periods, wall_now=wall_now)


ORDINARY = Habits()


def refusal(
    status: int,
    complaint: Complaint | None,
    body: bytes,
    headers: Mapping[str, str],
    *,
    wall_now: float | None,
    habits: Habits = ORDINARY,
) -> Throttled | Failed:
    """What the answer means for the prompt, the rate and the run. status 200: the complaint came inside an answer."""
    complaint = complaint or complaint_of({})
    if status < 300:
        status = _inner_status(complaint)
    message = complaint.message or excerpt(body) or _phrase(status)
    headers = {**complaint.headers, **headers}
    wait = retry_after(headers, details=complaint.details, text=message, wall_now=wall_now)
    kind, of_day = _kind(status, complaint, message, headers, habits), False
    if kind is Kind.SERVER and status == 503 and wait is not None:
        kind = None  # it says when it will serve again (RFC 9110, section 10.2.3)
    if kind is None:
        throttled = _throttled(status, complaint, message, habits.hints(headers, wall_now=wall_now), wait, habits)
        if throttled.period != DAY:
            return throttled
        # The header may be about the minute while the words are about the day.
        waits = [each for each in (wait, retry_after({}, details=complaint.details, text=message)) if each is not None]
        if waits:
            return evolve(throttled, retry_after=max(waits))
        kind = Kind.FATAL  # nobody says an end of it: waiting minute by minute is hopeless
        of_day = True
    if kind is Kind.FATAL and named_period(complaint.quotas, any_of=True) == DAY:  # the text may say "retry in 22s"
        message, of_day = f"the quota of a day is spent ({shortened(complaint.quotas)}): {message}", True
    kept = parsed(body) or excerpt(body) or None
    return Failed(
        kind=kind,
        message=message,
        status=status,
        code=complaint.code,
        body=kept,
        of_day=of_day,
        retry_after=wait if of_day else None,
    )


def _kind(status: int, complaint: Complaint, message: str, headers: Mapping[str, str], habits: Habits) -> Kind | None:
    """None means: throttled."""
    words = complaint.words
    if _is_hopeless(complaint, message) or any(headers.get(name) == "0" for name in habits.hopeless_at_zero):
        return Kind.FATAL
    if words & _UNFIT or complaint.flagged or (status in (400, 422) and any(map(_UNFIT_WORD.search, words))):
        return Kind.PROMPT
    if status in (413, 429) and _never_fits(message):
        return Kind.PROMPT
    if status in (429, 498, 529) or (words & (_THROTTLES | _OVERLOADED) and (status == 403 or status >= 500)):
        return None
    if status in habits.overloaded_statuses or (status == 503 and _OVERLOAD_TEXT.search(message)):
        return None
    if status in _FATAL_STATUS or 300 <= status < 400:
        return Kind.FATAL
    transient = status in _TRANSIENT_STATUS or status >= 500
    if status >= 500 or not words:
        transient = {"true": True, "false": False}.get(headers.get("x-should-retry", "").lower(), transient)
    return Kind.SERVER if transient else Kind.PROMPT


def _is_hopeless(complaint: Complaint, message: str) -> bool:
    words = complaint.words
    spent = bool(words & _HOPELESS) or any(map(_HOPELESS_WORD.search, words)) or _HOPELESS_TEXT.search(message)
    # A quota per day comes with a delay of seconds (https://github.com/google-gemini/gemini-cli/issues/10925).
    return bool(spent) or named_period(complaint.quotas, any_of=True) == DAY


def _throttled(
    status: int, complaint: Complaint, message: str, hints: dict[str, Hints], wait: float | None, habits: Habits
) -> Throttled:
    overload = (
        status in habits.overloaded_statuses | {503, 529}
        or complaint.words & _OVERLOADED
        or _OVERLOAD_TEXT.search(message)
    )
    dimension = None if overload else named_dimension(complaint.quotas or message, kind=complaint.type, hints=hints)
    silent = Throttled(
        status=status, message=message, code=complaint.code, scope=Scope.OVERLOAD, retry_after=wait, hints=hints
    )
    if overload:
        return silent
    period = named_period(complaint.quotas or message) or (hints[dimension].period if dimension in hints else None)
    scope = Scope.UNKNOWN if dimension is None else Scope.DIMENSION
    return evolve(silent, scope=scope, dimension=dimension, period=period)


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
    if any(map(_UNFIT_WORD.search, complaint.words)):
        return 400
    # OpenAI's type is invalid_request_error for nearly all: a code that stands for anything else is more exact.
    statuses = [_STATUS_OF_WORD[word] for word in complaint.words if word in _STATUS_OF_WORD]
    return next((status for status in sorted(statuses) if status != 400), 400 if statuses else 500)


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase if status in set(HTTPStatus) else f"HTTP status {status}"
