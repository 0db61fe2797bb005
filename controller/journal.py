"""Results out: appended to a file and made durable, or written to stdout.

A results file is valid after any crash: it is repaired when it is opened (`repair.py`), and a write that fails midway
is cut back. A crash of the process alone loses no line that was written; fsync is for crashes of the machine.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Self

import trio
from attrs import define, field

from controller.durable import Durable
from controller.output import Output
from controller.repair import Ledger, prepare, recount
from controller.rescue import Loss, has_its_name

STDOUT = "-"

Append = Callable[[bytes], Awaitable[None]]  # all of it, or OSError


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
    ledger: Ledger = field(factory=Ledger)
    resumable: bool = False  # a regular file: what is written now is known to the next run
    _output: Output | None = None
    _begin: int = 0  # the size when it was opened and repaired
    _cause: OSError | None = field(default=None, init=False)
    _syncing: trio.Lock = field(factory=trio.Lock, init=False)

    @classmethod
    def open(cls, path: str, durable: Durable | None = None) -> Self:
        """Open or make a results file, lock, read and repair it: before trio runs, as it may take a while.

        ValueError, one line for the user, if that can't be; JournalError if there is no room for a line. A FIFO
        (waited for until it has a reader), a terminal or a device is only written to.
        """
        try:
            regular = not os.path.exists(path) or stat.S_ISREG(os.stat(path).st_mode)
            durable = durable or Durable()
            output = Output(_open(path, regular, durable), regular, durable)
        except OSError as error:
            raise ValueError(f"cannot write {path}: {error.strerror}") from error
        try:
            ledger = prepare(output.fd, path) if regular else Ledger()
            begin = output.prove_room()
        except OSError as error:
            output.close()
            raise JournalError(path, error) from error
        except BaseException:
            output.close()
            raise
        return cls(name=path, append=output.append, ledger=ledger, resumable=regular, output=output, begin=begin)

    @classmethod
    def stdout(cls) -> Self:
        """Descriptor 1: nothing is known of earlier runs, and it stays open."""
        return cls(name="stdout", append=Output(1, False, Durable("never")).append)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if self._cause is None:
                self.sync_now()
        finally:
            self.close()

    def close(self) -> None:
        """Give the file and its lock back, and sync nothing."""
        if self._output is not None:
            self._output.close()

    async def write(self, lines: list[bytes]) -> None:
        """Append whole lines; when it returns they are in the file, and on the disk if every write is synced.

        Cancelled before it begins it writes nothing; once begun, a file is always written to the end. Anything else
        may keep us waiting for ever, so there a cancel leaves the write behind. Raises JournalError.
        """
        self._raise_again()
        if not lines:
            return
        try:
            await self.append(b"".join(lines))
        except OSError as error:
            self._cause = error
            raise JournalError(self.name, error) from error

    async def look_after(self) -> Loss | None:
        """What became of the file if its name leads to it no more: it has been seen to. Raises JournalError."""
        if self._output is None or not self.resumable or has_its_name(self._output.fd, self.name):
            return None
        return await trio.to_thread.run_sync(self.look_after_now)

    def look_after_now(self) -> Loss | None:
        """As `look_after`, in this thread."""
        if self._output is None or not self.resumable or has_its_name(self._output.fd, self.name):
            return None
        try:
            return self._output.rescue(self.name)
        except OSError as error:
            self._cause = error
            raise JournalError(self.name, error) from error

    async def sync(self) -> None:
        """Make durable what was written so far, by whomever: a sync under way is waited for. Raises JournalError."""
        async with self._syncing:
            if self._output is not None and self._output.dirty:
                await trio.to_thread.run_sync(self.sync_now)
        self._raise_again()

    def sync_now(self) -> None:
        """As `sync`, in this thread. After a failed fsync nobody knows what is on the disk, so no more is written.

        Nor is any later one believed: the kernel tells of pages that it has lost only once.
        """
        try:
            if self._output is not None:
                self._output.sync()
        except OSError as error:
            self._cause = error
            raise JournalError(self.name, error) from error
        self._raise_again()

    def _raise_again(self) -> None:
        if self._cause is not None:
            raise JournalError(self.name, self._cause)

    def recount(self) -> Ledger | None:
        """What the file holds after the run, read from it; None where there is none, or it can't be read again."""
        if self._output is None or not self.resumable:
            return None
        try:
            begin = None if self._output.shrank() else self._begin
            self.ledger = recount(self._output.fd, self.name, self.ledger, begin)
        except OSError:
            return None
        return self.ledger


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


def _open(path: str, regular: bool, durable: Durable) -> int:
    if not regular:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    new = not os.path.exists(path)
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    if new:
        durable.sync_folder(path)
    return fd
