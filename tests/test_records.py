"""A line out: what a result looks like, and how a resumed run reads it back."""

from __future__ import annotations

import codecs
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.done import Done, read_done
from controller.forms import Draft
from controller.identity import Identities, understood
from controller.lines import parse_line
from controller.outcome import Answer, Failed, Kind, Usage
from controller.records import Prompt, Result, Timing, dump_result
from policies.contract import JSON

KEY = "0123456789abcdef0123456789abcdef"
HALF = "\ud835"  # half a surrogate pair

texts = st.text(st.characters(codec=None))  # lone surrogates, U+0085, U+2028 and all the rest
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
values: st.SearchStrategy[JSON] = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
keys = st.text("0123456789abcdef", min_size=32, max_size=32)
usages = st.builds(Usage, input_tokens=st.none() | st.integers(0), output_tokens=st.none() | st.integers(0))
answers = st.builds(
    Answer,
    text=texts,
    reasoning=texts,
    finish_reason=st.none() | texts,
    model=st.none() | texts,
    usage=st.none() | usages,
    body=st.dictionaries(texts, values | st.just(math.nan) | st.just(math.inf), max_size=3),
)
failures = st.builds(
    Failed,
    kind=st.sampled_from(Kind),
    message=texts,
    status=st.none() | st.integers(100, 599),
    code=st.none() | texts,
    body=values,
)
prompts = st.builds(
    Prompt,
    id=st.none() | st.booleans() | numbers | texts,
    key=keys,
    source=texts,
    line=st.integers(1),
    request=st.just({}),
    endpoint=st.sampled_from(["chat/completions", "embeddings"]),
    metadata=values,
    batch=st.booleans(),
)
results = st.builds(Result, prompt=prompts, answer=answers) | st.builds(Result, prompt=prompts, error=failures)


def prompt_of(line: str) -> Prompt:
    parsed = parse_line(line.encode())
    assert isinstance(parsed, Draft)
    key = Identities().identify(parsed, "prompts.jsonl", 1)
    assert isinstance(key, bytes)
    prompt = understood(parsed, key, "prompts.jsonl", 1)
    assert isinstance(prompt, Prompt)
    return prompt


def answer(text: str = "yo", **body: JSON) -> Answer:
    return Answer(text=text, finish_reason="stop", model="m", usage=None, body=body)


def native(result: Result, *, with_body: bool = False) -> dict[str, JSON]:
    value: dict[str, JSON] = json.loads(dump_result(result, with_body=with_body))
    return value


# Laws


@given(results)
def test_a_dumped_result_tells_a_resumed_run_which_prompt_it_answers_and_whether_it_did(result: Result) -> None:
    line = dump_result(result, with_body=True)
    assert line.endswith(b"\n")
    done = Done(key=bytes.fromhex(result.prompt.key), ok=result.answer is not None, id=result.prompt.id)
    assert read_done(line) == read_done(line[:-1]) == done


@given(results)
def test_a_dumped_result_is_one_line_of_strict_json_for_every_reader(result: Result) -> None:
    text = dump_result(result, with_body=True).decode()
    assert len(text.splitlines()) == 1
    json.loads(text, parse_constant=pytest.fail)


@given(results, st.data())
def test_a_torn_result_line_is_no_result(result: Result, data: st.DataObject) -> None:
    line = dump_result(result)
    assert read_done(line[: data.draw(st.integers(0, len(line) - 2))]) is None


def plain_parse(line: bytes) -> Done | None:
    """A byte order mark keeps msgspec from it, so nothing but json reads it."""
    return read_done(codecs.BOM_UTF8 + line)


@given(results)
def test_a_line_of_our_own_form_is_read_as_json_reads_it(result: Result) -> None:
    line = dump_result(result)
    assert read_done(line) == plain_parse(line)


@given(results, st.data())
def test_a_damaged_line_of_our_own_form_is_read_as_json_reads_it(result: Result, data: st.DataObject) -> None:
    line = bytearray(dump_result(result))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(line)))
        end = at + data.draw(st.integers(0, 3))
        line[at:end] = data.draw(
            st.sampled_from([b"", b'"', b"\\", b"{", b"}", b",", b"0", b"\0", b"\xff", b"\n", b"null"])
        )
    assert read_done(bytes(line)) == plain_parse(bytes(line))


@given(st.binary())
def test_no_bytes_at_all_make_the_reader_of_results_raise(raw: bytes) -> None:
    read_done(raw)


@given(st.text(st.characters(exclude_categories=["Cs"])) | st.just(HALF), values, values)
def test_text_id_and_metadata_come_out_as_they_went_in(text: str, name: JSON, metadata: JSON) -> None:
    prompt = Prompt(id=name, key=KEY, source="-", line=1, request={}, metadata=metadata)
    dumped = native(Result(prompt=prompt, answer=answer(text)))
    assert dumped["text"] == text
    # json joins two halves that happen to stand side by side; so does this
    assert (dumped["id"], dumped["metadata"]) == (json.loads(json.dumps(name)), json.loads(json.dumps(metadata)))


# What a result looks like


