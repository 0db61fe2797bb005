"""Server-Sent Events, sans IO: bytes in, events out; any cutting of the bytes gives the same events.

After the WHATWG standard (https://html.spec.whatwg.org/multipage/server-sent-events.html, section 9.2), framed on
bytes: a line ends at CR, LF or CRLF and nowhere else, so U+2028 or U+0085 inside a JSON string stay text
(splitting decoded text at every Unicode line end is the classic fault). One departure, `close`: at the end of
the stream an event that lacks only its blank line is handed over, since a terminator without it is common.
"""

from __future__ import annotations

from attrs import define, field, frozen


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

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that `chunk` completes, in order."""
        raise NotImplementedError

    def close(self) -> list[Event]:
        """The stream has ended: an unfinished event with data comes out with complete=False."""
        raise NotImplementedError
