"""What policies share in writing: an option with its unit, help and range, and values out of a snapshot."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, validators

from policies.contract import JSON


def number(default: float, *, low: float, high: float, unit: str, text: str) -> float:
    """An option of a policy; both ends of the range are allowed."""
    checks = [validators.ge(low), validators.le(high)]
    value: float = field(default=default, validator=checks, metadata={"unit": unit, "help": text})
    return value


def number_in(snapshot: Mapping[str, JSON], key: str) -> float:
    """A number of a snapshot; ValueError when there is none."""
    return as_number(snapshot.get(key), key)


def numbers_in(snapshot: Mapping[str, JSON], key: str) -> list[float]:
    """A list of numbers of a snapshot."""
    value = snapshot.get(key)
    if not isinstance(value, list):
        raise ValueError(f"no snapshot of this policy: {key} is {value!r}")
    return [as_number(each, key) for each in value]


def part_of(snapshot: Mapping[str, JSON], key: str) -> Mapping[str, JSON]:
    """A snapshot within a snapshot."""
    value = snapshot.get(key)
    if not isinstance(value, dict):
        raise ValueError(f"no snapshot of this policy: {key} is {value!r}")
    return value


def as_number(value: JSON, key: str) -> float:
    """The value, if it is a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"no snapshot of this policy: {key} is {value!r}")
    return float(value)
