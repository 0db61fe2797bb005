"""Anthropic, Gemini and the Responses API: byte streams written by hand, over a real socket, and prompts translated."""

from __future__ import annotations

import json
from typing import cast

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from raw_server import Peer, RawServer
from test_upstream import FakePermit, head, piece, whole

from controller.dialects.contract import Request
from controller.dialects.table import DIALECTS
from controller.gate import Permit
from controller.outcome import Answer, Completed, Delta, Failed, Kind, Outcome, Throttled, Usage
from controller.records import Prompt
from controller.sse import Event, Splitter
from controller.transport import Pool
from controller.upstream import Upstream
from policies.contract import JSON, Scope

KEY = "key-0123456789-secret"
PAIR = "\U0001d400"


def prompt_of(endpoint: str = "chat/completions", /, **request: JSON) -> Prompt:
    """A prompt with this request, of the model m."""
    return Prompt(id="a", key="0" * 32, source="-", line=1, request={"model": "m", **request}, endpoint=endpoint)


PROMPT = prompt_of(messages=[{"role": "user", "content": "hi"}])


def sse(*documents: JSON, named: bool = True) -> bytes:
    """These documents as events, with their type as name where they have one."""
    lines = []
    for document in documents:
        kind = document.get("type") if isinstance(document, dict) else None
        lines += [f"event: {kind}\n"] if kind and named else []
        lines.append(f"data: {json.dumps(document)}\n\n")
    return "".join(lines).encode()


# Streams, in three dialects the same text: "Hal" + "lo", after some thinking


def anthropic_start(**usage: JSON) -> dict[str, JSON]:
    """The first event."""
    message: JSON = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-zz", "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 25, "output_tokens": 1, **usage},
    }  # fmt: skip
    return {"type": "message_start", "message": message}


def block(index: int, kind: str, delta: str, *pieces: str, **start: JSON) -> list[JSON]:
    """The events of one block of content."""
    field = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}[delta]
    begun: JSON = {"type": kind, **({"text": ""} if kind == "text" else {}), **start}
    deltas: list[JSON] = [
        {"type": "content_block_delta", "index": index, "delta": {"type": delta, field: piece}} for piece in pieces
    ]
    opened: JSON = {"type": "content_block_start", "index": index, "content_block": begun}
    return [opened, *deltas, {"type": "content_block_stop", "index": index}]


STOP: JSON = {"type": "message_stop"}
PING: JSON = {"type": "ping"}


def ended(reason: str, **usage: JSON) -> JSON:
    """The event before the last."""
    return {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage}


ANTHROPIC: list[JSON] = [
    PING, anthropic_start(cache_read_input_tokens=5), *block(0, "thinking", "thinking_delta", "h", "m"), PING,
    *block(1, "text", "text_delta", "Hal", "lo"), {"type": "news_of_tomorrow"}, ended("end_turn", output_tokens=7),
    ended("end_turn", output_tokens=15), STOP,
]  # fmt: skip


def candidate(finish: str | None = None, index: int = 0, *parts: JSON, **usage: JSON) -> dict[str, JSON]:
    """A chunk of Gemini's."""
    given: dict[str, JSON] = {"index": index, "content": {"role": "model", "parts": [*parts]}}
    if finish:
        given["finishReason"] = finish
    chunk: dict[str, JSON] = {"candidates": [given], "modelVersion": "gemini-zz", "responseId": "r1"}
    return chunk | ({"usageMetadata": usage} if usage else {})


GEMINI: list[JSON] = [
    {"usageMetadata": {"trafficType": "ON_DEMAND"}},
    candidate(None, 0, {"text": "h", "thought": True}, promptTokenCount=30, totalTokenCount=30),
    candidate(None, 0, {"text": "m", "thought": True}, {"text": "Hal"}, promptTokenCount=30, thoughtsTokenCount=2),
    candidate("STOP", 0, {"text": "lo"}, promptTokenCount=30, candidatesTokenCount=13, thoughtsTokenCount=2),
]  # fmt: skip


def delta(kind: str, text: str) -> dict[str, JSON]:
    """A piece of text in the Responses API."""
    return {"type": f"response.{kind}.delta", "item_id": "msg_1", "output_index": 0, "delta": text}


