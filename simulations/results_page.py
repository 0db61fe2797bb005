"""RESULTS.md: all figures as Markdown tables, written by a command and never by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simulations.bounds import METRICS
from simulations.report import PAIR, Cell, pair, text_of
from simulations.scenario import DEFAULT_POLICY, FEEDBACK

TOLD = {
    "none": "Answers tell nothing: a 429 has no hint",
    "retry-after": "A 429 carries Retry-After in whole seconds, rounded up",
    "headers": "Every answer carries limit, remaining and reset, a 429 Retry-After as well",
}
ADAPTIVE = frozenset({"datadesigner", "lance", "vector-arc", "mlflow", "botocore"})
CLEARLY = (1.0, 0.2)  # points of goodput and of the share of 429s
INTRO = """# Results of the simulator

Written by `{command}`; do not edit. Each figure is a mean over {seeds} seeds, ± the standard deviation between them;
one without ± is of seed 0 alone. `naive` and the `sdk-*` peers are cut off after five minutes: they only hammer.

Goodput is what was accepted, in percent of what a client could have got that knows the hidden limit and touches every
window; the figure behind the slash is the share of 429s in percent. Read them together: who hammers gets 99 / 99.
"""


def page(cells: Sequence[Cell], command: str) -> str:
    """The whole file."""
    seeds = max((len(cell.runs) for cell in cells), default=0)
    intro = INTRO.format(command=command, seeds=seeds)
    parts = [intro, *_comparisons(cells), *_details(cells), *_beaten(cells), *_broken(cells)]
    return "\n".join(parts).rstrip() + "\n"


def _comparisons(cells: Sequence[Cell]) -> Iterator[str]:
    contenders = list(dict.fromkeys(cell.contender for cell in cells))
    for feedback in FEEDBACK:
        found = {(cell.scenario.name, cell.contender): cell for cell in cells if cell.feedback == feedback}
        names = list(dict.fromkeys(name for name, _ in found))
        if not names:
            continue
        rows = [
            [name, *(pair(found[name, each]) if (name, each) in found else "" for each in contenders)] for name in names
        ]
        yield f"## Goodput / 429 share, feedback {feedback}\n\n{TOLD[feedback]}.\n"
        yield _table(["scenario", *contenders], rows)


def _details(cells: Sequence[Cell]) -> Iterator[str]:
    bounded = [cell for cell in cells if cell.is_bounded]
    metrics = [name for name in METRICS if name not in PAIR and any(cell.figure(name) for cell in bounded)]
    if not bounded:
        return
    yield "## The policy that the bounds are for, in full\n"
    for name in metrics:
        yield f"- {METRICS[name].title}: {METRICS[name].meaning}"
    yield ""
    titles = [f"{METRICS[name].title} {METRICS[name].unit}".strip() for name in metrics]
    rows = [
        [cell.scenario.name, cell.feedback, cell.contender, pair(cell), *(text_of(cell, name) for name in metrics)]
        for cell in bounded
    ]
    yield _table(["scenario", "feedback", "policy", "goodput / 429 %", *titles], rows)


def _beaten(cells: Sequence[Cell]) -> Iterator[str]:
    """Peers that find the limit themselves and do better in goodput and refusals at once."""
    defaults = {(cell.scenario.name, cell.feedback): cell for cell in cells if cell.contender == DEFAULT_POLICY}
    rivals = [cell for cell in cells if cell.contender in ADAPTIVE]
    if not rivals:
        return
    yield f"## Peers better than the default by {CLEARLY[0]:g} % goodput and {CLEARLY[1]:g} % of 429s together\n"
    yield f"Of those that adapt and are told no limit: {', '.join(sorted(ADAPTIVE))}.\n"
    found = [cell for cell in rivals if _is_better(cell, defaults.get((cell.scenario.name, cell.feedback)))]
    yield from (f"- {cell.scenario.name}, {cell.feedback}: {cell.contender} {pair(cell)}" for cell in found)
    yield "" if found else "None.\n"


def _is_better(cell: Cell, default: Cell | None) -> bool:
    figures = [each.figure(name) for each in (cell, default) if each is not None for name in PAIR]
    means = [figure.mean for figure in figures if figure is not None]
    if len(means) < 4:
        return False
    return means[0] > means[2] + CLEARLY[0] and means[1] < means[3] - CLEARLY[1]


def _broken(cells: Sequence[Cell]) -> Iterator[str]:
    broken = [words for cell in cells for words in cell.broken()]
    yield "## Broken bounds\n"
    yield from (f"- {words}" for words in broken)
    if not broken:
        yield "None."


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [titles, ["---"] + ["---:"] * (len(titles) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
