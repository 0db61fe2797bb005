"""What will be sent for one attempt and when, decided on arrival; the shells only play it.

Offsets are seconds from the attempt's arrival. A stall is no ending of its own: it is a late one.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from attrs import evolve, frozen

from simulations.answers import Events

Headers = tuple[tuple[str, str], ...]  # lower-case names


class Ending(Enum):
    """How the connection is left once everything has been sent."""

    CLEAN = "clean"  # the HTTP message is complete; the connection may be used again
    CUT = "cut"  # closed (FIN) without the message's end
    RESET = "reset"  # reset (RST)


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
    headers: Headers  # content-length when the body is not streamed
    head_at: float | None  # None: the connection ends before any answer
    pieces: tuple[Piece, ...]  # in order of their offsets
    ends_at: float  # when the ending happens, no earlier than the last piece
    ending: Ending = Ending.CLEAN
    fault: str | None = None  # its name in the statistics
    opening: int = 0  # pieces before any text
    unbroken: int = 0  # pieces before the proof of completion; 0: the body is no stream
    complete_at: float | None = None  # when a client has all it needs; None: not before the end

    @property
    def whole(self) -> bool:
        """A complete answer with a 2xx status."""
        return self.fault is None and self.status < 300


def streamed(number: int, events: Events, first: float, last: float, headers: Headers) -> Script:
    """The opening at `first`, the content evenly up to `last`, the closing with it."""
    step = (last - first) / max(1, len(events.content))
    pieces = (
        *(Piece(offset=first, data=data) for data in events.opening),
        *(Piece(offset=first + i * step, data=data) for i, data in enumerate(events.content, start=1)),
        *(Piece(offset=last, data=data) for data in events.closing),
    )
    opening, unbroken = len(events.opening), len(events.opening) + len(events.content)
    return Script(
        number=number,
        status=200,
        headers=headers,
        head_at=first,
        pieces=pieces,
        ends_at=last,
        opening=opening,
        unbroken=unbroken,
    )


def in_one_piece(
    number: int, status: int, body: bytes, at: float, *, headers: Headers = (), kind: str = "application/json"
) -> Script:
    """A plain answer that announces its length. headers: beside those of the content."""
    return Script(
        number=number,
        status=status,
        headers=(("content-type", kind), ("content-length", str(len(body))), *headers),
        head_at=at,
        pieces=(Piece(offset=at, data=body),) if body else (),
        ends_at=at,
    )


def with_header(headers: Headers, name: str, *values: str) -> Headers:
    """The headers with these values of `name` instead of its old ones; none: without it."""
    return (*(pair for pair in headers if pair[0] != name), *((name, value) for value in values))


def rewritten(script: Script, data: Iterable[bytes]) -> Script:
    """The same pieces with other bytes, and the length that is announced set right."""
    pieces = tuple(evolve(piece, data=new) for piece, new in zip(script.pieces, data, strict=True))
    length = str(sum(len(piece.data) for piece in pieces))
    announced = any(name == "content-length" for name, _ in script.headers)
    headers = with_header(script.headers, "content-length", length) if announced else script.headers
    return evolve(script, pieces=pieces, headers=headers)


def delayed(script: Script, seconds: float) -> Script:
    """Everything that much later."""
    return evolve(
        script,
        head_at=None if script.head_at is None else script.head_at + seconds,
        pieces=tuple(evolve(piece, offset=piece.offset + seconds) for piece in script.pieces),
        ends_at=script.ends_at + seconds,
        complete_at=None if script.complete_at is None else script.complete_at + seconds,
    )
