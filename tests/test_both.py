"""Requests and LLM tokens in one closed loop: the oracle against all schedules, what clients see, peers, scenarios."""

from __future__ import annotations

from itertools import pairwise, product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.contract import JSON, Hints
from simulations.client import Answer, Attempt, Send
from simulations.closed_loop import simulate, simulate_policy
from simulations.oracle import ideal_of
from simulations.peers_tokens import CountingLoop, cookbook, curator_of_both
from simulations.profile import make_profile
from simulations.runs import maker_of
from simulations.scenario import NONE, Scenario
from simulations.scenario_files import load_scenario
from simulations.sizes import Kind, Sized, draw_all
from simulations.workload import Arrival, Backlog, Workload

NAMES = ("both_rpm_binds", "both_tpm_binds", "both_swap", "both_unnamed", "both_apart", "both_short_answers")
MORE = ("both_no_max_tokens", "both_refund", "both_no_refund")


def world(kinds: list[Kind], duration: float = 600.0, **quota: JSON) -> Scenario:
    upstream = make_profile("test", {"limit": 60, **quota})
    workload = Workload(mix=tuple(kinds))
    return Scenario(name="test", about="a test", upstream=upstream, duration=duration, workload=workload)


def kind(size: int, in_a_row: int = 1, **more: float) -> Kind:
    return Kind(in_a_row=in_a_row, input_median=size, output_median=1, **more)  # type: ignore[arg-type]


def sized(max_tokens: int | None = None, input_tokens: int = 100, output_tokens: int = 30) -> Sized:
    made = Kind(input_median=1, output_median=1, max_tokens=max_tokens)
    return made.of(input_tokens, output_tokens, guess=float(input_tokens))


# -- the oracle


def passes(schedule: tuple[int, ...], costs: list[int], requests: int, tokens: int) -> bool:
    """By the definition of calendar minutes: so much in each of them, in both dimensions."""
    for minute in set(schedule):
        there = [cost for at, cost in zip(schedule, costs, strict=True) if at == minute]
        if len(there) > requests or sum(there) > tokens:
            return False
    return True


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    requests=st.integers(1, 4),
    tokens=st.integers(9, 20),
)
def test_no_schedule_of_the_same_queue_gets_more_accepted_than_the_oracle(
    sizes: list[int], requests: int, tokens: int
) -> None:
    minutes, longest = 3, 6
    mix = [kind(size) for size in sizes]
    limits: dict[str, JSON] = {"quota": "fixed", "limit": requests, "input_tokens_per_minute": tokens}
    scenario = world(mix, 60.0 * minutes, calendar_minutes=True, charge="input", **limits)
    costs = [each.asked.input_tokens for each, _ in zip(draw_all(mix, Random(0)), range(longest), strict=False)]
    best = max(
        count
        for count in range(longest + 1)
        for schedule in product(range(minutes), repeat=count)
        if all(earlier <= later for earlier, later in pairwise(schedule))
        and passes(schedule, costs[:count], requests, tokens)
    )
    assert min(len(ideal_of(scenario, 0).at), longest) == best


def test_the_oracle_of_a_bucket_gets_its_burst_and_its_rate() -> None:
    scenario = world([kind(100)], 600.0, limit=6000, burst=1, input_tokens_per_minute=1000, charge="input")
    assert len(ideal_of(scenario, 0).at) in (109, 110)  # 10 at once, and 10 a minute


def test_the_oracle_pays_for_what_an_answer_comes_to() -> None:
    assert sized(1000).booked("larger")["tokens"] == 1000
    assert sized(1000).booked("up-front")["tokens"] == 1100
    assert sized(1000).booked("input")["tokens"] == 100
    assert sized(1000).booked("produced")["tokens"] == 130
    assert sized(1000).booked("settled")["tokens"] == 130
    assert sized(None).booked("settled")["tokens"] == 130


# -- prompts


def test_kinds_take_turns_and_an_answer_ends_at_max_tokens() -> None:
    mix = [kind(5, in_a_row=2), Kind(input_median=7, output_median=50, max_tokens=20)]
    drawn = [prompt for prompt, _ in zip(draw_all(mix, Random(0)), range(6), strict=False)]
    assert [each.asked.input_tokens for each in drawn] == [5, 5, 7, 5, 5, 7]
    assert drawn[2].output_tokens == 20
    assert drawn[2].seen.most_output == 20


