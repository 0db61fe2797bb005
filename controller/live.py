"""The stream of a run on its way out: deltas as they come, restarts, results.

Whoever hears from the upstream never waits here, so a slow consumer neither slows an answer nor runs down its clocks.
What is not yet out is kept by prompt, and neighbouring pieces of a text become one: a slow consumer gets fewer and
longer deltas. So at most the texts under way are kept, which the attempts hold anyway, and some results: when those
are too many, no prompt is taken up any more (`room`).
"""

from __future__ import annotations

from itertools import groupby
from typing import Self

import trio
from attrs import define, field

from controller.emission import KEEP_ALIVE, Restart, delta_line, event, restart_line
from controller.journal import Journal, JournalError
from controller.outcome import Delta
from controller.records import Prompt, Result, dump_result
from controller.settings import Settings
from controller.telemetry import Exit, Stop

SILENCE = 15.0  # s without an event before an SSE consumer gets a comment

Record = Delta | Restart | Result


@define(eq=False)
class Waiting:
    """What a prompt has to say and has not said yet. sure: so many of its records no restart takes back."""

    prompt: Prompt
    records: list[Record] = field(factory=list)
    sure: int = 0


@define(eq=False)
class Live:
    """sole: nothing else keeps the results, so one counts as written when it is out. backlog: results that may wait
    while prompts are taken up."""

    journal: Journal
    sse: bool
    sole: bool
    backlog: int
    with_body: bool = False
    _waiting: dict[str, Waiting] = field(factory=dict, init=False)  # by key, in the order in which they spoke up
    _results: int = field(default=0, init=False)  # that are not out yet
    _writing: bool = field(default=False, init=False)
    _number: int = field(default=0, init=False)  # of the last event
    _fault: JournalError | None = field(default=None, init=False)
    _changed: trio.Event = field(factory=trio.Event, init=False)
    _written: trio.Event = field(factory=trio.Event, init=False)

    @classmethod
    def to_stdout(cls, settings: Settings, journal: Journal) -> Self | None:
        """The stream that the settings ask for, None without one. journal: where the results go."""
        if settings.emit == "result":
            return None
        sole = settings.output is None
        return cls(
            journal=journal if sole else Journal.stdout(),
            sse=settings.emit == "sse",
            sole=sole,
            backlog=2 * settings.max_in_flight,
            with_body=settings.keep_response,
        )

    # -- what is to be told: no checkpoint in here

    def hear(self, prompt: Prompt, deltas: list[Delta]) -> None:
        """Text has come."""
        if deltas and self._fault is None:
            self._of(prompt).records += deltas
            self._wake()

    def keep(self, prompt: Prompt) -> None:
        """What was said so far is not taken back by a restart that keeps it."""
        if prompt.key in self._waiting:
            waiting = self._waiting[prompt.key]
            waiting.sure = len(waiting.records)

    def restart(self, prompt: Prompt, restart: Restart) -> None:
        """Its attempt broke off: what it said is void, and what of that is not out yet never goes out."""
        if self._fault is not None:
            return
        waiting = self._of(prompt)
        del waiting.records[waiting.sure if restart.kept else 0 :]
        if waiting.records and isinstance(waiting.records[-1], Restart):
            waiting.records.pop()
        waiting.records.append(restart)
        waiting.sure = len(waiting.records)
        self._wake()

    async def deliver(self, results: list[Result]) -> None:
        """Hand results over; if nothing else keeps them, wait until they are out, and raise JournalError."""
        if self._fault is None:
            for result in results:
                self._of(result.prompt).records.append(result)
            self._results += len(results)
            self._wake()
        while self.sole and self._fault is None and self._results:
            await self._written.wait()
        if self.sole and self._fault is not None:
            raise self._fault

    async def room(self) -> None:
        """Wait until few enough results are not out: before a prompt is taken up, never before a result is filed."""
        while self._fault is None and self._results > self.backlog:
            await self._written.wait()

    async def flush(self) -> None:
        """Wait until all is out, or can't be."""
        while self._fault is None and (self._waiting or self._writing):
            await self._written.wait()

    # -- the way out

    async def run(self, stop: Stop) -> None:
        """Write what there is to tell as soon as it is there. Never returns unless the consumer is gone."""
        while self._fault is None:
            with trio.move_on_after(SILENCE if self.sse else float("inf")):
                await self._changed.wait()
            await self._write(stop)

    async def _write(self, stop: Stop) -> None:
        taken, results = list(self._waiting.values()), self._results
        self._waiting, self._changed, self._writing = {}, trio.Event(), True
        lines = [self._line(one.prompt, record) for one in taken for record in _merged(one.records)]
        try:
            await self.journal.write(lines or [KEEP_ALIVE])
        except JournalError as error:
            self._fault = error
            self._waiting.clear()
            stop.ask(Exit.LOCAL_IO, str(error))
            if self.sole:
                stop.at_once.set()  # results can't be kept any more: don't pay for them
        self._results -= results
        self._writing = False
        self._written.set()
        self._written = trio.Event()

    def _line(self, prompt: Prompt, record: Record) -> bytes:
        if isinstance(record, Delta):
            name, line = "delta", delta_line(prompt, record)
        elif isinstance(record, Restart):
            name, line = "restart", restart_line(prompt, record)
        else:
            name, line = "result", dump_result(record, with_body=self.with_body)
        self._number += 1
        return event(name, line, self._number) if self.sse else line

    def _of(self, prompt: Prompt) -> Waiting:
        if prompt.key not in self._waiting:
            self._waiting[prompt.key] = Waiting(prompt)
        return self._waiting[prompt.key]

    def _wake(self) -> None:
        self._changed.set()


def _merged(records: list[Record]) -> list[Record]:
    """Neighbouring pieces of one text as one delta."""
    merged: list[Record] = []
    for (kind, index, reasoning), group in groupby(records, _kind):
        if kind:
            text = "".join(record.text for record in group if isinstance(record, Delta))
            merged.append(Delta(index, text, reasoning))
        else:
            merged += group
    return merged


def _kind(record: Record) -> tuple[bool, int, bool]:
    return (True, record.index, record.reasoning) if isinstance(record, Delta) else (False, 0, False)
