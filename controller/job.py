"""A run from settings to exit code: every check that can be made first, then the daemon, then the closing lines."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from typing import IO

import httpx
import trio
from attrs import field, frozen

from controller import assemble
from controller.budget import Price
from controller.charges import Meters
from controller.closing import Ending, opening_lines
from controller.crew import Crew
from controller.daemon import Parts, serve
from controller.decisions import DecisionLog, open_log
from controller.dialects.contract import Dialect
from controller.following import followed, is_awaited
from controller.gates import Gates, MakeLimiter, limiter_maker
from controller.intake import Intake, read_prompts
from controller.keeper import Keeper
from controller.live import Live
from controller.memory import Memory
from controller.permits import Decision
from controller.progress import show, statistics, summary
from controller.reach import Simulate, upstream_of
from controller.records import Prompt, Result, dump_result
from controller.reload import Reload, listen
from controller.settings import Settings
from controller.sources import source_of
from controller.stderr import is_terminal
from controller.store import Store
from controller.supervisor import Supervisor
from controller.telemetry import Exit, Stop, Tally
from controller.upstream import Upstream
from policies.contract import JSON

LOOK_EVERY = 0.5  # s between two looks at a file that grows

Say = Callable[[str], None]  # one line for the user, on stderr


@frozen(kw_only=True)
class Job:
    """A run that has passed every check that can be made before anything is sent."""

    settings: Settings
    sources: tuple[str, ...]
    store: Store
    intake: Intake
    transport: httpx.AsyncBaseTransport
    base_url: str
    dialect: Dialect
    key: str | None = field(repr=False)
    defaults: dict[str, JSON]
    make_limiter: MakeLimiter
    memory: Memory
    meters: Meters
    decisions: IO[bytes] | None
    say: Say
    price: Price
    reread: Callable[[], Settings]
    supervisor: Supervisor
    live: Live | None = None
    tally: Tally = field(factory=Tally)
    stop: Stop = field(factory=Stop)
    logs: list[DecisionLog] = field(factory=list)

    def run(self) -> Exit:
        """Run it to its end and say how it ended."""
        waiting = [f"{name} is not there yet: waiting for it" for name in self.sources if is_awaited(name)]
        for line in [*assemble.warnings(self.settings, self.dialect), *opening_lines(self.store), *waiting]:
            self.say(line)
        return trio.run(self._main, restrict_keyboard_interrupt_to_checkpoints=True)

    async def _main(self) -> Exit:
        began = time.monotonic()
        code = await self._work()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.supervisor.wait_for_the_end)
            code = await trio.to_thread.run_sync(self._close, code, time.monotonic() - began)
            nursery.cancel_scope.cancel()
        return code

    def _close(self, code: Exit, seconds: float) -> Exit:
        """Count what was written and tell, which takes seconds where the results are many."""
        ending = Ending(
            intake=self.intake, store=self.store, tally=self.tally, stop=self.stop, meters=self.meters, logs=self.logs
        )
        code, lines = ending.close(code, seconds, self.settings.summary)
        for line in lines:
            self.say(line)
        return code

    async def _work(self) -> Exit:
        gates = Gates(self.make_limiter, self._log(trio.current_time()), self.say, self.memory)
        keeper = Keeper(self.memory, gates, self.meters, self.settings.ceilings)
        keeper.begin()
        try:
            return await self._serve(gates, keeper)
        finally:
            keeper.end()

    async def _serve(self, gates: Gates, keeper: Keeper) -> Exit:
        async with (
            Upstream(
                transport=self.transport,
                base_url=self.base_url,
                dialect=self.dialect,
                key=self.key,
                reread_key=lambda: assemble.reread_key(self.settings),
                timeouts=self.settings.timeouts,
            ) as upstream,
            trio.open_nursery() as nursery,
        ):
            crew = Crew(self.settings.max_in_flight)
            reload = Reload(
                settings=self.settings,
                reread=self.reread,
                gates=gates,
                keeper=keeper,
                crew=crew,
                check_key=lambda: assemble.key_now(self.settings),
                renew_key=upstream.renew_key,
                say=self.say,
            )
            nursery.start_soon(listen, self.stop, reload, self.supervisor, lambda: self._statistics(gates))
            nursery.start_soon(self.supervisor.run, lambda: self._line(gates, reload.settings))
            nursery.start_soon(self._say_when_stopping)
            nursery.start_soon(self.store.sync_often, self.stop, self.say)
            nursery.start_soon(keeper.run)
            nursery.start_soon(show, self._progress_mode(), lambda: self._line(gates, reload.settings))
            parts = Parts(
                settings=self.settings,
                read=self._read,
                write=self._write,
                upstream=upstream,
                gates=gates,
                meters=self.meters,
                defaults=self.defaults,
                price=self.price,
                say=self.say,
                tally=self.tally,
                stop=self.stop,
                live=self.live,
                underway=self.store.underway,
                failed_before=lambda key: bytes.fromhex(key) in self.store.journal.ledger.failed,
                crew=crew,
            )
            code = await serve(parts)
            nursery.cancel_scope.cancel()
        return code

    # -- what the daemon is given

    async def _read(
        self, accept_prompt: Callable[[Prompt], Awaitable[None]], accept_result: Callable[[Result], Awaitable[None]]
    ) -> None:
        follow = self.settings.follow
        sources = [followed(name, LOOK_EVERY) if follow else source_of(name) for name in self.sources]
        spool = self.store.spool
        await read_prompts(sources, self.intake, accept_prompt, accept_result, spool, at_once=follow)

    async def _write(self, results: list[Result]) -> None:
        keep = self.settings.keep_response
        if self.live is None or not self.live.sole:
            await self.store.write([dump_result(result, with_body=keep) for result in results], results)
        if self.live is not None:
            await self.live.deliver(results)
        self.intake.written(results)

    def _log(self, started_at: float) -> Callable[[str, Decision], None]:
        self.logs.append(DecisionLog(self.decisions.write if self.decisions else len, started_at))
        return self.logs[0]

    # -- what the user is told

    def _progress_mode(self) -> str:
        if self.settings.progress != "auto":
            return self.settings.progress
        return "bar" if is_terminal() else "lines"

    def _line(self, gates: Gates, settings: Settings) -> str:
        return summary(
            self.tally,
            gates.by_model.values(),
            trio.current_time(),
            max_in_flight=settings.max_in_flight,
            input_open=not self.intake.exhausted,
        )

    def _statistics(self, gates: Gates) -> None:
        for line in statistics(self.tally, gates.by_model, trio.current_time()):
            self.say(line)

    async def _say_when_stopping(self) -> None:
        await self.stop.asked.wait()
        self.supervisor.tell("STOPPING=1")
        rest = "" if self.stop.at_once.is_set() else "; finishing what is under way"
        self.say(f"stopping: {self.stop.reason}{rest}")


def prepare(
    settings: Settings,
    sources: tuple[str, ...],
    environment: Mapping[str, str],
    stack: ExitStack,
    *,
    say: Say,
    simulate: Simulate,
    reread: Callable[[], Settings],
) -> Job:
    """Check everything, open what must be open; raises ValueError, one line, with nothing sent."""
    assemble.check_files(settings, sources)
    url, dialect, key, transport = upstream_of(settings, environment, simulate)
    charge, defaults = assemble.charge_of(settings, dialect), assemble.request_defaults(settings, url)
    make_limiter = limiter_maker(settings, charge)
    memory = assemble.memory_of(settings, url, key, say)
    price = assemble.price_of(settings, url)
    decisions = open_log(settings.decisions, stack)
    store = stack.enter_context(Store.open(settings))
    return Job(
        settings=settings,
        sources=sources,
        store=store,
        intake=assemble.intake_for(settings, store.journal.ledger),
        transport=transport,
        base_url=url,
        dialect=dialect,
        key=key,
        defaults=defaults,
        make_limiter=make_limiter,
        memory=memory,
        meters=Meters(
            charge,
            known=lambda model: memory.lessons(model, 0.0).estimates,
            sizer=assemble.sizer_of(settings, say),
            unsaid=dialect.unsaid_output,
        ),
        decisions=decisions,
        say=say,
        price=price,
        reread=reread,
        supervisor=Supervisor.of(environment),
        live=Live.to_stdout(settings, store.journal),
    )
