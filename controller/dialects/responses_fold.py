"""A stream of the Responses API, folded into the response that a plain request would have given.

https://platform.openai.com/docs/api-reference/responses-streaming. Exactly one terminal event is the proof of
completion: `response.completed` or `response.incomplete` (cut by a limit or a filter: an answer with a finish reason).
`response.failed`, `response.cancelled` and `error` are failures, judged by their code since the status was 200. The
terminal event repeats the whole response: its texts are the answer's; the deltas stand in where a gateway leaves them
out. Unknown events, keep-alives among them, are skipped.
"""

from __future__ import annotations

import json

from attrs import define, field

from controller.dialects.bodies import dicts, mended, string
from controller.dialects.complaints import complaint_of, typed_error
from controller.dialects.counting import usage_of
from controller.dialects.events import fold_in
from controller.dialects.pieces import Pieces
from controller.dialects.refusals import refusal
from controller.outcome import Answer, Delta, Failed, Kind, Throttled, Usage
from controller.sse import Event
from policies.contract import JSON

FINISH = {"max_output_tokens": "length", "max_tokens": "length"}  # why it is incomplete, in the words of chat
_SAID = ("response.output_text.delta", "response.refusal.delta")
_THOUGHT = ("response.reasoning_text.delta", "response.reasoning_summary_text.delta")
_TERMINAL = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")


@define(eq=False)
class ResponseFold:
    """Never raises, whatever the events hold; an error inside the stream settles it for good."""

    usage: Usage | None = None
    _response: dict[str, JSON] | None = None  # of the terminal event
    _pieces: Pieces = field(factory=Pieces)
    _said: list[str] = field(factory=list)
    _thought: list[str] = field(factory=list)
    _begun: bool = False
    _failure: Throttled | Failed | None = None

    @property
    def finished(self) -> bool:
        """A terminal event was seen, or an error that ends it."""
        return self._response is not None or self._failure is not None

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
        if self._response is None:
            kind = Kind.TRUNCATED if self._begun else Kind.MALFORMED
            return Failed(kind=kind, message="the stream ended without its terminal event", status=200)
        outcome = response_outcome(self._response)
        if isinstance(outcome, Answer):
            return outcome
        return Failed(kind=Kind.MALFORMED, message="the stream ended without content", status=200)

    def _take(self, document: JSON, text: str, name: str) -> Throttled | Failed | None:
        if self.finished:  # by the document before it in the same event
            return None
        kind = document.get("type") if isinstance(document, dict) else None
        if complaint := typed_error(document, name):
            return refusal(200, complaint, text.encode("utf-8", "replace"), {}, wall_now=None)
        if not isinstance(document, dict):
            return None
        self._begun |= isinstance(kind, str) and kind.startswith("response.")
        if kind in _SAID or kind in _THOUGHT:
            piece = string(document.get("delta"))
            self._pieces.add(0, piece, reasoning=kind in _THOUGHT)
            (self._said if kind in _SAID else self._thought).append(piece)
        response = document.get("response")
        if isinstance(response, dict) and response.get("usage"):
            self.usage = response_usage(response["usage"])
        if kind not in _TERMINAL:
            return None
        whole = {"status": str(kind).removeprefix("response.")} | (response if isinstance(response, dict) else {})
        return self._ended(whole)

    def _ended(self, response: dict[str, JSON]) -> Throttled | Failed | None:
        self._response = response
        said, told = _joined(response, "message"), mended("".join(self._said))
        if said != told and said.startswith(told):  # deltas were lost
            self._pieces.add(0, said[len(told) :])
        elif not said:
            content: JSON = [{"type": "output_text", "text": told, "annotations": []}]
            message: JSON = {"type": "message", "role": "assistant", "content": content}
            response["output"] = [*dicts(response.get("output")), message] if told else response.get("output")
        output, thought = dicts(response.get("output")), mended("".join(self._thought))
        if output and thought and not _joined(response, "reasoning"):
            item: JSON = {"type": "reasoning", "summary": [{"type": "summary_text", "text": thought}]}
            response["output"] = [item, *output]
        outcome = response_outcome(response)
        return outcome if isinstance(outcome, Throttled | Failed) else None


def response_outcome(response: dict[str, JSON]) -> Answer | Throttled | Failed | None:
    """What a response means by its status; None if it has neither content nor a reason for that."""
    status, error = str(response.get("status")), response.get("error")
    if status in ("failed", "cancelled") or (isinstance(error, dict) and error):
        complaint = complaint_of(error if isinstance(error, dict) else {"message": f"the response is {status}"})
        body = json.dumps(response).encode("ascii")
        return refusal(200, complaint, body, {}, wall_now=None)
    output = dicts(response.get("output")) if status not in ("queued", "in_progress") else []
    reason = _reason(response, status, output)
    if not output and reason in (None, "stop"):
        return None
    model = response.get("model")
    return Answer(
        text=_joined(response, "message"),
        reasoning=_joined(response, "reasoning"),
        finish_reason=reason,
        model=model if isinstance(model, str) else None,
        usage=response_usage(response.get("usage")),
        body=response,
    )


def _reason(response: dict[str, JSON], status: str, output: list[dict[str, JSON]]) -> str | None:
    if status == "incomplete":
        details = response.get("incomplete_details")
        word = str(details.get("reason") if isinstance(details, dict) else "") or "incomplete"
        return FINISH.get(word, word)
    if any(item.get("type") == "function_call" for item in output):
        return "tool_calls"
    return "stop" if status == "completed" else None


def response_usage(usage: JSON) -> Usage | None:
    """Input and output tokens as they are counted; the details under their own names."""
    return usage_of(usage, read=("input_tokens",), written=("output_tokens",))


def _joined(response: dict[str, JSON], kind: str) -> str:
    """The text of all items of a kind: of messages what is said or refused, of reasoning its text or summary."""
    items = [item for item in dicts(response.get("output")) if item.get("type") == kind]
    parts = [part for item in items for part in dicts(item.get("content")) or dicts(item.get("summary"))]
    texts = [part.get("text") or part.get("refusal") for part in parts]
    return mended("".join(text for text in texts if isinstance(text, str)))