def terminal(status: str, text: str = "Hallo", **more: JSON) -> dict[str, JSON]:
    """The last event."""
    output: JSON = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]},
    ]
    usage: JSON = {"input_tokens": 30, "output_tokens": 15, "total_tokens": 45}
    body: dict[str, JSON] = {"id": "resp_1", "object": "response", "model": "gpt-zz", "status": status}
    response: JSON = {**body, "error": None, "output": output, "usage": usage, **more}
    return {"type": f"response.{status}", "response": response}


RESPONSES: list[JSON] = [
    {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress", "output": [], "usage": None}},
    delta("reasoning_summary_text", "hm"), {"type": "keepalive"}, delta("output_text", "Hal"),
    delta("output_text", "lo"), terminal("completed"),
]  # fmt: skip
STREAMS: dict[str, list[JSON]] = {"anthropic": ANTHROPIC, "gemini": GEMINI, "responses": RESPONSES}
PATHS = {
    "anthropic": "/v1/messages",
    "gemini": "/v1beta/models/m:streamGenerateContent?alt=sse",
    "responses": "/v1/responses",
}
HEADERS = {
    "anthropic": f"x-api-key: {KEY}",
    "gemini": f"x-goog-api-key: {KEY}",
    "responses": f"authorization: Bearer {KEY}",
}


async def attempt(
    nursery: trio.Nursery, answer: bytes, dialect: str, prompt: Prompt = PROMPT
) -> tuple[Outcome, list[bytes]]:
    """What an attempt makes of this answer, and what the server saw."""
    requests: list[bytes] = []

    async def handler(peer: Peer) -> None:
        while (request := await peer.request()) is not None:
            requests.append(request)
            await peer.send(answer)

    server = await RawServer(handler).start(nursery)
    base = f"http://127.0.0.1:{server.port}" + ("/v1" if dialect == "responses" else "")
    async with Upstream(transport=Pool(), base_url=base, dialect=DIALECTS[dialect], key=KEY) as upstream:
        with trio.fail_after(5):
            outcome = await upstream.attempt(prompt, cast(Permit, FakePermit()))
    nursery.cancel_scope.cancel()
    return outcome, requests


@pytest.mark.parametrize("dialect", STREAMS)
async def test_a_stream_becomes_a_completed_answer(nursery: trio.Nursery, dialect: str) -> None:
    outcome, requests = await attempt(nursery, whole(sse(*STREAMS[dialect])), dialect)
    assert isinstance(outcome, Completed)
    answer = outcome.answer
    assert (answer.text, answer.reasoning, answer.finish_reason) == ("Hallo", "hm", "stop")
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (30, 15)
    assert answer.model is not None
    head = requests[0].partition(b"\r\n\r\n")[0].decode()
    assert head.startswith(f"POST {PATHS[dialect]} HTTP/1.1\r\n")
    assert HEADERS[dialect] in head
    assert KEY not in head.partition("\r\n")[0], "a key never stands in a URL"


def fold(dialect: str, *documents: JSON) -> Answer | Failed | Throttled:
    """What these events come to at a clean end."""
    folding = DIALECTS[dialect].fold()
    for event in Splitter().feed(sse(*documents)):
        if refused := folding.feed(event):
            return refused
    return folding.end()


def answer_of(dialect: str, *documents: JSON) -> Answer:
    """The same, where it must be an answer."""
    answer = fold(dialect, *documents)
    assert isinstance(answer, Answer), answer
    return answer


@pytest.mark.parametrize("dialect", STREAMS)
def test_the_body_is_what_a_plain_request_would_have_given(dialect: str) -> None:
    streamed = answer_of(dialect, *STREAMS[dialect])
    plain = DIALECTS[dialect].classify(200, {}, json.dumps(streamed.body).encode(), wall_now=0.0)
    assert plain == Completed(answer=streamed)
    bodies: dict[str, JSON] = {
        "anthropic": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Hallo"}],
        "gemini": [{"text": "hm", "thought": True}, {"text": "Hallo"}],
        "responses": None,
    }
    if dialect != "responses":
        assert json.dumps(bodies[dialect]) in json.dumps(streamed.body)


@pytest.mark.parametrize("dialect", STREAMS)
def test_a_stream_cut_anywhere_is_no_answer(dialect: str) -> None:
    whole_stream = STREAMS[dialect]
    last = {"anthropic": 2, "gemini": 1, "responses": 1}[dialect]  # events that are proof, each by itself, at the end
    first = next(number for number, event in enumerate(whole_stream) if event != PING) + 1
    for length in range(first, len(whole_stream) - last):
        end = fold(dialect, *whole_stream[:length])
        assert isinstance(end, Failed)
        assert end.kind is Kind.TRUNCATED


@pytest.mark.parametrize("dialect", STREAMS)
def test_fresh_tells_every_piece_once_and_in_order(dialect: str) -> None:
    folding, told = DIALECTS[dialect].fold(), list[Delta]()
    for event in Splitter().feed(sse(*STREAMS[dialect])):
        folding.feed(event)
        told += folding.fresh()
    assert "".join(delta.text for delta in told if not delta.reasoning) == "Hallo"
    assert "".join(delta.text for delta in told if delta.reasoning) == "hm"
    assert all(delta.text and delta.index == 0 for delta in told)
    assert folding.fresh() == []


@pytest.mark.parametrize("dialect", STREAMS)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20), size=st.integers(1, 3))
def test_a_text_cut_between_utf16_units_is_joined(dialect: str, text: str, size: int) -> None:
    raw = text.encode("utf-16-le")
    pieces = [raw[at : at + 2 * size].decode("utf-16-le", "surrogatepass") for at in range(0, len(raw), 2 * size)]
    streams: dict[str, list[JSON]] = {
        "anthropic": [anthropic_start(), *block(0, "text", "text_delta", *pieces), ended("end_turn"), STOP],
        "gemini": [*(candidate(None, 0, {"text": piece}) for piece in pieces), candidate("STOP")],
        "responses": [*(delta("output_text", piece) for piece in pieces), terminal("completed", output=[])],
    }
    answer = answer_of(dialect, *streams[dialect])
    assert answer.text == text
    assert json.dumps(answer.body, ensure_ascii=False).encode()
    folding = DIALECTS[dialect].fold()
    for event in Splitter().feed(sse(*streams[dialect])):
        folding.feed(event)
    assert "".join(delta.text for delta in folding.fresh()) == text


