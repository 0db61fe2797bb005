"""What the user himself sets an end to: time for a prompt, waits for a quota, tokens and money of a run."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
import trio
from command import results, run, upstream, write_prompts
from hypothesis import given
from hypothesis import strategies as st
from wire_answers import FINE, error, response, said
from wired import WALL, wired

from controller.budget import Budget, Stake
from controller.forms import Draft
from controller.lines import parse_line
from controller.midnight import LATE, until_midnight
from controller.outcome import Answer, Completed, Failed, Kind, Outcome, Throttled, Usage
from controller.patience import Patience
from controller.prices import Prices
from controller.records import Prompt
from controller.telemetry import Exit
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
PROMPT = Prompt(id=None, key="", source="", line=0, request={"model": "gpt-4o-mini"})
DONE = Completed(answer=Answer(text="yo", finish_reason="stop", model="m", usage=None, body={}))


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


def test_a_spent_day_is_waited_for_until_midnight_in_california() -> None:
    fine = response(*said("fine", "gemini"))
    out = wired([DAY_IS_SPENT, fine], 3, dialect="gemini", on_quota="wait")
    assert (out.exit, len(out.results)) == (Exit.OK, 3)
    second = datetime.fromtimestamp(WALL + out.requests[1][0], ZoneInfo("America/Los_Angeles"))
    assert (second.hour, second.minute) == (0, 1)
    assert out.requests[1][0] < 86_400 + 120


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


# -- budgets

ends: st.SearchStrategy[Outcome | None] = st.sampled_from(
    [None, DONE, Failed(kind=Kind.SERVER, message=""), Throttled(status=429, message="")]
)


@given(st.integers(1, 500), st.lists(st.tuples(st.integers(1, 60), st.floats(0, 1), st.booleans(), ends), max_size=60))
def test_what_is_spent_and_under_way_never_exceeds_the_budget(
    most: int, attempts: list[tuple[int, float, bool, Outcome | None]]
) -> None:
    budget, under_way = Budget(most), list[Stake]()
    for reserved, share, ends_now, outcome in attempts:
        stake = budget.stake(PROMPT, 10, reserved)
        if isinstance(stake, Stake):
            under_way.append(stake)
        if ends_now and under_way:
            ended = under_way.pop(0)
            usage = Usage(input_tokens=1, output_tokens=int(share * ended.output_tokens)) if share < 0.9 else None
            budget.settle(PROMPT, ended, outcome, usage)
        assert budget.spent_tokens + sum(each.output_tokens for each in under_way) <= most


def test_a_budget_of_tokens_stops_the_run_before_it_is_exceeded_and_leaves_the_rest_pending() -> None:
    lines = [json.dumps({"id": n, "prompt": "x", "max_tokens": 20}).encode() for n in range(40)]
    out = wired("steady?rate=50&burst=50&latency=1&words=10", lines, max_output_tokens=200)
    spent = sum(int(str(line["usage"]["output_tokens"])) for line in out.results if isinstance(line["usage"], dict))
    assert out.exit is Exit.BUDGET
    assert "--max-output-tokens 200" in str(out.stop.reason)
    assert 0 < spent <= 200
    assert all(line["status"] == "ok" for line in out.results)


def test_prices_come_from_the_tables_by_url_or_by_model_alone() -> None:
    usage = Usage(input_tokens=1_000_000, output_tokens=1_000_000)
    there = Prices.of("https://api.openai.com/v1", WALL).price(PROMPT, usage)
    assert there == Prices.of("http://127.0.0.1:1/v1", WALL).price(PROMPT, usage) > 0


def test_a_model_without_a_price_is_no_surprise_later() -> None:
    unknown = Prompt(id=None, key="", source="", line=0, request={"model": "no-such-model"})
    prices = Prices.of("https://api.openai.com/v1", WALL)
    with pytest.raises(ValueError, match="no price for the model no-such-model"):
        prices.price(unknown, Usage())
    assert "no price" in str(Budget(cost=1.0, price=prices.price).stake(unknown, 1, 1))


@pytest.mark.slow
def test_a_budget_of_money_stops_the_run_resumably(tmp_path: Path) -> None:
    prompts, out = write_prompts(tmp_path / "p.jsonl", 100), tmp_path / "r.jsonl"
    flags = (prompts, "--model", "gpt-4o-mini", "--max-tokens", "100", "-o", out)
    with upstream("steady?rate=500&burst=500&latency=0.02&words=100") as url:
        done = run(*flags, "--base-url", url, "--max-cost", "0.001")
        assert done.returncode == 4, done.stderr
        assert "--max-cost 0.001" in done.stderr
        spent = sum(0.6e-6 * int(str(line["usage"]["output_tokens"])) for line in results(out))  # type: ignore[index,call-overload]
        assert 0 < spent <= 0.001
        again = run(*flags, "--base-url", url)
    assert again.returncode == 0
    assert len(results(out)) == 100
    refused = run(prompts, "--base-url", "http://127.0.0.1:9/v1", "--model", "no-such", "--max-cost", "1")
    assert (refused.returncode, "no price" in refused.stderr) == (2, True)


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
