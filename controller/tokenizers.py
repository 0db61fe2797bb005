"""Somebody else's count of a prompt's LLM tokens in place of ours: what it is asked, what it answers, how it is found.

A token estimator is a callable, `count(request, model) -> int`. request: the body as the prompt's line has it, in
OpenAI's form (`messages`, `input` or `prompt`, `tools`, ...), with the defaults of the settings; it must not be
changed. model: its name, "None" if there is none. The answer: the input tokens that the upstream will count, at least
one, with what it adds around messages and for images. It is asked once for each prompt, shortly before its turn, and
while it counts nothing else happens in the run: a millisecond is much.

What the upstream counts corrects it as it corrects our own estimate. Where it raises or answers something else, ours is
taken for that prompt, and the first such fault is said.

An entry point of the group "tidegate.token_estimators" names one in another package; "module:callable" needs none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from attrs import define

from controller.estimate import MOST, Content, Size, size_of
from policies.contract import JSON
from policies.plugins import load, names_in
from policies.words import did_you_mean, in_one_line

GROUP = "tidegate.token_estimators"


class TokenEstimator(Protocol):
    """See the top."""

    def __call__(self, request: dict[str, JSON], model: str) -> int:
        """Input tokens, at least one."""


@define(eq=False)
class Sizer:
    """Asks a token estimator, and ourselves where it fails. say: told of its first fault."""

    name: str
    count: TokenEstimator
    say: Callable[[str], None]
    _silent: bool = False

    def __call__(self, request: dict[str, JSON], model: str) -> Size:
        """The size of a prompt's request."""
        try:
            tokens = _sound(self.count(request, model))
        except Exception as error:  # a stranger's code: see the top
            self._say_once(in_one_line(error))
            return size_of(request)
        return Size(tokens=float(tokens), kind=Content.COUNTED)

    def _say_once(self, fault: str) -> None:
        if not self._silent:
            self._silent = True
            self.say(f"token estimator {self.name} failed, and our own estimate is used where it does: {fault}")


def _sound(answer: object) -> int:
    if isinstance(answer, bool) or not isinstance(answer, int):
        raise TypeError(f"it answered {answer!r} instead of a whole number")
    if not 0 < answer <= MOST:
        raise ValueError(f"it answered {answer}")
    return answer


def find(name: str) -> TokenEstimator:
    """The callable behind a name or "module:callable"; ValueError, one line, if there is none."""
    found = load(GROUP, name, "token estimator")
    if found is None:
        names = sorted(names_in(GROUP))
        there = f"there are: {', '.join(names)}" if names else "none is installed; module:callable names one"
        raise ValueError(f"unknown token estimator {name!r}{did_you_mean(name, names)}; {there}")
    if not callable(found):
        raise ValueError(f"token estimator {name!r} is not callable: see controller.tokenizers")
    return found