ODD: list[JSON] = [None, 7, "x", [], {}, {"type": "unheard_of"}, {"error": None}]


@pytest.mark.parametrize("dialect", STREAMS)
def test_odd_events_between_are_skipped(dialect: str) -> None:
    mixed = [each for document in STREAMS[dialect] for each in (*ODD, document)]
    assert answer_of(dialect, *mixed).text == "Hallo"


@pytest.mark.parametrize("dialect", STREAMS)
async def test_documents_glued_together_in_one_event_are_each_read(nursery: trio.Nursery, dialect: str) -> None:
    glued = "data: " + "".join(map(json.dumps, STREAMS[dialect])) + "\n\n"
    outcome, _ = await attempt(nursery, whole(glued.encode()), dialect)
    assert isinstance(outcome, Completed)
    assert outcome.answer.text == "Hallo"


@pytest.mark.parametrize("dialect", STREAMS)
@pytest.mark.parametrize(
    "answer",
    [whole(b""), whole(b"<html><p>hi</p></html>", media="text/html"), whole(b"{}", media="application/json")],
)
async def test_an_empty_answer_or_a_page_is_malformed(nursery: trio.Nursery, dialect: str, answer: bytes) -> None:
    outcome, _ = await attempt(nursery, answer, dialect)
    assert isinstance(outcome, Failed)
    assert outcome.kind is Kind.MALFORMED


@pytest.mark.parametrize("dialect", STREAMS)
def test_an_event_that_is_no_json_is_malformed(dialect: str) -> None:
    folding = DIALECTS[dialect].fold()
    assert isinstance(failure := folding.feed(Event(data="{]")), Failed)
    assert failure.kind is Kind.MALFORMED
    assert folding.finished


