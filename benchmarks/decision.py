"""CPU of one decision: admit, accept and settle of one attempt, one dimension, with few and with many waiters.

    python benchmarks/decision.py

"decision" is all that is decided: the queue, the limiter and the policy, with so many queued; the goal is 50 us at
10,000 waiters, and the same at 10. "gate" is the whole admission as a task sees it: beside the decision trio's
checkpoint, the sleep and the wake-up of the head, the context manager, and the clock that jumps. What it grows by at
10,000 waiters is mostly the garbage collector, which goes through the stacks of so many tasks, 50 to 90 ms for a full
collection, and one or two of them fall into the time that is measured: the last row does without. The rest is memory
that is no longer in a cache when its task's turn comes.

The clock is virtual, so only arithmetic is measured.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from functools import partial

import trio
import trio.testing

from controller.adaptive import AdaptiveBucket
from controller.gate import Gate
from controller.limiter import Limiter
from controller.outcome import Answer, Completed
from controller.permits import Booking, Wait
from controller.waiters import Ticket, Waiters
from policies import registry

ROUNDS = 5
DECISIONS = 10_000
WAITERS = (10, 1_000, 10_000)
POLICIES = ("aimd", "recall")
ONE = {"requests": 1.0}
OK = Completed(answer=Answer(text="", finish_reason="stop", model=None, usage=None, body={}))


def _limiter(policy_name: str, now: float) -> Limiter:
    policy_class = registry.find(policy_name)
    policy = registry.instance(policy_class, registry.make_options(policy_class, {}), seed=0, now=now)
    return Limiter({"requests": AdaptiveBucket(policy, now)}, max_in_flight=100_000)


def decision(policy_name: str, count: int) -> float:
    """Microseconds; the head waits once before each admission, as it does when the rate binds, and queues up again."""
    waiters, now = Waiters(_limiter(policy_name, 0.0)), 0.0
    for _ in range(count):
        waiters.join("x")
    head: Ticket | None = waiters.head
    began = time.process_time()
    for _ in range(DECISIONS):
        assert head is not None
        answer: Booking | Wait = waiters.ask(head, ONE, now)
        while isinstance(answer, Wait):
            now = answer.until
            answer = waiters.ask(head, ONE, now)
        waiters.join("x")
        head = waiters.leave(head)
        waiters.limiter.accept(answer, {}, now)
        waiters.limiter.settle(answer, OK, now)
    return 1e6 * (time.process_time() - began) / DECISIONS


def through_the_gate(policy_name: str, count: int, *, collect: bool = True) -> float:
    """Microseconds an admission while `count` stand behind it; collect: garbage, as ever."""

    async def main() -> float:
        gate = Gate(_limiter(policy_name, trio.current_time()))
        left, began, ended = DECISIONS // 5, 0.0, 0.0

        async def visit() -> None:
            nonlocal left, ended
            while left > 0:
                async with gate.admit(lambda: ONE) as permit:
                    if permit is None:
                        return
                    left -= 1
                    permit.accept({})
                    permit.outcome = OK
            ended = ended or time.process_time()  # before the others are sent home
            gate.close()

        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(visit)
            while gate.waiting < count:
                await trio.lowlevel.checkpoint()
            if not collect:
                gc.disable()
            began = time.process_time()
        return 1e6 * (ended - began) / (DECISIONS // 5)

    try:
        return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    finally:
        gc.enable()


def main() -> None:
    """Interleave, repeat, print median and spread."""
    plans: dict[str, Callable[[], float]] = {}
    for count in WAITERS:
        for name in POLICIES:
            plans[f"decision, {name}, {count} waiters"] = partial(decision, name, count)
        plans[f"gate, aimd, {count} waiters"] = partial(through_the_gate, "aimd", count)
    plans[f"the same, no garbage collected, {WAITERS[-1]}"] = partial(
        through_the_gate, "aimd", WAITERS[-1], collect=False
    )
    figures: dict[str, list[float]] = {title: [] for title in plans}
    for _ in range(ROUNDS):
        for title, measure in plans.items():
            figures[title].append(measure())
    for title, values in figures.items():
        middle = statistics.median(values)
        print(f"{title:40} median {middle:6.1f} us   {min(values):.1f} .. {max(values):.1f}")


if __name__ == "__main__":
    main()
