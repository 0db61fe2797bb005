"""The OpenAI dialect: what answers and errors mean, and that a stream folds into what a plain request returns."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.dialects.openai_chat import OpenAIChat
from controller.dialects.table import DIALECTS, dialect_for
from controller.outcome import Answer, Completed, Failed, Kind, Outcome, Throttled
from controller.records import Prompt
from controller.sse import Event
from policies.contract import JSON, Scope

DIALECT = OpenAIChat()
NAMES = [
    "id", "model", "choices", "index", "delta", "message", "content", "refusal", "tool_calls", "function", "arguments",
    "logprobs", "finish_reason", "usage", "prompt_tokens", "error", "code", "type", "status", "details", "metadata",
    "violations", "quotaId", "x_groq", "object", "detail", "data", "created", "native_finish_reason", "innererror",
]  # fmt: skip
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-2, 600)
    | st.floats()
    | st.sampled_from(["", "stop", "error", "429", "tokens", "\ud835", "[DONE]", "chat.completion.chunk"])
)
documents: st.SearchStrategy[JSON] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=6),
    max_leaves=25,
)


def request_of(prompt_request: dict[str, JSON], endpoint: str = "chat/completions") -> Prompt:
    """A prompt with this body."""
    return Prompt(id=None, key="0" * 32, source="-", line=1, request=prompt_request, endpoint=endpoint)


def fold(*documents: JSON, done: bool = True) -> Answer | Failed | Throttled:
    """What these chunks come to; an error ends them, as in upstream.py."""
    folding = DIALECT.fold()
    for document in documents:
        if refused := folding.feed(Event(data=json.dumps(document))):
            return refused
    if done:
        assert folding.feed(Event(data="[DONE]")) is None
        assert folding.finished
    return folding.end()


def choice(finish: str | None = None, index: int = 0, **delta: JSON) -> dict[str, JSON]:
    """A chunk with one choice."""
    return {"id": "c", "model": "m", "choices": [{"index": index, "delta": {**delta}, "finish_reason": finish}]}


def classify(status: int, body: JSON | bytes, **headers: str) -> Outcome:
    """What an answer that is no stream means."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return DIALECT.classify(status, names, raw, wall_now=0.0)


# Laws


@given(st.lists(documents, max_size=6), st.booleans(), st.booleans())
@settings(max_examples=150)
def test_no_json_in_a_stream_makes_the_fold_raise(items: list[JSON], done: bool, named: bool) -> None:
    folding = DIALECT.fold()
    for item in items:
        folding.feed(Event(data=json.dumps(item), name="error" if named else "message"))
    if done:
        folding.feed(Event(data="[DONE]"))
    end = folding.end()
    assert isinstance(end, Answer | Failed)
    json.dumps(end.body)


@given(st.text(max_size=40), st.booleans())
def test_no_text_in_a_stream_makes_the_fold_raise(text: str, complete: bool) -> None:
    folding = DIALECT.fold()
    folding.feed(Event(data=text, complete=complete))
    folding.end()


@given(st.integers(200, 599), st.binary(max_size=80) | documents.map(lambda item: json.dumps(item).encode()))
@settings(max_examples=300)
def test_no_bytes_make_classify_raise(status: int, body: bytes) -> None:
    outcome = DIALECT.classify(status, {"retry-after": "5"}, body, wall_now=0.0)
    assert status < 300 or not isinstance(outcome, Completed)
    if not isinstance(outcome, Completed):
        outcome.message.encode()
        assert "\n" not in outcome.message
        assert len(outcome.message) < 400


@pytest.mark.parametrize("depth", [90, 500, 100_000])
def test_json_nested_without_end_is_survived(depth: int) -> None:
    nested = b'{"choices":[{"delta":' + b"[" * depth + b"]" * depth + b"}]}"
    folding = DIALECT.fold()
    folding.feed(Event(data=nested.decode()))
    json.dumps(folding.end().body)
    DIALECT.classify(200, {}, nested, wall_now=0.0)
    DIALECT.classify(400, {}, b"[" * depth, wall_now=0.0)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(texts, texts, st.lists(texts, max_size=3), st.lists(st.integers(1, 5), min_size=1), st.integers(1, 3))
