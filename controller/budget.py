"""The user's own budget of a run: what is under way must not be able to exceed it.

Each attempt stakes the most that it may come to: max_tokens where it is known, else what answers of this model rarely
exceed. What it came to is booked when it has ended. A stake that finds no room beside the open ones has to wait for one
of them to end; one that does not fit even alone ends the run, which leaves its prompts pending.

While nobody knows how long answers get, and none of them is bounded, they go one at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from attrs import define, evolve, field, frozen

from controller.outcome import Completed, Failed, Kind, Outcome, Throttled, Usage
from controller.records import Prompt

Price = Callable[[Prompt, Usage], float]  # $; ValueError for a model without a price
UNCOUNTED = 5  # whole answers whose tokens nobody counted: from then on there is nothing to wait for
# Ends that say nothing of what had been produced by then.
OPEN_ENDS = frozenset({Kind.NETWORK, Kind.TIMEOUT, Kind.TRUNCATED, Kind.CANCELLED})


@frozen(eq=False, kw_only=True)
class Stake:
    """What one attempt may come to. guessed: nobody knows."""

    prompt: Prompt
    input_tokens: int
    output_tokens: int
    cost: float = 0.0
    guessed: bool = False


@define(eq=False)
class Budget:
    """output_tokens and cost ($): None for no such bound. spent: of this run, by usage."""

    output_tokens: int | None = None
    cost: float | None = None
    price: Price = lambda _, __: 0.0
    spent_tokens: int = field(default=0, init=False)
    spent_cost: float = field(default=0.0, init=False)
    _open: int = field(default=0, init=False)
    _open_guesses: int = field(default=0, init=False)
    _open_tokens: int = field(default=0, init=False)
    _open_cost: float = field(default=0.0, init=False)
    _uncounted: int = field(default=0, init=False)

    @property
    def bounded(self) -> bool:
        """There is one."""
        return self.output_tokens is not None or self.cost is not None

    def place(self, stake: Stake) -> Stake | str | None:
        """It, priced, when it has room; None: not before another attempt ends; or why there will never be any."""
        guessed = stake.guessed and self._uncounted < UNCOUNTED
        stake = evolve(stake, cost=self._price(stake.prompt, stake.input_tokens, stake.output_tokens), guessed=guessed)
        obstacle = self._obstacle(stake)
        if obstacle is not None:
            return None if self._open else obstacle
        if guessed and self._open_guesses:
            return None
        self._count(stake, 1)
        return stake

    def settle(self, stake: Stake, outcome: Outcome | None, usage: Usage | None, *, accepted: bool) -> None:
        """An attempt has ended; outcome: None if it was cancelled. accepted: the upstream had begun to answer.

        Of what broke off it may have produced, and charge, more than it told: Anthropic's first event has a count of 1.
        """
        self._count(stake, -1)
        told, least = usage or Usage(), 0
        if _may_be_more(outcome, told, accepted=accepted):
            least = stake.output_tokens
        elif usage is None:
            return
        self._uncounted += isinstance(outcome, Completed) and told.output_tokens is None
        input_tokens = stake.input_tokens if told.input_tokens is None else told.input_tokens
        output_tokens = max(told.output_tokens or 0, least)
        self.spent_tokens += output_tokens
        self.spent_cost += self._price(stake.prompt, input_tokens, output_tokens)

    def give_back(self, stake: Stake) -> None:
        """No attempt was made."""
        self._count(stake, -1)

    def _obstacle(self, stake: Stake) -> str | None:
        most, tokens = self.output_tokens, stake.output_tokens
        if most is not None and self.spent_tokens + self._open_tokens + tokens > most:
            return (
                f"--max-output-tokens {most}: {self.spent_tokens} spent, and the next answer may have {tokens} "
                "(--max-tokens bounds it)"
            )
        if self.cost is not None and self.spent_cost + self._open_cost + stake.cost > self.cost:
            spent = f"{self.spent_cost:.4f} $ spent"
            return f"--max-cost {self.cost:g}: {spent}, and the next answer may cost {stake.cost:.4f} $"
        return None

    def _count(self, stake: Stake, sign: int) -> None:
        self._open += sign
        self._open_guesses += sign * stake.guessed
        self._open_tokens += sign * stake.output_tokens
        self._open_cost = self._open_cost + sign * stake.cost if self._open else 0.0  # no dust of sums is left

    def _price(self, prompt: Prompt, input_tokens: int, output_tokens: int) -> float:
        if self.cost is None:
            return 0.0
        return self.price(prompt, Usage(input_tokens=input_tokens, output_tokens=output_tokens))


def _may_be_more(outcome: Outcome | None, told: Usage, *, accepted: bool) -> bool:
    """More may have been produced than was told."""
    match outcome:
        case None:
            return accepted
        case Completed():
            return told.output_tokens is None
        case Throttled():
            return False
        case Failed(part=part, kind=kind):
            begun = part is not None or bool(told.output_tokens)
            return accepted and (begun or kind in OPEN_ENDS)
        case _:
            assert_never(outcome)
