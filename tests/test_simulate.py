"""`tidegate simulate`: what it prints and writes, and when it says no."""

from __future__ import annotations

import contextlib
import gc
import json
from pathlib import Path
from unittest.mock import ANY

import click
import pytest
from attrs import evolve
from click.testing import CliRunner

from policies.aimd import Aimd
from policies.contract import Accepted, Event, Pace
from simulations.bounds import METRICS
from simulations.closed_loop import simulate as simulate_closed
from simulations.commands import simulate, with_peers
from simulations.plot import plot
from simulations.report import Cell
from simulations.results_page import page as page_of
from simulations.runs import Task, maker_of, run_all, run_task, uncollected
from simulations.scenario_files import load_scenario

SMALL = """
about = "A calendar minute of 60 that is found, overrun and kept to."
duration = 300
feedback = ["none", "headers"]
policy = "aimd"

[upstream]
quota = "fixed"
limit = 60
offset = 17

[bounds.none]
goodput = 10
refused = 50
"""


@pytest.fixture
def small(tmp_path: Path) -> str:
    path = tmp_path / "small.toml"
    path.write_text(SMALL, encoding="utf-8")
    return str(path)


def run(*arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr, as the command `tidegate` would have them."""
    result = CliRunner().invoke(simulate, arguments, standalone_mode=False)
    if isinstance(result.exception, click.ClickException):
        return result.exception.exit_code, result.stdout, result.exception.format_message()
    assert result.exception is None, result.exception
    return result.return_value, result.stdout, result.stderr


# -- what it prints


def test_goodput_stands_beside_the_share_of_429s(small: str) -> None:
    code, out, err = run(small, "--feedback", "none")
    assert code == 0
    assert err == ""
    title, heads, row = out.splitlines()
    assert title == "small, feedback none"
    assert heads.split("  ")[0:1] == [""]
    assert heads.lstrip().startswith("goodput / 429 %")
    assert row.split()[0] == "aimd"
    assert row.split()[2] == "/"


def test_several_policies_and_seeds_make_a_table_with_spread(small: str) -> None:
    code, out, _ = run(small, "--policy", "aimd", "--policy", "fixed", "--seeds", "2", "--feedback", "none")
    assert code == 0
    _, _, *rows = out.splitlines()
    assert [row.split()[0] for row in rows] == ["aimd", "fixed"]
    assert all("±" in row for row in rows)


def test_the_plot_shows_the_rate_and_the_limit(small: str) -> None:
    _, out, _ = run(small, "--feedback", "none", "--plot")
    assert "refill_rate (dots) and hidden limit (line)" in out
    assert "╌" in out
    assert "300 s" in out


def test_a_curve_is_drawn_where_it_is() -> None:
    lines = plot([0.0] * 8 + [8.0] * 8, [8.0] * 16, 60.0).splitlines()
    assert lines[1].endswith("│╌╌╌╌⣀⣀⣀⣀"), "at the limit from the middle on"
    assert lines[9].endswith("│⣀⣀⣀⣀"), "at the bottom before"
    assert plot([99.0, 99.0], [1.0, 1.0], 60.0).splitlines()[0].endswith("│⠉"), "what is above the top is at the top"


# -- what it writes


def test_the_same_seed_gives_the_same_bytes_of_json(small: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    for file in (first, second):
        assert run(small, "--seeds", "2", "--json", str(file))[0] == 0
    assert first.read_bytes() == second.read_bytes()
    cells = json.loads(first.read_text(encoding="utf-8"))["cells"]
    assert [(cell["scenario"], cell["feedback"], cell["contender"]) for cell in cells] == [
        ("small", "none", "aimd"),
        ("small", "headers", "aimd"),
    ]
    assert cells[0]["mean"].keys() == METRICS.keys()
    assert cells[0]["runs"] == [{"seed": seed, **dict.fromkeys(METRICS, ANY)} for seed in (0, 1)]


@pytest.mark.parametrize("feedback", ["none", "headers"])
def test_traffic_leaves_nothing_for_the_garbage_collector(small: str, feedback: str) -> None:
    scenario = load_scenario(small)
    leftovers = []
    for duration in (60.0, 3600.0):
        gc.collect()
        with uncollected():
            run = simulate_closed(evolve(scenario, duration=duration), maker_of("recall", scenario), feedback, 0)
            leftovers.append(gc.collect())
        assert run.record.sent_at
    assert leftovers[1] <= leftovers[0] + 50, "what is left grows with the run"


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_as_before_whatever_happens(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    try:
        during = []
        with contextlib.suppress(ZeroDivisionError), uncollected():
            during.append(gc.isenabled())
            raise ZeroDivisionError
        assert during == [False]
        assert gc.isenabled() is enabled
    finally:
        gc.enable()


def test_many_workers_find_what_one_finds(small: str) -> None:
    scenario = load_scenario(small)
    tasks = [Task(scenario=scenario, feedback="none", contender="aimd", seed=seed) for seed in range(4)]
    assert [result.figures for result in run_all(tasks)] == [run_task(task).figures for task in tasks]


def test_the_results_page_is_written_by_the_command_and_says_by_which(small: str, tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    assert run(small, "--feedback", "none", "--policy", "aimd", "--results", str(page))[0] == 0
    text = page.read_text(encoding="utf-8")
    assert "`tidegate simulate small.toml --policy aimd --feedback none --results RESULTS.md`" in text
    assert str(tmp_path) not in text
    assert "| scenario | aimd |" in text
    assert "| small | " in text
    assert text.rstrip().endswith("None."), "no broken bounds"


def test_the_results_page_names_a_peer_that_does_better_than_the_default_and_no_other(small: str) -> None:
    task = Task(scenario=load_scenario(small), feedback="none", contender="aimd", seed=0)
    figures = run_task(task).figures

    def cell(contender: str, goodput: float, refused: float) -> Cell:
        return Cell(task.scenario, "none", contender, [0], [{**figures, "goodput": goodput, "refused": refused}])

    aimd = cell("aimd", 50.0, 9.0)  # whom the bounds are for
    better = page_of([aimd, cell("recall", 90.0, 0.5), cell("mlflow", 95.0, 0.1)], "a command")
    assert "- small, none: mlflow 95.0 / 0.10" in better
    told = page_of([aimd, cell("recall", 90.0, 0.5), cell("curator", 95.0, 0.1), cell("lance", 95.0, 0.4)], "a command")
    assert "- small, none: " not in told


def test_with_peers_the_default_runs_with_all_seeds_and_the_others_with_one(small: str) -> None:
    tasks = [Task(scenario=load_scenario(small), feedback="none", contender="aimd", seed=seed) for seed in range(3)]
    seeds = [(task.contender, task.seed) for task in with_peers(tasks)]
    assert [seed for name, seed in seeds if name == "recall"] == [0, 1, 2]
    assert [seed for name, seed in seeds if name == "aimd"] == [0, 1, 2], "whom the bounds are for"
    assert [seed for name, seed in seeds if name == "mlflow"] == [0]


# -- when it says no


def test_a_broken_bound_is_named_and_ends_in_1(small: str, tmp_path: Path) -> None:
    Path(small).write_text(SMALL.replace("refused = 50", "refused = 0"), encoding="utf-8")
    page = tmp_path / "RESULTS.md"
    code, _, err = run(small, "--results", str(page))
    assert code == 1
    [line] = err.splitlines()
    assert line.startswith("bound broken: small, none, aimd: refused is ")
    assert line.endswith(" %, should be at most 0 %")
    assert line.removeprefix("bound broken: ") in page.read_text(encoding="utf-8")


def test_bounds_are_for_one_policy_only(small: str) -> None:
    Path(small).write_text(SMALL.replace("refused = 50", "refused = 0"), encoding="utf-8")
    assert run(small, "--policy", "mimd", "--feedback", "none")[0] == 0


def test_a_policy_that_fails_on_the_way_is_told(small: str) -> None:
    result = run_task(Task(scenario=load_scenario(small), feedback="none", contender="test_simulate:Broken", seed=0))
    assert result.faults == ("Broken: ZeroDivisionError: float division by zero",)
    cell = Cell(result.task.scenario, "none", "test_simulate:Broken", [0], [result.figures], faults=[*result.faults])
    assert cell.broken() == [f"small, none, {cell.contender}: the policy failed and was replaced: {result.faults[0]}"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no scenario: name one"),
        (["u1_fixed_windows"], 'did you mean "u1_fixed_window"?'),
        (["u1_fixed_window", "--policy", "bad_policies:CannotBeMade"], "the policy can't be made: TypeError: "),
        (["u1_fixed_window", "--policy", "recal"], "unknown policy or peer 'recal'"),
        (["unbounded_queue", "--feedback", "headers"], "no scenario has feedback headers"),
        (["u8_five_per_minute", "--json", "/nowhere/at/all.json"], "can't be written"),
    ],
)
def test_bad_input_is_told_in_one_line_and_ends_in_2(arguments: list[str], words: str) -> None:
    code, _, err = run(*arguments)
    assert code == 2
    assert words in err
    assert "\n" not in err


class Broken(Aimd):
    """A policy that can't take an acceptance."""

    def on(self, event: Event) -> Pace:
        if isinstance(event, Accepted):
            return evolve(self.pace, refill_rate=1.0 / (event.cost - event.cost))
        return super().on(event)