def test_a_stream_folds_into_the_body_of_a_plain_answer(
    content: str, reasoning: str, arguments: list[str], sizes: list[int], width: int
) -> None:
    calls: list[JSON] = [
        {"id": f"call_{number}", "type": "function", "function": {"name": "f", "arguments": text}}
        for number, text in enumerate(arguments)
    ]
    message: dict[str, JSON] = {"role": "assistant", "content": content, "reasoning_content": reasoning}
    if calls:
        message["tool_calls"] = calls
    tokens: list[JSON] = [{"token": letter, "logprob": -0.5, "bytes": [1]} for letter in content]
    plain: dict[str, JSON] = {
        "id": "chatcmpl-1", "created": 1_790_000_000, "model": "m", "system_fingerprint": "fp",
        "service_tier": "default", "object": "chat.completion",
        "choices": [
            {"index": index, "message": message, "logprobs": {"content": tokens, "refusal": None},
             "finish_reason": "stop"}
            for index in range(width)
        ],
        "usage": {"prompt_tokens": 9, "completion_tokens": 3, "completion_tokens_details": {"reasoning_tokens": 1}},
    }  # fmt: skip
    assert_streamed_equals_plain(plain, sizes)


def assert_streamed_equals_plain(plain: dict[str, JSON], sizes: list[int]) -> None:
    """Cut the plain answer into chunks, fold them, compare."""
    streamed = fold(*chunks_of(plain, sizes))
    outcome = DIALECT.classify(200, {}, json.dumps(plain).encode(), wall_now=0.0)
    assert isinstance(streamed, Answer)
    assert streamed.body == plain
    assert isinstance(outcome, Completed)
    assert streamed == outcome.answer


def pieces(text: str, sizes: list[int]) -> list[str]:
    """The text in pieces of these sizes, cut between UTF-16 units, as a server in JavaScript would."""
    raw, cut, turn = text.encode("utf-16-le"), [], 0
    while raw:
        size = 2 * sizes[turn % len(sizes)]
        cut.append(raw[:size].decode("utf-16-le", "surrogatepass"))
        raw, turn = raw[size:], turn + 1
    return cut or [""]


def chunks_of(plain: dict[str, JSON], sizes: list[int]) -> list[JSON]:
    """A stream that says the same, choices interleaved."""
    top = {key: value for key, value in plain.items() if key not in ("choices", "usage", "object")}
    choices = plain["choices"]
    assert isinstance(choices, list)
    deltas = [list(deltas_of(one, sizes)) for one in choices if isinstance(one, dict)]
    longest = max(map(len, deltas))
    stream: list[JSON] = [{"id": "", "model": "", "created": 0, "choices": [], "prompt_filter_results": []}]
    for step in range(longest):
        stream += [{**top, "choices": [one[step]], "usage": None} for one in deltas if step < len(one)]
    return [*stream, {**top, "choices": [], "usage": plain["usage"]}]


def deltas_of(one: dict[str, JSON], sizes: list[int]) -> list[JSON]:
    """The choice of each chunk."""
    message, logprobs = one["message"], one["logprobs"]
    assert isinstance(message, dict)
    assert isinstance(logprobs, dict)
    assert isinstance(logprobs["content"], list)
    deltas: list[dict[str, JSON]] = [{"role": "assistant", "content": ""}]
    for name in ("reasoning_content", "content"):
        deltas += [{name: piece} for piece in pieces(str(message[name]), sizes)]
    calls = message.get("tool_calls", [])
    assert isinstance(calls, list)
    for index, call in enumerate(calls):
        assert isinstance(call, dict)
        function = call["function"]
        assert isinstance(function, dict)
        deltas.append({"tool_calls": [{"index": index, **call, "function": {"name": "f", "arguments": ""}}]})
        for piece in pieces(str(function["arguments"]), sizes):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    place = {"index": one["index"]}
    chunks: list[JSON] = [{**place, "delta": delta, "finish_reason": None} for delta in deltas]
    chunks += [{**place, "delta": {}, "logprobs": {"content": [token]}} for token in logprobs["content"]]
    empty: JSON = {**place, "delta": {}, "logprobs": {"content": [], "refusal": None}}
    return [*chunks, empty, {**place, "delta": {}, "finish_reason": "stop"}]