def test_a_client_sees_a_guess_of_the_input_and_not_the_input() -> None:
    drawn = next(
        draw_all([Kind(input_median=1000, output_median=10, tokens_per_guess=2.0, guess_sigma=0.0)], Random(0))
    )
    assert drawn.seen.size.tokens == pytest.approx(drawn.asked.input_tokens / 2)


# -- peers


def first_of(client: CountingLoop, now: float = 0.0) -> list[Attempt]:
    attempts = []
    for number, send in enumerate(client.act(now)):
        attempts.append(Attempt(int(1000 * now) + number, 0, send.prompt, send.cost, now, send.sized))
        client.sent(attempts[-1], now)
    return attempts


def backlog(count: int, of: Sized) -> Backlog:
    return Backlog(iter([Arrival(0.0, 1.0, of)] * count), 0.0)


def test_the_cookbooks_script_fills_a_minute_at_once_and_then_waits_for_tokens() -> None:
    client = cookbook(backlog(9, sized(100)), {"requests": 1.0, "tokens": 10.0})
    assert len(first_of(client)) == 3, "600 tokens hold three of 100 + 100"
    assert client.wake_at() == pytest.approx(20.0, abs=1e-3)


def test_the_cookbooks_script_pauses_for_fifteen_seconds() -> None:
    client = cookbook(backlog(9, sized(100)), {"requests": 1.0, "tokens": 1000.0})
    client.refused(first_of(client)[0], 0.1, Answer(429))
    assert client.wake_at() == pytest.approx(15.1)


def test_a_prompt_larger_than_a_minute_keeps_the_cookbooks_script_waiting_for_ever() -> None:
    client = cookbook(backlog(1, sized(1000)), {"requests": 1.0, "tokens": 10.0})
    assert first_of(client) == []
    assert client.wake_at() == float("inf")


def test_curator_asks_once_and_reads_both_limits() -> None:
    client = curator_of_both(backlog(9, sized(400)))
    (asking,) = first_of(client)
    assert client.wake_at() == float("inf")
    told = {"requests": Hints(limit=60.0), "tokens": Hints(limit=1200.0)}
    client.accepted(asking, 0.5, Answer(200, hints=told))
    assert client.wake_at() == pytest.approx(10.5, abs=1e-3), "200 reserved: the input, and a quarter of max_tokens"


def test_what_an_answer_did_not_use_goes_back_into_curators_counters() -> None:
    client = curator_of_both(backlog(9, sized(400)))
    (asking,) = first_of(client)
    client.accepted(asking, 0.5, Answer(200, hints={"tokens": Hints(limit=1200.0)}))
    client.ended(asking, 0.5, True)
    assert client.wake_at() < 7.0, "70 came back"


def test_where_one_limit_counts_the_cookbooks_script_counts_that() -> None:
    client = cookbook(Backlog(iter([Arrival(0.0, 300.0)] * 3), 0.0), {"tokens": 10.0})
    assert [send.prompt for send in client.act(0.0)] == [0, 1]
    assert Send(0, 300.0).sized is None


# -- scenarios


@pytest.mark.parametrize("name", [*NAMES, *MORE])
def test_a_scenario_of_both_counts_both(name: str) -> None:
    scenario = load_scenario(name)
    assert scenario.is_mixed
    assert len(scenario.limits_at(0.0)) >= 2


def test_one_seed_gives_one_result() -> None:
    scenario = world([kind(100, output_sigma=0.5)], 120.0, tokens_per_minute=3000)
    assert simulate_policy(scenario, seed=1) == simulate_policy(scenario, seed=1)


def test_no_quota_lets_more_through_than_it_holds() -> None:
    scenario = world([kind(100)], 600.0, limit=600, tokens_per_minute=3000, charge="input")
    run = simulate(scenario, maker_of("naive", scenario), NONE, 0)
    assert len(run.record.accepted_at) <= 30 * 11 + 1


@pytest.mark.slow
def test_a_limit_of_tokens_is_found_without_a_word_on_it() -> None:
    figures = simulate_policy(load_scenario("both_short_answers"))
    goodput, refused = figures["goodput"], figures["refused"]
    assert goodput is not None
    assert refused is not None
    assert goodput >= 96
    assert refused <= 0.8
