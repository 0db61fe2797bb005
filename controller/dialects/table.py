"""The dialects by name, and which URL speaks which. A new provider is a row here, and a file if its format is new."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from controller.dialects.anthropic import Anthropic
from controller.dialects.contract import Dialect
from controller.dialects.gemini import GEMINI, VERTEX
from controller.dialects.openai_family import FAMILY
from controller.dialects.responses import AZURE_RESPONSES, RESPONSES
from policies.words import did_you_mean

DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect for dialect in (*FAMILY, RESPONSES, AZURE_RESPONSES, Anthropic(), GEMINI, VERTEX)
}

# What a path says, on any host first (gateways), then where one host speaks several; the first that fits counts.
PATHS = (
    ("", "/openai/deployments/", "azure"),
    ("openai.azure.com", "/responses/", "azure-responses"),
    ("services.ai.azure.com", "/responses/", "azure-responses"),
    ("", "/responses/", "responses"),
    ("", "/v1/messages/", "anthropic"),
    ("", "/anthropic/", "anthropic"),
    ("generativelanguage.googleapis.com", "/openai/", "gemini-openai"),
    ("generativelanguage.googleapis.com", "", "gemini"),
    ("-aiplatform.googleapis.com", "/endpoints/openapi/", "openai"),
    ("aiplatform.googleapis.com", "/endpoints/openapi/", "openai"),
    ("", "/v1beta/openai/", "gemini-openai"),
    ("", "/v1beta/", "gemini"),
)


def dialect_for(name: str | None, base_url: str) -> Dialect:
    """The dialect of that name; without one, by the path and host of the URL, else "openai". Raises ValueError."""
    if name is None:
        return DIALECTS[_guess(base_url)]
    if name in DIALECTS:
        return DIALECTS[name]
    near = did_you_mean(name.lower(), DIALECTS)
    raise ValueError(f"unknown dialect {name!r}{near}; there are: {', '.join(DIALECTS)}")


def key_variable(dialect: Dialect, base_url: str, environment: Mapping[str, str]) -> str | None:
    """The variable with the provider's key, if one is set and the URL is a place where such a key may go.

    A key must not go to a host that merely speaks the dialect.
    """
    if not own_host(dialect, base_url):
        return None
    return next((name for name in dialect.about.key_env if environment.get(name)), None)


def own_host(dialect: Dialect, base_url: str) -> bool:
    """The URL is of the provider itself, or of what runs anywhere."""
    host, hosts = urlsplit(base_url).hostname or "", dialect.about.hosts
    return not hosts or any(_is_below(host, own) for own in hosts)


def markdown() -> str:
    """The table of dialects in the README."""
    rows = [
        (one.name, one.about.path, one.about.auth, ", ".join(one.about.key_env), one.about.proof, one.about.delays,
         one.about.usage)
        for one in DIALECTS.values()
    ]  # fmt: skip
    head = ("dialect", "path", "key header", "key variable", "proof of completion", "delay hints", "usage")
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _guess(base_url: str) -> str:
    parts = urlsplit(base_url)
    host, path = parts.hostname or "", f"{parts.path}/"
    for known, fragment, name in PATHS:
        if (not known or _is_below(host, known)) and fragment in path:
            return name
    guesses = (one.name for one in DIALECTS.values() for own in one.about.hosts if _is_below(host, own))
    return next(guesses, "openai")


def _is_below(host: str, known: str) -> bool:
    return host == known or host.endswith("." + known) or (known.startswith("-") and host.endswith(known))
