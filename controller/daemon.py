"""Where the parts meet: a nursery of stream workers between an intake of prompts and a journal of results.

    intake -> (no buffer) -> workers -> outbox -> journal

Ends in one of three ways: the input is used up and every prompt has its result; the run was asked to stop (signal,
upstream, disk) and drains what is under way within drain_timeout; or a second signal stops it at once. What has no
result by then stays pending, and the same command takes it up again.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import trio
from attrs import Factory, evolve, field, frozen

from controller.bench import Bench
from controller.breaker import Breaker
from controller.budget import Budget, Price
from controller.charges import Meters
from controller.crew import Crew
from controller.gates import Gates
from controller.journal import JournalError
from controller.live import Live
from controller.outbox import Outbox
from controller.outcome import Failed, Kind, Usage
from controller.patience import Patience
from controller.purse import Purse
from controller.records import Prompt, Result
from controller.retry import Backoff
from controller.settings import Settings
from controller.telemetry import Exit, Stop, Tally
from controller.underway import Underway
from controller.upstream import Upstream
from controller.worker import work
from policies.contract import JSON

AcceptPrompt = Callable[[Prompt], Awaitable[None]]
AcceptResult = Callable[[Result], Awaitable[None]]
ReadPrompts = Callable[[AcceptPrompt, AcceptResult], Awaitable[None]]
Write = Callable[[list[Result]], Awaitable[None]]
LAST_WRITE = 2.0  # s that a stuck output gets after the drain
ANSWER = 60.0  # s for the answer to the probe after a hold
LOOK_UP = 10.0  # s between two looks at whether the process was stopped
OVERSLEPT = 1.0  # s; a busy machine alone is late by less


@frozen(kw_only=True)
class Parts:
    """What a run is made of. defaults: request parameters for lines that do not set them. live: `write` feeds it."""

    settings: Settings
    read: ReadPrompts
    write: Write
    upstream: Upstream
    gates: Gates
    meters: Meters = field(factory=Meters)
    defaults: dict[str, JSON] = field(factory=dict)
    price: Price = lambda _, __: 0.0
    say: Callable[[str], None] = lambda _: None  # one line for the user
    tally: Tally = field(factory=Tally)
    stop: Stop = field(factory=Stop)
    live: Live | None = None
    underway: Underway | None = None
    failed_before: Callable[[str], bool] = lambda _: False  # by key: an earlier run left it in error
    crew: Crew = field(default=Factory(lambda parts: Crew(parts.settings.max_in_flight), takes_self=True))


async def serve(parts: Parts) -> Exit:
    """Run to one of the three ends. Installs no signal handler: `reload.listen` does."""
    outbox = Outbox(2 * parts.settings.max_in_flight)  # twice: the journal's pace must not show in the workers'
    working, writing = trio.CancelScope(), trio.CancelScope()
    async with trio.open_nursery() as watchers:
        watchers.start_soon(_watch_for_hope, parts)
        watchers.start_soon(_drain_when_asked, parts, working, writing)
        if parts.live is not None:
            outbox.room = parts.live.room
            watchers.start_soon(parts.live.run, parts.stop)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_write, parts, outbox, writing)
            try:
                with working:
                    await _work(parts, outbox)
            finally:
                outbox.close()
        watchers.cancel_scope.cancel()
    return parts.stop.code or (Exit.SOME_FAILED if parts.tally.failed else Exit.OK)


async def _work(parts: Parts, outbox: Outbox) -> None:
    """Intake and workers until the prompts are used up or the drain is over."""
    settings = parts.settings
    send, receive = trio.open_memory_channel[Prompt](0)
    bench = Bench(
        gate_of=parts.gates.of,
        upstream=parts.upstream,
        outbox=outbox,
        backoff=Backoff(allowed=settings.max_failures),
        patience=Patience(
            longest=settings.longest_wait,
            wall_clock=parts.upstream.wall_clock,
            until_reset=parts.upstream.until_reset,
            waits=settings.on_quota == "wait",
            on_wait=parts.tally.wait,
            say=parts.say,
        ),
        rng=random.Random(settings.seed),
        stop=parts.stop,
        tally=parts.tally,
        live=parts.live,
        underway=parts.underway,
        meters=parts.meters,
        breaker=Breaker(settings.most_alike, parts.failed_before),
        purse=Purse(Budget(settings.max_output_tokens, settings.max_cost, parts.price)),
        deadline=settings.deadline,
        continue_truncated=settings.continue_truncated,
    )
    async with trio.open_nursery() as hiring:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_take_in, parts, send, outbox)

            def begin() -> bool:
                if nursery.child_tasks:
                    outbox.widen(2 * parts.crew.size)
                    nursery.start_soon(work, receive, bench)
                return bool(nursery.child_tasks)

            hiring.start_soon(parts.crew.hire, begin)
        hiring.cancel_scope.cancel()


async def _take_in(parts: Parts, send: trio.MemorySendChannel[Prompt], outbox: Outbox) -> None:
    """Feed the workers; a stop ends it, and what was not taken stays in its source."""

    async def accept_prompt(prompt: Prompt) -> None:
        request = {**parts.defaults, **prompt.request}
        request["model"] = prompt.request.get("model") or parts.defaults.get("model")
        if request["model"]:
            await send_on(evolve(prompt, request=request))
        elif parts.tally.attempts:
            fault = Failed(kind=Kind.INPUT, message="it names no model, and there is no --model", sent=False)
            await accept_result(Result(prompt=prompt, error=fault))
        else:
            parts.stop.ask(Exit.USAGE, f"{prompt.source}:{prompt.line} names no model; give --model")
            await trio.sleep_forever()  # until the stop cancels the intake

    async def send_on(prompt: Prompt) -> None:
        try:
            parts.price(prompt, Usage(input_tokens=1, output_tokens=1))  # the worker relies on there being one
        except ValueError as error:
            await accept_result(Result(prompt=prompt, error=Failed(kind=Kind.INPUT, message=str(error), sent=False)))
        else:
            await send.send(prompt)

    async def accept_result(result: Result) -> None:
        await outbox.reserve()
        outbox.put(result)

    async with send, trio.open_nursery() as nursery:
        nursery.start_soon(_cancel_when_asked, parts.stop, nursery.cancel_scope)
        try:
            await parts.read(accept_prompt, accept_result)
        except OSError as error:
            parts.stop.ask(Exit.LOCAL_IO, f"the prompts can't be read any further: {error}")
        nursery.cancel_scope.cancel()


async def _cancel_when_asked(stop: Stop, scope: trio.CancelScope) -> None:
    await stop.asked.wait()
    scope.cancel()


async def _drain_when_asked(parts: Parts, working: trio.CancelScope, writing: trio.CancelScope) -> None:
    await parts.stop.asked.wait()
    parts.gates.close()
    with trio.move_on_after(parts.settings.drain_timeout):
        await parts.stop.at_once.wait()
    working.cancel()
    await trio.sleep(LAST_WRITE)
    writing.cancel()


async def _write(parts: Parts, outbox: Outbox, scope: trio.CancelScope) -> None:
    """Write results as they come, in batches; a journal that fails stops the run."""
    with scope:
        while results := await outbox.take():
            try:
                await parts.write(results)
            except JournalError as error:
                parts.stop.ask(Exit.LOCAL_IO, str(error))
                parts.stop.at_once.set()  # results can't be kept any more: don't pay for them
                return
            for result in results:
                parts.tally.count(result)
            outbox.give_back(len(results))
        if parts.live is not None:
            await parts.live.flush()


async def _watch_for_hope(parts: Parts) -> None:
    """No sign of life for give_up_after, although it was asked, parks the run."""
    patience, tally, warned = parts.settings.give_up_after, parts.tally, 0.0
    while True:
        now = trio.current_time()
        if tally.in_hand == 0 or tally.attempts == tally.hopeful_attempts or parts.gates.answering():
            tally.renew_hope(now)
        left = max(tally.hopeful_at, tally.waits_until) + patience - now
        held = parts.gates.asked_until() + ANSWER - now
        if left <= 0 < held and warned < tally.hopeful_at:
            warned = now  # the upstream named an instant: its answer after that is waited for, once
            left = held
        if left <= 0:
            parts.stop.ask(Exit.UPSTREAM, f"no success for {patience:g} s; last trouble: {tally.last_trouble}")
            return
        await _sleep_awake(left, tally)


async def _sleep_awake(seconds: float, tally: Tally) -> None:
    """Time in which the whole process was stopped, or its machine, gave the upstream no chance to show itself."""
    while seconds > 0:
        asked, now = min(seconds, LOOK_UP), trio.current_time()
        await trio.sleep(asked)
        overslept = trio.current_time() - now - asked
        seconds -= asked
        if overslept > OVERSLEPT:
            tally.hopeful_at += overslept
            seconds += overslept
