"""The simulated upstream as a pure machine: time is an argument, nothing waits."""

from __future__ import annotations

import base64
import hashlib
import json
import struct

import pytest

from policies.contract import JSON
from simulations.profile import load_profile
from simulations.provider import Provider
from simulations.script import Ending, Script


def chat(prompt: str = "hello", **parameters: JSON) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": prompt}], **parameters}).encode()


def ask(provider: Provider, now: float, body: bytes, path: str = "/v1/chat/completions") -> Script:
    return provider.arrive(now, "POST", path, {}, body)


def text_of(script: Script) -> str:
    return b"".join(piece.data for piece in script.pieces).decode()


def chunks_of(script: Script) -> list[dict[str, JSON]]:
    events = text_of(script).split("\n\n")
    assert events.pop() == ""
    assert events.pop() == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


def test_a_stream_is_a_role_content_a_finish_and_done() -> None:
    script = ask(Provider(load_profile("steady")), 3.0, chat(stream=True))
    assert (script.status, script.head_at, script.ends_at, script.ending) == (200, 0.2, 0.5, Ending.CLEAN)
    assert ("content-type", "text/event-stream") in script.headers
    offsets = [piece.offset for piece in script.pieces]
    assert offsets == sorted(offsets)
    first, *middle, last = chunks_of(script)
    assert first["choices"] == [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": "", "refusal": None},
            "logprobs": None,
            "finish_reason": None,
        }
    ]
    assert last["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]
    assert len(middle) >= 10
    assert all("usage" not in chunk for chunk in (first, *middle, last))


def test_usage_comes_last_with_no_choices_when_it_was_asked_for() -> None:
    script = ask(Provider(load_profile("steady")), 0.0, chat(stream=True, stream_options={"include_usage": True}))
    *others, last = chunks_of(script)
    assert last["choices"] == []
    assert isinstance(usage := last["usage"], dict)
    assert usage["prompt_tokens"] == 2  # five bytes
    assert all(chunk["usage"] is None for chunk in others)


def test_streamed_and_plain_answers_are_the_same_text() -> None:
    provider = Provider(load_profile("steady"), seed=4)
    plain = json.loads(text_of(ask(provider, 0.0, chat(n=3))))
    streamed = ["", "", ""]
    for chunk in json.loads(json.dumps(chunks_of(ask(provider, 0.0, chat(n=3, stream=True))))):
        for choice in chunk["choices"]:
            streamed[choice["index"]] += choice["delta"].get("content", "")
    assert [choice["message"]["content"] for choice in plain["choices"]] == streamed
    assert len(set(streamed)) == 3


@pytest.mark.parametrize("parameter", ["max_tokens", "max_completion_tokens"])
def test_a_token_limit_ends_an_answer_for_its_length(parameter: str) -> None:
    answer = json.loads(text_of(ask(Provider(load_profile("steady")), 0.0, chat("hello", **{parameter: 3}))))
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] <= 3
    assert len(answer["choices"][0]["message"]["content"].encode()) <= 12


def test_answers_hold_scripts_of_more_than_one_byte_a_letter() -> None:
    answer = json.loads(text_of(ask(Provider(load_profile("steady?words=500")), 0.0, chat())))
    assert {len(letter.encode()) for letter in answer["choices"][0]["message"]["content"]} == {1, 2, 3, 4}


def test_one_seed_gives_one_behaviour_whatever_the_interleaving() -> None:
    spec = "flaky?latency_spread=0.5&rate=1000&burst=1000"
    prompts = [f"prompt {i}" for i in range(60)]
    forwards, backwards = Provider(load_profile(spec), seed=9), Provider(load_profile(spec), seed=9)
    one = {(p, n): ask(forwards, 0.0, chat(p, stream=True)) for n in range(2) for p in prompts}
    two = {(p, n): ask(backwards, 0.0, chat(p, stream=True)) for p in reversed(prompts) for n in range(2)}
    behaviour = {
        key: (script.head_at, script.ends_at, script.fault, script.ending, len(script.pieces))
        for key, script in one.items()
    }
    assert behaviour == {
        key: (script.head_at, script.ends_at, script.fault, script.ending, len(script.pieces))
        for key, script in two.items()
    }
    assert len({values[0] for values in behaviour.values()}) > 60


