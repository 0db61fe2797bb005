"""Bodies of any kind, read without trust: JSON that may be none, pages that may be HTML, text with half characters."""

from __future__ import annotations

import html
import json
import re

from policies.contract import JSON

EXCERPT = 300  # characters of an upstream's own words that are kept
DEPTH_LIMIT = 100  # levels of JSON; deeper ones are an attack on our recursion, not an answer

# Some write control characters into JSON as they are, line separators among them: they mean the same as escaped.
_DECODER = json.JSONDecoder(strict=False)
_TAGS = re.compile(r"<(script|style)\b.*?</\1\s*>|<!--.*?-->|<[^>]*>", re.IGNORECASE | re.DOTALL)


def parsed(text: str | bytes) -> JSON:
    """The JSON document in `text`; None for anything that is none (or is nested without end)."""
    try:
        document: JSON = _DECODER.decode(text) if isinstance(text, str) else json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
    openings = text.count("[") + text.count("{") if isinstance(text, str) else text.count(b"[") + text.count(b"{")
    return document if openings < DEPTH_LIMIT or _is_shallow(document) else None


def documents(text: str) -> list[JSON] | None:
    """The JSON documents that stand one behind the other in `text`; None if anything of it is none."""
    whole = parsed(text)
    if whole is not None or text.strip() == "null":
        return [whole]
    found: list[JSON] = []
    position = 0
    while position < len(text):
        try:
            document, position = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            return None
        if not _is_shallow(document):
            return None
        found.append(document)
        while position < len(text) and text[position] in " \t\r\n,":
            position += 1
    return found or None


def excerpt(body: bytes) -> str:
    """A short line out of any body: without tags, scripts and white space (an HTML page is 5 kB of nothing)."""
    text = body[:65_536].decode("utf-8", "replace")
    if "<" in text:
        text = html.unescape(_TAGS.sub(" ", text))
    return shortened(text)


def shortened(text: str) -> str:
    """One line of at most EXCERPT characters, always encodable."""
    text = " ".join(mended(text).split())
    return text if len(text) <= EXCERPT else text[: EXCERPT - 1] + "…"


def mended(text: str) -> str:
    """Halves of surrogate pairs joined (they come in two deltas); an orphan half becomes U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def string(value: JSON) -> str:
    """A text; nothing for anything else."""
    return value if isinstance(value, str) else ""


def dicts(value: JSON) -> list[dict[str, JSON]]:
    """The objects in a list; nothing for anything else."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _is_shallow(document: JSON) -> bool:
    level: list[JSON] = [document]
    for _ in range(DEPTH_LIMIT):
        level = [child for node in level for child in _children(node) if isinstance(child, list | dict)]
        if not level:
            return True
    return False


def _children(node: JSON) -> list[JSON]:
    if isinstance(node, dict):
        return list(node.values())
    return node if isinstance(node, list) else []
