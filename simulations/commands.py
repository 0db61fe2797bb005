"""The command `simulate`: scenarios against hidden limits, policies and peers side by side, bounds checked."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import click
from attrs import evolve

from policies import registry
from simulations.peers import PEERS
from simulations.plot import plot
from simulations.report import Cell, as_json, gather, table
from simulations.results_page import page
from simulations.runs import Result, Task, maker_of, run_all
from simulations.scenario import DEFAULT_POLICY, FEEDBACK, Scenario
from simulations.scenario_files import load_scenario, scenario_names

HAMMERING = frozenset({"naive", "sdk-2-retries", "sdk-10-retries"})  # a hundred refusals for each acceptance
COUNTING_BOTH = frozenset({"cookbook", "curator"})
HAMMERING_SECONDS = 300.0
BROKEN = 1  # exit code: a bound does not hold


class BadInput(click.ClickException):
    """The user's to mend, in one line."""

    exit_code = 2


@click.command()
@click.argument("scenarios", nargs=-1, metavar="SCENARIO...")
@click.option("--all", "every", is_flag=True, help="all scenarios that come with the program")
@click.option("--fast", is_flag=True, help="the few that are done in well under a minute")
@click.option("--policy", "contenders", multiple=True, metavar="NAME", help="policy, peer or module:Class; repeatable")
@click.option("--peers", is_flag=True, help="all policies and peers beside, once; who just hammers, for 5 min")
@click.option("--feedback", "modes", multiple=True, type=click.Choice(FEEDBACK), help="what answers tell; repeatable")
@click.option("--seeds", type=click.IntRange(1, 10_000), default=1, show_default=True, help="runs of each, from seed 0")
@click.option("--json", "json_file", type=click.Path(dir_okay=False), metavar="FILE", help="write all figures")
@click.option("--results", type=click.Path(dir_okay=False), metavar="FILE.md", help="write all figures as Markdown")
@click.option("--plot", "with_plot", is_flag=True, help="refill_rate against the hidden limit, of seed 0")
def simulate(
    scenarios: tuple[str, ...],
    every: bool,
    fast: bool,
    contenders: tuple[str, ...],
    peers: bool,
    modes: tuple[str, ...],
    seeds: int,
    json_file: str | None,
    results: str | None,
    with_plot: bool,
) -> int:
    """Run SCENARIO... (by name, or the path of a .toml) in a closed loop; exit 1 when a bound is broken."""
    try:
        chosen = _chosen(scenarios, every=every, fast=fast)
        tasks = _tasks(chosen, contenders, modes, seeds, with_plot)
        tasks = with_peers(tasks) if peers else tasks
        _check(tasks)
        _check_folders(json_file, results)
    except ValueError as error:
        raise BadInput(str(error)) from error
    cells = gather(_with_progress(run_all(tasks), len(tasks)))
    click.echo(table(cells))
    if with_plot:
        click.echo("\n" + "\n\n".join(_plotted(cell) for cell in cells))
    _write(json_file, as_json(cells))
    _write(results, page(cells, _command_line(click.get_current_context())))
    return _judge(cells)


def _chosen(scenarios: Sequence[str], *, every: bool, fast: bool) -> list[Scenario]:
    if not (scenarios or every or fast):
        raise ValueError(f"no scenario: name one, or --fast, or --all; there are: {', '.join(scenario_names())}")
    wanted = dict.fromkeys([*scenarios, *(scenario_names() if every or fast else ())])
    loaded = {name: load_scenario(name) for name in wanted}
    return [one for name, one in loaded.items() if every or name in scenarios or one.tag == "fast"]


def _tasks(
    scenarios: Sequence[Scenario], contenders: Sequence[str], modes: Sequence[str], seeds: int, with_plot: bool
) -> list[Task]:
    tasks = [
        Task(scenario=scenario, feedback=mode, contender=contender, seed=seed, with_curves=with_plot and seed == 0)
        for scenario in scenarios
        for mode in scenario.feedback
        if not modes or mode in modes
        for contender in contenders or (scenario.bounded_policy,)
        for seed in range(seeds)
    ]
    if not tasks:
        raise ValueError(f"no scenario has feedback {', '.join(modes)}")
    return tasks


