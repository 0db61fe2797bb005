"""Everything that is said to the user while running: one line on stderr, never at the price of the run.

stderr may be closed, a broken pipe, or a full one that nobody reads. A line that can't be written at once is dropped;
a blocked write would stop every stream of the run.
"""

from __future__ import annotations

import os
import select
import shutil
import signal

STDERR = 2
MOST = select.PIPE_BUF  # bytes; a pipe that is ready takes so many without blocking


def say(text: str) -> None:
    """One line for the user, over the live line if there is one."""
    _write(f"{_CLEAR if is_terminal() else ''}tidegate: {text}\n")


def redraw(text: str) -> None:
    """Show `text` as the live line of a terminal, cut to its width."""
    columns = shutil.get_terminal_size().columns
    _write(_CLEAR + text[: max(columns - 1, 1)])


def is_terminal() -> bool:
    """Somebody may be looking."""
    return os.isatty(STDERR)


def has_terminal() -> bool:
    """Somebody would hang up: SIGHUP means that the terminal is gone, unless nohup made us deaf to it."""
    return (is_terminal() or os.isatty(0)) and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN


_CLEAR = "\r\x1b[K"


def _write(text: str) -> None:
    try:
        poll = select.poll()
        poll.register(STDERR, select.POLLOUT)
        ready = poll.poll(0)
        if ready and ready[0][1] & select.POLLOUT:
            os.write(STDERR, text.encode("utf-8", "backslashreplace")[:MOST])
    except OSError:
        return
