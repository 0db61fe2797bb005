"""The four clocks of an attempt, as one cancel scope whose deadline moves."""

from __future__ import annotations

from enum import Enum
from typing import assert_never

import trio
from attrs import define, field

from controller.settings import Timeouts


class Clock(Enum):
    """What is waited for; the value is what its failure says."""

    CONNECT = "not connected within {:g} s"
    FIRST_PAYLOAD = "no payload within {:g} s"
    BETWEEN_PAYLOADS = "no payload for {:g} s"
    TOTAL = "not finished within {:g} s"


@define(eq=False)
class Clocks:
    """One clock runs at a time; whichever it is, the total one bounds it."""

    timeouts: Timeouts
    scope: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    running: Clock = field(default=Clock.TOTAL, init=False)
    _ends_at: float = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._ends_at = trio.current_time() + self.timeouts.total

    def run(self, clock: Clock) -> None:
        """Start this clock in place of the running one."""
        deadline = trio.current_time() + self._seconds(clock)
        self.running = clock if deadline < self._ends_at else Clock.TOTAL
        self.scope.deadline = min(deadline, self._ends_at)

    @property
    def words(self) -> str:
        """Which clock runs, as the sentence of its failure."""
        return self.running.value.format(self._seconds(self.running))

    def _seconds(self, clock: Clock) -> float:
        match clock:
            case Clock.CONNECT:
                return self.timeouts.connect
            case Clock.FIRST_PAYLOAD:
                return self.timeouts.first_payload
            case Clock.BETWEEN_PAYLOADS:
                return self.timeouts.between_payloads
            case Clock.TOTAL:
                return self.timeouts.total
            case _:
                assert_never(clock)
