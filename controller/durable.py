"""When what was written is made durable: fsync after every write, soon after it, or never.

The page cache survives the death of a process, whatever killed it; only a crash of the machine or of its power loses
what was not synced.
"""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Callable

from attrs import frozen

NO_SUCH_SERVICE = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK})  # said by some file systems
SYNC_EVERY = 0.5  # s between two looks for what is to be synced: a sync may take as long again, and all is kept in 1 s


def sync(fd: int) -> None:
    """fsync, where the file system has it."""
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in NO_SUCH_SERVICE:
            raise


@frozen
class Durable:
    """mode: always, interval or never, as --fsync says. fsync: handed in, so that a test can count or fail it."""

    mode: str = "interval"
    fsync: Callable[[int], None] = sync

    def after_write(self, fd: int) -> bool:
        """Whether what was just written needs no further sync."""
        if self.mode == "always":
            self.fsync(fd)
        return self.mode != "interval"

    def before_exit(self, fd: int) -> None:
        """All that was written is now on the disk, unless the user wants none of it."""
        if self.mode != "never":
            self.fsync(fd)

    def sync_folder(self, path: str) -> None:
        """After a file was made or renamed, else a crash could lose the name of a file whose content was synced."""
        if self.mode == "never":
            return
        folder = os.open(os.path.dirname(os.path.realpath(path)), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.fsync(folder)
        finally:
            os.close(folder)


def write_all(fd: int, data: bytes) -> None:
    """All of it, or OSError with some of it written."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # whoever shares this pipe or terminal has made it non-blocking
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            poll.poll()