# Errors inside a 200


def anthropic_error(kind: str, message: str = "m") -> dict[str, JSON]:
    """An error event; C21: https://github.com/anthropics/anthropic-sdk-python/issues/1258"""
    return {"type": "error", "error": {"details": None, "type": kind, "message": message}, "request_id": "req_1"}


def google_error(code: int, status: str, *details: JSON, message: str = "m") -> dict[str, JSON]:
    """An error in Google's form."""
    return {"error": {"code": code, "message": message, "status": status, "details": [*details]}}


def responses_failed(code: str) -> dict[str, JSON]:
    """A response that failed."""
    return terminal("failed", error={"code": code, "message": "m"}, output=[])


@pytest.mark.parametrize("begun", [False, True], ids=["first", "later"])  # C22: it may be the very first event
@pytest.mark.parametrize(
    ("dialect", "document", "expected"),
    [
        ("anthropic", anthropic_error("overloaded_error"), Scope.OVERLOAD),
        ("anthropic", anthropic_error("rate_limit_error"), Scope.UNKNOWN),
        ("anthropic", anthropic_error("api_error"), Kind.SERVER),
        ("anthropic", anthropic_error("timeout_error"), Kind.SERVER),
        ("anthropic", anthropic_error("invalid_request_error"), Kind.PROMPT),
        ("anthropic", anthropic_error("authentication_error"), Kind.FATAL),
        ("anthropic", anthropic_error("billing_error"), Kind.FATAL),
        ("gemini", google_error(429, "RESOURCE_EXHAUSTED"), Scope.UNKNOWN),
        ("gemini", google_error(503, "UNAVAILABLE"), Scope.OVERLOAD),
        ("gemini", google_error(500, "INTERNAL"), Kind.SERVER),
        ("gemini", google_error(499, "CANCELLED"), Kind.SERVER),
        ("gemini", google_error(400, "INVALID_ARGUMENT"), Kind.PROMPT),
        ("gemini", google_error(403, "PERMISSION_DENIED"), Kind.FATAL),
        ("responses", {"type": "error", "code": "rate_limit_exceeded", "message": "m"}, Scope.UNKNOWN),
        ("responses", {"type": "error", "error": {"code": "server_error", "message": "m"}}, Kind.SERVER),
        ("responses", responses_failed("rate_limit_exceeded"), Scope.UNKNOWN),
        ("responses", responses_failed("server_error"), Kind.SERVER),
        ("responses", responses_failed("invalid_prompt"), Kind.PROMPT),
        ("responses", terminal("cancelled"), Kind.SERVER),
    ],
)
def test_an_error_inside_a_stream_is_classed_by_itself_and_not_by_the_200(
    dialect: str, document: JSON, expected: Scope | Kind, begun: bool
) -> None:
    before = STREAMS[dialect][:3] if begun else []
    outcome = fold(dialect, *before, document)
    assert not isinstance(outcome, Answer)
    assert (outcome.scope if isinstance(outcome, Throttled) else outcome.kind) is expected
    assert outcome.message.startswith(("m", "the response is cancelled"))


async def test_an_error_over_many_lines_in_the_middle_of_a_stream_explains_its_end(nursery: trio.Nursery) -> None:
    # C06: https://github.com/googleapis/python-genai/issues/1162
    retry: JSON = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.07s"}
    error = json.dumps([google_error(429, "RESOURCE_EXHAUSTED", retry)], indent=2).encode()
    outcome, _ = await attempt(nursery, whole(sse(GEMINI[1]) + error + b"\n"), "gemini")
    assert isinstance(outcome, Throttled)
    assert outcome.retry_after == 34.07


# What is Anthropic's own


def test_anthropic_usage_is_merged_and_never_summed() -> None:
    # C80: https://github.com/griptape-ai/griptape/issues/2275
    start = anthropic_start(cache_creation_input_tokens=3, cache_read_input_tokens=2)
    answer = answer_of(
        "anthropic",
        start,
        ended("end_turn", output_tokens=7),
        ended("end_turn", input_tokens=26, output_tokens=15),
        STOP,
    )
    assert answer.usage == Usage(
        input_tokens=31, output_tokens=15, details={"cache_creation_input_tokens": 3, "cache_read_input_tokens": 2}
    )


