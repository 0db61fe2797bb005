"""Lines in: the bytes of files and stdin, never read further ahead than one chunk.

Lines end at LF and nowhere else, and may be of any length. A pipe is waited for and then read without blocking, a file
is read in a thread; a virtual run hands in its own `ReadChunk` and so needs none.
"""

from __future__ import annotations

import os
import select
import stat
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

import trio
from attrs import define, field, frozen

CHUNK = 64 * 1024  # bytes; the most a pipe gives at once on Linux
STDIN = "-"

ReadChunk = Callable[[], Awaitable[bytes]]  # the next bytes, as soon as there are any; b"" at the end


@frozen(kw_only=True)
class Source:
    """Where lines come from. name: as the user wrote it, and as results show it. once: what was read is gone."""

    name: str
    open: Callable[[], AbstractAsyncContextManager[ReadChunk]]
    once: bool = False


@frozen(kw_only=True)
class Line:
    """number: from 1, blank lines counted. raw: without its LF."""

    number: int
    raw: bytes


@define(eq=False)
class Lines:
    """The lines of one source, in order. A last line without LF counts; nothing after the last LF is no line.

    half: what an earlier run read last; it is put before the first line if `goes_on` says that this is its rest.
    """

    read_chunk: ReadChunk
    half: bytes = b""
    goes_on: Callable[[bytes], bool] = lambda _: True
    _parts: list[bytes] = field(factory=list, init=False)  # joined once: a long line costs its length, not its square
    _chunk: bytes = field(default=b"", init=False)
    _start: int = field(default=0, init=False)  # where in the chunk the next line begins
    _number: int = field(default=0, init=False)
    _ended: bool = field(default=False, init=False)

    @property
    def rest(self) -> bytes:
        """What was read and is in no line yet."""
        return b"".join([self.half, *self._parts, self._chunk[self._start :]])

    def __aiter__(self) -> AsyncIterator[Line]:
        return self

    async def __anext__(self) -> Line:
        while (end := self._chunk.find(b"\n", self._start)) < 0:
            self._parts.append(self._chunk[self._start :])
            self._chunk, self._start = b"", 0
            self._chunk = b"" if self._ended else await self.read_chunk()
            if not self._chunk:
                self._ended = True
                if not (line := self._line()).raw:
                    raise StopAsyncIteration
                return line
        self._parts.append(self._chunk[self._start : end])
        self._start = end + 1
        return self._line()

    def at_hand(self) -> Iterator[Line]:
        """The whole lines that need no further read."""
        while (end := self._chunk.find(b"\n", self._start)) >= 0:
            start, self._start = self._start, end + 1
            self._number += 1
            yield Line(number=self._number, raw=self._chunk[start:end])

    def _line(self) -> Line:
        raw, half = b"".join(self._parts), self.half
        self._parts, self.half = [], b""
        self._number += 1
        return Line(number=self._number, raw=half + raw if half and self.goes_on(raw) else raw)


def source_of(path: str) -> Source:
    """A file, a FIFO, or stdin for "-", to its end."""
    opened = open_stdin if path == STDIN else lambda: open_file(path)
    return Source(name=path, open=opened, once=not is_regular(path))


def is_regular(path: str) -> bool:
    """A file that can be read again from its beginning, stdin as well."""
    try:
        return stat.S_ISREG((os.fstat(0) if path == STDIN else os.stat(path)).st_mode)
    except OSError:
        return False


def pipe_of(path: str) -> str:
    """What tells this pipe from others, and is the same in another run; "" where there is none."""
    try:
        found = os.fstat(0) if path == STDIN else os.stat(path)
    except OSError:
        return ""
    return f"{found.st_dev}:{found.st_ino}"


def check_readable(path: str) -> None:
    """ValueError, one line for the user, if `path` can't be read. Doesn't read it, so a FIFO loses nothing."""
    if path == STDIN:
        try:
            os.fstat(0)
        except OSError as error:
            raise ValueError("stdin is closed: name a file of prompts, or pipe them in") from error
        return
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}: check the path, or give - for stdin") from error
    if stat.S_ISDIR(mode):
        raise ValueError(f"{path} is a directory: name the files in it, such as {os.path.join(path, '*.jsonl')}")
    if not os.access(path, os.R_OK):
        raise ValueError(f"cannot read {path}: Permission denied: try chmod u+r, or another user")


@asynccontextmanager
async def open_file(path: str) -> AsyncIterator[ReadChunk]:
    """The bytes of a file. Opening a FIFO waits for its writer, so that too is done in a thread."""
    fd = await trio.to_thread.run_sync(os.open, path, os.O_RDONLY | os.O_CLOEXEC, abandon_on_cancel=True)
    reader = Reader(fd)
    try:
        yield reader.read
    finally:
        reader.close()


@asynccontextmanager
async def open_stdin() -> AsyncIterator[ReadChunk]:
    """The bytes of stdin, which stays open: it is not ours to close."""
    yield Reader(0).read


@define(eq=False)
class Reader:
    """A descriptor that is read as soon as it has something, a regular file in threads.

    Only the wait can be cancelled, so what was taken out of a pipe is always handed over. A file, and a device that
    can't be waited for, has lost nothing by a read whose bytes nobody took: there a cancel leaves the thread behind.
    """

    fd: int
    _threaded: bool = field(init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)
    _closed: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._threaded = stat.S_ISREG(os.fstat(self.fd).st_mode)

    async def read(self) -> bytes:
        while not self._threaded:
            try:
                await trio.lowlevel.wait_readable(self.fd)
            except PermissionError:  # epoll's word for what is always ready, such as /dev/null
                self._threaded = True
                break
            if _is_readable(self.fd):  # else another reader of this pipe was quicker, and a read would wait
                with suppress(BlockingIOError):
                    return os.read(self.fd, CHUNK)
        return await trio.to_thread.run_sync(self._read, abandon_on_cancel=True)

    def _read(self) -> bytes:
        with self._lock:
            return b"" if self._closed else os.read(self.fd, CHUNK)

    def close(self) -> None:
        """Leave the descriptor open while a thread is in it: its number would be given to another file."""
        if self._lock.acquire(blocking=False):
            self._closed = True
            os.close(self.fd)
            self._lock.release()


def _is_readable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))