def test_an_answer_in_the_native_form() -> None:
    prompt = prompt_of('{"prompt":"hi","id":1,"lang":"de"}')
    usage = Usage(input_tokens=3, output_tokens=5, details={"cached_tokens": 2, "input_tokens": 99})
    result = Result(
        prompt=prompt,
        answer=Answer(text="ja", reasoning="hm", finish_reason="stop", model="m-1", usage=usage, body={}),
        attempts=2,
        throttled=1,
        timing=Timing(queued=0.5, first_token=0.1234567891, total=2),
    )
    assert native(result) == {
        "id": 1,
        "key": prompt.key,
        "source": "prompts.jsonl",
        "line": 1,
        "status": "ok",
        "text": "ja",
        "reasoning": "hm",
        "finish_reason": "stop",
        "model": "m-1",
        "usage": {"cached_tokens": 2, "input_tokens": 3, "output_tokens": 5},
        "attempts": 2,
        "throttled": 1,
        "timing": {"queued": 0.5, "first_token": 0.123457, "total": 2},
        "metadata": {"lang": "de"},
        "error": None,
    }


def test_an_error_in_the_native_form_has_no_text() -> None:
    prompt = prompt_of('{"prompt":"hi","model":"asked"}')
    error = Failed(kind=Kind.PROMPT, message="too long", status=400, code="context_length_exceeded")
    dumped = native(Result(prompt=prompt, error=error, attempts=1, usage=Usage(input_tokens=9)), with_body=True)
    assert (dumped["status"], dumped["text"], dumped["model"]) == ("error", None, "asked")
    assert dumped["usage"] == {"input_tokens": 9, "output_tokens": None}
    assert dumped["error"] == {
        "kind": "prompt",
        "status": 400,
        "code": "context_length_exceeded",
        "message": "too long",
    }
    assert "response" not in dumped


def test_the_body_is_kept_when_asked_for_and_always_for_embeddings() -> None:
    chat, vectors = prompt_of('"hi"'), prompt_of('{"model":"m","input":"x"}')
    assert "response" not in native(Result(prompt=chat, answer=answer(a=1)))
    assert native(Result(prompt=chat, answer=answer(a=1)), with_body=True)["response"] == {"a": 1}
    assert native(Result(prompt=vectors, answer=answer(data=[])))["response"] == {"data": []}


def batch_result(answered: Answer | None, error: Failed | None) -> dict[str, JSON]:
    prompt = Prompt(id="a-1", key=KEY, source="b.jsonl", line=1, request={}, batch=True)
    line = dump_result(Result(prompt=prompt, answer=answered, error=error))
    assert read_done(line) == Done(key=bytes.fromhex(KEY), ok=answered is not None, id="a-1")
    value: dict[str, JSON] = json.loads(line)
    assert (value["id"], value["custom_id"]) == ("batch_req_" + KEY, "a-1")
    return value


def test_a_batch_answer_holds_the_upstreams_body() -> None:
    value = batch_result(answer(id="chatcmpl-1"), None)
    assert value["response"] == {"status_code": 200, "request_id": "chatcmpl-1", "body": {"id": "chatcmpl-1"}}
    assert value["error"] is None


def test_a_batch_failure_with_a_status_holds_the_upstreams_error_body() -> None:
    body: JSON = {"error": {"message": "bad"}}
    value = batch_result(None, Failed(kind=Kind.PROMPT, message="bad", status=400, body=body))
    assert value["response"] == {"status_code": 400, "request_id": KEY, "body": body}
    assert value["error"] is None


@pytest.mark.parametrize("status", [None, 200, 502])
def test_a_batch_failure_without_a_body_or_inside_a_200_is_an_error_of_ours(status: int | None) -> None:
    body: JSON = {"choices": []} if status == 200 else None
    value = batch_result(None, Failed(kind=Kind.TRUNCATED, message="cut", status=status, body=body))
    assert (value["response"], value["error"]) == (None, {"code": "truncated", "message": "cut"})


def test_readable_letters_stay_readable_and_line_ends_of_unicode_are_escaped() -> None:
    line = dump_result(Result(prompt=prompt_of('"x"'), answer=answer("Grüße 😀\u2028\x85\u2029\n")))
    assert 'Grüße 😀\\u2028\\u0085\\u2029\\n"'.encode() in line


def test_case_c99_half_a_surrogate_pair_is_written_as_its_escape() -> None:
    line = dump_result(Result(prompt=prompt_of('"x"'), answer=answer(HALF + "\\" + HALF)))
    assert b'"\\ud835\\\\\\ud835"' in line
    assert json.loads(line)["text"] == HALF + "\\" + HALF


def test_an_upstreams_body_beyond_json_does_not_cost_the_answer() -> None:
    deep: JSON = 1
    for _ in range(20_000):
        deep = [deep]
    dumped = native(
        Result(prompt=prompt_of('"x"'), answer=answer(a=math.nan, b=[math.inf, 1.5], c=deep)), with_body=True
    )
    assert dumped["text"] == "yo"
    body = dumped["response"]
    assert isinstance(body, dict)
    assert (body["a"], body["b"]) == (None, [None, 1.5])


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"null",
        b"[]",
        b"{}",
        b"\xff",
        b'{"id":"7","te',
        b'{"key":1,"status":"ok"}',
        b'{"key":"xyz","status":"ok"}',
        b'{"key":"' + KEY.encode() + b'"}',
        b'{"id":null,"custom_id":"a","response":null}',
    ],
)
def test_what_is_no_result_line_is_read_as_none(line: bytes) -> None:
    assert read_done(line) is None
