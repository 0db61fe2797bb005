"""A file that grows, is rotated or cut, and a FIFO whose writers come and go: read on and on, never to an end.

A half line waits for its rest while its file may still grow. Another file that takes the name is opened at the next
look, however far behind the reading is, and queued: its name may be gone before its turn comes. What is left in an old
file is read until that has been silent for LINGER seconds: its writer may not know yet. Then, as when the last writer
of a FIFO leaves, a half line at the end counts as one and is never joined to what comes next.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from attrs import define, field

from controller.sources import STDIN, ReadChunk, Reader, Source, check_readable, is_regular, source_of

LINGER = 2.0  # s


def followed(path: str, interval: float) -> Source:
    """As `source_of`, without an end. stdin ends all the same: its writer says so."""
    if path == STDIN:
        return source_of(path)
    # What is not there yet may become a FIFO: it counts as one that can't be read twice.
    return Source(name=path, open=lambda: open_following(path, interval), once=not is_regular(path))


def check_followed(path: str) -> None:
    """As `check_readable`; what is not there yet is waited for, if its folder is."""
    if not is_awaited(path):
        check_readable(path)


def is_awaited(path: str) -> bool:
    """There is no such file, but one may appear."""
    if path == STDIN or not os.path.basename(path):
        return False
    try:
        os.stat(path)
    except FileNotFoundError:
        return os.path.isdir(os.path.dirname(path) or os.curdir)
    except OSError:
        return False
    return False


@asynccontextmanager
async def open_following(path: str, interval: float) -> AsyncIterator[ReadChunk]:
    """The bytes of `path`; interval: seconds between two looks."""
    while is_awaited(path):  # noqa: ASYNC110 - a folder tells nobody
        await trio.sleep(interval)
    follower, fault = Follower(path, interval, await _opened(path)), None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follower.look_often)
        try:
            yield follower.read
        except OSError as error:  # raised below: the nursery would wrap it
            fault = error
        finally:
            nursery.cancel_scope.cancel()
            follower.close()
    if fault is not None:
        raise fault


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
    _queue: deque[Reader] = field(factory=deque, init=False)  # files that took the name since, oldest first
    _fault: OSError | None = field(default=None, init=False)  # why the one that has it now can't be opened
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
            if self._has_ended() and self._half:
                self._half = False
                return b"\n"
            await trio.sleep(self.interval)

    async def look_often(self) -> None:
        """Open each file that takes the name. A FIFO is followed whatever becomes of its name."""
        newest = self.reader
        while not stat.S_ISFIFO(os.fstat(newest.fd).st_mode):
            await trio.sleep(self.interval)
            try:
                if not os.path.samestat(os.fstat(newest.fd), os.stat(self.path)):
                    newest = await _opened(self.path)
                    self._queue.append(newest)
                self._fault = None
            except FileNotFoundError:  # between the old file and the new one
                continue
            except OSError as error:  # its writer may still be about to give us the right to read it
                self._fault = error

    def close(self) -> None:
        """Give all files back."""
        for each in (self.reader, *self._queue):
            each.close()

    def _has_ended(self) -> bool:
        """What was read so far gets no rest: the file was cut, replaced, or its writers have left."""
        here = os.fstat(self.reader.fd)
        if stat.S_ISFIFO(here.st_mode):
            return True
        if here.st_size < self._position:
            os.lseek(self.reader.fd, 0, os.SEEK_SET)
            self._position = 0
            return True
        if not self._queue and self._fault is None:
            return False
        if self._silent_since is None:
            self._silent_since = trio.current_time()
        if trio.current_time() - self._silent_since < LINGER:
            return False
        if not self._queue:
            assert self._fault is not None
            raise self._fault
        self.reader.close()
        self.reader, self._position, self._silent_since = self._queue.popleft(), 0, None
        return True
