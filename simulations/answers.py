"""What a simulated upstream answers, before any dialect has put it into its own words."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import zip_longest
from random import Random

from attrs import frozen

from policies.contract import JSON
from simulations.asked import Asked, count_tokens

CREATED = 1_790_000_000  # Unix seconds; fixed, so that runs can be compared byte by byte

# Scripts of several widths in UTF-8, letters that combine, an emoji of several code points, and U+2028, which is a
# line end to str.splitlines but not to Server-Sent Events.
WORDS = (
    *("tide", "gate", "water", "level", "pace", "stream", "answer", "prompt", "steady", "river", "harbour", "lock"),
    *("Schleuse", "Fluß", "über", "größer", "naïve", "e\u0301tang", "μέτρο", "ροή", "вода", "прилив"),
    *("水位", "潮門", "流れ", "수문", "بوابة", "المد", "שער", "जल", "🌊", "👩\u200d🔬", "line\u2028end"),
)


@frozen(kw_only=True)
class Choice:
    """One completed choice in the pieces that a stream sends, and how it ended: "stop" or "length".

    A piece may be half of a surrogate pair, whose other half is the next one.
    """

    pieces: tuple[str, ...]
    finish_reason: str
    thoughts: tuple[str, ...] = ()  # reasoning that comes before the text

    @property
    def text(self) -> str:
        """All pieces together; halves of a pair that meet are one character."""
        return "".join(self.pieces).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")

    @property
    def output_tokens(self) -> int:
        """Of the text alone, as most dialects report it."""
        return count_tokens(self.text)

    @property
    def thought_tokens(self) -> int:
        """Of the reasoning alone."""
        return count_tokens("".join(self.thoughts))


@frozen(kw_only=True)
class Answer:
    """All that a dialect needs to word a whole answer."""

    asked: Asked
    choices: tuple[Choice, ...]
    number: int  # of the attempt
    seed: int = 0  # of embeddings

    @property
    def output_tokens(self) -> int:
        """Everything that was produced."""
        return sum(choice.output_tokens + choice.thought_tokens for choice in self.choices)

    @property
    def thought_tokens(self) -> int:
        """Of that, the reasoning."""
        return sum(choice.thought_tokens for choice in self.choices)

    @property
    def name(self) -> str:
        """An identity for `id` fields: the prompt and the attempt."""
        return f"{self.asked.digest}{self.number}"


@frozen(kw_only=True)
class Events:
    """A streamed answer by what its events carry, each event as bytes."""

    opening: tuple[bytes, ...]  # what comes before any text
    content: tuple[bytes, ...]
    closing: tuple[bytes, ...]  # finish, usage, terminator; the last one is the proof of completion


def write_choices(
    asked: Asked, seed: int, mean_words: int, thoughts: int = 0, words_per_piece: int = 1
) -> tuple[Choice, ...]:
    """The same seed and prompt give the same text for each choice, whatever the attempt and the dialect.

    thoughts: words of reasoning before each.
    """
    return tuple(
        _write(Random(f"{seed}/{asked.digest}/{i}"), asked, mean_words, thoughts, words_per_piece)
        for i in range(asked.choices)
    )


def in_turns(rows: Sequence[Sequence[bytes]]) -> tuple[bytes, ...]:
    """The first of each row, then the second of each: choices are streamed side by side."""
    return tuple(one for turn in zip_longest(*rows) for one in turn if one is not None)


def go_duration(seconds: float) -> str:
    """As Go prints a time.Duration, which is the form of x-ratelimit-reset-*: 12ms, 8.64s, 6m0s, 1h12m3.5s."""
    milliseconds = round(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds else "0s"
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    large = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{large}{rest / 1000:g}s"


def dump(value: JSON) -> bytes:
    """Compact JSON in UTF-8, every script as itself."""
    # A lone surrogate is no UTF-8; Python's escape for it happens to be JSON's.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def sse(value: JSON, event: str | None = None, end: bytes = b"\n") -> bytes:
    """One Server-Sent Event; its name only where a dialect gives names."""
    name = b"" if event is None else b"event: " + event.encode() + end
    return name + b"data: " + dump(value) + end + end


def _write(rng: Random, asked: Asked, mean_words: int, thoughts: int, words_per_piece: int) -> Choice:
    count = max(1, round(mean_words * rng.uniform(0.5, 1.5)))
    text, finish_reason, most = " ".join(rng.choices(WORDS, k=count)), "stop", asked.max_output_tokens
    if most is not None and count_tokens(text) > most:
        # Cut to the bytes that many tokens stand for; half a character at the end is dropped.
        text, finish_reason = text.encode()[: 4 * most].decode("utf-8", "ignore"), "length"
    thought = tuple(f"{word} " for word in rng.choices(WORDS, k=thoughts))
    pieces = re.findall(r"\S+\s*|\s+", text)
    if words_per_piece > 1:
        pieces = ["".join(pieces[i : i + words_per_piece]) for i in range(0, len(pieces), words_per_piece)]
    return Choice(pieces=tuple(pieces), finish_reason=finish_reason, thoughts=thought)
