"""The live line: what it says of how far, how fast and what blocks."""

from __future__ import annotations

import trio
import trio.testing

from controller.adaptive import AdaptiveBucket
from controller.gate import Gate
from controller.limiter import Limiter
from controller.outcome import Throttled
from controller.progress import summary, what_blocks
from controller.telemetry import Tally
from policies.fixed import Fixed, FixedOptions


def gate(rate: float) -> Gate:
    now = trio.current_time()
    policy = Fixed(FixedOptions(refill_rate=rate), seed=0, now=now)
    return Gate(Limiter({"requests": AdaptiveBucket(policy, now)}, 2))


async def test_the_line_has_all_that_a_user_asks_of_a_run() -> None:
    tally = Tally(ok=12, failed=1, in_hand=5, in_flight=3, attempts=20, throttled=4)
    line = summary(tally, [gate(2.5), gate(1.0)], trio.current_time(), max_in_flight=64, input_open=True)
    assert line == ("done 12  failed 1  pending 5  in flight 3  refill_rate 3.5/s  429s 4  waiting for: no input")


async def test_it_says_what_blocks_now() -> None:
    a, blocks = gate(0.5), []

    def one() -> dict[str, float]:
        return {"requests": 1.0}

    async def ask() -> None:
        async with a.admit(one):
            pass

    def look(tally: Tally, *, input_open: bool = True) -> str:
        return what_blocks(tally, [a], max_in_flight=2, input_open=input_open)

    blocks.append(look(Tally()))
    blocks.append(look(Tally(in_flight=2)))
    blocks.append(look(Tally(in_flight=1), input_open=False))
    async with a.admit(one) as permit, trio.open_nursery() as nursery:
        assert permit is not None
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        blocks.append(look(Tally(in_flight=1)))
        nursery.cancel_scope.cancel()
        permit.outcome = Throttled(status=429, message="", retry_after=60.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        blocks.append(look(Tally()))
        nursery.cancel_scope.cancel()
    assert blocks == ["no input", "in-flight", "answers", "rate", "hold"]
