"""A daemon run in virtual time whose stream goes to a consumer of the test's making."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import trio
import trio.testing
from attrs import define, field, frozen

from controller.daemon import Parts, serve
from controller.dialects.contract import Dialect
from controller.dialects.openai_chat import OpenAIChat
from controller.gates import Gates, limiter_maker
from controller.journal import Journal
from controller.live import Live
from controller.records import Prompt, Result, dump_result
from controller.settings import Settings
from controller.telemetry import Exit, Stop, Tally
from controller.upstream import Upstream
from policies.contract import JSON
from simulations.virtual import make_deterministic

Consume = Callable[[bytes], Awaitable[None]]


@frozen(kw_only=True)
class Emitted:
    """How it ended. filed: the lines of the results file."""

    exit: Exit
    tally: Tally
    stop: Stop
    filed: list[bytes]
    elapsed: float


def prompt(number: int, **request: JSON) -> Prompt:
    """A prompt of one message, its number."""
    messages: JSON = [{"role": "user", "content": f"prompt {number}"}]
    whole: dict[str, JSON] = {"model": "m", "messages": messages, **request}
    return Prompt(id=number, key=f"{number:032x}", source="memory", line=number + 1, request=whole)


def emit(
    prompts: list[Prompt],
    transport: httpx.AsyncBaseTransport,
    consume: Consume,
    *,
    to_file: bool = False,
    dialect: Dialect | None = None,
    stop_at: float = float("inf"),
    **changed: object,
) -> Emitted:
    """Answer the prompts, the stream going to `consume`; with to_file the results go to a file as well.

    stop_at: when SIGTERM comes, in seconds.
    """
    chosen = Settings(**{"emit": "delta", "output": "r.jsonl" if to_file else None} | changed)  # type: ignore[arg-type]
    make_deterministic(chosen.seed)
    clock = trio.testing.MockClock(autojump_threshold=0)
    return trio.run(_main, prompts, transport, consume, dialect or OpenAIChat(), chosen, stop_at, clock=clock)


async def _main(
    prompts: list[Prompt],
    transport: httpx.AsyncBaseTransport,
    consume: Consume,
    dialect: Dialect,
    settings: Settings,
    stop_at: float,
) -> Emitted:
    filed: list[bytes] = []
    live = Live.to_stdout(settings, Journal(name="memory", append=consume))
    assert live is not None
    live.journal = Journal(name="memory", append=consume)

    async def read(
        accept_prompt: Callable[[Prompt], Awaitable[None]], accept_result: Callable[[Result], Awaitable[None]]
    ) -> None:
        del accept_result
        for one in prompts:
            await accept_prompt(one)

    async def write(results: list[Result]) -> None:
        if not live.sole:
            filed.extend(dump_result(result) for result in results)
        await live.deliver(results)

    began, tally, stop = trio.current_time(), Tally(), Stop()
    async with (
        Upstream(
            transport=transport, base_url="http://sim/v1", dialect=dialect, timeouts=settings.timeouts
        ) as upstream,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(_stop, stop, stop_at)
        gates = Gates(limiter_maker(settings), lambda *_: None)
        parts = Parts(
            settings=settings,
            read=read,
            write=write,
            upstream=upstream,
            gates=gates,
            tally=tally,
            stop=stop,
            live=live,
        )
        code = await serve(parts)
        nursery.cancel_scope.cancel()
    return Emitted(exit=code, tally=tally, stop=stop, filed=filed, elapsed=trio.current_time() - began)


async def _stop(stop: Stop, at: float) -> None:
    await trio.sleep_until(trio.current_time() + at)
    stop.ask(Exit.TERMINATED, "SIGTERM")


def lines_of(data: bytes) -> list[bytes]:
    """The lines in what was written."""
    found = data.split(b"\n")
    assert found.pop() == b"", "whole lines only"
    for line in found:
        json.loads(line)
    return found


# -- an upstream that plays a script


def chunk(text: str) -> bytes:
    """One event of a stream."""
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode() + b"\n\n"


DONE = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
Answering = list[bytes | float | int]  # bytes to send, seconds to wait, the status


@define(eq=False)
class Played(httpx.AsyncBaseTransport):
    """Gives one script an attempt, the last one for ever."""

    scripts: list[Answering]
    attempts: int = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        del request
        await trio.lowlevel.checkpoint()
        script = self.scripts[min(self.attempts, len(self.scripts) - 1)]
        self.attempts += 1
        status = next((step for step in script if isinstance(step, int)), 200)
        return httpx.Response(status, headers={"content-type": "text/event-stream"}, stream=Body(script))


@define(eq=False)
class Body(httpx.AsyncByteStream):
    """The body of a script."""

    script: Answering = field(factory=list)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for step in self.script:
            if isinstance(step, float):
                await trio.sleep(step)
            elif isinstance(step, bytes):
                yield step
