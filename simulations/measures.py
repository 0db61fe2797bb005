"""From tallies to figures, as `simulations.bounds.METRICS` defines them. Shares are percentages."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from heapq import merge
from itertools import accumulate, pairwise
from math import ceil, inf
from statistics import fmean, median
from typing import TypeVar

from attrs import define, field, frozen

from simulations.oracle import Ideal, allowed, limit_steps
from simulations.scenario import Scenario
from simulations.tally import Tally

MINUTE = 60.0  # seconds; what "a trailing minute" holds
ALMOST = 0.9  # of a minute's limit counts as being there
FIRST = 300.0  # seconds; a short job
AFTER = 120.0  # seconds in which refusals are put down to a change
HOUR = 3600.0

Figures = dict[str, float | None]
Entry = TypeVar("Entry", float, tuple[float, float])


@define(eq=False)
class Record:
    """One run, all clients together. neighbour_at: instants at which a neighbour got something."""

    scenario: Scenario
    ideal: Ideal
    tallies: Sequence[Tally]
    neighbour_at: Sequence[float] = ()
    sent_at: list[float] = field(init=False)
    accepted_at: list[float] = field(init=False)
    refused_at: list[float] = field(init=False)
    units: list[float] = field(init=False)  # accepted before each acceptance, and in all

    def __attrs_post_init__(self) -> None:
        """Put the clients' instants into one order."""
        self.sent_at = _in_order([tally.sent_at for tally in self.tallies])
        self.refused_at = _in_order([tally.refused_at for tally in self.tallies])
        pairs = _in_order([list(zip(tally.accepted_at, tally.accepted_cost, strict=True)) for tally in self.tallies])
        self.accepted_at = [at for at, _ in pairs]
        self.units = list(accumulate((cost for _, cost in pairs), initial=0.0))

    def accepted(self, start: float, end: float) -> float:
        """Units accepted in [start, end)."""
        return self.units[bisect_left(self.accepted_at, end)] - self.units[bisect_left(self.accepted_at, start)]

    def refused(self, start: float, end: float) -> int:
        """Refusals in [start, end)."""
        return bisect_left(self.refused_at, end) - bisect_left(self.refused_at, start)


def _in_order(lists: Sequence[list[Entry]]) -> list[Entry]:
    """Of one client they are."""
    return lists[0] if len(lists) == 1 else list(merge(*lists))


def figures(record: Record) -> Figures:
    """All of METRICS; None where a figure makes no sense for the scenario."""
    end = record.scenario.duration
    answered = len(record.accepted_at) + len(record.refused_at) + sum(len(tally.lost_at) for tally in record.tallies)
    return {
        "goodput": _share(record.accepted(0.0, end), _possible(record, 0.0, end)),
        "refused": _share(len(record.refused_at), answered),
        "second_half": _share(record.accepted(end / 2, end), _fair(record, end / 2, end)),
        "first_five_minutes": _share(record.accepted(0.0, FIRST), _fair(record, 0.0, min(FIRST, end))),
        "to_ninety": _ninety_after(record, Change(0.0, end)),
        "recovery": _recovery(record),
        "overshoot": _overshoot(record),
        "refused_after_cut": _mean([record.refused(at, at + AFTER) for at in falls(record.scenario)]),
        "refused_in_outage": _mean([record.refused(each.start, each.until) for each in record.scenario.outages]),
        "jain": _jain(record),
        "wait_p99": _wait_p99(record.tallies),
        "refusals": float(len(record.refused_at)),
        "finished": _finished(record),
        "first_token": _first_token(record),
    }


def unmeasured(scenario: Scenario, metric: str) -> str | None:
    """Why the scenario can't have such a figure, in words; a bound on it could never be met."""
    missing: Mapping[str, tuple[object, str]] = {
        "jain": (len(scenario.clients.joins) > 1, "there is one client"),
        "recovery": (rises(scenario), "nothing ever rises or ends in time"),
        "refused_after_cut": (falls(scenario), "no limit falls, no neighbour comes, no load rises"),
        "refused_in_outage": (scenario.outages, "there is no outage"),
        "finished": (scenario.workload.prompts, "workload.prompts is not given"),
        "first_token": (scenario.habits.served_per_second, "there is no queue (habits.served_per_second)"),
        "overshoot": (scenario.dimension != "tokens" and not scenario.is_mixed, "the limit counts LLM tokens"),
    }
    there, words = missing.get(metric, (True, ""))
    return None if there else words


# -- shares


def _share(part: float, whole: float) -> float | None:
    return 100.0 * part / whole if 0 < whole < inf else None


def _neighbours_part(record: Record, start: float, end: float) -> float:
    took = bisect_left(record.neighbour_at, end) - bisect_left(record.neighbour_at, start)
    return took * record.scenario.workload_unit


