"""What the user himself sets an end to: time for a prompt, waits for a quota."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from wire_answers import FINE, error, response, said
from wired import WALL, wired

from controller.dialects.table import DIALECTS
from controller.forms import Draft
from controller.lines import parse_line
from controller.midnight import LATE, until_midnight
from controller.outcome import Throttled
from controller.patience import Patience
from controller.telemetry import Exit
from controller.upstream import GOOGLE
from policies.contract import JSON

SPENT: JSON = {
    "error": {
        "code": 429,
        "message": "You exceeded your current quota.",
        "status": "RESOURCE_EXHAUSTED",
        "details": [
            {
                "@type": "type.googleapis.com/google.rpc.QuotaFailure",
                "violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}],
            }
        ],
    }
}
DAY_IS_SPENT = error(SPENT, 429)


def kinds(lines: list[dict[str, JSON]]) -> list[JSON]:
    return [line["error"]["kind"] if isinstance(line["error"], dict) else None for line in lines]


# -- a deadline


def test_a_prompt_that_waits_too_long_ends_in_an_error_of_its_own_kind() -> None:
    out = wired("steady?rate=0.1&burst=1", 5, deadline=15.0, policy="fixed", policy_option=("refill_rate=0.1",))
    assert out.exit is Exit.SOME_FAILED
    assert sorted(map(str, kinds(out.results))) == ["None", "None", "deadline", "deadline", "deadline"]
    assert all(instant == pytest.approx(15.0) for instant in out.written_at[2:])
    assert len(out.requests) == 0 or len(out.requests) <= 3


def test_an_answer_that_comes_too_late_is_not_waited_for() -> None:
    out = wired("steady?latency=100", 1, deadline=2.0)
    error_of = out.result["error"]
    assert isinstance(error_of, dict)
    assert (error_of["kind"], out.result["attempts"]) == ("deadline", 1)
    assert out.elapsed == pytest.approx(2.0, abs=0.1)


def test_a_line_may_bring_a_deadline_of_its_own_and_it_is_not_sent() -> None:
    lines = [json.dumps({"id": n, "prompt": "x", "deadline": seconds}).encode() for n, seconds in enumerate((2.5, 60))]
    out = wired("steady?latency=10&rate=100&burst=100", lines)
    by_id = {str(line["id"]): line["status"] for line in out.results}
    assert by_id == {"0": "error", "1": "ok"}
    bytes_out = wired(FINE, lines)
    assert all(b"deadline" not in request for _, request in bytes_out.requests)


def test_a_column_that_is_called_deadline_stays_what_it_was() -> None:
    out = wired(FINE, [json.dumps({"prompt": "x", "deadline": "2024-12-24"}).encode()])
    assert (out.result["status"], out.result["metadata"]) == ("ok", {"deadline": "2024-12-24"})


@pytest.mark.parametrize("number", ["1" + 400 * "0", "1e300", "1000000001", "0", "-1", "true"])
def test_a_deadline_that_no_run_can_keep_is_a_column_like_any_other(number: str) -> None:
    draft = parse_line(f'{{"prompt":"x","deadline":{number}}}'.encode())
    assert isinstance(draft, Draft)
    assert (draft.deadline, draft.metadata) == (None, {"deadline": json.loads(number)})


@pytest.mark.parametrize("seed", range(5))
def test_with_deadlines_each_prompt_has_one_result_all_the_same(seed: int) -> None:
    out = wired("flaky?rate=2&latency=1", 40, deadline=20.0, seed=seed)
    assert sorted(int(str(line["id"])) for line in out.results) == list(range(40))
    assert set(map(str, kinds(out.results))) <= {"None", "deadline"}


# -- quotas per day


@pytest.mark.parametrize(("dialect", "form"), [("gemini", "gemini"), ("vertex", "gemini"), ("gemini-openai", "openai")])
def test_a_spent_day_is_waited_for_until_midnight_in_california(dialect: str, form: str) -> None:
    fine = response(*said("fine", form))
    out = wired([DAY_IS_SPENT, fine], 3, dialect=dialect, on_quota="wait")
    assert (out.exit, len(out.results)) == (Exit.OK, 3)
    second = datetime.fromtimestamp(WALL + out.requests[1][0], ZoneInfo("America/Los_Angeles"))
    assert (second.hour, second.minute) == (0, 1)
    assert out.requests[1][0] < 86_400 + 120


def test_all_dialects_of_google_count_days_in_california() -> None:
    of_google = {name for name, each in DIALECTS.items() if any("googleapis" in host for host in each.about.hosts)}
    assert of_google == GOOGLE


@pytest.mark.parametrize(("words", "waits"), [("Please retry in 74879.5s.", 74_879.5), ("Please retry in 22s.", None)])
@pytest.mark.parametrize("dialect", ["gemini", "gemini-openai"])
def test_a_spent_day_is_waited_for_as_long_as_its_message_says_unless_that_is_of_a_minute(
    dialect: str, words: str, waits: float | None
) -> None:
    spent = json.loads(json.dumps(SPENT).replace("current quota.", f"current quota. {words}"))
    fine = response(*said("fine", "gemini" if dialect == "gemini" else "openai"))
    out = wired([error(spent, 429), fine], 1, dialect=dialect, on_quota="wait")
    midnight = until_midnight(WALL, pacific=True)
    assert out.exit is Exit.OK
    assert out.requests[1][0] == pytest.approx(midnight if waits is None else waits, abs=2)


def test_a_spent_day_stops_the_run_unless_it_is_to_wait() -> None:
    out = wired([DAY_IS_SPENT, FINE], 3, dialect="gemini")
    assert (out.exit, out.results, len(out.requests)) == (Exit.UPSTREAM, [], 1)


def test_a_stated_reset_beyond_the_longest_wait_is_kept_and_said() -> None:
    refusal = error({"error": {"message": "Rate limit reached."}}, 429, retry_after="7200")
    out = wired([refusal, FINE], 1, on_quota="wait")
    assert out.exit is Exit.OK
    assert 7200 <= out.requests[1][0] <= 7202


def test_the_user_is_told_once_until_when_it_waits() -> None:
    said_lines: list[str] = []
    patience = Patience(900.0, lambda: WALL, lambda: 3600.0, waits=True, say=said_lines.append)
    refusal = Throttled(status=429, message="come back", retry_after=10_800.0)
    assert [patience.refuses(refusal, in_vain=False) for _ in range(3)] == [None] * 3
    assert said_lines == ["waiting until 2023-11-15 01:13:20 UTC: come back"]


@given(st.datetimes(datetime(2024, 1, 1), datetime(2040, 1, 1)))  # noqa: DTZ001 - made aware below
def test_midnight_in_california_is_what_the_database_of_time_zones_says(naive: datetime) -> None:
    now = naive.replace(tzinfo=UTC)
    here = now.astimezone(ZoneInfo("America/Los_Angeles"))
    midnight = (here + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    assert until_midnight(now.timestamp(), pacific=True) - LATE == pytest.approx((midnight - now).total_seconds())


@given(st.integers(0, 4_000_000_000))
def test_midnight_comes_within_a_day_and_an_hour(wall: int) -> None:
    assert LATE <= until_midnight(wall, pacific=False) <= 86_400 + LATE
    assert LATE <= until_midnight(wall, pacific=True) <= 90_000 + LATE


# -- the clock on the wall


@pytest.mark.parametrize("step", [-7200.0, 7200.0])
@pytest.mark.parametrize("hint", ["5", "Tue, 14 Nov 2023 22:13:26 GMT"])
def test_a_wall_clock_that_is_set_changes_no_wait(step: float, hint: str) -> None:
    def wall() -> float:
        now = trio.current_time()
        return WALL + now + (step if now > 1.0 else 0.0)

    refusal = error({"error": {"message": "Rate limit reached."}}, 429, retry_after=hint)
    out = wired([refusal, FINE], 3, wall_clock=wall)
    assert (out.exit, len(out.results)) == (Exit.OK, 3)
    assert 5.0 <= out.gaps[0] <= 7.0
    assert out.elapsed < 15.0
