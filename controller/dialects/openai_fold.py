"""A stream of chat.completion.chunk events, folded into the chat.completion that a plain request would have given.

Proof of completion: `[DONE]`; or, where a server leaves it out, a finish_reason on every choice *and* a clean end of
the stream (upstream.py calls `end` only after one). Anything less is truncated: a stream that merely stops looks
exactly like a good one otherwise (https://github.com/vercel/ai/issues/19165).

Merging is generic, so that fields nobody here has heard of survive: texts named in APPENDED grow, objects merge,
lists of objects with an `index` merge by it, other lists grow, and of everything else the last non-empty value wins.
Growing texts are kept as pieces until the end: joining at each delta would be quadratic.
"""

from __future__ import annotations

from attrs import define, field

from controller.dialects.bodies import mended
from controller.dialects.complaints import find_error
from controller.dialects.counting import usage_of
from controller.dialects.events import fold_in
from controller.dialects.pieces import Pieces
from controller.dialects.refusals import refusal
from controller.outcome import Answer, Delta, Failed, Kind, Throttled, Usage
from controller.sse import Event
from policies.contract import JSON

APPENDED = frozenset({"content", "refusal", "reasoning", "reasoning_content", "arguments", "transcript", "data"})
BROKEN = frozenset({"error", "abort", "insufficient_system_resource", "network_error"})  # finish reasons that are none
_NOT_IN_BODY = frozenset({"choices", "usage", "object", "obfuscation", "error", "x_groq"})


@define(eq=False)
class Text:
    """A text that is still growing."""

    pieces: list[str] = field(factory=list)


@define(eq=False)
class Table:
    """A list whose entries carry their `index`."""

    rows: dict[int, Grown] = field(factory=dict)

    def settled(self) -> list[JSON]:
        """The entries in the order of their index."""
        return [_settled(self.rows[index]) for index in sorted(self.rows)]


Grown = None | bool | int | float | str | Text | Table | list["Grown"] | dict[str, "Grown"]


@define(eq=False)
class ChatFold:
    """Never raises, whatever the events hold; an error inside the stream settles it for good."""

    usage: Usage | None = None
    _raw_usage: JSON = None
    _top: dict[str, JSON] = field(factory=dict)
    _choices: Table = field(factory=Table)
    _pieces: Pieces = field(factory=Pieces)
    _done: bool = False
    _failure: Throttled | Failed | None = None

    @property
    def finished(self) -> bool:
        """[DONE] was seen, or an error that ends it."""
        return self._done or self._failure is not None

    def feed(self, event: Event) -> Throttled | Failed | None:
        """Take one event in; an error inside the stream comes back as the outcome it means."""
        if self.finished:
            return self._failure
        text = event.data.strip()
        if text.startswith("[DONE]"):
            self._done = True
        else:
            self._failure = fold_in(event, self._take)
        return self._failure

    def fresh(self) -> list[Delta]:
        """The pieces of text that came since the last call; half a character waits for its other half."""
        return self._pieces.taken(last=self.finished)

    def end(self) -> Answer | Failed:
        """The whole answer, or why it is none. Call it after [DONE] or a clean end of the stream."""
        if isinstance(self._failure, Failed):
            return self._failure
        choices = self._choices.settled()
        reasons = [choice.get("finish_reason") for choice in choices if isinstance(choice, dict)]
        for choice in choices:
            if broken := broken_by(choice):
                return Failed(kind=Kind.SERVER, message=f"the upstream broke off: finish reason {broken!r}", status=200)
        if not self._done and not (reasons and all(reasons)):
            return Failed(kind=Kind.TRUNCATED, message="the stream ended without its end marker", status=200)
        body: dict[str, JSON] = {**self._top, "object": "chat.completion", "choices": choices}
        if self._raw_usage is not None:
            body["usage"] = self._raw_usage
        return answer_from(body) or Failed(kind=Kind.MALFORMED, message="the stream ended without content", status=200)

    def _take(self, document: JSON, text: str, name: str) -> Throttled | Failed | None:
        if complaint := find_error(document, named_error=name == "error"):
            return refusal(200, complaint, text.encode("utf-8", "replace"), {}, wall_now=None)
        if isinstance(document, dict):
            self._merge(document)
        return None

    def _merge(self, document: dict[str, JSON]) -> None:
        # An empty id or model (Azure's first chunk has both) is not the answer's.
        self._top |= {key: value for key, value in document.items() if value and key not in _NOT_IN_BODY}
        groq = document.get("x_groq")
        usage = document.get("usage") or (groq.get("usage") if isinstance(groq, dict) else None)
        if counted := usage_from(usage):
            self.usage, self._raw_usage = counted, usage  # running totals: the last one wins, never the sum
        choices = document.get("choices")
        for position, choice in enumerate(choices if isinstance(choices, list) else []):
            if isinstance(choice, dict):
                whole: dict[str, JSON] = {
                    ("message" if key == "delta" else key): value for key, value in choice.items()
                }
                index = choice.get("index")
                row = index if isinstance(index, int) else position
                self._note(row, whole.get("message"))
                self._choices.rows[row] = _grown(self._choices.rows.get(row, {"index": row}), whole)

    def _note(self, row: int, message: JSON) -> None:
        """Keep its texts as pieces, under the names in which `answer_from` looks for them."""
        if isinstance(message, dict):
            reasoning = _raw_text(message.get("reasoning_content")) or _raw_text(message.get("reasoning"))
            self._pieces.add(row, reasoning, reasoning=True)
            self._pieces.add(row, _raw_text(message.get("content")) or _raw_text(message.get("refusal")))


