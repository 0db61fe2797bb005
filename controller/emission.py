"""The stream of a run as its consumer reads it: lines of JSON, or Server-Sent Events.

A line about a prompt bears the names of its result line (`id`, and `custom_id` where it came as a Batch line) and
always its `key`. What a line means:

    "delta" or "reasoning"  the next piece of a choice's text or reasoning; `index` is the choice
    "restart"               an attempt broke off and the prompt is asked again: all it said is void, except the first
                            `kept` characters of its text, which the next attempt continues
    anything else           its result, the last line of its prompt
"""

from __future__ import annotations

from attrs import frozen

from controller.outcome import Delta
from controller.records import BATCH_ID, Prompt, dump_line
from policies.contract import JSON

KEEP_ALIVE = b": keep-alive\n\n"


@frozen
class Restart:
    """What a prompt's broken attempt said is void. attempt: the number of the next one."""

    attempt: int
    kept: int = 0  # characters of its text that are not


def delta_line(prompt: Prompt, delta: Delta) -> bytes:
    """One line for a piece of text."""
    name = "reasoning" if delta.reasoning else "delta"
    return dump_line({**_names(prompt), name: delta.text, "index": delta.index})


def restart_line(prompt: Prompt, restart: Restart) -> bytes:
    """One line that takes text back."""
    return dump_line({**_names(prompt), "restart": True, "attempt": restart.attempt, "kept": restart.kept})


def event(name: str, line: bytes, number: int) -> bytes:
    """A line as a Server-Sent Event. Our JSON has neither CR nor LF inside, so it is one `data` field."""
    return b"event: %s\nid: %d\ndata: %s\n\n" % (name.encode(), number, line.rstrip(b"\n"))


def _names(prompt: Prompt) -> dict[str, JSON]:
    if prompt.batch:
        return {"id": BATCH_ID + prompt.key, "custom_id": prompt.id, "key": prompt.key}
    return {"id": prompt.id, "key": prompt.key}
