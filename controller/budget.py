"""The user's own budget of a run: it stops before what is under way could exceed it.

Each attempt reserves the most that it may come to: max_tokens where it is known, else what answers of this model rarely
exceed. What it came to is booked when it has ended. A budget that has no room for another attempt stops the run, which
leaves its prompts pending.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import define, field, frozen

from controller.outcome import Completed, Failed, Outcome, Usage
from controller.records import Prompt

Price = Callable[[Prompt, Usage], float]  # $; ValueError for a model without a price


@frozen
class Stake:
    """What one attempt may come to."""

    output_tokens: int
    cost: float


@define(eq=False)
class Budget:
    """output_tokens and cost ($): None for no such bound. spent: of this run, by usage."""

    output_tokens: int | None = None
    cost: float | None = None
    price: Price = lambda _, __: 0.0
    spent_tokens: int = field(default=0, init=False)
    spent_cost: float = field(default=0.0, init=False)
    _open_tokens: int = field(default=0, init=False)
    _open_cost: float = field(default=0.0, init=False)

    def stake(self, prompt: Prompt, input_tokens: float, output_tokens: float) -> Stake | str:
        """Room for an attempt, or why there is none. input_tokens, output_tokens: the most that it may come to."""
        cost = 0.0
        if self.cost is not None:
            try:
                cost = self.price(prompt, Usage(input_tokens=int(input_tokens), output_tokens=int(output_tokens)))
            except ValueError as error:
                return str(error)
        stake = Stake(int(output_tokens), cost)
        tokens = self.spent_tokens + self._open_tokens + stake.output_tokens
        if self.output_tokens is not None and tokens > self.output_tokens:
            return (
                f"--max-output-tokens {self.output_tokens}: {self.spent_tokens} spent, and the next answer may have "
                f"{stake.output_tokens} (--max-tokens bounds it)"
            )
        if self.cost is not None and self.spent_cost + self._open_cost + cost > self.cost:
            return f"--max-cost {self.cost:g}: {self.spent_cost:.4f} $ spent, and the next answer may cost {cost:.4f} $"
        self._open_tokens += stake.output_tokens
        self._open_cost += stake.cost
        return stake

    def settle(self, prompt: Prompt, stake: Stake, outcome: Outcome | None, usage: Usage | None) -> None:
        """An attempt has ended; outcome: None if it was cancelled. One that broke off uncounted may have cost all."""
        self._open_tokens -= stake.output_tokens
        self._open_cost -= stake.cost
        if usage is not None and usage.output_tokens is not None:
            self.spent_tokens += usage.output_tokens
            self.spent_cost += self.price(prompt, usage) if self.cost is not None else 0.0
        elif outcome is None or isinstance(outcome, Completed) or (isinstance(outcome, Failed) and outcome.part):
            self.spent_tokens += stake.output_tokens
            self.spent_cost += stake.cost
