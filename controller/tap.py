"""The body of an answer with a tap: it can be shut at the terminator, and its end is drained or closed without loss.

Leaving a loop over httpx's `aiter_bytes` abandons its generators half-way, which trio reports
(https://github.com/encode/httpx/issues/2960). Shutting the tap *ends* the iteration instead, so they run out.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

import httpx
import trio

DRAIN_SECONDS = 0.25  # for what follows a terminator, so that the connection can be used again
DRAIN_BYTES = 65_536
CLOSE_SECONDS = 2.0  # for a stream that does not want to close


class Tap(httpx.AsyncByteStream):
    """Wraps a body; its own iterator. `aclose` is shielded, bounded, and may be called more than once."""

    def __init__(self, body: httpx.AsyncByteStream) -> None:
        self._body = body
        self._pieces = aiter(body)
        self._shut = False
        self._closed = False

    def shut(self) -> None:
        """Nothing more is wanted: the iteration ends at its next step, and closing drains."""
        self._shut = True

    @property
    def is_shut(self) -> bool:
        """Nothing more is wanted."""
        return self._shut

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._shut or self._closed:
            raise StopAsyncIteration
        return await anext(self._pieces)

    async def aclose(self) -> None:
        """Give the connection back, or close it."""
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
