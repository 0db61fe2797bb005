"""Answers in parts: what broke off is continued, and the seams do not show in the text."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import AsyncIterator

import httpx
import pytest
import trio
from attrs import define, field
from consumer import Consumer
from emitting import DONE, Played, chunk, emit, lines_of, prompt
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.continued import Echo, Whole
from controller.dialects.contract import Request
from controller.dialects.openai_chat import OpenAIChat
from controller.dialects.prefix import ECHO_LEAST
from controller.dialects.table import DIALECTS, dialect_for
from controller.outcome import Answer, Delta, Part, Usage
from controller.records import Prompt
from controller.telemetry import Exit
from policies.contract import JSON

# -- laws of the parts

words = st.text(st.sampled_from("abc "), min_size=1, max_size=60)
counts = st.none() | st.integers(0, 1000)
usages = st.none() | st.builds(
    lambda i, o, r: Usage(input_tokens=i, output_tokens=o, details={"total_tokens": r, "cached": {"read": r}}),
    counts,
    counts,
    st.integers(0, 9),
)


@given(words, st.lists(st.integers(1, 7)), st.integers(0, 60), st.booleans())
@settings(max_examples=100)
def test_the_deltas_of_a_continuation_are_its_text_without_the_echo(
    prefix: str, sizes: list[int], length: int, echoed: bool
) -> None:
    text = (prefix if echoed else "") + "xyz" * length
    echo, heard, at = Echo(prefix), list[Delta](), 0
    for size in [*sizes, len(text)]:
        heard += echo.without([Delta(0, text[at : at + size])] if text[at : at + size] else [])
        at += size
    heard += echo.rest()
    assert "".join(delta.text for delta in heard) == Whole(text=prefix).rest_of(text)


@given(st.lists(st.tuples(words, words, usages), min_size=1, max_size=4), words, usages)
def test_the_parts_add_up(parts: list[tuple[str, str, Usage | None]], end: str, last: Usage | None) -> None:
    whole = Whole()
    for number, (text, reasoning, usage) in enumerate(parts):
        whole = whole.plus(Part(text=f"{number}{text}", reasoning=reasoning, usage=usage))
    message: JSON = {"role": "assistant", "content": end}
    body: dict[str, JSON] = {"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    joined = whole.answer(Answer(text=end, finish_reason="stop", model="m", usage=last, body=body))
    texts = [f"{number}{text}" for number, (text, _, _) in enumerate(parts)]
    assert joined.text == "".join(texts) + end
    cuts = [0, *whole.seams, len(joined.text)]
    assert [joined.text[a:b] for a, b in itertools.pairwise(cuts)] == [*texts, end]
    known = [usage for usage in (*(usage for _, _, usage in parts), last) if usage is not None]
    assert (joined.usage is None) == (not known)
    if joined.usage is not None:
        assert (joined.usage.output_tokens or 0) == sum(usage.output_tokens or 0 for usage in known)
        totals = [usage.details["total_tokens"] for usage in known]
        assert joined.usage.details["total_tokens"] == sum(total for total in totals if isinstance(total, int))
    choices = joined.body["choices"]
    assert isinstance(choices, list)
    assert isinstance(choices[0], dict)
    assert isinstance(choices[0]["message"], dict)
    assert choices[0]["message"]["content"] == joined.text
    assert joined.body["seams"] == list(whole.seams)


def test_an_answer_in_one_part_is_left_as_it_is() -> None:
    only = Answer(text="x", finish_reason="stop", model="m", usage=None, body={"a": 1})
    assert Whole().answer(only) is only


@pytest.mark.parametrize(
    "body",
    [
        {"type": "message", "content": [{"type": "text", "text": "the end"}], "stop_reason": "end_turn"},
        {"candidates": [{"content": {"role": "model", "parts": [{"text": "the end"}]}, "finishReason": "STOP"}]},
    ],
)
def test_the_body_of_another_format_holds_the_whole_text_too(body: dict[str, JSON]) -> None:
    whole = Whole().plus(Part(text="The beginning and "))
    joined = whole.answer(Answer(text="the end", finish_reason="stop", model="m", usage=None, body=body)).body
    assert joined == {**json.loads(json.dumps(body).replace("the end", "The beginning and the end")), "seams": [18]}


@pytest.mark.parametrize("text", ["", "A text that is longer than an echo", "A text that is lon"])
def test_nothing_new_is_no_part(text: str) -> None:
    whole = Whole().plus(Part(text="A text that is longer than an echo"))
    assert whole.plus(Part(text=text)) is whole


# -- how each provider is asked

TEXT = "The beginning of a long answer"
# Dialects that are not known to go on with a beginning.
UNASKED = {"openai", "azure", "together", "gemini-openai", "ollama", "responses", "azure-responses"}


@pytest.mark.parametrize("name", DIALECTS)
def test_a_dialect_asks_for_the_rest_with_the_text_as_the_last_message_or_not_at_all(name: str) -> None:
    asked = DIALECTS[name].continued(prompt(0, temperature=0), TEXT)
    assert (asked is None) == (name in UNASKED)
    if asked is not None:
        assert (asked.key, asked.id) == (prompt(0).key, 0), "it is the same prompt"
        *before, last = messages_of(asked)
        assert before == messages_of(prompt(0))
        assert (last["role"], last["content"]) == ("assistant", TEXT)
        assert asked.request["temperature"] == 0
        again = DIALECTS[name].continued(asked, " and more of the same")
        assert again is not None
        assert len(messages_of(again)) == 2, "an answer that was begun stays one message"
        assert messages_of(again)[-1]["content"] == TEXT + " and more of the same"


def messages_of(asked: Prompt) -> list[dict[str, JSON]]:
    messages = asked.request["messages"]
    assert isinstance(messages, list)
    return [message for message in messages if isinstance(message, dict)]


@pytest.mark.parametrize(
    ("name", "message", "request_"),
    [
        ("deepseek", {"prefix": True}, {}),
        ("mistral", {"prefix": True}, {}),
        ("litellm", {"prefix": True}, {}),
        ("openrouter", {}, {}),
        ("vllm", {}, {"continue_final_message": True, "add_generation_prompt": False}),
        ("sglang", {}, {"continue_final_message": True, "add_generation_prompt": False}),
    ],
)
def test_each_provider_has_its_own_word_for_it(name: str, message: dict[str, JSON], request_: JSON) -> None:
    asked = DIALECTS[name].continued(prompt(0), TEXT)
    assert asked is not None
    assert messages_of(asked)[-1] == {"role": "assistant", "content": TEXT, **message}
    rest = {key: value for key, value in asked.request.items() if key not in ("model", "messages")}
    assert rest == request_


@pytest.mark.parametrize("base", ["https://api.deepseek.com", "https://api.deepseek.com/v1"])
def test_deepseek_takes_prefixes_at_its_beta_address_only(base: str) -> None:
    dialect = dialect_for(None, base)
    asked = dialect.continued(prompt(0), TEXT)
    assert asked is not None
    for each, url in [(asked, "https://api.deepseek.com/beta"), (prompt(0), base)]:
        request = dialect.request(base, each)
        assert isinstance(request, Request)
        assert request.url == url + "/chat/completions"


@pytest.mark.parametrize(
    "request_",
    [
        {"n": 2},
        {"tools": [{"type": "function"}]},
        {"logprobs": True},
        {"response_format": {"type": "json_object"}},
        {"guided_json": {"type": "object"}},
        {"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]},
        {"messages": "none"},
    ],
)
def test_answers_that_cannot_be_joined_are_not_continued(request_: dict[str, JSON]) -> None:
    assert DIALECTS["openrouter"].continued(prompt(0, **request_), TEXT) is None


def test_a_text_too_short_to_tell_its_echo_is_not_continued_where_echoes_come() -> None:
    assert DIALECTS["mistral"].continued(prompt(0), "x" * (ECHO_LEAST - 1)) is None
    assert DIALECTS["mistral"].continued(prompt(0), "x" * ECHO_LEAST) is not None


# -- the run, against an upstream that breaks off

LONG = " ".join(f"word{number}é\U0001f600" for number in range(60))


@define(eq=False)
class Breaking(httpx.AsyncBaseTransport):
    """Knows one answer, LONG; breaks most of its streams off, and goes on where a last assistant message ends."""

    rng: random.Random
    echoes: bool = False
    whole_share: float = 0.2
    whole_from: int = 1000  # the number of the attempt from which on none breaks off
    refuses: int = 0  # the HTTP status for prefixes; 0: it takes them
    asked: list[dict[str, JSON]] = field(factory=list)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await trio.lowlevel.checkpoint()
        body = json.loads(request.content)
        self.asked.append(body)
        last = body["messages"][-1]
        prefix = last["content"] if last["role"] == "assistant" else ""
        assert LONG.startswith(prefix), "only what was said is asked to be continued"
        if prefix and self.refuses:
            return httpx.Response(self.refuses, json={"error": {"message": "last message must be the user's"}})
        text = LONG if self.echoes else LONG[len(prefix) :]
        whole = self.rng.random() < self.whole_share or len(self.asked) >= self.whole_from
        return httpx.Response(
            200, headers={"content-type": "text/event-stream"}, stream=_Stream(self.rng, text, len(text), whole)
        )


@define(eq=False)
class _Stream(httpx.AsyncByteStream):
    rng: random.Random
    text: str
    length: int
    whole: bool

    async def __aiter__(self) -> AsyncIterator[bytes]:
        end = self.length if self.whole else self.rng.randint(0, self.length)
        at = 0
        while at < end:
            size = self.rng.randint(1, 40)
            yield _event({"choices": [{"index": 0, "delta": {"content": self.text[at : min(at + size, end)]}}]})
            at += size
        yield _event(
            {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": end, "total_tokens": 10 + end}}
        )
        if self.whole:
            yield _event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}) + b"data: [DONE]\n\n"
            return
        match self.rng.randrange(4):
            case 0:
                raise httpx.ReadError("reset")
            case 1:
                yield _event({"error": {"code": 502, "message": "Provider disconnected"}})
            case 2:
                await trio.sleep(3600)


def _event(document: JSON) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


@pytest.mark.parametrize("name", ["vllm", "mistral"])
@given(seed=st.integers(0, 2**32), to_file=st.booleans())
@settings(max_examples=10, deadline=None)
def test_an_answer_in_parts_is_the_answer_and_what_was_streamed(name: str, seed: int, to_file: bool) -> None:
    upstream = Breaking(random.Random(seed), echoes=name == "mistral")
    out: list[bytes] = []

    async def consume(data: bytes) -> None:
        await trio.sleep(seed % 3)
        out.append(data)

    asked = [prompt(n) for n in range(5)]
    more = {"seed": seed, "continue_truncated": 3, "max_failures": 40, "to_file": to_file}
    done = emit(asked, upstream, consume, dialect=DIALECTS[name], **more)  # type: ignore[arg-type]
    consumer = Consumer().read(lines_of(b"".join(out)))
    assert (done.exit, len(consumer.results)) == (Exit.OK, 5)
    assert consumer.agrees()
    assert len(upstream.asked) == sum(int(str(line["attempts"])) for line in consumer.results.values())
    for line in consumer.results.values():
        assert line["text"] == LONG
        seams = line.get("seams", [])
        assert isinstance(seams, list)
        assert len(seams) <= 3
        assert seams == sorted({int(str(seam)) for seam in seams})
        assert isinstance(line["usage"], dict)
        if name == "vllm":
            assert line["usage"][
                "completion_tokens" if "completion_tokens" in line["usage"] else "output_tokens"
            ] == len(LONG), "the parts' tokens add up to those of the whole"


def run_parts(upstream: httpx.AsyncBaseTransport, **changed: object) -> dict[str, JSON]:
    """The result of one prompt."""
    out: list[bytes] = []

    async def consume(data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        out.append(data)

    more = {"continue_truncated": 2, "dialect": DIALECTS["vllm"]} | changed
    emit([prompt(0)], upstream, consume, **more)  # type: ignore[arg-type]
    consumer = Consumer().read(lines_of(b"".join(out)))
    assert consumer.agrees()
    (line,) = consumer.results.values()
    return line


def test_without_the_wish_nothing_is_continued() -> None:
    upstream = Breaking(random.Random(1), whole_share=0.0, whole_from=4)
    line = run_parts(upstream, continue_truncated=0, max_failures=50)
    assert line["text"] == LONG
    assert "seams" not in line
    assert all(len(body["messages"]) == 1 for body in upstream.asked if isinstance(body["messages"], list))


def test_a_prompt_whose_continuation_fails_for_good_is_an_error_and_never_half_an_answer() -> None:
    upstream = Breaking(random.Random(1), whole_share=0.0)
    line = run_parts(upstream)
    assert (line["status"], line["text"]) == ("error", None)
    assert line["attempts"] == 2 + 5, "two that were continued, and the budget of failures"
    assert "seams" not in line


@pytest.mark.parametrize("status", [400, 404])  # 404: DeepSeek's /beta, behind a gateway without it
def test_a_prefix_that_is_refused_is_done_without(status: int) -> None:
    upstream = Breaking(random.Random(1), whole_share=0.0, whole_from=4, refuses=status)
    line = run_parts(upstream, max_failures=50)
    assert (line["status"], line["text"]) == ("ok", LONG)
    assert "seams" not in line
    assert sum(len(body["messages"]) == 2 for body in upstream.asked if isinstance(body["messages"], list)) == 1


def test_a_dialect_without_prefixes_starts_over() -> None:
    line = run_parts(Breaking(random.Random(1), whole_share=0.0, whole_from=4), dialect=OpenAIChat(), max_failures=50)
    assert line["text"] == LONG
    assert "seams" not in line


def test_a_rest_that_only_begins_like_an_echo_is_text() -> None:
    line = run_parts(Played([[chunk("To be or not to be. ")], [chunk("To be"), DONE]]))
    assert (line["text"], line["seams"]) == ("To be or not to be. To be", [20])


def test_a_continuation_that_broke_keeps_the_parts_before_it() -> None:
    upstream = Played([[chunk("The first part, ")], [chunk("void")], [chunk("and the second."), DONE]])
    line = run_parts(upstream, continue_truncated=1)
    assert (line["text"], line["seams"], line["attempts"]) == ("The first part, and the second.", [16], 3)
