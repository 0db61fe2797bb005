"""RESULTS.pending: lines of a source that can't be read twice, kept until they have their results.

Every whole line that came with a read is in the file, with its key, before the first of them is attempted, so the next
run takes up what this one leaves; a stop leaves the unfinished line at their end as well. A kill leaves none: what was
read after it would be gone, and two ends of different lines must not become one. Nor can a spool know the bytes that
the process had taken out of the pipe in the instant in which it was killed.

Answered lines are dropped when the file has grown to several times what is open, by writing it anew; when nothing is
open the file is removed. The lock on the results file guards this one, too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Container, Iterable
from typing import Self

import trio
from attrs import define, field, frozen

from controller.durable import Durable, write_all
from controller.half import Half, half_of
from controller.identity import understood
from controller.lines import parse_line
from controller.records import KEY_PATTERN, Prompt, Result
from policies.contract import JSON

SUFFIX = ".pending"
RECORD_START = b'{"key":'
SLACK = 4 << 20  # bytes of answered lines that are not worth a new file


@frozen
class Taken:
    """A line with what it came to."""

    raw: bytes
    what: Prompt | Result

    @property
    def prompt(self) -> Prompt:
        """The prompt, or the one that the error is about."""
        return self.what if isinstance(self.what, Prompt) else self.what.prompt

    @property
    def key(self) -> bytes:
        """Of the prompt."""
        return bytes.fromhex(self.prompt.key)


@define(eq=False)
class Spool:
    """left: what an earlier run took and did not answer, in order. halves: the unfinished lines of sources, by name.

    Writes in threads, one at a time.
    """

    path: str
    durable: Durable
    text: bool = False  # lines are prompts as they are
    left: list[Taken] = field(factory=list)
    halves: dict[str, Half] = field(factory=dict)
    damaged: int = 0  # lines of the file that tell nothing
    _fd: int | None = None
    _open: dict[bytes, bytes] = field(factory=dict)  # key -> its line in the file
    _unkept: list[bytes] = field(factory=list, init=False)  # lines that are still to be written
    _size: int = 0
    _dirty: bool = field(default=False, init=False)
    _retained: bool = field(default=False, init=False)  # the file stays, though nothing be open
    _lock: trio.Lock = field(factory=trio.Lock, init=False)

    @classmethod
    def open(cls, results: str, done: Container[bytes], durable: Durable, *, text: bool = False) -> Self:
        """Read what the spool beside `results` holds, if there is one; ValueError, one line, if that can't be."""
        spool = cls(results + SUFFIX, durable, text)
        try:
            if os.path.exists(spool.path):
                spool._read(done)
        except OSError as error:
            raise ValueError(f"cannot read or rewrite {spool.path}: {error.strerror}") from error
        return spool

    def settle(self) -> None:
        """When all reading is over: what the next run needs is in the file and durable. Raises OSError."""
        self._retained = self._retained or bool(self.halves)
        self._unkept += [_dump(half.fields()) for half in self.halves.values()]
        self.halves = {}
        if self._unkept:
            self._append()
        if self._dirty and self._fd is not None:
            self.durable.before_exit(self._fd)
            self._dirty = False

    def give_up(self) -> tuple[list[bytes], int]:
        """After `settle` failed: the keys of the lines that the file has not got, and their number with half lines."""
        lost, self._unkept = set(self._unkept), []
        keys = [key for key, record in self._open.items() if record in lost]
        for key in keys:
            del self._open[key]
        return keys, len(lost)

    def retain(self) -> bool:
        """Keep the file after this run, with what it still holds of answered lines; False if there is none."""
        self._retained = self._fd is not None
        return self._retained

    def close(self) -> None:
        """Remove the file if nothing in it is needed. Call it when the results are durable. Raises OSError."""
        try:
            self.settle()
        finally:
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None
                if not self._open and not self._retained:
                    os.unlink(self.path)

    async def keep(self, lines: list[Taken]) -> None:
        """Write lines down before they are attempted. Raises OSError."""
        if not lines:
            return
        records = [(one.key, _record(one, text=self.text)) for one in lines]
        async with self._lock:
            self._open.update(records)
            self._unkept += [record for _, record in records]
            await trio.to_thread.run_sync(self._append)

    async def forget(self, keys: Iterable[bytes], sync_results: Callable[[], Awaitable[None]]) -> None:
        """They have their results. Before their lines go, the results are made durable: raises what that raises."""
        for key in keys:
            self._open.pop(key, None)
        if self._fd is None or self._size < SLACK or self._size < SLACK + 4 * sum(map(len, self._open.values())):
            return
        await sync_results()
        async with self._lock:
            try:
                await trio.to_thread.run_sync(self._write_anew)
            except OSError:  # the old file serves on, and grows by as much again before the next try
                self._size = 0

    async def sync(self) -> None:
        """Make durable what was written so far. Raises OSError."""
        async with self._lock:
            if self._dirty and self._fd is not None:
                await trio.to_thread.run_sync(self.durable.before_exit, self._fd)
                self._dirty = False

    # -- the file

    def _read(self, done: Container[bytes]) -> None:
        """Take over what is open. A torn last line was not attempted, and goes."""
        with open(self.path, "rb") as file:
            lines = file.read().splitlines(keepends=True)  # what is open, and SLACK; JSON escapes all line ends within
        found = [(line, _understood(line)) for line in lines]
        if lines and not any(one for _, one in found) and not lines[0].startswith((RECORD_START, b"\0")):
            raise ValueError(f"{self.path} holds no prompts of tidegate: move it away")
        for line, one in found:
            if one is None:
                self.damaged += 1
            elif isinstance(one, Half):  # written anew without it: after a kill it would be joined to what it lost
                self.halves[one.source] = one
            elif one.key not in done and one.key not in self._open:
                self.left.append(one)
                self._open[one.key] = line
        self._write_anew()

    def _append(self) -> None:
        """Write what is not kept yet. On a disk that gets full the whole lines stay, and the half one goes."""
        if self._fd is None:
            self._fd = os.open(self.path, _FLAGS, 0o666)
            self.durable.sync_folder(self.path)
        begin, data, whole = os.fstat(self._fd).st_size, b"".join(self._unkept), 0
        try:
            write_all(self._fd, data)
            whole = len(data)
        except OSError:
            whole = data.rfind(b"\n", 0, os.fstat(self._fd).st_size - begin) + 1
            os.ftruncate(self._fd, begin + whole)
            raise
        finally:
            del self._unkept[: data.count(b"\n", 0, whole)]
            self._size += whole
            self._dirty = self._dirty or whole > 0
        self._dirty = not self.durable.after_write(self._fd)

    def _write_anew(self) -> None:
        """Only what is open, in a new file that takes the old one's place when it is whole."""
        new = self.path + ".new"
        fd, data = os.open(new, _FLAGS | os.O_TRUNC, 0o666), b"".join(self._open.values())
        try:
            write_all(fd, data)
            self.durable.before_exit(fd)
            os.rename(new, self.path)
        except BaseException:
            os.close(fd)
            raise
        if self._fd is not None:
            os.close(self._fd)
        self._fd, self._size, self._dirty, self._unkept = fd, len(data), False, []
        self.durable.sync_folder(self.path)


