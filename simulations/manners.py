"""Strange ways of writing an answer that is whole all the same: pure functions in a table by their names.

A manner of writing is Script -> Script and touches the bytes alone, of faulty answers as well; a manner of speaking
changes the text itself, and is Choice -> Choice. "padding" alone needs a dialect's words, see `padded`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping

from attrs import evolve

from simulations.answers import Choice
from simulations.script import Piece, Script, rewritten, with_header

HOLD = 30.0  # seconds that a connection is kept open after the terminator
LARGE = 2**20  # bytes of a long line
SEPARATORS = "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e"  # all that str.splitlines() takes for line ends and events do not

PADDING = "padding"
Writing = Callable[[Script], Script]
Speaking = Callable[[Choice], Choice]


def written(script: Script, names: Iterable[str]) -> Script:
    """The script in these manners, one after the other in the table's order; the others are skipped."""
    wanted = set(names) if script.pieces else ()
    for name, manner in WRITING.items():
        if name in wanted:
            script = manner(script)
    return script


def spoken(choices: tuple[Choice, ...], names: Iterable[str]) -> tuple[Choice, ...]:
    """The choices in these manners; the others are skipped."""
    wanted = set(names)
    for name, manner in SPEAKING.items():
        if name in wanted:
            choices = tuple(manner(choice) for choice in choices)
    return choices


def padded(script: Script, padding: tuple[bytes, ...]) -> Script:
    """Events without text after the opening, between the deltas and before the finish; comments among them."""
    if not script.unbroken:
        return script
    idle = padding if _is_array(script) else (b": PROCESSING\n\n", *padding)
    pieces, places = [*script.pieces], (script.unbroken, (script.opening + script.unbroken) // 2, script.opening)
    for place in places:
        pieces[place:place] = [Piece(offset=pieces[place].offset, data=data) for data in idle]
    return evolve(script, pieces=tuple(pieces), unbroken=script.unbroken + len(places) * len(idle))


def _fields(script: Script) -> Script:
    """A comment, `id`, `retry`, and a field without a colon within each event."""
    lines = b": within\nid: 7\nretry: 3000\nunknown\n"
    return _if_events(script, (lines + piece.data for piece in script.pieces))


def _multi_line(script: Script) -> Script:
    """The data of an event over several lines, broken after commas between values."""
    return _if_events(script, (_over_lines(piece.data) for piece in script.pieces))


def _no_space(script: Script) -> Script:
    """`data:` without a space after the colon."""
    return _if_events(
        script, (b"\n".join(_without_space(line) for line in piece.data.split(b"\n")) for piece in script.pieces)
    )


def _line_ends(end: bytes) -> Writing:
    """All lines end with these bytes."""
    return lambda script: _if_events(
        script, (piece.data.replace(b"\r\n", b"\n").replace(b"\n", end) for piece in script.pieces)
    )


def _no_last_blank(script: Script) -> Script:
    """The last event has no blank line after it, nor a line end."""
    data = [piece.data for piece in script.pieces]
    return _if_events(script, [*data[:-1], data[-1].rstrip(b"\r\n")])


def _bom(script: Script) -> Script:
    """A byte order mark before everything."""
    data = [piece.data for piece in script.pieces]
    return _if_events(script, [b"\xef\xbb\xbf" + data[0], *data[1:]])


def _gzip(script: Script) -> Script:
    """Compressed, and flushed after each piece."""
    packer = zlib.compressobj(wbits=31)
    data = [packer.compress(piece.data) + packer.flush(zlib.Z_SYNC_FLUSH) for piece in script.pieces]
    data[-1] += packer.flush()
    packed = rewritten(script, data)
    return evolve(packed, headers=with_header(packed.headers, "content-encoding", "gzip"))


def _bytewise(script: Script) -> Script:
    """One byte at a time; a plain body, too."""
    pieces = [Piece(offset=p.offset, data=p.data[i : i + 1]) for p in script.pieces for i in range(len(p.data))]
    return evolve(script, pieces=tuple(pieces))


def _wrong_type(script: Script) -> Script:
    """A content type that says nothing."""
    return evolve(script, headers=with_header(script.headers, "content-type", "application/octet-stream"))


def _no_type(script: Script) -> Script:
    """No content type at all."""
    return evolve(script, headers=with_header(script.headers, "content-type"))


def _held(script: Script) -> Script:
    """After the terminator the connection is kept open, silent."""
    return evolve(script, ends_at=script.ends_at + HOLD, complete_at=script.ends_at) if script.unbroken else script


def _separators(choice: Choice) -> Choice:
    """Everything in Unicode that some call a line end."""
    return evolve(choice, pieces=(*choice.pieces, f" one{SEPARATORS}two"))


def _split_surrogates(choice: Choice) -> Choice:
    """The two halves of one character in two deltas."""
    return evolve(choice, pieces=(*choice.pieces, " \ud83c", "\udf0a"))


def _lone_surrogate(choice: Choice) -> Choice:
    """Half of a character, whose other half never comes."""
    return evolve(choice, pieces=(*choice.pieces, " \ud835"))


def _nul(choice: Choice) -> Choice:
    """A character that ends strings elsewhere."""
    return evolve(choice, pieces=(*choice.pieces, " nul\0nul"))


def _long_line(choice: Choice) -> Choice:
    """A delta of a megabyte."""
    return evolve(choice, pieces=(*choice.pieces, " " + "水" * (LARGE // 3)))


def _no_text(choice: Choice) -> Choice:
    """Nothing, because the limit was reached before the text began."""
    return evolve(choice, pieces=(), finish_reason="length")


def _if_events(script: Script, data: Iterable[bytes]) -> Script:
    """Only a stream of events has lines that mean anything."""
    return rewritten(script, data) if script.unbroken and not _is_array(script) else script


def _is_array(script: Script) -> bool:
    return script.pieces[0].data == b"["


def _without_space(line: bytes) -> bytes:
    return b"data:" + line.removeprefix(b"data: ") if line.startswith(b"data: ") else line


def _over_lines(data: bytes) -> bytes:
    return data.replace(b',"', b',\ndata: "') if data.count(b"data: ") == 1 else data


WRITING: Mapping[str, Writing] = {
    "fields": _fields,
    "multi-line": _multi_line,
    "no-space": _no_space,
    "crlf": _line_ends(b"\r\n"),
    "cr": _line_ends(b"\r"),
    "no-last-blank": _no_last_blank,
    "bom": _bom,
    "gzip": _gzip,
    "bytewise": _bytewise,
    "wrong-type": _wrong_type,
    "no-type": _no_type,
    "held": _held,
}
SPEAKING: Mapping[str, Speaking] = {
    "no-text": _no_text,
    "separators": _separators,
    "split-surrogates": _split_surrogates,
    "lone-surrogate": _lone_surrogate,
    "nul": _nul,
    "long-line": _long_line,
}
MANNERS = (PADDING, *WRITING, *SPEAKING)