def usage_from(document: JSON) -> Usage | None:
    """The token counts of a `usage` object, None if it is none."""
    return usage_of(document, read=("prompt_tokens",), written=("completion_tokens",))


def answer_from(body: dict[str, JSON]) -> Answer | None:
    """The answer in a chat.completion body; None if it has neither content nor a finish reason."""
    choices = body.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(first, dict):
        return None
    given = first.get("message")
    message = given if isinstance(given, dict) else {}
    text = text_of(message.get("content")) or text_of(message.get("refusal"))
    finish_reason = first.get("finish_reason")
    if not text and not finish_reason and not message.get("tool_calls"):
        return None
    model = body.get("model")
    return Answer(
        text=text,
        reasoning=text_of(message.get("reasoning_content")) or text_of(message.get("reasoning")),
        finish_reason=str(finish_reason) if finish_reason else None,
        model=model if isinstance(model, str) else None,
        usage=usage_from(body.get("usage")),
        body=body,
    )


def broken_by(choice: JSON) -> str | None:
    """The finish reason by which an upstream owns up to its own failure (OpenRouter has a native one beside)."""
    if isinstance(choice, dict):
        for key in ("finish_reason", "native_finish_reason"):
            reason = choice.get(key)
            if isinstance(reason, str) and reason in BROKEN:
                return reason
    return None


def text_of(content: JSON) -> str:
    """The text of a content field: a string, or the text parts of a list (Mistral sends thinking parts beside)."""
    return mended(_raw_text(content))


def _raw_text(content: JSON) -> str:
    if isinstance(content, str):
        return content
    parts = [part.get("text") for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    return "".join(part for part in parts if isinstance(part, str))


def _grown(old: Grown, new: JSON, name: str = "") -> Grown:
    """`old` with `new` merged into it; takes `old` over. The depth of `new` is bounded by bodies.DEPTH_LIMIT."""
    match new:
        case str() if name in APPENDED:
            text = old if isinstance(old, Text) else Text()
            text.pieces.append(new)
            return text
        case dict():
            merged = old if isinstance(old, dict) else {}
            for key, value in new.items():
                merged[key] = _grown(merged.get(key), value, key)
            return merged
        case list():
            for item in new:
                old = _with_item(old, item)
            return [] if old is None else old
        case _:
            return old if new in (None, "") and old is not None else new


def _with_item(old: Grown, item: JSON) -> list[Grown] | Table:
    index = item.get("index") if isinstance(item, dict) else None
    if isinstance(item, dict) and isinstance(index, int) and not isinstance(old, list):
        table = old if isinstance(old, Table) else Table()
        entry: JSON = {key: value for key, value in item.items() if key != "index"}
        table.rows[index] = _grown(table.rows.get(index), entry)
        return table
    if isinstance(old, Table):
        old.rows[max(old.rows) + 1] = _grown(None, item)
        return old
    items = old if isinstance(old, list) else []
    items.append(_grown(None, item))
    return items


def _settled(value: Grown) -> JSON:
    """The finished JSON: pieces joined, tables as lists in the order of their index."""
    match value:
        case Text(pieces=pieces):
            return mended("".join(pieces))
        case Table():
            return value.settled()
        case dict():
            return {key: _settled(item) for key, item in value.items()}
        case list():
            return [_settled(item) for item in value]
        case _:
            return value
