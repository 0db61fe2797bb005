"""RESULTS.underway: which attempts are under way, so that the next run can tell what a crash made it pay twice.

One place of 16 bytes for each attempt, written without waiting for the disk: the key of its prompt when it begins,
zeros when it failed, was refused, or its result is in the results file. What stands there when the process has died is
what may have been paid for nothing. It is an upper bound: an attempt may have died before the upstream saw it. It does
not tell after a crash of the machine, whose disk may have any older state of it.

The head keeps how many attempts were paid again so far, over any number of crashes. The file goes when the run is
complete.
"""

from __future__ import annotations

import os
from typing import Self

from attrs import define, field

from controller.identity import KEY_BYTES
from controller.repair import Ledger

SUFFIX = ".underway"
MAGIC = b"tidegate underway 1\n"
HEAD = 32  # bytes: MAGIC, then the count, big-endian
NOBODY = bytes(KEY_BYTES)
MOST_BYTES = HEAD + 1_000_000 * KEY_BYTES  # of a file that can be ours


@define(eq=False)
class Underway:
    """lost: keys of attempts that a crash, or the end of a drain, cut short. paid_again: of those, how many were
    attempted again by now, in whatever run; by_this_run: in this one.

    Trouble with this file is never the run's: `fault` keeps it, and nothing more is written.
    """

    path: str
    lost: set[bytes] = field(factory=set)
    paid_again: int = 0
    by_this_run: int = 0
    fault: OSError | None = None
    _fd: int | None = None
    _places: dict[bytes, int] = field(factory=dict)
    _free: list[int] = field(factory=list)
    _most: int = 0  # places in the file

    @classmethod
    def open(cls, results: str, ledger: Ledger) -> Self:
        """Look what the last run left, and begin anew; ValueError, one line, if the file is not ours."""
        made = cls(results + SUFFIX)
        try:
            made._fd = os.open(made.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            content = os.pread(made._fd, MOST_BYTES, 0)
        except OSError as error:
            made.fault = error
            return made
        if content and not content.startswith(MAGIC):
            os.close(made._fd)
            raise ValueError(f"{made.path} is no file of tidegate: move it away")
        made.paid_again = int.from_bytes(content[len(MAGIC) : HEAD], "big")
        keys = {content[at : at + KEY_BYTES] for at in range(HEAD, len(content), KEY_BYTES)}
        made.lost = {key for key in keys if len(key) == KEY_BYTES and key != NOBODY and key not in ledger.answered}
        made._keep_lost(len(content))
        return made

    def close(self, *, complete: bool) -> None:
        """complete: no prompt is pending, so there is nothing to be told any more."""
        if self._fd is None:
            return
        os.close(self._fd)
        self._fd = None
        if complete or not (self._places or self.paid_again):
            os.unlink(self.path)

    def begin(self, key: str) -> None:
        """An attempt for a prompt is about to be sent."""
        name = bytes.fromhex(key)
        if name in self.lost:
            self.lost.discard(name)
            self.paid_again += 1
            self.by_this_run += 1
            self._write(self._head(), at=0)
        if name not in self._places:
            if not self._free:
                self._free.append(self._most)
                self._most += 1
            self._places[name] = self._free.pop()
            self._write(name, at=_at(self._places[name]))

    def end(self, key: str) -> None:
        """Nothing more can be lost of it: it came to nothing, or its result is in the file."""
        place = self._places.pop(bytes.fromhex(key), None)
        if place is not None:
            self._free.append(place)
            self._write(NOBODY, at=_at(place))

    def _keep_lost(self, size: int) -> None:
        """What was lost stays so until it is attempted again, by whatever run: one write over all of the old file."""
        self._places = {key: place for place, key in enumerate(sorted(self.lost))}
        self._most = len(self.lost)
        self._write((self._head() + b"".join(self._places)).ljust(size, b"\0"), at=0)

    def _head(self) -> bytes:
        return MAGIC + self.paid_again.to_bytes(HEAD - len(MAGIC), "big")

    def _write(self, data: bytes, *, at: int) -> None:
        if self._fd is None or self.fault is not None:
            return
        try:
            os.pwrite(self._fd, data, at)
        except OSError as error:
            self.fault = error


def _at(place: int) -> int:
    return HEAD + place * KEY_BYTES
