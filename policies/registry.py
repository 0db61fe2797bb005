"""Where a policy's name leads: our own in a table, others' by entry point or as "module:Class".

Entry points of the group "tidegate.policies" name a class in another package
(https://packaging.python.org/en/latest/specifications/entry-points/).
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Protocol, get_type_hints

import attrs

from policies.aimd import Aimd
from policies.contract import JSON, Policy, Remembered
from policies.fixed import Fixed
from policies.gradient import Gradient
from policies.headers import Headers
from policies.mimd import Mimd
from policies.plugins import load, names_in
from policies.recall import Recall
from policies.sprint import Sprint
from policies.words import did_you_mean, in_one_line

GROUP = "tidegate.policies"


class PolicyClass(Protocol):
    """A policy as the registry hands it out: called with an instance of its options_class."""

    options_class: type

    def __call__(self, options: object, *, seed: int, now: float, remembered: Remembered | None = None) -> Policy:
        """A new controller."""

    def restore(self, options: object, snapshot: Mapping[str, JSON], *, seed: int, now: float) -> Policy:
        """One that continues where the snapshot was taken; ValueError for a snapshot that is not its own."""


BUILT_IN: Mapping[str, type] = {
    "aimd": Aimd,
    "fixed": Fixed,
    "recall": Recall,
    "headers": Headers,
    "sprint": Sprint,
    "gradient": Gradient,
    "mimd": Mimd,
}


def names() -> list[str]:
    """Every policy that can be named, ours first."""
    return [*BUILT_IN, *sorted(names_in(GROUP) - BUILT_IN.keys())]


def find(name: str) -> PolicyClass:
    """The class behind a name or "module:Class"; raises ValueError with what to do when there is none."""
    if name in BUILT_IN:
        return as_policy_class(BUILT_IN[name], name)
    found = load(GROUP, name, "policy")
    if found is None:
        raise ValueError(f"unknown policy {name!r}{did_you_mean(name, names())}; there are: {', '.join(names())}")
    return as_policy_class(found, name)


def as_policy_class(found: object, name: str) -> PolicyClass:
    """The same thing if it is a policy class, as far as a class can be looked at; else ValueError naming it."""
    options = getattr(found, "options_class", None)
    if not (isinstance(found, type) and isinstance(options, type) and attrs.has(options)):
        raise ValueError(f"policy {name!r} is no policy class: see policies.contract.Policy")
    missing = [verb for verb in ("on", "snapshot", "restore") if not callable(getattr(found, verb, None))]
    if missing:
        raise ValueError(f"policy {name!r} has no {' and no '.join(missing)}: see policies.contract.Policy")
    claims: object = getattr(found, "claims", frozenset())
    declines: object = getattr(found, "declines", {})
    if not isinstance(claims, Set):
        raise ValueError(f"policy {name!r}: claims must be a set of names of laws, not {claims!r}")
    if not isinstance(declines, Mapping):
        raise ValueError(f"policy {name!r}: declines must map names of laws to reasons, not {declines!r}")
    return found  # type: ignore[return-value]  # checked above as far as a class can be


def instance(
    policy: PolicyClass, options: object, *, seed: int, now: float, remembered: Remembered | None = None
) -> Policy:
    """A new controller; ValueError if the class, which may be a stranger's, can't be made."""
    try:
        return policy(options, seed=seed, now=now, remembered=remembered)
    except Exception as error:
        raise ValueError(f"the policy can't be made: {in_one_line(error)}") from error


def make_options(policy: PolicyClass, given: Mapping[str, str]) -> object:
    """The policy's options from KEY=VALUE texts; raises ValueError naming the key, its unit and its range."""
    types = get_type_hints(policy.options_class)
    fields = {field.name: field for field in attrs.fields(policy.options_class)}
    values: dict[str, float | int | str | bool] = {}
    for key, text in given.items():
        if key not in fields:
            known = ", ".join(fields)
            raise ValueError(f"unknown policy option {key!r}{did_you_mean(key, fields)}; there are: {known}")
        values[key] = _value(key, text, getattr(types[key], "__name__", str(types[key])))
    try:
        made: object = policy.options_class(**values)
    except ValueError as error:
        units = {f"'{name}'": field.metadata.get("unit") for name, field in fields.items()}  # as attrs quotes them
        unit = next((f" ({unit})" for name, unit in units.items() if unit and name in str(error.args[0])), "")
        raise ValueError(f"policy option out of range: {error.args[0]}{unit}") from error
    except TypeError as error:
        raise ValueError(f"policy option missing: {error}") from error
    return made


def _value(key: str, text: str, wanted: str) -> float | int | str | bool:
    try:
        if "bool" in wanted:
            return {"true": True, "false": False}[text.lower()]
        if "float" in wanted:
            return float(text)
        return int(text) if "int" in wanted else text
    except (ValueError, KeyError) as error:
        raise ValueError(
            f"policy option {key}={text!r} is not a {wanted.removeprefix('<class ').rstrip('>')}"
        ) from error
