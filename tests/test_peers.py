"""Each peer by the one rule that its source is known for; then all of them in the closed loop."""

from __future__ import annotations

from itertools import islice
from math import inf
from random import Random

import pytest
from attrs import evolve

from policies.contract import Hints
from simulations.client import Answer, Attempt
from simulations.closed_loop import simulate
from simulations.peers import PEERS, WorkerPool
from simulations.peers_gate import Gate, News
from simulations.peers_limits import DataDesigner, VectorArc
from simulations.peers_plain import Curator, Fixed, Naive, SdkBackoff
from simulations.peers_rates import Botocore, Lance, Mlflow
from simulations.scenario_files import load_scenario
from simulations.workload import Arrival, Backlog


def news(now: float, *, tries: int = 0, mark: float = 0.0, retry_after: float | None = None, **more: float) -> News:
    return News(now=now, tries=tries, mark=mark, retry_after=retry_after, total=more.get("total", 0.0))


def pool(gate: Gate, *, prompts: int, workers: int) -> WorkerPool:
    return WorkerPool(gate, Backlog(iter([Arrival(0.0, 1.0)] * prompts), 0.0), workers)


def send_all(client: WorkerPool, now: float) -> list[Attempt]:
    """What it sends now, as the loop would tell it."""
    attempts = []
    for number, send in enumerate(client.act(now)):
        attempts.append(Attempt(int(1000 * now) + number, 0, send.prompt, send.cost, now))
        client.sent(attempts[-1], now)
    return attempts


# -- the pool


def test_a_worker_is_busy_until_the_answer_is_over() -> None:
    client = pool(Naive(), prompts=3, workers=2)
    first, second = send_all(client, 0.0)
    client.accepted(first, 0.5, Answer(200))
    assert client.wake_at() == inf
    client.ended(first, 8.0, True)
    assert [attempt.prompt for attempt in send_all(client, 8.0)] == [2]
    client.ended(second, 9.0, True)
    assert client.wake_at() == inf, "nothing is left to do"


def test_a_prompt_that_is_given_up_is_counted_and_frees_its_worker() -> None:
    client = pool(SdkBackoff(0, Random(1)), prompts=2, workers=1)
    (attempt,) = send_all(client, 0.0)
    client.refused(attempt, 0.1, Answer(429))
    assert client.dropped == 1
    assert [each.prompt for each in send_all(client, 0.1)] == [1]


def test_a_lost_attempt_is_tried_again_like_a_refused_one() -> None:
    client = pool(Naive(), prompts=1, workers=1)
    (attempt,) = send_all(client, 0.0)
    client.ended(attempt, 0.1, False)
    assert [each.prompt for each in send_all(client, 0.1)] == [0]


# -- their rules


def test_naive_asks_again_at_once() -> None:
    assert Naive().refused(news(5.0, tries=99, retry_after=60.0)) == 0.0


def test_an_sdk_backs_off_from_half_a_second_to_eight_and_gives_up_after_its_retries() -> None:
    sdk = SdkBackoff(10, Random(1))
    pauses = [sdk.refused(news(0.0, tries=tries)) for tries in range(11)]
    for pause, most in zip(pauses, [0.5, 1, 2, 4, 8, 8, 8, 8, 8, 8], strict=False):
        assert pause is not None
        assert 0.75 * most <= pause <= most
    assert pauses[10] is None


@pytest.mark.parametrize(("told", "obeyed"), [(7.0, True), (60.0, True), (61.0, False)])
def test_an_sdk_obeys_a_retry_after_of_a_minute_at_most(told: float, obeyed: bool) -> None:
    assert (SdkBackoff(2, Random(1)).refused(news(0.0, retry_after=told)) == told) is obeyed


def test_datadesigner_cuts_by_a_quarter_once_for_a_generation_and_blocks_for_two_seconds() -> None:
    gate = DataDesigner(100)
    marks = [gate.passed(0.0, 1.0, 0) for _ in range(10)]
    for mark in marks:
        gate.refused(news(1.0, mark=mark))
    assert gate.limit == 75, "ten refusals of attempts that were admitted at 100"
    assert gate.opens_at(1.0, 0) == 3.0
    gate.refused(news(2.0, mark=75.0, retry_after=0.5))
    assert gate.limit == 56
    assert gate.opens_at(2.0, 0) == 2.5, "a shorter hint shortens the block"


def test_datadesigner_adds_one_for_twenty_five_successes() -> None:
    gate = DataDesigner(100)
    gate.refused(news(0.0, mark=gate.passed(0.0, 1.0, 0)))
    for _ in range(49):
        gate.passed(5.0, 1.0, 0)
        gate.ended(news(6.0))
    assert gate.limit == 76


def test_lance_halves_after_a_second_with_a_refusal_and_adds_three_hundred_after_one_without() -> None:
    gate = Lance(Random(1))
    gate.ended(news(10.0))
    gate.refused(news(10.5))
    gate.refused(news(10.9))
    assert gate.rate == 2000.0, "the window is not over"
    gate.ended(news(11.1))
    assert gate.rate == 1000.0
    gate.ended(news(12.2))
    assert gate.rate == 1300.0


def test_lance_lets_a_bucket_go_into_debt_and_a_sleeper_sleeps_at_the_old_rate() -> None:
    gate = Lance(Random(1), rate=10.0)
    goes_at = [gate.comes(0.0, 0) for _ in range(102)]
    assert goes_at[99] == 0.0
    assert goes_at[100:] == pytest.approx([0.1, 0.2])


