"""The simulated upstream's dialects: one prompt, one answer, whatever the words; read with readers of our own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

import pytest
from attrs import frozen
from command import at, each
from hypothesis import given
from hypothesis import strategies as st

from policies.contract import JSON
from simulations.asked import digest
from simulations.dialects.contract import KINDS
from simulations.dialects.table import COMPATIBLE
from simulations.faults import FAULTS
from simulations.manners import MANNERS
from simulations.profile import load_profile
from simulations.provider import Provider
from simulations.script import Ending, Script

Messages = list[tuple[str, str]]  # (role, text)
HELLO: Messages = [("user", "hello")]


@frozen
class Read:
    """What a reader made of a stream. done: it saw the proof of completion."""

    text: str
    done: bool
    thoughts: str = ""
    error: JSON = None


@frozen
class Speaker:
    """A client's side of one dialect: how it asks, and how it reads."""

    path: Callable[[bool], str]
    body: Callable[[Messages, bool, int], JSON]
    read: Callable[[list[JSON]], Read]
    plain: Callable[[JSON], str]
    headers: Mapping[str, str] = {}


def openai_body(messages: Messages, stream: bool, most: int) -> JSON:
    listed: list[JSON] = [{"role": role, "content": text} for role, text in messages]
    return {"model": "m", "messages": listed, "stream": stream, "max_tokens": most}


def read_openai(values: list[JSON]) -> Read:
    text = thoughts = ""
    error: JSON = None
    for value in values:
        if not isinstance(value, dict):
            continue
        error = error or value.get("error")
        for choice in each(value.get("choices") or []):
            delta = choice.get("delta", {}) if isinstance(choice, dict) else {}
            assert isinstance(delta, dict)
            text += str(delta.get("content") or "")
            thoughts += str(delta.get("reasoning_content") or "")
    return Read(text, "[DONE]" in values, thoughts, error)


def anthropic_body(messages: Messages, stream: bool, most: int) -> JSON:
    listed: list[JSON] = [
        {"role": role, "content": [{"type": "text", "text": text}]} for role, text in messages if role != "system"
    ]
    system = [text for role, text in messages if role == "system"]
    head: dict[str, JSON] = {"system": system[0]} if system else {}
    return {**head, "model": "m", "messages": listed, "stream": stream, "max_tokens": most}


def read_anthropic(values: list[JSON]) -> Read:
    text = thoughts = ""
    for value in values:
        assert isinstance(value, dict)
        if value["type"] == "error":
            return Read(text, False, thoughts, value["error"])
        if value["type"] == "content_block_delta":
            delta = value["delta"]
            assert isinstance(delta, dict)
            text += str(delta.get("text", ""))
            thoughts += str(delta.get("thinking", ""))
    return Read(text, at(values[-1], "type") == "message_stop" if values else False, thoughts)


def gemini_body(messages: Messages, stream: bool, most: int) -> JSON:
    roles = {"user": "user", "assistant": "model"}
    listed: list[JSON] = [
        {"role": roles[role], "parts": [{"text": text}]} for role, text in messages if role != "system"
    ]
    system = [text for role, text in messages if role == "system"]
    head: dict[str, JSON] = {"systemInstruction": {"parts": [{"text": system[0]}]}} if system else {}
    return {**head, "contents": listed, "generationConfig": {"maxOutputTokens": most}}


def read_gemini(values: list[JSON]) -> Read:
    text = thoughts = ""
    done = False
    error: JSON = None
    for value in values:
        assert isinstance(value, dict)
        error = error or value.get("error") or value.get("promptFeedback")
        for candidate in each(value.get("candidates", [])):
            assert isinstance(candidate, dict)
            done |= "finishReason" in candidate
            content = candidate.get("content", {})
            assert isinstance(content, dict)
            for part in each(content.get("parts", [])):
                if at(part, "text") and isinstance(part, dict) and part.get("thought"):
                    thoughts += str(part["text"])
                else:
                    text += str(at(part, "text"))
    return Read(text, done, thoughts, error)


def responses_body(messages: Messages, stream: bool, most: int) -> JSON:
    listed: list[JSON] = [{"role": role, "content": text} for role, text in messages]
    return {"model": "m", "input": listed, "stream": stream, "max_output_tokens": most}