# Streams


def test_usage_is_the_last_that_came_and_never_a_sum() -> None:
    # C80: https://github.com/tensorzero/tensorzero/issues/5481
    folding = DIALECT.fold()
    for count in range(1, 100):
        folding.feed(Event(data=json.dumps({"choices": [], "usage": {"completion_tokens": count}})))
        assert folding.usage is not None
        assert folding.usage.output_tokens == count
    folding.feed(Event(data=json.dumps(choice("stop", content="x") | {"usage": None})))
    assert folding.usage is not None
    assert folding.usage.output_tokens == 99


def test_halves_of_a_surrogate_pair_join_and_an_orphan_is_replaced() -> None:
    # C99: https://github.com/strands-rl/strands-env/pull/211
    answer = fold(choice(content="\ud835"), choice(content="\udc00 \ud800"), choice("stop"))
    assert isinstance(answer, Answer)
    assert answer.text == "\U0001d400 \ufffd"
    assert json.dumps(answer.body, ensure_ascii=False).encode()


def test_empty_choices_and_an_empty_model_are_skipped() -> None:
    # C14: https://github.com/TheR1D/shell_gpt/issues/457
    answer = fold({"id": "", "model": "", "choices": [], "prompt_filter_results": [1]}, choice("stop", content="x"))
    assert isinstance(answer, Answer)
    assert (answer.model, answer.body["id"]) == ("m", "c")


@pytest.mark.parametrize("weird", [{"choices": None}, {"choices": [{}]}, {"choices": [None, 3]}, 7, [], {}, "x", None])
def test_weird_chunks_are_skipped(weird: JSON) -> None:
    answer = fold(weird, choice("stop", content="x"), weird)
    assert isinstance(answer, Answer)
    assert answer.text == "x"


def test_a_stream_that_merely_stops_is_truncated() -> None:
    # C10: https://github.com/vercel/ai/issues/19165
    end = fold(choice(content="Hal"), done=False)
    assert isinstance(end, Failed)
    assert end.kind is Kind.TRUNCATED


def test_a_finish_reason_on_every_choice_is_proof_enough_without_done() -> None:
    assert isinstance(fold(choice("stop", content="a"), done=False), Answer)
    two = (choice("stop", content="a"), choice(None, index=1, content="b"))
    assert isinstance(fold(*two, done=False), Failed)
    assert isinstance(fold(*two, done=True), Answer)


def test_done_with_nothing_before_it_is_malformed() -> None:
    streams: list[list[JSON]] = [[], [choice()], [{"choices": []}]]
    for chunks in streams:
        end = fold(*chunks)
        assert isinstance(end, Failed)
        assert end.kind is Kind.MALFORMED


@pytest.mark.parametrize("reason", ["error", "abort", "insufficient_system_resource"])
def test_a_finish_reason_that_is_a_failure_is_transient(reason: str) -> None:
    end = fold(choice(content="Hal"), choice(reason))
    assert isinstance(end, Failed)
    assert end.kind is Kind.SERVER


@pytest.mark.parametrize("reason", ["length", "content_filter", "tool_calls"])
def test_other_finish_reasons_are_recorded_even_without_text(reason: str) -> None:
    answer = fold(choice(reason))
    assert isinstance(answer, Answer)
    assert (answer.text, answer.finish_reason) == ("", reason)


def test_a_refusal_is_the_text_when_there_is_no_other() -> None:
    answer = fold(choice(content=None, refusal="I can"), choice("stop", refusal="not"))
    assert isinstance(answer, Answer)
    assert answer.text == "I cannot"


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_is_kept_apart(name: str) -> None:
    first: dict[str, JSON] = {name: "hm"}
    answer = fold(choice(None, 0, **first), choice(None, 0, **first), choice("stop", content="yes"))
    assert isinstance(answer, Answer)
    assert (answer.reasoning, answer.text) == ("hmhm", "yes")


def test_tool_calls_without_an_index_are_each_a_call() -> None:
    calls: list[JSON] = [{"id": name, "function": {"name": "f", "arguments": "{}"}} for name in "ab"]
    answer = fold(choice(tool_calls=calls[:1]), choice("tool_calls", tool_calls=calls[1:]))
    assert isinstance(answer, Answer)
    choices = answer.body["choices"]
    assert isinstance(choices, list)
    assert isinstance(choices[0], dict)
    assert choices[0]["message"] == {"tool_calls": calls}


