"""The gate: order, one timer, and no permit lost at any checkpoint; in virtual time."""

from __future__ import annotations

import random
from functools import partial

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.adaptive import AdaptiveBucket
from controller.gate import Gate, Permit
from controller.limiter import Limiter
from controller.outcome import Answer, Completed, Outcome, Throttled
from controller.permits import Blocked, Decision
from policies.aimd import Aimd, AimdOptions
from policies.contract import LimitedBy, Reason
from policies.fixed import Fixed, FixedOptions

OK = Completed(answer=Answer(text="yes", finish_reason="stop", model=None, usage=None, body={}))


def one() -> dict[str, float]:
    return {"requests": 1.0}


def fixed_gate(rate: float, *, max_in_flight: int = 100) -> Gate:
    policy = Fixed(FixedOptions(refill_rate=rate), seed=0, now=trio.current_time())
    return Gate(Limiter({"requests": AdaptiveBucket(policy, trio.current_time())}, max_in_flight))


async def pass_through(
    gate: Gate,
    name: str,
    log: list[tuple[str, float]],
    *,
    again: bool = False,
    outcome: Outcome = OK,
    stay: float = 0.0,
) -> None:
    async with gate.admit(one, owner=name, again=again) as permit:
        assert permit is not None
        log.append((name, trio.current_time()))
        await trio.sleep(stay)
        permit.outcome = outcome


async def test_waiters_leave_in_the_order_they_came_paced_by_the_rate(autojump_clock: trio.testing.MockClock) -> None:
    gate, log = fixed_gate(2.0), []  # type: tuple[Gate, list[tuple[str, float]]]
    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        for name in "abcd":
            nursery.start_soon(pass_through, gate, name, log)
            await trio.testing.wait_all_tasks_blocked()
    assert [name for name, _ in log] == list("abcd")
    assert [at - start for _, at in log] == pytest.approx([0.0, 0.5, 1.0, 1.5])


async def test_a_refused_prompt_goes_before_all_fresh_ones(autojump_clock: trio.testing.MockClock) -> None:
    gate, log = fixed_gate(1.0), []  # type: tuple[Gate, list[tuple[str, float]]]
    async with trio.open_nursery() as nursery:
        for name, again in [("first", False), ("second", False), ("again", True), ("again too", True)]:
            nursery.start_soon(partial(pass_through, gate, name, log, again=again))
            await trio.testing.wait_all_tasks_blocked()
    assert [name for name, _ in log] == ["first", "again", "again too", "second"]


async def test_a_cancelled_head_wakes_the_next(autojump_clock: trio.testing.MockClock) -> None:
    gate, log = fixed_gate(0.1), []  # type: tuple[Gate, list[tuple[str, float]]]
    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pass_through, gate, "a", log)
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(3):
            nursery.start_soon(pass_through, gate, "c", log)  # joins behind b
            await pass_through(gate, "b", log)
    assert [name for name, _ in log] == ["a", "c"]
    assert log[1][1] - start == pytest.approx(10.0), "c waits for the bucket only, not for b"


async def test_leaving_the_block_frees_the_in_flight_place_for_the_head(
    autojump_clock: trio.testing.MockClock,
) -> None:
    gate, log = fixed_gate(1000.0, max_in_flight=1), []  # type: tuple[Gate, list[tuple[str, float]]]
    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        for name in "abc":
            nursery.start_soon(partial(pass_through, gate, name, log, stay=5.0))
    assert [at - start for _, at in log] == pytest.approx([0.0, 5.0, 10.0])


async def test_an_exception_in_the_block_settles_the_permit(autojump_clock: trio.testing.MockClock) -> None:
    gate = fixed_gate(1000.0, max_in_flight=1)
    for error in (KeyError("x"), ValueError("y")):
        with pytest.raises(type(error)):
            async with gate.admit(one):
                raise error
    assert gate.limiter.statistics(trio.current_time()).in_flight == 0


async def test_whoever_stood_behind_a_waiting_head_was_held_back_by_the_same_thing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A real timer wakes late and finds several units: the followers of the head are no less limited by the rate."""
    gate = fixed_gate(1.0)
    gate.limiter.dimensions["requests"].bucket.capacity = 3.0
    seen: list[LimitedBy] = []

    async def look() -> None:
        async with gate.admit(one) as permit:
            assert permit is not None
            seen.append(permit._booking.limited_by["requests"])
            permit.outcome = OK

    gate.limiter.dimensions["requests"].bucket.level = 0.0
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(look)
        await trio.testing.wait_all_tasks_blocked()
        gate.limiter.dimensions["requests"].bucket.level = 3.0  # as after a late timer
    assert seen == [LimitedBy.RATE] * 3


async def test_a_closed_gate_lets_nobody_in_and_nobody_wait(autojump_clock: trio.testing.MockClock) -> None:
    gate = fixed_gate(1000.0, max_in_flight=1)
    refused: list[Permit | None] = []

    async def ask() -> None:
        async with gate.admit(one) as permit:
            refused.append(permit)

    async with gate.admit(one) as held, trio.open_nursery() as nursery:
        assert held is not None
        nursery.start_soon(ask)
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        assert gate.waiting == 2
        gate.close()
    await ask()
    assert refused == [None, None, None]


async def test_decisions_are_told_and_the_head_says_what_it_waits_for(autojump_clock: trio.testing.MockClock) -> None:
    told: list[Decision] = []
    policy = Aimd(AimdOptions(), seed=0, now=trio.current_time())
    gate = Gate(Limiter({"requests": AdaptiveBucket(policy, trio.current_time())}, 10), told.append)
    async with gate.admit(one) as permit:
        assert permit is not None
        permit.outcome = Throttled(status=429, message="", retry_after=30.0)
    assert [decision.reason for decision in told] == [Reason.CUT]
    log: list[tuple[str, float]] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pass_through, gate, "probe", log)
        await trio.testing.wait_all_tasks_blocked()
        assert gate.blocked is not None
        assert gate.blocked.by is Blocked.HOLD
    assert gate.blocked is None


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), rate=st.sampled_from([0.5, 20.0, 1000.0]), cap=st.integers(1, 4))
def test_cancellation_at_any_moment_leaks_no_permit_and_blocks_nobody(seed: int, rate: float, cap: int) -> None:
    rng = random.Random(seed)

    async def main() -> None:
        gate = fixed_gate(rate, max_in_flight=cap)
        log: list[tuple[str, float]] = []
        async with trio.open_nursery() as nursery:
            for number in range(12):
                scope = trio.CancelScope(deadline=trio.current_time() + rng.choice([0.0, 0.1, 1.0, 5.0, 1e6]))
                again, stay = rng.random() < 0.3, rng.choice([0.0, 0.5, 3.0])

                async def visit(scope: trio.CancelScope, name: str, again: bool, stay: float) -> None:
                    with scope:
                        await pass_through(gate, name, log, again=again, stay=stay)

                nursery.start_soon(visit, scope, str(number), again, stay)
                if rng.random() < 0.5:
                    await trio.sleep(rng.choice([0.0, 0.2]))
        assert gate.limiter.statistics(trio.current_time()).in_flight == 0
        assert gate.waiting == 0
        with trio.fail_after(1 / rate + 1):
            await pass_through(gate, "last", log)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