def read_responses(values: list[JSON]) -> Read:
    text = thoughts = ""
    for value in values:
        assert isinstance(value, dict)
        match value["type"]:
            case "response.output_text.delta":
                text += str(value["delta"])
            case "response.reasoning_summary_text.delta":
                thoughts += str(value["delta"])
            case "response.completed" | "response.incomplete":
                assert whole_text(at(value, "response", "output", -1, "content", 0, "text")) == whole_text(text)
                return Read(text, True, thoughts)
            case "response.failed":
                return Read(text, False, thoughts, at(value, "response", "error"))
            case "error":
                return Read(text, False, thoughts, value)
    return Read(text, False, thoughts)


SPEAKERS: Mapping[str, Speaker] = {
    "openai": Speaker(
        lambda _: "/v1/chat/completions",
        openai_body,
        read_openai,
        lambda body: str(at(body, "choices", 0, "message", "content")),
    ),
    "anthropic": Speaker(
        lambda _: "/v1/messages",
        anthropic_body,
        read_anthropic,
        lambda body: str(at(body, "content", -1, "text")),
        {"anthropic-version": "2023-06-01"},
    ),
    "gemini": Speaker(
        lambda stream: f"/v1beta/models/m:{'streamGenerateContent?alt=sse' if stream else 'generateContent'}",
        gemini_body,
        read_gemini,
        lambda body: str(at(body, "candidates", 0, "content", "parts", -1, "text")),
    ),
    "gemini-array": Speaker(
        lambda stream: f"/v1/models/m:{'streamGenerateContent' if stream else 'generateContent'}",
        gemini_body,
        read_gemini,
        lambda body: str(at(body, "candidates", 0, "content", "parts", -1, "text")),
    ),
    "responses": Speaker(
        lambda _: "/v1/responses",
        responses_body,
        read_responses,
        lambda body: str(at(body, "output", -1, "content", 0, "text")),
    ),
}
dialects = pytest.mark.parametrize("dialect", SPEAKERS)


def ask(
    provider: Provider,
    dialect: str,
    messages: Messages = HELLO,
    *,
    now: float = 0.0,
    stream: bool = True,
    most: int = 10**6,
    headers: Mapping[str, str] = {},
) -> Script:
    speaker = SPEAKERS[dialect]
    body = json.dumps(speaker.body(messages, stream, most)).encode()
    return provider.arrive(now, "POST", speaker.path(stream), {**speaker.headers, **headers}, body)


def sent(script: Script) -> bytes:
    return b"".join(piece.data for piece in script.pieces)


def values_of(data: bytes) -> list[JSON]:
    """The data of each event, in order, or the entries of an array; written from the standard, for these tests."""
    if data.startswith(b"["):
        listed: list[JSON] = json.loads(data if data.endswith(b"]") else data.rstrip(b",\r\n") + b"]")
        return listed
    lines = re.split(rb"\r\n|\r|\n", data.removeprefix(b"\xef\xbb\xbf"))
    values: list[JSON] = []
    held: list[bytes] = []
    for line in [*lines, b""]:
        if not line and held:
            text = b"\n".join(held).decode()
            values.append(text if text == "[DONE]" else json.loads(text))
            held = []
        elif line.startswith(b"data:"):
            held.append(line.removeprefix(b"data:").removeprefix(b" "))
    return values


def read(script: Script, dialect: str) -> Read:
    return SPEAKERS[dialect].read(values_of(sent(script)))


def whole_text(text: JSON) -> str:
    """Halves of a pair that meet are one character."""
    return str(text).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


# -- one prompt


texts = st.text(min_size=1, max_size=30)


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant"]), texts), min_size=1, max_size=4), texts | st.none())
def test_a_prompt_has_one_identity_and_one_answer_in_all_dialects(turns: Messages, system: str | None) -> None:
    provider = Provider(load_profile("steady?burst=1000"), seed=3)
    messages = [*([("system", system)] if system is not None else []), *turns]
    answers = {read(ask(provider, dialect, messages), dialect) for dialect in SPEAKERS}
    assert len(answers) == 1
    assert answers.pop().done
    expected = digest([{"role": role, "content": text} for role, text in messages])
    assert provider.statistics()["attempts_by_prompt"] == {expected: len(SPEAKERS)}


def test_parts_of_text_are_one_text_for_the_identity_of_a_prompt() -> None:
    provider = Provider(load_profile("steady?burst=1000"))
    for content in ("one two", [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]):
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode()
        provider.arrive(0.0, "POST", "/v1/chat/completions", {}, body)
    assert provider.statistics()["attempts_by_prompt"] == {digest([{"role": "user", "content": "one two"}]): 2}


