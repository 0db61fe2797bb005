"""simulations/RESULTS.md in one command: all scenarios with all peers, 300 random ones, traces, nginx on real sockets.

    python benchmarks/results.py [--traces FOLDER]

Takes about an hour on two cores. The last 60 random scenarios have seeds that were chosen when tuning had ended. How
to come by traces says benchmarks/traces.py, whose variable TIDEGATE_TRACES counts here as well.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from random_scenarios import Case, broken, measure_all, report
from traces import VARIABLE, section

from simulations.commands import simulate
from simulations.scenario import DEFAULT_POLICY

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tests"))  # the real processes are those of the tests
from command import results, run, upstream, write_prompts  # noqa: E402
from test_nginx import nginx  # noqa: E402

PAGE = ROOT / "simulations" / "RESULTS.md"
SEEDS = 5
RANDOM = ((240, 0), (60, 7000))  # how many, from which seed


def main() -> int:
    """Write the page; 1 if a bound or a goal does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", default=os.environ.get(VARIABLE), metavar="FOLDER")
    traces: str | None = parser.parse_args().traces
    arguments = ["--all", "--peers", "--seeds", str(SEEDS), "--results", str(PAGE)]
    code: int = simulate.main(arguments, standalone_mode=False)
    cases = [case for count, first in RANDOM for case in measure_all(count, first, DEFAULT_POLICY)]
    PAGE.write_text(PAGE.read_text(encoding="utf-8") + _random(cases) + section(traces) + _nginx(), encoding="utf-8")
    return code or bool(broken(cases))


def _random(cases: Sequence[Case]) -> str:
    faults = [f"**Goal missed**: {words}" for words in broken(cases)]
    lines = [f"- {line}" for line in [*report(cases), *faults]]
    return "\n".join(["", "## 300 random scenarios, two hours each (`benchmarks/random_scenarios.py`)", "", *lines, ""])


def _nginx() -> str:
    head = ["", "## nginx `limit_req` 10 r/s, burst 5, over real sockets: 300 prompts (`benchmarks/results.py`)", ""]
    table = ["| policy | answered | 429 share % | seconds |", "| --- | ---: | ---: | ---: |"]
    return "\n".join([*head, *table, *(_row(policy) for policy in (DEFAULT_POLICY, "aimd")), ""])


def _row(policy: str) -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prompts, out = write_prompts(folder / "p.jsonl", 300), folder / "r.jsonl"
        with upstream("steady?rate=1000&burst=1000&latency=0.3&words=3") as behind, nginx(folder, behind) as url:
            began = time.monotonic()
            run(prompts, "--base-url", url, "--model", "m", "--policy", policy, "-o", out)
            seconds = time.monotonic() - began
        lines = results(out)
    attempts, refused = (sum(int(str(line[key])) for line in lines) for key in ("attempts", "throttled"))
    answered = sum(line["status"] == "ok" for line in lines)
    return f"| {policy} | {answered} | {100 * refused / attempts:.2f} | {seconds:.1f} |"


if __name__ == "__main__":
    sys.exit(main())
