"""Recorded traffic against profiles of real providers, by the whole daemon in virtual time.

A trace has instants and lengths but no text, so a prompt is filler of the right length, and max_tokens the length of
its answer, which the simulated upstream then fills. Each stretch of a trace is run in two ways: every prompt at its
own instant, and all of them there from the start.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil, floor
from pathlib import Path

from attrs import evolve, frozen

from controller.settings import Settings
from policies.contract import JSON
from simulations.asked import Asked
from simulations.charging import at_the_end, on_arrival, while_produced
from simulations.knobs import Profile
from simulations.profile import load_profile
from simulations.provider import Provider
from simulations.traces import Row, read_rows
from simulations.virtual import VirtualRun, run_virtual, timed_source

PROFILES = ("openai-tier1", "anthropic-tier4", "gemini-tier2", "deepseek")
STRETCH = 1800.0  # seconds of a trace
IN_FLIGHT = 1000  # attempts; so many that the upstream's limits bind and not our own
WORDS_PER_EVENT = 200  # a word for each event would only cost time
FILLER = "high water at the tide gate, "
OWN, BACKLOG = "own times", "backlog"


@frozen(kw_only=True)
class Plan:
    """One run to be made. seconds: of the trace, from its beginning."""

    trace: Path
    profile: str
    seconds: float
    pace: str  # OWN or BACKLOG


@frozen(kw_only=True)
class Outcome:
    """What came of it. waits: seconds from when a prompt was there until its last admission, in order of length."""

    plan: Plan
    prompts: int
    answered: int
    attempts: int
    throttled: int
    elapsed: float  # virtual seconds
    waits: tuple[float, ...]
    binding: str  # the limit that was used most
    used: float  # share of what it would have let through until the last admission

    def wait(self, share: float) -> float:
        """The quantile of the waits."""
        return self.waits[min(floor(share * len(self.waits)), len(self.waits) - 1)] if self.waits else 0.0


def plans_of(folder: Path, profiles: Sequence[str] = PROFILES, seconds: float = STRETCH) -> list[Plan]:
    """All traces in a folder and below it; one that is a batch, without instants, only as a backlog."""
    plans = []
    for trace in sorted(path for path in folder.rglob("*") if path.suffix in (".csv", ".jsonl")):
        paces = (OWN, BACKLOG) if _rows(trace, seconds)[-1].at > 0 else (BACKLOG,)
        plans += [
            Plan(trace=trace, profile=profile, seconds=seconds, pace=pace) for profile in profiles for pace in paces
        ]
    return plans


def run_all(plans: Sequence[Plan]) -> Iterator[Outcome]:
    """On all cores, each in its turn."""
    with multiprocessing.get_context("spawn").Pool(min(len(plans), os.cpu_count() or 1)) as pool:
        yield from pool.imap(run_plan, plans)


def run_plan(plan: Plan) -> Outcome:
    """One of them, here and now."""
    rows = _rows(plan.trace, plan.seconds)
    # As few as half of the words may be drawn, but one is two LLM tokens and more: enough for every max_tokens.
    words = ceil(1.2 * max(_output(row) for row in rows))
    profile = evolve(load_profile(plan.profile), words=words, words_per_event=WORDS_PER_EVENT)
    own = plan.pace == OWN
    source = timed_source((row.at if own else 0.0, _line(number, row)) for number, row in enumerate(rows))
    run = run_virtual(source, Provider(profile), Settings(max_in_flight=IN_FLIGHT))
    arrived_at = [row.at if own else 0.0 for row in rows]
    return _outcome(plan, run, profile, rows, arrived_at)


def table(outcomes: Iterable[Outcome]) -> str:
    """Markdown."""
    titles = ["trace", "profile", "pace", "prompts", "answered", "429 share %", "hours", "wait p50 s", "wait p99 s"]
    titles += ["binding limit", "used %"]
    return "\n".join([_row(titles), _row(["---"] * 3 + ["---:"] * 6 + ["---", "---:"]), *map(row_of, outcomes), ""])


def row_of(outcome: Outcome) -> str:
    """Its line in the table."""
    plan = outcome.plan
    figures = [f"{outcome.prompts:,}", f"{outcome.answered:,}"]
    figures += [f"{100 * outcome.throttled / max(outcome.attempts, 1):.2f}", f"{outcome.elapsed / 3600:.2f}"]
    figures += [f"{outcome.wait(0.5):,.1f}", f"{outcome.wait(0.99):,.1f}"]
    names = [f"{plan.trace.parent.name}/{plan.trace.name.partition('.')[0]}", plan.profile, plan.pace]
    return _row([*names, *figures, outcome.binding, f"{100 * outcome.used:.0f}"])


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _rows(trace: Path, seconds: float) -> list[Row]:
    rows = read_rows(trace.name, trace.read_text(encoding="utf-8"))
    return [row for row in rows if row.at < seconds]


def _line(number: int, row: Row) -> bytes:
    size = 4 * max(round(row.input_tokens), 1)  # bytes; what the simulated upstream counts as that many tokens
    text = (f"{number} " + FILLER * (size // len(FILLER) + 1))[:size]
    return json.dumps({"id": number, "prompt": text, "max_tokens": _output(row)}).encode()


def _output(row: Row) -> int:
    return max(round(row.output_tokens), 1)


def _outcome(
    plan: Plan, run: VirtualRun, profile: Profile, rows: Sequence[Row], arrived_at: Sequence[float]
) -> Outcome:
    answered: list[Row] = []
    waits: list[float] = []
    last, busy = 0.0, 0.0
    for result, written_at in zip(run.results, run.written_at, strict=True):
        number, took = result["id"], _seconds(result["timing"])
        if result["status"] == "ok" and isinstance(number, int):
            answered.append(rows[number])
            waits.append(max(written_at - took - arrived_at[number], 0.0))
            last, busy = max(last, written_at - took), busy + took
    shares = _shares(profile, answered, last, busy / max(run.elapsed, 1e-9))
    binding = max(shares, key=shares.__getitem__, default="")
    return Outcome(
        plan=plan,
        prompts=len(rows),
        answered=len(answered),
        attempts=run.tally.attempts,
        throttled=run.tally.throttled,
        elapsed=run.elapsed,
        waits=tuple(sorted(waits)),
        binding=binding.replace("_", " "),
        used=shares.get(binding, 0.0),
    )


def _seconds(timing: JSON) -> float:
    """Of the attempt that was answered."""
    total = timing.get("total") if isinstance(timing, dict) else None
    return float(total) if isinstance(total, int | float) else 0.0


def _shares(profile: Profile, answered: Sequence[Row], seconds: float, open_at_once: float) -> Mapping[str, float]:
    """How much of each limit was used, of what it would have let through in so many seconds."""
    used = dict.fromkeys(("requests", "queue"), float(len(answered)))
    for row in answered:
        for name, tokens in _booked(profile.charge, row):
            used[name] = used.get(name, 0.0) + tokens
    allowed = dict(_allowed(profile, seconds))
    shares = {name: used.get(name, 0.0) / allowed[name] for name in allowed}
    if profile.concurrency is not None:
        shares["concurrency"] = open_at_once / profile.concurrency
    return shares


def _booked(charge: str, row: Row) -> Iterator[tuple[str, float]]:
    output = _output(row)
    asked = Asked(
        endpoint="", digest="", model="", input_tokens=max(round(row.input_tokens), 1), max_output_tokens=output
    )
    for booked in (on_arrival(charge, asked), at_the_end(charge, asked, output), while_produced(charge, output)):
        yield from booked.items()


def _allowed(profile: Profile, seconds: float) -> Iterator[tuple[str, float]]:
    """By dimension: a bucket that was full at the start, or each window that was touched."""
    if profile.quota != "none":
        window = profile.period if profile.window is None else profile.window
        rate = profile.per_second.at(0.0)
        full = rate * window if profile.burst is None else profile.burst
        calendar = profile.quota != "bucket"
        yield "requests", (floor(seconds / window) + 1) * rate * window if calendar else full + rate * seconds
    limits = {
        "tokens": profile.tokens_per_minute,
        "input_tokens": profile.input_tokens_per_minute,
        "output_tokens": profile.output_tokens_per_minute,
    }
    for name, per_minute in limits.items():
        if per_minute is not None:
            minutes = floor(seconds / 60) if profile.calendar_minutes else seconds / 60
            yield name, per_minute * (minutes + 1)
    if profile.served_per_second is not None:
        yield "queue", profile.served_per_second * seconds + 1
