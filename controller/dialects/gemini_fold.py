"""A stream of GenerateContentResponse chunks, folded into the one that a plain request would have given.

https://ai.google.dev/api/generate-content#method:-models.streamgeneratecontent. There is no end marker. Proof of
completion: a finishReason on every candidate that was asked for, with the token counts in that chunk or a later one; or
a finishReason on every candidate and a clean end of the stream. A prompt that was blocked has no candidates but a
promptFeedback with its reason: that is the prompt's failure. No text at all is fine if there is a finishReason: all
tokens may have gone into thoughts (https://github.com/stanford-crfm/helm/pull/3804). usageMetadata holds totals so far:
the last value of each field wins.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define, field

from controller.dialects.bodies import dicts, mended, string
from controller.dialects.complaints import find_error
from controller.dialects.counting import usage_of
from controller.dialects.events import fold_in
from controller.dialects.pieces import Pieces
from controller.dialects.refusals import refusal
from controller.outcome import Answer, Delta, Failed, Kind, Throttled, Usage
from controller.sse import Event
from policies.contract import JSON

FINISH = {"STOP": "stop", "MAX_TOKENS": "length"} | dict.fromkeys(
    ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY", "MODEL_ARMOR"),
    "content_filter",
)  # in the words of OpenAI, which results use for all; others stay as they are
_INPUT = ("promptTokenCount",)
_OUTPUT = ("candidatesTokenCount", "thoughtsTokenCount")


@define(eq=False)
class _Candidate:
    """One candidate: its parts so far, and the last value of everything else."""

    rest: dict[str, JSON] = field(factory=dict)
    parts: list[dict[str, JSON]] = field(factory=list)
    texts: list[list[str]] = field(factory=list)  # the pieces of each part's text; none for other parts

    def add(self, part: dict[str, JSON]) -> None:
        """Join a text to the part before it where a plain answer would have one part."""
        text = part.get("text")
        alike = part.keys() <= {"text", "thought", "thoughtSignature"} and bool(self.parts)
        before = self.parts[-1] if self.parts else {}
        if isinstance(text, str):
            if alike and self.texts[-1] and bool(part.get("thought")) == bool(before.get("thought")):
                self.texts[-1].append(text)
                before |= {key: value for key, value in part.items() if key != "text"}
                return
            self.texts.append([text])
        else:
            self.texts.append([])
        self.parts.append(dict(part))

    def settled(self, index: int) -> JSON:
        """The candidate as a plain answer has it."""
        parts: list[JSON] = [
            {**part, "text": mended("".join(pieces))} if pieces else part
            for part, pieces in zip(self.parts, self.texts, strict=True)
        ]
        content = self.rest.get("content")
        whole: dict[str, JSON] = {"role": "model", **(content if isinstance(content, dict) else {})}
        if parts:
            whole["parts"] = parts
        return {"index": index, **self.rest, "content": whole}


@define(eq=False)
class CandidatesFold:
    """Never raises, whatever the events hold; an error inside the stream settles it for good."""

    expected: int | None = None  # candidates that must come; None: not known before the end
    usage: Usage | None = None
    _counted: bool = False  # since the last finishReason
    _counts: dict[str, JSON] = field(factory=dict)
    _top: dict[str, JSON] = field(factory=dict)
    _candidates: dict[int, _Candidate] = field(factory=dict)
    _pieces: Pieces = field(factory=Pieces)
    _failure: Throttled | Failed | None = None

    @property
    def finished(self) -> bool:
        """All candidates have finished and were counted, the prompt was blocked, or an error has ended it."""
        if self._failure is not None or (not self._candidates and _blocked(self._top)):
            return True
        reasons = [candidate.rest.get("finishReason") for candidate in self._candidates.values()]
        return self._counted and len(reasons) == self.expected and all(reasons)

    @property
    def begun(self) -> bool:
        """Something of a response was there."""
        return bool(self._candidates or self._top or self._failure)

    def feed(self, event: Event) -> Throttled | Failed | None:
        """Take one event in; an error inside the stream comes back as the outcome it means."""
        if not self.finished:
            self._failure = fold_in(event, self._take)
        return self._failure

    def fresh(self) -> list[Delta]:
        """The pieces of text that came since the last call; half a character waits for its other half."""
        return self._pieces.taken(last=self.finished)

    def end(self) -> Answer | Failed:
        """The whole answer, or why it is none. Call it after a clean end of the stream only."""
        if isinstance(self._failure, Failed):
            return self._failure
        reasons = [candidate.rest.get("finishReason") for candidate in self._candidates.values()]
        unfinished = not reasons or not all(reasons)
        if unfinished and (reason := _blocked(self._top)):
            words = f"the prompt was blocked: {reason}"
            return Failed(kind=Kind.PROMPT, message=words, status=200, code=reason, body=self._top)
        if unfinished:
            kind = Kind.TRUNCATED if self.begun else Kind.MALFORMED
            return Failed(kind=kind, message="the stream ended without a finishReason", status=200)
        settled: list[JSON] = [self._candidates[index].settled(index) for index in sorted(self._candidates)]
        return response_answer({"candidates": settled, **self._top})

    def _take(self, document: JSON, text: str, name: str) -> Throttled | Failed | None:
        if isinstance(document, list):  # the whole answer as one array: a request without alt=sse
            failures = (self._take(each, text, name) for each in document)
            return next((failure for failure in failures if failure is not None), None)
        if not isinstance(document, dict):
            return None
        if document.get("error") or name == "error":
            complaint = find_error(document, named_error=name == "error")
            if complaint is not None:
                return refusal(200, complaint, text.encode("utf-8", "replace"), {}, wall_now=None)
        self._top |= {
            key: value
            for key, value in document.items()
            if key not in ("candidates", "usageMetadata", "error") and value not in (None, "", {})
        }
        usage = document.get("usageMetadata")
        if isinstance(usage, dict):
            self._counts |= {key: value for key, value in usage.items() if value is not None}
            self._top["usageMetadata"] = self._counts
            self.usage = _usage(self._counts)
        candidates = dicts(document.get("candidates"))
        for position, given in enumerate(candidates):
            self._candidate(given, position)
        self._counted &= not any(given.get("finishReason") for given in candidates)
        self._counted |= isinstance(usage, dict) and bool(usage.keys() & {*_INPUT, *_OUTPUT})
        return None

    def _candidate(self, given: dict[str, JSON], position: int) -> None:
        number = given.get("index")
        index = number if isinstance(number, int) else position
        candidate = self._candidates.setdefault(index, _Candidate())
        content = given.get("content")
        for key, value in given.items():
            if key != "content" and value not in (None, "", [], {}):
                candidate.rest[key] = value
        if isinstance(content, dict):
            candidate.rest["content"] = {key: value for key, value in content.items() if key != "parts"}
            for part in dicts(content.get("parts")):
                candidate.add(part)
                self._pieces.add(index, string(part.get("text")), reasoning=bool(part.get("thought")))


def response_answer(body: dict[str, JSON]) -> Answer:
    """The answer in a whole response, which has a candidate."""
    first = next(iter(dicts(body.get("candidates"))), {})
    content = first.get("content")
    parts = dicts(content.get("parts")) if isinstance(content, dict) else []
    reason, model = str(first.get("finishReason")), body.get("modelVersion")
    called = reason == "STOP" and any("functionCall" in part for part in parts)
    return Answer(
        text=_joined(part for part in parts if not part.get("thought")),
        reasoning=_joined(part for part in parts if part.get("thought")),
        finish_reason="tool_calls" if called else FINISH.get(reason, reason),
        model=model if isinstance(model, str) else None,
        usage=_usage(body.get("usageMetadata")),
        body=body,
    )


def _usage(counts: JSON) -> Usage | None:
    """Output is what is charged as such: candidates and thoughts. Early chunks at Vertex AI count nothing yet."""
    if not isinstance(counts, dict) or not counts.keys() & {*_INPUT, *_OUTPUT}:
        return None
    return usage_of(counts, read=_INPUT, written=_OUTPUT)


def _blocked(top: dict[str, JSON]) -> str | None:
    feedback = top.get("promptFeedback")
    reason = feedback.get("blockReason") if isinstance(feedback, dict) else None
    return str(reason) if reason else None


def _joined(parts: Iterable[dict[str, JSON]]) -> str:
    texts = [part.get("text") for part in parts]
    return mended("".join(text for text in texts if isinstance(text, str)))
