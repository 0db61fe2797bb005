"""Writes down what a run learns: now and then while it lasts, and at its end."""

from __future__ import annotations

from collections.abc import Mapping

import trio
from attrs import define

from controller.charges import Meters
from controller.gates import Gates
from controller.knowledge import Lessons, Limit, Run
from controller.limiter import Limiter
from controller.memory import Memory
from controller.room import CONCURRENCY

EVERY = 30.0  # s; a run that is killed has lost no more
EVERY_UNDER_CEILINGS = 5.0  # s; what was sent since is guessed by the ceiling's pace


@define(eq=False)
class Keeper:
    """Of one run. ceilings: the user's, per minute, by dimension."""

    memory: Memory
    gates: Gates
    meters: Meters
    ceilings: Mapping[str, float]

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await trio.sleep(EVERY_UNDER_CEILINGS if self.ceilings else EVERY)
            now = trio.current_time()
            noted = self.lessons(now), self._sent(now, ended=False), now
            await trio.to_thread.run_sync(self.memory.keep, *noted, abandon_on_cancel=True)

    def begin(self) -> None:
        """A run under ceilings says that it is there before it sends anything, since it may be killed at any time."""
        now = trio.current_time()
        self.memory.keep({}, self._sent(now, ended=False), now)

    def end(self) -> None:
        """Nothing is sent any more."""
        now = trio.current_time()
        self.memory.keep(self.lessons(now), self._sent(now, ended=True), now)

    def lessons(self, now: float) -> dict[str, Lessons]:
        """What is known by now, by model."""
        learned = {}
        for model, gate in self.gates.by_model.items():
            meter = self.meters.by_model.get(model)
            estimates = {} if meter is None else meter.estimator.learned
            learned[model] = Lessons(limits=limits_of(gate.limiter, now), estimates=estimates, at=now)
        return learned

    def _sent(self, now: float, *, ended: bool) -> Run | None:
        if not self.ceilings:
            return None
        models = {
            model: {name: ceiling.spending(now) for name, ceiling in gate.limiter.ceilings.items()}
            for model, gate in self.gates.by_model.items()
        }
        return Run(at=now, ended=ended, ceilings=dict(self.ceilings), models=models)


def limits_of(limiter: Limiter, now: float) -> dict[str, Limit]:
    """What a limiter has learned itself, not what it only was told by an earlier run."""
    limits = {}
    for name, dimension in limiter.dimensions.items():
        pace, unit, tested_at = dimension.pace, dimension.unit, dimension.tested_at
        if tested_at is None:
            continue
        if pace.learned_limit is not None and 0 < pace.learned_limit * unit < float("inf"):
            limits[name] = Limit(limit=pace.learned_limit * unit, unit=unit, at=tested_at)
        elif pace.learned_limit is None and pace.bounds is not None:
            held, refused = pace.bounds.held * unit, pace.bounds.refused * unit
            limits[name] = Limit(limit=held, refused=refused, unit=unit, at=tested_at)
    if limiter.room.found and limiter.room.limit is not None:
        limits[CONCURRENCY] = Limit(limit=float(limiter.room.limit), at=now)
    return limits
