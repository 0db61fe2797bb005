"""Stops a run in which every prompt fails alike: a bad parameter is the run's fault, and costs each prompt its result.

Alike means the same status, code and words, numbers aside: they are of the prompt, not of the fault. A single success
proves that prompts can be answered, and opens nothing any more.
"""

from __future__ import annotations

import re

from attrs import define

from controller.outcome import Failed, describe

_NUMBERS = re.compile(r"[0-9a-f-]*[0-9][0-9a-f-]*")


@define(eq=False)
class Breaker:
    """allowed: prompts that may end in the same error; 0: any number."""

    allowed: int
    _words: str | None = None
    _alike: int = 0

    def succeeded(self) -> None:
        """A prompt was answered."""
        self.allowed = 0

    def failed(self, failed: Failed) -> str | None:
        """A prompt is about to end in this error. Why it must not, and the run stop instead; None if it may."""
        if not (self.allowed and failed.sent):
            return None
        words = _NUMBERS.sub("#", describe(failed))
        if words != self._words:
            self._words, self._alike = words, 0
        self._alike += 1
        if self._alike <= self.allowed:
            return None
        return f"every prompt fails alike, {self.allowed} so far, and none succeeded: {describe(failed)}"
