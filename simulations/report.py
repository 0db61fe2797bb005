"""From results to what a reader sees: means with their spread over seeds, broken bounds, tables, JSON.

Goodput never stands without the share of 429s beside it: hammering gets 99 % of everything, and 99 % refusals.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import groupby
from statistics import fmean, pstdev

from attrs import define, field, frozen

from policies.contract import JSON
from simulations.bounds import METRICS
from simulations.measures import Figures
from simulations.runs import Curves, Result
from simulations.scenario import Scenario

PAIR = ("goodput", "refused")


@frozen
class Figure:
    """Mean of the seeds that have it, and their standard deviation."""

    mean: float
    spread: float


@define(eq=False)
class Cell:
    """One scenario, feedback mode and contender, over all seeds."""

    scenario: Scenario
    feedback: str
    contender: str
    seeds: list[int] = field(factory=list)
    runs: list[Figures] = field(factory=list)
    curves: Curves | None = None  # of the first seed
    faults: list[str] = field(factory=list)

    def figure(self, metric: str) -> Figure | None:
        """None if it makes no sense here; a run that never got there leaves the others' mean, but see `broken`."""
        found = [value for run in self.runs if (value := run[metric]) is not None]
        return Figure(fmean(found), pstdev(found)) if found else None

    @property
    def is_bounded(self) -> bool:
        """The bounds of a scenario are for one contender."""
        return self.contender == (self.scenario.bounded_policy)

    def broken(self) -> list[str]:
        """Bounds that do not hold, and policies that failed, in words."""
        bounds = self.scenario.bounds.get(self.feedback, ()) if self.is_bounded else ()
        found = [bound.broken_by(self._checked(bound.metric)) for bound in bounds]
        where = f"{self.scenario.name}, {self.feedback}, {self.contender}"
        failed = [f"the policy failed and was replaced: {fault}" for fault in dict.fromkeys(self.faults)]
        return [f"{where}: {words}" for words in (*found, *failed) if words is not None]

    def _checked(self, metric: str) -> float | None:
        """Missing in one run is missing."""
        figure = self.figure(metric)
        return None if figure is None or any(run[metric] is None for run in self.runs) else figure.mean


def gather(results: Iterable[Result]) -> list[Cell]:
    """Cells in the order of their first results."""
    cells: dict[tuple[str, str, str], Cell] = {}
    for result in results:
        task = result.task
        key = (task.scenario.name, task.feedback, task.contender)
        cell = cells.setdefault(key, Cell(task.scenario, task.feedback, task.contender))
        cell.seeds.append(task.seed)
        cell.runs.append(result.figures)
        cell.curves = cell.curves or result.curves
        cell.faults += result.faults
    return list(cells.values())


# -- text


def table(cells: Sequence[Cell]) -> str:
    """One block for each scenario and feedback mode: contenders down, metrics across."""
    blocks = []
    for (name, feedback), group in groupby(cells, key=lambda cell: (cell.scenario.name, cell.feedback)):
        rows = list(group)
        blocks.append(f"{name}, feedback {feedback}\n{_block(rows)}")
    return "\n\n".join(blocks)


def _block(cells: Sequence[Cell]) -> str:
    metrics = [name for name in METRICS if name not in PAIR and any(cell.figure(name) for cell in cells)]
    titles = ["", "goodput / 429 %", *(f"{METRICS[name].title} {METRICS[name].unit}".strip() for name in metrics)]
    rows = ([cell.contender, pair(cell), *(text_of(cell, name) for name in metrics)] for cell in cells)
    lines = [titles, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(titles))]
    return "\n".join(_aligned(line, widths) for line in lines)


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (
        text.rjust(width) if column else text.ljust(width)
        for column, (text, width) in enumerate(zip(line, widths, strict=True))
    )
    return "  ".join(["", first, *rest])


def pair(cell: Cell) -> str:
    """Goodput and the share of 429s, each with its spread if there are several seeds."""
    return " / ".join(text_of(cell, name) for name in PAIR)


def text_of(cell: Cell, metric: str) -> str:
    """One figure, with its spread if there are several seeds."""
    return _text(cell.figure(metric), len(cell.runs) > 1)


def _text(figure: Figure | None, with_spread: bool) -> str:
    if figure is None:
        return "-"
    spread = f" ±{_number(figure.spread)}" if with_spread else ""
    return _number(figure.mean) + spread


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


# -- JSON


def as_json(cells: Sequence[Cell]) -> str:
    """The same results give the same bytes."""
    listed: list[JSON] = [_cell_json(cell) for cell in cells]
    return json.dumps({"cells": listed}, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _cell_json(cell: Cell) -> JSON:
    figures = {name: cell.figure(name) for name in METRICS}
    runs: list[JSON] = [
        {"seed": seed, **{name: run[name] for name in METRICS}} for seed, run in zip(cell.seeds, cell.runs, strict=True)
    ]
    return {
        "scenario": cell.scenario.name,
        "feedback": cell.feedback,
        "contender": cell.contender,
        "mean": {name: None if figure is None else figure.mean for name, figure in figures.items()},
        "spread": {name: None if figure is None else figure.spread for name, figure in figures.items()},
        "runs": runs,
        "broken": [*cell.broken()],
    }
