"""Recorded traffic through the whole daemon: what is sent, what is measured, what is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulations.trace_runs import BACKLOG, OWN, Plan, plans_of, run_plan, table

ROWS = "".join(
    f'{{"timestamp": {at}, "input_length": {read}, "output_length": {written}}}\n'
    for at, read, written in [(0, 400, 30), (20_000, 100, 1), (20_500, 30_000, 200), (3_000_000, 5, 5)]
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "trace.jsonl").write_text(ROWS)
    (tmp_path / "LICENSE").write_text("none")
    return tmp_path / "mine" / "trace.jsonl"


def test_each_trace_is_run_on_each_profile_at_its_own_times_and_as_a_backlog(trace: Path) -> None:
    plans = plans_of(trace.parent.parent, ("azure", "vllm"), 60.0)
    assert [(plan.trace, plan.profile, plan.pace) for plan in plans] == [
        (trace, profile, pace) for profile in ("azure", "vllm") for pace in (OWN, BACKLOG)
    ]


def test_a_batch_without_instants_is_a_backlog_alone(tmp_path: Path) -> None:
    (tmp_path / "batch.jsonl").write_text('{"input_length": 3, "output_length": 2}\n' * 2)
    assert [plan.pace for plan in plans_of(tmp_path, ("vllm",))] == [BACKLOG]


def test_prompts_come_at_their_instants_and_with_their_lengths(trace: Path) -> None:
    own = run_plan(Plan(trace=trace, profile="openai-tier5", seconds=60.0, pace=OWN))
    backlog = run_plan(Plan(trace=trace, profile="openai-tier5", seconds=60.0, pace=BACKLOG))
    assert (own.prompts, own.answered, own.throttled) == (3, 3, 0)
    assert 20.5 < own.elapsed < 30  # its last answer takes about three seconds
    assert backlog.elapsed < 10
    assert own.wait(0.99) < 0.5
    # 30,500 of the 30 million and half a million a second until the last admission, and no more.
    assert (own.binding, backlog.binding) == ("tokens", "tokens")
    assert own.used == pytest.approx(30_500 / (30e6 + 20.5 * 0.5e6), rel=0.02)


def test_what_is_larger_than_a_minute_s_limit_is_not_answered_and_holds_nobody_up(trace: Path) -> None:
    out = run_plan(Plan(trace=trace, profile="azure?tokens_per_minute=20000", seconds=60.0, pace=BACKLOG))
    assert (out.prompts, out.answered) == (3, 2)


def test_output_counts_against_the_limit_on_output(trace: Path) -> None:
    out = run_plan(Plan(trace=trace, profile="anthropic-start?output_tokens_per_minute=300", seconds=60.0, pace=OWN))
    assert (out.answered, out.binding) == (3, "output tokens")
    assert out.used == pytest.approx(231 / (300 + 20.5 * 5), rel=0.02)


def test_the_table_has_a_row_for_each_run(trace: Path) -> None:
    outcome = run_plan(Plan(trace=trace, profile="vllm", seconds=60.0, pace=BACKLOG))
    head, line, row = table([outcome]).splitlines()
    assert head.count("|") == line.count("|") == row.count("|")
    assert row.startswith("| mine/trace | vllm | backlog | 3 | 3 | 0.00 |")