def test_a_stop_reason_and_a_clean_end_are_proof_enough_without_message_stop() -> None:
    assert answer_of("anthropic", *ANTHROPIC[:-1]).text == "Hallo"


def test_tool_use_comes_together_from_pieces_of_json() -> None:
    pieces = block(0, "tool_use", "input_json_delta", '{"city": "K', 'yiv"}', id="t1", name="weather", input={})
    answer = answer_of("anthropic", anthropic_start(), *pieces, ended("tool_use"), STOP)
    assert answer.body["content"] == [{"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Kyiv"}}]
    assert answer.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("max_tokens", "length"), ("refusal", "content_filter"), ("pause_turn", "pause_turn"), ("stop_sequence", "stop")],
)
def test_anthropic_stop_reasons_are_recorded_even_without_text(reason: str, expected: str) -> None:
    answer = answer_of("anthropic", anthropic_start(), ended(reason), STOP)
    assert (answer.text, answer.finish_reason) == ("", expected)


def test_message_stop_with_nothing_before_it_is_malformed() -> None:
    assert isinstance(end := fold("anthropic", STOP), Failed)
    assert end.kind is Kind.MALFORMED


def test_anthropic_announces_four_limits_with_instants() -> None:
    headers = {
        "date": "Mon, 21 Sep 2026 14:13:20 GMT", "anthropic-ratelimit-requests-limit": "1000",
        "anthropic-ratelimit-requests-remaining": "998", "anthropic-ratelimit-requests-reset": "2026-09-21T14:13:23Z",
        "anthropic-ratelimit-input-tokens-limit": "40000", "anthropic-ratelimit-input-tokens-remaining": "0",
        "anthropic-ratelimit-tokens-remaining": "0",
    }  # fmt: skip
    hints = DIALECTS["anthropic"].hints(headers)
    assert (hints["requests"].limit, hints["requests"].reset, hints["requests"].period) == (1000, 3.0, 60.0)
    body = json.dumps(anthropic_error("rate_limit_error")).encode()
    refused = DIALECTS["anthropic"].classify(429, headers | {"retry-after": "12"}, body, wall_now=0.0)
    assert isinstance(refused, Throttled)
    assert (refused.dimension, refused.period, refused.retry_after) == ("input_tokens", 60.0, 12.0)


# What is Gemini's own


def test_an_answer_of_nothing_but_thoughts_is_finished() -> None:
    # C24: https://github.com/stanford-crfm/helm/pull/3804
    chunk: JSON = {
        "candidates": [{"content": {"role": "model"}, "finishReason": "MAX_TOKENS", "index": 0}],
        "usageMetadata": {"promptTokenCount": 5, "thoughtsTokenCount": 40},
    }
    answer = answer_of("gemini", chunk)
    assert (answer.text, answer.finish_reason) == ("", "length")
    assert answer.usage is not None
    assert answer.usage.output_tokens == 40


@pytest.mark.parametrize("plain", [False, True])
def test_a_blocked_prompt_is_the_prompts_failure(plain: bool) -> None:
    body: JSON = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 5}}
    outcome: object = fold("gemini", body)
    if plain:
        outcome = DIALECTS["gemini"].classify(200, {}, json.dumps(body).encode(), wall_now=0.0)
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.code, outcome.status) == (Kind.PROMPT, "SAFETY", 200)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("SAFETY", "content_filter"), ("MALFORMED_FUNCTION_CALL", "MALFORMED_FUNCTION_CALL"), ("NEW_ONE", "NEW_ONE")],
)
def test_a_finish_reason_of_geminis_is_recorded_even_without_content(reason: str, expected: str) -> None:
    answer = answer_of("gemini", {"candidates": [{"finishReason": reason}]})
    assert (answer.text, answer.finish_reason) == ("", expected)


