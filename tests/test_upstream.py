"""One attempt against a peer that answers with exactly these bytes; the clocks in virtual time."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import cast

import httpx
import pytest
import trio
import trio.testing
from attrs import define, field
from raw_server import Peer, RawServer

from controller.dialects.openai_chat import OpenAIChat
from controller.dialects.table import dialect_for
from controller.gate import Permit, Seen
from controller.outcome import Completed, Delta, Failed, Kind, Outcome, Part, Throttled, Usage
from controller.records import Prompt
from controller.settings import Timeouts
from controller.transport import Pool
from controller.upstream import Upstream
from policies.contract import Hints, Scope

KEY = "sk-very-secret-0123456789"
PROMPT = Prompt(id="a", key="0" * 32, source="-", line=1, request={"model": "m", "messages": []})
PLAIN = Prompt(id="b", key="1" * 32, source="-", line=2, request={"model": "m", "messages": [], "stream": False})


@define
class FakePermit:
    """What the attempt needs of a permit."""

    seen: Seen = field(factory=Seen)
    accepted: list[dict[str, Hints]] = field(factory=list)

    def accept(self, hints: dict[str, Hints]) -> None:
        """Remember it."""
        self.accepted.append(hints)


def chunk(content: str | None = None, finish: str | None = None) -> bytes:
    """One event of a stream."""
    delta = {} if content is None else {"content": content}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "c", "model": "m", "choices": [choice]}).encode() + b"\n\n"


USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12}}\n\n'
DONE = b"data: [DONE]\n\n"
STREAM = chunk("Hal") + chunk("lo") + chunk(finish="stop") + USAGE + DONE


def head(status: int = 200, media: str = "text/event-stream", **more: str) -> bytes:
    """A response head; the body is chunked."""
    lines = [f"HTTP/1.1 {status} Fine", f"content-type: {media}", "transfer-encoding: chunked"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in more.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def piece(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


LAST = b"0\r\n\r\n"


def whole(body: bytes, status: int = 200, media: str = "text/event-stream", **more: str) -> bytes:
    """A whole response."""
    return head(status, media, **more) + (piece(body) if body else b"") + LAST


@define(eq=False)
class Rig:
    """An upstream over real sockets, and what its server saw."""

    upstream: Upstream
    server: RawServer
    pool: Pool
    requests: list[bytes] = field(factory=list)
    permit: FakePermit = field(factory=FakePermit)

    async def attempt(self, prompt: Prompt = PROMPT) -> Outcome:
        """One attempt with a new permit."""
        self.permit = FakePermit()
        with trio.fail_after(5):
            return await self.upstream.attempt(prompt, cast(Permit, self.permit))  # the shape is all that counts


Answerer = Callable[[Peer], Awaitable[None]]


async def rig(nursery: trio.Nursery, answer: bytes | Answerer, dialect: str = "openai", **timeouts: float) -> Rig:
    """A server that gives this answer to every request."""
    requests: list[bytes] = []

    async def handler(peer: Peer) -> None:
        while (request := await peer.request()) is not None:
            requests.append(request)
            if isinstance(answer, bytes):
                await peer.send(answer)
            else:
                await answer(peer)

    server = await RawServer(handler).start(nursery)
    pool = Pool()
    upstream = Upstream(
        transport=pool,
        base_url=f"http://127.0.0.1:{server.port}/v1/",
        dialect=dialect_for(dialect, ""),
        key=KEY,
        timeouts=Timeouts(**timeouts),
    )
    return Rig(upstream, server, pool, requests)


async def outcome_of(nursery: trio.Nursery, answer: bytes | Answerer, prompt: Prompt = PROMPT) -> Outcome:
    """What one attempt makes of this answer."""
    it = await rig(nursery, answer)
    async with it.upstream:
        outcome = await it.attempt(prompt)
    nursery.cancel_scope.cancel()
    return outcome


async def test_a_stream_becomes_a_completed_answer_and_the_connection_is_kept(nursery: trio.Nursery) -> None:
    it = await rig(nursery, whole(STREAM, x_ratelimit_limit_requests="60", x_ratelimit_remaining_requests="59"))
    async with it.upstream:
        for _ in range(3):
            outcome = await it.attempt()
            assert isinstance(outcome, Completed)
            assert outcome.answer.text == "Hallo"
            assert outcome.answer.usage == it.permit.seen.usage
            assert it.permit.accepted == [{"requests": Hints(limit=60, remaining=59)}]
            assert it.permit.seen.sent
            assert it.permit.seen.first_token_at is not None
        assert it.pool.statistics().opened == 1
    request_head, _, body = it.requests[0].partition(b"\r\n\r\n")
    assert request_head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert f"authorization: Bearer {KEY}".encode() in request_head
    assert json.loads(body)["stream_options"] == {"include_usage": True}
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("path", "asks"), [("", True), ("/v1", False), ("/other", False)])
async def test_a_404_at_the_root_asks_for_the_version(nursery: trio.Nursery, path: str, asks: bool) -> None:
    it = await rig(nursery, whole(b'{"detail":"Not Found"}', 404, "application/json"))
    it.upstream.base_url = it.upstream.base_url.removesuffix("/v1") + path
    async with it.upstream:
        outcome = await it.attempt()
    assert isinstance(outcome, Failed)
    assert outcome.message.startswith(f"Not Found (POST {it.upstream.base_url}/chat/completions")
    assert ("lack /v1?" in outcome.message) is asks
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("word", "status"), [("insufficient_quota", 429), ("invalid_api_key", 401)])
async def test_a_fatal_error_within_a_stream_has_the_status_that_it_has_outside(
    nursery: trio.Nursery, word: str, status: int
) -> None:
    error = json.dumps({"error": {"message": "no more", "type": "invalid_request_error", "code": word}}).encode()
    outcome = await outcome_of(nursery, whole(b"data: " + error + b"\n\n"))
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.status) == (Kind.FATAL, status)


async def test_a_quota_of_a_day_is_named_where_the_text_speaks_of_seconds(nursery: trio.Nursery) -> None:
    quotas = {"@type": "google.rpc.QuotaFailure", "violations": [{"quotaId": "GenerateRequestsPerDay-FreeTier"}]}
    error = {"error": {"message": "Please retry in 22s.", "status": "RESOURCE_EXHAUSTED", "details": [quotas]}}
    it = await rig(nursery, whole(json.dumps(error).encode(), 429, "application/json"), "gemini")
    async with it.upstream:
        outcome = await it.attempt()
    assert isinstance(outcome, Failed)
    expected = "the quota of a day is spent (GenerateRequestsPerDay-FreeTier): Please retry in 22s."
    assert (outcome.kind, outcome.message) == (Kind.FATAL, expected)
    nursery.cancel_scope.cancel()


async def test_any_cutting_into_http_chunks_gives_the_same_answer(nursery: trio.Nursery) -> None:
    text = "data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": "日\u2028本"}}]}, ensure_ascii=False)
    stream = text.encode() + b"\n\n" + DONE
    outcome = await outcome_of(nursery, head() + b"".join(piece(bytes([byte])) for byte in stream) + LAST)
    assert isinstance(outcome, Completed)
    assert outcome.answer.text == "日\u2028本"


async def test_a_socket_held_open_after_done_neither_delays_nor_fails(nursery: trio.Nursery) -> None:
    # C08: https://github.com/ltmoerdani/opencode-copilot-chat/pull/170
    it = await rig(nursery, head() + piece(STREAM))
    async with it.upstream:
        began_at = trio.current_time()
        assert isinstance(await it.attempt(), Completed)
        assert trio.current_time() - began_at < 0.6
        assert it.pool.statistics().open == 0
    nursery.cancel_scope.cancel()


async def test_a_damaged_stream_is_closed_at_once_so_that_nobody_writes_on(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    it = await rig(nursery, head() + piece(chunk("Hal")) + piece(b"data: {]\n\n") + piece(chunk("lo")))
    async with it.upstream:
        began_at = trio.current_time()
        outcome = await it.attempt()
        assert isinstance(outcome, Failed)
        assert outcome.kind is Kind.MALFORMED
        assert trio.current_time() == began_at, "it listened on to what it will not use"
        assert it.pool.statistics().open == 0
    nursery.cancel_scope.cancel()


async def test_a_clock_that_runs_out_during_the_drain_does_not_lose_the_answer(nursery: trio.Nursery) -> None:
    it = await rig(nursery, head() + piece(STREAM), between_payloads=0.1)
    async with it.upstream:
        assert isinstance(await it.attempt(), Completed)
    nursery.cancel_scope.cancel()


async def test_a_cancel_during_the_drain_does_not_lose_the_answer(nursery: trio.Nursery) -> None:
    async def give_and_cancel(peer: Peer) -> None:
        await peer.send(head() + piece(STREAM))
        await trio.testing.wait_all_tasks_blocked(0.02)
        scope.cancel()

    it = await rig(nursery, give_and_cancel)
    outcomes: list[Outcome] = []
    scope = trio.CancelScope()
    async with it.upstream:
        with scope:
            outcomes.append(await it.attempt())
    assert scope.cancel_called
    assert isinstance(outcomes[0], Completed)
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (whole(chunk("Hal")), Kind.TRUNCATED),  # C10: a clean end without terminator
        (head() + piece(chunk("Hal"))[:-9], Kind.TRUNCATED),  # C11: cut inside an HTTP chunk
        (head() + piece(chunk("Hal", "stop")), Kind.TRUNCATED),  # finished by its word, but not cleanly ended
        (head()[:-8], Kind.NETWORK),  # the head itself is cut
        (b"", Kind.NETWORK),
        (b"SSH-2.0-OpenSSH_9.2\r\n", Kind.NETWORK),
        (whole(b""), Kind.MALFORMED),
        (whole(DONE), Kind.MALFORMED),
        (whole(b"<html><body>hello</body></html>", media="text/html"), Kind.MALFORMED),
        (whole(b"", 502), Kind.SERVER),
        (whole(b"data: {]\n\n" + DONE), Kind.MALFORMED),
        (whole(b'{"error":{"code":', 500, "application/json")[:-12], Kind.SERVER),  # status first, body cut
    ],
)
async def test_what_is_no_whole_answer_is_a_failure_of_this_kind(
    nursery: trio.Nursery, answer: bytes, kind: Kind
) -> None:
    async def give_and_close(peer: Peer) -> None:
        await peer.send(answer)
        await peer.stream.aclose()

    outcome = await outcome_of(nursery, give_and_close)
    assert isinstance(outcome, Failed)
    assert outcome.kind is kind
    assert outcome.sent


async def test_a_reset_in_the_body_is_truncated(nursery: trio.Nursery) -> None:
    async def give_and_reset(peer: Peer) -> None:
        await peer.send(head() + piece(chunk("Hal")))
        await trio.sleep(0.02)
        peer.reset()
        await trio.sleep_forever()

    outcome = await outcome_of(nursery, give_and_reset)
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.status) == (Kind.TRUNCATED, 200)
    assert "reset" in outcome.message


async def test_a_refused_connection_says_by_whom_and_was_not_sent() -> None:
    upstream = Upstream(transport=Pool(), base_url="http://127.0.0.1:9/v1", dialect=OpenAIChat(), key=None)
    permit = FakePermit()
    outcome = await upstream.attempt(PROMPT, cast(Permit, permit))
    assert outcome == Failed(kind=Kind.CONNECT, message="connection refused by 127.0.0.1:9", sent=False)
    assert not permit.seen.sent


@pytest.mark.parametrize(
    ("answer", "scope", "retry_after"),
    [
        (whole(b"", 429, "text/plain"), Scope.UNKNOWN, None),  # C110
        (whole(b'{"error":{"type":"tokens"}}', 429, "application/json", retry_after="75"), Scope.DIMENSION, 75.0),
        (whole(b'data: {"error":{"code":429,"message":"try again in 2s"}}\n\n' + DONE), Scope.UNKNOWN, 2.0),  # C16
        (whole(b'{\n "error": {\n  "code": 429,\n  "message": "slow"\n }\n}\n'), Scope.UNKNOWN, None),  # C06
        (whole(b'{"error":{"code":429,"message":"x"}}', 200, "application/json"), Scope.UNKNOWN, None),  # C20
        (whole(b"", 529), Scope.OVERLOAD, None),
    ],
)
async def test_a_refusal_is_throttled_in_every_form(
    nursery: trio.Nursery, answer: bytes, scope: Scope, retry_after: float | None
) -> None:
    outcome = await outcome_of(nursery, answer)
    assert isinstance(outcome, Throttled)
    assert (outcome.scope, outcome.retry_after) == (scope, retry_after)


async def test_a_dialect_that_refuses_inside_200_is_accepted_at_its_first_payload(nursery: trio.Nursery) -> None:
    it = await rig(nursery, whole(b'data: {"error":{"message":"queue"},"code":503}\n\n'), dialect="sglang")
    async with it.upstream:
        outcome = await it.attempt()
        assert isinstance(outcome, Failed | Throttled)
        assert it.permit.accepted == []
        assert it.permit.seen.first_token_at is None
    nursery.cancel_scope.cancel()


async def test_a_plain_answer_is_fine_for_both_kinds_of_request(nursery: trio.Nursery) -> None:
    body = b'\n\n{"choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}'
    it = await rig(nursery, whole(gzip.compress(body), media="application/json", content_encoding="gzip"))
    async with it.upstream:
        for prompt in (PLAIN, PROMPT):
            outcome = await it.attempt(prompt)
            assert isinstance(outcome, Completed)
            assert outcome.answer.text == "hi"
            assert len(it.permit.accepted) == 1
        assert it.pool.statistics().opened == 1
    assert b"accept-encoding: gzip" in it.requests[0]
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("media", ["text/plain", "application/json", "application/octet-stream"])
async def test_a_stream_under_a_wrong_name_is_read(nursery: trio.Nursery, media: str) -> None:
    assert isinstance(await outcome_of(nursery, whole(STREAM, media=media)), Completed)


async def test_a_compressed_stream_is_read_up_to_its_terminator(nursery: trio.Nursery) -> None:
    outcome = await outcome_of(nursery, whole(gzip.compress(STREAM + STREAM), content_encoding="gzip"))
    assert isinstance(outcome, Completed)
    assert outcome.answer.text == "Hallo"


async def test_damaged_compression_is_malformed(nursery: trio.Nursery) -> None:
    outcome = await outcome_of(nursery, whole(b"no gzip", content_encoding="gzip"))
    assert isinstance(outcome, Failed)
    assert outcome.kind is Kind.MALFORMED


async def test_an_error_body_without_end_is_read_only_so_far(nursery: trio.Nursery) -> None:
    async def flood(peer: Peer) -> None:
        await peer.send(head(500))
        for _ in range(64):
            await peer.send(piece(b"x" * 65_536))

    outcome = await outcome_of(nursery, flood)
    assert isinstance(outcome, Failed)
    assert outcome.status == 500


@pytest.mark.parametrize("padding", ["", "x" * (300 - 16 - 10)])
async def test_an_echoed_key_is_scrubbed_even_when_an_excerpt_cuts_it(nursery: trio.Nursery, padding: str) -> None:
    message = f"{padding} bad key: {KEY} is no key"
    body = json.dumps({"error": {"message": message, "code": KEY, "list": [KEY, {KEY: 1}]}}).encode()
    it = await rig(nursery, whole(body, 401, "application/json"))
    async with it.upstream:
        outcome = await it.attempt()
        assert isinstance(outcome, Failed)
        assert outcome.kind is Kind.FATAL
        assert "sk-very" not in repr(outcome)
        assert "[key]" in outcome.message
        assert "secret" not in repr(it.upstream)
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("key", ["", "sk-line\n", " sk", "schlüssel", "a\x00b"])
def test_a_key_that_no_header_may_hold_is_refused_without_being_shown(key: str) -> None:
    with pytest.raises(ValueError, match="the API key") as caught:
        Upstream(transport=Pool(), base_url="http://h/v1", dialect=OpenAIChat(), key=key)
    assert not key.strip() or key.strip() not in str(caught.value)


@pytest.mark.parametrize("answering", [False, True])
async def test_a_cancelled_attempt_is_cancelled_and_leaves_no_connection(
    nursery: trio.Nursery, answering: bool
) -> None:
    arrived, scope = trio.Event(), trio.CancelScope()

    async def stall(peer: Peer) -> None:
        if answering:
            await peer.send(head() + piece(chunk("Hal")))
        arrived.set()
        await trio.sleep_forever()

    async def cancel() -> None:
        await arrived.wait()
        await trio.sleep(0.02)
        scope.cancel()

    it = await rig(nursery, stall)
    async with it.upstream:
        nursery.start_soon(cancel)
        with scope:
            await it.attempt()
        assert scope.cancelled_caught
        assert it.pool.statistics().open == 0
        assert it.permit.seen.sent
    nursery.cancel_scope.cancel()


@define(eq=False)
class Script(httpx.AsyncByteStream):
    """A body in virtual time: seconds to wait, then bytes to give."""

    steps: list[float | bytes]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for step in self.steps:
            if isinstance(step, bytes):
                yield step
            else:
                await trio.sleep(step)


@define(eq=False)
class Played(httpx.AsyncBaseTransport):
    """Answers with a script; connecting and the head take their time."""

    steps: list[float | bytes]
    connecting: float = 0.0
    waiting: float = 0.0
    status: int = 200
    media: str = "text/event-stream"

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        trace = request.extensions["trace"]
        await trace("connection.connect_tcp.started", {})
        await trio.sleep(self.connecting)
        await trace("http11.send_request_headers.started", {})
        await trio.sleep(self.waiting)
        return httpx.Response(self.status, headers={"content-type": self.media}, stream=Script(self.steps))


HOUR = 3600.0
COMMENTS: list[float | bytes] = [30.0, b": keep-alive\n\n"] * 20


@pytest.mark.parametrize(
    ("transport", "message", "after"),
    [
        (Played([], connecting=HOUR), "not connected within 10 s", 10),
        (Played([], connecting=9, waiting=HOUR), "no payload within 120 s", 129),
        (Played([HOUR]), "no payload within 120 s", 120),
        (Played(COMMENTS), "no payload within 120 s", 120),  # comments are no payload
        (Played([100.0, chunk("a"), HOUR]), "no payload for 60 s", 160),  # C30
        (Played([chunk("a"), *COMMENTS]), "no payload for 60 s", 60),
        (Played([chunk("a"), 50.0] * 40), "not finished within 900 s", 900),
    ],
)
async def test_each_of_the_four_clocks_says_which_it_was(
    autojump_clock: trio.testing.MockClock, transport: Played, message: str, after: float
) -> None:
    upstream = Upstream(transport=transport, base_url="http://sim/v1", dialect=OpenAIChat())
    permit = FakePermit()
    outcome = await upstream.attempt(PROMPT, cast(Permit, permit))
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.message) == (Kind.TIMEOUT, message)
    assert trio.current_time() == pytest.approx(after)
    assert outcome.sent == permit.seen.sent == ("connected" not in message)


async def test_an_unstreamed_answer_may_take_as_long_as_the_whole_attempt(
    autojump_clock: trio.testing.MockClock,
) -> None:
    body = b'{"choices":[{"message":{"content":"late"},"finish_reason":"stop"}]}'
    steps: list[float | bytes] = [400.0, b"\n", 400.0, body]
    upstream = Upstream(
        transport=Played(steps, media="application/json"), base_url="http://sim/v1", dialect=OpenAIChat()
    )
    assert isinstance(await upstream.attempt(PLAIN, cast(Permit, FakePermit())), Completed)


async def test_a_refusal_whose_body_never_comes_is_judged_by_its_status(
    autojump_clock: trio.testing.MockClock,
) -> None:
    upstream = Upstream(transport=Played([HOUR], status=429), base_url="http://sim/v1", dialect=OpenAIChat())
    outcome = await upstream.attempt(PROMPT, cast(Permit, FakePermit()))
    assert isinstance(outcome, Throttled)
    assert trio.current_time() == pytest.approx(10)


async def test_usage_and_first_token_survive_a_stream_that_breaks_off(autojump_clock: trio.testing.MockClock) -> None:
    upstream = Upstream(
        transport=Played([3.0, chunk("a"), 1.0, USAGE, HOUR]), base_url="http://sim/v1", dialect=OpenAIChat()
    )
    permit = FakePermit()
    with trio.move_on_after(20):
        await upstream.attempt(PROMPT, cast(Permit, permit))
    assert permit.seen.usage is not None
    assert permit.seen.usage.output_tokens == 3
    assert permit.seen.first_token_at == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("steps", "kind"),
    [
        ([chunk("Hal"), USAGE], Kind.TRUNCATED),
        ([chunk("Hal"), USAGE, HOUR], Kind.TIMEOUT),
        ([chunk("Hal"), USAGE, b'data: {"error":{"code":502,"message":"gone"}}\n\n'], Kind.SERVER),
    ],
)
async def test_what_had_come_of_a_broken_answer_is_kept_with_the_failure(
    autojump_clock: trio.testing.MockClock, steps: list[float | bytes], kind: Kind
) -> None:
    upstream = Upstream(transport=Played(steps), base_url="http://sim/v1", dialect=OpenAIChat())
    outcome = await upstream.attempt(PROMPT, cast(Permit, FakePermit()))
    assert isinstance(outcome, Failed)
    usage = Usage(input_tokens=9, output_tokens=3, details={"total_tokens": 12})
    assert (outcome.kind, outcome.part) == (kind, Part(text="Hal", usage=usage))


async def test_a_failure_without_text_has_no_part(autojump_clock: trio.testing.MockClock) -> None:
    upstream = Upstream(transport=Played([HOUR]), base_url="http://sim/v1", dialect=OpenAIChat())
    outcome = await upstream.attempt(PROMPT, cast(Permit, FakePermit()))
    assert isinstance(outcome, Failed)
    assert outcome.part is None


async def test_text_is_heard_at_the_instant_it_comes(autojump_clock: trio.testing.MockClock) -> None:
    heard: list[tuple[float, list[Delta]]] = []
    began = trio.current_time()
    upstream = Upstream(
        transport=Played([1.0, chunk(""), chunk("a"), 2.0, chunk("b") + chunk("c"), 3.0, DONE]),
        base_url="http://sim/v1",
        dialect=OpenAIChat(),
    )
    await upstream.attempt(
        PROMPT, cast(Permit, FakePermit()), lambda deltas: heard.append((round(trio.current_time() - began, 6), deltas))
    )
    assert heard == [
        (1.0, [Delta(0, "a")]),
        (3.0, [Delta(0, "b"), Delta(0, "c")]),
    ]
