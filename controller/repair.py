"""A results file of an earlier run: locked, read, its tail repaired.

Records end at LF and nowhere else. A last line without LF is completed if it is a whole record and cut if it is torn.
Damaged lines in the middle are left as they are and counted. A file that holds nothing of ours is never touched.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator

from attrs import define, field, frozen

from controller.done import read_done
from controller.durable import NO_SUCH_SERVICE, sync
from controller.identity import ID_BYTES, id_digest
from controller.keytable import KeyTable

RECORD_START = b'{"id":'

ANSWERED, FAILED, FRESH = 1, 2, 4  # what is known of a key; FRESH: this run wrote a line of it
UNKNOWN = b"\0"


@frozen
class Known:
    """The keys of a ledger with one of the flags, as a container."""

    keys: KeyTable
    flag: int

    def __contains__(self, key: object) -> bool:
        return isinstance(key, bytes) and bool((self.keys.get(key) or UNKNOWN)[0] & self.flag)

    def __iter__(self) -> Iterator[bytes]:
        return (key for key, flags in self.keys if flags[0] & self.flag)


@define(eq=False)
class Ledger:
    """What a results file holds, by key: first of earlier runs, at the end of this one as well.

    Costs some 30 bytes of memory a line. A key that failed and was answered later is in `answered` only.
    """

    keys: KeyTable = field(factory=KeyTable)
    ids: KeyTable = field(factory=lambda: KeyTable(ID_BYTES, 0))  # of the lines that have one
    damaged: int = 0  # whole lines that are no results: skipped, left as they are
    torn_bytes: int = 0  # of an unfinished last record: cut off, its prompt is sent again
    completed: bool = False  # the last record lacked only its LF
    double: int = 0  # lines beyond the one that a prompt may have; a failure that was tried again is none

    @property
    def answered(self) -> Known:
        """Keys that have an answer."""
        return Known(self.keys, ANSWERED)

    @property
    def failed(self) -> Known:
        """Keys that have an error only."""
        return Known(self.keys, FAILED)

    def add(self, line: bytes, *, fresh: bool = False) -> bool:
        """Whether the line is a result. fresh: this run wrote it, so a second one of its key can't be a new try."""
        done = read_done(line)
        if done is None:
            return False
        flags = (ANSWERED if done.ok else FAILED) | (FRESH if fresh else 0)
        if (before := self.keys.claim(done.key, bytes((flags,)))) is not None:
            known = before[0]
            self.double += bool(known & (ANSWERED | FRESH))
            flags = ANSWERED | flags & FRESH if known & ANSWERED else flags
            self.keys.put(done.key, bytes((flags,)))
        if done.id is not None:
            self.ids.claim(id_digest(done.id))
        return True


def prepare(fd: int, path: str) -> Ledger:
    """Lock and repair. The lock goes with the descriptor, so a killed run leaves none behind."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ValueError(f"{path} is in use by another run: wait for it, or name another file with -o") from error
    except OSError as error:
        if error.errno not in NO_SUCH_SERVICE:
            raise ValueError(f"cannot lock {path}: {error.strerror}") from error
    try:
        return _repair(fd, path)
    except OSError as error:
        raise ValueError(f"cannot read or repair {path}: {error.strerror}") from error


def look(path: str) -> Ledger:
    """What a results file holds, without touching it; nothing if there is none. ValueError if it can't be read."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return Ledger()
        with open(path, "rb") as file:
            return _read(file.fileno(), path)[0]
    except FileNotFoundError:
        return Ledger()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error


def _repair(fd: int, path: str) -> Ledger:
    ledger, tail, size = _read(fd, path)
    if ledger.torn_bytes:
        os.ftruncate(fd, size - len(tail))
    if ledger.completed:
        os.write(fd, b"\n")
    if tail:
        sync(fd)
    return ledger


def recount(fd: int, path: str, ledger: Ledger, start: int | None) -> Ledger:
    """What the file holds after a run that began at byte `start`: the ledger, with what was written since.

    Only that part is read again; the one before it was read under the same lock. If the path leads to another file
    by now, or the file was cut meanwhile (start is None), all that is there now is counted. Raises OSError.
    """
    try:
        there = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return Ledger()
    if os.path.samestat(there, os.fstat(fd)) and start is not None:
        _scan(fd, ledger, start=start)
        return ledger
    with open(path, "rb") as file:
        anew = Ledger()
        _scan(file.fileno(), anew)
    return anew


def _read(fd: int, path: str) -> tuple[Ledger, bytes, int]:
    """What is there; the last line if it has no LF; the size in bytes."""
    ledger = Ledger()
    tail, size = _scan(fd, ledger)
    ledger.completed = bool(tail) and ledger.add(tail)
    torn = bool(tail) and not ledger.completed
    if not len(ledger.keys) and (ledger.damaged or (torn and not _starts_like_ours(tail))):
        raise ValueError(f"{path} holds no results of tidegate: name another file with -o, or move this one away")
    ledger.torn_bytes = len(tail) if torn else 0
    return ledger, tail, size


def _scan(fd: int, ledger: Ledger, *, start: int | None = None) -> tuple[bytes, int]:
    """Add all whole lines, those from `start` on as fresh ones; the last line if it has no LF, and where all ends."""
    tail, end = b"", start or 0
    with open(fd, "rb", closefd=False) as file:
        file.seek(end)
        for line in file:  # a binary file is split at LF only
            end += len(line)
            if not line.endswith(b"\n"):
                tail = line
            elif line.strip() and not ledger.add(line, fresh=start is not None):
                ledger.damaged += 1
    return tail, end


def _starts_like_ours(tail: bytes) -> bool:
    """A file whose only line was torn; a machine that lost power may have left NUL bytes."""
    return tail.startswith((RECORD_START, b"\0")) or RECORD_START.startswith(tail)
