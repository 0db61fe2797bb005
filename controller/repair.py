"""A results file of an earlier run: locked, read, its tail repaired.

Records end at LF and nowhere else. A last line without LF is completed if it is a whole record and cut if it is torn.
Damaged lines in the middle are left as they are and counted. A file that holds nothing of ours is never touched.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from attrs import define, field

from controller.records import read_done

NO_SUCH_SERVICE = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK})  # said by some file systems
RECORD_START = b'{"id":'


@define(eq=False)
class Earlier:
    """What a results file held when it was opened. Keys are 16 bytes; one that failed and was answered later is in
    `answered` only."""

    answered: set[bytes] = field(factory=set)
    failed: set[bytes] = field(factory=set)
    damaged: int = 0  # whole lines that are no results: skipped, left as they are
    torn_bytes: int = 0  # of an unfinished last record: cut off, its prompt is sent again
    completed: bool = False  # the last record lacked only its LF

    def add(self, line: bytes) -> bool:
        """Whether the line is a result."""
        done = read_done(line)
        if done is None:
            return False
        key = bytes.fromhex(done.key)
        if done.ok:
            self.answered.add(key)
            self.failed.discard(key)
        elif key not in self.answered:
            self.failed.add(key)
        return True


def prepare(fd: int, path: str) -> Earlier:
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


def look(path: str) -> Earlier:
    """What a results file holds, without touching it; nothing if there is none. ValueError if it can't be read."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return Earlier()
        with open(path, "rb") as file:
            return _read(file.fileno(), path)[0]
    except FileNotFoundError:
        return Earlier()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error


def _repair(fd: int, path: str) -> Earlier:
    earlier, tail, size = _read(fd, path)
    if earlier.torn_bytes:
        os.ftruncate(fd, size - len(tail))
    if earlier.completed:
        os.write(fd, b"\n")
    if tail:
        sync(fd)
    return earlier


def _read(fd: int, path: str) -> tuple[Earlier, bytes, int]:
    """What is there; the last line if it has no LF; the size in bytes."""
    earlier, tail, size = Earlier(), b"", 0
    with open(fd, "rb", closefd=False) as file:
        for line in file:  # a binary file is split at LF only
            size += len(line)
            if not line.endswith(b"\n"):
                tail = line
            elif line.strip() and not earlier.add(line):
                earlier.damaged += 1
    earlier.completed = bool(tail) and earlier.add(tail)
    torn = bool(tail) and not earlier.completed
    known = earlier.answered or earlier.failed
    if not known and (earlier.damaged or (torn and not _starts_like_ours(tail))):
        raise ValueError(f"{path} holds no results of tidegate: name another file with -o, or move this one away")
    earlier.torn_bytes = len(tail) if torn else 0
    return earlier, tail, size


def _starts_like_ours(tail: bytes) -> bool:
    """A file whose only line was torn; a machine that lost power may have left NUL bytes."""
    return tail.startswith((RECORD_START, b"\0")) or RECORD_START.startswith(tail)


def sync(fd: int) -> None:
    """fsync, where the file system has it."""
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in NO_SUCH_SERVICE:
            raise
