"""What other packages bring: a thing behind a name, by entry point or as "module:thing"."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points

from policies.words import in_one_line


def names_in(group: str) -> set[str]:
    """All that are offered under an entry point group."""
    return {point.name for point in entry_points(group=group)}


def load(group: str, name: str, kind: str) -> object | None:
    """What is behind a name; None if nothing is. ValueError, one line that names the kind, for what can't be had."""
    offered = {point.value: point for point in entry_points(group=group) if point.name == name}
    if len(offered) > 1:
        raise ValueError(f"{kind} {name!r} is offered more than once; say which: {', '.join(sorted(offered))}")
    for point in offered.values():
        return _imported(point.module, point.attr, name, kind)
    module, colon, attribute = name.partition(":")
    return _imported(module, attribute, name, kind) if colon else None


def _imported(module: str, attribute: str, name: str, kind: str) -> object:
    try:
        found: object = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:  # a stranger's module runs here, and may fail in any way
        hint = "; is its folder on PYTHONPATH?" if isinstance(error, ModuleNotFoundError) else ""
        raise ValueError(f"{kind} {name!r} can't be imported: {in_one_line(error)}{hint}") from error
    return found
