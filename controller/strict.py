"""Scalars of settings taken as they are written: a number is no text, and true is no number."""

from __future__ import annotations

from collections.abc import Callable

import cattrs

WORDS = {"bool": "yes or no", "float": "number", "int": "whole number", "str": "text"}


def strict() -> cattrs.Converter:
    """Scalars as they are: cattrs' defaults would take true for 1.0 and 3 for "3"."""
    converter = cattrs.Converter(forbid_extra_keys=True, detailed_validation=True)

    def only(*allowed: type) -> Callable[[object, type], object]:
        def hook(value: object, kind: type) -> object:
            if (isinstance(value, bool) and bool not in allowed) or not isinstance(value, allowed):
                raise ValueError(f"{value!r} is not a {WORDS.get(kind.__name__, kind.__name__)}")
            return kind(value)

        return hook

    for kind, allowed in ((bool, (bool,)), (int, (int,)), (float, (int, float)), (str, (str,))):
        converter.register_structure_hook(kind, only(*allowed))
    return converter
