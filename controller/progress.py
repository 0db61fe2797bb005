"""The live line on stderr and the closing lines: how far, how fast, and what holds the run back now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import trio

from controller.gate import Gate
from controller.permits import Blocked
from controller.stderr import redraw, say
from controller.telemetry import Tally

REDRAW = 0.2  # s, on a terminal
LINE_EVERY = 10.0  # s, where stderr is a file or a pipe: a run of a day must not fill a disk

_WORDS = {
    Blocked.RATE: "rate",
    Blocked.IN_FLIGHT: "in-flight",
    Blocked.HOLD: "hold",
    Blocked.PROBE: "hold (probing)",
}


def summary(tally: Tally, gates: Iterable[Gate], now: float, *, max_in_flight: int, input_open: bool) -> str:
    """One line: done, failed, pending, in flight, refill_rate, 429s, and what blocks now."""
    gates = list(gates)
    rate = sum(gate.limiter.statistics(now).refill_rate["requests"] for gate in gates)
    return (
        f"done {tally.ok}  failed {tally.failed}  pending {tally.in_hand}  in flight {tally.in_flight}  "
        f"refill_rate {rate:.3g}/s  429s {tally.throttled}  "
        f"waiting for: {what_blocks(tally, gates, max_in_flight=max_in_flight, input_open=input_open)}"
    )


def what_blocks(tally: Tally, gates: Iterable[Gate], *, max_in_flight: int, input_open: bool) -> str:
    """What holds the run back: a queue's head says it best, then the cap, then the input."""
    waits = [gate.blocked for gate in gates if gate.blocked is not None]
    if waits:
        return _WORDS[waits[0].by]
    if tally.in_flight >= max_in_flight:
        return _WORDS[Blocked.IN_FLIGHT]
    return "no input" if input_open else "answers"


def statistics(tally: Tally, gates: Mapping[str, Gate], now: float) -> list[str]:
    """All that is known now, for who asks by a signal: the run in one line, then a line for each model."""
    counts = f"{tally.ok} ok, {tally.failed} failed, {tally.in_hand} in hand; {tally.attempts} attempts, "
    counts += f"{tally.throttled} throttled; {tally.input_tokens} tokens in, {tally.output_tokens} out"
    said = [f"{counts}; last trouble: {tally.last_trouble or 'none'}"]
    for model, gate in gates.items():
        state = gate.limiter.statistics(now)
        rates = ", ".join(f"{name} {60 * rate:.4g}/min" for name, rate in state.refill_rate.items())
        held = f", held for {state.held_for:.1f} s" if state.held_for else ""
        said.append(
            f"model {model}: {rates}; {state.in_flight} of {state.max_in_flight} in flight, "
            f"{gate.waiting} waiting{held}"
        )
    return said


async def show(mode: str, line: Callable[[], str]) -> None:
    """Keep the line in view until cancelled; mode: bar, lines or off (auto has been decided)."""
    if mode == "off":
        await trio.sleep_forever()
    while True:
        await trio.sleep(REDRAW if mode == "bar" else LINE_EVERY)
        if mode == "bar":
            redraw(line())
        else:
            say(line())
