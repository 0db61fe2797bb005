"""A file that grows, is rotated or cut, and a FIFO whose writers come and go: read on and on, never to an end.

A half line waits for its rest while its file may still grow. When another file has taken its name, what is left in the
old one is read until it has been silent for LINGER seconds: its writer may not know yet. Then, as when the last writer
of a FIFO leaves, a half line at the end counts as one and is never joined to what comes next.
"""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from attrs import define, field

from controller.sources import STDIN, ReadChunk, Reader, Source, is_regular, source_of

LINGER = 2.0  # s


def followed(path: str, interval: float) -> Source:
    """As `source_of`, without an end. stdin ends all the same: its writer says so."""
    if path == STDIN:
        return source_of(path)
    return Source(name=path, open=lambda: open_following(path, interval), once=not is_regular(path))


@asynccontextmanager
async def open_following(path: str, interval: float) -> AsyncIterator[ReadChunk]:
    """The bytes of `path`; interval: seconds between two looks."""
    follower = Follower(path, interval, await _opened(path))
    try:
        yield follower.read
    finally:
        follower.reader.close()


async def _opened(path: str) -> Reader:
    """Opening a FIFO waits for its writer, so it is done in a thread."""
    fd = await trio.to_thread.run_sync(os.open, path, os.O_RDONLY | os.O_CLOEXEC, abandon_on_cancel=True)
    return Reader(fd)


@define(eq=False)
class Follower:
    """Reads on where another reader would end."""

    path: str
    interval: float
    reader: Reader
    _position: int = field(default=0, init=False)
    _half: bool = field(default=False, init=False)  # the last byte read did not end a line
    _silent_since: float | None = field(default=None, init=False)  # the old file, once there is another one

    async def read(self) -> bytes:
        """The next bytes, whenever they come; a LF of our own where a half line can get no rest any more."""
        while True:
            if chunk := await self.reader.read():
                self._position += len(chunk)
                self._half, self._silent_since = not chunk.endswith(b"\n"), None
                return chunk
            if await self._has_ended() and self._half:
                self._half = False
                return b"\n"
            await trio.sleep(self.interval)

    async def _has_ended(self) -> bool:
        """What was read so far gets no rest: the file was cut, replaced, or its writers have left."""
        here = os.fstat(self.reader.fd)
        if stat.S_ISFIFO(here.st_mode):
            return True
        if here.st_size < self._position:
            os.lseek(self.reader.fd, 0, os.SEEK_SET)
            self._position = 0
            return True
        try:
            there = os.stat(self.path)
        except OSError:  # between the old file and the new one
            return False
        if os.path.samestat(here, there):
            return False
        if self._silent_since is None:
            self._silent_since = trio.current_time()
        if trio.current_time() - self._silent_since < LINGER:
            return False
        fresh = await _opened(self.path)
        self.reader.close()
        self.reader, self._position, self._silent_since = fresh, 0, None
        return True
