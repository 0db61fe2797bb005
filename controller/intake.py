"""Prompts in: lines -> what is to be done with them, one at a time. Nothing is read while a receiver makes us wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Container, Iterable, Iterator
from functools import partial
from itertools import chain, filterfalse, takewhile

import trio
from attrs import define, field

from controller.half import Half
from controller.identity import Conflict, Duplicate, Identities, id_digest, understood
from controller.lines import BadLine, parse_line
from controller.records import Prompt, Result
from controller.sources import Line, Lines, ReadChunk, Source, pipe_of
from controller.spool import Spool, Taken

MOST_CARRIED = 32  # names of unknown keys to remember for the warning


@define(eq=False, kw_only=True)
class Intake:
    """Turns lines into what is to be done with them, and counts.

    done: keys (16 bytes each) that were answered; failed: keys that ended in error; neither is tried again.
    known_ids: digests of the ids that have a result. first: stop after so many lines that are not blank.
    """

    identities: Identities = field(factory=Identities)
    done: Container[bytes] = frozenset()
    failed: Container[bytes] = frozenset()
    retried: Container[bytes] = frozenset()  # keys that ended in error and are tried again
    known_ids: Container[bytes] = frozenset()
    text: bool = False
    first: int | None = None
    read: int = field(default=0, init=False)  # lines that are not blank: the sum of prompts and all the following
    prompts: int = field(default=0, init=False)  # handed on
    skipped_done: int = field(default=0, init=False)
    skipped_failed: int = field(default=0, init=False)
    duplicates: int = field(default=0, init=False)
    conflicts: int = field(default=0, init=False)
    bad: int = field(default=0, init=False)
    changed: int = field(default=0, init=False)  # new content under an id that has a result: a prompt of its own
    first_changed: str | None = field(default=None, init=False)  # where, as "prompts.jsonl:3"
    open: set[bytes] = field(factory=set, init=False)  # keys whose result is not written yet
    taken_up: set[bytes] = field(factory=set, init=False)  # keys from the spool that no line has shown again
    unread: set[bytes] = field(factory=set, init=False)  # keys of lines that count as if they had not been read
    forms: Counter[str] = field(factory=Counter, init=False)  # how lines were written
    exhausted: bool = field(default=False, init=False)  # there is no more to read
    carried: set[str] = field(factory=set, init=False)  # unknown keys that were not sent; not more than MOST_CARRIED

    @property
    def full(self) -> bool:
        """The wished-for number of lines has been read."""
        return self.first is not None and self.read >= self.first

    def take(self, line: Line, source: str) -> Prompt | Result | None:
        """What a line asks for: a prompt to answer, an error to write down, or nothing."""
        parsed = parse_line(line.raw, text=self.text)
        if parsed is None:
            return None
        self.read += 1
        if not isinstance(parsed, BadLine):
            self.forms[parsed.form] += 1
            if parsed.carried:
                self.carried.update(parsed.carried[: MOST_CARRIED - len(self.carried)])
        identified = self.identities.identify(parsed, source, line.number)
        if isinstance(identified, Duplicate):
            self.duplicates += 1
            return None
        key = identified.key if isinstance(identified, Conflict) else identified
        if self._is_known(key):
            return None
        fault = identified.message if isinstance(identified, Conflict) else None
        what = understood(parsed, key, source, line.number, fault)
        self.open.add(key)
        self.bad += isinstance(parsed, BadLine)
        self.conflicts += fault is not None
        if isinstance(what, Prompt):
            self.prompts += 1
            self._look_for_change(what)
        return what

    def take_all(self, lines: Iterable[Line], source: str) -> Iterator[Taken]:
        """What is to be done of these lines, one by one as it is asked for; of none once it is full."""
        for line in () if self.full else lines:
            if (what := self.take(line, source)) is not None:
                yield Taken(line.raw, what)
            if self.full:
                return

    def set_aside(self, lines: Iterable[Line], source: str) -> Iterator[Taken]:
        """Lines beyond the wished-for number that are out of their pipe all the same: for the next run."""
        for line in lines:
            parsed = parse_line(line.raw, text=self.text)
            if parsed is None:
                continue
            identified = self.identities.identify(parsed, source, line.number)
            if isinstance(identified, Duplicate):
                continue
            key, fault = (
                (identified.key, identified.message) if isinstance(identified, Conflict) else (identified, None)
            )
            if not any(key in known for known in (self.done, self.failed, self.taken_up)):
                yield Taken(line.raw, understood(parsed, key, source, line.number, fault))
            self.unread.add(key)

    def take_up(self, spooled: Taken) -> None:
        """A line that an earlier run took and left open."""
        self.read += 1
        self.taken_up.add(spooled.key)
        self.open.add(spooled.key)
        self.prompts += isinstance(spooled.what, Prompt)
        self.bad += isinstance(spooled.what, Result)

    def written(self, results: Iterable[Result]) -> None:
        """They are in the results file."""
        self.open.difference_update(bytes.fromhex(result.prompt.key) for result in results)

    def take_back(self, keys: Collection[bytes]) -> None:
        """They were taken, not handed on, and could not be kept: as if they had not been read."""
        self.read -= len(keys)
        self.unread.update(keys)
        self.open.difference_update(keys)

    def keys_read(self) -> Iterator[bytes]:
        """The key of every prompt and faulty line that was read, once."""
        yield from filterfalse(self.unread.__contains__, self.identities.keys())
        yield from self.taken_up

    def _is_known(self, key: bytes) -> bool:
        """It needs nothing more; counted as what it is."""
        if key in self.taken_up:  # a producer that begins anew repeats what the spool had
            self.taken_up.discard(key)
            self.duplicates += 1
        elif key in self.done:
            self.skipped_done += 1
        elif key in self.failed:
            self.skipped_failed += 1
        else:
            return False
        return True

    def _look_for_change(self, prompt: Prompt) -> None:
        known = prompt.id is not None and id_digest(prompt.id) in self.known_ids
        if known and bytes.fromhex(prompt.key) not in self.retried:
            self.changed += 1
            self.first_changed = self.first_changed or f"{prompt.source}:{prompt.line}"


async def read_prompts(
    sources: Iterable[Source],
    intake: Intake,
    accept_prompt: Callable[[Prompt], Awaitable[None]],
    accept_result: Callable[[Result], Awaitable[None]],
    spool: Spool | None = None,
    *,
    at_once: bool = False,
) -> None:
    """Read what the spool has left, then the sources to their ends: one after the other, or all at once.

    What can't be read twice is spooled, all whole lines of a read together, before any of them goes on. Raises OSError
    when a source or the spool fails midway; `intake` then tells how far it came.
    """
    reading = _Reading(intake, accept_prompt, accept_result, spool)
    await reading.take_up()
    wanted = takewhile(lambda _: not intake.full, sources)  # else a FIFO without a writer would be waited for
    if at_once:
        await reading.read_all_at_once(wanted)
    else:
        for source in wanted:
            await reading.read(source)
    intake.exhausted = True


@define(eq=False)
class _Reading:
    """Takes lines from sources, and hands on what they come to."""

    intake: Intake
    accept_prompt: Callable[[Prompt], Awaitable[None]]
    accept_result: Callable[[Result], Awaitable[None]]
    spool: Spool | None
    handing_on: int = field(default=0, init=False)  # readers in the midst of it

    async def take_up(self) -> None:
        """What an earlier run left."""
        for left in self.spool.left if self.spool is not None else ():
            if not self.intake.full:
                self.intake.take_up(left)
                await self._hand_on((left,), [])

    async def read_all_at_once(self, sources: Iterable[Source]) -> None:
        """Each in a task of its own, until all have ended, one fails, or no more lines are wanted."""
        faults: list[OSError] = []

        async def watched(source: Source) -> None:
            try:
                await self.read(source)
            except OSError as error:
                faults.append(error)
            if faults or (self.intake.full and not self.handing_on):
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for source in sources:
                nursery.start_soon(watched, source)
        if faults:
            raise faults[0]

    async def read(self, source: Source) -> None:
        """To its end, or until no more lines are wanted."""
        async with source.open() as read_chunk:
            if self.spool is not None and source.once:
                await self._read_once(source.name, read_chunk, self.spool)
                return
            lines = Lines(read_chunk)
            while not self.intake.full and (line := await anext(lines, None)) is not None:
                await self._hand_on(self.intake.take_all(chain((line,), lines.at_hand()), source.name), [])

    async def _read_once(self, name: str, read_chunk: ReadChunk, spool: Spool) -> None:
        """As `read`, and what was read and not handed on is in the spool, however it ends."""
        pipe = pipe_of(name)
        half = spool.halves.pop(name, None) or Half(b"", name, pipe)
        lines = Lines(read_chunk, half.raw, partial(half.goes_on, pipe=pipe, text=self.intake.text))
        try:
            while not self.intake.full and (line := await anext(lines, None)) is not None:
                come = chain((line,), lines.at_hand())
                batch = list(self.intake.take_all(come, name))
                await self._hand_on(batch, [*batch, *self.intake.set_aside(come, name)])
        finally:
            if lines.rest:
                spool.halves[name] = Half(lines.rest, name, pipe)

    async def _hand_on(self, batch: Iterable[Taken], spooled: list[Taken]) -> None:
        """One by one, after what can't be read twice was spooled."""
        self.handing_on += 1
        try:
            if self.spool is not None:
                with trio.CancelScope(shield=True):  # they are out of the pipe, and would be nowhere
                    await self.spool.keep(spooled)
            for taken in batch:
                if isinstance(taken.what, Prompt):
                    await self.accept_prompt(taken.what)
                else:
                    await self.accept_result(taken.what)
        finally:
            self.handing_on -= 1