def test_candidates_are_kept_apart_by_index_and_all_must_finish() -> None:
    chunks: list[JSON] = [
        candidate(None, 1, {"text": "b"}), candidate(None, 0, {"text": "a"}), candidate("STOP", 0, {"text": "A"}),
    ]  # fmt: skip
    assert isinstance(fold("gemini", *chunks), Failed)
    answer = answer_of("gemini", *chunks, candidate("STOP", 1, {"text": "B"}))
    assert answer.text == "aA"
    candidates = answer.body["candidates"]
    assert isinstance(candidates, list)
    assert [one["content"]["parts"] for one in candidates] == [[{"text": "aA"}], [{"text": "bB"}]]  # type: ignore[index,call-overload]


def test_parts_that_are_no_text_keep_their_place() -> None:
    call: JSON = {"functionCall": {"name": "f", "args": {"x": 1}}}
    answer = answer_of("gemini", candidate(None, 0, {"text": "a"}, call), candidate("STOP", 0, {"text": "b"}))
    assert (answer.text, answer.finish_reason) == ("ab", "tool_calls")
    assert json.dumps([{"text": "a"}, call, {"text": "b"}]) in json.dumps(answer.body)


def test_a_stream_without_sse_is_a_list_of_chunks() -> None:
    outcome = DIALECTS["gemini"].classify(200, {}, json.dumps(GEMINI, indent=1).encode(), wall_now=0.0)
    assert isinstance(outcome, Completed)
    assert outcome.answer.text == "Hallo"


@pytest.mark.parametrize(
    ("quotas", "kind"), [(["GenerateRequestsPerMinutePerProjectPerModel"], None), (["X", "RequestsPerDay"], Kind.FATAL)]
)
def test_a_quota_per_day_wins_over_a_short_delay(quotas: list[str], kind: Kind | None) -> None:
    # C51: https://github.com/google-gemini/gemini-cli/issues/10925
    failure: JSON = {"@type": "x/google.rpc.QuotaFailure", "violations": [{"quotaId": name} for name in quotas]}
    retry: JSON = {"@type": "x/google.rpc.RetryInfo", "retryDelay": "22s"}
    body = json.dumps([google_error(429, "RESOURCE_EXHAUSTED", failure, retry)]).encode()
    outcome = DIALECTS["gemini"].classify(429, {}, body, wall_now=0.0)
    if kind is None:
        assert isinstance(outcome, Throttled)
        assert (outcome.dimension, outcome.period, outcome.retry_after) == ("requests", 60.0, 22.0)
    else:
        assert isinstance(outcome, Failed)
        assert outcome.kind is kind


async def test_a_socket_held_open_after_the_last_chunk_neither_delays_nor_fails(nursery: trio.Nursery) -> None:
    # C08: https://github.com/ltmoerdani/opencode-copilot-chat/pull/170
    outcome, _ = await attempt(nursery, head() + piece(sse(*GEMINI)), "gemini")
    assert isinstance(outcome, Completed)
    assert outcome.answer.text == "Hallo"


def test_all_candidates_that_were_asked_for_and_their_counts_are_waited_for() -> None:
    two = prompt_of(messages=[], n=2)
    folding = DIALECTS["gemini"].fold(two)
    chunks: list[JSON] = [
        candidate("STOP", 0, {"text": "a"}, candidatesTokenCount=1), candidate("STOP", 1, {"text": "b"}),
        {"usageMetadata": {"candidatesTokenCount": 2}},
    ]  # fmt: skip
    seen = []
    for event in Splitter().feed(sse(*chunks)):
        folding.feed(event)
        seen.append(folding.finished)
    assert seen == [False, False, True]
    assert isinstance(end := folding.end(), Answer)
    assert end.usage == Usage(output_tokens=2)


# What is the Responses API's own


@pytest.mark.parametrize(
    ("reason", "expected"), [("max_output_tokens", "length"), ("content_filter", "content_filter")]
)
def test_an_incomplete_response_is_an_answer_with_its_reason(reason: str, expected: str) -> None:
    answer = answer_of("responses", terminal("incomplete", incomplete_details={"reason": reason}))
    assert (answer.text, answer.finish_reason) == ("Hallo", expected)


