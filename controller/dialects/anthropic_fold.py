"""A stream of Anthropic's events, folded into the message that a plain request would have given.

https://docs.anthropic.com/en/api/messages-streaming. Proof of completion: `message_stop`; or, where a gateway leaves
it out, a stop_reason *and* a clean end of the stream, since the text is whole then. Events are known by the `type` in
their data, with or without an `event:` line; unknown ones are skipped, as the documentation asks. Usage comes in two
parts and as running totals: the last value of each field wins, nothing is summed.
"""

from __future__ import annotations

from attrs import define, field

from controller.dialects.bodies import dicts, mended, parsed, string
from controller.dialects.complaints import typed_error
from controller.dialects.counting import usage_of
from controller.dialects.events import fold_in
from controller.dialects.pieces import Pieces
from controller.dialects.refusals import refusal
from controller.outcome import Answer, Delta, Failed, Kind, Throttled, Usage
from controller.sse import Event
from policies.contract import JSON

# What the growing field of a block is called, by the type of its delta.
GROWING = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
FINISH = {  # in the words of OpenAI, which results use for all; others stay as they are
    "end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "model_context_window_exceeded": "length",
    "tool_use": "tool_calls", "refusal": "content_filter",
}  # fmt: skip
_INPUT = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


@define(eq=False)
class _Block:
    """A block of content that still grows: its start, and the pieces of each of its texts."""

    start: dict[str, JSON]
    pieces: dict[str, list[str]] = field(factory=dict)
    citations: list[JSON] = field(factory=list)

    def settled(self) -> JSON:
        """The block as a plain answer has it."""
        block = dict(self.start)
        for name, pieces in self.pieces.items():
            begun = block.get(name)
            block[name] = mended((begun if isinstance(begun, str) else "") + "".join(pieces))
        if "partial_json" in block:
            text = block.pop("partial_json")
            block["input"] = parsed(text) if isinstance(text, str) and text.strip() else {}
        if self.citations:
            block["citations"] = self.citations
        return block


@define(eq=False)
class MessageFold:
    """Never raises, whatever the events hold; an error inside the stream settles it for good."""

    usage: Usage | None = None
    _message: dict[str, JSON] = field(factory=dict)
    _counts: dict[str, JSON] = field(factory=dict)
    _blocks: dict[int, _Block] = field(factory=dict)
    _pieces: Pieces = field(factory=Pieces)
    _stopped: bool = False
    _failure: Throttled | Failed | None = None

    @property
    def finished(self) -> bool:
        """message_stop was seen, or an error that ends it."""
        return self._stopped or self._failure is not None

    def feed(self, event: Event) -> Throttled | Failed | None:
        """Take one event in; an error inside the stream comes back as the outcome it means."""
        if not self.finished:
            self._failure = fold_in(event, self._take)
        return self._failure

    def fresh(self) -> list[Delta]:
        """The pieces of text that came since the last call; half a character waits for its other half."""
        return self._pieces.taken(last=self.finished)

    def end(self) -> Answer | Failed:
        """The whole answer, or why it is none."""
        if isinstance(self._failure, Failed):
            return self._failure
        if not self._stopped and not self._message.get("stop_reason"):
            return Failed(kind=Kind.TRUNCATED, message="the stream ended without its end marker", status=200)
        content: JSON = [self._blocks[index].settled() for index in sorted(self._blocks)]
        body = {"type": "message", **self._message, "content": content}
        if self._counts:
            body["usage"] = self._counts
        return message_answer(body) or Failed(
            kind=Kind.MALFORMED, message="the stream ended without content", status=200
        )

    def _take(self, document: JSON, text: str, name: str) -> Throttled | Failed | None:
        kind = document.get("type") if isinstance(document, dict) else None
        if complaint := typed_error(document, name):
            return refusal(200, complaint, text.encode("utf-8", "replace"), {}, wall_now=None)
        if isinstance(document, dict):
            self._event(str(kind), document)
        return None

    def _event(self, kind: str, document: dict[str, JSON]) -> None:
        index = document.get("index")
        row = index if isinstance(index, int) else len(self._blocks)
        match kind, document.get("message"), document.get("content_block"), document.get("delta"):
            case "message_start", dict(message), _, _:
                self._message |= {key: value for key, value in message.items() if key not in ("content", "usage")}
                self._count(message.get("usage"))
                for position, block in enumerate(dicts(message.get("content"))):
                    self._begin(position, block)
            case "content_block_start", _, dict(block), _:
                self._begin(row, block)
            case "content_block_delta", _, _, dict(delta):
                self._grow(self._blocks.setdefault(row, _Block({})), delta)
            case "message_delta", _, _, delta:
                if isinstance(delta, dict):
                    self._message |= {key: value for key, value in delta.items() if value is not None}
                self._count(document.get("usage"))
            case "message_stop", _, _, _:
                self._stopped = True

    def _begin(self, row: int, block: dict[str, JSON]) -> None:
        self._blocks[row] = _Block(block)
        self._pieces.add(0, string(block.get("text")))
        self._pieces.add(0, string(block.get("thinking")), reasoning=True)

    def _grow(self, block: _Block, delta: dict[str, JSON]) -> None:
        kind = str(delta.get("type"))
        if kind == "citations_delta":
            block.citations.append(delta.get("citation"))
            return
        name = "partial_json" if kind == "input_json_delta" else GROWING.get(kind, "")
        piece = delta.get(name)
        if not name or not isinstance(piece, str):
            return
        block.start.setdefault("type", {"partial_json": "tool_use", "signature": "thinking"}.get(name, name))
        block.pieces.setdefault(name, []).append(piece)
        if name in ("text", "thinking"):
            self._pieces.add(0, piece, reasoning=name == "thinking")

    def _count(self, usage: JSON) -> None:
        if isinstance(usage, dict):
            self._counts |= {key: value for key, value in usage.items() if value is not None}
            self.usage = message_usage(self._counts)


def message_usage(usage: JSON) -> Usage | None:
    """Input with what was written to and read from the cache: Anthropic counts them apart."""
    return usage_of(usage, read=_INPUT, written=("output_tokens",))


def message_answer(body: dict[str, JSON]) -> Answer | None:
    """The answer in a message; None if it has neither content nor a stop reason."""
    blocks, reason, model = dicts(body.get("content")), body.get("stop_reason"), body.get("model")
    if not blocks and not reason:
        return None
    return Answer(
        text=_joined(blocks, "text"),
        reasoning=_joined(blocks, "thinking"),
        finish_reason=FINISH.get(str(reason), str(reason)) if reason else None,
        model=model if isinstance(model, str) else None,
        usage=message_usage(body.get("usage")),
        body=body,
    )


def _joined(blocks: list[dict[str, JSON]], name: str) -> str:
    texts = [block.get(name) for block in blocks if block.get("type") == name]
    return mended("".join(text for text in texts if isinstance(text, str)))
