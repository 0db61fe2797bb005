"""How long the run waits for what an upstream asks it to wait for: keep it, park the run, or wait for a reset.

A wait is never shortened. One that is longer than the user allows parks the run, and so does a quota per day that
is spent, unless the user wishes to wait for its reset (--on-quota wait); where no answer names that instant, it is the
midnight of whoever counts.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import define, evolve

from controller.dialects.quotas import DAY
from controller.outcome import Failed, Kind, Outcome, Throttled
from controller.retry import instant
from policies.contract import Scope

OF_DAY = 900.0  # s; a shorter wait that comes with a spent day is one of a rate per minute
SAME = 60.0  # s; two instants so near are one, and said once


@define(eq=False)
class Patience:
    """longest: seconds. waits: for a reset, however far it is. until_reset: seconds to it where nobody says."""

    longest: float
    wall_clock: Callable[[], float]
    until_reset: Callable[[], float]
    waits: bool = False
    on_wait: Callable[[float], None] = lambda _: None  # told how many seconds are waited, which are no lack of hope
    say: Callable[[str], None] = lambda _: None
    _said: float = float("-inf")  # the instant that the user was told last

    def weigh(self, outcome: Outcome, *, in_vain: bool) -> Outcome:
        """The outcome, with a wait to the reset if that is what it comes to. in_vain: its own wait has been kept once.

        Such a refusal teaches no policy anything: its limit is not one on the rate.
        """
        if not self.waits:
            return outcome
        if isinstance(outcome, Failed) and outcome.kind is Kind.FATAL and outcome.of_day:
            return Throttled(
                status=outcome.status or 429,
                message=outcome.message,
                code=outcome.code,
                period=DAY,
                scope=Scope.OVERLOAD,
                retry_after=self._of_day(outcome.retry_after),
            )
        if isinstance(outcome, Throttled) and in_vain:
            return evolve(
                outcome, scope=Scope.OVERLOAD, retry_after=max(outcome.retry_after or 0.0, self.until_reset())
            )
        return outcome

    def refuses(self, outcome: Throttled, *, in_vain: bool) -> str | None:
        """Why the run must be parked; None if this is waited for."""
        wait = outcome.retry_after or 0.0
        if self.waits:
            if wait > self.longest:
                self.on_wait(wait)
                self._announce(self.wall_clock() + wait, outcome.message)
            return None
        if wait > self.longest:
            words = f"the upstream asks to wait {wait:.0f} s, until {instant(self.wall_clock() + wait)}"
        elif in_vain:
            words = "a quota per day is used up, and the wait that was asked for did not help"
        else:
            return None
        return f"{words}: {outcome.message}"

    def _of_day(self, said: float | None) -> float:
        """Seconds to the reset of a spent day: as the upstream said, if it can be meant."""
        return said if said is not None and said > OF_DAY else self.until_reset()

    def _announce(self, until: float, message: str) -> None:
        if until > self._said + SAME:
            self._said = until
            self.say(f"waiting until {instant(until)}: {message}")
