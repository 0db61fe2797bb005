"""One attempt at a prompt over HTTP, from the request to its Outcome.

The transport is called directly: an httpx client would add cookies, redirects and netrc. Four clocks move the
deadline of one cancel scope: connect, first payload, between payloads, total. Comments and blank lines are no payload:
a queue can send them for ever (https://openrouter.ai/docs/api-reference/streaming). An unstreamed answer
has its first byte when it is finished, so there only the total clock runs until it comes.

Rules for editors. Every httpx exception becomes an Outcome here, by the table FAILURES, and nothing else does: what is
unforeseen crashes. Once an answer is whole there is no checkpoint that could raise Cancelled before it is returned.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import httpx
import trio
from attrs import define, evolve, field

from controller.clocks import Clock, Clocks
from controller.dialects.contract import Dialect, Fold, Request
from controller.gate import Permit
from controller.outcome import Answer, Completed, Delta, Failed, Kind, Outcome, Part, Throttled
from controller.sse import Event, Splitter
from controller.tap import ENCODINGS, Tap
from controller.trouble import CAUGHT, kind_of, words_for

ERROR_BYTES = 1 << 20  # of an error's body that are read
MOST_BYTES = 64 << 20  # of an answer; one without end would fill the memory
ERROR_SECONDS = 10.0  # for an error's body: the status alone decides if it does not come
USER_AGENT = "tidegate"


@define(eq=False, kw_only=True)
class Attempt:
    """The state of one attempt: what was sent, what was accepted, which clock runs."""

    transport: httpx.AsyncBaseTransport
    dialect: Dialect
    wall_clock: Callable[[], float]
    request: Request
    permit: Permit
    clocks: Clocks
    splitter: Splitter = field(factory=Splitter)
    fold: Fold
    hear: Callable[[list[Delta]], None] = lambda _: None  # told of text as it comes
    _heard: list[Delta] = field(factory=list)  # of the first choice; the fold keeps the same strings
    _written: bool = False  # a byte of the request may have left
    _accepted: bool = False
    _refusal: Throttled | Failed | None = None  # an error inside the stream
    _events: int = 0

    async def run(self, key_headers: dict[str, str]) -> Outcome:
        """The outcome, whatever happens; only Cancelled from outside and bugs come out as exceptions."""
        headers = {
            "user-agent": USER_AGENT,
            # A compressing proxy would hold back the pieces of a stream.
            "accept-encoding": "identity" if self.request.streamed else ENCODINGS,
        }
        request = httpx.Request(
            "POST",
            self.request.url,
            headers=headers | self.request.headers | key_headers,
            content=self.request.body,
            extensions={"trace": self._trace},
        )
        outcome: Outcome | None = None
        self.permit.seen.sent = True  # a transport that does not trace may send at any time
        self._await_answer()
        with self.clocks.scope:
            outcome = await self._exchange(request)
        outcome = outcome or Failed(kind=Kind.TIMEOUT, message=self.clocks.words, sent=self.permit.seen.sent)
        return evolve(outcome, part=self._part()) if isinstance(outcome, Failed) and self._heard else outcome

    async def _exchange(self, request: httpx.Request) -> Outcome:
        try:
            response = await self.transport.handle_async_request(request)
        except CAUGHT as error:
            return self._lost(error, request.url)
        tap = Tap(response)
        try:
            return await self._answer(response, tap)
        except CAUGHT as error:
            return self._lost(error, request.url, status=response.status_code)
        finally:
            await tap.aclose()

    async def _trace(self, event: str, _: object) -> None:
        """Connecting has its own clock; httpcore's trace extension tells when it begins and ends."""
        if event == "connection.connect_tcp.started":
            self.permit.seen.sent = self._written
            self.clocks.run(Clock.CONNECT)
        elif event == "http11.send_request_headers.started":
            self.permit.seen.sent = self._written = True
            self._await_answer()

    def _await_answer(self) -> None:
        self.clocks.run(Clock.FIRST_PAYLOAD if self.request.streamed else Clock.TOTAL)

    def _lost(self, error: Exception, url: httpx.URL, *, status: int | None = None) -> Failed:
        kind = kind_of(error, answered=status is not None)
        sent = self._written or kind is not Kind.CONNECT
        self.permit.seen.sent = sent
        return Failed(kind=kind, message=words_for(error, url), status=status, sent=sent)

    async def _answer(self, response: httpx.Response, tap: Tap) -> Outcome:
        if not response.is_success:
            return await self._refused(response, tap)
        if not self.dialect.refuses_inside_200:
            self._accept(response)
        if self.request.streamed and "json" not in response.headers.get("content-type", "").lower():
            return await self._streamed(response, tap)
        return await self._plain(response, tap)

    async def _refused(self, response: httpx.Response, tap: Tap) -> Outcome:
        body = bytearray()

        def take(chunk: bytes) -> bool:
            body.extend(chunk)
            return len(body) < ERROR_BYTES

        self.clocks.run(Clock.TOTAL)
        with trio.move_on_after(ERROR_SECONDS), suppress(*CAUGHT):  # the status says enough without a body
            await self._read(tap, take)
        return self._classified(response, bytes(body[:ERROR_BYTES]))

    async def _streamed(self, response: httpx.Response, tap: Tap) -> Outcome:
        await self._read(tap, lambda chunk: self._take(self.splitter.feed(chunk), response))
        return self._folded(response)

    async def _plain(self, response: httpx.Response, tap: Tap) -> Outcome:
        body = bytearray()

        def take(chunk: bytes) -> bool:
            if chunk.strip():  # DeepSeek sends blank lines while a request is queued
                self._payload()
            body.extend(chunk)
            return True

        await self._read(tap, take)
        if not body.lstrip().startswith((b"data:", b"event:", b":")):
            return self._classified(response, bytes(body))
        self._take(self.splitter.feed(bytes(body)), response)  # a stream under the wrong name
        return self._folded(response)

    async def _read(self, tap: Tap, take: Callable[[bytes], bool]) -> None:
        """The body in pieces to `take`, until it says False."""
        size = 0
        async for piece in tap:
            size += len(piece)
            if size > MOST_BYTES:
                raise httpx.DecodingError(f"the answer is longer than {MOST_BYTES >> 20} MiB")
            if not take(piece):
                if not self._damaged():
                    tap.shut()
                break

    def _damaged(self) -> bool:
        """Such a stream is closed at once, not drained: then the upstream stops writing what nobody will use."""
        return isinstance(self._refusal, Failed) and self._refusal.kind is Kind.MALFORMED

    def _take(self, events: list[Event], response: httpx.Response) -> bool:
        more = self._feed(events, response)
        if fresh := self.fold.fresh():
            self._heard += [delta for delta in fresh if delta.index == 0]
            self.hear(fresh)
        return more

    def _part(self) -> Part:
        """What was heard of the first choice."""
        return Part(
            text="".join(delta.text for delta in self._heard if not delta.reasoning),
            reasoning="".join(delta.text for delta in self._heard if delta.reasoning),
            usage=self.permit.seen.usage,
        )

    def _feed(self, events: list[Event], response: httpx.Response) -> bool:
        """False: nothing after these is wanted."""
        for event in events:
            self._events += 1
            self._refusal = self.fold.feed(event)
            self.permit.seen.usage = self.fold.usage
            if self._refusal is not None:
                return False
            self._payload()
            self._accept(response)
            if self.fold.finished:
                return False
        return True

    def _folded(self, response: httpx.Response) -> Outcome:
        """What a stream came to that is over, cleanly or by its terminator."""
        if self._refusal is None and not self.fold.finished:
            self._take(self.splitter.close(), response)
        if self._refusal is not None:
            return self._refusal
        answer = self.fold.end() if self._events else None
        if isinstance(answer, Answer):
            return Completed(answer=answer, status=response.status_code)
        stray = self._classified(response, bytes(self.splitter.stray))
        # An error sent as a bare document where events were due explains a stream that broke off.
        unexplained = isinstance(stray, Failed) and stray.kind is Kind.MALFORMED
        return answer if answer is not None and (unexplained or isinstance(stray, Completed)) else stray

    def _classified(self, response: httpx.Response, body: bytes) -> Outcome:
        headers = dict(response.headers.items())
        dialect, wall_now = self.dialect, self.wall_clock()
        outcome = dialect.classify(response.status_code, headers, body, wall_now=wall_now)
        if isinstance(outcome, Completed):
            self._accept(response)
            self.permit.seen.usage = outcome.answer.usage
        return outcome

    def _payload(self) -> None:
        if self.permit.seen.first_token_at is None:
            self.permit.seen.first_token_at = trio.current_time()
        self.clocks.run(Clock.BETWEEN_PAYLOADS)

    def _accept(self, response: httpx.Response) -> None:
        if not self._accepted:
            self._accepted = True
            self.permit.accept(self.dialect.hints(dict(response.headers.items())))
