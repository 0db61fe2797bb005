"""simulations/RESULTS.md: all scenarios with all peers, 300 random ones, traces, nginx on real sockets.

    python benchmarks/results.py [--traces FOLDER] [--only scenarios|random|traces|nginx]

Takes about an hour on two cores. Each section says which commit it was measured at; with --only one of them is measured
anew, and the others stay as they were written. The last 60 random scenarios have seeds that were chosen when tuning had
ended. How to come by traces says benchmarks/traces.py, whose variable TIDEGATE_TRACES counts here as well.
"""

from __future__ import annotations

import argparse
import os
import subprocess
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
OTHERS = ("## 300 random", "## Recorded traffic", "## nginx")  # titles; all before them are of the scenarios
RANDOM = ((240, 0), (60, 34_744_720))  # how many, from which seed; the last ones chosen when tuning had ended


def main() -> int:
    """Write the page, or a section of it; 1 if a bound or a goal does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", default=os.environ.get(VARIABLE), metavar="FOLDER")
    parser.add_argument("--only", choices=("scenarios", "random", "traces", "nginx"))
    given = parser.parse_args()
    code = 0
    if given.only in (None, "scenarios"):
        code = _scenarios()
    if given.only in (None, "random"):
        cases = [case for count, first in RANDOM for case in measure_all(count, first, DEFAULT_POLICY)]
        _put(_random(cases))
        code = code or bool(broken(cases))
    if given.only in (None, "traces"):
        _put(section(given.traces))
    if given.only in (None, "nginx"):
        _put(_nginx())
    return code


def _scenarios() -> int:
    """Everything before the other sections; they stay."""
    rest = [part for part in _sections() if part.startswith(OTHERS)]
    code: int = simulate.main(
        ["--all", "--peers", "--seeds", str(SEEDS), "--results", str(PAGE)], standalone_mode=False
    )
    PAGE.write_text("\n".join([PAGE.read_text(encoding="utf-8"), _stamp(), *rest]), encoding="utf-8")
    return code


def _put(text: str) -> None:
    """In the place of the section with the same beginning of its title, else at the end."""
    new = text.strip("\n") + "\n" + _stamp()
    kind = next(kind for kind in OTHERS if new.startswith(kind))
    kept = [part for part in _sections() if not part.startswith(kind)]
    PAGE.write_text("\n".join([*kept, new]), encoding="utf-8")


def _sections() -> list[str]:
    """The page as written, cut before each title; each part ends with a line feed."""
    if not PAGE.exists():
        return []
    first, *others = PAGE.read_text(encoding="utf-8").split("\n## ")
    return [part.rstrip("\n") + "\n" for part in [first, *("## " + other for other in others)]]


def _stamp() -> str:
    """Which code was measured; the page itself may have changed meanwhile."""
    commit = _git("rev-parse", "--short", "HEAD") or "unknown"
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":!simulations/RESULTS.md")
    return f"\nMeasured at commit {commit}{' and changes to it' if changed else ''}.\n"


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


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
