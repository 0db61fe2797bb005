"""What a run counts, and why it stops: read by the progress line, the closing lines and the exit code."""

from __future__ import annotations

from enum import IntEnum

import trio
from attrs import define, field

from controller.records import Result


class Exit(IntEnum):
    """Exit codes. All from 3 on leave prompts pending, and the same command resumes them."""

    OK = 0
    SOME_FAILED = 1
    USAGE = 2  # nothing was sent
    UPSTREAM = 3  # credentials, model, spent quota, no success for too long
    BUDGET = 4  # the user's own
    LOCAL_IO = 5  # disk full, closed pipe
    FAULT = 70  # our own, with a traceback; sysexits.h calls it EX_SOFTWARE
    HUNG_UP = 129
    INTERRUPTED = 130
    TERMINATED = 143


@define(eq=False)
class Tally:
    """Counters of one run. in_hand: prompts that a worker holds, waiting or under way."""

    ok: int = 0  # results written
    failed: int = 0
    in_hand: int = 0
    in_flight: int = 0
    attempts: int = 0
    throttled: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    last_trouble: str | None = None
    hopeful_at: float = 0.0  # the last instant that gave no reason to give the upstream up
    hopeful_attempts: int = 0  # attempts made until then
    waits_until: float = float("-inf")  # an instant that the user wishes to wait for

    @property
    def done(self) -> int:
        """Prompts that have their result."""
        return self.ok + self.failed

    def take_up(self, now: float) -> None:
        """A worker took a prompt in hand."""
        if self.in_hand == 0:
            self.renew_hope(now)
        self.in_hand += 1

    def renew_hope(self, now: float) -> None:
        """The upstream gave a sign of life, or was not asked at all."""
        self.hopeful_at, self.hopeful_attempts = now, self.attempts

    def wait(self, seconds: float) -> None:
        """The user wishes to wait so long, and then for an answer."""
        self.waits_until = max(self.waits_until, trio.current_time() + seconds)

    def count(self, result: Result) -> None:
        """A result has been written."""
        self.ok += result.answer is not None
        self.failed += result.answer is None
        if result.usage is not None:
            self.input_tokens += result.usage.input_tokens or 0
            self.output_tokens += result.usage.output_tokens or 0

    def put_down(self) -> None:
        """Its result is on the way, or it stays pending."""
        self.in_hand -= 1


@define(eq=False)
class Stop:
    """The wish to end the run early; the first reason counts."""

    code: Exit | None = None
    reason: str | None = None
    asked: trio.Event = field(factory=trio.Event)
    at_once: trio.Event = field(factory=trio.Event)  # do not drain either

    def ask(self, code: Exit, reason: str) -> None:
        """Admit nothing more, drain what is under way and end with this code."""
        if self.code is None:
            self.code, self.reason = code, reason
            self.asked.set()

    async def sleep(self, seconds: float) -> bool:
        """Sleep; True if the run was asked to stop meanwhile, at once then."""
        with trio.move_on_after(seconds):
            await self.asked.wait()
        return self.asked.is_set()
