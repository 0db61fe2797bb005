"""One prompt at a time: admit, attempt, settle, then hand the result over or go round.

This is the only retry layer. A throttled prompt goes round for ever, before all others, and spends no failure
budget; a failed one waits its back-off outside the gate. A fatal answer stops the run and leaves the prompt pending.
An answer that broke off is continued, if the user wishes: that spends no failure budget either, but one of its own.
"""

from __future__ import annotations

from typing import assert_never

import trio
from attrs import define, evolve, field

from controller.bench import Bench
from controller.charges import Reservation
from controller.continued import Echo, Whole
from controller.dialects.quotas import DAY
from controller.emission import Restart
from controller.gate import Permit
from controller.outcome import Answer, Completed, Delta, Failed, Kind, Outcome, Throttled, describe
from controller.records import Prompt, Result, Timing
from controller.telemetry import Exit
from controller.upstream import NOWHERE

FREE_FAILURES = 2  # times the budget of failures
# What breaks off an answer whose text so far is good: a cut, a clock of ours, a failure that the stream tells of.
BREAKS = frozenset({Kind.TRUNCATED, Kind.TIMEOUT, Kind.SERVER})


async def work(prompts: trio.MemoryReceiveChannel[Prompt], bench: Bench) -> None:
    """Take prompts until there are no more; each leaves a result in the outbox or stays pending."""
    async for prompt in prompts:
        await bench.outbox.reserve()
        bench.tally.take_up(trio.current_time())
        result = None
        try:
            result = await _Round(prompt, bench, trio.current_time(), asked=prompt).run_in_time()
        finally:
            bench.tally.put_down()
            if result is None:
                bench.outbox.give_back()
            else:
                bench.outbox.put(result)


