"""The open results file: appended to, synced, and put under its name again, by one thread at a time.

A write that fails midway is cut back to its last whole line.
"""

from __future__ import annotations

import errno
import os
import threading

import trio
from attrs import define, field

from controller.durable import Durable, write_all
from controller.rescue import Loss, rescue

ROOM = 4096  # bytes: a page, and most lines
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO})  # others: it isn't to be had


@define(eq=False)
class Output:
    """A descriptor that is written in threads, one at a time."""

    fd: int
    regular: bool
    durable: Durable
    dirty: bool = field(default=False, init=False)  # something was written and not synced
    _size: int = field(default=0, init=False)  # what it had at the least when it was last looked at
    _shrank: bool = field(default=False, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)
    _closed: bool = field(default=False, init=False)

    async def append(self, data: bytes) -> None:
        await trio.to_thread.run_sync(self.append_now, data, abandon_on_cancel=not self.regular)

    def append_now(self, data: bytes) -> None:
        """As `append`, in this thread. Raises OSError."""
        with self._lock:
            if self._closed:
                raise OSError(errno.EBADF, "it was closed")
            if not self.regular:
                write_all(self.fd, data)
                return
            size = self._look()
            try:
                write_all(self.fd, data)
            except OSError:
                _cut_back(self.fd, size, data)
                self._size = size
                raise
            self._size += len(data)
            self.dirty = not self.durable.after_write(self.fd)

    def _look(self) -> int:
        size = os.fstat(self.fd).st_size
        self._shrank = self._shrank or size < self._size
        self._size = size
        return size

    def shrank(self) -> bool:
        """Somebody has cut it, though it may have grown again since: nothing that was read from it counts."""
        with self._lock:
            self._look()
            return self._shrank

    def sync(self) -> None:
        """A slow disk does not hold up the writes meanwhile: they only make it dirty again."""
        if self.dirty:
            self.dirty = False
            self.durable.before_exit(self.fd)

    def prove_room(self) -> int:
        """The size of the file; OSError if there is no room for a line, so that no prompt is paid for.

        The room is taken and given back. A process that dies between leaves NUL bytes, which are cut as a torn line.
        """
        size = self._look()
        if not self.regular:
            return size
        try:
            os.posix_fallocate(self.fd, size, ROOM)
        except OSError as error:
            if error.errno in NO_ROOM:
                raise
        finally:
            os.ftruncate(self.fd, size)
        return size

    def rescue(self, path: str) -> Loss:
        with self._lock:
            return rescue(self.fd, path)

    def close(self) -> None:
        """Leave the descriptor open while a thread is in it: its number would be given to another file."""
        if self._lock.acquire(blocking=False):
            self._closed = True
            os.close(self.fd)
            self._lock.release()


def _cut_back(fd: int, size: int, data: bytes) -> None:
    """Keep the whole lines that reached a full disk, drop the half one; where even that fails, `open` will do it."""
    try:
        written = os.fstat(fd).st_size - size
        os.ftruncate(fd, size + data.rfind(b"\n", 0, max(written, 0)) + 1)
    except OSError:
        return
