"""Results out: appended to a file and made durable, or written to stdout.

A results file is valid after any crash: it is repaired when it is opened (`repair.py`), and a write that fails midway
is cut back.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import threading
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Self

import trio
from attrs import define, field

from controller.repair import Earlier, prepare, sync

STDOUT = "-"

Append = Callable[[bytes], Awaitable[None]]  # all of it, durably, or OSError


class JournalError(Exception):
    """The results can't be written any more."""

    def __init__(self, name: str, cause: OSError) -> None:
        super().__init__(f"cannot write results to {name}: {cause.strerror or cause}")


@define(eq=False)
class Journal:
    """Where results go: one task writes, in order. After a JournalError every further write fails with the same.

    Made by `open`, `stdout`, or, for a run without threads, from any `Append`.
    """

    name: str
    append: Append
    earlier: Earlier = field(factory=Earlier)
    resumable: bool = False  # a regular file: what is written now is known to the next run
    _output: _Output | None = None
    _cause: OSError | None = field(default=None, init=False)

    @classmethod
    def open(cls, path: str) -> Self:
        """Open or make a results file, lock, read and repair it: before trio runs, as it may take a while.

        ValueError, one line for the user, if that can't be. A FIFO (waited for until it has a reader), a terminal or
        a device is only written to.
        """
        try:
            regular = not os.path.exists(path) or stat.S_ISREG(os.stat(path).st_mode)
            output = _Output(_open(path, regular), regular)
        except OSError as error:
            raise ValueError(f"cannot write {path}: {error.strerror}") from error
        try:
            earlier = prepare(output.fd, path) if regular else Earlier()
        except BaseException:
            output.close()
            raise
        return cls(name=path, append=output.append, earlier=earlier, resumable=regular, output=output)

    @classmethod
    def stdout(cls) -> Self:
        """Descriptor 1: nothing is known of earlier runs, and it stays open."""
        return cls(name="stdout", append=_Output(1, False).append)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._output is not None:
            self._output.close()

    async def write(self, lines: list[bytes]) -> None:
        """Append whole lines; when it returns they are on the disk.

        Cancelled before it begins it writes nothing; once begun, a file is always written to the end. Anything else
        may keep us waiting for ever, so there a cancel leaves the write behind. Raises JournalError.
        """
        if self._cause is not None:
            raise JournalError(self.name, self._cause)
        if not lines:
            return
        try:
            await self.append(b"".join(lines))
        except OSError as error:
            self._cause = error
            raise JournalError(self.name, error) from error


def check_output(output: str, others: Iterable[str], *, flag: str = "-o") -> None:
    """ValueError, one line for the user, if `flag` can't write there, or would write into one of the other files."""
    wanted = _file_number(output, 1)
    for name in others:
        same_place = output == name or os.path.realpath(output) == os.path.realpath(name)
        if (wanted is not None and _file_number(name, 0) == wanted) or (same_place and output != STDOUT):
            raise ValueError(f"{flag} would write into {name}, which this run needs: name another file")
    if output == STDOUT:
        return
    if os.path.isdir(output):
        raise ValueError(
            f"{flag} {output} is a directory: name a file, such as {os.path.join(output, 'results.jsonl')}"
        )
    folder = os.path.dirname(os.path.realpath(output))
    if not os.path.isdir(folder):
        raise ValueError(f"cannot write {output}: there is no directory {folder}: make it with mkdir -p")
    place = output if os.path.exists(output) else folder
    if not os.access(place, os.W_OK):
        raise ValueError(f"cannot write {output}: no permission to write {place}: name another file with {flag}")


def _file_number(path: str, standard: int) -> tuple[int, int] | None:
    """(device, inode) of a regular file under any of its names; `standard` is the descriptor that "-" means."""
    try:
        found = os.fstat(standard) if path == STDOUT else os.stat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else None


def _open(path: str, regular: bool) -> int:
    if not regular:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    new = not os.path.exists(path)
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    if new:  # else a crash of the machine could lose the name of a file whose content was synced
        folder = os.open(os.path.dirname(os.path.realpath(path)), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sync(folder)
        finally:
            os.close(folder)
    return fd


@define(eq=False)
class _Output:
    """A descriptor that is written in threads, one at a time."""

    fd: int
    regular: bool
    _lock: threading.Lock = field(factory=threading.Lock, init=False)
    _closed: bool = field(default=False, init=False)

    async def append(self, data: bytes) -> None:
        await trio.to_thread.run_sync(self._append, data, abandon_on_cancel=not self.regular)

    def _append(self, data: bytes) -> None:
        with self._lock:
            if self._closed:
                raise OSError(errno.EBADF, "it was closed")
            if not self.regular:
                _write_all(self.fd, data)
                return
            size = os.fstat(self.fd).st_size
            try:
                _write_all(self.fd, data)
            except OSError:
                _cut_back(self.fd, size, data)
                raise
            sync(self.fd)

    def close(self) -> None:
        """Leave the descriptor open while a thread is in it: its number would be given to another file."""
        if self._lock.acquire(blocking=False):
            self._closed = True
            os.close(self.fd)
            self._lock.release()


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # whoever shares this pipe or terminal has made it non-blocking
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            poll.poll()


def _cut_back(fd: int, size: int, data: bytes) -> None:
    """Keep the whole lines that reached a full disk, drop the half one; where even that fails, `open` will do it."""
    try:
        written = os.fstat(fd).st_size - size
        os.ftruncate(fd, size + data.rfind(b"\n", 0, max(written, 0)) + 1)
    except OSError:
        return
