"""The upstream as the worker sees it: prompts in, outcomes out.

The key goes into the headers of a request and nowhere else; where an upstream echoes it, it is scrubbed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import httpx
from attrs import evolve

from controller.attempt import Attempt
from controller.clocks import Clocks
from controller.dialects.contract import Dialect
from controller.gate import Permit
from controller.outcome import Completed, Delta, Outcome, Throttled
from controller.records import Prompt
from controller.settings import Timeouts
from policies.contract import JSON

SCRUBBED = "[key]"


class Upstream:
    """An upstream as the worker sees it: prompts in, outcomes out. Raises ValueError for a key no header may hold."""

    def __init__(
        self,
        *,
        transport: httpx.AsyncBaseTransport,
        base_url: str,
        dialect: Dialect,
        key: str | None = None,
        timeouts: Timeouts | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        if key is not None and not (key.isascii() and key.isprintable() and key == key.strip() and key):
            raise ValueError("the API key is empty or has characters that no HTTP header may hold")
        self.transport = transport
        self.base_url = base_url.rstrip("/")
        self.dialect = dialect
        self.timeouts = timeouts or Timeouts()
        self.wall_clock = wall_clock
        self._key = key

    async def attempt(
        self, prompt: Prompt, permit: Permit, hear: Callable[[list[Delta]], None] = lambda _: None
    ) -> Outcome:
        """Ask once; permit.seen is filled, permit.accept and hear called on the way. Raises only Cancelled and bugs."""
        request = self.dialect.request(self.base_url, prompt)
        keys = self.dialect.key_headers(self._key) if self._key is not None else {}
        attempt = Attempt(
            transport=self.transport,
            dialect=self.dialect,
            wall_clock=self.wall_clock,
            request=request,
            permit=permit,
            clocks=Clocks(self.timeouts),
            fold=self.dialect.fold(),
            hear=hear,
        )
        return self._scrubbed(await attempt.run(keys))

    def continued(self, prompt: Prompt, text: str) -> Prompt | None:
        """The prompt that asks for the rest after `text`; None where that can't be asked."""
        return self.dialect.continued(prompt, text)

    def _scrubbed(self, outcome: Outcome) -> Outcome:
        """The outcome without our key, should the upstream have echoed it."""
        if self._key is None or isinstance(outcome, Completed):
            return outcome
        message = _without(self._key, outcome.message)
        code = outcome.code and _without(self._key, outcome.code)
        if isinstance(outcome, Throttled):
            return evolve(outcome, message=message, code=code)
        return evolve(outcome, message=message, code=code, body=_scrubbed_json(self._key, outcome.body))

    async def aclose(self) -> None:
        """Close the transport."""
        await self.transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<Upstream {self.base_url} dialect={self.dialect.name} transport={self.transport!r}>"


def _without(key: str, text: str) -> str:
    text = text.replace(key, SCRUBBED)
    if text.endswith("…"):  # an excerpt, which may have been cut inside the key
        for length in range(len(key) - 1, 3, -1):
            if text.endswith(key[:length] + "…"):
                return text[: -length - 1] + SCRUBBED + "…"
    return text


def _scrubbed_json(key: str, value: JSON) -> JSON:
    if isinstance(value, str):
        return _without(key, value)
    if isinstance(value, list):
        return [_scrubbed_json(key, item) for item in value]
    if isinstance(value, dict):
        return {_without(key, name): _scrubbed_json(key, item) for name, item in value.items()}
    return value
