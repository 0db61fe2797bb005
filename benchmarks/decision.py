"""CPU of one decision: admit, accept and settle of one attempt, one dimension, with few and with many waiters.

    python benchmarks/decision.py

"limiter" is the decision itself; "gate" adds the queue, trio's wake-up of the head and the context manager. Both
should be flat in the number of waiters. The clock is virtual, so only arithmetic is measured.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import trio
import trio.testing

from controller.adaptive import AdaptiveBucket
from controller.gate import Gate
from controller.limiter import Limiter
from controller.outcome import Answer, Completed
from controller.permits import Booking, Wait
from policies import registry

ROUNDS = 5
DECISIONS = 10_000
WAITERS = (10, 1_000, 10_000)
ONE = {"requests": 1.0}
OK = Completed(answer=Answer(text="", finish_reason="stop", model=None, usage=None, body={}))


def _limiter(policy_name: str, now: float) -> Limiter:
    policy_class = registry.find(policy_name)
    policy = registry.instance(policy_class, registry.make_options(policy_class, {}), seed=0, now=now)
    return Limiter({"requests": AdaptiveBucket(policy, now)}, max_in_flight=100_000)


def limiter_alone(policy_name: str) -> float:
    """Microseconds a decision; the head waits once before each admission, as it does when the rate binds."""
    limiter, now, waited = _limiter(policy_name, 0.0), 0.0, None
    began = time.process_time()
    for _ in range(DECISIONS):
        answer: Booking | Wait = limiter.admit(ONE, now, owner="x", waited=waited)
        while isinstance(answer, Wait):
            waited, now = answer, answer.until
            answer = limiter.admit(ONE, now, owner="x", waited=waited)
        limiter.accept(answer, {}, now)
        limiter.settle(answer, OK, now)
    return 1e6 * (time.process_time() - began) / DECISIONS


def through_the_gate(policy_name: str, waiters: int) -> float:
    """Microseconds an admission while `waiters` stand behind it."""

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
            for _ in range(waiters):
                nursery.start_soon(visit)
            while gate.waiting < waiters:
                await trio.lowlevel.checkpoint()
            began = time.process_time()
        return 1e6 * (ended - began) / (DECISIONS // 5)

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def main() -> None:
    """Interleave, repeat, print median and spread."""
    plans: dict[str, Callable[[], float]] = {}
    for name in ("aimd", "recall"):
        plans[f"limiter, {name}"] = lambda name=name: limiter_alone(name)  # type: ignore[misc]
    for waiters in WAITERS:
        plans[f"gate, aimd, {waiters} waiters"] = lambda waiters=waiters: through_the_gate("aimd", waiters)  # type: ignore[misc]
    figures: dict[str, list[float]] = {title: [] for title in plans}
    for _ in range(ROUNDS):
        for title, measure in plans.items():
            figures[title].append(measure())
    for title, values in figures.items():
        middle = statistics.median(values)
        print(f"{title:28} median {middle:6.1f} us   {min(values):.1f} .. {max(values):.1f}")


if __name__ == "__main__":
    main()