@dialects
def test_streamed_and_plain_answers_hold_the_same_text(dialect: str) -> None:
    provider = Provider(load_profile("steady?thoughts=3"))
    streamed, plain = read(ask(provider, dialect), dialect), ask(provider, dialect, stream=False)
    assert (plain.status, plain.ending) == (200, Ending.CLEAN)
    assert streamed.thoughts.count(" ") >= 3
    assert SPEAKERS[dialect].plain(json.loads(sent(plain))) == streamed.text


@dialects
def test_a_limit_on_tokens_ends_an_answer_for_its_length(dialect: str) -> None:
    body = sent(ask(Provider(load_profile("steady")), dialect, stream=False, most=2)).decode()
    reasons = ["length", "max_tokens", "MAX_TOKENS", "max_output_tokens"]
    assert any(f'"{reason}"' in body for reason in reasons)


def test_all_dialects_are_served_from_the_same_quota() -> None:
    provider = Provider(load_profile(f"steady?burst={len(SPEAKERS)}"))
    assert {ask(provider, dialect).status for dialect in SPEAKERS} == {200}
    assert {ask(provider, dialect).status for dialect in SPEAKERS} == {429}
    assert provider.statistics()["attempts_by_dialect"] == {"openai": 2, "anthropic": 2, "gemini": 4, "responses": 2}


# -- usage


def test_gemini_tells_running_totals_and_no_terminator() -> None:
    provider = Provider(load_profile("steady?thoughts=4"))
    values = values_of(sent(ask(provider, "gemini")))
    totals = [at(value, "usageMetadata", "totalTokenCount") for value in values]
    assert totals == sorted(totals, key=lambda total: int(str(total)))
    last = at(values[-1], "usageMetadata")
    assert isinstance(last, dict)
    assert last["totalTokenCount"] == sum(
        int(str(last[key])) for key in ("promptTokenCount", "candidatesTokenCount", "thoughtsTokenCount")
    )
    assert [index for index, value in enumerate(values) if "finishReason" in json.dumps(value)] == [len(values) - 1]


def test_anthropic_tells_input_first_and_output_last() -> None:
    values = values_of(sent(ask(Provider(load_profile("steady")), "anthropic")))
    assert [at(value, "type") for value in values[:3]] == ["message_start", "content_block_start", "ping"]
    assert [at(value, "type") for value in values[-3:]] == ["content_block_stop", "message_delta", "message_stop"]
    assert at(values[0], "message", "usage", "input_tokens") == 2
    assert int(str(at(values[-2], "usage", "output_tokens"))) > 5


def test_responses_are_numbered_and_repeat_the_text_at_the_end() -> None:
    values = values_of(sent(ask(Provider(load_profile("steady?thoughts=2")), "responses")))
    assert [at(value, "sequence_number") for value in values] == list(range(len(values)))
    assert at(values[-1], "type") == "response.completed"


# -- refusals and errors


def test_gemini_names_quota_and_delay_in_the_body_alone() -> None:
    provider = Provider(load_profile("steady?burst=1&rate=0.4"))
    ask(provider, "gemini")
    refusal = ask(provider, "gemini", now=0.25)
    error = at(json.loads(sent(refusal)), "error")
    assert (refusal.status, at(error, "code"), at(error, "status")) == (429, 429, "RESOURCE_EXHAUSTED")
    violation = at(error, "details", 0, "violations", 0)
    assert at(violation, "quotaId") == "GenerateRequestsPerMinutePerProjectPerModel-FreeTier"
    assert at(error, "details", 2, "retryDelay") == "2.250000000s"
    assert "retry-after" not in dict(refusal.headers)


def test_anthropic_announces_its_limits_with_dates() -> None:
    provider = Provider(load_profile("openai-tier1"), calendar_offset=-1_790_000_000.0)
    accepted = dict(ask(provider, "anthropic", most=100).headers)
    assert accepted["anthropic-ratelimit-requests-remaining"] == "499"
    assert accepted["anthropic-ratelimit-requests-reset"] == "2026-09-21T14:13:21Z"
    assert accepted["date"] == "Mon, 21 Sep 2026 14:13:20 GMT"
    assert accepted["anthropic-ratelimit-input-tokens-limit"] == "200000"
    assert accepted["request-id"] == "req_1"
    refusal = ask(provider, "anthropic", most=200_000)
    assert (refusal.status, dict(refusal.headers)["retry-after"]) == (429, "1")
    assert at(json.loads(sent(refusal)), "error", "type") == "rate_limit_error"