def test_a_call_without_an_index_follows_those_that_have_one() -> None:
    first: list[JSON] = [{"index": 0, "id": "a", "function": {"arguments": "{}"}}]
    answer = fold(choice(tool_calls=first), choice("tool_calls", tool_calls=[{"id": "b"}]))
    assert isinstance(answer, Answer)
    assert '"tool_calls": [{"id": "a", "function": {"arguments": "{}"}}, {"id": "b"}]' in json.dumps(answer.body)


@pytest.mark.parametrize(
    ("document", "status"),
    [
        ({"error": {"message": "m", "type": "server_error", "code": None}}, 500),  # C16
        ({"object": "error", "message": "m", "type": "BadRequestError", "code": 400}, 400),  # flat vLLM
        ({"choices": [], "error": {"code": 502, "message": "no provider"}}, 502),  # C17
        ({"error": {"message": "m", "code": "500"}}, 500),  # LiteLLM
        ({"error": {"message": "m"}, "code": 408}, 408),  # SGLang: beside
        ({"x_groq": {"error": "over"}, "choices": []}, 500),
        ([{"error": {"code": 504, "message": "m", "status": "DEADLINE_EXCEEDED"}}], 504),
    ],
)
def test_an_error_inside_a_stream_is_a_failure_though_done_follows(document: JSON, status: int) -> None:
    folding = DIALECT.fold()
    failure = folding.feed(Event(data=json.dumps(document)))
    assert isinstance(failure, Failed)
    assert failure.status == status
    assert folding.finished
    folding.feed(Event(data="[DONE]"))
    assert folding.end() == failure


def test_a_null_error_is_no_error() -> None:
    assert isinstance(fold(choice("stop", content="x") | {"error": None}), Answer)


def test_half_an_event_at_the_end_does_not_hide_that_the_stream_is_truncated() -> None:
    folding = DIALECT.fold()
    assert folding.feed(Event(data='{"choices":[{"del', complete=False)) is None
    assert isinstance(end := folding.end(), Failed)
    assert end.kind is Kind.TRUNCATED


# Errors

LARGE = "Request too large for m on tokens per min (TPM): Limit 10,000, Requested 15000. Visit us."
SMALL = "Rate limit reached for m on tokens per minute (TPM): Limit 15000, Used 11972, Requested 4351. Try in 5.289s."
PER_DAY = "GenerateRequestsPerDayPerProjectPerModel-FreeTier"