def test_the_terminal_event_makes_good_for_deltas_that_were_lost() -> None:
    folding = DIALECTS["responses"].fold()
    for event in Splitter().feed(sse(delta("output_text", "Hal"), terminal("completed"))):
        folding.feed(event)
    assert [piece.text for piece in folding.fresh()] == ["Hal", "lo"]
    assert isinstance(end := folding.end(), Answer)
    assert end.text == "Hallo"


def test_reasoning_that_the_terminal_event_leaves_out_is_taken_from_the_deltas() -> None:
    message: JSON = {"type": "message", "content": [{"type": "output_text", "text": "Hallo"}]}
    for output in ([message], []):
        events = [delta("reasoning_text", "h"), delta("reasoning_text", "m"), delta("output_text", "Hallo")]
        answer = answer_of("responses", *events, terminal("completed", output=output))
        assert (answer.text, answer.reasoning) == ("Hallo", "hm")


def test_a_refusal_is_the_text() -> None:
    output: JSON = [{"type": "message", "content": [{"type": "refusal", "refusal": "no"}]}]
    assert answer_of("responses", delta("refusal", "no"), terminal("completed", output=output)).text == "no"


# Prompts


def body_of(dialect: str, prompt: Prompt, base: str = "https://h") -> dict[str, JSON]:
    """The body that would be sent."""
    request = DIALECTS[dialect].request(base, prompt)
    assert isinstance(request, Request), request
    body: dict[str, JSON] = json.loads(request.body)
    return body


PICTURE: JSON = {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,AAAA"}}
CALL: JSON = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
SCHEMA: JSON = {"type": "object", "properties": {}}
RICH = prompt_of(
    messages=[
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "what is it?"}, PICTURE]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "a cat"},
    ],
    max_tokens=50,
    temperature=0.5,
    stop="END",
    tools=[{"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}],
    tool_choice="required",
    stream_options={"include_usage": True},
    n=1,
)


def test_a_prompt_in_anthropics_form() -> None:
    assert body_of("anthropic", RICH) == {
        "model": "m", "stream": True, "system": "be brief", "max_tokens": 50, "temperature": 0.5,
        "stop_sequences": ["END"], "tool_choice": {"type": "any"},
        "tools": [{"name": "f", "description": "d", "input_schema": SCHEMA}],
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "what is it?"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "AAAA"}}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "f", "input": {"x": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "a cat"}]},
        ],
    }  # fmt: skip


def test_a_prompt_in_geminis_form() -> None:
    assert body_of("gemini", RICH) == {
        "systemInstruction": {"parts": [{"text": "be brief"}]},
        "generationConfig": {"temperature": 0.5, "maxOutputTokens": 50, "stopSequences": ["END"]},
        "tools": [{"functionDeclarations": [{"name": "f", "description": "d", "parametersJsonSchema": SCHEMA}]}],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY"}},
        "contents": [
            {"role": "user", "parts": [
                {"text": "what is it?"}, {"inlineData": {"mimeType": "image/jpeg", "data": "AAAA"}}]},
            {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {"x": 1}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"result": "a cat"}}}]},
        ],
    }  # fmt: skip


def test_a_prompt_in_the_form_of_the_responses_api() -> None:
    assert body_of("responses", RICH) == {
        "model": "m", "stream": True, "max_output_tokens": 50, "temperature": 0.5, "stop": "END",
        "tool_choice": "required",
        "tools": [{"type": "function", "name": "f", "description": "d", "parameters": SCHEMA}],
        "input": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [
                {"type": "input_text", "text": "what is it?"},
                {"type": "input_image", "image_url": "data:image/jpeg;base64,AAAA"}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"x": 1}'},
            {"type": "function_call_output", "call_id": "c1", "output": "a cat"},
        ],
    }  # fmt: skip


def test_anthropic_gets_a_limit_of_tokens_in_any_case() -> None:
    assert body_of("anthropic", PROMPT)["max_tokens"] == 4096


