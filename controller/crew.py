"""How many workers a run has. It may grow while it lasts; to shrink it is the limiter's work, which admits fewer."""

from __future__ import annotations

from collections.abc import Callable

import trio
from attrs import define, field


@define(eq=False)
class Crew:
    """size: workers at work or called for. grown: each change of it."""

    size: int
    _grown: trio.Event = field(factory=trio.Event, init=False)

    def grow(self, size: int) -> None:
        """Call for more workers, up to `size`."""
        if size > self.size:
            self.size = size
            self._grown.set()
            self._grown = trio.Event()

    async def hire(self, begin: Callable[[], bool]) -> None:
        """Begin as many workers as are called for, until there is no more work or it is cancelled."""
        hired = 0
        while True:
            while hired < self.size:
                if not begin():
                    return
                hired += 1
            await self._grown.wait()
