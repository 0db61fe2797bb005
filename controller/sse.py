"""Server-Sent Events, sans IO: bytes in, events out; any cutting of the bytes gives the same events.

After the WHATWG standard (https://html.spec.whatwg.org/multipage/server-sent-events.html, section 9.2), framed on
bytes: a line ends at CR, LF or CRLF and nowhere else, so U+2028 or U+0085 inside a JSON string stay text
(splitting decoded text at every Unicode line end is the classic fault). One departure, `close`: at the end of
the stream an event that lacks only its blank line is handed over, since a terminator without it is common.
"""

from __future__ import annotations

from attrs import define, field, frozen

STRAY_LIMIT = 1 << 20  # bytes of a non-SSE body that are kept
BOM = b"\xef\xbb\xbf"


@frozen(kw_only=True)
class Event:
    """One event. data: its `data:` lines joined with LF, decoded as UTF-8 (bad bytes become U+FFFD)."""

    data: str
    name: str = "message"
    complete: bool = True  # False: the stream ended before the blank line


@define(eq=False)
class Splitter:
    """Feed it bytes as they come; it keeps what is not yet a whole event.

    `stray` holds lines that are no SSE field (a JSON error body sent where a stream was due), at most
    STRAY_LIMIT bytes of them.
    """

    stray: bytearray = field(factory=bytearray)
    _line: bytearray = field(factory=bytearray, init=False)  # the unfinished line: no cap, answers come as one line
    _first: bool = field(default=True, init=False)  # no line yet: a BOM may be there
    _after_cr: bool = field(default=False, init=False)  # the last byte was CR: an LF belongs to it
    _name: bytes = field(default=b"", init=False)
    _data: list[bytes] = field(factory=list, init=False)

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that `chunk` completes, in order."""
        if not chunk:
            return []
        if self._after_cr:
            chunk = chunk.removeprefix(b"\n")
        self._after_cr = chunk.endswith(b"\r")
        pieces = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        events = []
        for piece in pieces[:-1]:
            self._line += piece
            if event := self._end_line():
                events.append(event)
        self._line += pieces[-1]
        return events

    def close(self) -> list[Event]:
        """The stream has ended: an unfinished event with data comes out with complete=False."""
        event = self._end_line() if self._line else None
        event = event or self._dispatch(complete=False)
        return [event] if event else []

    def _end_line(self) -> Event | None:
        line = bytes(self._line)
        self._line.clear()
        if self._first:
            self._first = False
            line = line.removeprefix(BOM)
        if not line:
            return self._dispatch(complete=True)
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._name = value
        elif name not in (b"", b"id", b"retry"):  # b"" is a comment
            self._keep_stray(line)
        return None

    def _dispatch(self, *, complete: bool) -> Event | None:
        name, data = self._name, self._data
        self._name, self._data = b"", []
        if not data:
            return None
        return Event(
            data=b"\n".join(data).decode("utf-8", "replace"),
            name=name.decode("utf-8", "replace") or "message",
            complete=complete,
        )

    def _keep_stray(self, line: bytes) -> None:
        self.stray += (line + b"\n")[: max(0, STRAY_LIMIT - len(self.stray))]
