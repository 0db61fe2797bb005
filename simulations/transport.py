"""The provider as an httpx transport: scripts played in trio's time, without sockets or threads.

Under trio's MockClock with autojump a run takes as long as it computes. Broken scripts raise what httpx's own
transport raises for the like on a wire, and httpx's read time-out is kept, so a client can't tell the two apart.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from math import inf

import httpx
import trio
from attrs import define, field

from simulations.provider import Provider
from simulations.script import Ending, Piece, Script


class SimulatedTransport(httpx.AsyncBaseTransport):
    """Sends to `provider`, whose time begins with the first request."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        self._began_at: float | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The head of the answer, at its time; raises httpx.ReadError if the script has none."""
        body = await request.aread()
        arrived_at = trio.current_time()
        began_at = self._began_at = arrived_at if self._began_at is None else self._began_at
        script = self.provider.arrive(
            arrived_at - began_at,
            request.method,
            request.url.raw_path.decode("ascii"),
            {name.lower(): value for name, value in request.headers.items()},
            body,
        )
        stream = ScriptStream(self.provider, script, arrived_at, began_at, _read_timeout(request))
        try:
            await stream.wait_until(script.ends_at if script.head_at is None else script.head_at)
            if script.head_at is None:
                raise _broken(script.ending)
        except BaseException:  # also a cancel: nobody else will close the stream
            stream.leave()
            raise
        return httpx.Response(
            script.status, headers=[*script.headers], stream=stream, extensions={"http_version": b"HTTP/1.1"}
        )


@define(eq=False)
class ScriptStream(httpx.AsyncByteStream):
    """The body of one script. Closing it, at the end or before, says leave to the provider, once."""

    provider: Provider
    script: Script
    arrived_at: float  # on trio's clock
    began_at: float
    read_timeout: float  # seconds without a byte
    _left: bool = field(default=False, init=False)
    _pieces: Iterator[Piece] = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Begin with the first piece."""
        self._pieces = iter(self.script.pieces)

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Itself, once; no generator, so that nothing is left to be collected when a client stops half-way."""
        return self

    async def __anext__(self) -> bytes:
        """The next piece at its time, then the ending at its."""
        piece = next(self._pieces, None)
        if piece is not None:
            await self.wait_until(piece.offset)
            return piece.data
        await self.wait_until(self.script.ends_at)
        if self.script.ending is not Ending.CLEAN:
            raise _broken(self.script.ending)
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Never waits, so that it works within a cancelled scope as well."""
        self.leave()

    def leave(self) -> None:
        """Tell the provider, unless it knows."""
        if not self._left:
            self._left = True
            self.provider.leave(self.script.number, trio.current_time() - self.began_at)

    async def wait_until(self, offset: float) -> None:
        """Until that many seconds after the arrival; raises httpx.ReadTimeout if the client's patience is shorter."""
        due_at = self.arrived_at + offset
        with trio.move_on_after(self.read_timeout) as patience:
            await trio.sleep_until(due_at)
        if patience.cancelled_caught:
            raise httpx.ReadTimeout("the simulated upstream was silent for too long")


def _broken(ending: Ending) -> httpx.TransportError:
    if ending is Ending.RESET:
        return httpx.ReadError("connection reset by the simulated upstream")
    return httpx.RemoteProtocolError("peer closed connection without sending complete message body")


def _read_timeout(request: httpx.Request) -> float:
    timeouts = request.extensions.get("timeout", {})
    seconds = timeouts.get("read") if isinstance(timeouts, dict) else None
    return float(seconds) if isinstance(seconds, int | float) else inf
