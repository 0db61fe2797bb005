"""A peer on loopback that answers with exactly the bytes a test wants: the fake for everything on the wire."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Awaitable, Callable

import trio
from attrs import define, field

OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nok"


@define(eq=False)
class Peer:
    """One accepted connection."""

    stream: trio.abc.Stream
    number: int  # of this connection, from 1
    buffer: bytearray = field(factory=bytearray)

    async def request(self) -> bytes | None:
        """The next whole request (it must have a content-length or no body); None at the end of the connection."""
        while b"\r\n\r\n" not in self.buffer:
            if not await self._more():
                return None
        head, _, rest = bytes(self.buffer).partition(b"\r\n\r\n")
        lengths = [line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        length = int(lengths[0]) if lengths else 0
        while len(rest) < length:
            if not await self._more():
                return None
            rest = bytes(self.buffer).partition(b"\r\n\r\n")[2]
        self.buffer[:] = rest[length:]
        return head + b"\r\n\r\n" + rest[:length]

    async def _more(self) -> bool:
        try:
            data = await self.stream.receive_some(65_536)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        self.buffer.extend(data)
        return bool(data)

    async def send(self, data: bytes) -> None:
        """Send, whether the client still listens or not."""
        try:
            await self.stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            await trio.lowlevel.checkpoint()

    def reset(self) -> None:
        """Close with RST instead of FIN; plain TCP only."""
        assert isinstance(self.stream, trio.SocketStream)
        self.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.stream.socket.close()


Handler = Callable[[Peer], Awaitable[None]]


@define(eq=False)
class RawServer:
    """Runs `handler` for each connection and closes it afterwards."""

    handler: Handler
    tls: ssl.SSLContext | None = None
    accepted: int = 0
    open_now: int = 0
    port: int = 0

    async def start(self, nursery: trio.Nursery, host: str = "127.0.0.1") -> RawServer:
        """Listen; the accept loop runs in `nursery`."""
        listeners = await trio.open_tcp_listeners(0, host=host, backlog=1024)
        self.port = listeners[0].socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, self._serve, listeners)
        return self

    async def _serve(self, stream: trio.SocketStream) -> None:
        self.accepted += 1
        self.open_now += 1
        number = self.accepted
        try:
            tls = trio.SSLStream(stream, self.tls, server_side=True, https_compatible=True) if self.tls else None
            try:
                if tls is not None:
                    await tls.do_handshake()
                await self.handler(Peer(tls or stream, number))
            except trio.BrokenResourceError:
                await trio.lowlevel.checkpoint()  # the client went away, as it may
            finally:
                if stream.socket.fileno() >= 0:
                    await trio.aclose_forcefully(stream)
        finally:
            self.open_now -= 1


async def answer_ok(peer: Peer) -> None:
    """200 to every request, on a connection that is kept."""
    while await peer.request() is not None:
        await peer.send(OK)
