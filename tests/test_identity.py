"""The same line has the same key in every run, and no line is lost because it looks like another."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.identity import Conflict, Duplicate, Identified, Identities, understood
from controller.lines import BadLine, parse_line
from controller.outcome import Kind
from controller.records import Result

ids = st.none() | st.integers(0, 2) | st.sampled_from(["a", "1", True, 1.0])
input_lines = st.lists(
    st.builds(lambda name, text: json.dumps({"id": name, "prompt": text}), ids, st.sampled_from("xyz"))
    | st.sampled_from(["broken", "{", '"x"', '{"id":"a"}']),
    max_size=30,
)


def identify(lines: list[str], identities: Identities | None = None, source: str = "prompts.jsonl") -> list[Identified]:
    identities = identities or Identities()
    identified = []
    for number, line in enumerate(lines, 1):
        parsed = parse_line(line.encode())
        assert parsed is not None
        identified.append(identities.identify(parsed, source, number))
    return identified


def key_of(identified: Identified) -> bytes:
    return identified if isinstance(identified, bytes) else identified.key


def keys(lines: list[str], identities: Identities | None = None) -> list[bytes]:
    return [key_of(one) for one in identify(lines, identities)]


@given(input_lines)
def test_another_run_gives_the_same_keys(lines: list[str]) -> None:
    assert keys(lines) == keys(lines)


@given(input_lines)
def test_every_line_that_is_no_duplicate_has_a_key_of_its_own(lines: list[str]) -> None:
    own = [key_of(one) for one in identify(lines) if not isinstance(one, Duplicate)]
    assert len(set(own)) == len(own)


@given(input_lines, st.randoms())
def test_another_order_of_lines_gives_the_same_set_of_keys(lines: list[str], random: Random) -> None:
    shuffled = random.sample(lines, len(lines))
    assert set(keys(lines)) == set(keys(shuffled))


@given(input_lines)
def test_a_nonce_makes_every_line_new_work(lines: list[str]) -> None:
    plain, today, tomorrow = keys(lines), keys(lines, Identities(nonce="1")), keys(lines, Identities(nonce="2"))
    assert not set(plain) & set(today) | set(today) & set(tomorrow)


def test_a_key_is_32_hex_digits_and_stays_what_it_was_in_the_first_release() -> None:
    # When this fails, every results file in the world is forgotten: don't change it lightly.
    assert [key.hex() for key in keys(['"hi"', '"hi"', '{"prompt":"hi","id":1}', "broken"])] == [
        "e907b914d7a806e15108c06510c7d1e8",
        "64c73d5a01e7ff56a0f162c97f4d4ec7",
        "d97e22563596e8349a4f69cca9e5d928",
        "11e54aa0de1d7ea267dd721e36aa66fd",
    ]


def test_ids_of_different_json_types_are_different() -> None:
    lines = [f'{{"id":{name},"prompt":"x"}}' for name in ("1", '"1"', "1.0", "true", '"true"', "null")]
    identified = identify(lines)
    assert all(isinstance(one, bytes) for one in identified)
    assert len({key_of(one) for one in identified}) == 6


def test_the_order_of_fields_and_the_metadata_are_no_part_of_the_identity() -> None:
    one, two = identify(
        ['{"id":1,"prompt":"x","seed":1,"top_p":0.5}', '{"top_p":0.5,"seed":1,"prompt":"x","lang":"de","id":1}']
    )
    assert isinstance(two, Duplicate)
    assert two.key == key_of(one)


def test_the_endpoint_and_the_parameters_are_part_of_the_identity() -> None:
    assert len(set(keys(['{"prompt":"x"}', '{"prompt":"x","seed":1}', '{"prompt":"x","seed":1.0}']))) == 3


def test_case_c96_legal_duplicates_without_an_id_are_each_a_prompt() -> None:
    identified = identify(['"x"', '{"prompt":"x"}', '"x"'])
    assert all(isinstance(one, bytes) for one in identified)
    assert len({key_of(one) for one in identified}) == 3


def test_case_c96_the_same_id_with_the_same_content_is_one_prompt() -> None:
    first, second = identify(['{"id":"a","prompt":"x"}', '{"prompt":"x","id":"a"}'])
    assert isinstance(first, bytes)
    assert second == Duplicate(key=first, first="prompts.jsonl:1")


def test_case_c96_the_same_id_with_other_content_is_one_error_that_names_both_lines() -> None:
    lines = ['{"id":"a","prompt":"x"}', '{"id":"a","prompt":"y","lang":"de"}', '{"id":"a","prompt":"y"}']
    first, second, third = identify(lines)
    assert isinstance(second, Conflict)
    assert 'id "a" was used before with other content at prompts.jsonl:1' in second.message
    assert "prompts.jsonl:2" in second.message
    parsed = parse_line(lines[1].encode())
    assert parsed is not None
    result = understood(parsed, second.key, "prompts.jsonl", 2, second.message)
    assert isinstance(result, Result)
    assert result.error is not None
    assert (result.error.kind, result.error.sent, result.attempts) == (Kind.INPUT, False, 0)
    assert (result.prompt.id, result.prompt.metadata) == ("a", {"lang": "de"})
    assert second.key != key_of(first)
    assert third == Duplicate(key=second.key, first="prompts.jsonl:2")


def test_a_file_that_is_read_twice_is_found_out_by_its_ids() -> None:
    identities = Identities()
    line = '{"id":"a","prompt":"x"}'
    [first], [again] = identify([line], identities), identify([line], identities)
    assert again == Duplicate(key=key_of(first), first="prompts.jsonl:1")


def test_a_conflict_between_two_files_names_both() -> None:
    identities = Identities()
    identify(['"z"', '{"id":"a","prompt":"x"}'], identities, "one.jsonl")
    [conflict] = identify(['{"id":"a","prompt":"y"}'], identities, "two.jsonl")
    assert isinstance(conflict, Conflict)
    assert "one.jsonl:2; this is two.jsonl:1" in conflict.message


def test_a_bad_line_is_an_error_under_a_key_of_its_own_with_its_place_and_id() -> None:
    line = '{"id":"a","prompt":1}'
    one, two = keys([line, line])
    parsed = parse_line(line.encode())
    assert isinstance(parsed, BadLine)
    result = understood(parsed, one, "prompts.jsonl", 1)
    assert isinstance(result, Result)
    prompt, error = result.prompt, result.error
    assert (prompt.id, prompt.source, prompt.line, prompt.request) == ("a", "prompts.jsonl", 1, {})
    assert (prompt.key, error and error.kind) == (one.hex(), Kind.INPUT)
    assert error is not None
    assert error.message == '"prompt" must be a string, not a number'
    assert one != two


@pytest.mark.parametrize("text", ["\\ud835", "\\u2028", "Grüße"])
def test_any_text_may_be_an_id_and_a_prompt(text: str) -> None:
    assert len(set(keys([f'{{"id":"{text}","prompt":"{text}"}}', f'"{text}"']))) == 2
