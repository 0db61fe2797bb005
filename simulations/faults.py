"""What can go wrong with an answer: each fault is a pure function Script -> Script, in a table by its name.

No faulty script holds the whole of an answer with the proof that it is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random

from attrs import evolve, frozen

from simulations.dialects.contract import KINDS, Said
from simulations.script import Ending, Piece, Script, in_one_piece, with_header

COMMENTS = 20  # within a stall
HTML = b"<!DOCTYPE html><html><head><title>502 Bad Gateway</title></head><body><h1>Bad Gateway</h1>"
PAGE = HTML + b"<p>The server took the wrong turning at the lock.</p>" * 90 + b"</body></html>"  # about 5 kB


@frozen(kw_only=True)
class Around:
    """What a fault may know beside the script. say: the dialect's words for a kind of trouble."""

    rng: Random
    say: Callable[[str, int | None], Said]
    at: int | None = None  # events that come whole; None: drawn
    stall: float = 0.0  # seconds of silence
    error_status: int = 500


Fault = Callable[[Script, Around], Script]


def spoil(script: Script, name: str, around: Around) -> Script:
    """The script with that fault, which must be in the table."""
    return evolve(FAULTS[name](script, around), fault=name)


def _reset(script: Script, around: Around) -> Script:
    return _broken(script, around, Ending.RESET)


def _stall(script: Script, around: Around) -> Script:
    """Silence, then the cut."""
    broken = _broken(script, around, Ending.CUT)
    return evolve(broken, ends_at=broken.ends_at + around.stall)


def _broken(script: Script, around: Around, ending: Ending) -> Script:
    """Half of them end before any answer, unless it is said at which event."""
    if around.at is None and around.rng.random() < 0.5:
        return evolve(script, head_at=None, pieces=(), ends_at=script.head_at or 0.0, ending=ending)
    return _torn(script, around, ending)


def _cut(script: Script, around: Around) -> Script:
    return _torn(script, around, Ending.CUT)


def _truncate(script: Script, around: Around) -> Script:
    """Between two events; a plain body announces its length, so half of it can't end cleanly."""
    if not script.unbroken:
        return _torn(script, around, Ending.CUT)
    return _kept(script, _count(script, around))


def _unterminated(script: Script, around: Around) -> Script:
    """Everything but the very last event."""
    return _kept(script, len(script.pieces) - 1) if script.unbroken else _torn(script, around, Ending.CUT)


def _comments(script: Script, around: Around) -> Script:
    """Nothing but comments for the length of a stall, then the cut."""
    kept = _kept(script, _count(script, around)) if script.unbroken else evolve(script, pieces=())
    began_at, step = kept.ends_at, around.stall / COMMENTS
    comments = [Piece(offset=began_at + i * step, data=b": keep-alive\n\n") for i in range(COMMENTS + 1)]
    return evolve(kept, pieces=(*kept.pieces, *comments), ends_at=began_at + around.stall, ending=Ending.CUT)


def _error(script: Script, around: Around) -> Script:
    """A 5xx of the profile's choice."""
    return _instead(script, around.error_status, around.say("server", around.error_status).body)


def _as_status(kind: str, script: Script, around: Around) -> Script:
    """The HTTP status that the dialect has for it."""
    said = around.say(kind, None)
    return _instead(script, said.status, said.body)


def _in_band(kind: str, script: Script, around: Around) -> Script:
    """A 200 that turns out to be an error, after some events if it is a stream."""
    said = around.say(kind, None)
    if not script.unbroken:
        return _instead(script, 200, said.body)
    kept = _kept(script, _count(script, around))
    return evolve(kept, pieces=(*kept.pieces, Piece(offset=kept.ends_at, data=said.event)))


def _error_done(script: Script, around: Around) -> Script:
    """An error in the stream and the terminator after it, as vLLM and SGLang do."""
    failed = _in_band("server", script, around)
    last = script.pieces[-1].data if script.unbroken else b""
    return evolve(failed, pieces=(*failed.pieces, Piece(offset=failed.ends_at, data=last)) if last else failed.pieces)


def _pretty(script: Script, around: Around) -> Script:
    """An error as JSON over many lines in what should be events."""
    body = around.say("rate", None).body.replace(b",", b",\n  ").replace(b"{", b"{\n  ")
    return _instead(script, 200, body, "text/event-stream")


def _plain(status: int, body: bytes, kind: str, script: Script, around: Around) -> Script:  # noqa: ARG001 - a Fault
    return _instead(script, status, body, kind)


def _instead(script: Script, status: int, body: bytes, kind: str = "application/json") -> Script:
    """Another answer at the same time, with the headers that are not about the content."""
    headers = with_header(with_header(script.headers, "content-type"), "content-length")
    return in_one_piece(script.number, status, body, script.head_at or 0.0, headers=headers, kind=kind)


def _count(script: Script, around: Around) -> int:
    """How many events come whole; one at least comes later. An array's opening is always there."""
    if around.at is None:
        return around.rng.randint(min(1, script.unbroken), script.unbroken)
    least = 1 if script.pieces[0].data == b"[" else 0
    return min(max(around.at, least), script.unbroken)


def _kept(script: Script, count: int) -> Script:
    """That many pieces and a clean end."""
    pieces = script.pieces[:count]
    return evolve(script, pieces=pieces, ends_at=pieces[-1].offset if pieces else script.head_at or 0.0)


def _torn(script: Script, around: Around, ending: Ending) -> Script:
    """Some events and half of another, at times up to within a character."""
    count = _count(script, around)
    torn = script.pieces[count]
    half = evolve(torn, data=torn.data[: len(torn.data) // 2])
    return evolve(script, pieces=(*script.pieces[:count], half), ends_at=half.offset, ending=ending)


FAULTS: Mapping[str, Fault] = {
    "error": _error,
    "reset": _reset,
    "cut": _cut,
    "truncate": _truncate,
    "stall": _stall,
    "comments": _comments,
    "unterminated": _unterminated,
    "error-done": _error_done,
    **{f"http-{kind}": partial(_as_status, kind) for kind in KINDS},
    **{f"in-band-{kind}": partial(_in_band, kind) for kind in KINDS},
    "html": partial(_plain, 200, PAGE, "text/html"),
    "empty": partial(_plain, 200, b"", "text/event-stream"),
    "no-choices": partial(_plain, 200, b'{"id":null,"choices":null}', "application/json"),
    "pretty-error": _pretty,
    "html-502": partial(_plain, 502, PAGE, "text/html"),
    "empty-502": partial(_plain, 502, b"", "text/html"),
    "empty-429": partial(_plain, 429, b"", "text/plain"),
    "text-429": partial(_plain, 429, b"slow down\n", "text/plain"),
}