def google(quota: str) -> JSON:
    """A Gemini refusal that names this quota."""
    details: list[JSON] = [
        {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": quota}]},
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "22s"},
    ]
    return [{"error": {"code": 429, "message": "Quota", "status": "RESOURCE_EXHAUSTED", "details": details}}]


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (401, {"error": {"code": "invalid_api_key"}}, Kind.FATAL),
        (401, {"error": "Unauthorized"}, Kind.FATAL),
        (401, {"detail": "Unauthorized"}, Kind.FATAL),
        (402, {"error": {"message": "Insufficient Balance"}}, Kind.FATAL),
        (403, {"error": {"code": "unsupported_country_region_territory"}}, Kind.FATAL),
        (403, {"error": {"code": 403, "metadata": {"reasons": ["x"], "flagged_input": "y"}}}, Kind.PROMPT),
        (404, {"error": {"code": "model_not_found"}}, Kind.FATAL),
        (404, b"<html>nginx</html>", Kind.FATAL),
        (301, b"", Kind.FATAL),
        (400, {"error": {"code": "context_length_exceeded"}}, Kind.PROMPT),
        (400, {"error": {"code": "content_filter"}}, Kind.PROMPT),  # C54
        (400, {"error": {"code": "billing_hard_limit_reached"}}, Kind.FATAL),
        (400, {"error": {"status": "INVALID_ARGUMENT", "details": [{"reason": "API_KEY_INVALID"}]}}, Kind.FATAL),
        (413, b"", Kind.PROMPT),
        (422, {"object": "error", "message": {"detail": [{"type": "extra_forbidden"}]}}, Kind.PROMPT),
        (429, {"error": {"type": "insufficient_quota", "code": "insufficient_quota"}}, Kind.FATAL),  # C50
        (429, {"error": {"type": "tokens", "code": "rate_limit_exceeded", "message": LARGE}}, Kind.PROMPT),
        (413, {"error": {"type": "tokens", "code": "rate_limit_exceeded", "message": LARGE}}, Kind.PROMPT),
        (429, google(PER_DAY), Kind.FATAL),  # C51
        (429, {"error": {"code": 429, "message": "limit exceeded: free-models-per-day"}}, Kind.FATAL),
        (408, b"", Kind.SERVER), (409, b"", Kind.SERVER), (425, b"", Kind.SERVER), (499, b"", Kind.SERVER),
        (500, b"", Kind.SERVER), (502, b"", Kind.SERVER), (503, b"", Kind.SERVER), (504, b"", Kind.SERVER),
        (501, b"", Kind.FATAL),
        (200, b"", Kind.MALFORMED), (200, {"id": None, "choices": None}, Kind.MALFORMED), (200, [], Kind.MALFORMED),
        (200, {"choices": []}, Kind.MALFORMED), (200, {"data": []}, Kind.MALFORMED), (200, b"<p>", Kind.MALFORMED),
        (200, {"error": {"code": 502, "message": "x"}}, Kind.SERVER),  # C20
        (200, {"error": {"code": 400, "message": "x"}}, Kind.PROMPT),
        (200, {"choices": [{"message": {"content": "x"}, "finish_reason": "error"}]}, Kind.SERVER),
    ],
)  # fmt: skip
def test_an_answer_is_a_failure_of_this_kind(status: int, body: JSON | bytes, kind: Kind) -> None:
    outcome = classify(status, body)
    assert isinstance(outcome, Failed)
    assert outcome.kind is kind


@pytest.mark.parametrize(
    ("status", "body", "scope", "dimension"),
    [
        (429, b"", Scope.UNKNOWN, None),  # C110: https://github.com/cline/cline/issues/962
        (429, {"error": {"code": None}}, Scope.UNKNOWN, None),  # C58
        (429, {"error": {"type": "requests", "code": "rate_limit_exceeded"}}, Scope.DIMENSION, "requests"),
        (429, {"error": {"type": "tokens", "message": SMALL}}, Scope.DIMENSION, "tokens"),
        (429, {"error": {"code": "RateLimitReached", "message": "call rate limit"}}, Scope.DIMENSION, "requests"),
        (429, google("GenerateRequestsPerMinutePerProjectPerModel-FreeTier"), Scope.DIMENSION, "requests"),
        (429, google("GenerateContentInputTokensPerModelPerMinute-FreeTier"), Scope.DIMENSION, "input_tokens"),
        (429, {"error": {"message": "litellm.RateLimitError", "type": "None", "code": "429"}}, Scope.UNKNOWN, None),
        (429, {"statusCode": 429, "message": "Rate limit is exceeded."}, Scope.UNKNOWN, None),
        (429, {"error": {"code": "engine_overloaded"}}, Scope.OVERLOAD, None),
        (498, b"", Scope.UNKNOWN, None),
        (529, b"", Scope.OVERLOAD, None),
        (503, {"message": "The request queue is full."}, Scope.OVERLOAD, None),
        (503, {"error": {"message": "server busy, please try again. maximum pending requests exceeded"}},
         Scope.OVERLOAD, None),
        (503, [{"error": {"code": 503, "status": "UNAVAILABLE"}}], Scope.OVERLOAD, None),
        (403, {"error": {"errors": [{"reason": "userRateLimitExceeded"}]}}, Scope.UNKNOWN, None),
        (200, {"error": {"code": 429}}, Scope.UNKNOWN, None),
        (200, {"error": {"type": "overloaded_error"}}, Scope.OVERLOAD, None),  # C21
    ],
)  # fmt: skip
def test_an_answer_is_a_refusal_for_the_rate(
    status: int, body: JSON | bytes, scope: Scope, dimension: str | None
) -> None:
    outcome = classify(status, body)
    assert isinstance(outcome, Throttled)
    assert (outcome.scope, outcome.dimension) == (scope, dimension)


