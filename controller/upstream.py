"""The upstream as the worker sees it: prompts in, outcomes out.

The key goes into the headers of a request and nowhere else; where an upstream echoes it, it is scrubbed. A key that
expires (OAuth tokens live an hour) is read again from its file when it may be what was refused (401, or a fatal 400 or
403), and the request repeated at once if it has changed: no prompt is to blame, and no rate.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import httpx
from attrs import evolve

from controller.attempt import Attempt
from controller.clocks import Clocks
from controller.dialects.contract import Dialect, Fold, Request
from controller.gate import Permit
from controller.midnight import until_midnight
from controller.outcome import Completed, Delta, Failed, Kind, Outcome, Throttled
from controller.records import Prompt
from controller.settings import Timeouts
from policies.contract import JSON

SCRUBBED = "[key]"
OF_KEYS = frozenset({400, 401, 403})  # Google says 400 to a key that it does not know
NOWHERE = frozenset({404, 405})
GOOGLE = frozenset({"gemini", "gemini-openai", "vertex"})


class Upstream:
    """An upstream as the worker sees it: prompts in, outcomes out. Raises ValueError for a key no header may hold."""

    def __init__(
        self,
        *,
        transport: httpx.AsyncBaseTransport,
        base_url: str,
        dialect: Dialect,
        key: str | None = None,
        reread_key: Callable[[], str | None] = lambda: None,
        timeouts: Timeouts | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        if key is not None and not _fits_header(key):
            raise ValueError("the API key is empty or has characters that no HTTP header may hold")
        self.transport = transport
        self.base_url = base_url.rstrip("/")
        self.dialect = dialect
        self.timeouts = timeouts or Timeouts()
        self.wall_clock = wall_clock
        self._key = key
        self._reread_key = reread_key

    async def attempt(
        self, prompt: Prompt, permit: Permit, hear: Callable[[list[Delta]], None] = lambda _: None
    ) -> Outcome:
        """Ask once; permit.seen is filled, permit.accept and hear called on the way. Raises only Cancelled and bugs."""
        request = self.dialect.request(self.base_url, prompt)
        if isinstance(request, Failed):
            return request
        key = self._key
        outcome = await self._ask(request, key, permit, self.dialect.fold(prompt), hear)
        if isinstance(outcome, Failed) and _may_be_the_key(outcome) and self._renewed(key):
            permit.seen.repeats += 1
            outcome = await self._ask(request, self._key, permit, self.dialect.fold(prompt), hear)
        return outcome

    async def _ask(
        self, request: Request, key: str | None, permit: Permit, fold: Fold, hear: Callable[[list[Delta]], None]
    ) -> Outcome:
        attempt = Attempt(
            transport=self.transport,
            dialect=self.dialect,
            wall_clock=self.wall_clock,
            request=request,
            permit=permit,
            clocks=Clocks(self.timeouts),
            fold=fold,
            hear=hear,
        )
        outcome = _scrubbed(key, await attempt.run(self.dialect.key_headers(key) if key is not None else {}))
        if isinstance(outcome, Failed) and outcome.status in NOWHERE:
            return evolve(outcome, message=f"{outcome.message} ({self._where(request.url)})")
        return outcome

    def _where(self, url: str) -> str:
        """What was asked, for an answer that it is not there: the model may be missing, or the base URL be wrong."""
        bare = not urlsplit(self.base_url).path and urlsplit(url).path in (
            "/chat/completions",
            "/embeddings",
            "/responses",
        )
        return f"POST {url}{'; does --base-url lack /v1?' if bare else ''}"

    def _renewed(self, refused: str | None) -> bool:
        """There is another key than the refused one now; another attempt may have found it before."""
        if self._key == refused:
            fresh = self._reread_key()
            if fresh is not None and _fits_header(fresh):
                self._key = fresh
        return self._key != refused

    def until_reset(self) -> float:
        """Seconds until a quota per day begins anew, where no answer says it."""
        return until_midnight(self.wall_clock(), pacific=self.dialect.name in GOOGLE)

    def renew_key(self) -> bool:
        """Read the key again; whether it is another one now."""
        return self._renewed(self._key)

    def continued(self, prompt: Prompt, text: str) -> Prompt | None:
        """The prompt that asks for the rest after `text`; None where that can't be asked."""
        return self.dialect.continued(prompt, text)

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


def _may_be_the_key(failed: Failed) -> bool:
    return failed.kind is Kind.FATAL and failed.status in OF_KEYS


def _fits_header(key: str) -> bool:
    return bool(key) and key.isascii() and key.isprintable() and key == key.strip()


def _scrubbed(key: str | None, outcome: Outcome) -> Outcome:
    """The outcome without our key, should the upstream have echoed it."""
    if key is None or isinstance(outcome, Completed):
        return outcome
    message = _without(key, outcome.message)
    code = outcome.code and _without(key, outcome.code)
    if isinstance(outcome, Throttled):
        return evolve(outcome, message=message, code=code)
    return evolve(outcome, message=message, code=code, body=_scrubbed_json(key, outcome.body))


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
