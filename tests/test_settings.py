"""Settings: one source for flags, environment and TOML; every fault names its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_type_hints

import click
import pytest
from attrs import fields
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from controller.cli import commands, run
from controller.merge import build
from controller.settings import PREFIX, Settings, SettingsError, flag_of

NAMES = [attribute.name for attribute in fields(Settings)]


def toml(text: str) -> bytes:
    return text.encode()


@pytest.mark.parametrize("name", NAMES)
def test_every_field_has_a_flag_an_environment_name_and_a_line_of_help(name: str) -> None:
    metadata = getattr(fields(Settings), name).metadata
    assert metadata["help"]
    (option,) = [each for each in run.params if each.name == name]
    assert isinstance(option, click.Option)
    assert flag_of(name) in option.opts
    page = CliRunner().invoke(commands, ["run", "--help"]).output
    assert flag_of(name) in page


OTHER: dict[str, tuple[object, str, str]] = {  # kind of the default -> another value, as TOML, as text
    "int": (7, "7", "7"),
    "float": (7.5, "7.5", "7.5"),
    "str": ("x", "'x'", "x"),
    "tuple": (("a=1",), "['a=1']", "a=1"),
}
CHOICES = {"progress": "off", "input_format": "text", "emit": "sse", "fsync": "never", "on_quota": "wait"}


@pytest.mark.parametrize("name", NAMES)
def test_toml_and_environment_reach_every_field(name: str) -> None:
    kind = str(get_type_hints(Settings)[name]).removeprefix("<class '").split("[")[0].split(" ")[0].rstrip("'>")
    on = getattr(Settings(), name)
    value, as_toml, as_text = OTHER.get(kind, (not on, str(not on).lower(), "no" if on else "yes"))
    if name == "headroom":  # a share
        value, as_toml, as_text = 0.5, "0.5", "0.5"
    if name in CHOICES:
        value = as_text = CHOICES[name]
        as_toml = repr(value)
    from_toml = build({}, {}, toml(f"{name.replace('_', '-')} = {as_toml}"), "t.toml")
    from_environment = build({}, {PREFIX + name.upper(): as_text})
    assert from_toml == from_environment
    assert getattr(from_toml, name) == value != getattr(Settings(), name)


def test_flags_win_over_environment_over_toml_over_defaults() -> None:
    file = toml("seed = 1\nmodel = 'a'\nmax-in-flight = 1")
    made = build({"seed": 3}, {"TIDEGATE_SEED": "2", "TIDEGATE_MODEL": "b"}, file, "t.toml")
    assert (made.seed, made.model, made.max_in_flight, made.policy) == (3, "b", 1, "recall")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raet = 1", "t.toml: unknown key 'raet'"),
        ("max-in-fligt = 1", "t.toml: unknown key 'max-in-fligt' (did you mean \"max_in_flight\"?)"),
        ("max-in-flight = 'fast'", "t.toml: max-in-flight: 'fast' is not a whole number"),
        ("max-in-flight = true", "t.toml: max-in-flight: True is not a whole number"),
        ("max-in-flight = 2.5", "t.toml: max-in-flight: 2.5 is not a whole number"),
        ("model = 3", "t.toml: model: 3 is not a text"),
        ("param = 'a=1'", "t.toml: param: 'a=1' is not a list"),
        ("resume = 'no'", "t.toml: resume: 'no' is not a yes or no"),
        ("[model]\nx = 1", "t.toml: model: {'x': 1} is not a text"),
        ("model = ", "t.toml is not TOML"),
        ("max-in-flight = -1", "--max-in-flight: -1 is too small; at least 1"),
        ("drain-timeout = inf", "--drain-timeout: inf is not a finite number"),
        ("progress = 'bars'", "--progress: 'bars' is none of auto, bar, lines, off (did you mean \"bar\"?)"),
    ],
)
def test_a_bad_toml_setting_is_named_with_its_file_and_key(text: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        build({}, {}, toml(text), "t.toml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bad_environment_variable_is_named() -> None:
    with pytest.raises(SettingsError, match="TIDEGATE_MAX_TOKENS: 'many' is not a whole number"):
        build({}, {"TIDEGATE_MAX_TOKENS": "many"})


@given(st.dictionaries(st.sampled_from([PREFIX + name.upper() for name in NAMES]), st.text(max_size=8), max_size=4))
def test_any_environment_gives_settings_or_one_line_that_names_a_variable(environment: dict[str, str]) -> None:
    message = fault_of(lambda: build({}, environment))
    assert message is None or any(
        name in message or flag_of(name.removeprefix(PREFIX).lower()) in message for name in environment
    )


@given(st.binary(max_size=60))
def test_any_bytes_as_toml_give_settings_or_an_error_that_names_the_file(content: bytes) -> None:
    message = fault_of(lambda: build({}, {}, content, "t.toml"))
    assert message is None or "t.toml" in message or message.startswith("--")


def fault_of(call: Callable[[], object]) -> str | None:
    """What SettingsError says, None without one."""
    try:
        call()
    except SettingsError as error:
        return str(error)
    return None