def test_the_wait_and_the_limits_come_from_the_headers() -> None:
    outcome = classify(429, b"", retry_after="7", x_ratelimit_limit_requests="60", x_ratelimit_remaining_requests="0")
    assert isinstance(outcome, Throttled)
    assert outcome.retry_after == 7
    assert outcome.hints["requests"].limit == 60


def test_an_html_page_is_cut_down_to_its_words() -> None:
    # C56: https://github.com/Significant-Gravitas/AutoGPT/issues/944
    page = b"<html><head><title>502 Bad &amp; Gateway</title><style>p {}</style></head><body>" + b"<p>x</p>" * 999
    outcome = classify(502, page)
    assert isinstance(outcome, Failed)
    assert outcome.message.startswith("502 Bad & Gateway x x")
    assert len(outcome.message) == 300


# Requests and plain answers


def test_a_request_is_streamed_with_usage_unless_the_line_says_otherwise() -> None:
    streamed = DIALECT.request("http://h/v1", request_of({"model": "m", "messages": [], "temperature": 0}))
    assert streamed.url == "http://h/v1/chat/completions"
    assert json.loads(streamed.body) == {
        "model": "m", "messages": [], "temperature": 0, "stream": True, "stream_options": {"include_usage": True}
    }  # fmt: skip
    assert streamed.streamed
    plain = DIALECT.request("http://h/v1", request_of({"messages": [], "stream": False}))
    assert json.loads(plain.body) == {"messages": [], "stream": False}
    assert not plain.streamed
    bare = DIALECT.request("http://h/v1", request_of({"stream_options": None}))
    assert json.loads(bare.body) == {"stream": True}
    embeddings = DIALECT.request("http://h/v1", request_of({"input": "x"}, "embeddings"))
    assert embeddings.url == "http://h/v1/embeddings"
    assert json.loads(embeddings.body) == {"input": "x"}
    assert not embeddings.streamed


def test_a_prompt_with_half_a_surrogate_pair_can_be_sent() -> None:
    request = DIALECT.request("http://h", request_of({"messages": ["\ud835 日"]}))
    assert json.loads(request.body)["messages"] == ["\ud835 日"]


def test_embeddings_are_an_answer_without_text() -> None:
    body: JSON = {"data": [{"embedding": [0.5]}], "model": "e", "usage": {"prompt_tokens": 3}}
    outcome = classify(200, body)
    assert isinstance(outcome, Completed)
    assert (outcome.answer.text, outcome.answer.body) == ("", body)
    assert outcome.answer.usage is not None
    assert outcome.answer.usage.input_tokens == 3


# The table


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://api.openai.com/v1", "openai"),
        ("https://x.openai.azure.com/openai/v1", "azure"),
        ("https://api.groq.com/openai/v1", "groq"),
        ("https://openrouter.ai/api/v1", "openrouter"),
        ("http://127.0.0.1:8000/v1", "openai"),
        ("http://sim/v1", "openai"),
        ("", "openai"),
    ],
)
def test_the_dialect_is_guessed_from_the_host(url: str, name: str) -> None:
    assert dialect_for(None, url).name == name


def test_a_name_is_taken_as_given_and_a_wrong_one_gets_advice() -> None:
    assert dialect_for("groq", "http://h") is DIALECTS["groq"]
    with pytest.raises(ValueError, match=r"unknown dialect 'opnai' \(did you mean \"openai\"\?\)"):
        dialect_for("opnai", "")
    with pytest.raises(ValueError, match=r"unknown dialect .*openai, azure, groq"):
        dialect_for("zzz", "")


def test_keys_go_where_the_provider_looks_for_them() -> None:
    assert dialect_for("openai", "").key_headers("k") == {"authorization": "Bearer k"}
    assert dialect_for("azure", "").key_headers("k") == {"api-key": "k"}


def test_one_request_more_than_a_limit_below_one_is_a_throttle_and_not_too_large() -> None:
    message = "Rate limit reached for m on requests per min (RPM): Limit 0.06, Used 0, Requested 1."
    body = {"error": {"message": message, "type": "requests", "code": "rate_limit_exceeded"}}
    outcome = OpenAIChat().classify(429, {}, json.dumps(body).encode(), wall_now=0.0)
    assert isinstance(outcome, Throttled)
