"""The user's own budget of a run: how much of it gets used, and that no more is."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import pytest
import trio
import trio.testing
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from test_worker import LOST, OK, REFUSED, Shop, shop
from wired import Wired, wired

from controller.budget import UNCOUNTED, Budget, Stake
from controller.outcome import Answer, Completed, Failed, Kind, Outcome, Part, Throttled, Usage
from controller.purse import Purse
from controller.records import Prompt
from controller.telemetry import Exit
from policies.contract import JSON

PROMPT = Prompt(id=None, key="", source="", line=0, request={"model": "gpt-4o-mini"})
DONE = Completed(answer=Answer(text="yo", finish_reason="stop", model="m", usage=None, body={}))
CUT = Failed(kind=Kind.TRUNCATED, message="", part=Part(text="so"))

ends: st.SearchStrategy[Outcome | None] = st.sampled_from(
    [None, DONE, CUT, Failed(kind=Kind.SERVER, message=""), Throttled(status=429, message="")]
)


def stake_of(output_tokens: int, *, input_tokens: int = 10, guessed: bool = False) -> Stake:
    return Stake(prompt=PROMPT, input_tokens=input_tokens, output_tokens=output_tokens, guessed=guessed)


def lines(count: int, **more: JSON) -> list[bytes]:
    return [json.dumps({"id": n, "prompt": f"prompt {n}", **more}).encode() for n in range(count)]


def produced(out: Wired) -> int:
    """Output tokens of whole answers."""
    usages = [line["usage"] for line in out.results]
    return sum(int(str(usage["output_tokens"])) for usage in usages if isinstance(usage, dict))


# -- laws


@given(st.integers(1, 500), st.lists(st.tuples(st.integers(1, 60), st.floats(0, 1), st.booleans(), ends), max_size=60))
def test_what_is_spent_and_under_way_never_exceeds_the_budget(
    most: int, attempts: list[tuple[int, float, bool, Outcome | None]]
) -> None:
    budget, under_way = Budget(most), list[Stake]()
    for reserved, share, ends_now, outcome in attempts:
        placed = budget.place(stake_of(reserved))
        if isinstance(placed, Stake):
            under_way.append(placed)
        assert not (isinstance(placed, str) and under_way), "while something is under way, others wait"
        if ends_now and under_way:
            ended = under_way.pop(0)
            usage = Usage(input_tokens=1, output_tokens=int(share * ended.output_tokens)) if share < 0.9 else None
            budget.settle(ended, outcome, usage, accepted=share > 0.5)
        assert budget.spent_tokens + sum(each.output_tokens for each in under_way) <= most


@given(st.lists(st.tuples(st.floats(1e-6, 1.0), st.booleans()), max_size=60))
def test_money_that_is_given_back_is_there_again_to_the_last_bit(stakes: list[tuple[float, bool]]) -> None:
    budget = Budget(cost=1e3, price=lambda _, usage: (usage.output_tokens or 0) / 7)
    placed = [budget.place(stake_of(int(1 + 100 * amount))) for amount, _ in stakes]
    for each, (_, attempted) in zip(placed, stakes, strict=True):
        if isinstance(each, Stake) and attempted:
            budget.settle(each, Throttled(status=429, message=""), None, accepted=False)
        elif isinstance(each, Stake):
            budget.give_back(each)
    assert isinstance(budget.place(stake_of(7000)), Stake), "exactly all of it"


# -- what an end is booked as


def told(output_tokens: int | None) -> Usage:
    return Usage(input_tokens=3, output_tokens=output_tokens)


@pytest.mark.parametrize(
    ("outcome", "usage", "accepted", "spent"),
    [
        (DONE, told(20), True, 20),
        (DONE, told(None), True, 100),
        (CUT, told(1), True, 100),  # the first event of Anthropic's
        (CUT, told(120), True, 120),
        (evolve(CUT, kept=True), None, True, 100),
        (Failed(kind=Kind.TIMEOUT, message=""), None, True, 100),
        (Failed(kind=Kind.TIMEOUT, message=""), None, False, 0),
        (Failed(kind=Kind.TRUNCATED, message=""), None, True, 100),  # the body of an answer that was not streamed
        (Failed(kind=Kind.MALFORMED, message="a page of maintenance"), None, True, 0),
        (Failed(kind=Kind.SERVER, message="", status=500), None, False, 0),
        (Failed(kind=Kind.PROMPT, message="", status=400), None, False, 0),
        (Throttled(status=429, message=""), None, False, 0),
        (None, None, True, 100),  # cancelled under way
        (None, None, False, 0),  # cancelled before it was sent
    ],
)
def test_what_broke_off_may_have_cost_all_that_it_was_allowed(
    outcome: Outcome | None, usage: Usage | None, accepted: bool, spent: int
) -> None:
    budget = Budget(1000, 1000.0, lambda _, used: float(100 * (used.input_tokens or 0) + (used.output_tokens or 0)))
    placed = budget.place(stake_of(100, input_tokens=5))
    assert isinstance(placed, Stake)
    budget.settle(placed, outcome, usage, accepted=accepted)
    assert budget.spent_tokens == spent
    input_tokens = 0 if not spent else 5 if usage is None else 3
    assert budget.spent_cost == 100 * input_tokens + spent, "the input of what was accepted is charged, too"


def test_answers_of_unknown_length_go_one_at_a_time() -> None:
    budget = Budget(10_000)
    first = budget.place(stake_of(512, guessed=True))
    assert isinstance(first, Stake)
    assert budget.place(stake_of(512, guessed=True)) is None
    assert isinstance(budget.place(stake_of(512)), Stake), "whose bound is known need not wait"
    budget.settle(first, DONE, told(3), accepted=True)
    assert isinstance(budget.place(stake_of(512, guessed=True)), Stake)


def test_an_upstream_that_never_counts_is_not_waited_for_for_ever() -> None:
    budget = Budget(10_000)
    for _ in range(UNCOUNTED):
        placed = budget.place(stake_of(512, guessed=True))
        assert isinstance(placed, Stake)
        budget.settle(placed, DONE, None, accepted=True)
    assert all(isinstance(budget.place(stake_of(512, guessed=True)), Stake) for _ in range(3))


# -- whole runs


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("extra", ["", "&refuse_share=0.3", "&error_share=0.2"])
def test_a_budget_is_used_up_before_it_stops_the_run(extra: str, seed: int) -> None:
    out = wired(
        f"steady?rate=50&burst=50&latency=1&words=10{extra}",
        lines(100, max_tokens=40),
        max_output_tokens=400,
        seed=seed,
    )
    assert out.exit is Exit.BUDGET
    assert "--max-output-tokens 400" in str(out.stop.reason)
    assert 0.8 * 400 <= produced(out) <= 400
    assert all(line["status"] == "ok" for line in out.results)


def test_stakes_that_do_not_fit_side_by_side_wait_and_stop_nothing() -> None:
    profile = "steady?rate=200&burst=200&latency=5&words=10"
    out = wired(profile, lines(30, max_tokens=400), max_output_tokens=1300)
    assert (out.exit, len(out.results)) == (Exit.OK, 30)
    alone = wired(profile, lines(3, max_tokens=40), max_output_tokens=41)
    assert (alone.exit, len(alone.results)) == (Exit.BUDGET, 1)


def test_a_stake_that_never_fits_ends_the_run_with_nothing_sent() -> None:
    out = wired("steady", lines(3, max_tokens=40), max_output_tokens=39)
    assert (out.exit, out.tally.attempts) == (Exit.BUDGET, 0)
    assert "0 spent, and the next answer may have 40" in str(out.stop.reason)


def test_without_max_tokens_a_budget_is_overrun_by_an_answer_or_so() -> None:
    profile = "steady?rate=200&burst=200&latency=3&words=150&words_per_event=10"
    out = wired(profile, lines(300), max_output_tokens=12_000)  # an answer has about 390
    assert out.exit is Exit.BUDGET
    assert 0.8 * 12_000 <= produced(out) <= 12_000 + 400
    few = wired(profile, lines(300), max_output_tokens=600)
    assert 0 < produced(few) <= 600 + 400


def test_answers_that_break_off_use_the_budget_up() -> None:
    profile = "anthropic-tier4?truncate_share=0.95&latency=0.05&words=40&words_per_event=20"
    out = wired(
        profile, lines(100, max_tokens=100), dialect="anthropic", max_output_tokens=3000, max_failures=50, most_alike=0
    )
    assert out.exit is Exit.BUDGET
    assert out.tally.attempts <= 3000 / 30


def test_an_answer_in_parts_goes_on_within_the_budget() -> None:
    profile = "steady?rate=50&burst=50&latency=1&words=30&truncate_share=0.5"
    out = wired(
        profile, lines(60, max_tokens=60), dialect="vllm", max_output_tokens=1500, continue_truncated=3, max_in_flight=8
    )
    assert out.exit is Exit.BUDGET
    assert 0 < produced(out) <= 1500


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32), most=st.integers(50, 2000), max_in_flight=st.sampled_from([1, 3, 16]))
def test_nobody_waits_for_room_for_ever_whatever_happens(seed: int, most: int, max_in_flight: int) -> None:
    bounded = lines(20, max_tokens=60)
    given = [bounded[n] if n % 2 else line for n, line in enumerate(lines(20))]
    out = wired(
        "flaky?rate=5&words=10&latency=1&truncate_share=0.2&refuse_share=0.2",
        given,
        dialect="vllm",
        max_output_tokens=most,
        continue_truncated=2,
        max_in_flight=max_in_flight,
        deadline=500.0,
        most_alike=0,
        seed=seed,
    )
    assert out.exit in (Exit.OK, Exit.SOME_FAILED, Exit.BUDGET)
    assert out.tally.in_hand == out.tally.in_flight == 0
    assert out.exit is Exit.BUDGET or len(out.results) == 20
    assert produced(out) <= most + 40, "one answer of unknown length beyond it"


# -- waiting


def shop_with(budget: Budget, outcomes: Sequence[Outcome]) -> Shop:
    a = shop(outcomes)
    return evolve(a, bench=evolve(a.bench, purse=Purse(budget), rng=random.Random(1)))


async def test_who_waits_for_room_holds_no_permit_and_can_be_cancelled(autojump_clock: trio.testing.MockClock) -> None:
    a = shop_with(Budget(600), [OK])  # a guess is 512
    a.script.seconds = 100.0
    in_flight = []

    async def look() -> None:
        await trio.sleep(10)
        in_flight.append(a.gate.limiter.statistics(trio.current_time()).in_flight)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        results = await a.run("a", "b", "c", workers=3, cancel_after=50)
    assert (in_flight, results) == ([1], [])
    assert a.bench.purse.budget.spent_tokens == 512, "what was cancelled under way may be charged"
    assert a.bench.purse.budget.place(stake_of(600 - 512)) is not None, "nothing is left open"


async def test_a_stop_is_not_held_up_by_those_who_wait_for_room(autojump_clock: trio.testing.MockClock) -> None:
    a = shop_with(Budget(600), [OK])
    a.script.seconds = 100.0

    async def stop_soon() -> None:
        await trio.sleep(10)
        a.bench.stop.ask(Exit.TERMINATED, "SIGTERM")
        a.gate.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_soon)
        results = await a.run("a", "b", "c", workers=3)
    assert (len(results), trio.current_time(), len(a.script.attempts)) == (1, 100.0, 1)


@pytest.mark.parametrize("outcomes", [[REFUSED, REFUSED, OK], [LOST, OK], [CUT, OK]])
async def test_retries_take_their_turn_and_all_come_to_an_end(
    outcomes: Sequence[Outcome], autojump_clock: trio.testing.MockClock
) -> None:
    a = shop_with(Budget(5000), outcomes)
    results = await a.run(*"abcde", workers=5)
    assert [result.answer for result in results] == [OK.answer] * 5
    assert a.bench.stop.code is None
