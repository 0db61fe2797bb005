"""Profiles of real providers over real sockets: one of each kind, and what our own reading makes of its refusals."""

from __future__ import annotations

from functools import partial

import httpx
import pytest
import trio

from controller.dialects.table import DIALECTS
from controller.outcome import Failed, Kind, Throttled
from policies.contract import JSON
from simulations.profile import load_profile
from simulations.provider import Provider
from simulations.server import serve

CHAT, MESSAGES, GEMINI = "/v1/chat/completions", "/v1/messages", "/v1beta/models/m:generateContent"
ANTHROPIC = {"anthropic-version": "2023-06-01"}


async def served(spec: str, nursery: trio.Nursery, latency: float = 0.02) -> httpx.AsyncClient:
    provider = Provider(load_profile(f"{spec}&latency={latency}&refusal_delay=0.001&output_speed=100000"))
    port = await nursery.start(partial(serve, provider))
    # No proxy variables, no certificates to load: this is the loopback.
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, verify=False)  # noqa: S501


def chat(number: int = 0, **parameters: JSON) -> dict[str, JSON]:
    return {"model": "m", "messages": [{"role": "user", "content": f"prompt {number}"}], **parameters}


def outcome(response: httpx.Response, dialect: str) -> object:
    """What our own reading makes of an answer that is no stream."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    return DIALECTS[dialect].classify(response.status_code, headers, response.content, wall_now=0.0)


async def test_openai_books_max_tokens_and_announces_two_limits(nursery: trio.Nursery) -> None:
    async with await served("openai-tier1?words=3", nursery) as client:
        taken = await client.post(CHAT, json=chat(max_tokens=150_000))
        assert taken.headers["x-ratelimit-limit-requests"] == "500"
        assert taken.headers["x-ratelimit-remaining-tokens"] == "50000"
        refused = await client.post(CHAT, json=chat(max_tokens=150_000))
    assert "tokens per min (TPM)" in refused.json()["error"]["message"]
    read = outcome(refused, "openai")
    assert isinstance(read, Throttled)
    assert (read.dimension, read.retry_after) == ("tokens", 30)


async def test_anthropic_limits_input_and_output_apart_and_settles_the_output(nursery: trio.Nursery) -> None:
    async with await served("anthropic-tier1?words=3", nursery) as client:

        async def ask(most: int) -> httpx.Response:
            return await client.post(MESSAGES, json=chat(max_tokens=most), headers=ANTHROPIC)

        taken = await ask(7000)
        assert taken.headers["anthropic-ratelimit-input-tokens-limit"] == "30000"
        assert taken.headers["anthropic-ratelimit-output-tokens-limit"] == "8000"
        assert int(taken.headers["anthropic-ratelimit-output-tokens-remaining"]) == 1000
        assert int(taken.headers["anthropic-ratelimit-tokens-remaining"]) == 1000  # the tightest
        again = await ask(7000)  # what the first did not use has come back
        assert int(again.headers["anthropic-ratelimit-output-tokens-remaining"]) > 900


async def test_anthropic_books_the_output_of_all_that_is_open_by_max_tokens(nursery: trio.Nursery) -> None:
    async with (
        await served("anthropic-tier1?words=3", nursery, latency=30.0) as client,
        trio.open_nursery() as asking,
    ):
        asking.start_soon(partial(client.post, MESSAGES, json=chat(max_tokens=7000), headers=ANTHROPIC))
        await trio.sleep(0.1)
        refused = await client.post(MESSAGES, json=chat(1, max_tokens=7000), headers=ANTHROPIC)
        asking.cancel_scope.cancel()
    assert "8,000 output tokens per minute" in refused.json()["error"]["message"]
    read = outcome(refused, "anthropic")
    assert isinstance(read, Throttled)
    assert read.dimension == "output_tokens"


async def test_anthropic_counts_output_as_it_is_produced(nursery: trio.Nursery) -> None:
    async with await served("anthropic-start?words=3&output_tokens_per_minute=5", nursery) as client:
        first = await client.post(MESSAGES, json=chat(max_tokens=4096), headers=ANTHROPIC)
        used = first.json()["usage"]["output_tokens"]
        assert first.headers["anthropic-ratelimit-output-tokens-remaining"] == "5"  # max_tokens does not count
        await trio.sleep(0.05)
        refused = await client.post(MESSAGES, json=chat(1, max_tokens=1), headers=ANTHROPIC)
    assert used > 5
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) == pytest.approx(12 * (used - 5), abs=2)


async def test_gemini_limits_input_tokens_and_says_so_in_the_body(nursery: trio.Nursery) -> None:
    async with await served("gemini-tier1?input_tokens_per_minute=20&words=3", nursery) as client:
        body = {"contents": [{"parts": [{"text": "word " * 12}]}], "generationConfig": {"maxOutputTokens": 5000}}
        assert (await client.post(GEMINI, json=body)).status_code == 200
        refused = await client.post(GEMINI, json=body)
    assert "retry-after" not in refused.headers
    read = outcome(refused, "gemini")
    assert isinstance(read, Throttled)
    assert read.dimension == "input_tokens"
    assert read.retry_after is not None
    assert 0 < read.retry_after <= 60


async def test_the_quota_of_a_day_is_spent_for_good(nursery: trio.Nursery) -> None:
    async with await served("gemini-free-flash?requests_per_day=2&words=3", nursery) as client:
        body = {"contents": [{"parts": [{"text": "hello"}]}]}
        statuses = [(await client.post(GEMINI, json=body)).status_code for _ in range(2)]
        refused = await client.post(GEMINI, json=body)
    assert [*statuses, refused.status_code] == [200, 200, 429]
    read = outcome(refused, "gemini")
    assert isinstance(read, Failed)
    assert (read.kind, "PerDay" in read.message) == (Kind.FATAL, True)


async def test_azure_announces_by_minutes_and_enforces_by_ten_seconds(nursery: trio.Nursery) -> None:
    async with await served("azure?limit=12&words=3", nursery) as client:
        answers = [await client.post(CHAT, json=chat(n, max_tokens=100)) for n in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    refused = answers[-1]
    assert refused.headers["x-ratelimit-limit-requests"] == "12"
    assert 0 < int(refused.headers["x-ratelimit-reset-requests"]) <= 10  # plain seconds
    assert 0 < int(refused.headers["retry-after-ms"]) <= 1000 * int(refused.headers["retry-after"]) <= 10_000
    read = outcome(refused, "azure")
    assert isinstance(read, Throttled)
    assert read.dimension == "requests"


async def test_azure_books_the_sum_of_prompt_and_max_tokens(nursery: trio.Nursery) -> None:
    async with await served("azure?words=3", nursery) as client:
        taken = await client.post(CHAT, json=chat(max_tokens=100_000))
        assert taken.headers["x-ratelimit-remaining-tokens"] == str(120_000 - 100_000 - 2)
        refused = await client.post(CHAT, json=chat(max_tokens=20_000))
    read = outcome(refused, "azure")
    assert isinstance(read, Throttled)
    assert read.dimension == "tokens"


async def test_deepseek_limits_what_is_open_at_once_and_says_how_much_that_is(nursery: trio.Nursery) -> None:
    async with (
        await served("deepseek?concurrency=1&words=3", nursery, latency=30.0) as client,
        trio.open_nursery() as asking,
    ):
        asking.start_soon(partial(client.post, CHAT, json=chat()))
        await trio.sleep(0.1)
        refused = await client.post(CHAT, json=chat(1))
        asking.cancel_scope.cancel()
    assert "concurrency is 2" in refused.json()["error"]["message"]
    read = outcome(refused, "deepseek")
    assert isinstance(read, Throttled)
    assert (read.dimension, read.retry_after) == ("concurrency", None)


async def test_vllm_refuses_nothing(nursery: trio.Nursery) -> None:
    async with await served("vllm?words=3", nursery) as client:
        answers = [await client.post(CHAT, json=chat(n)) for n in range(4)]
    assert {answer.status_code for answer in answers} == {200}