def test_refusals_do_not_change_what_a_later_attempt_meets() -> None:
    calm, refusing = (Provider(load_profile(f"flaky?rate=1&burst={burst}"), seed=3) for burst in (100, 1))
    assert [ask(calm, 0.0, chat()).fault for _ in range(30)] == [
        script.fault for i in range(60) if (script := ask(refusing, i * 0.5, chat())).status != 429
    ]


def test_a_refusal_comes_after_its_delay_and_says_how_long_to_wait() -> None:
    provider = Provider(load_profile("steady?rate=0.4&burst=1"))
    assert ask(provider, 0.0, chat()).status == 200
    refusal = ask(provider, 0.25, chat())
    assert (refusal.status, refusal.head_at) == (429, 0.05)
    assert ("retry-after", "3") in refusal.headers  # 2.25 s, rounded up
    error = json.loads(text_of(refusal))["error"]
    assert (error["type"], error["code"]) == ("requests", "rate_limit_exceeded")
    assert error["message"].endswith("Please try again in 2.25s.")
    assert ask(provider, 2.5, chat()).status == 200


def test_a_refusal_without_hints_gives_nothing_away() -> None:
    provider = Provider(load_profile("gemini-free"), calendar_offset=17.0)
    statuses = [ask(provider, now, chat(), "/v1beta/openai/chat/completions").status for now in [0.0] * 5 + [16.9]]
    assert statuses == [200] * 5 + [429]
    refusal = ask(provider, 16.95, chat())
    [entry] = json.loads(text_of(refusal))
    assert (entry["error"]["code"], entry["error"]["status"]) == (429, "RESOURCE_EXHAUSTED")
    assert {name for name, _ in refusal.headers} == {"content-type", "content-length", "x-request-id", "date"}
    assert "retry" not in text_of(refusal).lower()
    assert ask(provider, 17.0, chat()).status == 200


def test_headers_announce_requests_and_tokens_on_answers_and_refusals() -> None:
    provider = Provider(load_profile("openai-tier1"))
    headers = dict(ask(provider, 0.0, chat(max_tokens=100_000)).headers)
    assert headers["x-ratelimit-limit-requests"] == "500"
    assert headers["x-ratelimit-remaining-requests"] == "499"
    assert headers["x-ratelimit-reset-requests"] == "120ms"
    assert headers["x-ratelimit-remaining-tokens"] == "100000"
    assert headers["x-ratelimit-reset-tokens"] == "30s"
    refusal = ask(provider, 0.0, chat(max_tokens=150_000))
    assert refusal.status == 429
    assert dict(refusal.headers)["retry-after"] == "15"
    assert json.loads(text_of(refusal))["error"]["type"] == "tokens"
    assert provider.statistics()["refused"] == {"tokens": 1}


def test_a_request_larger_than_the_limit_is_told_so_and_not_to_come_back() -> None:
    refusal = ask(Provider(load_profile("openai-tier1")), 0.0, chat(max_tokens=300_000))
    assert "Request too large" in text_of(refusal)
    assert "retry-after" not in dict(refusal.headers)


def test_concurrency_is_freed_by_leaving() -> None:
    provider = Provider(load_profile("steady?concurrency=1"))
    first = ask(provider, 0.0, chat())
    refusal = ask(provider, 0.1, chat())
    assert refusal.status == 429
    provider.leave(refusal.number, 0.15)
    provider.leave(first.number, 0.5)
    provider.leave(first.number, 0.5)  # once is enough
    assert [ask(provider, 0.6, chat()).status, ask(provider, 0.6, chat()).status] == [200, 429]


