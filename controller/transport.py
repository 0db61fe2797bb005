"""Connections: a LIFO pool under httpx's transport interface, and the way through a proxy.

Why not httpx's own pool (httpcore 1.0.9): cancelling requests while connections open leaks its slots until every
request times out (https://github.com/encode/httpcore/issues/1093), under default limits it gives up keep-alive, and
each call walks all connections. This one has no cap, the limiter being the cap (a wait for a connection would count as
the upstream's slowness, https://github.com/encode/httpx/issues/1171), and does constant work per request.

Rules for editors. A connection is in exactly one hand: a request's or the idle stack's. Whatever is cancelled or
fails, the connection is closed, shielded and in bounded time; only a body read to its end gives it back. Nothing awaits
between taking from the stack and holding. Only public names of httpx and httpcore are used, and httpx2 has them too.
"""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from contextlib import suppress

import httpcore
import httpx
import trio
from attrs import frozen

from controller.connection import BROKEN, Content, Dialler, Line, as_httpx, had_closed
from controller.proxies import proxy_for

KEEPALIVE = 60.0  # seconds that a connection may lie idle; load balancers close at 60 or 75
CLOSE_PATIENCE = 1.0  # seconds for closing one connection
RESEND_WINDOW = 1.0  # seconds; a server that had closed shows it within a round trip, a later end is a real one


def open_transport(
    base_url: str, *, ca_file: str | None = None, environ: Mapping[str, str]
) -> httpx.AsyncBaseTransport:
    """The transport for one upstream; ca_file: PEM, trusted beside the usual ones. Raises ValueError."""
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise ValueError(f"base URL {base_url!r} is none: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(f"base URL {base_url!r} is not of the form http(s)://host/path")
    proxy = proxy_for(base_url, environ)
    context = _tls_context(ca_file) if url.scheme == "https" or proxy else None
    if proxy is None:
        return Pool(tls_context=context)
    unlimited = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=KEEPALIVE)
    try:
        return _Proxied(verify=context or True, trust_env=False, limits=unlimited, proxy=proxy)
    except (ValueError, ImportError, httpx.InvalidURL) as error:  # an unknown scheme; SOCKS without its package
        raise ValueError(f"the proxy of the environment cannot be used: {error}") from error


@frozen(kw_only=True)
class PoolStatistics:
    """Connections now, and how many were opened since the start."""

    open: int
    idle: int
    opened: int


