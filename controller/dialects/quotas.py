"""Which quota a refusal is about: its dimension and its period, from the names and words that providers use.

Seen: `GenerateRequestsPerMinutePerProjectPerModel`, "on tokens per min (TPM)", "40,000 input tokens per minute",
"call rate limit", "too many concurrent requests", `free-models-per-min`. Two different ones in the same text prove
neither.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from policies.contract import Hints

SECOND, MINUTE, HOUR, DAY = 1.0, 60.0, 3600.0, 86_400.0  # in seconds

_PER = r"[ _-]?per[ _-]?"
_DIMENSIONS = (
    ("concurrency", r"concurren|parallel requests?|simultaneous"),
    ("input_tokens", r"input[ _-]?tokens?|\bITP[SMHD]\b"),
    ("output_tokens", r"output[ _-]?tokens?|\bOTP[SMHD]\b"),
    ("tokens", rf"(?<!input)(?<!input[ _-])(?<!output)(?<!output[ _-])tokens?{_PER}|\bTP[SMHD]\b|token rate limit"),
    ("requests", rf"requests?{_PER}|\bRP[SMHD]\b|call rate limit|requests? rate limit|free-models-per"),
)
_PERIODS = (
    (SECOND, rf"{_PER}sec(?:ond)?|\b[IO]?[RT]PS\b"),
    (MINUTE, rf"{_PER}min(?:ute)?|\b[IO]?[RT]PM\b"),
    (HOUR, rf"{_PER}hour|\b[IO]?[RT]PH\b"),
    (DAY, rf"{_PER}day|daily|\b[IO]?[RT]PD\b"),
)
_DIMENSION_OF = tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in _DIMENSIONS)
_PERIOD_OF = tuple((seconds, re.compile(pattern, re.IGNORECASE)) for seconds, pattern in _PERIODS)
_OWN_WORDS = ("requests", "tokens")  # OpenAI's `type` of a refusal


def named_dimension(text: str, *, kind: str = "", hints: Mapping[str, Hints]) -> str | None:
    """The quota dimension; kind: the error's type. Without words, the one that the headers say is used up."""
    found = [name for name, pattern in _DIMENSION_OF if pattern.search(text)]
    if len(found) > 1 and found[0] == "concurrency":
        found = found[:1]  # such texts speak of requests, too
    if len(found) == 1 and found[0] not in _OWN_WORDS:
        return found[0]
    if kind in _OWN_WORDS:
        return kind
    if not found:
        found = [name for name, told in hints.items() if told.remaining == 0]
        if len(found) > 1 and "tokens" in found:
            found.remove("tokens")  # Anthropic repeats the tightest of the others under this name
    return found[0] if len(found) == 1 else None


def named_period(text: str, *, any_of: bool = False) -> float | None:
    """Seconds of the quota's window. any_of: several may be named, then the longest counts."""
    found = [seconds for seconds, pattern in _PERIOD_OF if pattern.search(text)]
    if any_of:
        return max(found, default=None)
    return found[0] if len(found) == 1 else None