def test_embeddings_are_small_and_the_same_in_both_encodings() -> None:
    provider = Provider(load_profile("steady"))
    body = {"model": "e", "input": ["one", "two"], "dimensions": 5}
    plain = json.loads(text_of(ask(provider, 0.0, json.dumps(body).encode(), "/v1/embeddings")))
    packed = json.loads(
        text_of(ask(provider, 0.0, json.dumps({**body, "encoding_format": "base64"}).encode(), "/embeddings"))
    )
    assert [entry["index"] for entry in plain["data"]] == [0, 1]
    for one, other in zip(plain["data"], packed["data"], strict=True):
        assert one["embedding"] == pytest.approx(struct.unpack("<5f", base64.b64decode(other["embedding"])), abs=1e-6)
    assert plain["data"][0]["embedding"] != plain["data"][1]["embedding"]


@pytest.mark.parametrize("given", ["word", ["a", "b"], [1, 2, 3], [[1, 2], [3]]])
def test_embeddings_take_every_form_of_input(given: JSON) -> None:
    script = ask(Provider(load_profile("steady")), 0.0, json.dumps({"input": given}).encode(), "/v1/embeddings")
    assert script.status == 200
    assert len(json.loads(text_of(script))["data"]) == (2 if given in (["a", "b"], [[1, 2], [3]]) else 1)


@pytest.mark.parametrize(
    ("body", "path", "status"),
    [
        (b"{", "/v1/chat/completions", 400),
        (b"[" * 100_000, "/v1/chat/completions", 400),
        (b"\xff\xfe", "/v1/chat/completions", 400),
        (b"[]", "/v1/chat/completions", 400),
        (b"{}", "/v1/chat/completions", 400),
        (b'{"messages": []}', "/v1/chat/completions", 400),
        (b'{"messages": ["hi"]}', "/v1/chat/completions", 400),
        (chat(n=0), "/v1/chat/completions", 400),
        (chat(max_tokens="many"), "/v1/chat/completions", 400),
        (chat(stream="yes"), "/v1/chat/completions", 400),
        (b"{}", "/v1/embeddings", 400),
        (b'{"input": [{}]}', "/v1/embeddings", 400),
        (b'{"input": "a", "encoding_format": "hex"}', "/v1/embeddings", 400),
        (chat(), "/v1/completions", 404),
        (chat(), "/", 404),
        (chat(), "/v1/models", 405),
    ],
)
def test_what_is_no_request_is_rejected_in_the_shape_of_openai(body: bytes, path: str, status: int) -> None:
    script = ask(Provider(load_profile("steady")), 0.0, body, path)
    assert script.status == status
    assert set(json.loads(text_of(script))["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat/completions", "/openai/v1/chat/completions?a=b"])
def test_endpoints_are_found_with_and_without_a_prefix(path: str) -> None:
    assert ask(Provider(load_profile("steady")), 0.0, chat(), path).status == 200


def test_a_lone_surrogate_harms_nobody() -> None:
    body = b'{"model": "\\ud800", "messages": [{"role": "user", "content": "\\udfff"}]}'
    assert ask(Provider(load_profile("steady")), 0.0, body).status == 200


def test_a_key_is_wanted_where_the_profile_has_one() -> None:
    provider = Provider(load_profile("steady?api_key=42"))
    for headers, status in [({}, 401), ({"authorization": "Bearer 43"}, 401), ({"authorization": "Bearer 42"}, 200)]:
        assert provider.arrive(0.0, "POST", "/v1/chat/completions", headers, chat()).status == status
    assert provider.statistics()["rejected"] == {"401": 2}


