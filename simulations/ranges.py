"""Ranges of a profile's parameters: attrs validators whose message names the parameter and what it may be."""

from __future__ import annotations

from itertools import pairwise
from typing import TypeVar

from attrs import Attribute, field, frozen

from simulations.steps import Steps

T = TypeVar("T")

LONGEST = 86_400.0  # seconds; a day is enough for every duration here
LARGEST = 1e9  # units; far above any provider's limit, and float sums are still exact to a thousandth


@frozen
class Within:
    """The range of a number, both ends included, as an attrs validator that names the parameter."""

    low: float
    high: float
    unit: str
    or_else: tuple[object, ...] = ()  # values beside the numbers
    whole: bool = False

    def __call__(self, _: object, attribute: Attribute[T], value: T) -> None:
        """Raise ValueError in one line unless the value is in range."""
        if value in self.or_else and not isinstance(value, bool):
            return
        numeric = isinstance(value, int if self.whole else int | float) and not isinstance(value, bool)
        if not numeric or not self.low <= value <= self.high:  # type: ignore[operator]  # numeric says it is a number
            raise ValueError(f"{attribute.name} must be {self}, not {value!r}")

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        words = ["none" if other is None else str(other) for other in self.or_else]
        return " or ".join([f"{kind} from {self.low:g} to {self.high:g} ({self.unit})", *words])


@frozen
class OneOf:
    """A closed set of words, as an attrs validator that names the parameter."""

    words: tuple[object, ...]

    def __call__(self, _: object, attribute: Attribute[T], value: T) -> None:
        """Raise ValueError in one line unless the value is one of the words."""
        if not any(value is word or (isinstance(word, str) and value == word) for word in self.words):
            raise ValueError(f"{attribute.name} must be {self}, not {value!r}")

    def __str__(self) -> str:
        return "one of " + ", ".join(str(word).lower() if isinstance(word, bool) else str(word) for word in self.words)


@frozen
class AnyOf:
    """Some of a closed set of words, as an attrs validator that names the parameter and the word it does not know."""

    words: tuple[str, ...]

    def __call__(self, _: object, attribute: Attribute[T], value: T) -> None:
        """Raise ValueError in one line unless all are words of the set."""
        for word in value if isinstance(value, tuple) else (value,):
            if word not in self.words:
                raise ValueError(f"{attribute.name} must be {self}, not {word!r}")

    def __str__(self) -> str:
        return "any of " + ", ".join(self.words)


def as_words(value: object) -> object:
    """A list of words, or words with commas between them, as a tuple; anything else as it is."""
    if value is None:
        return ()
    return tuple(value.split(",")) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


def as_spans(value: object) -> object:
    """[[from_seconds, until_seconds], ...] as pairs; ValueError in one line."""
    if value is None or isinstance(value, tuple):
        return value or ()
    spans = _pairs(value) if isinstance(value, list) else []
    if not spans or not all(start < until for start, until in spans):
        raise ValueError(f"outages must be [[from_seconds, until_seconds], ...], not {value!r}")
    return tuple(spans)


def about(unit: str, meaning: str) -> dict[str, str]:
    """A parameter's metadata."""
    return {"unit": unit, "help": meaning}


def maybe(low: float, high: float, unit: str, meaning: str) -> float | None:
    """A parameter that is a number, or none."""
    made: float | None = field(
        default=None, validator=Within(low, high, unit, or_else=(None,)), metadata=about(unit, meaning)
    )
    return made


def maybe_whole(low: int, high: int, unit: str, meaning: str) -> int | None:
    """A parameter that is a whole number, or none."""
    made: int | None = field(
        default=None, validator=Within(low, high, unit, or_else=(None,), whole=True), metadata=about(unit, meaning)
    )
    return made


def rate_steps(value: object) -> Steps | None:
    """The converter of `rate`."""
    return as_steps("rate", value)


def limit_steps(value: object) -> Steps | None:
    """The converter of `limit`."""
    return as_steps("limit", value)


def share_steps(value: object) -> Steps | None:
    """The converter of `refuse_share`."""
    return as_steps("refuse_share", value)


def as_steps(name: str, value: object) -> Steps | None:
    """A number or [[from_seconds, limit], ...] with ascending instants as Steps; ValueError in one line."""
    if value is None or isinstance(value, Steps):
        return value
    pairs = _pairs(value if isinstance(value, list) else [[0.0, value]])
    if not pairs or not all(earlier[0] < later[0] for earlier, later in pairwise(pairs)):
        rule = f"a number from 0 to {LARGEST:g} (requests) or [[from_seconds, number], ...] in order"
        raise ValueError(f"{name} must be {rule}, not {value!r}")
    return Steps(tuple(pairs))


def _pairs(entries: list[object]) -> list[tuple[float, float]]:
    """Empty if one of them is no pair of numbers in range."""
    pairs: list[tuple[float, float]] = []
    for entry in entries:
        if not isinstance(entry, list) or len(entry) != 2 or not all(map(_in_range, entry)):
            return []
        pairs.append((entry[0], entry[1]))
    return pairs


def _in_range(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LARGEST