def test_native_parameters_go_as_they_are() -> None:
    thinking: JSON = {"type": "enabled", "budget_tokens": 2000}
    assert body_of("anthropic", prompt_of(messages=[], thinking=thinking))["thinking"] == thinking
    config: JSON = {"temperature": 1.0, "thinkingConfig": {"thinkingBudget": 0}}
    safety: JSON = [{"category": "X", "threshold": "OFF"}]
    body = body_of("gemini", prompt_of(messages=[], temperature=0.1, generationConfig=config, safetySettings=safety))
    assert (body["generationConfig"], body["safetySettings"]) == (config, safety)
    contents: JSON = [{"role": "user", "parts": [{"text": "native"}]}]
    assert body_of("gemini", prompt_of(messages=[], contents=contents))["contents"] == contents


@pytest.mark.parametrize(
    ("dialect", "prompt", "words"),
    [
        ("anthropic", prompt_of("embeddings", input="x"), "no embeddings"),
        ("anthropic", prompt_of(messages=[{"role": "wizard", "content": "x"}]), "the role 'wizard'"),
        ("anthropic", prompt_of(messages=[{"role": "user", "content": 7}]), "neither text nor a list"),
        ("anthropic", prompt_of(messages=[{"role": "user", "content": [{"type": "input_audio"}]}]), "input_audio"),
        ("gemini", prompt_of(model=None, messages=[]), "give --model"),
        ("gemini", prompt_of(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), "has no url"),
        ("gemini", prompt_of(messages=[], tool_choice=7), "tool_choice"),
        ("responses", prompt_of("embeddings", input="x"), "dialect openai"),
    ],
)
async def test_a_prompt_that_cannot_be_put_fails_by_itself_and_sends_nothing(
    nursery: trio.Nursery, dialect: str, prompt: Prompt, words: str
) -> None:
    outcome, requests = await attempt(nursery, b"", dialect, prompt)
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.sent, requests) == (Kind.PROMPT, False, [])
    assert words in outcome.message


def test_an_answer_is_continued_where_the_dialect_knows_how() -> None:
    more = DIALECTS["anthropic"].continued(PROMPT, "Hal lo \n")
    assert more is not None
    assert body_of("anthropic", more)["messages"] == [
        {"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hal lo"}
    ]  # fmt: skip
    assert DIALECTS["anthropic"].continued(PROMPT, " \n") is None
    more = DIALECTS["gemini"].continued(PROMPT, "Hal ")
    assert more is not None
    contents = body_of("gemini", more)["contents"]
    assert isinstance(contents, list)
    assert contents[-1] == {"role": "model", "parts": [{"text": "Hal "}]}
    assert DIALECTS["responses"].continued(PROMPT, "Hal") is None


@pytest.mark.parametrize(
    ("dialect", "base", "streamed", "url"),
    [
        ("anthropic", "https://api.anthropic.com", True, "https://api.anthropic.com/v1/messages"),
        ("anthropic", "https://h/anthropic/v1", True, "https://h/anthropic/v1/messages"),
        ("gemini", "https://g", True, "https://g/v1beta/models/m:streamGenerateContent?alt=sse"),
        ("gemini", "https://g/v1beta", False, "https://g/v1beta/models/m:generateContent"),
        ("vertex", "https://v/v1/projects/p/locations/l", True,
         "https://v/v1/projects/p/locations/l/publishers/google/models/m:streamGenerateContent?alt=sse"),
        ("azure", "https://a/openai/deployments/d?api-version=2025-01-01", True,
         "https://a/openai/deployments/d/chat/completions?api-version=2025-01-01"),
        ("azure", "https://a/openai/deployments/d", True,
         "https://a/openai/deployments/d/chat/completions?api-version=2024-10-21"),
        ("azure", "https://a", True, "https://a/openai/v1/chat/completions"),
        ("azure", "https://a/openai/v1", True, "https://a/openai/v1/chat/completions"),
        ("azure-responses", "https://a", True, "https://a/openai/v1/responses"),
    ],
)  # fmt: skip
def test_the_url_is_the_providers(dialect: str, base: str, streamed: bool, url: str) -> None:
    request = DIALECTS[dialect].request(base, prompt_of(messages=[], **({} if streamed else {"stream": False})))
    assert isinstance(request, Request)
    assert (request.url, request.streamed) == (url, streamed)
