"""The provider as an HTTP/1.1 server, with h11 over any trio stream.

A framework would hide what is needed here: to stop within an HTTP chunk, to be silent, to reset, and to notice a
client that goes away while nothing is being sent. So each connection is a loop of read one request, play one script,
and while a script is played a watcher reads.
"""

from __future__ import annotations

import errno
import socket
import struct
from contextlib import suppress
from functools import partial
from math import inf
from typing import Never

import h11
import trio
from attrs import define, field, frozen

from policies.contract import JSON
from simulations.answers import dump
from simulations.provider import Provider
from simulations.script import Ending, Piece, Script

LARGEST_BODY = 64 * 2**20  # bytes
LARGEST_PIPELINE = 2**20  # bytes a client may send ahead while it is being answered
READ_SIZE = 2**16  # bytes
LINGER = 1.0  # seconds to let a client read an error before the connection goes
WIRE = 0.01  # seconds after which a client has surely heard of a refusal
GONE = (trio.BrokenResourceError, trio.ClosedResourceError)


async def serve(
    provider: Provider,
    *,
    host: str = "localhost",
    port: int = 0,
    idle_timeout: float = 60.0,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> Never:
    """Serve until cancelled; reports the bound port. localhost means both loopback addresses, as far as there are two.

    idle_timeout: seconds a client may be silent between requests, or within one, before its connection is closed.
    """
    listeners = await _listen(host, port)
    handler = partial(serve_stream, provider=provider, idle_timeout=idle_timeout, began_at=trio.current_time())
    bound: int = listeners[0].socket.getsockname()[1]
    task_status.started(bound)
    await trio.serve_listeners(handler, listeners)


async def serve_stream(
    stream: trio.abc.Stream, provider: Provider, *, idle_timeout: float = inf, began_at: float = 0.0
) -> None:
    """Serve one connection to its end; nothing a client does raises. began_at: the provider's zero on trio's clock."""
    provider.connect()
    connection = _Connection(stream, provider, idle_timeout, began_at)
    try:
        await connection.serve()
    except GONE:
        pass
    except h11.RemoteProtocolError as error:
        await connection.complain(error.error_status_hint, str(error))
    finally:
        provider.disconnect()
        await trio.aclose_forcefully(stream)


@frozen(kw_only=True)
class _Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@define(eq=False)
class _Connection:
    stream: trio.abc.Stream
    provider: Provider
    idle_timeout: float
    began_at: float
    wire: h11.Connection = field(factory=lambda: h11.Connection(h11.SERVER), init=False)

    async def serve(self) -> None:
        """One request after the other, as long as both sides keep the connection."""
        while (request := await self._read_request()) is not None:
            if request.path.startswith("/_sim/"):
                await self._answer(*self._administer(request), method=request.method)
            elif not await self._attempt(request):
                return
            if self.wire.our_state is not h11.DONE or self.wire.their_state is not h11.DONE:
                await self._linger()
                return
            self.wire.start_next_cycle()

    async def complain(self, status: int, message: str) -> None:
        """A last answer to a client that does not speak HTTP, if it can still be given one."""
        error: JSON = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}
        with suppress(*GONE):
            if self.wire.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                await self._answer(status, error, method="", close=True)
                await self._linger()

    async def _read_request(self) -> _Request | None:
        """The next request, None when the client has gone or is silent for too long."""
        head: h11.Request | None = None
        body = bytearray()
        while True:
            event = self.wire.next_event()
            if event is h11.NEED_DATA:
                if self.wire.they_are_waiting_for_100_continue:
                    await self._send(h11.InformationalResponse(status_code=100, headers=[]))
                if not await self._receive():
                    return None
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > LARGEST_BODY:
                    raise h11.RemoteProtocolError("request body too large", error_status_hint=413)
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                return _understand(head, bytes(body))
            else:
                return None

    async def _receive(self) -> bool:
        """Feed h11; false at the end of the idle time. The end of the stream is fed too, h11 knows what it means."""
        with trio.move_on_after(self.idle_timeout) as patience:
            self.wire.receive_data(bytes(await self.stream.receive_some(READ_SIZE)))
        return not patience.cancelled_caught

    async def _attempt(self, request: _Request) -> bool:
        """Play the provider's script; false if the connection is over with it."""
        arrived_at = trio.current_time()
        now = arrived_at - self.began_at
        script = self.provider.arrive(now, request.method, request.path, request.headers, request.body)
        whole = False
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch, nursery.cancel_scope)
                whole = await self._play(script, arrived_at, silent_body=request.method == "HEAD")
                # At once, not after the watcher: the client may be back with its next attempt by then.
                self._leave(script, gone=not whole)
                nursery.cancel_scope.cancel()
        finally:
            self._leave(script, gone=True)  # only the first word counts
        if script.ending is Ending.RESET:
            _reset_on_close(self.stream)
        return whole and script.ending is Ending.CLEAN

    def _leave(self, script: Script, *, gone: bool) -> None:
        self.provider.leave(script.number, trio.current_time() - self.began_at, gone=gone, wire=WIRE)

    async def _watch(self, playing: trio.CancelScope) -> None:
        """Read on while a script is played, so that a client that goes away ends it at once."""
        with suppress(*GONE):
            while data := await self.stream.receive_some(READ_SIZE):
                self.wire.receive_data(bytes(data))
                if len(self.wire.trailing_data[0]) > LARGEST_PIPELINE:
                    break
        playing.cancel()

    async def _play(self, script: Script, arrived_at: float, *, silent_body: bool) -> bool:
        """Send everything at its time; false if the client has gone."""
        try:
            if script.head_at is not None:
                await trio.sleep_until(arrived_at + script.head_at)
                await self._send(h11.Response(status_code=script.status, headers=[*script.headers]))
            for piece in () if silent_body else script.pieces:
                await trio.sleep_until(arrived_at + piece.offset)
                await self.stream.send_all(self._frame(script, piece))
            if self.wire.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY):
                await trio.sleep_until(arrived_at + script.ends_at)
                if script.ending is Ending.CLEAN:
                    await self._send(h11.EndOfMessage())
        except GONE:
            return False
        return True

    def _frame(self, script: Script, piece: Piece) -> bytes:
        framed = self.wire.send(h11.Data(data=piece.data)) or b""
        if piece is not script.pieces[-1]:
            return framed
        if script.ending is not Ending.CLEAN:  # it stops within an HTTP chunk, not between two
            return framed[:-3]
        # In one go with the end: a client may hang up at [DONE], and that is no abort.
        return framed + (self.wire.send(h11.EndOfMessage()) or b"") if piece.offset >= script.ends_at else framed

    def _administer(self, request: _Request) -> tuple[int, JSON]:
        if (request.method, request.path) == ("POST", "/_sim/reset"):
            self.provider.reset()
        elif (request.method, request.path) != ("GET", "/_sim/statistics"):
            return 404, {"error": {"message": "there are GET /_sim/statistics and POST /_sim/reset"}}
        return 200, self.provider.statistics()

    async def _answer(self, status: int, value: JSON, *, method: str, close: bool = False) -> None:
        body = dump(value)
        headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
        await self._send(h11.Response(status_code=status, headers=headers + [("connection", "close")] * close))
        if method != "HEAD":
            await self._send(h11.Data(data=body))
        await self._send(h11.EndOfMessage())

    async def _send(self, event: h11.Event) -> None:
        await self.stream.send_all(self.wire.send(event) or b"")

    async def _linger(self) -> None:
        """Close in a way that lets the client read: closing with unread bytes would reset (RFC 9112, section 9.6)."""
        if isinstance(self.stream, trio.abc.HalfCloseableStream):
            await self.stream.send_eof()
            with trio.move_on_after(LINGER):
                while await self.stream.receive_some(READ_SIZE):
                    pass


def _understand(head: h11.Request, body: bytes) -> _Request:
    target = head.target.decode("latin-1")
    if target.startswith(("http://", "https://")):  # absolute form, as sent to a proxy (RFC 9112, section 3.2.2)
        target = "/" + target.split("/", 3)[3] if target.count("/") > 2 else "/"
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
    return _Request(method=head.method.decode("ascii"), path=target, headers=headers, body=body)


def _reset_on_close(stream: trio.abc.Stream) -> None:
    """Close with RST instead of FIN, where there is a socket (socket(7), SO_LINGER for no time at all)."""
    if isinstance(stream, trio.SocketStream):
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def _listen(host: str, port: int) -> list[trio.SocketListener]:
    if host != "localhost":
        return await trio.open_tcp_listeners(port, host=host)
    listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
    bound: int = listeners[0].socket.getsockname()[1]
    try:
        # The same port on both, or a client that asks for localhost would reach somebody else over the other one.
        return listeners + await trio.open_tcp_listeners(bound, host="::1")
    except OSError as error:
        if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):  # no IPv6 here
            return listeners
        for listener in listeners:
            await listener.aclose()
        if port == 0 and error.errno == errno.EADDRINUSE:
            return await _listen(host, port)
        raise
