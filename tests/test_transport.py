"""The pool on real loopback sockets, on httpx and on its continuation httpx2."""

from __future__ import annotations

import gc
import importlib
import random
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from types import ModuleType

import httpx
import pytest
import trio
import trustme
from raw_server import OK, Peer, RawServer, answer_ok

from controller.proxies import proxy_for
from controller.transport import Pool, open_transport
from controller.trouble import words_for

OURS = ("controller.connection", "controller.transport")


@pytest.fixture(params=["httpx", "httpx2"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """httpx or httpx2; `pool_class` gives the Pool that was built on it, as if our imports named it."""
    name = request.param
    chosen: ModuleType = pytest.importorskip(name)
    if name == "httpx2":
        monkeypatch.setitem(sys.modules, "httpx", chosen)
        monkeypatch.setitem(sys.modules, "httpcore", importlib.import_module("httpcore2"))
        for module in OURS:
            monkeypatch.setattr(module, sys.modules[module])  # restores the package's attribute afterwards
            monkeypatch.delitem(sys.modules, module)
    return chosen


@pytest.fixture
def pool_class(library: ModuleType) -> type[Pool]:
    """The Pool on the chosen library."""
    found: type[Pool] = importlib.import_module("controller.transport").Pool
    assert issubclass(found, library.AsyncBaseTransport)
    return found


async def ask(
    pool: Pool, port: int, library: ModuleType = httpx, host: str = "127.0.0.1", scheme: str = "http"
) -> bytes:
    """The whole body of one answer."""
    request = library.Request("POST", f"{scheme}://{host}:{port}/v1", content=b"prompt")
    response = await pool.handle_async_request(request)
    body: bytes = await response.aread()
    return body


async def test_one_task_keeps_using_one_connection(
    nursery: trio.Nursery, pool_class: type[Pool], library: ModuleType
) -> None:
    server = await RawServer(answer_ok).start(nursery)
    async with pool_class() as pool:
        for _ in range(20):
            assert await ask(pool, server.port, library) == b"ok"
        assert repr(pool) == "<Pool open=1 idle=1 opened=1>"
    assert repr(pool) == "<Pool open=0 idle=0 opened=1 closed>"
    assert server.accepted == 1
    nursery.cancel_scope.cancel()


async def test_640_requests_of_64_tasks_open_at_most_80_connections(
    nursery: trio.Nursery, pool_class: type[Pool], library: ModuleType
) -> None:
    # httpx's pool opens 589 under its default limits.
    server = await RawServer(answer_ok).start(nursery)

    async def ten(pool: Pool) -> None:
        for _ in range(10):
            await ask(pool, server.port, library)

    async with pool_class() as pool:
        async with trio.open_nursery() as tasks:
            for _ in range(64):
                tasks.start_soon(ten, pool)
        assert pool.statistics().opened <= 80
        assert pool.statistics().open == pool.statistics().idle
    nursery.cancel_scope.cancel()


async def churn(pool: Pool, port: int, library: ModuleType, rounds: int, scheme: str = "http") -> None:
    """Requests that are cancelled after up to 8 ms: while connecting, waiting, reading, closing."""
    rng = random.Random(7)

    async def one(patience: float) -> None:
        with trio.move_on_after(patience):
            await ask(pool, port, library, host="localhost" if scheme == "https" else "127.0.0.1", scheme=scheme)

    for _ in range(rounds):
        async with trio.open_nursery() as tasks:
            for _ in range(20):
                tasks.start_soon(one, rng.uniform(0, 0.008))


async def slowly(peer: Peer) -> None:
    """An answer in pieces, with time between them to be cancelled in."""
    while await peer.request() is not None:
        for piece in (OK[:20], OK[20:-1], OK[-1:]):
            await trio.sleep(0.001)
            await peer.send(piece)


async def settles_at(condition: Callable[[], bool]) -> bool:
    """True as soon as the condition holds; False after two seconds."""
    with trio.move_on_after(2):
        while not condition():  # noqa: ASYNC110  # the state of sockets sends no events
            await trio.sleep(0.005)
    return condition()


@pytest.mark.parametrize("rounds", [8, pytest.param(300, marks=[pytest.mark.slow, pytest.mark.alone])])
async def test_the_pool_is_whole_after_cancellations_at_random_moments(
    nursery: trio.Nursery, pool_class: type[Pool], library: ModuleType, rounds: int
) -> None:
    # https://github.com/encode/httpcore/issues/1093: slots leak until every request times out.
    server = await RawServer(slowly).start(nursery)
    async with pool_class() as pool:
        await churn(pool, server.port, library, rounds)
        now = pool.statistics()
        assert now.open == now.idle
        assert await settles_at(lambda: server.open_now == now.open)  # no socket is left behind
        with trio.fail_after(2):
            assert await ask(pool, server.port, library) == b"ok"
    assert await settles_at(lambda: server.open_now == 0)
    nursery.cancel_scope.cancel()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """A private certificate authority."""
    return trustme.CA()


@pytest.fixture
def server_tls(authority: trustme.CA) -> ssl.SSLContext:
    """TLS for a server called localhost."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    return context


@pytest.fixture
def client_tls(authority: trustme.CA) -> ssl.SSLContext:
    """A client's context that trusts it."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


async def test_a_cancelled_tls_handshake_closes_its_socket(
    nursery: trio.Nursery, pool_class: type[Pool], library: ModuleType, client_tls: ssl.SSLContext
) -> None:
    # httpcore forgets the socket here, which then waits for the garbage collector.
    async def mute(peer: Peer) -> None:
        await peer.request()

    server = await RawServer(mute).start(nursery)
    gc.disable()
    try:
        async with pool_class(tls_context=client_tls) as pool:
            with trio.move_on_after(0.05) as patience, pytest.raises(trio.Cancelled) as caught:
                await ask(pool, server.port, library, "localhost", "https")
            assert await settles_at(lambda: server.open_now == 0)
            assert caught.value is not None  # its traceback holds the frames, and so the socket, up to here
            assert not patience.cancelled_caught
    finally:
        gc.enable()
    nursery.cancel_scope.cancel()


async def test_cancelled_tls_set_ups_leave_no_socket_behind(
    nursery: trio.Nursery,
    pool_class: type[Pool],
    library: ModuleType,
    server_tls: ssl.SSLContext,
    client_tls: ssl.SSLContext,
) -> None:
    server = await RawServer(slowly, tls=server_tls).start(nursery)
    async with pool_class(tls_context=client_tls) as pool:
        await churn(pool, server.port, library, 4, scheme="https")
        now = pool.statistics()
        assert now.open == now.idle
        assert await settles_at(lambda: server.open_now == now.open)
        with trio.fail_after(2):
            assert await ask(pool, server.port, library, "localhost", "https") == b"ok"
    nursery.cancel_scope.cancel()


async def test_a_private_authority_is_trusted_only_when_named(
    nursery: trio.Nursery, authority: trustme.CA, server_tls: ssl.SSLContext, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ca_file = str(tmp_path_factory.mktemp("tls") / "ca.pem")
    authority.cert_pem.write_to_path(ca_file)
    server = await RawServer(answer_ok, tls=server_tls).start(nursery)
    url = f"https://localhost:{server.port}/v1"
    async with open_transport(url, environ={}, ca_file=ca_file) as trusting:
        response = await trusting.handle_async_request(httpx.Request("GET", url))
        assert await response.aread() == b"ok"
    async with open_transport(url, environ={}) as doubting:
        with pytest.raises(httpx.ConnectError) as caught:
            await doubting.handle_async_request(httpx.Request("GET", url))
    assert words_for(caught.value, httpx.URL(url)).startswith(f"certificate of localhost:{server.port} is not trusted")
    nursery.cancel_scope.cancel()


async def test_a_ca_file_that_is_none_is_a_value_error() -> None:
    with pytest.raises(ValueError, match=r"CA file '.*/nowhere.pem'"):
        open_transport("https://example.com/v1", environ={}, ca_file="/nowhere/nowhere.pem")


async def test_a_connection_that_the_server_closed_while_idle_is_not_used_again(
    nursery: trio.Nursery, pool_class: type[Pool], library: ModuleType
) -> None:
    async def once(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)

    async def unrepeatable() -> AsyncIterator[bytes]:
        yield b"prompt"

    server = await RawServer(once).start(nursery)
    url = f"http://127.0.0.1:{server.port}/"
    async with pool_class() as pool:
        assert await ask(pool, server.port, library) == b"ok"
        assert await settles_at(lambda: server.open_now == 0)
        await trio.sleep(0.01)
        request = library.Request("POST", url, content=unrepeatable(), headers={"content-length": "6"})
        assert await (await pool.handle_async_request(request)).aread() == b"ok"
        assert pool.statistics().opened == 2
    nursery.cancel_scope.cancel()


async def test_the_newest_idle_connection_is_used_first(
    nursery: trio.Nursery, pool_class: type[Pool], library: ModuleType
) -> None:
    numbers: list[int] = []
    turns = [trio.Event() for _ in range(3)]  # all three come before the first is answered, each when the last is idle

    async def note(peer: Peer) -> None:
        while await peer.request() is not None:
            numbers.append(peer.number)
            if len(numbers) == 3:
                turns[0].set()
            await turns[len(numbers) - 1].wait()
            await peer.send(OK)

    server = await RawServer(note).start(nursery)
    async with pool_class() as pool:

        async def one_by_one() -> None:
            await ask(pool, server.port, library)
            next((turn for turn in turns if not turn.is_set()), turns[0]).set()

        async with trio.open_nursery() as tasks:
            for _ in range(3):
                tasks.start_soon(one_by_one)
        last = numbers[-1]
        del numbers[:]
        for _ in range(3):
            await ask(pool, server.port, library)
        assert numbers == [last] * 3
    nursery.cancel_scope.cancel()


async def unread_close(peer: Peer) -> None:
    """Closes on the second request without having read it, so the client gets a reset."""
    await peer.request()
    await peer.send(OK)
    assert isinstance(peer.stream, trio.SocketStream)
    await trio.lowlevel.wait_readable(peer.stream.socket)


async def read_close(peer: Peer) -> None:
    """Closes on the second request with a FIN."""
    await peer.request()
    await peer.send(OK)
    await peer.request()


async def continue_close(peer: Peer) -> None:
    """Says 100 Continue to the second request and closes."""
    await peer.request()
    await peer.send(OK)
    if await peer.request() is not None:
        await peer.send(b"HTTP/1.1 100 Continue\r\n\r\n")


@pytest.mark.parametrize("ending", [unread_close, read_close, continue_close])
async def test_a_request_that_meets_a_closing_connection_is_sent_again_once(
    nursery: trio.Nursery, pool_class: type[Pool], library: ModuleType, ending: Callable[[Peer], Awaitable[None]]
) -> None:
    server = await RawServer(ending).start(nursery)
    async with pool_class() as pool:
        assert await ask(pool, server.port, library) == b"ok"
        assert await ask(pool, server.port, library) == b"ok"
        assert pool.statistics().opened == 2
    nursery.cancel_scope.cancel()


async def test_a_connection_that_ends_later_has_taken_the_request(
    nursery: trio.Nursery, pool_class: type[Pool], library: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def pondering(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()
        await trio.sleep(0.05)

    monkeypatch.setattr(sys.modules["controller.transport"], "RESEND_WINDOW", 0.01)
    server = await RawServer(pondering).start(nursery)
    async with pool_class() as pool:
        await ask(pool, server.port, library)
        with pytest.raises(library.RemoteProtocolError):
            await ask(pool, server.port, library)
    assert server.accepted == 1
    nursery.cancel_scope.cancel()


async def test_a_fresh_connection_that_is_closed_without_an_answer_is_a_failure(
    nursery: trio.Nursery, pool_class: type[Pool], library: ModuleType
) -> None:
    async def never(peer: Peer) -> None:
        await peer.request()

    server = await RawServer(never).start(nursery)
    async with pool_class() as pool:
        with pytest.raises(library.RemoteProtocolError):
            await ask(pool, server.port, library)
        assert repr(pool) == "<Pool open=0 idle=0 opened=1>"
    assert server.accepted == 1
    nursery.cancel_scope.cancel()


async def test_an_idle_connection_is_closed_when_it_has_expired(
    nursery: trio.Nursery, pool_class: type[Pool], library: ModuleType
) -> None:
    server = await RawServer(answer_ok).start(nursery)
    async with pool_class(keepalive_expiry=0.01) as pool:
        await ask(pool, server.port, library)
        await trio.sleep(0.02)
        await ask(pool, server.port, library)
        assert repr(pool) == "<Pool open=1 idle=1 opened=2>"
    nursery.cancel_scope.cancel()


async def test_a_body_left_unread_closes_its_connection_without_a_word(
    nursery: trio.Nursery, pool_class: type[Pool], library: ModuleType
) -> None:
    async def endless(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n")
        await peer.request()

    server = await RawServer(endless).start(nursery)
    async with pool_class() as pool:
        response = await pool.handle_async_request(library.Request("GET", f"http://127.0.0.1:{server.port}/"))
        assert isinstance(response.stream, library.AsyncByteStream)
        assert await anext(aiter(response.stream)) == b"ok"
        await response.aclose()
        assert repr(pool) == "<Pool open=0 idle=0 opened=1>"
    nursery.cancel_scope.cancel()


async def test_ipv6_loopback_is_reached(nursery: trio.Nursery, pool_class: type[Pool], library: ModuleType) -> None:
    try:
        server = await RawServer(answer_ok).start(nursery, host="::1")
    except OSError:
        pytest.skip("no IPv6 here")
    async with pool_class() as pool:
        assert await ask(pool, server.port, library, host="[::1]") == b"ok"
    nursery.cancel_scope.cancel()


ENVIRON = {"HTTP_PROXY": "http://p:1", "HTTPS_PROXY": "q:2", "NO_PROXY": ".corp.example, 10.0.0.0/8,api.example:8443"}


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("http://api.example/v1", "http://p:1"),
        ("https://api.example/v1", "http://q:2"),
        ("https://api.example:8443/v1", None),
        ("https://llm.corp.example/v1", None),
        ("https://notcorp.example/v1", "http://q:2"),
        ("http://10.1.2.3/v1", None),
        ("http://127.0.0.1:8000/v1", None),
        ("http://127.9.9.9/v1", None),
        ("http://[::1]:8000/v1", None),
        ("http://localhost:8000/v1", None),
    ],
)
def test_the_environment_names_the_proxy_and_loopback_goes_direct(url: str, proxy: str | None) -> None:
    assert proxy_for(url, ENVIRON) == proxy


def test_lower_case_proxy_variables_win_and_a_star_exempts_all() -> None:
    assert proxy_for("http://a/", {"http_proxy": "http://small:1", "HTTP_PROXY": "http://big:1"}) == "http://small:1"
    assert proxy_for("http://a/", {"all_proxy": "http://all:1", "no_proxy": "*"}) is None


async def test_a_proxied_upstream_is_reached_through_its_proxy(nursery: trio.Nursery) -> None:
    seen: list[bytes] = []

    async def proxy(peer: Peer) -> None:
        seen.append(await peer.request() or b"")
        await peer.send(OK)

    server = await RawServer(proxy).start(nursery)
    url = "http://upstream.invalid/v1"
    async with open_transport(url, environ={"HTTP_PROXY": f"http://127.0.0.1:{server.port}"}) as transport:
        response = await transport.handle_async_request(httpx.Request("GET", url))
        assert await response.aread() == b"ok"
    assert seen[0].startswith(b"GET http://upstream.invalid/v1 HTTP/1.1")
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("url", ["localhost:8000/v1", "ftp://host/v1", "http:///v1", ""])
def test_a_base_url_without_scheme_or_host_is_a_value_error(url: str) -> None:
    with pytest.raises(ValueError, match="base URL"):
        open_transport(url, environ={})
