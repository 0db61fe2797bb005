"""The decision log: every change of pace as one JSON line, so that a sawtooth can be plotted and explained."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from typing import IO

from attrs import define

from controller.permits import Decision


@define(eq=False)
class DecisionLog:
    """write takes one line with its LF. started_at: the instant that the log counts seconds from.

    The log never ends a run: at the first OSError it falls silent and keeps the reason in `fault`.
    """

    write: Callable[[bytes], object]
    started_at: float
    fault: str | None = None

    def __call__(self, model: str, decision: Decision) -> None:
        """Write a decision down: at and held_for in seconds, rates in units/s."""
        line = {
            "at": round(decision.now - self.started_at, 6),
            "model": model,
            "dimension": decision.dimension,
            "old": decision.old,
            "new": decision.new,
            "reason": decision.reason.value,
            "held_for": round(max(decision.held_until - decision.now, 0.0), 6),
        }
        if self.fault is not None:
            return
        try:
            self.write(json.dumps(line).encode() + b"\n")
        except OSError as error:
            self.fault = str(error)


def open_log(path: str | None, stack: ExitStack) -> IO[bytes] | None:
    """The file of a log, for as long as the stack lasts; ValueError, one line, if it can't be."""
    if path is None:
        return None
    try:
        return stack.enter_context(open(path, "ab", buffering=0))
    except OSError as error:
        raise ValueError(f"--decisions {path} can't be written: {error.strerror}") from error
