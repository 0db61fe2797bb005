"""A results file with the two beside it: what a run keeps on disk, in the order that a crash needs.

A line is spooled before it is attempted, an attempt noted before it is sent; the spool and the note let go of a prompt
only when its result is in the file.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

import trio
from attrs import define

from controller.durable import SYNC_EVERY, Durable
from controller.journal import Journal, JournalError
from controller.records import Result
from controller.settings import Settings
from controller.spool import Spool, Taken
from controller.telemetry import Exit, Stop
from controller.underway import Underway


@define(eq=False)
class Store:
    """spool and underway: only beside a regular results file, from which a run can be resumed.

    complete: no prompt is pending; to be said before it is closed.
    """

    journal: Journal
    spool: Spool | None = None
    underway: Underway | None = None
    complete: bool = False

    @classmethod
    def open(cls, settings: Settings) -> Self:
        """Open and repair all that is there; ValueError, one line for the user, if that can't be."""
        if settings.output is None:
            return cls(Journal.stdout())
        durable = Durable(settings.fsync)
        store = cls(Journal.open(settings.output, durable))
        try:
            if store.journal.resumable:
                ledger, text = store.journal.ledger, settings.input_format == "text"
                done = ledger.answered if settings.retry_failed else ledger.keys
                store.spool = Spool.open(settings.output, done, durable, text=text)
                store.underway = Underway.open(settings.output, ledger)
        except BaseException:
            store.journal.close()
            raise
        return store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """The results are durable before the spool goes, and the lock is given back at the very end."""
        try:
            self.journal.sync_now()
            if self.spool is not None:
                self.spool.close()
            if self.underway is not None:
                self.underway.close(complete=self.complete)
        except (JournalError, OSError):
            pass
        finally:
            self.journal.close()

    async def write(self, lines: list[bytes], results: list[Result]) -> None:
        """Append the lines of these results, and let go of their prompts. Raises JournalError."""
        await self.journal.write(lines)
        for result in results:
            if self.underway is not None:
                self.underway.end(result.prompt.key)
        if self.spool is not None:
            await self.spool.forget([bytes.fromhex(result.prompt.key) for result in results], self.journal.sync)

    async def keep(self, lines: list[Taken]) -> None:
        """Spool lines that can't be read twice. Raises OSError."""
        if self.spool is not None:
            await self.spool.keep(lines)

    async def sync_often(self, stop: Stop, say: Callable[[str], None]) -> None:
        """Keep what a crash of the machine may cost below a second. Ends only when it can't be kept.

        Also look whether the results file is where it was.
        """
        try:
            while True:
                await trio.sleep(SYNC_EVERY)
                loss = None if stop.code is Exit.LOCAL_IO else await self.journal.look_after()
                if loss is not None and loss.stops:
                    stop.ask(Exit.LOCAL_IO, loss.words)
                elif loss is not None:
                    say(loss.words)
                await self.journal.sync()
                if self.spool is not None:
                    await self.spool.sync()
        except (JournalError, OSError) as error:
            stop.ask(Exit.LOCAL_IO, str(error))
            stop.at_once.set()