_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


def _record(taken: Taken, *, text: bool) -> bytes:
    prompt = taken.prompt
    error = None if isinstance(taken.what, Prompt) or taken.what.error is None else taken.what.error.message
    value: dict[str, JSON] = {"key": prompt.key, "source": prompt.source, "line": prompt.line, "error": error}
    value |= {"text": text, "raw": taken.raw.decode(errors="surrogateescape")}  # any bytes come back as they were
    return _dump(value)


def _dump(value: dict[str, JSON]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _understood(record: bytes) -> Taken | Half | None:
    """What a line of the file says; None for one that is torn or damaged."""
    try:
        value: JSON = json.loads(record)
    except (ValueError, RecursionError):
        return None
    return half_of(value) or _taken(record, value)


def _taken(record: bytes, value: JSON) -> Taken | None:
    match value:
        case {
            "key": str(key),
            "source": str(source),
            "line": int(line),
            "raw": str(text),
            "text": bool(as_text),
            **more,
        }:
            raw, error = text.encode(errors="surrogateescape"), more.get("error")
            parsed = parse_line(raw, text=as_text)
            if parsed is None or not KEY_PATTERN.fullmatch(key) or not record.endswith(b"\n"):
                return None
            fault = error if isinstance(error, str) else None
            return Taken(raw, understood(parsed, bytes.fromhex(key), source, line, fault))
    return None
