"""Refusals that follow what is in flight and not a rate: a limit on concurrency that no answer names.

Where only k may be open at once, whatever was accepted had fewer than k others beside it, and whatever was refused had
at least k. Under a limit on a rate the two overlap: attempts are accepted with as many beside them as others are
refused with, since streams last as long as they please. So a limit of k is believed when TURNS times in a row a refusal
was followed by acceptances, all of them below k and all refusals from k on, and each time the place below k was taken:
a policy that sends in bursts is refused at the top of each, but its bursts are not all alike.

Paced sending with answers that all take the same time looks like it, too: what is in flight is always the same then. So
what was believed is put to the test soon (controller.room): an attempt that is let through with k others open disproves
it. Of one at a time there would be no such test where answers come whole, so it is never believed.
"""

from __future__ import annotations

from collections import deque

from attrs import define, field

TURNS = 4  # from a refusal over acceptances to the next refusal; chance has not made so many agree in any scenario
NEAR = 16  # all that decides must be within a sixteenth of k


@define(eq=False)
class Crowd:
    """beside: other attempts open, of an accepted one at least, of a refused one at most so many."""

    _turns: deque[tuple[int, int]] = field(factory=lambda: deque(maxlen=TURNS))  # least refused, most accepted
    _needed: int = TURNS
    _least: int | None = None  # beside a refused one, since the last acceptance
    _most: int = -1  # beside an accepted one, since the last refusal

    def accepted(self, beside: int) -> None:
        """An attempt was taken."""
        if beside > self._most:
            self._most = beside

    def refused(self, beside: int) -> int | None:
        """An attempt was refused without a word why; how many fit, if it looks like that."""
        if self._most >= 0 and self._least is not None:
            self._turns.append((self._least, self._most))
            self._least, self._most = None, -1
        self._least = beside if self._least is None else min(beside, self._least)
        if len(self._turns) < self._needed:
            return None
        refused, accepted = [self._least, *(least for least, _ in self._turns)], [most for _, most in self._turns]
        fits = min(refused)
        near = fits // NEAR
        is_one = fits > 1 and max(accepted) < fits and max(refused) <= fits + near and min(accepted) >= fits - 1 - near
        return fits if is_one else None

    def doubt(self) -> None:
        """What it had come to was wrong: begin anew, and believe twice as hard."""
        self._needed *= 2
        self._turns = deque(maxlen=self._needed)
        self._least, self._most = None, -1