class Pool(httpx.AsyncBaseTransport):
    """HTTP/1.1 connections made on demand, reused newest first, so that spares grow old and are closed.

    keepalive_expiry: seconds. Expired connections are closed when the pool is next used. network_backend: another way
    to the peer than TCP, for connections in memory.
    """

    def __init__(
        self,
        *,
        tls_context: ssl.SSLContext | None = None,
        keepalive_expiry: float = KEEPALIVE,
        network_backend: httpcore.AsyncNetworkBackend | None = None,
    ) -> None:
        self._tls_context = tls_context
        self._keepalive_expiry = keepalive_expiry
        self._network_backend = network_backend or httpcore.TrioBackend()
        self._idle: dict[str, deque[Line]] = {}
        self._lines: set[Line] = set()
        self._opened = 0
        self._closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The answer's head; its body holds the connection until it is read to the end or closed."""
        if self._closed:
            raise RuntimeError("the pool is closed")
        core = _core_request(request)
        line, expired = self._take(core.url.origin)
        await self._drop(expired)
        sent_at = trio.current_time()
        try:
            return await self._send(line, core)
        except httpx.TransportError as error:
            in_window = trio.current_time() - sent_at <= RESEND_WINDOW
            if not (line.used and in_window and isinstance(request.stream, httpx.ByteStream) and had_closed(error)):
                raise
        # The server had closed the idle connection: it never took the request (RFC 9112, section 9.3.1).
        return await self._send(self._dial(core.url.origin), core)

    async def aclose(self) -> None:
        """Close every connection, also those in use."""
        self._closed = True
        self._idle.clear()
        await self._drop(list(self._lines))

    def statistics(self) -> PoolStatistics:
        """Counts of connections."""
        return PoolStatistics(open=len(self._lines), idle=sum(map(len, self._idle.values())), opened=self._opened)

    def __repr__(self) -> str:
        now = self.statistics()
        return f"<Pool open={now.open} idle={now.idle} opened={now.opened}{' closed' if self._closed else ''}>"

    def _take(self, origin: httpcore.Origin) -> tuple[Line, list[Line]]:
        """The newest idle connection that still lives, else a new one; and those found dead on the way."""
        idle = self._idle.get(str(origin), deque())
        dead = self._expired(idle)
        while idle:
            line = idle.pop()
            if not line.connection.has_expired():  # it asks the socket for an end of file
                return line, dead
            dead.append(line)
        return self._dial(origin), dead

    def _expired(self, idle: deque[Line]) -> list[Line]:
        last = trio.current_time() - self._keepalive_expiry
        expired = []
        while idle and idle[0].idle_at < last:
            expired.append(idle.popleft())
        return expired

    def _dial(self, origin: httpcore.Origin) -> Line:
        if origin.scheme == b"https" and self._tls_context is None:
            self._tls_context = httpx.create_ssl_context()  # once: it costs 30 ms
        dialler = Dialler(self._network_backend)
        connection = httpcore.AsyncHTTPConnection(
            origin, ssl_context=self._tls_context, http2=False, network_backend=dialler
        )
        line = Line(key=str(origin), connection=connection, dialler=dialler)
        self._lines.add(line)
        self._opened += 1
        return line

    async def _send(self, line: Line, request: httpcore.Request) -> httpx.Response:
        try:
            with as_httpx():
                answer = await line.connection.handle_async_request(request)
        except BaseException:
            await self._drop([line])
            raise
        body = _Body(self, line, answer)
        return httpx.Response(answer.status, headers=answer.headers, stream=body, extensions=answer.extensions)

    async def keep_or_drop(self, line: Line) -> None:
        """Take a connection back from a body that was read to its end; close it if it can't be used again."""
        expired = [line]
        if line.connection.is_idle() and line in self._lines and not self._closed:
            line.used, line.idle_at = True, trio.current_time()
            idle = self._idle.setdefault(line.key, deque())
            idle.append(line)
            expired = self._expired(idle)
        await self._drop(expired)

    async def _drop(self, lines: Iterable[Line]) -> None:
        for line in lines:
            self._lines.discard(line)
            with trio.move_on_after(CLOSE_PATIENCE, shield=True):
                await line.aclose()


class _Body(httpx.AsyncByteStream):
    """The body of one answer, its own iterator; read to the end or closed before, it lets go of the connection once."""

    def __init__(self, pool: Pool, line: Line, answer: httpcore.Response) -> None:
        assert isinstance(answer.stream, AsyncIterable)
        self._pool = pool
        self._line: Line | None = line
        self._pieces = aiter(answer.stream)
        self._close_answer = answer.aclose

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._line is None:
            raise StopAsyncIteration
        try:
            with as_httpx():
                return await anext(self._pieces)
        except BaseException:  # the end, a broken connection, or our own cancellation
            await self.aclose()
            raise

    async def aclose(self) -> None:
        line, self._line = self._line, None
        if line is None:
            return
        with trio.move_on_after(CLOSE_PATIENCE, shield=True):
            await self._close_answer()
            # httpcore leaves its generators suspended where a body is not read to its end, and trio complains when
            # they are collected (https://github.com/encode/httpx/issues/2960). On a closed connection one more read
            # fails inside the innermost, which unwinds them all.
            with suppress(StopAsyncIteration, *BROKEN):
                while True:
                    await anext(self._pieces)
        await self._pool.keep_or_drop(line)


class _Proxied(httpx.AsyncHTTPTransport):
    """httpx's own proxy transport, whose failures to get through are called the proxy's."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            return await super().handle_async_request(request)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise httpx.ProxyError(str(error) or "cannot connect") from error


def _core_request(request: httpx.Request) -> httpcore.Request:
    url = request.url
    return httpcore.Request(
        method=request.method,
        url=httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
        headers=request.headers.raw,
        content=Content(request.content) if isinstance(request.stream, httpx.ByteStream) else request.stream,
        extensions=request.extensions,
    )


def _tls_context(ca_file: str | None) -> ssl.SSLContext:
    context = httpx.create_ssl_context()
    if ca_file is not None:
        try:
            context.load_verify_locations(ca_file)
        except OSError as error:  # ssl.SSLError is one
            raise ValueError(f"CA file {ca_file!r} cannot be used: {error}") from error
    return context