def test_mlflow_halves_once_in_five_seconds_and_adds_one_per_second_of_full_use() -> None:
    gate = Mlflow()
    for now in (100.0, 101.0, 104.9):
        gate.refused(news(now))
    assert gate.rate == 5.0
    gate.refused(news(105.0))
    assert gate.rate == 2.5
    gate.ended(news(106.0))
    assert gate.rate == pytest.approx(2.5 + 1 / 2.5)
    assert [gate.refused(news(106.0, tries=tries)) for tries in range(4)] == [1.0, 2.0, 4.0, None]


def test_mlflow_never_goes_below_one_per_second() -> None:
    gate = Mlflow()
    for tens in range(20):
        gate.refused(news(10.0 * tens))
    assert gate.rate == 1.0


def test_botocore_is_open_until_the_first_refusal_and_then_at_beta_times_what_was_measured() -> None:
    gate = Botocore(Random(1))
    for tenth in range(100):
        assert gate.opens_at(tenth / 10, 0) == tenth / 10
        gate.passed(tenth / 10, 1.0, 0)
        gate.accepted(news(tenth / 10))
    gate.refused(news(10.0))  # ten per second were measured: beta times that is seven
    saved_up = 0
    while gate.opens_at(10.0, 0) == 10.0:
        gate.passed(10.0, 1.0, 0)
        saved_up += 1
    assert saved_up == 7, "the bucket was never asked before, so it is full: one second"
    assert gate.opens_at(10.0, 0) == pytest.approx(10 + 1 / 7, rel=0.01)


def test_vector_starts_at_one_and_adds_one_per_interval_in_which_the_limit_was_reached() -> None:
    gate = VectorArc(Random(1))
    limits = []
    for second in range(12):
        for _ in range(gate.limit):
            gate.passed(float(second), 1.0, 0)
        assert gate.opens_at(float(second), 0) == inf
        for _ in range(gate.limit):
            gate.ended(news(second + 0.99, total=0.99))
        limits.append(gate.limit)
    assert limits[-1] > limits[0] >= 1
    assert max(later - earlier for earlier, later in zip(limits, islice(limits, 1, None), strict=False)) == 1


def test_vector_takes_a_tenth_off_after_back_pressure_and_a_retry_keeps_its_place() -> None:
    gate = VectorArc(Random(1), limit=100)
    gate.passed(0.0, 1.0, 0)
    gate.ended(news(1.0, total=1.0))
    for _ in range(100):
        gate.passed(1.5, 1.0, 0)
    pause = gate.refused(news(2.0))
    assert pause is not None
    assert 0 <= pause <= 1.0
    assert gate.opens_at(2.5, 0) == inf
    assert gate.opens_at(2.5, 1) == 2.5
    gate.ended(news(3.0, total=1.0))
    assert gate.limit == 90


def test_curator_sends_one_request_and_goes_by_its_headers_ever_after() -> None:
    gate = Curator(200.0)
    assert gate.opens_at(0.0, 0) == 0.0
    gate.passed(0.0, 1.0, 0)
    assert gate.opens_at(0.1, 0) == inf
    gate.accepted(News(now=0.5, mark=0.0, tries=0, hints=Hints(limit=600.0)))
    gate.accepted(News(now=0.6, mark=0.0, tries=0, hints=Hints(limit=60.0)))
    assert gate.opens_at(0.6, 0) == pytest.approx(0.6)
    gate.passed(0.6, 1.0, 0)
    assert gate.opens_at(0.6, 0) == pytest.approx(0.7, abs=0.01), "600 per minute"


def test_curator_pauses_for_ten_seconds_after_each_refusal() -> None:
    gate = Curator(200.0)
    gate.passed(0.0, 1.0, 0)
    gate.refused(news(1.0))
    gate.refused(news(4.0))
    assert gate.opens_at(4.0, 0) == 14.0


def test_a_fixed_rate_is_evenly_spaced_and_pays_by_cost() -> None:
    gate = Fixed(4.0)
    gate.passed(0.0, 2.0, 0)
    assert gate.opens_at(0.1, 0) == 0.5
    gate.passed(3.0, 1.0, 0)
    assert gate.opens_at(3.0, 0) == 3.25, "an idle time is not made up for"


# -- in the closed loop


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_runs_in_the_closed_loop_and_gets_something_answered(name: str) -> None:
    scenario = evolve(load_scenario("u8_five_per_minute"), duration=900.0)
    figures = simulate(scenario, PEERS[name], "none", 1).figures
    goodput = figures["goodput"]
    assert goodput is not None
    assert goodput > 70


@pytest.mark.parametrize(
    ("name", "goodput", "refused"),
    [
        ("fixed-80", pytest.approx(79.3, abs=0.5), pytest.approx(0.0, abs=0.01)),
        ("datadesigner", pytest.approx(73, abs=2.5), pytest.approx(0.6, abs=0.2)),
        ("vector-arc", pytest.approx(77, abs=5), pytest.approx(0.8, abs=0.7)),  # it depends on the seed
        ("botocore", pytest.approx(99.6, abs=0.5), pytest.approx(5.9, abs=0.5)),
    ],
)
@pytest.mark.slow
def test_figures_of_peers_at_a_calendar_minute_of_360(name: str, goodput: float, refused: float) -> None:
    """As another implementation of the same rules found them."""
    figures = simulate(load_scenario("u1_fixed_window"), PEERS[name], "none", 1).figures
    assert figures["goodput"] == goodput
    assert figures["refused"] == refused
