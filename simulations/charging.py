"""Which LLM tokens a simulated provider books, and when: one of five ways, each by dimension.

    larger      the larger of input and max_tokens on arrival; nothing comes back
    up-front    the sum of both on arrival; nothing comes back
    input       the input alone
    produced    the input on arrival, the output while it is produced
    settled     input and max_tokens on arrival, and at the end the difference to what was used

A request without max_tokens counts on arrival as if it asked for nothing. Where input and output have limits of their
own ("input_tokens", "output_tokens") the same holds for each apart; "tokens" is one limit on both.
"""

from __future__ import annotations

from simulations.asked import Asked

CHARGES = ("larger", "up-front", "input", "produced", "settled")
Booked = dict[str, float]  # LLM tokens by dimension


def on_arrival(charge: str, asked: Asked) -> Booked:
    """What is booked when an attempt is let through."""
    output = 0 if charge in ("input", "produced") else asked.max_output_tokens or 0
    # https://platform.openai.com/docs/guides/rate-limits, "Reduce the max_tokens to match the size of your completions"
    both = max(asked.input_tokens, output) if charge == "larger" else asked.input_tokens + output
    return {"tokens": both, "input_tokens": asked.input_tokens, "output_tokens": output}


def at_the_end(charge: str, asked: Asked, output: int) -> Booked:
    """What is booked (below 0: given back) when an answer of that many LLM tokens is over."""
    if charge != "settled":
        return {}
    owed = float(output - (asked.max_output_tokens or 0))
    return {"tokens": owed, "output_tokens": owed}


def while_produced(charge: str, output: int) -> Booked:
    """What is booked by and by, between the first token of an answer and its end."""
    return {"tokens": output, "output_tokens": output} if charge == "produced" else {}