def _possible(record: Record, start: float, end: float) -> float:
    """By the oracle, which counts every window touched."""
    return record.ideal.between(start, end) - _neighbours_part(record, start, end)


def _fair(record: Record, start: float, end: float) -> float:
    """By the limit's integral: what a steady client could have had, and what there was to do; a mix has none."""
    if record.scenario.is_mixed:
        return record.ideal.between(start, end)
    limit = allowed(record.scenario, start, end)
    return min(limit - _neighbours_part(record, start, end), record.ideal.between(start, end))


def _jain(record: Record) -> float | None:
    """(sum x)^2 / (n sum x^2) of what each client got (Jain, Chiu and Hawe, 1984)."""
    if len(record.tallies) < 2:
        return None
    end = record.scenario.duration
    start = end - min(HOUR, end / 2)
    shares = [_cost_between(tally, start, end) for tally in record.tallies]
    squares = sum(share**2 for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else None


def _cost_between(tally: Tally, start: float, end: float) -> float:
    return sum(tally.accepted_cost[bisect_left(tally.accepted_at, start) : bisect_left(tally.accepted_at, end)])


# -- how fast


@frozen
class Change:
    """More became possible at an instant, and nothing else changed until another."""

    at: float
    until: float


def falls(scenario: Scenario) -> list[float]:
    """Instants at which the limit fell, a neighbour came, or more was asked for."""
    steps = limit_steps(scenario).pairs
    fallen = [at for (_, old), (at, new) in pairwise(steps) if new < old]
    return sorted([*fallen, *(each.start for each in scenario.neighbours), *_louder(scenario)])


def rises(scenario: Scenario) -> list[Change]:
    """Times in which more was possible than before: the limit rose, an outage or a neighbour ended, the load rose."""
    steps = limit_steps(scenario).pairs
    risen = [at for (_, old), (at, new) in pairwise(steps) if new > old]
    over = [*(each.until for each in scenario.outages), *(each.until for each in scenario.neighbours)]
    starts = sorted({*risen, *over, *_louder(scenario)})
    ends = sorted([*starts, *falls(scenario), *(each.start for each in scenario.outages), scenario.duration])
    return [Change(at, next(end for end in ends if end > at)) for at in starts if at < scenario.duration]


def _louder(scenario: Scenario) -> list[float]:
    return [new.start for old, new in pairwise(scenario.workload.phases) if new.per_second > old.per_second]


def _ninety_after(record: Record, change: Change) -> float | None:
    """Seconds until a trailing minute holds enough; None if it never does before the change ends."""
    enough = ALMOST * MINUTE * record.scenario.limit_at(change.at)
    times = record.accepted_at
    first = bisect_left(times, change.at)
    oldest = bisect_right(times, change.at - MINUTE)
    for index in range(first, bisect_left(times, change.until)):
        while times[oldest] <= times[index] - MINUTE:
            oldest += 1
        if record.units[index + 1] - record.units[oldest] >= enough:
            return times[index] - change.at
    return None


def _recovery(record: Record) -> float | None:
    taken = []
    for change in rises(record.scenario):
        seconds = _ninety_after(record, change)
        taken.append(change.until - change.at if seconds is None else seconds)
    return _mean(taken)


def _overshoot(record: Record) -> float | None:
    """Looked at once a second: the trailing minute's attempts over what the limit allowed in it."""
    scenario, sent_at = record.scenario, record.sent_at
    if scenario.dimension == "tokens" or scenario.is_mixed or scenario.limit_at(0.0) == inf:
        return None
    steps, most = limit_steps(scenario), 0.0
    for second in range(1, ceil(scenario.duration) + 1):
        attempts = bisect_right(sent_at, second) - bisect_right(sent_at, second - MINUTE)
        limit = steps.earned(second) - steps.earned(second - MINUTE)
        most = max(most, attempts / limit - 1 if limit else 0.0)
    return 100.0 * most


def _wait_p99(tallies: Sequence[Tally]) -> float | None:
    """Most prompts wait 0: only those with more than one attempt are in the tallies' list."""
    waits = sorted(wait for tally in tallies for wait in tally.waits)
    prompts = sum(len(tally.accepted_at) for tally in tallies)
    if not prompts:
        return None
    beyond = prompts - ceil(0.99 * prompts)  # prompts that may wait longer
    return waits[-1 - beyond] if beyond < len(waits) else 0.0


def _finished(record: Record) -> float | None:
    wanted = record.scenario.workload.prompts
    done = len(record.accepted_at)
    return None if wanted is None or done < wanted * len(record.tallies) else record.accepted_at[-1]


def _first_token(record: Record) -> float | None:
    if not record.scenario.habits.served_per_second:
        return None
    half, head = record.scenario.duration / 2, record.scenario.latency.head
    late = [each.after for tally in record.tallies for each in tally.heads if each.sent_at >= half]
    return median(late) / ((head.low + head.high) / 2) if late else None


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
