"""An answer in several parts: what broke off, what continued it, and the whole they make.

Nothing here decides whether to go on; the worker does. A part is the text of one attempt without what it repeated of
the text before it: some providers begin a continuation with its prefix.
"""

from __future__ import annotations

from attrs import define, evolve, frozen

from controller.dialects.prefix import ECHO_LEAST
from controller.outcome import Answer, Delta, Part, Usage
from policies.contract import JSON


@frozen
class Whole:
    """The parts of one answer so far, in order; every one of them has text. text: of all of them."""

    parts: tuple[Part, ...] = ()
    text: str = ""

    def rest_of(self, text: str) -> str:
        """What a text adds to the parts: all but their repetition at its beginning."""
        echoed = len(self.text) >= ECHO_LEAST and text.startswith(self.text)
        return text[len(self.text) :] if echoed else text

    def plus(self, part: Part) -> Whole:
        """With what an attempt left behind; the same if that is nothing new, or an echo that broke off."""
        rest = self.rest_of(part.text)
        if not rest or (len(self.text) >= ECHO_LEAST and self.text.startswith(rest)):
            return self
        return Whole((*self.parts, evolve(part, text=rest)), self.text + rest)

    @property
    def seams(self) -> tuple[int, ...]:
        """Where in the text each continuation begins, in characters."""
        ends, at = [], 0
        for part in self.parts:
            at += len(part.text)
            ends.append(at)
        return tuple(ends)

    def usage(self, last: Usage | None) -> Usage | None:
        """The sum over all parts and the last attempt, of what the upstream told."""
        total: Usage | None = None
        for usage in [*(part.usage for part in self.parts), last]:
            total = _sum(total, usage)
        return total

    def answer(self, last: Answer) -> Answer:
        """The whole answer whose end is `last`."""
        if not self.parts:
            return last
        text = self.text + self.rest_of(last.text)
        reasoning = "".join(part.reasoning for part in self.parts) + last.reasoning
        usage = self.usage(last.usage)
        body = _joined(last, text, reasoning, usage) | {"seams": list(self.seams)}
        return evolve(last, text=text, reasoning=reasoning, usage=usage, body=body)


@define(eq=False)
class Echo:
    """Takes an echo of `prefix` out of the deltas of a continuation: holds them back only while they repeat it."""

    prefix: str
    _held: str = ""
    _over: bool = False

    def __attrs_post_init__(self) -> None:
        self._over = len(self.prefix) < ECHO_LEAST

    def without(self, deltas: list[Delta]) -> list[Delta]:
        """The deltas that are new text, in order."""
        if self._over:
            return deltas
        new = []
        for delta in deltas:
            if self._over or delta.reasoning or delta.index != 0:
                new.append(delta)
                continue
            self._held += delta.text
            if self._held.startswith(self.prefix):
                self._held, self._over = self._held[len(self.prefix) :], True
            elif not self.prefix.startswith(self._held):
                self._over = True
            if self._over:
                new += self.rest()
        return new

    def rest(self) -> list[Delta]:
        """What is still held back; it was no echo if the answer is whole."""
        held, self._held = self._held, ""
        return [Delta(0, held)] if held else []


def _joined(last: Answer, text: str, reasoning: str, usage: Usage | None) -> dict[str, JSON]:
    """The last body with these in place of its own; of a format without choices only the text is replaced."""
    body = last.body
    choices = body.get("choices")
    if choices is None:
        found = _replaced(body, last.text, text) if last.text else body
        return found if isinstance(found, dict) else body
    first = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(first, dict):
        return body
    given = first.get("message")
    message: dict[str, JSON] = {**(given if isinstance(given, dict) else {}), "content": text}
    if reasoning:
        message["reasoning" if "reasoning" in message else "reasoning_content"] = reasoning
    joined: dict[str, JSON] = {**body, "choices": [{**first, "message": message}]}
    if usage is not None:
        counts = {"prompt_tokens": usage.input_tokens, "completion_tokens": usage.output_tokens}
        joined["usage"] = {**counts, **usage.details}
    return joined


def _replaced(value: JSON, old: str, new: str) -> JSON:
    """With the text that is `old` as `new`, wherever a format keeps it."""
    if isinstance(value, dict):
        return {name: _replaced(item, old, new) for name, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, old, new) for item in value]
    return new if value == old else value


def _sum(one: Usage | None, other: Usage | None) -> Usage | None:
    if one is None or other is None:
        return one or other
    details = _added(one.details, other.details)
    return Usage(
        input_tokens=_plus(one.input_tokens, other.input_tokens),
        output_tokens=_plus(one.output_tokens, other.output_tokens),
        details=details if isinstance(details, dict) else {},
    )


def _plus(one: int | None, other: int | None) -> int | None:
    return (one or 0) + (other or 0) if one is not None or other is not None else None


def _added(one: JSON, other: JSON) -> JSON:
    """Counts under the same name added up; of what is no count the later one."""
    if isinstance(one, dict) and isinstance(other, dict):
        names = [*one, *(name for name in other if name not in one)]
        return {name: _added(one.get(name), other.get(name)) for name in names}
    if isinstance(one, bool) or isinstance(other, bool):
        return one if other is None else other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one + other
    return one if other is None else other
