"""The simulated upstream behind httpx, on a virtual clock."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing

import httpx
import pytest
import trio
from trio.testing import MockClock

from policies.contract import JSON
from simulations.profile import load_profile
from simulations.provider import Provider
from simulations.transport import SimulatedTransport


def client_of(spec: str, *, timeout: float | None = None, seed: int = 0) -> tuple[httpx.AsyncClient, Provider]:
    provider = Provider(load_profile(spec), seed=seed)
    transport = SimulatedTransport(provider)
    return httpx.AsyncClient(transport=transport, base_url="http://sim/v1", timeout=timeout), provider


def chat(prompt: str = "hello", **parameters: JSON) -> dict[str, JSON]:
    return {"model": "m", "messages": [{"role": "user", "content": prompt}], **parameters}


def pieces_of(response: httpx.Response) -> aclosing[AsyncGenerator[bytes]]:
    """The pieces as they come; httpx's own iterators nest generators, which can't be left half-way."""
    assert isinstance(response.stream, httpx.AsyncByteStream)
    pieces = aiter(response.stream)
    assert isinstance(pieces, AsyncGenerator)
    return aclosing(pieces)


async def test_a_stream_arrives_piece_by_piece_in_virtual_time(autojump_clock: MockClock) -> None:
    client, provider = client_of("steady?latency=100")
    began_at, arrivals, received = trio.current_time(), [], b""
    async with client, client.stream("POST", "/chat/completions", json=chat(stream=True)) as response:
        assert trio.current_time() - began_at == pytest.approx(40)
        async for data in response.aiter_raw():
            arrivals.append(trio.current_time() - began_at)
            received += data
    assert arrivals == sorted(arrivals)
    assert len(set(arrivals)) >= 10
    assert arrivals[-1] == pytest.approx(100)
    assert received.endswith(b"data: [DONE]\n\n")
    assert (provider.statistics()["completed"], provider.statistics()["in_flight"]) == (1, 0)


async def test_a_plain_answer_and_embeddings_come_as_json(autojump_clock: MockClock) -> None:
    client, provider = client_of("steady")
    async with client:
        answer = (await client.post("/chat/completions", json=chat())).json()
        vectors = (await client.post("/embeddings", json={"model": "e", "input": "text"})).json()
        assert (await client.get("/models")).json()["data"][0]["id"] == "sim-1"
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert len(vectors["data"][0]["embedding"]) == 8
    assert provider.statistics()["completed"] == 2


async def test_a_refusal_comes_quickly_with_its_headers(autojump_clock: MockClock) -> None:
    client, provider = client_of("steady?burst=1&headers=true")
    async with client:
        await client.post("/chat/completions", json=chat())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: client.post("/chat/completions", json=chat()))
            await trio.sleep(0.01)
            before = trio.current_time()
            response = await client.post("/chat/completions", json=chat())
            assert trio.current_time() - before == pytest.approx(0.05)
    assert response.status_code == 429
    assert response.headers["retry-after"] == "1"
    assert response.headers["x-ratelimit-limit-requests"] == "1200"
    assert provider.statistics()["refused"] == {"requests": 1}


async def test_leaving_within_a_stream_frees_the_place_at_once(autojump_clock: MockClock) -> None:
    client, provider = client_of("steady?concurrency=1&latency=10")
    async with client:
        opened = client.stream("POST", "/chat/completions", json=chat(stream=True))
        async with opened as response, pieces_of(response) as pieces:
            await anext(pieces)
        assert provider.statistics()["aborted"] == 1
        assert (await client.post("/chat/completions", json=chat())).status_code == 200


@pytest.mark.parametrize("seconds", [1.0, 5.0])  # before the head, and within the stream
async def test_a_cancelled_client_leaves_as_well(seconds: float, autojump_clock: MockClock) -> None:
    client, provider = client_of("steady?latency=10")
    async with client:
        with trio.move_on_after(seconds) as scope:
            await client.post("/chat/completions", json=chat(stream=True))
    assert scope.cancelled_caught
    assert (provider.statistics()["aborted"], provider.statistics()["in_flight"]) == (1, 0)


async def test_a_client_that_stops_at_done_has_not_aborted(autojump_clock: MockClock) -> None:
    client, provider = client_of("steady")
    opened = client.stream("POST", "/chat/completions", json=chat(stream=True))
    async with client, opened as response, pieces_of(response) as pieces:
        while b"[DONE]" not in await anext(pieces):
            pass
    assert (provider.statistics()["completed"], provider.statistics()["aborted"]) == (1, 0)


async def outcome(client: httpx.AsyncClient, prompt: str) -> str:
    try:
        response = await client.post("/chat/completions", json=chat(prompt, stream=True))
    except httpx.TransportError as error:
        return type(error).__name__
    return f"{response.status_code} {'whole' if b'[DONE]' in response.content else 'not whole'}"


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        ("error", "500 not whole"),
        ("reset", "ReadError"),
        ("cut", "RemoteProtocolError"),
        ("truncate", "200 not whole"),
        ("stall", "RemoteProtocolError"),
    ],
)
async def test_faults_are_what_they_are_on_a_wire(fault: str, seen: str, autojump_clock: MockClock) -> None:
    client, provider = client_of(f"steady?{fault}_share=1&stall_seconds=1000")
    async with client:
        before = trio.current_time()
        assert {await outcome(client, f"{i}") for i in range(12)} == {seen}
        assert (trio.current_time() - before > 12_000) == (fault == "stall")
    assert (provider.statistics()["completed"], provider.statistics()["in_flight"]) == (0, 0)


async def test_the_patience_of_the_client_ends_a_stall(autojump_clock: MockClock) -> None:
    client, provider = client_of("steady?stall_share=1", timeout=5.0)
    async with client:
        before = trio.current_time()
        assert {await outcome(client, f"{i}") for i in range(12)} == {"ReadTimeout"}
        assert trio.current_time() - before < 12 * 6
    assert (provider.statistics()["aborted"], provider.statistics()["in_flight"]) == (12, 0)


async def test_insistent_clients_get_what_the_bucket_allows(autojump_clock: MockClock) -> None:
    client, provider = client_of("steady")

    async def insist(prompt: str) -> None:
        for _ in range(20):
            if await outcome(client, prompt) == "200 whole":
                return
            await trio.sleep(1)

    async with client, trio.open_nursery() as nursery:
        for i in range(120):
            nursery.start_soon(insist, f"{i}")
    assert provider.statistics()["completed"] == 120
    assert 5 <= trio.current_time() < 8  # 20 at once, 100 more at 20 per second


def test_two_runs_of_one_seed_give_the_same_bytes() -> None:
    async def run() -> str:
        client, _ = client_of("flaky?latency_spread=1", seed=5, timeout=60.0)
        async with client:
            return json.dumps([[await outcome(client, f"{i % 10}"), trio.current_time()] for i in range(30)])

    assert trio.run(run, clock=MockClock(autojump_threshold=0)) == trio.run(run, clock=MockClock(autojump_threshold=0))
