"""A results file that loses its name while a run writes to it: removed, moved away, or replaced by another file.

An open file lives on without a name, and all that is written to it dies with the process. So its content is written
under a name again and the descriptor goes on there: a removed file comes back as it was and the run goes on; if the
name is taken, the content goes beside it and the run stops.
"""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress

from attrs import frozen

from controller.durable import write_all

SUFFIX = ".rescued"
CHUNK = 1 << 20


@frozen
class Loss:
    """words: for the user. stops: the name leads to another file, so nothing more should be paid for."""

    words: str
    stops: bool


def has_its_name(fd: int, path: str) -> bool:
    """The path still leads to the open file. A folder that can't be looked into tells nothing: then it does."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def rescue(fd: int, path: str) -> Loss:
    """Give a file that lost its name one again. Nobody may write to it meanwhile. Raises OSError if that can't be."""
    if os.fstat(fd).st_nlink:
        return Loss(f"{path} was moved away; what comes until the run has stopped goes there too", stops=True)
    for place in (path, path + SUFFIX):
        try:
            new = os.open(place, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            continue
        try:
            with suppress(OSError):  # a file system without modes has nothing to give away
                os.fchmod(new, stat.S_IMODE(os.fstat(fd).st_mode))
            _copy(fd, new)
            fcntl.flock(new, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.dup2(new, fd, inheritable=False)
        finally:
            os.close(new)
        if place == path:
            return Loss(f"{path} was removed while the run wrote to it; it has been put back as it was", stops=False)
        words = f"{path} was replaced by another file; what the old one held is in {place}: append it to go on from it"
        return Loss(words, stops=True)
    raise FileExistsError(f"{path} and {path + SUFFIX} are other files now")


def _copy(fd: int, new: int) -> None:
    at = 0
    while chunk := os.pread(fd, CHUNK, at):
        write_all(new, chunk)
        at += len(chunk)
    os.fsync(new)
