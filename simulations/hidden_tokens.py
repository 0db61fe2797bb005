"""The hidden upstream where requests and LLM tokens are counted: the limits of the simulated provider itself.

What is booked on arrival, while an answer is produced and at its end is decided by `simulations.limits`, which stands
behind `tidegate upstream` as well, so that both agree.
"""

from __future__ import annotations

from math import ceil, isfinite

from attrs import define, field

from simulations.client import NOTHING, Answer, Attempt, Told
from simulations.hidden import ACCEPTED, printed
from simulations.limits import UNKNOWN_DELAY, Limits
from simulations.quota import Refusal
from simulations.scenario import HEADERS, NONE, Scenario

PASSES = 1.0  # of [0, 1): dice that refuse nothing


@define(eq=False)
class HiddenTokens:
    """As `HiddenUpstream`, for attempts that have a size."""

    scenario: Scenario
    feedback: str
    neighbour_took: list[float] = field(factory=list, init=False)  # nobody else is about
    _limits: Limits = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Begin with fresh quotas."""
        self._limits = Limits(self.scenario.upstream, self.scenario.offset)

    def arrive(self, attempt: Attempt, now: float) -> Answer:
        """The fate of one attempt."""
        assert attempt.sized is not None
        for outage in self.scenario.outages:
            if outage.start <= now < outage.until:
                return Answer(outage.status)
        refusal = self._limits.refuse(now, attempt.sized.asked, PASSES)
        if refusal is not None:
            return self._refusal(now, refusal)
        return Answer(200, hints=self._told(now)) if self.feedback == HEADERS else ACCEPTED

    def answers(self, attempt: Attempt, begins_at: float, ends_at: float) -> None:
        """An accepted attempt will have its answer between these instants."""
        assert attempt.sized is not None
        asked, output = attempt.sized.asked, attempt.sized.output_tokens
        self._limits.owe(attempt.number, asked, output, begins_at=begins_at, ends_at=ends_at)

    def left(self, attempt: Attempt, now: float) -> None:
        """An accepted attempt is over."""
        self._limits.leave(attempt.number, now)

    def advance(self, now: float) -> None:
        """Nothing happens by itself."""

    def _refusal(self, now: float, refusal: Refusal) -> Answer:
        named = refusal.dimension if self.scenario.habits.says_which else None
        if self.feedback == NONE:
            return Answer(429, dimension=named)
        delay = refusal.delay
        told = float(ceil(delay)) if isfinite(delay) else UNKNOWN_DELAY if refusal.dimension == "concurrency" else None
        return Answer(429, told, self._told(now) if self.feedback == HEADERS else NOTHING, dimension=named)

    def _told(self, now: float) -> Told:
        return {name: printed(standing) for name, standing in self._limits.announced(now).items()}
