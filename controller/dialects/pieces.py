"""The texts of a stream as deltas: what a fold has seen and nobody has asked for yet."""

from __future__ import annotations

from attrs import define, field

from controller.dialects.bodies import mended
from controller.outcome import Delta

HALF = "\ud800", "\udbff"  # first and last high half of a surrogate pair


@define(eq=False)
class Pieces:
    """Joined in order, the deltas of a text are that text: cut anywhere, even within a surrogate pair."""

    _ready: list[Delta] = field(factory=list)
    _halves: dict[tuple[int, bool], str] = field(factory=dict)  # (choice, reasoning) -> a high half without its low one

    def add(self, index: int, text: str, *, reasoning: bool = False) -> None:
        """The next piece of a choice's text or reasoning; an empty one is none."""
        if not text:
            return
        text = self._halves.pop((index, reasoning), "") + text
        if HALF[0] <= text[-1] <= HALF[1]:
            self._halves[index, reasoning] = text[-1]
            text = text[:-1]
        if text:
            self._ready.append(Delta(index, mended(text), reasoning))

    def taken(self, *, last: bool) -> list[Delta]:
        """What is there, once. last: nothing more will come, so a half without its partner is given out, replaced."""
        if last:
            for (index, reasoning), half in self._halves.items():
                self._ready.append(Delta(index, mended(half), reasoning))
            self._halves.clear()
        ready, self._ready = self._ready, []
        return ready
