"""Results on their way to the journal.

A slot is taken before a prompt is attempted, so that handing its result over never waits: a paid answer can't be
lost to a cancellation between its end and the journal. A slow journal holds the workers back through the slots, and
whoever else reads results does through `room`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import trio
from attrs import define, field

from controller.records import Result


@define(eq=False)
class Outbox:
    """slots: results that may be under way or unwritten at once. room: waited for before each."""

    slots: int
    room: Callable[[], Awaitable[None]] | None = None
    _free: trio.Semaphore = field(init=False)
    _send: trio.MemorySendChannel[Result] = field(init=False)
    _receive: trio.MemoryReceiveChannel[Result] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._free = trio.Semaphore(self.slots)
        self._send, self._receive = trio.open_memory_channel[Result](math.inf)  # bounded by the slots

    async def reserve(self) -> None:
        """Take a slot for a result to come."""
        if self.room is not None:
            await self.room()
        await self._free.acquire()

    def give_back(self, count: int = 1) -> None:
        """Free slots: results are written, or a prompt stays pending."""
        for _ in range(count):
            self._free.release()

    def widen(self, slots: int) -> None:
        """Have so many slots, if they are more."""
        more = max(slots - self.slots, 0)
        self.slots += more
        self.give_back(more)

    def put(self, result: Result) -> None:
        """Hand a result over at once; its slot stays taken until it is written."""
        self._send.send_nowait(result)

    def close(self) -> None:
        """No more results will come."""
        self._send.close()

    async def take(self) -> list[Result]:
        """All results that are there, at least one; none once closed and empty."""
        try:
            taken = [await self._receive.receive()]
        except trio.EndOfChannel:
            return []
        while self._receive.statistics().current_buffer_used:
            taken.append(self._receive.receive_nowait())
        return taken
