"""What an attempt costs in each quota dimension: reserved before it goes, settled by what it used.

Providers book LLM tokens in five ways, and only their refusals and headers show which:

    larger      the larger of input and max_tokens on arrival, and nothing comes back, so that a large max_tokens wastes
                quota: OpenAI; https://platform.openai.com/docs/guides/rate-limits
    up-front    the sum of both on arrival, and nothing comes back: Azure;
                https://learn.microsoft.com/azure/ai-foundry/openai/how-to/quota
    input       the input alone: Gemini; https://ai.google.dev/gemini-api/docs/rate-limits
    produced    the input on arrival, the output as it is produced: Anthropic;
                https://docs.anthropic.com/en/api/rate-limits
    settled     input and max_tokens on arrival, and at the end what was not used comes back

What is reserved is the estimate of the input (controller.estimate), and of the output max_tokens where it is booked on
arrival, else 1.2 times the length that this model's answers rarely exceed. With no answers yet it is max_tokens, and
without that UNKNOWN_OUTPUT. Where the prompt names no max_tokens but the dialect has to, it is the dialect's that is
booked. All numbers are whole, so that sums of them are exact.

Anthropic has booked in two ways, and older accounts and gateways may still have the other: an upstream taken for
`produced` that refuses for the output, and says that more of it is left than was reserved, has looked at max_tokens. It
is `settled` from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from math import ceil

from attrs import define, field, frozen

from controller.budget import Stake
from controller.estimate import MOST, Estimator, Size, size_of
from controller.outcome import Completed, Failed, Kind, Outcome, Throttled, Usage
from controller.records import Prompt
from policies.contract import JSON

UNKNOWN_OUTPUT = 512  # LLM tokens, before any answer has come
SPARE = 1.2  # times the learned length of an answer
OUTPUT_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")

Sizer = Callable[[dict[str, JSON], str], Size]  # request, model
Cost = Mapping[str, float]  # requests and LLM tokens, by dimension


class Charge(Enum):
    """When a provider books what; see the top."""

    LARGER = "larger"
    UP_FRONT = "up-front"
    INPUT = "input"
    PRODUCED = "produced"
    SETTLED = "settled"


UNTOUCHED = (Kind.PROMPT, Kind.FATAL)  # turned away before any LLM token was looked at
LATE = (Charge.PRODUCED, Charge.SETTLED)  # what a prompt says nothing of is charged after it was let in
CHARGES = tuple(charge.value for charge in Charge)


@frozen(kw_only=True)
class Asked:
    """A request as far as its cost goes. most_output: the LLM tokens that its answers may have, None without a word."""

    size: Size
    most_output: int | None


@define(eq=False)
class Meter:
    """The costs of one model's attempts. unsaid: the max_tokens that go where a prompt names none, None for none."""

    charge: Charge
    estimator: Estimator = field(factory=Estimator)
    sizer: Sizer | None = None  # None: our own
    unsaid: int | None = None

    def reserve(self, asked: Asked) -> Cost:
        """What to reserve now; a later answer may change it."""
        return self._cost(asked, self.estimator.input_tokens(asked.size), self._output(asked))

    def settle(self, asked: Asked, reserved: Cost, outcome: Outcome | None, usage: Usage | None) -> Cost | None:
        """The true cost, and learn from it; None where nothing was counted. outcome: None for a cancelled attempt."""
        if isinstance(outcome, Throttled):
            self._hear(asked, reserved, outcome)
        if usage is None:
            turned_away = isinstance(outcome, Failed) and outcome.kind in UNTOUCHED and outcome.sent
            return {"tokens": 0.0, "input_tokens": 0.0, "output_tokens": 0.0} if turned_away else None
        whole = isinstance(outcome, Completed)
        if whole:
            self._learn(asked, reserved, usage)
        input_tokens = min(usage.input_tokens or int(reserved["input_tokens"]), MOST)
        output_tokens = (
            min(usage.output_tokens or 0, MOST) if whole and usage.output_tokens is not None else None
        )  # of a stream that broke off nobody knows the rest
        booked = self.charge in (Charge.UP_FRONT, Charge.LARGER) and self._most(asked) is not None
        if booked or output_tokens is None:
            output_tokens = int(reserved["output_tokens"])
        return self._cost(asked, input_tokens, output_tokens)

    def stake(self, prompt: Prompt, asked: Asked) -> Stake:
        """The most that an attempt may come to; guessed where neither the prompt nor earlier answers say how much."""
        learned, most = self.estimator.output_tokens(), asked.most_output
        if most is None:
            most = UNKNOWN_OUTPUT if learned is None else ceil(SPARE * learned)
        return Stake(
            prompt=prompt,
            input_tokens=self.estimator.input_tokens(asked.size),
            output_tokens=most,
            guessed=asked.most_output is None and learned is None,
        )

    def _hear(self, asked: Asked, refused: Cost, outcome: Throttled) -> None:
        """See the top."""
        hints, most = outcome.hints.get("output_tokens"), self._most(asked)
        if self.charge is not Charge.PRODUCED or outcome.dimension != "output_tokens" or hints is None or most is None:
            return
        if hints.remaining is not None and refused["output_tokens"] <= hints.remaining < most:
            self.charge = Charge.SETTLED

    def _most(self, asked: Asked) -> int | None:
        return self.unsaid if asked.most_output is None else asked.most_output

    def _output(self, asked: Asked) -> int:
        learned, on_arrival = self.estimator.output_tokens(), self.charge not in (Charge.INPUT, Charge.PRODUCED)
        most = self._most(asked) if on_arrival else asked.most_output
        if most is not None and (learned is None or on_arrival):
            return most
        expected = UNKNOWN_OUTPUT if learned is None else ceil(SPARE * learned)
        return expected if most is None else min(expected, most)

    def _cost(self, asked: Asked, input_tokens: int, output_tokens: int) -> Cost:
        match self.charge:
            case Charge.INPUT:
                both = input_tokens
            case Charge.LARGER:
                both = max(input_tokens, self._most(asked) or 0)
            case _:
                both = input_tokens + output_tokens
        return {
            "requests": 1.0,
            "tokens": float(both),
            "input_tokens": float(input_tokens),
            "output_tokens": float(max(output_tokens, 1)),  # embeddings have none, and a policy wants a cost
        }

    def _learn(self, asked: Asked, reserved: Cost, usage: Usage) -> None:
        counted = min(usage.input_tokens or 0, MOST), min(usage.output_tokens or 0, MOST)
        self.estimator.learn_input(asked.size, int(reserved["input_tokens"]), counted[0])
        self.estimator.learn_output(counted[1])


