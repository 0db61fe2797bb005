"""The unfinished line at the end of what was read from a pipe: kept at a stop, and put before what the next run reads.

That may be its rest, if the pipe stayed open, or the beginning of it all, if the producer began anew. A line that is no
prompt alone, and makes one of the two, is the rest. Where that tells nothing, as with lines of text, the same pipe goes
on and another one does not.
"""

from __future__ import annotations

from attrs import frozen

from controller.forms import Draft
from controller.lines import parse_line
from policies.contract import JSON


@frozen
class Half:
    """pipe: which one it came from, as `pipe_of` says."""

    raw: bytes
    source: str
    pipe: str

    def goes_on(self, line: bytes, pipe: str, *, text: bool) -> bool:
        """Whether `line`, the first that came after it, is its rest."""
        same = bool(pipe) and pipe == self.pipe
        if text:
            return same
        whole, alone = (isinstance(parse_line(raw), Draft) for raw in (self.raw + line, line))
        return whole if whole != alone else same

    def fields(self) -> dict[str, JSON]:
        """As JSON; any bytes come back as they were."""
        return {"half": self.raw.decode(errors="surrogateescape"), "source": self.source, "pipe": self.pipe}


def half_of(value: JSON) -> Half | None:
    """What `fields` gave; None for anything else."""
    match value:
        case {"half": str(raw), "source": str(source), "pipe": str(pipe)}:
            return Half(raw.encode(errors="surrogateescape"), source, pipe)
    return None
