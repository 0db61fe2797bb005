"""What will be sent for one attempt and when, decided on arrival; the shells only play it.

Offsets are seconds from the attempt's arrival. A stall is no ending of its own: it is a late one.
"""

from __future__ import annotations

from enum import Enum
from random import Random

from attrs import evolve, frozen

from simulations.answers import Events


class Ending(Enum):
    """How the connection is left once everything has been sent."""

    CLEAN = "clean"  # the HTTP message is complete; the connection may be used again
    CUT = "cut"  # closed (FIN) without the message's end
    RESET = "reset"  # reset (RST)


class Fault(Enum):
    """What is done to an attempt that passed every quota; the value is its name in the statistics."""

    ERROR = "error"
    RESET = "reset"
    CUT = "cut"
    TRUNCATE = "truncate"
    STALL = "stall"


@frozen(kw_only=True)
class Piece:
    """Bytes of the body, and when they go out."""

    offset: float
    data: bytes


@frozen(kw_only=True)
class Script:
    """One attempt's answer. Whole means that the client can know the answer to be complete."""

    number: int  # of the attempt, from 1
    status: int
    headers: tuple[tuple[str, str], ...]  # lower-case names; content-length when the body is not streamed
    head_at: float | None  # None: the connection ends before any answer
    pieces: tuple[Piece, ...]  # in order of their offsets
    ends_at: float  # when the ending happens, no earlier than the last piece
    ending: Ending = Ending.CLEAN
    fault: Fault | None = None

    @property
    def whole(self) -> bool:
        """A complete answer with a 2xx status."""
        return self.fault is None and self.status < 300


def timed_events(events: Events, first: float, last: float) -> tuple[Piece, ...]:
    """The opening at `first`, the content evenly up to `last`, the closing with it."""
    step = (last - first) / max(1, len(events.content))
    return (
        *(Piece(offset=first, data=data) for data in events.opening),
        *(Piece(offset=first + i * step, data=data) for i, data in enumerate(events.content, start=1)),
        *(Piece(offset=last, data=data) for data in events.closing),
    )


def broken(script: Script, fault: Fault, rng: Random, *, stall: float, unbroken: int) -> Script:
    """The script with a reset, cut, truncation or stall in it.

    stall: seconds of silence before the cut that ends a stall. unbroken: how many pieces make up the part of the answer
    after which it may break; at least one piece comes later, so no broken script holds its terminator.
    """
    if fault in (Fault.RESET, Fault.STALL) and rng.random() < 0.5:
        kept, ends_at = script.pieces[:0], script.head_at or 0.0
        script = evolve(script, head_at=None)
    else:
        count = rng.randint(min(1, unbroken), unbroken)
        torn = script.pieces[count]
        # A truncated stream ends between two events; the others tear one, at times within a character.
        half = evolve(torn, data=torn.data[: len(torn.data) // 2])
        clean = fault is Fault.TRUNCATE and unbroken > 0
        kept = script.pieces[:count] if clean else (*script.pieces[:count], half)
        ends_at = kept[-1].offset
    silence = stall if fault is Fault.STALL else 0.0
    return evolve(script, pieces=kept, ends_at=ends_at + silence, ending=_ending(fault, unbroken), fault=fault)


def _ending(fault: Fault, unbroken: int) -> Ending:
    if fault is Fault.RESET:
        return Ending.RESET
    # A plain body announces its length, so half of it can't end cleanly.
    return Ending.CLEAN if fault is Fault.TRUNCATE and unbroken > 0 else Ending.CUT
