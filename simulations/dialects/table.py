"""The dialects by path, and the wordings that an OpenAI-compatible upstream may have. A new dialect is one row here."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, unquote

from simulations.answers import go_duration
from simulations.dialects.anthropic import Anthropic
from simulations.dialects.contract import Dialect, Request
from simulations.dialects.gemini import Gemini
from simulations.dialects.google_errors import GoogleErrors
from simulations.dialects.openai import OpenAI
from simulations.dialects.openai_errors import OpenAIErrors, plain_seconds
from simulations.dialects.responses import Responses
from simulations.dialects.variants import SHAPES, Variant

DIALECTS: tuple[Dialect, ...] = (Gemini(), Anthropic(), Responses())  # the first that speaks for a path answers

RESETS = {"azure": plain_seconds}

# What answers under OpenAI's paths, and for whatever no other dialect knows.
COMPATIBLE: Mapping[str, Dialect] = {
    "openai": OpenAI("openai", OpenAIErrors()),
    "gemini": OpenAI("openai", GoogleErrors(listed=True)),
    **{name: OpenAI("openai", Variant(name), RESETS.get(name, go_duration)) for name in SHAPES},
}


def dialect_of(path: str, wording: str) -> Dialect:
    """Whose path it is."""
    return next((dialect for dialect in DIALECTS if dialect.speaks(path)), COMPATIBLE[wording])


def request_of(method: str, target: str, headers: Mapping[str, str], body: bytes) -> Request:
    """A request as it came. target: path and query as in the request line; headers: lower-case names."""
    path, _, query = target.partition("?")
    fields = dict(parse_qsl(query, keep_blank_values=True))
    path = unquote(path).rstrip("/")
    return Request(method=method, path=path, query=fields, headers=headers, body=body)
