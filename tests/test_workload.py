"""Workloads: how many prompts come when, what they cost, and recorded traces in two formats."""

from __future__ import annotations

from math import inf
from random import Random

import pytest

from simulations.client import Send
from simulations.traces import read_trace
from simulations.workload import Arrival, Backlog, Phase, Workload


def drained(backlog: Backlog, until: float = inf) -> list[float]:
    """The instants of all prompts that come before another."""
    found = []
    while backlog.next_at() < until:
        found.append(backlog.next_at())
        backlog.take()
    return found


def test_an_endless_backlog_is_there_from_the_instant_its_client_joins() -> None:
    backlog = Workload().backlog(Random(0), joined_at=600.0)
    assert [backlog.take() for _ in range(3)] == [Send(0, 1.0), Send(1, 1.0), Send(2, 1.0)]
    assert backlog.next_at() == 600.0


def test_a_limited_backlog_ends() -> None:
    assert len(drained(Workload(prompts=7).backlog(Random(0), 0.0))) == 7


def test_arrivals_follow_their_phases() -> None:
    workload = Workload(phases=(Phase(100.0, 2.0), Phase(1100.0, 0.0), Phase(2000.0, 20.0)))
    instants = drained(workload.backlog(Random(3), joined_at=50.0), until=3050.0)
    assert instants == sorted(instants)
    quiet, gap, busy = (
        sum(start <= at < end for at in instants) for start, end in ((150, 1150), (1150, 2050), (2050, 3050))
    )
    assert len(instants) == quiet + gap + busy
    assert quiet == pytest.approx(2_000, rel=0.1)
    assert gap == 0
    assert busy == pytest.approx(20_000, rel=0.03)


def test_the_same_seed_gives_the_same_arrivals_and_costs() -> None:
    workload = Workload(prompts=50, phases=(Phase(0.0, 1.0),), prompt_median=500, prompt_sigma=1.0)
    first, again, other = (workload.backlog(Random(seed), 0.0) for seed in (1, 1, 2))
    assert [first.take() for _ in range(50)] == [again.take() for _ in range(50)]
    assert drained(other) != drained(workload.backlog(Random(1), 0.0))


def test_the_typical_cost_is_the_mean_of_the_costs() -> None:
    workload = Workload(output_reserve=4096, prompt_median=2000, prompt_sigma=1.0)
    backlog = workload.backlog(Random(5), 0.0)
    costs = [backlog.take().cost for _ in range(20_000)]
    assert min(costs) > 4096
    assert sum(costs) / len(costs) == pytest.approx(workload.typical_cost, rel=0.03)
    assert Workload().typical_cost == 1.0


def test_phases_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="in order"):
        Workload(phases=(Phase(10.0, 1.0), Phase(5.0, 1.0)))


CSV = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:18:03.9799600,10,1
"""
JSONL = """{"timestamp": 2000, "input_length": 6758, "output_length": 500}
{"timestamp": 500, "input_length": 7322, "output_length": 490}

"""


def test_a_trace_in_csv_is_read() -> None:
    first, second, third = read_trace("azure.csv", CSV)
    assert first == Arrival(0.0, 4818.0)
    assert second.at == pytest.approx(0.052)
    assert third == Arrival(60.0, 11.0)


def test_a_trace_in_jsonl_is_read_and_put_in_order() -> None:
    assert read_trace("mooncake.jsonl", JSONL) == (Arrival(0.0, 7812.0), Arrival(1.5, 7258.0))


def test_a_trace_without_any_timestamp_is_a_batch_in_the_order_of_its_lines() -> None:
    lines = [f'{{"request_id": {n}, "input_length": {n}, "output_length": 9}}' for n in (3, 1)]
    assert read_trace("offline.jsonl", "\n".join(lines)) == (Arrival(0.0, 12.0), Arrival(0.0, 10.0))


def test_the_arrivals_of_a_trace_are_the_workload() -> None:
    workload = Workload(arrivals=read_trace("azure.csv", CSV))
    backlog = workload.backlog(Random(0), joined_at=100.0)
    assert backlog.take() == Send(0, 4818.0)
    assert drained(backlog) == pytest.approx([100.052, 160.0])
    assert workload.typical_cost == pytest.approx((4818 + 3188 + 11) / 3)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("t.csv", "TIMESTAMP,ContextTokens\n2023-11-16 18:17:03,5\n", "line 2: no TIMESTAMP"),
        ("t.csv", CSV + "yesterday,1,1\n", "line 5: no TIMESTAMP"),
        ("t.csv", CSV.replace("4808", "many"), "line 2"),
        ("t.csv", "", "no lines"),
        ("t.jsonl", JSONL + "{}\n", "line 4: no timestamp"),
        ("t.jsonl", "[1, 2\n", "line 1"),
        ("t.jsonl", '{"timestamp": "NaN", "input_length": 1, "output_length": 1}\n', "line 1"),
        ("t.jsonl", '{"timestamp": 1, "input_length": -5, "output_length": 1}\n', "line 1"),
    ],
)
def test_a_line_that_is_none_is_named(name: str, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_trace(name, text)
