"""Every dialect against anything at all: whatever bytes come, in whatever pieces, there is an Outcome.

The everyday examples are few. Ten minutes of it are one command:
`TIDEGATE_FUZZ_SECONDS=600 pytest -m slow tests/test_dialect_fuzz.py`; it prints how many examples ran.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable
from itertools import cycle, pairwise
from typing import assert_never

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from controller.dialects.contract import Dialect, Request
from controller.dialects.table import DIALECTS
from controller.outcome import Answer, Completed, Failed, Outcome, Throttled
from controller.records import Prompt, Result, dump_result
from controller.sse import Splitter
from policies.contract import JSON

# On a busy machine both clocks of Hypothesis run out, and neither says anything of ours.
UNHURRIED = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SECONDS = float(os.environ.get("TIDEGATE_FUZZ_SECONDS", "20"))
EVENTS = [
    "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
    "message_stop", "ping", "error", "response.created", "response.output_text.delta", "response.completed",
    "response.incomplete", "response.failed", "text_delta", "input_json_delta", "thinking_delta", "citations_delta",
    "message", "text", "output_text", "function_call", "tool_use",
]  # fmt: skip
PROMPT = Prompt(id=None, key="0" * 32, source="-", line=1, request={})
KEYS = [
    "type", "error", "message", "code", "status", "details", "delta", "content", "content_block", "index", "text",
    "thinking", "partial_json", "usage", "input_tokens", "output_tokens", "stop_reason", "response", "output",
    "incomplete_details", "reason", "candidates", "parts", "finishReason", "promptFeedback", "blockReason",
    "usageMetadata", "promptTokenCount", "candidatesTokenCount", "thought", "role", "model", "choices",
    "finish_reason", "native_finish_reason", "reasoning_content", "refusal", "tool_calls", "x_groq", "prompt_tokens",
    "completion_tokens", "object", "@type", "retryDelay", "violations", "quotaId", "metadata", "headers",
]  # fmt: skip
scalars = (
    st.sampled_from([*EVENTS, "overloaded_error", "STOP", "end_turn", "completed", "failed", "\ud835", "[DONE]", "34s"])
    | st.none()
    | st.booleans()
    | st.integers(-3, 600)
    | st.floats()
    | st.text(max_size=6)
)
documents: st.SearchStrategy[JSON] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=20,
)
typed = st.builds(
    lambda kind, more: {**(more if isinstance(more, dict) else {}), "type": kind}, st.sampled_from(EVENTS), documents
)
lines = (
    (documents | typed).map(lambda item: b"data: " + json.dumps(item).encode() + b"\n\n")
    | documents.map(lambda item: json.dumps(item, indent=1).encode() + b"\n")
    | st.sampled_from(EVENTS).map(lambda name: b"event: " + name.encode() + b"\n")
    | st.lists(documents, max_size=2).map(lambda two: b"data: " + b"".join(json.dumps(o).encode() for o in two) + b"\n")
    | st.sampled_from([b"data: [DONE]\n\n", b": ping\n", b"<html>", b"\xef\xbb\xbf", b"\r", b"\n\n", b"data"])
    | st.binary(max_size=12)
)
streams = st.lists(lines, max_size=8).map(b"".join)
headers = st.dictionaries(
    st.sampled_from(["retry-after", "retry-after-ms", "date", "x-should-retry", "x-ratelimit-reset-requests",
                     "anthropic-ratelimit-tokens-reset", "x-ratelimit-remaining-tokens"]),
    st.text(max_size=20) | st.sampled_from(["0", "-1", "7", "true", "6m0s", "2026-09-21T14:14:00Z"]),
    max_size=3,
)  # fmt: skip


def outcome_of(dialect: Dialect, stream: bytes, cuts: list[int]) -> Outcome:
    """What a stream comes to, in these pieces, folded as an attempt does it."""
    splitter, fold = Splitter(), dialect.fold(PROMPT)
    edges = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    events = [event for a, b in pairwise(edges) for event in splitter.feed(stream[a:b])]
    for event in [*events, *splitter.close()]:
        refused = fold.feed(event)
        assert all(delta.text.encode() for delta in fold.fresh())
        if refused is not None:
            assert fold.finished
            return refused
    end = fold.end()
    return Completed(answer=end) if isinstance(end, Answer) else end


def check(dialect: Dialect, stream: bytes, cuts: list[int], status: int, told: dict[str, str]) -> None:
    """An outcome from the stream, the same however it is cut, and one from the same bytes as a plain body."""
    folded = outcome_of(dialect, stream, cuts)
    assert repr(folded) == repr(outcome_of(dialect, stream, [])), "the cutting shows"
    plain = dialect.classify(status, told, stream, wall_now=1_790_000_000.0)
    assert 200 <= status < 300 or not isinstance(plain, Completed)
    for outcome in (folded, plain):
        assert_fit(outcome)
    dialect.hints(told)


def assert_fit(outcome: Outcome) -> None:
    """Nothing in it can hurt what comes after."""
    prompt = Prompt(id=None, key="0" * 32, source="-", line=1, request={}, batch=True)
    match outcome:
        case Completed(answer=answer):
            assert dump_result(Result(prompt=prompt, answer=answer)).endswith(b"\n")
        case Throttled(retry_after=wait, message=message):
            assert wait is None or 0 < wait < 1e8
            message.encode()
        case Failed(message=message):
            message.encode()
            assert dump_result(Result(prompt=prompt, error=outcome)).endswith(b"\n")
        case _:
            assert_never(outcome)


@pytest.mark.parametrize("name", ["openai", "groq", "responses", "anthropic", "gemini"])
@given(streams, st.lists(st.integers(0, 400), max_size=5), st.sampled_from([200, 400, 429, 500, 503]), headers)
@UNHURRIED
def test_any_bytes_in_any_pieces_give_an_outcome(
    name: str, stream: bytes, cuts: list[int], status: int, told: dict[str, str]
) -> None:
    check(DIALECTS[name], stream, cuts, status, told)


@pytest.mark.parametrize("name", ["openai", "responses", "anthropic", "gemini", "vertex"])
@given(st.dictionaries(st.sampled_from([*KEYS, "messages", "tools", "tool_choice", "stop", "response_format", "system",
                                        "tool_calls", "max_tokens", "n", "user"]), documents, max_size=5),
       st.lists(st.dictionaries(st.sampled_from(["role", "content", "tool_calls", "image_url", "type", "text",
                                                 "function", "arguments"]), documents, max_size=4), max_size=3),
       st.sampled_from(["chat/completions", "embeddings"]))  # fmt: skip
@UNHURRIED
def test_any_prompt_becomes_a_request_or_a_failure_of_its_own(
    name: str, more: dict[str, JSON], messages: list[JSON], endpoint: str
) -> None:
    request: dict[str, JSON] = {"model": "m", **more, "messages": messages}
    prompt = Prompt(id=None, key="0" * 32, source="-", line=1, request=request, endpoint=endpoint)
    made = DIALECTS[name].request("https://h/v1", prompt)
    assert isinstance(made, Request | Failed)
    assert prompt.request["messages"] == messages, "the prompt itself is not touched"
    DIALECTS[name].continued(prompt, "x")


@pytest.mark.slow
def test_fuzz_for_as_long_as_the_environment_says(capsys: pytest.CaptureFixture[str]) -> None:
    ran: Counter[str] = Counter()
    ends_at = time.monotonic() + SECONDS
    number = 0
    names = cycle([*DIALECTS, *["anthropic", "gemini", "responses"] * 5])  # the others share one format
    while time.monotonic() < ends_at:
        fuzz_once(next(names), number, ran)
        number += 1
    with capsys.disabled():
        print(f"\n{ran.total()} examples in {SECONDS:g} s: {dict(ran)}")  # noqa: T201 the figure that was asked for
    assert ran.total() > 0


def fuzz_once(name: str, number: int, ran: Counter[str]) -> None:
    """Some hundred examples of one dialect, others at each number."""

    @seed(number)
    @settings(max_examples=100, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(streams, st.lists(st.integers(0, 400), max_size=5), st.integers(200, 599), headers)
    def fuzz(stream: bytes, cuts: list[int], status: int, told: dict[str, str]) -> None:
        ran[name] += 1
        check(DIALECTS[name], stream, cuts, status, told)

    run: Callable[[], None] = fuzz
    run()
