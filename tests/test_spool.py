"""Lines that can't be read twice are there for the next run until they have their results, whatever they hold."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from controller import spool as spool_module
from controller.durable import Durable
from controller.intake import Intake, read_prompts
from controller.records import Prompt, Result
from controller.sources import source_of
from controller.spool import Spool, Taken

NEVER = Durable("never")


async def nothing() -> None:
    await trio.lowlevel.checkpoint()


def opened(results: Path, done: set[bytes] | None = None, durable: Durable = NEVER) -> Spool:
    return Spool.open(str(results), done or set(), durable)


def file_of(results: Path) -> Path:
    return results.with_name(results.name + ".pending")


def taken(intake: Intake, *raws: bytes) -> list[Taken]:
    from_lines = [spool_module.Taken(raw, what) for raw in raws if (what := intake.take(_line(intake, raw), "-"))]
    return from_lines


def _line(intake: Intake, raw: bytes):  # type: ignore[no-untyped-def]
    from controller.sources import Line

    return Line(number=intake.read + 1, raw=raw)
