"""Words for messages: about names that do not exist, and about what a stranger's code raised."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """' (did you mean "x"?)' for a near miss, else nothing."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f' (did you mean "{near[0]}"?)' if near else ""


def in_one_line(error: Exception) -> str:
    """Its kind and its words, without the line breaks that they may hold."""
    return " ".join(f"{type(error).__name__}: {error}".split())
