"""Events of a stream as the JSON documents in them: what all folds do alike before their formats differ."""

from __future__ import annotations

from collections.abc import Callable

from controller.dialects.bodies import EXCERPT, documents
from controller.outcome import Failed, Kind, Throttled
from controller.sse import Event
from policies.contract import JSON

Take = Callable[[JSON, str, str], Throttled | Failed | None]  # document, the whole event's text, the event's name
MARKER = "[DONE]"  # OpenAI's; gateways add it to other formats too


def fold_in(event: Event, take: Take) -> Throttled | Failed | None:
    """Give each document of an event to `take`, until one is an error: then that is the answer.

    Some gateways put several documents into one event. A last event that was cut off is no fault of its own: the
    missing end marker tells.
    """
    text = event.data.strip()
    if not text or text.startswith(MARKER):
        return None
    found = documents(text)
    if found is None:
        words = "an event of the stream is no JSON"
        cut_off = not event.complete
        return None if cut_off else Failed(kind=Kind.MALFORMED, message=words, status=200, body=text[:EXCERPT])
    for document in found:
        if failure := take(document, text, event.name):
            return failure
    return None
