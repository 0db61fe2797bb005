"""What attempts cost: sizes and estimates, and the five ways in which providers book LLM tokens."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.charges import UNKNOWN_OUTPUT, Asked, Charge, Meter, Meters, asked_of
from controller.dialects.contract import Request
from controller.dialects.table import dialect_for
from controller.estimate import ANSWERS, KEPT, MOST, UNKNOWN, Content, Estimator, Quantile, Size, size_of
from controller.outcome import Answer, Completed, Failed, Kind, Throttled, Usage
from controller.records import Prompt
from policies.contract import JSON, Hints

OK = Completed(answer=Answer(text="yes", finish_reason="stop", model=None, usage=None, body={}))
CUT = Failed(kind=Kind.TRUNCATED, message="")
PICTURE = "data:image/png;base64," + base64.b64encode(bytes(300_000)).decode()


def prompt(request: dict[str, JSON], endpoint: str = "chat/completions") -> Prompt:
    return Prompt(id=None, key="", source="", line=0, request=request, endpoint=endpoint)


def said(content: JSON) -> dict[str, JSON]:
    return {"messages": [{"role": "user", "content": content}]}


# -- sizes


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ("The quick brown fox jumps over the lazy dog. " * 20, Content.PROSE),
        ("Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. " * 20, Content.PROSE),
        ('{"a": [1, 2, {"b": null}], "c": {"d": (1, 2)}}' * 20, Content.CODE),
        ("def f(x):\n    return {y: g(y)[0] for y in x if y == x[0]}\n" * 20, Content.CODE),
        ("明日の天気はどうですか。" * 20, Content.SCRIPT),
        ("Съешь же ещё этих мягких французских булок. " * 20, Content.SCRIPT),
    ],
)
def test_a_prompt_is_of_the_kind_that_most_of_it_is(content: str, kind: Content) -> None:
    assert size_of(said(content)).kind is kind


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": PICTURE}},
        {"type": "image_url", "image_url": PICTURE},
        {"type": "input_image", "image_url": PICTURE, "detail": "high"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE[22:]}},
        {"inlineData": {"mimeType": "image/png", "data": PICTURE[22:]}},
        {"type": "image_url", "image_url": {"url": "https://pictures.example/a.png"}},
    ],
)
def test_an_image_costs_what_an_image_costs_and_not_its_bytes(part: JSON) -> None:
    size = size_of(said([{"type": "text", "text": "What is this?"}, part]))
    assert 1000 < size.tokens < 1300
    assert size.kind is Content.MEDIA


def test_a_file_costs_by_its_pages_and_a_small_image_little() -> None:
    file: JSON = {"type": "file", "file": {"file_data": "data:application/pdf;base64," + "A" * 399_900}}
    assert 6 * 2000 <= size_of(said([file])).tokens < 6 * 2000 + 20
    small: JSON = {"type": "image_url", "image_url": {"url": PICTURE, "detail": "low"}}
    assert size_of(said([small])).tokens < 100


def test_parameters_cost_nothing_and_schemas_do() -> None:
    plain = size_of(said("hello"))
    assert size_of({**said("hello"), "model": "m" * 1000, "temperature": 0.1}) == plain
    assert size_of({**said("hello"), "tools": [{"type": "function", "function": {"name": "f" * 300}}]}).tokens > 100


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(["text", "url", "data", "image_url", "detail", "format"]), inner, max_size=4
            )
        ),
        max_leaves=20,
    )
)
def test_any_content_has_a_finite_size(content: JSON) -> None:
    assert 0 <= size_of(said(content)).tokens < 1e9


# -- what is learned


@given(st.lists(st.floats(0.01, 100.0), min_size=ANSWERS, max_size=3 * KEPT))
def test_the_safe_quantile_is_one_of_the_last_numbers_and_few_lie_above(numbers: list[float]) -> None:
    quantile = Quantile()
    for number in numbers:
        quantile.add(number)
    recent = numbers[-KEPT:]
    value = quantile.value
    assert value in recent
    assert sum(number > value for number in recent) <= 0.1 * len(recent)


def test_the_estimate_learns_bytes_per_token_for_each_kind_apart() -> None:
    estimator = Estimator()
    prose, script = Size(tokens=100.0, kind=Content.PROSE), Size(tokens=100.0, kind=Content.SCRIPT)
    assert estimator.input_tokens(prose) == 100 * UNKNOWN
    for _ in range(20):
        estimator.learn_input(prose, 120, 90)
    assert estimator.input_tokens(prose) == 90
    assert estimator.input_tokens(script) == 90, "nothing better is known"
    for _ in range(20):
        estimator.learn_input(script, 90, 250)
    assert (estimator.input_tokens(prose), estimator.input_tokens(script)) == (90, 250)


# -- charges


def asked(most_output: int | None) -> Asked:
    return Asked(size=Size(tokens=100.0, kind=Content.PROSE), most_output=most_output)


def taught(charge: Charge) -> Meter:
    """It has seen answers of 50 LLM tokens to prompts that were counted as they are."""
    meter = Meter(charge)
    for _ in range(20):
        one = asked(4096)
        meter.settle(one, meter.reserve(one), OK, Usage(input_tokens=100, output_tokens=50))
    return meter


@pytest.mark.parametrize(
    ("charge", "most_output", "reserved", "settled"),
    [
        (Charge.LARGER, 4096, 4096, 4096),
        (Charge.LARGER, 10, 100, 100),
        (Charge.LARGER, None, 100, 100),
        (Charge.UP_FRONT, 4096, 4196, 4196),
        (Charge.UP_FRONT, None, 160, 150),
        (Charge.INPUT, 4096, 100, 100),
        (Charge.PRODUCED, 4096, 160, 150),
        (Charge.PRODUCED, 10, 110, 150),
        (Charge.SETTLED, 4096, 4196, 150),
        (Charge.SETTLED, None, 160, 150),
    ],
)
def test_each_way_of_booking_reserves_and_settles_as_its_provider_does(
    charge: Charge, most_output: int | None, reserved: int, settled: int
) -> None:
    meter, one = taught(charge), asked(most_output)
    cost = meter.reserve(one)
    assert cost["tokens"] == reserved
    true_cost = meter.settle(one, cost, OK, Usage(input_tokens=100, output_tokens=50))
    assert true_cost is not None
    assert true_cost["tokens"] == settled
    assert cost["requests"] == true_cost["requests"] == 1.0


@pytest.mark.parametrize(
    ("charge", "reserved", "settled"),
    [
        (Charge.LARGER, 4096, 4096),
        (Charge.UP_FRONT, 4196, 4196),
        (Charge.INPUT, 100, 100),
        (Charge.PRODUCED, 160, 150),
        (Charge.SETTLED, 4196, 150),
    ],
)
def test_what_the_dialect_asks_for_is_booked_as_if_the_prompt_had_named_it(
    charge: Charge, reserved: int, settled: int
) -> None:
    meter, one = taught(charge), asked(None)
    meter.unsaid = 4096
    cost = meter.reserve(one)
    true_cost = meter.settle(one, cost, OK, Usage(input_tokens=100, output_tokens=50))
    assert true_cost is not None
    assert (cost["tokens"], true_cost["tokens"]) == (reserved, settled)
    assert Meter(charge, unsaid=4096).reserve(asked(0))["output_tokens"] == 1, "embeddings have none"


@pytest.mark.parametrize(("dialect", "unsaid"), [("anthropic", 4096), ("openai", None), ("gemini", None)])
def test_the_output_that_a_dialect_asks_for_unasked_is_the_one_it_names(dialect: str, unsaid: int | None) -> None:
    spoken = dialect_for(dialect, "http://x")
    request = spoken.request("http://x", prompt({**said("x"), "model": "m"}))
    assert isinstance(request, Request)
    assert spoken.unsaid_output == unsaid
    assert json.loads(request.body).get("max_tokens") == unsaid


def refused_for_output(dimension: str = "output_tokens", remaining: float | None = 3904.0) -> Throttled:
    hints = {"output_tokens": Hints(limit=8000.0, remaining=remaining)}
    return Throttled(status=429, message="", dimension=dimension, hints=hints)


@pytest.mark.parametrize(
    ("outcome", "most_output", "learned"),
    [
        (refused_for_output(), 4096, Charge.SETTLED),
        (refused_for_output(), None, Charge.SETTLED),  # the dialect's 4,096
        (refused_for_output(remaining=0.0), 4096, Charge.PRODUCED),  # as it should be
        (refused_for_output(remaining=5000.0), 4096, Charge.PRODUCED),  # something else was the matter
        (refused_for_output(remaining=None), 4096, Charge.PRODUCED),
        (refused_for_output("requests"), 4096, Charge.PRODUCED),
        (refused_for_output(), 300, Charge.PRODUCED),
    ],
)
def test_a_refusal_although_enough_is_left_shows_that_max_tokens_is_booked(
    outcome: Throttled, most_output: int | None, learned: Charge
) -> None:
    meter, one = taught(Charge.PRODUCED), asked(most_output)
    meter.unsaid = 4096
    meter.settle(one, meter.reserve(one), outcome, None)
    assert meter.charge is learned
    if learned is Charge.SETTLED:
        assert meter.reserve(one)["output_tokens"] == 4096


@pytest.mark.parametrize("charge", [charge for charge in Charge if charge is not Charge.PRODUCED])
def test_no_refusal_changes_another_way_of_booking(charge: Charge) -> None:
    meter, one = taught(charge), asked(4096)
    meter.settle(one, meter.reserve(one), refused_for_output(), None)
    assert meter.charge is charge


def test_without_any_knowledge_the_output_is_max_tokens_or_the_documented_guess() -> None:
    meter = Meter(Charge.PRODUCED)
    assert meter.reserve(asked(None))["output_tokens"] == UNKNOWN_OUTPUT
    assert meter.reserve(asked(77))["output_tokens"] == 77


def test_a_broken_stream_is_settled_by_its_input_and_teaches_nothing() -> None:
    meter = taught(Charge.PRODUCED)
    before, one = meter.reserve(asked(None)), asked(None)
    true_cost = meter.settle(one, before, CUT, Usage(input_tokens=130, output_tokens=3))
    assert true_cost is not None
    assert (true_cost["input_tokens"], true_cost["output_tokens"]) == (130, before["output_tokens"])
    assert meter.reserve(one) == before
    assert meter.settle(one, before, CUT, None) is None


@pytest.mark.parametrize(
    ("request_", "most"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6, "max_tokens": 5, "n": 3}, 18),
        ({"max_output_tokens": 7}, 7),
        ({"generationConfig": {"maxOutputTokens": 8}}, 8),
        ({"max_tokens": None}, None),
        ({}, None),
    ],
)
def test_the_limit_of_the_output_is_found_in_every_dialects_form(request_: dict[str, JSON], most: int | None) -> None:
    assert asked_of(prompt({**said("x"), **request_})).most_output == most


def test_embeddings_have_no_output() -> None:
    cost = Meter(Charge.PRODUCED).reserve(asked_of(prompt({"input": ["some words"]}, "embeddings")))
    assert cost["tokens"] <= cost["input_tokens"] + 1


def test_the_error_of_the_estimates_is_said_at_the_end() -> None:
    meters = Meters(Charge.INPUT)
    assert meters.words() == []
    one, meter = asked(None), meters.of(prompt({"model": "m"}))
    meter.settle(one, meter.reserve(one), OK, Usage(input_tokens=100, output_tokens=1))
    assert meters.words() == ["input tokens: 120 estimated, 100 counted (+20 %)"]


@pytest.mark.parametrize("kind", [Kind.PROMPT, Kind.FATAL])
@pytest.mark.parametrize("charge", list(Charge))
def test_what_is_turned_away_before_it_is_looked_at_costs_no_llm_tokens(charge: Charge, kind: Kind) -> None:
    meter, asked = Meter(charge), asked_of(prompt(said("word " * 10_000)))
    came_to = meter.settle(asked, meter.reserve(asked), Failed(kind=kind, message="too large"), None)
    assert came_to == {"tokens": 0.0, "input_tokens": 0.0, "output_tokens": 0.0}


@pytest.mark.parametrize("charge", list(Charge))
def test_a_number_that_no_machine_holds_is_only_a_large_one(charge: Charge) -> None:
    meter, asked = Meter(charge), asked_of(prompt({**said("x"), "max_tokens": 10**400, "n": 10**400}))
    reserved = meter.reserve(asked)
    assert max(reserved.values()) <= 3 * MOST
    told = Usage(input_tokens=10**400, output_tokens=10**400)
    assert max((meter.settle(asked, reserved, OK, told) or {}).values()) <= 3 * MOST
    assert max(meter.reserve(asked).values()) <= 3 * MOST