@define(eq=False)
class Meters:
    """One for each model, made when its first prompt comes."""

    charge: Charge = Charge.LARGER
    known: Callable[[str], Mapping[str, float]] = lambda _: {}  # what an earlier run's estimator of a model learned
    sizer: Sizer | None = None  # None: our own
    unsaid: int | None = None  # see `Meter`
    by_model: dict[str, Meter] = field(factory=dict)

    def of(self, prompt: Prompt) -> Meter:
        """The meter of a prompt's model."""
        model = str(prompt.request.get("model"))
        if model not in self.by_model:
            self.by_model[model] = Meter(self.charge, sizer=self.sizer, unsaid=self.unsaid)
            self.by_model[model].estimator.recall(self.known(model))
        return self.by_model[model]

    def words(self) -> list[str]:
        """How far off the estimates of the input were, for the end of a run; nothing where nobody counted."""
        counted = sum(meter.estimator.counted for meter in self.by_model.values())
        estimated = sum(meter.estimator.estimated for meter in self.by_model.values())
        if not counted:
            return []
        return [f"input tokens: {estimated} estimated, {counted} counted ({100 * (estimated / counted - 1):+.0f} %)"]


@define(eq=False)
class Reservation:
    """What one prompt's attempts reserve; its size is looked at once, when its turn is near."""

    meter: Meter
    _of: Prompt | None = None
    _asked: Asked | None = None

    def of(self, prompt: Prompt) -> Asked:
        """What it asks for, as far as its cost goes."""
        if self._asked is None or self._of is not prompt:
            self._of, self._asked = prompt, asked_of(prompt, self.meter.sizer)
        return self._asked

    def costs(self, prompt: Prompt) -> Callable[[], Cost]:
        """To be asked at the head of the queue."""
        return lambda: self.meter.reserve(self.of(prompt))

    def stake(self, prompt: Prompt) -> Stake:
        """See `Meter.stake`."""
        return self.meter.stake(prompt, self.of(prompt))

    def settle(self, prompt: Prompt, reserved: Cost, outcome: Outcome | None, usage: Usage | None) -> Cost | None:
        """See `Meter.settle`."""
        return self.meter.settle(self.of(prompt), reserved, outcome, usage)


def asked_of(prompt: Prompt, sizer: Sizer | None = None) -> Asked:
    """A prompt as far as its cost goes. sizer: in place of `size_of`."""
    request = prompt.request
    size = size_of(request) if sizer is None else sizer(request, str(request.get("model")))
    if prompt.endpoint == "embeddings":
        return Asked(size=size, most_output=0)
    config = request.get("generationConfig")
    found = [request.get(name) for name in OUTPUT_LIMITS]
    found += [config.get("maxOutputTokens")] if isinstance(config, dict) else []
    most = next((_count(value) for value in found if _count(value)), None)
    return Asked(size=size, most_output=None if most is None else min(most * max(_count(request.get("n")), 1), MOST))


def _count(value: JSON) -> int:
    return value if isinstance(value, int) and value > 0 else 0
