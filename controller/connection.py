"""One connection of the pool: httpcore's own, closed without loss, with its exceptions translated to httpx's."""

from __future__ import annotations

import errno
import math
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager

import httpcore
import httpx
from attrs import define, field

MAPPED: dict[type[Exception], type[httpx.TransportError]] = {
    httpcore.ConnectTimeout: httpx.ConnectTimeout,
    httpcore.ReadTimeout: httpx.ReadTimeout,
    httpcore.WriteTimeout: httpx.WriteTimeout,
    httpcore.PoolTimeout: httpx.PoolTimeout,
    httpcore.ConnectError: httpx.ConnectError,
    httpcore.ReadError: httpx.ReadError,
    httpcore.WriteError: httpx.WriteError,
    httpcore.ProxyError: httpx.ProxyError,
    httpcore.UnsupportedProtocol: httpx.UnsupportedProtocol,
    httpcore.LocalProtocolError: httpx.LocalProtocolError,
    httpcore.RemoteProtocolError: httpx.RemoteProtocolError,
}
BROKEN = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException)
_CLOSED_BY_PEER = frozenset({errno.ECONNRESET, errno.EPIPE})


@define(eq=False)
class Line:
    """One connection and what the pool knows of it."""

    key: str  # the origin, as text
    connection: httpcore.AsyncHTTPConnection
    dialler: Dialler
    idle_at: float = field(default=-math.inf, init=False)  # instant on trio's clock
    used: bool = field(default=False, init=False)  # it has carried a whole answer: it may have died since

    async def aclose(self) -> None:
        """Close the socket, however far the connection got."""
        await self.connection.aclose()
        await self.dialler.aclose()


class Dialler(httpcore.AsyncNetworkBackend):
    """The backend of one connection; it remembers the socket, which httpcore loses if TLS set-up is cancelled."""

    def __init__(self, backend: httpcore.AsyncNetworkBackend) -> None:
        self._backend = backend
        self._stream: httpcore.AsyncNetworkStream | None = None

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        self._stream = await self._backend.connect_tcp(host, port, timeout, local_address, socket_options)
        return self._stream

    async def aclose(self) -> None:
        if self._stream is not None:
            await self._stream.aclose()


class Content:
    """The bytes of a request, any number of times.

    No generator, like httpx's: httpcore abandons that when a write is cancelled or fails.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._given = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        self._given = False
        return self

    async def __anext__(self) -> bytes:
        if self._given:
            raise StopAsyncIteration
        self._given = True
        return self._content


@contextmanager
def as_httpx() -> Iterator[None]:
    """Turn httpcore's exceptions into httpx's, by MAPPED."""
    try:
        yield
    except tuple(MAPPED) as error:
        raise MAPPED[type(error)](str(error)) from error


def had_closed(error: BaseException) -> bool:
    """Whether the failure of a reused connection shows that the peer had closed it before the request came."""
    if isinstance(error, httpx.RemoteProtocolError) and "without sending a response" in str(error):
        return True
    cause: BaseException | None = error
    while cause is not None and not (isinstance(cause, OSError) and cause.errno in _CLOSED_BY_PEER):
        cause = cause.__cause__ or cause.__context__
    return cause is not None
