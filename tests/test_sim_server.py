"""The simulated upstream over real loopback sockets, with httpx and with raw bytes."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator

import httpx
import pytest
import trio
import trio.testing

from policies.contract import JSON
from simulations.profile import load_profile
from simulations.provider import Provider
from simulations.server import serve, serve_stream

FAST = "steady?latency=0.02&rate=1000&burst=1000&refusal_delay=0.001"
SLOW = "steady?latency=30&first_token=0"  # the head and the first event at once, then next to nothing


def chat(prompt: str = "hello", **parameters: JSON) -> dict[str, JSON]:
    return {"model": "m", "messages": [{"role": "user", "content": prompt}], **parameters}


class Served:
    """A provider that listens, and a client of it."""

    def __init__(self, provider: Provider, port: int) -> None:
        self.provider, self.port = provider, port
        # No proxy variables, no certificates to load: this is the loopback.
        self.client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/v1", trust_env=False, verify=False)  # noqa: S501

    async def statistic(self, key: str, expected: JSON) -> None:
        """Wait, briefly, until the server has noticed."""
        with trio.fail_after(2):
            while self.provider.statistics()[key] != expected:  # noqa: ASYNC110
                await trio.sleep(0.002)

    async def raw(self, data: bytes) -> bytes:
        """Everything that comes back for these bytes, until the server closes."""
        async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
            await stream.send_all(data)
            with trio.fail_after(2):
                return b"".join([chunk async for chunk in stream])


@pytest.fixture
async def served(request: pytest.FixtureRequest, nursery: trio.Nursery) -> AsyncIterator[Served]:
    spec, idle_timeout = request.param if isinstance(request.param, tuple) else (request.param, 60.0)
    provider = Provider(load_profile(spec))

    async def listen(*, task_status: trio.TaskStatus[int]) -> None:
        await serve(provider, port=0, idle_timeout=idle_timeout, task_status=task_status)

    served = Served(provider, await nursery.start(listen))
    async with served.client:
        yield served


def listening(spec: str, idle_timeout: float = 60.0) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("served", [(spec, idle_timeout)], indirect=True, ids=[spec])


@listening(FAST)
async def test_streams_answers_and_vectors_arrive_over_one_connection(served: Served) -> None:
    for _ in range(3):
        async with served.client.stream("POST", "/chat/completions", json=chat(stream=True)) as response:
            assert response.headers["transfer-encoding"] == "chunked"
            assert (await response.aread()).endswith(b"data: [DONE]\n\n")
    answer = await served.client.post("/chat/completions", json=chat())
    assert answer.json()["choices"][0]["finish_reason"] == "stop"
    vectors = await served.client.post("/embeddings", json={"model": "e", "input": ["a", "b"]})
    assert len(vectors.json()["data"]) == 2
    assert (await served.client.get("/models")).status_code == 200
    await served.statistic("completed", 5)
    assert (served.provider.statistics()["connections"], served.provider.statistics()["in_flight"]) == (1, 0)


@listening("steady?burst=1&headers=true&refusal_delay=0.01&latency=0.01")
async def test_a_refusal_keeps_the_connection_and_carries_its_headers(served: Served) -> None:
    await served.client.post("/chat/completions", json=chat())
    refusal = await served.client.post("/chat/completions", json=chat())
    assert (refusal.status_code, refusal.headers["retry-after"]) == (429, "1")
    assert refusal.headers["x-ratelimit-remaining-requests"] == "0"
    assert refusal.json()["error"]["code"] == "rate_limit_exceeded"
    assert served.provider.statistics()["connections"] == 1


@listening(FAST)
async def test_statistics_and_reset_are_served(served: Served) -> None:
    await served.client.post("/chat/completions", json=chat())
    address = f"http://127.0.0.1:{served.port}/_sim"
    figures = (await served.client.get(f"{address}/statistics")).json()
    assert figures == served.provider.statistics()
    assert (figures["attempts"], figures["completed"]) == (1, 1)
    assert (await served.client.post(f"{address}/reset")).json()["attempts"] == 0
    assert (await served.client.get(f"{address}/nothing")).status_code == 404


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("served", "expected"),
    [
        (f"{FAST}&reset_share=1", httpx.ReadError),
        (f"{FAST}&cut_share=1", httpx.RemoteProtocolError),
        (f"{FAST}&stall_share=1&stall_seconds=0.02", httpx.RemoteProtocolError),
    ],
    indirect=["served"],
)
async def test_broken_answers_break_on_the_wire(
    served: Served, expected: type[httpx.TransportError], stream: bool
) -> None:
    for i in range(6):
        with pytest.raises(expected):
            await served.client.post("/chat/completions", json=chat(f"{i}", stream=stream))
    await served.statistic("in_flight", 0)
    assert served.provider.statistics()["aborted"] == 0


@listening(f"{FAST}&truncate_share=1")
async def test_a_truncated_stream_ends_cleanly_without_its_terminator(served: Served) -> None:
    for _ in range(2):
        response = await served.client.post("/chat/completions", json=chat(stream=True))
        assert response.content.startswith(b"data: ")
        assert b"[DONE]" not in response.content
    assert served.provider.statistics()["connections"] == 1


@listening(f"{FAST}&error_share=1")
async def test_an_injected_error_is_a_plain_500(served: Served) -> None:
    response = await served.client.post("/chat/completions", json=chat(stream=True))
    assert (response.status_code, response.json()["error"]["type"]) == (500, "server_error")


@pytest.mark.parametrize("served", [SLOW, f"{SLOW}&stall_share=1&stall_seconds=30"], indirect=True)
async def test_a_client_that_goes_away_is_noticed_while_nothing_is_sent(served: Served) -> None:
    async def stream(prompt: str) -> None:
        await served.client.post("/chat/completions", json=chat(prompt, stream=True))

    async with trio.open_nursery() as nursery:
        for i in range(4):
            nursery.start_soon(stream, f"{i}")
        await served.statistic("in_flight", 4)
        nursery.cancel_scope.cancel()
    await served.statistic("aborted", 4)
    assert served.provider.statistics()["in_flight"] == 0


@listening(FAST)
async def test_a_client_that_hangs_up_at_done_has_not_aborted(served: Served) -> None:
    body = json.dumps(chat(stream=True)).encode()
    async with await trio.open_tcp_stream("127.0.0.1", served.port) as stream:
        await stream.send_all(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: sim\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        await stream.send_all(body)
        received = b""
        while b"[DONE]" not in received:
            received += await stream.receive_some()
    await served.statistic("completed", 1)
    assert served.provider.statistics()["aborted"] == 0


@listening(FAST)
async def test_the_path_decides_the_dialect_over_one_connection(served: Served) -> None:
    gemini = {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}
    version = {"anthropic-version": "2023-06-01"}
    at = f"http://127.0.0.1:{served.port}"
    stream = await served.client.post(f"{at}/v1beta/models/m:streamGenerateContent?alt=sse", json=gemini)
    assert stream.headers["content-type"] == "text/event-stream"
    assert stream.content.endswith(b"\r\n\r\n")
    array = await served.client.post(f"{at}/v1beta/models/m:streamGenerateContent", json=gemini)
    assert array.json()[-1]["candidates"][0]["finishReason"] == "STOP"
    messages = await served.client.post("/messages", json=chat(stream=True, max_tokens=99), headers=version)
    assert messages.content.endswith(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
    response = await served.client.post("/responses", json={"model": "m", "input": "hello"})
    assert response.json()["status"] == "completed"
    assert served.provider.statistics()["attempts_by_dialect"] == {"gemini": 2, "anthropic": 1, "responses": 1}
    assert (served.provider.statistics()["connections"], served.provider.statistics()["connections_open"]) == (1, 1)


@pytest.mark.parametrize(
    ("served", "status", "kind", "body"),
    [
        (f"{FAST}&fault=html", 200, "text/html", b"<!DOCTYPE html>"),
        (f"{FAST}&fault=empty", 200, "text/event-stream", b""),
        (f"{FAST}&fault=pretty-error", 200, "text/event-stream", b'{\n  "error":'),
        (f"{FAST}&fault=html-502", 502, "text/html", b"<!DOCTYPE html>"),
        (f"{FAST}&fault=empty-502", 502, "text/html", b""),
        (f"{FAST}&fault=empty-429", 429, "text/plain", b""),
        (f"{FAST}&fault=text-429", 429, "text/plain", b"slow down"),
        (f"{FAST}&fault=http-quota", 429, "application/json", b'{"error":{"message":"You exceeded'),
        (f"{FAST}&fault=in-band-rate&fault_at=0", 200, "text/event-stream", b'data: {"error":{"message":"Rate'),
    ],
    indirect=["served"],
)
async def test_what_is_no_answer_arrives_as_it_is(served: Served, status: int, kind: str, body: bytes) -> None:
    for _ in range(2):
        response = await served.client.post("/chat/completions", json=chat(stream=True))
        assert (response.status_code, response.headers["content-type"]) == (status, kind)
        assert response.content.startswith(body)
        assert response.content or not body
    assert served.provider.statistics()["connections"] == 1


@listening(f"{FAST}&fault=error-done&fault_at=2")
async def test_an_error_may_be_followed_by_the_terminator(served: Served) -> None:
    response = await served.client.post("/chat/completions", json=chat(stream=True))
    *_, error, done, rest = response.content.split(b"\n\n")
    assert (error.startswith(b'data: {"error":'), done, rest) == (True, b"data: [DONE]", b"")


@listening(f"{FAST}&fault=comments&stall_seconds=0.1")
async def test_comments_alone_come_before_the_cut(served: Served) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        await served.client.post("/chat/completions", json=chat(stream=True))
    body = json.dumps(chat(stream=True)).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: sim\r\nContent-Length: %d\r\n\r\n" % len(body)
    assert (await served.raw(head + body)).count(b": keep-alive\n\n") == 20  # the last one is cut


@pytest.mark.parametrize("manners", ["bytewise", "gzip", "bytewise,gzip,cr,bom", "fields,multi-line,padding,long-line"])
async def test_manners_arrive_and_whole_answers_stay_whole(manners: str, nursery: trio.Nursery) -> None:
    provider = Provider(load_profile(f"{FAST}&manners={manners}"))

    async def listen(*, task_status: trio.TaskStatus[int]) -> None:
        await serve(provider, port=0, task_status=task_status)

    served = Served(provider, await nursery.start(listen))
    async with served.client:
        response = await served.client.post("/chat/completions", json=chat(stream=True))
        assert b"data: [DONE]" in response.content
        assert response.headers.get("content-encoding") == ("gzip" if "gzip" in manners else None)
        plain = await served.client.post("/chat/completions", json=chat())
        assert plain.json()["choices"][0]["finish_reason"] == "stop"
        await served.statistic("completed", 2)


@listening(f"{FAST}&manners=held")
async def test_a_connection_may_be_held_after_the_terminator(served: Served) -> None:
    body = json.dumps(chat(stream=True)).encode()
    async with await trio.open_tcp_stream("127.0.0.1", served.port) as stream:
        await stream.send_all(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: sim\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        received = b""
        while b"[DONE]" not in received:
            received += await stream.receive_some()
        with trio.move_on_after(0.05) as silence:
            assert not await stream.receive_some()
        assert silence.cancelled_caught
        assert served.provider.statistics()["in_flight"] == 1
    await served.statistic("completed", 1)
    assert served.provider.statistics()["aborted"] == 0
    await served.statistic("connections_open", 0)


@listening(f"{FAST}&outages=[[0,3600]]")
async def test_in_an_outage_connections_are_reset(served: Served) -> None:
    for _ in range(2):
        with pytest.raises(httpx.ReadError):
            await served.client.post("/chat/completions", json=chat())
    assert served.provider.statistics()["refused"] == {"outage": 2}


@listening(FAST, idle_timeout=0.05)
async def test_an_idle_connection_is_closed(served: Served) -> None:
    assert await served.raw(b"") == b""
    assert await served.raw(b"POST /v1/chat/compl") == b""
    answer = await served.raw(b"GET /v1/models HTTP/1.1\r\nHost: sim\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")


@listening(FAST)
async def test_connection_close_is_obeyed(served: Served) -> None:
    for _ in range(2):
        response = await served.client.get("/models", headers={"Connection": "close"})
        assert response.status_code == 200
    assert served.provider.statistics()["connections"] == 2


@listening(FAST)
async def test_expectations_chunks_and_pipelines_are_understood(served: Served) -> None:
    body = json.dumps(chat()).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: sim\r\n"
    async with await trio.open_tcp_stream("127.0.0.1", served.port) as stream:
        await stream.send_all(head + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 100 ")
        await stream.send_all(body)
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")
    chunked = b"Transfer-Encoding: chunked\r\n%s\r\n" + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    answers = await served.raw(head + chunked % b"" + head + chunked % b"Connection: close\r\n")
    assert answers.count(b"HTTP/1.1 200 ") == 2


@listening(FAST)
async def test_unknown_methods_and_paths_are_told_so(served: Served) -> None:
    for method in ("HEAD", "GET", "PUT", "BREW"):
        response = await served.client.request(method, "/chat/completions")
        assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert (await served.client.post("/completions", json=chat())).status_code == 404
    assert (await served.client.post("/chat/completions", content=b"{")).status_code == 400
    absolute = b"GET http://sim.example/v1/models HTTP/1.1\r\nHost: sim\r\nConnection: close\r\n\r\n"
    assert (await served.raw(absolute)).startswith(b"HTTP/1.1 200 ")
    assert (await served.raw(b"GET /v1/models HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200 ")


@listening(FAST, idle_timeout=0.05)
@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20,  # TLS
        b"\r\n\r\nrubbish\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",  # no Host
        b"POST /v1/embeddings HTTP/1.1\r\nHost: sim\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/embeddings HTTP/1.1\r\nHost: sim\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"a" * 200_000,
        b"GET http://[ HTTP/1.1\r\nHost: sim\r\nConnection: close\r\n\r\n",
        b"CONNECT sim:443 HTTP/1.1\r\nHost: sim\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: sim\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
        b"HEAD /_sim/statistics HTTP/1.1\r\nHost: sim\r\n\r\n",
    ],
)
async def test_no_bytes_of_a_client_bring_the_server_down(data: bytes, served: Served) -> None:
    answer = await served.raw(data)
    assert answer == b"" or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 200 "))
    assert (await served.client.get("/models")).status_code == 200


@listening(FAST)
async def test_a_connection_reset_by_the_client_harms_nobody(served: Served) -> None:
    stream = await trio.open_tcp_stream("127.0.0.1", served.port)
    await stream.send_all(b"POST /v1/chat/completions HTTP/1.1\r\nHost: sim\r\nContent-Length: 100\r\n\r\n{")
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
    await stream.aclose()
    assert (await served.client.get("/models")).status_code == 200


@listening(FAST)
async def test_localhost_is_both_loopback_addresses(served: Served) -> None:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError:
        pytest.skip("no IPv6 here")
    assert (await served.client.get(f"http://[::1]:{served.port}/v1/models")).status_code == 200


async def test_a_connection_in_memory_is_served_as_well() -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_stream, theirs, Provider(load_profile(FAST)))
        await ours.send_all(b"GET /v1/models HTTP/1.1\r\nHost: sim\r\nConnection: close\r\n\r\n")
        received = b"".join([chunk async for chunk in ours])
        await ours.aclose()
    assert received.startswith(b"HTTP/1.1 200 ")


async def test_a_body_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulations.server.LARGEST_BODY", 1000)
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_stream, theirs, Provider(load_profile(FAST)))
        await ours.send_all(b"POST /v1/models HTTP/1.1\r\nHost: sim\r\nContent-Length: 2000\r\n\r\n" + b"x" * 2000)
        assert (await ours.receive_some()).startswith(b"HTTP/1.1 413 ")
        await ours.aclose()
