"""The body of an answer, decoded, with a tap: shut at the terminator, its end is drained or closed without loss.

httpx's own `aiter_bytes` is not used: leaving its nested generators half-way, at a terminator or at damaged
compression, abandons them, which trio reports (https://github.com/encode/httpx/issues/2960). This is no generator.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, AsyncIterator

import httpx
import trio

DRAIN_SECONDS = 0.25  # for what follows a terminator, so that the connection can be used again
DRAIN_BYTES = 65_536
CLOSE_SECONDS = 2.0  # for a stream that does not want to close
ENCODINGS = "gzip, deflate"  # what is asked for and understood
_EITHER_HEADER = zlib.MAX_WBITS | 32  # gzip's or zlib's


class Tap:
    """Iterates over the pieces of one response; raises zlib.error if they are not what content-encoding says."""

    def __init__(self, response: httpx.Response) -> None:
        assert isinstance(response.stream, httpx.AsyncByteStream)
        self._body = response.stream
        self._pieces = aiter(response.stream)
        compressed = response.headers.get("content-encoding", "").strip().lower() in ("gzip", "x-gzip", "deflate")
        self._inflater = zlib.decompressobj(_EITHER_HEADER) if compressed else None
        self._shut = False
        self._closed = False

    def shut(self) -> None:
        """Nothing more is wanted; closing will read the rest if it is short."""
        self._shut = True

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        piece = await anext(self._pieces)
        return piece if self._inflater is None else self._inflater.decompress(piece)

    async def aclose(self) -> None:
        """Give the connection back, or close it; shielded and bounded, whatever the stream does."""
        if self._closed:
            return
        self._closed = True
        if self._shut:
            await self._drain()
        with trio.move_on_after(CLOSE_SECONDS, shield=True):
            if isinstance(self._pieces, AsyncGenerator):
                await self._pieces.aclose()
            await self._body.aclose()

    async def _drain(self) -> None:
        # Shielded: the answer is whole and paid for; a cancel now must not lose it.
        with trio.move_on_after(DRAIN_SECONDS, shield=True):
            left = DRAIN_BYTES
            try:
                while left > 0:
                    left -= len(await anext(self._pieces))
            except (StopAsyncIteration, httpx.TransportError):
                return  # read to its end; or broken, which no longer matters
