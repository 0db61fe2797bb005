"""What a service manager is told over the socket it named: that the run has begun, that it lives, and how it does.

The protocol of sd_notify(3), by hand: one datagram of lines. Whoever started us without such a socket is told nothing,
and no trouble with it is ever the run's. The watchdog is answered from trio's loop, so that a loop that hangs is seen.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Self

import trio
from attrs import define

MOST_STATUS = 200  # characters
STATUS_EVERY = 10.0  # s, where no watchdog asks for more
EXTENSION = 30.0  # s that the end may still take, said anew with each sign of life


@define(eq=False)
class Supervisor:
    """address: of the socket, None without one. watchdog: seconds within which a sign of life must come."""

    address: str | None = None
    watchdog: float | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self:
        """As the service manager says; a watchdog that is meant for another process is none of ours."""
        named = environment.get("NOTIFY_SOCKET", "")
        if not named.startswith(("/", "@")):
            return cls()
        address = "\0" + named[1:] if named.startswith("@") else named
        microseconds, process = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
        asked = microseconds.isdecimal() and int(microseconds) > 0 and process in ("", str(os.getpid()))
        return cls(address, int(microseconds) / 1e6 if asked else None)

    def tell(self, *lines: str) -> None:
        """Send one message; what can't be sent at once is dropped."""
        if self.address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as out:
                out.sendto("\n".join(lines).encode(errors="replace"), self.address)
        except OSError:
            return

    def reloading(self) -> None:
        """Settings are being read again; `tell("READY=1")` ends it."""
        self.tell("RELOADING=1", f"MONOTONIC_USEC={int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6)}")

    async def run(self, status: Callable[[], str]) -> None:
        """Ready now; then a sign of life twice in each period of the watchdog, until cancelled."""
        if self.address is None:
            await trio.sleep_forever()
        self.tell("READY=1")
        while True:
            self.tell("WATCHDOG=1", f"STATUS={status()[:MOST_STATUS]}")
            await trio.sleep(self._every)

    async def wait_for_the_end(self) -> None:
        """The same while a run that is over counts its results: a stop may take as long as that does."""
        while True:
            self.tell("WATCHDOG=1", f"EXTEND_TIMEOUT_USEC={int(EXTENSION * 1e6)}", "STATUS=counting the results")
            await trio.sleep(self._every)

    @property
    def _every(self) -> float:
        return STATUS_EVERY if self.watchdog is None else min(self.watchdog / 2, STATUS_EVERY)