def with_peers(tasks: Sequence[Task]) -> list[Task]:
    """After the runs of each scenario and mode those of all who are not in it yet: once, the default with all seeds."""
    found: list[Task] = []
    for _, group in groupby(tasks, key=lambda task: (task.scenario.name, task.feedback)):
        found += (there := list(group))
        scenario, names = there[0].scenario, {task.contender for task in there}
        for name in dict.fromkeys([*registry.BUILT_IN, *PEERS]):
            if name not in names and _belongs(name, scenario):
                world = _shortened(scenario) if name in HAMMERING else scenario
                seeds = {task.seed for task in there} if name == DEFAULT_POLICY else {there[0].seed}
                found += (evolve(there[0], contender=name, scenario=world, seed=seed) for seed in sorted(seeds))
    return found


def _belongs(name: str, scenario: Scenario) -> bool:
    """Whom a scenario says something about: fixed is told a rate, cookbook must be told a limit (and fixed-80 is).

    Where LLM tokens are counted, too, it is the policies and the peers that count both.
    """
    if name == "cookbook":
        return bool(scenario.limits_at(0.0))
    return name != "fixed" and (not scenario.is_mixed or name not in PEERS or name in COUNTING_BOTH)


def _shortened(scenario: Scenario) -> Scenario:
    return evolve(scenario, duration=min(scenario.duration, HAMMERING_SECONDS))


def _check(tasks: Sequence[Task]) -> None:
    for task in tasks:
        maker_of(task.contender, task.scenario)


def _with_progress(results: Iterable[Result], count: int) -> Iterator[Result]:
    """The results, with one moving line on a terminal's stderr and nothing elsewhere."""
    shown = sys.stderr is not None and sys.stderr.isatty()
    for number, result in enumerate(results, start=1):
        if shown:
            click.echo(f"\r\x1b[K{number} of {count} runs" if number < count else "\r\x1b[K", nl=False, err=True)
        yield result


def _check_folders(*paths: str | None) -> None:
    """Now, and not when all the work is done."""
    for path in paths:
        if path is not None and not Path(path).parent.is_dir():
            raise ValueError(f"{path} can't be written: no such folder")


def _plotted(cell: Cell) -> str:
    assert cell.curves is not None
    words = "refill_rate (dots) and hidden limit (line), units/s"
    picture = plot(cell.curves.asked, cell.curves.allowed, cell.scenario.duration)
    return f"{cell.scenario.name}, feedback {cell.feedback}, {cell.contender}: {words}\n{picture}"


def _write(path: str | None, text: str) -> None:
    if path is None:
        return
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{path} can't be written: {error.strerror}") from error


def _command_line(context: click.Context) -> str:
    """What to type for the same page; file names without their folders, which are nobody's business."""
    words = ["tidegate simulate"]
    for parameter in context.command.params:
        name, flag = parameter.name or "", parameter.opts[0]
        value = context.params[name]
        if name in ("json_file", "with_plot") or value == parameter.get_default(context):
            continue
        if isinstance(parameter, click.Argument):
            words += [Path(each).name for each in value]
        elif value is True:
            words.append(flag)
        else:
            words += [f"{flag} {Path(str(each)).name}" for each in (value if isinstance(value, tuple) else (value,))]
    return " ".join(words)


def _judge(cells: Sequence[Cell]) -> int:
    broken = [words for cell in cells for words in cell.broken()]
    for words in broken:
        click.echo(f"bound broken: {words}", err=True)
    return BROKEN if broken else 0


def main() -> None:
    """`python -m simulations.commands`, for who has no `tidegate` at hand."""
    try:
        code = simulate.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    sys.exit(code)


if __name__ == "__main__":
    main()
