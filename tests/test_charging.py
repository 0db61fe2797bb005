"""Which LLM tokens the simulated upstream books, and when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulations.asked import Asked
from simulations.charging import CHARGES, at_the_end, on_arrival, while_produced
from simulations.production import Production


@given(
    asked=st.builds(
        lambda read, most: Asked(endpoint="", digest="", model="", input_tokens=read, max_output_tokens=most),
        st.integers(1, 10_000),
        st.none() | st.integers(1, 10_000),
    ),
    output=st.integers(0, 10_000),
)
def test_who_settles_and_who_counts_as_produced_book_what_was_used_in_the_end(asked: Asked, output: int) -> None:
    booked = dict.fromkeys(CHARGES, 0.0)
    for charge in CHARGES:
        parts = on_arrival(charge, asked), at_the_end(charge, asked, output), while_produced(charge, output)
        for dimension in ("tokens", "output_tokens", "input_tokens"):
            total = sum(part.get(dimension, 0.0) for part in parts)
            if charge in ("settled", "produced"):
                read, written = dimension != "output_tokens", dimension != "input_tokens"
                assert total == read * asked.input_tokens + written * output
            booked[charge] = parts[0]["tokens"]
    assert booked["input"] <= booked["larger"] <= booked["up-front"] == booked["settled"]


STREAMS = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 400), st.integers(0, 400), st.integers(1, 900)), max_size=20
)


@given(streams=STREAMS, looks=st.lists(st.integers(0, 1600), max_size=20))
def test_whatever_breaks_off_and_whenever_one_looks_just_what_was_produced_is_booked(
    streams: list[tuple[int, int, int, int]], looks: list[int]
) -> None:
    booked: list[tuple[float, float]] = []
    production = Production(lambda now, tokens: booked.append((now, tokens)))
    produced = 0.0
    verbs = [(quarter / 4, 2, -1) for quarter in looks]
    for number, (begin, wait, length, _) in enumerate(streams):
        verbs += [(begin / 4, 0, number), ((begin + wait + length // 2) / 4, 1, number)]
    for now, verb, number in sorted(verbs):
        production.advance(now)
        if verb == 0:
            _, wait, length, tokens = streams[number]
            production.begin(number, now + wait / 4, now + (wait + length) / 4, tokens)
        elif verb == 1:
            produced += production.stop(number, now)
    production.advance(1e6)
    assert sum(tokens for _, tokens in booked) == pytest.approx(produced, abs=1e-6)
    assert all(tokens > 0 for _, tokens in booked)
    assert booked == sorted(booked, key=lambda entry: entry[0])


def test_a_long_answer_is_booked_in_steps_and_not_as_a_heap_at_its_end() -> None:
    booked: list[tuple[float, float]] = []
    production = Production(lambda now, tokens: booked.append((now, tokens)))
    production.begin(1, 2.0, 12.0, 500)
    production.advance(4.5)
    assert booked == [(3.0, 50.0), (4.0, 50.0), (4.5, 25.0)]
    assert production.stop(1, 5.0) == 150.0
