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
from controller.charges import Meters
from controller.daemon import Parts, listen_to_signals, serve
from controller.decisions import DecisionLog, open_log
from controller.descriptors import make_room
from controller.dialects.contract import Dialect
from controller.dialects.table import dialect_for
from controller.gates import Gates, MakeLimiter, limiter_maker
from controller.journal import Journal
from controller.keeper import Keeper
from controller.live import Live
from controller.memory import Memory
from controller.permits import Decision
from controller.progress import show, summary
from controller.records import Prompt, Result, dump_result
from controller.settings import Settings
from controller.sources import Intake, read_prompts, source_of
from controller.stderr import is_terminal
from controller.telemetry import Exit, Stop, Tally
from controller.transport import open_transport
from controller.upstream import Upstream
from policies.contract import JSON

LOOK_EVERY = 0.5  # s between two looks at a file that grows
SIMULATED_URL = "http://sim/v1"  # in the requests to a simulated upstream; no socket ever sees it

Say = Callable[[str], None]  # one line for the user, on stderr
Simulate = Callable[[str, int], tuple[httpx.AsyncBaseTransport, str]]  # profile, seed -> and the dialect it speaks


@frozen(kw_only=True)
class Job:
    """A run that has passed every check that can be made before anything is sent."""

    settings: Settings
    sources: tuple[str, ...]
    journal: Journal
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
    live: Live | None = None
    tally: Tally = field(factory=Tally)
    stop: Stop = field(factory=Stop)
    logs: list[DecisionLog] = field(factory=list)

    def run(self) -> Exit:
        """Run it to its end and say how it ended."""
        for line in self._opening_lines():
            self.say(line)
        began = time.monotonic()
        code = trio.run(self._main)
        for line in self._closing_lines(time.monotonic() - began):
            self.say(line)
        return Exit.SOME_FAILED if code is Exit.OK and self.intake.skipped_failed else code

    async def _main(self) -> Exit:
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
            nursery.start_soon(listen_to_signals, self.stop)
            nursery.start_soon(self._say_when_stopping)
            nursery.start_soon(keeper.run)
            nursery.start_soon(show, self._progress_mode(), lambda: self._line(gates))
            parts = Parts(
                settings=self.settings,
                read=self._read,
                write=self._write,
                upstream=upstream,
                gates=gates,
                meters=self.meters,
                defaults=self.defaults,
                tally=self.tally,
                stop=self.stop,
                live=self.live,
            )
            code = await serve(parts)
            nursery.cancel_scope.cancel()
        return code

    # -- what the daemon is given

    async def _read(
        self, accept_prompt: Callable[[Prompt], Awaitable[None]], accept_result: Callable[[Result], Awaitable[None]]
    ) -> None:
        follow = LOOK_EVERY if self.settings.follow else None
        sources = [source_of(name, follow=follow) for name in self.sources]
        await read_prompts(sources, self.intake, accept_prompt, accept_result)

    async def _write(self, results: list[Result]) -> None:
        keep = self.settings.keep_response
        if self.live is None or not self.live.sole:
            await self.journal.write([dump_result(result, with_body=keep) for result in results])
        if self.live is not None:
            await self.live.deliver(results)

    def _log(self, started_at: float) -> Callable[[str, Decision], None]:
        self.logs.append(DecisionLog(self.decisions.write if self.decisions else len, started_at))
        return self.logs[0]

    # -- what the user is told

    def _progress_mode(self) -> str:
        if self.settings.progress != "auto":
            return self.settings.progress
        return "bar" if is_terminal() else "lines"

    def _line(self, gates: Gates) -> str:
        return summary(
            self.tally,
            gates.by_model.values(),
            trio.current_time(),
            max_in_flight=self.settings.max_in_flight,
            input_open=not self.intake.exhausted,
        )

    async def _say_when_stopping(self) -> None:
        await self.stop.asked.wait()
        rest = "" if self.stop.at_once.is_set() else "; finishing what is under way"
        self.say(f"stopping: {self.stop.reason}{rest}")

    def _opening_lines(self) -> list[str]:
        earlier, name = self.journal.earlier, self.journal.name
        lines = assemble.warnings(self.settings, self.dialect)
        if earlier.torn_bytes:
            lines.append(f"{name}: cut off a torn last line of {earlier.torn_bytes} bytes; its prompt is sent again")
        if earlier.damaged:
            lines.append(f"{name}: {earlier.damaged} lines are no results and were skipped")
        return lines

    def _closing_lines(self, seconds: float) -> list[str]:
        intake, tally = self.intake, self.tally
        lines = []
        if intake.carried:
            lines.append(f"not sent, carried into metadata instead: {', '.join(sorted(intake.carried))}")
        if intake.duplicates or intake.skipped_done or intake.skipped_failed:
            lines.append(
                f"{intake.duplicates} duplicate lines; "
                f"of an earlier run {intake.skipped_done} ok, {intake.skipped_failed} failed"
            )
        lines += [f"--decisions: not all was written: {log.fault}" for log in self.logs if log.fault]
        if self.stop.reason is not None:
            again = (
                "run the same command again to go on" if self.journal.resumable else "a run to stdout can't be resumed"
            )
            lines.append(f"stopped: {self.stop.reason}; {again}")
        pending = intake.prompts + intake.bad + intake.conflicts - tally.done
        lines.append(
            f"{tally.ok} ok, {tally.failed} failed, {pending} pending of those read; "
            f"{tally.attempts} attempts, {tally.throttled} throttled; "
            f"{tally.input_tokens} tokens in, {tally.output_tokens} out; {seconds:.1f} s"
        )
        return lines + self.meters.words()


def prepare(
    settings: Settings,
    sources: tuple[str, ...],
    environment: Mapping[str, str],
    stack: ExitStack,
    *,
    say: Say,
    simulate: Simulate,
) -> Job:
    """Check everything, open what must be open; raises ValueError, one line, with nothing sent."""
    assemble.check_files(settings, sources)
    url, dialect, key, transport = _upstream(settings, environment, simulate)
    charge, defaults = assemble.charge_of(settings, dialect), assemble.request_defaults(settings, url)
    make_limiter = limiter_maker(settings, charge)
    memory = assemble.memory_of(settings, url, key, say)
    decisions = open_log(settings.decisions, stack)
    journal = stack.enter_context(Journal.stdout() if settings.output is None else Journal.open(settings.output))
    return Job(
        settings=settings,
        sources=sources,
        journal=journal,
        intake=assemble.intake_for(settings, journal.earlier),
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
        live=Live.to_stdout(settings, journal),
    )


def _upstream(
    settings: Settings, environment: Mapping[str, str], simulate: Simulate
) -> tuple[str, Dialect, str | None, httpx.AsyncBaseTransport]:
    given = settings.base_url or ""
    if given.startswith(assemble.SIMULATED):
        transport, spoken = simulate(given.removeprefix(assemble.SIMULATED), settings.seed)
        return SIMULATED_URL, dialect_for(settings.dialect or spoken, SIMULATED_URL), None, transport
    url = assemble.checked_url(settings.base_url)
    dialect = dialect_for(settings.dialect, url)
    key = assemble.read_key(settings, environment, url, dialect)
    make_room(settings.max_in_flight)
    url = assemble.base_of(url, dialect)
    return url, dialect, key, open_transport(url, ca_file=settings.ca_file, environ=environment)
