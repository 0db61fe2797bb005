"""The whole daemon under a virtual clock: no thread, no socket, no real second; one seed, one log.

trio's MockClock jumps to the next deadline as soon as every task waits, so an hour of a run takes as long as its
arithmetic. Everything that would need a thread is handed in: the lines come from memory, the results go there.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, Mapping
from contextlib import asynccontextmanager

import trio
import trio.testing
from attrs import frozen

from controller.assemble import charge_of
from controller.charges import Meters
from controller.daemon import Parts, serve
from controller.decisions import DecisionLog
from controller.dialects.table import dialect_for
from controller.gates import Gates, limiter_maker
from controller.identity import Identities
from controller.intake import Intake, read_prompts
from controller.journal import Append, Journal
from controller.records import Prompt, Result, dump_result
from controller.settings import Settings
from controller.sources import ReadChunk, Source
from controller.store import Store
from controller.telemetry import Exit, Stop, Tally
from controller.upstream import Upstream
from policies.contract import JSON
from simulations.provider import Provider
from simulations.transport import SimulatedTransport

BASE_URL = "http://sim/v1"
SIM_DEFAULTS: Mapping[str, JSON] = {"model": "sim"}

Meddle = Callable[[Stop], Awaitable[None]]  # what happens to the run from outside: a signal, say


@frozen(kw_only=True)
class VirtualRun:
    """What came out. results: the lines written; decisions: the log's lines; elapsed: virtual seconds.

    written_at: seconds after the start, one for each result.
    """

    exit: Exit
    results: tuple[dict[str, JSON], ...]
    written_at: tuple[float, ...]
    decisions: tuple[str, ...]
    tally: Tally
    intake: Intake
    upstream: dict[str, JSON]
    elapsed: float


async def nothing(stop: Stop) -> None:
    """Let the run take its course."""
    del stop


def run_virtual(
    lines: Iterable[bytes] | Source,
    provider: Provider,
    settings: Settings,
    *,
    done: Container[bytes] = frozenset(),
    store: Store | None = None,
    defaults: Mapping[str, JSON] = SIM_DEFAULTS,
    meddle: Meddle = nothing,
) -> VirtualRun:
    """Run the daemon over `lines` against `provider` until it ends; deterministic in settings.seed and its inputs.

    store: where results go; its journal's `append` needs no thread. Without one they are in the VirtualRun.
    """
    make_deterministic(settings.seed)
    clock = trio.testing.MockClock(autojump_threshold=0)
    return trio.run(_Virtual(lines, provider, settings, done, store, dict(defaults), meddle).main, clock=clock)


def make_deterministic(seed: int) -> None:
    """Let trio schedule the tasks of the next runs in an order that depends on the seed alone.

    trio shuffles each batch of runnable tasks, on purpose, with a private generator, and offers no public switch
    (python-trio/trio#32); its own pytest plug-in for Hypothesis sets the same two names. A test holds that one seed
    gives one log, so that a trio in which these names mean nothing is noticed.
    """
    trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]  # Final for others, not for its purpose
    trio._core._run._r.seed(seed)


@frozen
class _Virtual:
    lines: Iterable[bytes] | Source
    provider: Provider
    settings: Settings
    done: Container[bytes]
    store: Store | None
    defaults: dict[str, JSON]
    meddle: Meddle

    async def main(self) -> VirtualRun:
        written: list[bytes] = []
        written_at: list[float] = []
        decisions: list[str] = []
        intake = Intake(identities=Identities(), done=self.done)
        store = self.store or Store(Journal(name="memory", append=_appender(written)))
        tally, stop = Tally(), Stop()

        async def read(
            accept_prompt: Callable[[Prompt], Awaitable[None]], accept_result: Callable[[Result], Awaitable[None]]
        ) -> None:
            source = self.lines if isinstance(self.lines, Source) else memory_source(self.lines)
            await read_prompts([source], intake, accept_prompt, accept_result)

        async def write(results: list[Result]) -> None:
            await store.write([dump_result(result) for result in results], results)
            intake.written(results)
            written_at.extend(trio.current_time() - started_at for _ in results)

        started_at = trio.current_time()
        log = DecisionLog(lambda line: decisions.append(line.decode()), started_at)
        async with self._upstream() as upstream, trio.open_nursery() as nursery:
            nursery.start_soon(self.meddle, stop)
            charge = charge_of(self.settings, upstream.dialect)
            parts = Parts(
                settings=self.settings,
                read=read,
                write=write,
                upstream=upstream,
                gates=Gates(limiter_maker(self.settings, charge), log),
                meters=Meters(charge, unsaid=upstream.dialect.unsaid_output),
                defaults=self.defaults,
                tally=tally,
                stop=stop,
                underway=store.underway,
            )
            code = await serve(parts)
            nursery.cancel_scope.cancel()
        return VirtualRun(
            exit=code,
            results=tuple(json.loads(line) for chunk in written for line in chunk.split(b"\n") if line),
            written_at=tuple(written_at),
            decisions=tuple(decisions),
            tally=tally,
            intake=intake,
            upstream=self.provider.statistics(),
            elapsed=trio.current_time() - started_at,
        )

    def _upstream(self) -> Upstream:
        return Upstream(
            transport=SimulatedTransport(self.provider),
            base_url=BASE_URL,
            dialect=dialect_for(self.settings.dialect or self.provider.profile.dialect, BASE_URL),
            timeouts=self.settings.timeouts,
        )


def _appender(written: list[bytes]) -> Append:
    async def append(data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        written.append(data)

    return append


def memory_source(lines: Iterable[bytes]) -> Source:
    """Lines as a source that can be read once."""
    return timed_source((0.0, line) for line in lines)


def timed_source(lines: Iterable[tuple[float, bytes]]) -> Source:
    """The same, each line from an instant on (seconds after the source is opened, in order)."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[ReadChunk]:
        remaining, opened_at = iter(lines), trio.current_time()

        async def read_chunk() -> bytes:
            at, line = next(remaining, (0.0, None))
            await trio.sleep_until(opened_at + at)
            return b"" if line is None else line + b"\n"

        yield read_chunk

    return Source(name="memory", open=opened)
