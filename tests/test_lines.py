"""A line in: what is understood, and what a bad line is told."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.forms import PARAMETERS, Draft
from controller.lines import BadLine, parse_line
from policies.contract import JSON

HALF = "\ud835"  # half a surrogate pair

texts = st.text(st.characters(codec=None))  # lone surrogates, U+0085, U+2028 and all the rest
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
values: st.SearchStrategy[JSON] = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


def draft_of(line: str | bytes, *, text: bool = False) -> Draft:
    parsed = parse_line(line if isinstance(line, bytes) else line.encode(), text=text)
    assert isinstance(parsed, Draft), parsed
    return parsed


def message_of(line: str | bytes, *, text: bool = False) -> str:
    parsed = parse_line(line if isinstance(line, bytes) else line.encode(), text=text)
    assert isinstance(parsed, BadLine), parsed
    assert "\n" not in parsed.message
    return parsed.message


# Laws


@given(st.binary(), st.booleans())
def test_no_bytes_at_all_make_the_parser_raise(raw: bytes, text: bool) -> None:
    assert isinstance(parse_line(raw, text=text), Draft | BadLine | None)


@given(
    st.dictionaries(
        st.sampled_from(["id", "prompt", "messages", "system", "body", "url", "method", "custom_id"]) | texts, values
    )
)
def test_no_json_object_makes_the_parser_raise(value: dict[str, JSON]) -> None:
    parsed = parse_line(json.dumps(value).encode())
    assert isinstance(parsed, Draft | BadLine)


@given(values, st.booleans())
def test_what_a_line_carries_is_read_to_the_last_digit_and_bit(value: JSON, ascii_only: bool) -> None:
    line = json.dumps({"prompt": "hi", "metadata": [value]}, ensure_ascii=ascii_only)
    assert repr(draft_of(line.encode(errors="backslashreplace")).metadata) == repr([value])


@given(st.from_regex(r"\A-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,2})?\Z"))
def test_a_number_is_what_python_has_for_it(number: str) -> None:
    assert repr(draft_of(f'{{"prompt":"hi","top_p":{number}}}').request["top_p"]) == repr(json.loads(number))


@given(st.text('[]{}",:0123456789eE.+-tfn\\u x', max_size=12))
def test_what_json_refuses_is_refused(text: str) -> None:
    line = f'{{"prompt":"hi","metadata":{text}}}'
    try:
        json.loads(line)
    except ValueError:
        assert isinstance(parse_line(line.encode()), BadLine)


# What a line may look like


@pytest.mark.parametrize("line", ['"hi"', '{"prompt":"hi"}', '{"prompt": "hi", "id": null, "temperature": null}'])
def test_a_string_and_a_prompt_are_the_same_request(line: str) -> None:
    assert draft_of(line) == Draft(request={"messages": [{"role": "user", "content": "hi"}]})


def test_a_text_line_is_the_prompt_as_it_is() -> None:
    draft = draft_of('  {"prompt": "x"} \r', text=True)
    assert draft.request == {"messages": [{"role": "user", "content": '  {"prompt": "x"} '}]}


def test_messages_and_parameters_make_the_request_and_the_rest_is_carried_back() -> None:
    line = (
        '{"messages":[{"role":"user","content":"hi"}],"id":7,"temperature":0,"lang":"de","source":"web","license":null}'
    )
    draft = draft_of(line)
    assert draft.request == {"messages": [{"role": "user", "content": "hi"}], "temperature": 0}
    assert (draft.id, draft.metadata) == (7, {"lang": "de", "source": "web", "license": None})
    assert draft.carried == ("lang", "source", "license")


def test_metadata_of_the_users_wins_over_a_carried_key() -> None:
    assert draft_of('{"prompt":"x","lang":"de","a":1,"metadata":{"lang":"en"}}').metadata == {"lang": "en", "a": 1}
    assert draft_of('{"prompt":"x","lang":"de","metadata":"mine"}').metadata == "mine"
    assert draft_of('{"prompt":"x"}').metadata is None


def test_extra_body_is_merged_into_the_request_last() -> None:
    draft = draft_of('{"prompt":"x","top_k":5,"extra_body":{"top_k":9,"priority":null}}')
    assert draft.request == {"messages": [{"role": "user", "content": "x"}], "top_k": 9, "priority": None}
    assert draft.metadata is None


@pytest.mark.parametrize("form", ['"prompt":"x"', '"messages":[{"role":"user","content":"x"}]'])
def test_a_system_string_becomes_the_first_message(form: str) -> None:
    draft = draft_of("{" + form + ',"system":"be kind"}')
    assert draft.request["messages"] == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "x"},
    ]
    assert draft.metadata is None


def test_the_parameters_people_send_are_known() -> None:
    assert not {"model", "max_tokens", "max_completion_tokens", "stop", "tools", "seed", "min_p"} - PARAMETERS
    assert not PARAMETERS & {"id", "metadata", "prompt", "messages", "input", "system", "source", "lang", "license"}


def test_a_bare_embeddings_request_in_the_cookbooks_form_is_one() -> None:
    draft = draft_of('{"model": "text-embedding-3-small", "input": "1\\n", "metadata": {"row_id": 1}}')
    assert draft == Draft(
        request={"model": "text-embedding-3-small", "input": "1\n"}, endpoint="embeddings", metadata={"row_id": 1}
    )


def test_an_input_column_beside_a_prompt_is_only_a_column() -> None:
    draft = draft_of('{"model":"m","prompt":"x","input":"y"}')
    assert (draft.endpoint, draft.metadata) == ("chat/completions", {"input": "y"})


def test_a_batch_line_is_sent_as_its_body_is() -> None:
    body: dict[str, JSON] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "odd": None}
    line = json.dumps({"custom_id": "a-1", "method": "POST", "url": "/v1/chat/completions", "body": body})
    assert draft_of(line) == Draft(id="a-1", request=body, batch=True)


def test_a_batch_line_may_ask_for_embeddings() -> None:
    line = '{"custom_id":"e","method":"POST","url":"/v1/embeddings","body":{"model":"m","input":["a",[1,2]]}}'
    assert draft_of(line).endpoint == "embeddings"


@pytest.mark.parametrize("raw", [b"", b" ", b"\r", b"\t \r", b"\xef\xbb\xbf", b"\xef\xbb\xbf\r"])
def test_a_blank_line_is_skipped(raw: bytes) -> None:
    assert parse_line(raw) is None
    assert parse_line(raw, text=True) is None


def test_half_a_surrogate_pair_and_huge_integers_are_fine() -> None:
    assert draft_of('"\\ud835"').request == {"messages": [{"role": "user", "content": HALF}]}
    assert draft_of('{"prompt":"x","id":' + "9" * 4000 + "}").id == int("9" * 4000)


def test_case_c94_a_byte_order_mark_is_dropped() -> None:
    assert draft_of(b'\xef\xbb\xbf"hi"') == draft_of('"hi"')
    assert draft_of(b"\xef\xbb\xbfhi", text=True) == draft_of("hi", text=True)


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_case_c94_utf_16_is_named_with_the_way_out(encoding: str, text: bool) -> None:
    message = message_of('{"custom_id":"1"}'.encode(encoding), text=text)
    assert "UTF-16" in message
    assert "iconv -f UTF-16 -t UTF-8" in message


def test_case_c98_a_line_of_five_megabytes_just_works() -> None:
    long = "x" * 5_000_000
    assert draft_of(json.dumps({"prompt": long})).request == {"messages": [{"role": "user", "content": long}]}


# What a bad line is told


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"prompt": 1}', '"prompt" must be a string, not a number'),
        ('{"prompt": ["a"]}', '"prompt" must be a string, not a list'),
        ('{"messages": []}', '"messages" must be a non-empty list of objects'),
        ('{"messages": "hi"}', '"messages" must be a non-empty list of objects'),
        ('{"messages": ["hi"]}', '"messages" must be a non-empty list of objects'),
        ('{"prompt":"x","messages":[{}]}', 'both "prompt" and "messages"'),
        ('{"prompt":"x","id":{}}', '"id" must be a string or a number, not an object'),
        ('{"prompt":"x","model":4}', '"model" must be a string, not a number'),
        ('{"prompt":"x","system":true}', '"system" must be a string, not a boolean'),
        ('{"prompt":"x","extra_body":[]}', '"extra_body" must be an object, not a list'),
        ('{"prompt":"x","extra_body":{"messages":null}}', '"messages" must be'),
        ('{"model":"m","input":[]}', '"input" must be a string'),
        ('{"model":"m","input":[{"role":"user"}]}', '"input" must be a string'),
        ('{"input":"x"}', 'neither "prompt" nor "messages"'),
        ('{"temperature":NaN,"prompt":"x"}', '"temperature" holds NaN'),
        ('{"prompt":"x","metadata":{"a":[-Infinity]}}', '"metadata" holds -Infinity'),
        ('{"prompt":"x","top_p":1e999}', '"top_p" holds 1e999'),
        ("NaN", "holds NaN"),
        ('{"temperature":NaN,', "holds NaN"),
        ("7", "must be a string or an object, not a number"),
        ('["a"]', "must be a string or an object, not a list"),
        ("null", "must be a string or an object, not null"),
        ('{"prompt": "x"', "not JSON"),
        ("hello there", "--input-format text"),
        ("9" * 5000, "more than 4,300 digits"),
        ('{"custom_id":"a","url":"/v1/responses","body":{}}', '"url" must end in'),
        ('{"custom_id":"a","body":{}}', '"url" must be a string, not null'),
        ('{"custom_id":"a","url":"/v1/embeddings"}', '"body" must be an object, not null'),
        ('{"custom_id":"a","url":"/v1/chat/completions","body":{"model":"m"}}', '"messages" must be'),
        ('{"custom_id":"a","method":"GET","url":"/v1/embeddings","body":{}}', '"method" must be POST'),
        ('{"custom_id":{},"url":"/v1/embeddings","body":{"input":"x"}}', '"custom_id" must be a string'),
        ('{"url":"/v1/embeddings","body":{"input":"x"}}', '"custom_id" is missing'),
    ],
)
def test_a_bad_line_is_told_its_field_and_fault(line: str, words: str) -> None:
    assert words in message_of(line)


@pytest.mark.parametrize("depth", [250, 5_000, 500_000])
def test_a_line_nested_too_deeply_is_a_bad_line(depth: int) -> None:
    nested = '{"a":' * depth + "1" + "}" * depth
    assert "nested too deeply" in message_of('{"prompt":"x","metadata":' + nested + "}")
    assert "nested too deeply" in message_of("[" * depth + "]" * depth)


def test_brackets_in_a_text_are_no_nesting() -> None:
    assert draft_of(json.dumps("[{" * 1000)).request


def test_bytes_that_are_no_utf_8_are_named_with_their_offset() -> None:
    assert "byte 0xff at offset 2" in message_of(b'"a\xff"')
    assert "byte 0xed at offset 0" in message_of(b"\xed\xa0\xb5", text=True)  # half a pair, as bytes


def test_a_bad_line_keeps_the_id_that_it_told() -> None:
    parsed = parse_line(b'{"id":"a","prompt":1}')
    assert isinstance(parsed, BadLine)
    assert (parsed.id, parsed.batch) == ("a", False)
    parsed = parse_line(b'{"custom_id":"b","url":"/v1/responses","body":{}}')
    assert isinstance(parsed, BadLine)
    assert (parsed.id, parsed.batch) == ("b", True)