def test_models_are_listed_and_are_no_attempt() -> None:
    provider = Provider(load_profile("steady"))
    assert json.loads(text_of(provider.arrive(0.0, "GET", "/v1/models", {}, b"")))["object"] == "list"
    assert provider.statistics()["attempts"] == 0


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("fault", ["error", "reset", "cut", "truncate", "stall"])
def test_a_fault_with_a_share_of_its_own_breaks_the_answer(fault: str, stream: bool) -> None:
    provider = Provider(load_profile(f"steady?{fault}_share=1&stall_seconds=30&burst=1000"))
    scripts = [ask(provider, 0.0, chat(f"{i}", stream=stream)) for i in range(200)]
    assert all(script.fault == fault and not script.whole for script in scripts)
    assert provider.statistics()["errors"] == {fault: 200}
    for script in scripts:
        sent = b"".join(piece.data for piece in script.pieces)
        assert b"[DONE]" not in sent
        assert b'"finish_reason":"' not in sent
    assert {script.ending for script in scripts} == {
        "error": {Ending.CLEAN},
        "reset": {Ending.RESET},
        "cut": {Ending.CUT},
        "truncate": {Ending.CLEAN if stream else Ending.CUT},
        "stall": {Ending.CUT},
    }[fault]
    if fault in ("reset", "stall"):
        assert 60 < sum(script.head_at is None for script in scripts) < 140
    if fault == "stall":
        assert all(script.ends_at >= 30 for script in scripts)


def test_shares_of_faults_are_met() -> None:
    provider = Provider(load_profile("flaky?burst=100000"))
    for i in range(4000):
        ask(provider, 0.0, chat(f"{i}"))
    errors = provider.statistics()["errors"]
    assert isinstance(errors, dict)
    expected = {"error": 0.05, "reset": 0.04, "cut": 0.02, "truncate": 0.03, "stall": 0.02}
    assert errors == {kind: pytest.approx(4000 * share, rel=0.35) for kind, share in expected.items()}


def test_the_census_tells_who_came_and_how_it_ended() -> None:
    provider = Provider(load_profile("steady?burst=2"))
    first, second = ask(provider, 0.0, chat("a")), ask(provider, 0.0, chat("b"))
    refusal = ask(provider, 0.0, chat("a"))
    provider.leave(refusal.number, 0.05)
    provider.leave(first.number, 0.5)
    provider.leave(second.number, 0.4)
    figures = provider.statistics()
    assert json.loads(json.dumps(figures)) == figures
    a = hashlib.sha256(b'[{"content":"a","role":"user"}]').hexdigest()[:16]
    assert figures["attempts_by_prompt"][a] == 2  # type: ignore[index,call-overload]  # it is a dict
    assert {key: figures[key] for key in figures if key != "attempts_by_prompt"} == {
        "attempts": 3,
        "accepted": 2,
        "refused": {"requests": 1},
        "rejected": {},
        "errors": {},
        "completed": 1,
        "aborted": 1,
        "in_flight": 0,
        "most_in_flight": 3,
        "most_in_a_second": 3,
        "attempts_by_dialect": {"openai": 3},
        "tokens_charged": 2,
        "refused_during_hold": 0,
        "connections": 0,
        "connections_open": 0,
    }


def test_attempts_within_a_retry_after_are_counted_from_when_the_client_knew() -> None:
    provider = Provider(load_profile("steady?burst=1&retry_after=2&rate=1"))
    ask(provider, 0.0, chat())
    refusal = ask(provider, 0.0, chat())
    ask(provider, 0.04, chat())  # sent before the refusal had come back
    assert provider.statistics()["refused_during_hold"] == 0
    provider.leave(refusal.number, 0.05)
    for now in (0.05, 2.0499, 2.05):
        ask(provider, now, chat())
    assert provider.statistics()["refused_during_hold"] == 2


def test_a_reset_forgets_everything_and_old_attempts_leave_without_a_trace() -> None:
    provider = Provider(load_profile("steady?burst=1&concurrency=1"))
    old = ask(provider, 0.0, chat())
    provider.reset()
    assert provider.statistics()["attempts"] == 0
    assert ask(provider, 0.0, chat()).status == 200
    provider.leave(old.number, 0.5)
    assert (provider.statistics()["completed"], provider.statistics()["in_flight"]) == (0, 1)
