"""What a simulated upstream is like: parameters with units and ranges, read from a spec such as `steady?rate=200`.

A spec is the name of a file in simulations/profiles, then parameters in the form of a URL's query. A value is
JSON where it can be (numbers, true, [[0, 20], [120, 8]]), else text; `none` switches an optional parameter off.
`rate` (per second) and `limit` (per period) say the same thing, so giving one replaces the other.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from importlib import resources
from urllib.parse import parse_qsl

from attrs import fields

from policies.contract import JSON
from policies.words import did_you_mean
from simulations.knobs import Profile


def profile_names() -> list[str]:
    """The names that a spec may begin with."""
    files = resources.files("simulations").joinpath("profiles").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def load_profile(spec: str) -> Profile:
    """The profile that a spec names; raises ValueError in one line that says what would be possible."""
    name, _, query = spec.partition("?")
    names = profile_names()
    if name not in names:
        raise ValueError(f"unknown profile {name!r}{did_you_mean(name, names)}; there are: {', '.join(names)}")
    file = resources.files("simulations").joinpath("profiles", f"{name}.toml")
    base: dict[str, JSON] = tomllib.loads(file.read_text(encoding="utf-8"))
    return make_profile(name, base, _parse_query(query))


def make_profile(name: str, *layers: Mapping[str, JSON]) -> Profile:
    """A profile from layers of parameters, later ones over earlier ones; raises ValueError in one line."""
    values: dict[str, JSON] = {}
    for layer in layers:
        if "rate" in layer and "limit" in layer:
            raise ValueError("rate and limit say the same thing: give one of them")
        for given, replaced in (("rate", "limit"), ("limit", "rate")):
            if given in layer:
                values.pop(replaced, None)
        values.update(layer)
    known = [attribute.name for attribute in fields(Profile) if attribute.name != "name"]
    for key in values:
        if key not in known:
            raise ValueError(f"unknown parameter {key!r}{did_you_mean(key, known)}; there are: {', '.join(known)}")
    return Profile(name=name, **values)  # type: ignore[arg-type]  # the validators check every value


def _parse_query(query: str) -> dict[str, JSON]:
    values: dict[str, JSON] = {}
    for part in filter(None, query.split("&")):
        if "=" not in part:
            raise ValueError(f"write parameters as key=value, not {part!r}")
        [(key, text)] = parse_qsl(part, keep_blank_values=True)
        if key in values:
            raise ValueError(f"{key} is given twice")
        values[key] = _parse_value(key, text)
    return values


def _parse_value(key: str, text: str) -> JSON:
    # "none" as a word is a value of its own for retry_after: no hint.
    if text == "none" and key not in ("retry_after", "quota"):
        return None
    if key == "api_key":
        return text
    try:
        value: JSON = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value
