"""One prompt at a time, against an upstream that plays a script; in virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import trio
import trio.testing
from attrs import define, field

from controller.adaptive import AdaptiveBucket
from controller.bench import Bench
from controller.gate import Gate, Permit
from controller.limiter import Limiter
from controller.outbox import Outbox
from controller.outcome import Answer, Completed, Delta, Failed, Kind, Outcome, Throttled, Usage
from controller.patience import Patience
from controller.records import Prompt, Result
from controller.retry import Backoff
from controller.telemetry import Exit, Stop, Tally
from controller.worker import work
from policies.fixed import Fixed, FixedOptions

USAGE = Usage(input_tokens=7, output_tokens=2)
OK = Completed(answer=Answer(text="yes", finish_reason="stop", model="m", usage=USAGE, body={}))
REFUSED = Throttled(status=429, message="slow down")
LOST = Failed(kind=Kind.NETWORK, message="reset by peer")
BAD = Failed(kind=Kind.PROMPT, message="too long", status=400)
NO_KEY = Failed(kind=Kind.FATAL, message="bad key", status=401)


@define(eq=False)
class Script:
    """Plays one list of outcomes a prompt, the last one for ever; each attempt takes `seconds`."""

    outcomes: Sequence[Outcome]
    seconds: float = 1.0
    attempts: list[tuple[str, float]] = field(factory=list)
    at_end: Callable[[], None] = lambda: None  # called at the very moment of completion
    wall_clock: Callable[[], float] = lambda: 1_790_000_000.0
    repeats: int = 0  # requests beyond the first of each attempt

    async def attempt(self, prompt: Prompt, permit: Permit, hear: Callable[[list[Delta]], None]) -> Outcome:
        number = sum(key == prompt.key for key, _ in self.attempts)
        self.attempts.append((prompt.key, trio.current_time()))
        permit.seen.sent = True
        permit.seen.repeats = self.repeats
        hear([])
        await trio.sleep(self.seconds)
        self.at_end()
        return self.outcomes[min(number, len(self.outcomes) - 1)]


@define(eq=False)
class Shop:
    """A bench with what a test looks at."""

    bench: Bench
    gate: Gate
    script: Script

    async def run(self, *keys: str, workers: int = 1, cancel_after: float = float("inf")) -> list[Result]:
        send, receive = trio.open_memory_channel[Prompt](0)
        with trio.move_on_after(cancel_after):
            async with trio.open_nursery() as nursery:
                for _ in range(workers):
                    nursery.start_soon(work, receive, self.bench)
                async with send:
                    for key in keys:
                        await send.send(Prompt(id=key, key=key, source="x", line=1, request={}))
        self.bench.outbox.close()
        return await self.bench.outbox.take()


def shop(
    outcomes: Sequence[Outcome], *, rate: float = 1000.0, max_in_flight: int = 10, longest_wait: float = 900.0
) -> Shop:
    now = trio.current_time()
    policy = Fixed(FixedOptions(refill_rate=rate), seed=0, now=now)
    gate = Gate(Limiter({"requests": AdaptiveBucket(policy, now)}, max_in_flight))
    script = Script(outcomes)
    bench = Bench(
        gate_of=lambda _: gate,
        upstream=script,  # type: ignore[arg-type]  # only its attempt is used
        outbox=Outbox(20),
        backoff=Backoff(),
        patience=Patience(longest_wait, script.wall_clock, until_reset=lambda: 3600.0),
        rng=random.Random(1),
        stop=Stop(),
        tally=Tally(),
    )
    return Shop(bench, gate, script)


async def test_a_completed_prompt_is_handed_over_with_its_timing(autojump_clock: trio.testing.MockClock) -> None:
    a = shop([OK], rate=0.5)
    results = await a.run("a", "b")
    assert [result.answer for result in results] == [OK.answer, OK.answer]
    assert results[1].timing.queued == pytest.approx(1.0), "the bucket gives one every 2 s, and a took 1 s"
    assert results[1].timing.total == pytest.approx(1.0)
    assert (results[0].usage, a.bench.tally.in_hand) == (USAGE, 0)


async def test_a_request_repeated_with_another_key_counts_as_an_attempt(
    autojump_clock: trio.testing.MockClock,
) -> None:
    a = shop([OK])
    a.script.repeats = 1
    results = await a.run("a", "b")
    assert [result.attempts for result in results] == [2, 2]
    assert a.bench.tally.attempts == 4


async def test_a_wait_beyond_the_longest_parks_the_run_and_says_until_when(
    autojump_clock: trio.testing.MockClock,
) -> None:
    a = shop([Throttled(status=429, message="come back", retry_after=10_800.0)])
    assert await a.run("a") == []
    assert a.bench.stop.code is Exit.UPSTREAM
    assert a.bench.stop.reason == "the upstream asks to wait 10800 s, until 2026-09-21 17:13:20 UTC: come back"


async def test_a_throttled_prompt_goes_round_and_never_fails(autojump_clock: trio.testing.MockClock) -> None:
    a = shop([REFUSED] * 50 + [OK])
    (result,) = await a.run("a")
    assert (result.attempts, result.throttled, result.answer) == (51, 50, OK.answer)


async def test_a_transient_failure_is_tried_again_until_the_budget_is_spent(
    autojump_clock: trio.testing.MockClock,
) -> None:
    (survivor,) = await shop([LOST] * 4 + [OK]).run("a")
    assert (survivor.attempts, survivor.answer) == (5, OK.answer)
    (victim,) = await shop([LOST]).run("a")
    assert (victim.attempts, victim.error) == (5, LOST)


async def test_the_back_off_is_outside_the_gate(autojump_clock: trio.testing.MockClock) -> None:
    a = shop([LOST, LOST, OK], max_in_flight=1)
    results = await a.run("a", "b", "c", workers=3)
    assert len(results) == 3
    starts = [at for _, at in a.script.attempts]
    assert starts[1] - starts[0] == pytest.approx(1.0), "b goes as soon as a has ended, not after a's back-off"
    assert starts[2] - starts[1] == pytest.approx(1.0)


async def test_an_answer_that_says_never_is_an_error_at_once(autojump_clock: trio.testing.MockClock) -> None:
    (result,) = await shop([BAD]).run("a")
    assert (result.attempts, result.error) == (1, BAD)


async def test_a_fatal_answer_stops_the_run_and_leaves_the_prompt_pending(
    autojump_clock: trio.testing.MockClock,
) -> None:
    a = shop([NO_KEY])
    assert await a.run("a") == []
    assert (a.bench.stop.code, a.bench.stop.reason) == (Exit.UPSTREAM, "fatal (401): bad key")
    assert (a.bench.tally.failed, a.bench.tally.in_hand) == (0, 0)


async def test_a_wait_longer_than_allowed_parks_the_run_and_is_never_shortened(
    autojump_clock: trio.testing.MockClock,
) -> None:
    a = shop([Throttled(status=429, message="come back tomorrow", retry_after=10800.0)])
    assert await a.run("a") == []
    assert a.bench.stop.code is Exit.UPSTREAM
    assert "10800 s" in str(a.bench.stop.reason)


async def test_a_stop_ends_a_back_off_at_once_and_leaves_the_prompt_pending(
    autojump_clock: trio.testing.MockClock,
) -> None:
    a = shop([LOST])
    a.script.seconds = 0.0

    async def stop_soon() -> None:
        await trio.sleep(0.001)
        a.bench.stop.ask(Exit.TERMINATED, "SIGTERM")
        a.gate.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_soon)
        assert await a.run("a") == []
    assert a.bench.outbox._free.value == 20, "the slot is free again"


async def test_a_cancelled_attempt_leaves_the_prompt_pending_and_its_permit_settled(
    autojump_clock: trio.testing.MockClock,
) -> None:
    a = shop([OK])
    assert await a.run("a", "b", workers=2, cancel_after=0.5) == []
    assert a.gate.limiter.statistics(trio.current_time()).in_flight == 0
    assert (a.bench.tally.in_hand, a.bench.tally.in_flight) == (0, 0)
    assert a.bench.outbox._free.value == 20


async def test_a_paid_answer_is_handed_over_even_if_the_cancel_comes_with_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    a = shop([OK])
    with trio.CancelScope() as scope:
        a.script.at_end = scope.cancel  # no checkpoint follows before the hand-over
        await a.run("a")
    assert [result.answer for result in await a.bench.outbox.take()] == [OK.answer]


async def test_the_outbox_holds_workers_back_when_nothing_is_written(autojump_clock: trio.testing.MockClock) -> None:
    a = shop([OK])
    results = await a.run(*(str(n) for n in range(50)), workers=4, cancel_after=1000.0)
    assert len(results) == 20
    assert len(a.script.attempts) == 20


async def test_a_throttled_prompt_comes_before_those_that_were_never_sent(
    autojump_clock: trio.testing.MockClock,
) -> None:
    a = shop([REFUSED, OK], rate=0.5)
    await a.run("a", "b", "c", workers=3)
    assert [key for key, _ in a.script.attempts][:2] == ["a", "a"]


async def test_two_prompts_that_kill_every_answer_end_in_error_at_last(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Their failures look like an outage; without a bound they would be probed for ever."""
    a = shop([Failed(kind=Kind.SERVER, message="boom", status=500)])
    results = await a.run("a", "b", workers=2)
    assert [result.answer for result in results] == [None, None]
    assert all(10 <= result.attempts <= 20 for result in results)


async def test_a_connection_that_is_refused_never_uses_the_budget_while_others_meet_it_too(
    autojump_clock: trio.testing.MockClock,
) -> None:
    unreachable = Failed(kind=Kind.CONNECT, message="connection refused", sent=False)
    a = shop([unreachable])
    assert await a.run("a", "b", workers=2, cancel_after=7200.0) == []
    assert len(a.script.attempts) > 100