@define(eq=False)
class _Round:
    """A prompt with what its attempts have come to so far."""

    prompt: Prompt
    bench: Bench
    read_at: float
    asked: Prompt  # what the next attempt sends: the prompt, or the one that asks for the rest
    whole: Whole = field(factory=Whole)
    told: bool = False  # text of the last attempt went out and may have to be taken back
    refuses_prefix: bool = False
    attempts: int = 0
    throttled: int = 0
    failures: int = 0
    free_failures: int = 0  # while the upstream was to blame
    day_refused_at: float | None = None  # the last refusal by a quota per day
    in_vain: bool = False  # and the wait that it asked for had been kept before
    last_trouble: str | None = None

    async def run_in_time(self) -> Result | None:
        """The result, an error if the prompt's deadline comes before it; None when the run stops first."""
        seconds = self.bench.deadline if self.prompt.deadline is None else self.prompt.deadline
        if seconds is None:
            return await self.run()
        result = None
        with trio.move_on_at(self.read_at + seconds) as scope:
            result = await self.run()
        if result is None and scope.cancelled_caught:
            words = f"no answer {seconds:g} s after it was read; last trouble: {self.last_trouble or 'none'}"
            error = Failed(kind=Kind.DEADLINE, message=words, sent=self.attempts > 0)
            waited = Timing(queued=trio.current_time() - self.read_at)
            return Result(
                prompt=self.prompt, error=error, attempts=self.attempts, throttled=self.throttled, timing=waited
            )
        return result

    async def run(self) -> Result | None:
        """The result, or None when the run stops first."""
        cost = Reservation(self.bench.meters.of(self.prompt))
        again = False
        while True:
            async with self.bench.admit(self.asked, cost, owner=self.prompt.key, again=again) as permit:
                if permit is None:
                    return None
                outcome = permit.outcome = self._weighed(await self._attempt(permit))
            match outcome:
                case Completed():
                    self.bench.breaker.succeeded()
                    return self._result(permit, answer=outcome.answer)
                case Throttled():
                    again = True
                    if not self._throttled(outcome):
                        return None
                case Failed(kind=Kind.FATAL):
                    self.bench.stop.ask(Exit.UPSTREAM, describe(outcome))
                    return None
                case Failed():
                    again = outcome.kept
                    pause = 0.0 if again else self._pause(permit, outcome)
                    if pause is None:
                        return self._given_up(permit, outcome)
                    self._take_back()
                    if await self.bench.stop.sleep(pause):
                        return None
                case _:
                    assert_never(outcome)

    async def _attempt(self, permit: Permit) -> Outcome:
        tally, underway = self.bench.tally, self.bench.underway
        if underway is not None:
            underway.begin(self.prompt.key)
        self.attempts += 1
        tally.attempts += 1
        tally.in_flight += 1
        echo = Echo(self.whole.text)
        try:
            outcome = await self.bench.upstream.attempt(
                self.asked, permit, lambda heard: self._tell(echo.without(heard))
            )
        finally:
            tally.in_flight -= 1
            tally.attempts += permit.seen.repeats
            self.attempts += permit.seen.repeats
        if isinstance(outcome, Completed):
            self._tell(echo.rest())
        else:
            self.last_trouble = tally.last_trouble = describe(outcome)
            if underway is not None:  # what we cancelled ourselves may have been paid, and stays noted
                underway.end(self.prompt.key)
        if isinstance(outcome, Failed) and outcome.status in NOWHERE and self.whole.parts:
            # Prefixes may have a place of their own (DeepSeek's /beta) that a gateway lacks: no reason to stop the run.
            return evolve(outcome, kind=Kind.PROMPT)
        return outcome

    def _tell(self, deltas: list[Delta]) -> None:
        if deltas and self.bench.live is not None:
            self.told = True
            self.bench.live.hear(self.prompt, deltas)

    def _take_back(self) -> None:
        """What the last attempt told is void, if it told anything."""
        if self.told and self.bench.live is not None:
            self.bench.live.restart(self.prompt, Restart(self.attempts + 1, len(self.whole.text)))
        self.told = False

    def _weighed(self, outcome: Outcome) -> Outcome:
        """The outcome as the run sees it: a part of an answer may be kept, a spent day be waited for."""
        self.in_vain = isinstance(outcome, Throttled) and outcome.period == DAY and self._day_is_over()
        if isinstance(outcome, Failed) and self._goes_on(outcome):
            return evolve(outcome, kept=True)
        return self.bench.patience.weigh(outcome, in_vain=self.in_vain)

    def _goes_on(self, failed: Failed) -> bool:
        """Keep what came before it broke off, to ask for the rest; False where that can't be."""
        bench = self.bench
        spent = self.refuses_prefix or len(self.whole.parts) >= bench.continue_truncated
        if spent or failed.part is None or failed.kind not in BREAKS:
            return False
        whole = self.whole.plus(failed.part)
        asked = None if whole is self.whole else bench.upstream.continued(self.prompt, whole.text)
        if asked is None:
            return False
        self.whole, self.asked, self.told = whole, asked, False
        if bench.live is not None:
            bench.live.keep(self.prompt)
        bench.tally.renew_hope(trio.current_time())
        return True

    def _throttled(self, outcome: Throttled) -> bool:
        """Count it; False if the upstream asks for a longer wait than the user allows, or for one that is in vain."""
        self.throttled += 1
        self.bench.tally.throttled += 1
        words = self.bench.patience.refuses(outcome, in_vain=self.in_vain)
        if words is None:
            self._take_back()
            return True
        self.bench.stop.ask(Exit.UPSTREAM, words)
        return False

    def _day_is_over(self) -> bool:
        """The same quota refused this prompt before, its wait was kept, and nothing got through since.

        A bucket that is filled over the day tells true waits (OpenAI: 200 a day, "try again in 7m12s"), a day that
        ends at midnight does not (https://github.com/google-gemini/gemini-cli/issues/10925).
        """
        before, self.day_refused_at = self.day_refused_at, trio.current_time()
        answering = self.bench.gate_of(self.prompt).limiter.accepted_open > 0
        return before is not None and self.bench.tally.hopeful_at < before and not answering

    def _pause(self, permit: Permit, outcome: Failed) -> float | None:
        """Seconds before the next attempt; None to give the prompt up."""
        assert permit.settlement is not None
        backoff = self.bench.backoff
        if outcome.kind is Kind.PROMPT and self.whole.parts:
            # The prompt itself was answered before, so it is the prefix that is refused: do without.
            self.whole, self.asked, self.refuses_prefix, self.told = Whole(), self.prompt, True, True
            outcome = evolve(outcome, kind=Kind.MALFORMED)
        spends = permit.settlement.spends_budget
        if not spends and outcome.kind is not Kind.CONNECT:
            # The upstream is to blame, it seems; but two prompts that kill every answer look the same for ever.
            self.free_failures += 1
            spends = self.free_failures > FREE_FAILURES * backoff.allowed
        self.failures += spends
        return backoff.pause(outcome, self.failures, self.bench.rng)

    def _given_up(self, permit: Permit, outcome: Failed) -> Result | None:
        """Its error result; None where all prompts fail alike, which is not this one's fault."""
        words = self.bench.breaker.failed(outcome, self.prompt.key)
        if words is None:
            return self._result(permit, error=outcome)
        self.bench.stop.ask(Exit.UPSTREAM, words)
        return None

    def _result(self, permit: Permit, *, answer: Answer | None = None, error: Failed | None = None) -> Result:
        now, seen = trio.current_time(), permit.seen
        usage = self.whole.usage(answer.usage if answer else seen.usage)
        self.bench.tally.renew_hope(now)
        first = None if seen.first_token_at is None else seen.first_token_at - permit.admitted_at
        timing = Timing(queued=permit.admitted_at - self.read_at, first_token=first, total=now - permit.admitted_at)
        return Result(
            prompt=self.prompt,
            answer=answer and self.whole.answer(answer),
            error=error,
            attempts=self.attempts,
            throttled=self.throttled,
            timing=timing,
            usage=usage,
            seams=self.whole.seams,
        )