@dialects
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_trouble_has_words_in_a_status_and_in_a_stream(kind: str, dialect: str) -> None:
    refused = ask(Provider(load_profile(f"steady?fault=http-{kind}")), dialect)
    assert refused.status >= 400 or (kind == "blocked" and dialect.startswith("gemini"))
    assert refused.fault == f"http-{kind}"
    error = json.loads(sent(refused))
    assert error.get("error") or error.get("promptFeedback")
    within = ask(Provider(load_profile(f"steady?fault=in-band-{kind}&fault_at=6")), dialect)
    assert (within.status, within.ending) == (200, Ending.CLEAN)
    seen = read(within, dialect)
    assert seen.error
    assert not seen.done
    at_once = read(ask(Provider(load_profile(f"steady?fault=in-band-{kind}&fault_at=0")), dialect), dialect)
    assert at_once.error
    assert at_once.text == ""


def test_overload_has_the_status_of_each_dialect() -> None:
    provider = Provider(load_profile("steady?fault=http-overloaded"))
    statuses = {dialect: ask(provider, dialect).status for dialect in SPEAKERS}
    assert statuses == {"openai": 503, "anthropic": 529, "gemini": 503, "gemini-array": 503, "responses": 503}


@dialects
def test_a_key_is_taken_where_the_dialect_has_it(dialect: str) -> None:
    provider = Provider(load_profile("steady?api_key=42"))
    header = {"anthropic": "x-api-key", "gemini": "x-goog-api-key"}.get(dialect.removesuffix("-array"), "api-key")
    assert ask(provider, dialect, headers={header: "42"}).status == 200
    assert ask(provider, dialect, headers={"authorization": "Bearer 42"}).status == 200
    wrong = ask(provider, dialect, headers={header: "43"})
    assert wrong.status == (400 if dialect.startswith("gemini") else 401)
    assert json.loads(sent(wrong))["error"]


def test_gemini_takes_its_key_from_the_query_too() -> None:
    provider = Provider(load_profile("steady?api_key=42"))
    body = json.dumps(gemini_body(HELLO, False, 5)).encode()
    for query, status in [("?key=42", 200), ("?key=43", 400), ("", 400)]:
        assert provider.arrive(0.0, "POST", f"/v1beta/models/m%3AgenerateContent{query}", {}, body).status == status


@pytest.mark.parametrize(
    ("path", "body", "status", "key"),
    [
        ("/v1/messages", b'{"messages": [], "max_tokens": 1}', 400, "type"),
        ("/v1/messages", b'{"messages": [{"role": "user", "content": "x"}]}', 400, "type"),  # no max_tokens
        ("/v1/messages", b'{"messages": [{"role": "system", "content": "x"}], "max_tokens": 1}', 400, "type"),
        ("/v1/messages", b"{", 400, "type"),
        ("/v1/responses", b"{}", 400, "error"),
        ("/v1/responses", b'{"input": [{}]}', 400, "error"),
        ("/v1beta/models/m:generateContent", b"{}", 400, "error"),
        ("/v1beta/models/m:generateContent", b'{"contents": [{"parts": 1}]}', 400, "error"),
        ("/v1beta/models/m:countTokens", b"{}", 404, "error"),
        ("/v1beta/models", b"{}", 405, "error"),
    ],
)
def test_what_is_no_request_is_rejected_in_the_dialect(path: str, body: bytes, status: int, key: str) -> None:
    headers = {"anthropic-version": "2023-06-01"}
    rejected = Provider(load_profile("steady")).arrive(0.0, "POST", path, headers, body)
    assert rejected.status == status
    assert key in json.loads(sent(rejected))


def test_anthropic_wants_its_version() -> None:
    body = json.dumps(anthropic_body(HELLO, False, 5)).encode()
    rejected = Provider(load_profile("steady")).arrive(0.0, "POST", "/v1/messages", {}, body)
    assert (rejected.status, "anthropic-version" in sent(rejected).decode()) == (400, True)


# -- faults and manners


@dialects
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_answer_can_never_be_taken_for_a_whole_one(fault: str, stream: bool, dialect: str) -> None:
    provider = Provider(load_profile(f"steady?fault={fault}&burst=1000"))
    for i in range(8):
        script = ask(provider, dialect, [("user", f"{i}")], stream=stream)
        assert (script.fault, script.whole) == (fault, False)
        if script.status != 200 or script.ending is not Ending.CLEAN:
            continue
        if not stream:
            with pytest.raises((AssertionError, ValueError, KeyError, IndexError)):
                SPEAKERS[dialect].plain(json.loads(sent(script)))
        elif dict(script.headers)["content-type"] == "text/html" or not sent(script):
            continue
        else:
            try:
                seen = read(script, dialect)
            except ValueError:  # no JSON
                continue
            assert seen.error or not seen.done
    assert provider.statistics()["errors"] == {fault: 8}


