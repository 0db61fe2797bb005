"""How a provider is asked to go on after the beginning of an answer: with that text as the last assistant message.

A provider that was not told so in its own way starts a new turn instead, and the two texts glued together would look
like one answer. So a dialect without a row for it is never asked.
"""

from __future__ import annotations

from attrs import evolve, field, frozen

from controller.records import Prompt
from policies.contract import JSON

ECHO_LEAST = 16  # characters; a shorter repetition at a seam may be chance
# Answers that are more than one text, or whose form begins anew with each request: they can't be joined.
GRAMMARS = ("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar")
NOT_JOINED = frozenset(("tools", "functions", "logprobs", *GRAMMARS))


@frozen(kw_only=True)
class Prefix:
    """What a request needs so that its last assistant message is continued.

    message: keys of that message; request: keys of the body; path: what the URL ends in, in place of /v1.
    echoes: the answer repeats the prefix before it goes on.
    """

    message: dict[str, JSON] = field(factory=dict)
    request: dict[str, JSON] = field(factory=dict)
    path: str | None = None
    echoes: bool = False

    def continued(self, prompt: Prompt, text: str) -> Prompt | None:
        """The prompt that asks for the rest after `text`, None if its answers can't be joined."""
        request = prompt.request
        messages = request.get("messages")
        if not isinstance(messages, list) or not _is_one_text(request) or len(text) < ECHO_LEAST * self.echoes:
            return None
        given, begun = list(messages), text
        last = given[-1] if given else None
        if isinstance(last, dict) and last.get("role") == "assistant":  # the line itself began the answer
            own = last.get("content")
            if not isinstance(own, str) or last.get("tool_calls"):
                return None
            begun = text if self.echoes and text.startswith(own) else own + text
            given.pop()
        message: JSON = {"role": "assistant", "content": begun, **self.message}
        return evolve(prompt, request={**request, **self.request, "messages": [*given, message]})

    def base(self, base_url: str, request: dict[str, JSON]) -> str:
        """The base URL for this request: where prefixes live at another, there for those that carry one."""
        messages = request.get("messages")
        last = messages[-1] if isinstance(messages, list) and messages else None
        if self.path is None or not isinstance(last, dict) or last.get("prefix") is not True:
            return base_url
        return base_url.removesuffix("/v1").removesuffix(self.path) + self.path


def _is_one_text(request: dict[str, JSON]) -> bool:
    form = request.get("response_format")
    plain = form is None or (isinstance(form, dict) and form.get("type") == "text")
    return plain and request.get("n") in (None, 1) and not any(request.get(name) for name in NOT_JOINED)
