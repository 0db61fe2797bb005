"""Recall's memory as JSON and back: field by field, checked against its annotations."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import attrs

from policies.contract import JSON


def dump(value: object) -> JSON:
    """An attrs object as a mapping of what it holds."""
    kind: Any = type(value)
    if attrs.has(kind):
        return {field.name: dump(getattr(value, field.name)) for field in attrs.fields(kind)}
    if isinstance(value, Enum):
        return dump(value.value)
    if isinstance(value, list):
        return [dump(each) for each in value]
    assert value is None or isinstance(value, bool | int | float | str)
    return value


def load(kind: Any, kept: JSON) -> Any:  # a type as an argument: its values are whatever it says
    """What `dump` made, as a value of that type again; ValueError if it is none."""
    if isinstance(kind, UnionType):
        inner = next(each for each in get_args(kind) if each is not NoneType)
        return None if kept is None else load(inner, kept)
    if get_origin(kind) is list and isinstance(kept, list):
        return [load(get_args(kind)[0], each) for each in kept]
    if attrs.has(kind) and isinstance(kept, Mapping):
        return _load_object(kind, kept)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(kept)
    if kind is float and isinstance(kept, int | float) and not isinstance(kept, bool):
        return float(kept)
    if isinstance(kind, type) and kind in (int, bool, str) and type(kept) is kind:
        return kept
    raise ValueError(f"not a snapshot of recall: {kept!r} is no {getattr(kind, '__name__', kind)}")


def _load_object(kind: Any, kept: Mapping[str, JSON]) -> Any:
    types = get_type_hints(kind)
    if set(kept) != set(types):
        odd = sorted(set(kept) ^ set(types))
        raise ValueError(f"not a snapshot of recall: {', '.join(odd)} missing or unknown")
    return kind(**{name: load(types[name], value) for name, value in kept.items()})
