"""Arrivals from recorded traces: CSV as of the Azure LLM traces, JSONL as of the Mooncake and ServeGen traces.

https://github.com/Azure/AzurePublicDataset (TIMESTAMP,ContextTokens,GeneratedTokens),
https://github.com/kvcache-ai/Mooncake (timestamp in milliseconds, input_length, output_length) and
https://github.com/alibaba/ServeGen, whose offline traces are batches: no line has a timestamp, and all prompts are
there at once. The first arrival becomes the instant 0.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from math import inf

from attrs import evolve, frozen

from simulations.workload import Arrival


@frozen
class Row:
    """A prompt of a trace: an instant in seconds, and LLM tokens in and out."""

    at: float
    input_tokens: float
    output_tokens: float


def read_rows(name: str, text: str) -> tuple[Row, ...]:
    """Prompts in order; the format is told from the name. ValueError names the line."""
    read: Callable[[str], Iterator[Row]] = _rows_of_jsonl if name.endswith(".jsonl") else _rows_of_csv
    rows = sorted(read(text), key=lambda row: row.at)  # those of one instant stay in order
    if not rows:
        raise ValueError("the trace has no lines")
    return tuple(evolve(row, at=row.at - rows[0].at) for row in rows)


def read_trace(name: str, text: str) -> tuple[Arrival, ...]:
    """The same as arrivals; a cost is what goes in and what comes out together."""
    return tuple(Arrival(row.at, max(row.input_tokens + row.output_tokens, 1.0)) for row in read_rows(name, text))


def _rows_of_csv(text: str) -> Iterator[Row]:
    for number, line in enumerate(csv.DictReader(text.lstrip("\ufeff").splitlines()), start=2):
        try:
            # Seven digits of a second: one more than datetime holds. A trace without a zone is read as UTC.
            at = datetime.fromisoformat(line["TIMESTAMP"][:26]).replace(tzinfo=UTC).timestamp()
            yield Row(at, _count(line["ContextTokens"]), _count(line["GeneratedTokens"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"line {number}: no TIMESTAMP,ContextTokens,GeneratedTokens") from error


def _rows_of_jsonl(text: str) -> Iterator[Row]:
    batch = '"timestamp"' not in text
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            at = 0.0 if batch else _count(row["timestamp"]) / 1000
            yield Row(at, _count(row["input_length"]), _count(row["output_length"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"line {number}: no timestamp, input_length, output_length") from error


def _count(value: str | float) -> float:
    number = float(value)
    if not 0 <= number < inf:
        raise ValueError(f"{value!r} is no count")
    return number
