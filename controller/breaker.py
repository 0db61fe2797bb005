"""Stops a run in which every prompt fails alike: a bad parameter is the run's fault, and costs each prompt its result.

Alike means the same status, code and words, but for words with a digit: those are of the prompt, or of the attempt.
Where the words differ all the same (two messages in turn, an identifier without a digit), LOOSELY times as many with
the same status and code are enough. A single success proves that prompts can be answered, and opens nothing any more.

A prompt that an earlier run left in error (--retry-failed) proves nothing about this run by failing again. An answer of
an earlier run proves nothing either: the parameters may be other ones by now, and a run that stops can be resumed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from attrs import define, field

from controller.outcome import Failed, Kind, describe

LOOSELY = 3
_OF_ONE_PROMPT = re.compile(r"\S*\d\S*")


@define(eq=False)
class Breaker:
    """allowed: prompts that may end in the same error; 0: any number. failed_before: keys of earlier runs' errors."""

    allowed: int
    failed_before: Callable[[str], bool] = lambda _: False
    _words: str | None = None
    _alike: int = 0
    _by_code: Counter[tuple[int | None, str | None, Kind]] = field(factory=Counter)

    def succeeded(self) -> None:
        """A prompt was answered."""
        self.allowed = 0

    def failed(self, failed: Failed, key: str = "") -> str | None:
        """A prompt is about to end in this error. Why it must not, and the run stop instead; None if it may."""
        if not (self.allowed and failed.sent) or self.failed_before(key):
            return None
        words = _OF_ONE_PROMPT.sub("#", describe(failed))
        if words != self._words:
            self._words, self._alike = words, 0
        self._alike += 1
        code = (failed.status, failed.code, failed.kind)
        self._by_code[code] += 1
        if self._alike > self.allowed:
            so_far = self.allowed
        elif self._by_code[code] > LOOSELY * self.allowed:
            so_far = LOOSELY * self.allowed
        else:
            return None
        said = f"every prompt fails alike, {so_far} so far, and none succeeded (--most-alike sets how many may)"
        return f"{said}: {describe(failed)}"
