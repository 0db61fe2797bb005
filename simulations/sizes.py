"""How many LLM tokens prompts have, and what can be known of them when: the mixes of workloads that count both.

A mix is a list of kinds that take turns: so many prompts of the first in a row, then of the second, round and round.
Long rows make the limit that binds swap from requests to LLM tokens and back.

Of a prompt the client sees a guess and max_tokens (`Sized.seen`), the upstream counts the input on arrival
(`Sized.asked`), and how long the answer gets shows only at its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import cycle
from math import exp, inf
from random import Random
from statistics import NormalDist, fmean

from attrs import field, frozen

from controller import charges
from controller.estimate import Content, Size
from simulations.asked import Asked
from simulations.charging import Booked, at_the_end, on_arrival, while_produced
from simulations.ranges import OneOf, Within

LONG = 10_000_000  # LLM tokens; nothing is longer
SIGMA = Within(0.0, 3.0, "sigma of a lognormal")
TOKENS = Within(1.0, LONG, "LLM tokens")
DRAWS = 1000  # equal shares of a lognormal, for its mean


@frozen(kw_only=True)
class Sized:
    """The LLM tokens of one prompt. output_tokens: nobody knows them before its end."""

    seen: charges.Asked
    asked: Asked
    output_tokens: int

    def booked(self, charge: str) -> Booked:
        """All that it comes to under a way of charging, by dimension; see simulations.charging."""
        parts = (
            on_arrival(charge, self.asked),
            while_produced(charge, self.output_tokens),
            at_the_end(charge, self.asked, self.output_tokens),
        )
        total = {"requests": 1.0}
        for part in parts:
            for name, tokens in part.items():
                total[name] = total.get(name, 0.0) + tokens
        return total


@frozen(kw_only=True)
class Kind:
    """One sort of prompts: lognormals of LLM tokens. tokens_per_guess: what is counted, for each one first guessed."""

    in_a_row: int = field(default=1, validator=Within(1, 1_000_000, "prompts", whole=True))
    input_median: float = field(validator=TOKENS)
    input_sigma: float = field(default=0.0, validator=SIGMA)
    output_median: float = field(validator=TOKENS)
    output_sigma: float = field(default=0.0, validator=SIGMA)
    max_tokens: int | None = field(
        default=None, validator=Within(1, LONG, "LLM tokens", or_else=(None,), whole=True)
    )  # None: prompts say nothing of it
    content: str = field(default="prose", validator=OneOf(tuple(content.value for content in Content)))
    tokens_per_guess: float = field(default=1.0, validator=Within(0.1, 10.0, "LLM tokens"))
    guess_sigma: float = field(default=0.1, validator=SIGMA)  # how much that differs from prompt to prompt

    def draw(self, rng: Random) -> Sized:
        """The next one."""
        input_tokens = _drawn(self.input_median, self.input_sigma, rng)
        output_tokens = _drawn(self.output_median, self.output_sigma, rng)
        guess = input_tokens / (self.tokens_per_guess * rng.lognormvariate(0.0, self.guess_sigma))
        return self.of(input_tokens, output_tokens, guess)

    def of(self, input_tokens: int, output_tokens: int, guess: float) -> Sized:
        """One with these lengths; the answer ends at max_tokens."""
        return Sized(
            seen=charges.Asked(size=Size(tokens=guess, kind=Content(self.content)), most_output=self.max_tokens),
            asked=Asked(
                endpoint="chat/completions",
                digest="",
                model="m",
                input_tokens=input_tokens,
                max_output_tokens=self.max_tokens,
            ),
            output_tokens=min(output_tokens, self.max_tokens or LONG),
        )


def draw_all(mix: Sequence[Kind], rng: Random) -> Iterator[Sized]:
    """Prompts without end, the kinds in turns."""
    for kind in cycle(mix):
        for _ in range(kind.in_a_row):
            yield kind.draw(rng)


def prompts_per_second(mix: Sequence[Kind], charge: str, limits: Booked) -> float:
    """How many of a mix pass on average where each dimension lets so much through per second; inf without limits."""
    if not limits:
        return inf
    seconds = count = 0.0
    for kind in mix:
        typical = _typical(kind, charge)
        each = max(typical.get(name, 1.0) / limit for name, limit in limits.items())
        seconds, count = seconds + kind.in_a_row * each, count + kind.in_a_row
    return count / seconds


@cache
def _typical(kind: Kind, charge: str) -> Booked:
    """The means of what one comes to, by dimension."""
    inputs, outputs = _shares(kind.input_median, kind.input_sigma), _shares(kind.output_median, kind.output_sigma)
    Random(0).shuffle(outputs)  # the two are independent
    booked = [kind.of(*pair, guess=1.0).booked(charge) for pair in zip(inputs, outputs, strict=True)]
    return {name: fmean(each[name] for each in booked) for name in booked[0]}


def _drawn(median: float, sigma: float, rng: Random) -> int:
    return max(round(median * rng.lognormvariate(0.0, sigma)), 1)


def _shares(median: float, sigma: float) -> list[int]:
    normal = NormalDist()
    return [max(round(median * exp(sigma * normal.inv_cdf((n + 0.5) / DRAWS))), 1) for n in range(DRAWS)]
