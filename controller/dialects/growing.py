"""What folds share: a text that grows in pieces, and the pieces that were not told yet."""

from __future__ import annotations

from attrs import define, field

from controller.dialects.bodies import mended
from controller.outcome import Delta


@define(eq=False)
class Spoken:
    """Collects pieces of text by index, apart for what is said and what is thought; joined once, at the end."""

    _pieces: dict[tuple[int, bool], list[str]] = field(factory=dict)
    _fresh: list[Delta] = field(factory=list)

    def add(self, text: object, *, index: int = 0, reasoning: bool = False) -> None:
        """Take a piece in; anything but a text with something in it is none."""
        if isinstance(text, str) and text:
            self._pieces.setdefault((index, reasoning), []).append(text)
            self._fresh.append(Delta(index=index, text=text, reasoning=reasoning))

    def text(self, *, index: int = 0, reasoning: bool = False) -> str:
        """All pieces of this index, halves of surrogate pairs joined."""
        return mended("".join(self._pieces.get((index, reasoning), [])))

    def fresh(self) -> list[Delta]:
        """What came since the last call."""
        fresh, self._fresh = self._fresh, []
        return fresh
