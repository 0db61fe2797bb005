"""Recorded traffic against profiles of real providers, the whole daemon in virtual time: a Markdown table.

    python benchmarks/traces.py FOLDER [--seconds 1800] [--profile NAME ...]

FOLDER, or the variable TIDEGATE_TRACES, holds traces in the formats of simulations/traces.py, in any folders below.
None comes with Tidegate; `SOURCES` says where they can be had. Takes minutes on two cores.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from simulations.trace_runs import IN_FLIGHT, PROFILES, STRETCH, plans_of, row_of, run_all, table

VARIABLE = "TIDEGATE_TRACES"
SOURCES = (
    "Traces can be had from https://github.com/Azure/AzurePublicDataset (Azure LLM inference 2023, CC BY 4.0) and "
    "https://github.com/kvcache-ai/Mooncake (Apache-2.0)."
)
TITLE = "## Recorded traffic against real providers' limits (`benchmarks/traces.py`)"
INTRO = """The first {minutes:g} minutes of each trace, each prompt at its own instant or all there from the start; the
whole daemon in virtual time, at most {most} attempts at once. Used is the share of what the limit that binds would have
let through until the last admission, its full bucket at the start included. Not answered are prompts larger than a
whole minute's limit, which no wait would help."""


def section(folder: str | None, profiles: tuple[str, ...] = PROFILES, seconds: float = STRETCH) -> str:
    """For simulations/RESULTS.md; without a folder one line that says where traces can be had."""
    if folder is None:
        return f"\n{TITLE}\n\nNot run: `--traces FOLDER` was not given. {SOURCES}\n"
    intro = INTRO.format(minutes=seconds / 60, most=IN_FLIGHT)
    outcomes = []
    for outcome in run_all(plans_of(Path(folder), profiles, seconds)):
        print(row_of(outcome), file=sys.stderr, flush=True)
        outcomes.append(outcome)
    return f"\n{TITLE}\n\n{intro} {SOURCES}\n\n{table(outcomes)}"


def main() -> int:
    """Print the table, and on stderr each row as it comes; 2 without a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default=os.environ.get(VARIABLE), metavar="FOLDER")
    parser.add_argument("--seconds", type=float, default=STRETCH, help="of each trace")
    parser.add_argument("--profile", action="append", help="instead of " + ", ".join(PROFILES))
    given = parser.parse_args()
    if given.folder is None:
        print(f"give a folder of traces, or set {VARIABLE}. {SOURCES}", file=sys.stderr)
        return 2
    began = time.monotonic()
    print(section(given.folder, tuple(given.profile or PROFILES), given.seconds), end="")
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
