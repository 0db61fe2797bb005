"""The queue before the limiter, decided synchronously: who is its head, what it is told, whom a change lets through.

First come, first served. Only the head asks the limiter. A prompt that was refused goes before all that were never
admitted. Whoever sleeps and wakes is in controller.gate; here every verb returns who is to be woken.
"""

from __future__ import annotations

from collections import OrderedDict

from attrs import define, field

from controller.limiter import Limiter
from controller.permits import Blocked, Booking, Cost, Wait

BY_RATE = Blocked.RATE  # at hand: Python 3.11 takes a call of its own to look a member of an enum up


@define(eq=False)
class Ticket:
    """A place in the queue. waited: what its holder, or the head it stood behind, was told last."""

    owner: str
    again: bool
    waited: Wait | None = None


# Many may be cancelled at once, so whoever leaves is not searched for. A plain dict would look for its first key among
# all those deleted.
Line = OrderedDict[Ticket, None]


@define(eq=False)
class Waiters:
    """Those who want to be admitted by one limiter."""

    limiter: Limiter
    _again: Line = field(factory=OrderedDict, init=False)  # refused ones: they go first
    _fresh: Line = field(factory=OrderedDict, init=False)

    def join(self, owner: str = "", *, again: bool = False) -> Ticket:
        """Stand at the end; again: of those that were refused."""
        ticket = Ticket(owner, again)
        (self._again if again else self._fresh)[ticket] = None
        return ticket

    def ask(self, head: Ticket, cost: Cost, now: float) -> Booking | Wait:
        """The head asks; with a booking it is to leave."""
        answer = self.limiter.admit(cost, now, owner=head.owner, waited=head.waited)
        if isinstance(answer, Wait):
            head.waited = answer
        return answer

    def leave(self, ticket: Ticket) -> Ticket | None:
        """Admitted or cancelled; the new head if that makes one.

        Whoever stood behind a waiting head was held back by the same thing, even if it may go at once now.
        """
        was_head = self.head is ticket
        del (self._again if ticket.again else self._fresh)[ticket]
        following = self.head if was_head else None
        if following is not None and following.waited is None:
            following.waited = ticket.waited
        return following

    def freed(self, *, more: bool) -> Ticket | None:
        """Whom a change may let through. more: of what buckets hold; without it who waits for one is told the same."""
        head = self.head
        if head is None or (not more and head.waited is not None and head.waited.by is BY_RATE):
            return None
        return head

    @property
    def head(self) -> Ticket | None:
        """Whose turn it is."""
        return next(iter(self._again or self._fresh), None)

    def __len__(self) -> int:
        return len(self._again) + len(self._fresh)