@dialects
@pytest.mark.parametrize("manner", [name for name in MANNERS if name != "gzip"])
def test_a_strange_manner_changes_no_word_of_a_whole_answer(manner: str, dialect: str) -> None:
    plain = read(ask(Provider(load_profile("steady")), dialect), dialect)
    script = ask(Provider(load_profile(f"steady?manners={manner}")), dialect)
    seen = read(script, dialect)
    assert script.whole
    assert seen.done
    assert seen.error is None
    if manner == "no-text":
        assert seen.text == ""
    else:
        assert whole_text(seen.text).startswith(plain.text)
    if manner == "split-surrogates":
        assert whole_text(seen.text).endswith("🌊")


@dialects
def test_manners_go_together(dialect: str) -> None:
    every = ",".join(name for name in MANNERS if name not in ("gzip", "no-text", "long-line"))
    seen = read(ask(Provider(load_profile(f"steady?manners={every}")), dialect), dialect)
    assert seen.done
    assert "nul\0nul" in seen.text


def test_the_event_of_a_fault_can_be_named() -> None:
    for kept in (0, 1, 5):
        script = ask(Provider(load_profile(f"steady?fault=truncate&fault_at={kept}")), "openai")
        assert len(values_of(sent(script))) == kept


def test_several_faults_share_their_share() -> None:
    provider = Provider(load_profile("steady?burst=10000&fault=reset,html,in-band-rate&fault_share=0.6"))
    for i in range(2000):
        ask(provider, "openai", [("user", f"{i}")])
    errors = provider.statistics()["errors"]
    assert isinstance(errors, dict)
    assert errors == {name: pytest.approx(400, rel=0.2) for name in ("reset", "html", "in-band-rate")}


# -- other people's errors under OpenAI's paths


@pytest.mark.parametrize("wording", COMPATIBLE)
@pytest.mark.parametrize("kind", KINDS)
def test_every_wording_has_a_status_and_an_event_for_every_kind(kind: str, wording: str) -> None:
    refused = ask(Provider(load_profile(f"steady?wording={wording}&fault=http-{kind}")), "openai")
    assert refused.status >= 400
    assert json.loads(sent(refused))
    within = ask(Provider(load_profile(f"steady?wording={wording}&fault=in-band-{kind}&fault_at=3")), "openai")
    assert (within.status, within.ending) == (200, Ending.CLEAN)
    values = values_of(sent(within))
    assert len(values) == 4
    assert not read(within, "openai").done


@pytest.mark.parametrize(
    ("wording", "kind", "path", "expected"),
    [
        ("azure", "blocked", ("error", "innererror", "code"), "ResponsibleAIPolicyViolation"),
        ("azure", "rate", ("error", "code"), "RateLimitReached"),
        ("vllm", "context", ("type",), "BadRequestError"),
        ("vllm", "auth", ("error",), "Unauthorized"),
        ("openrouter", "overloaded", ("error", "code"), 503),
        ("openrouter", "billing", ("error", "code"), 402),
        ("mistral", "invalid", ("message", "detail", 0, "type"), "extra_forbidden"),
        ("mistral", "auth", ("message",), "Unauthorized"),
        ("mistral", "rate", ("code",), "1300"),
        ("litellm", "rate", ("error", "code"), "429"),
        ("ollama", "overloaded", ("error", "type"), "api_error"),
    ],
)
def test_a_wording_is_that_of_its_upstream(
    wording: str, kind: str, path: tuple[str | int, ...], expected: JSON
) -> None:
    refused = ask(Provider(load_profile(f"steady?wording={wording}&fault=http-{kind}")), "openai")
    assert at(json.loads(sent(refused)), *path) == expected


@pytest.mark.parametrize("wording", COMPATIBLE)
def test_a_refusal_tells_its_delay_in_every_wording(wording: str) -> None:
    provider = Provider(load_profile(f"steady?wording={wording}&burst=1&rate=0.4&hint=body"))
    ask(provider, "openai")
    refusal = ask(provider, "openai", now=0.25)
    assert refusal.status == 429
    told = "after 3 seconds" if wording == "azure" else "2.25"
    assert told in sent(refusal).decode()


def test_an_error_of_ollama_within_a_stream_is_an_empty_delta_and_the_end() -> None:
    script = ask(Provider(load_profile("steady?wording=ollama&fault=in-band-server&fault_at=2")), "openai")
    assert at(values_of(sent(script))[-1], "choices", 0, "delta", "content") == ""
    assert read(script, "openai").error is None
