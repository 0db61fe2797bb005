"""Many runs on all cores: tasks in, results out in the same order, whoever finished first.

Workers are spawned, not forked: they import everything afresh, so a task carries all that it needs.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from attrs import frozen

from policies import registry
from policies.words import did_you_mean
from simulations.client import Client
from simulations.closed_loop import Run, simulate
from simulations.limiter_client import LimiterClient, Seat, make_limiter_client
from simulations.measures import Figures
from simulations.peers import PEERS
from simulations.scenario import Scenario

POINTS = 240  # of a curve


@frozen(kw_only=True)
class Task:
    """One run. contender: a policy or a peer, by name; with_curves: a plot is wanted."""

    scenario: Scenario
    feedback: str
    contender: str
    seed: int
    with_curves: bool = False


@frozen
class Curves:
    """Units per second over time, evenly spaced: what was asked of the upstream, and what it allowed."""

    asked: tuple[float, ...]
    allowed: tuple[float, ...]


@frozen
class Result:
    """What came of a task."""

    task: Task
    figures: Figures
    curves: Curves | None = None
    faults: tuple[str, ...] = ()  # of policies that failed on the way


def run_all(tasks: Sequence[Task]) -> Iterator[Result]:
    """Results in the order of the tasks; Ctrl-C ends the workers."""
    workers = min(len(tasks), os.cpu_count() or 1)
    if workers <= 1:
        yield from map(run_task, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap(run_task, tasks)


def run_task(task: Task) -> Result:
    """One run, here and now."""
    maker = maker_of(task.contender, task.scenario)
    with uncollected():
        run = simulate(task.scenario, maker, task.feedback, task.seed)
    faults = [fault for client in run.clients if isinstance(client, LimiterClient) for fault in client.faults]
    return Result(task, run.figures, _curves(run) if task.with_curves else None, tuple(faults))


@contextmanager
def uncollected() -> Iterator[None]:
    """For the time of a run: the garbage collector would go through all of its record again and again, for nothing.

    Traffic leaves no cycles behind, and what a stranger's policy may leave is collected afterwards.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def maker_of(contender: str, scenario: Scenario) -> Callable[[Seat], Client]:
    """How to make such a client; raises ValueError for one that there is not or that can't be made."""
    if contender in PEERS:
        if contender == "cookbook" and not scenario.limits_at(0.0):
            raise ValueError(f"{scenario.name}: cookbook has to be told a limit, and there is none on a rate")
        return PEERS[contender]
    options: Mapping[str, str] = scenario.options if contender == scenario.policy else {}
    known = [*registry.names(), *PEERS]
    if ":" not in contender and contender not in known:
        near = did_you_mean(contender, known)
        raise ValueError(f"unknown policy or peer {contender!r}{near}; there are: {', '.join(known)}")
    policy = registry.find(contender)
    registry.instance(policy, registry.make_options(policy, options), seed=0, now=0.0)
    return partial(make_limiter_client, contender, options)


def _curves(run: Run) -> Curves:
    scenario = run.record.scenario
    step = scenario.duration / POINTS
    middles = [(point + 0.5) * step for point in range(POINTS)]
    curves = [client.curve for client in run.clients if isinstance(client, LimiterClient)]
    if curves:
        asked = tuple(sum(curve.at(at) for curve in curves) * scenario.workload_unit for at in middles)
    else:
        asked = tuple(_sent_between(run.record.sent_at, at - step / 2, at + step / 2) / step for at in middles)
    return Curves(asked, tuple(_allowed_at(scenario, at) for at in middles))


def _sent_between(sent_at: Sequence[float], start: float, end: float) -> int:
    return bisect_right(sent_at, end) - bisect_right(sent_at, start)


def _allowed_at(scenario: Scenario, now: float) -> float:
    if any(outage.start <= now < outage.until for outage in scenario.outages):
        return 0.0
    taken = sum(each.per_second for each in scenario.neighbours if each.start <= now < each.until)
    return max(0.0, scenario.limit_at(now) - taken * scenario.workload_unit)
