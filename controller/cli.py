"""The roof: from the command line to a run, a simulated upstream or a list; imported by nobody."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import get_type_hints

import attrs
import click
import httpx

from controller.dry_run import dry_run as look_only
from controller.job import prepare
from controller.journal import STDOUT, JournalError
from controller.merge import build
from controller.reload import stay
from controller.settings import Settings, flag_of
from controller.sources import STDIN
from controller.stderr import say
from controller.telemetry import Exit

SIMULATOR = {  # command: the module it is in
    "policies": "simulations.check",
    "simulate": "simulations.commands",
    "upstream": "simulations.serving",
}


def main() -> None:
    """The command `tidegate`: one line for what the user can mend, exit codes as documented in the README."""
    try:
        code = commands.main(standalone_mode=False)
    except click.exceptions.Exit as error:
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = Exit.INTERRUPTED
    except click.ClickException as error:
        say(f"error: {error.format_message()}")
        code = Exit.USAGE
    except JournalError as error:
        say(f"error: {error}; nothing was sent")
        code = Exit.LOCAL_IO
    except OSError as error:  # of click's own output: everything else is caught where it can be named
        say(f"error: stdout can't be written: {error.strerror}")
        code = Exit.LOCAL_IO
    except Exception:
        traceback.print_exc()
        say("error: this is a fault in tidegate; results that were written are safe, and the same command goes on")
        code = Exit.FAULT
    sys.exit(int(code or 0))


class Commands(click.Group):
    """Those of the simulator are imported when they are asked for: they are a third of all there is to import."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names."""
        return sorted([*super().list_commands(ctx), *SIMULATOR])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """One of them; None for what is none."""
        if cmd_name not in SIMULATOR:
            return super().get_command(ctx, cmd_name)
        command: click.Command = getattr(importlib.import_module(SIMULATOR[cmd_name]), cmd_name)
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tidegate", message="tidegate %(version)s")
def commands() -> None:
    """Push prompts through an LLM API as fast as it really allows."""


# -- run


def settings_options(command: Callable[..., int]) -> Callable[..., int]:
    """An option for every field of Settings, so that flags, TOML keys and environment names have one source."""
    types = get_type_hints(Settings)
    for attribute in reversed(attrs.fields(Settings)):
        command = _option(attribute, str(types[attribute.name]))(command)
    return command


def _option(attribute: attrs.Attribute[object], kind: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    names = [flag_of(attribute.name), attribute.name, *(["-o"] if attribute.name == "output" else [])]
    unit, choices = attribute.metadata["unit"], attribute.metadata["choices"]
    default = "" if attribute.default in (None, ()) or "bool" in kind else f"  [default: {attribute.default}]"
    text = f"{attribute.metadata['help']}{f' ({unit})' if unit else ''}{default}"
    if "bool" in kind:
        return click.option(*names, is_flag=True, flag_value=not attribute.default, default=None, help=text)
    number = click.FLOAT if "float" in kind else click.INT if "int" in kind else click.STRING
    wanted = click.Choice(choices) if choices else number
    return click.option(*names, type=wanted, multiple="tuple" in kind, default=None, help=text)


@commands.command()
@click.argument("prompts", nargs=-1)
@click.option("--config", metavar="FILE.toml", help="settings from a TOML file; its keys are the flags' names")
@click.option("--dry-run", is_flag=True, help="say what would be sent; send nothing, touch no file")
@settings_options
def run(prompts: tuple[str, ...], config: str | None, dry_run: bool, **flags: object) -> int:
    """Answer every line of PROMPTS (files, - for stdin) with exactly one result line."""
    code: int = Exit.INTERRUPTED
    with ExitStack() as stack:
        try:
            if not dry_run:
                stay()
            settings = _settings(flags, config)
            if dry_run:
                return look_only(settings, _inputs(prompts), say)
            reread = partial(_settings, flags, config)
            job = prepare(settings, _inputs(prompts), os.environ, stack, say=say, simulate=_simulate, reread=reread)
        except ValueError as error:
            raise click.ClickException(str(error)) from error
        try:
            code = job.run()
        except* KeyboardInterrupt:  # before the run listened to signals, or when it did so no more
            pass
    return code


def _settings(flags: Mapping[str, object], config: str | None) -> Settings:
    settings = build(_given(flags), os.environ, _read_config(config), config or "")
    return attrs.evolve(settings, output=None if settings.output == STDOUT else settings.output)


def _given(flags: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in flags.items() if value not in (None, ())}


def _read_config(path: str | None) -> bytes | None:
    try:
        return None if path is None else Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"--config {path} can't be read: {error.strerror}") from error


def _inputs(prompts: tuple[str, ...]) -> tuple[str, ...]:
    if prompts:
        return prompts
    if sys.stdin is None or sys.stdin.isatty():
        raise ValueError("no prompts: name a file, or - for stdin")
    return (STDIN,)


def _simulate(profile: str, seed: int) -> tuple[httpx.AsyncBaseTransport, str]:
    transport: httpx.AsyncBaseTransport
    transport, dialect = importlib.import_module("simulations.serving").simulated(profile, seed)
    return transport, dialect
