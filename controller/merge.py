"""Settings merged from defaults < TOML < environment < flags, and checked; every fault names its place."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from typing import get_type_hints

import cattrs
from attrs import fields

from controller.settings import PREFIX, Settings, SettingsError, flag_of
from controller.strict import WORDS, strict
from policies.words import did_you_mean

Raw = Mapping[str, object]


def build(flags: Raw, environment: Mapping[str, str], toml: bytes | None = None, toml_name: str = "") -> Settings:
    """Merge and check; raises SettingsError naming the flag, variable or TOML key.

    flags: by field name, only those given. toml: the file's content, toml_name how to call it in a message.
    """
    merged: dict[str, object] = {}
    merged.update(_from_toml(toml, toml_name) if toml is not None else {})
    merged.update(_from_environment(environment))
    merged.update(flags)
    made = _structure(merged, "settings")
    for attribute in fields(Settings):
        _check(attribute.name, getattr(made, attribute.name), attribute.metadata)
    return made


def _from_toml(content: bytes, name: str) -> dict[str, object]:
    try:
        table = tomllib.loads(content.decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{name} is not TOML: {error}") from error
    known = [attribute.name for attribute in fields(Settings)]
    values = {}
    for key, value in table.items():
        plain = key.replace("-", "_")
        if plain not in known:
            raise SettingsError(f"{name}: unknown key {key!r}{did_you_mean(plain, known)}")
        if isinstance(value, str) and getattr(fields(Settings), plain).default == ():
            raise SettingsError(f"{name}: {key}: {value!r} is not a list; write {key} = [{value!r}]")
        values[plain] = tuple(value) if isinstance(value, list) else value
    _structure(values, name)  # here, so that a message can name the file
    return values


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    types = get_type_hints(Settings)
    values: dict[str, object] = {}
    for attribute in fields(Settings):
        variable = PREFIX + attribute.name.upper()
        if variable in environment:
            values[attribute.name] = _parse(variable, environment[variable], str(types[attribute.name]))
    return values


def _parse(name: str, text: str, kind: str) -> object:
    """A text as the type whose name is `kind`."""
    try:
        if "tuple" in kind:
            return tuple(text.splitlines())  # JSON may hold blanks
        if "bool" in kind:
            return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[text.lower()]
        if "float" in kind:
            return float(text)
        return int(text) if "int" in kind else text
    except (ValueError, KeyError) as error:
        wanted = next(word for word in ("bool", "float", "int") if word in kind)
        raise SettingsError(f"{name}: {text!r} is not a {WORDS[wanted]}") from error


_CONVERTER = strict()


def _structure(values: Raw, where: str) -> Settings:
    try:
        return _CONVERTER.structure(dict(values), Settings)
    except cattrs.BaseValidationError as error:
        fault = cattrs.transform_error(error, format_exception=lambda each, _: str(each))[0]
        text, _, path = fault.rpartition(" @ $.")
        raise SettingsError(f"{where}: {path.replace('_', '-')}: {text}") from error


def _check(name: str, value: object, metadata: Mapping[str, object]) -> None:
    flag = flag_of(name)
    low, high, choices = metadata["low"], metadata["high"], metadata["choices"]
    if isinstance(value, float) and not math.isfinite(value):
        raise SettingsError(f"{flag}: {value} is not a finite number")
    if isinstance(low, int | float) and isinstance(value, int | float) and value < low:
        raise SettingsError(f"{flag}: {value} is too small; at least {low:g}")
    if isinstance(high, int | float) and isinstance(value, int | float) and value > high:
        raise SettingsError(f"{flag}: {value} is too large; at most {high:g}")
    if isinstance(choices, tuple) and choices and value not in choices:
        raise SettingsError(f"{flag}: {value!r} is none of {', '.join(choices)}{did_you_mean(str(value), choices)}")
