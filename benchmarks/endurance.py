"""Half an hour of real time against an upstream that changes its limit, fails and heals: does anything leak?

    python benchmarks/endurance.py [MINUTES]

The run gets more prompts than it can finish, is looked at every 10 s from outside, and stopped by SIGTERM. Every minute
the limit steps, every fourth minute has an outage of 20 s, and all the time some answers are cut, reset or silent.
Goals: memory that grows by no more than the finished lines cost, no more descriptors than attempts in flight need, no
connection left at the upstream, stderr below 200 lines in half an hour, nothing missing and nothing double.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from attrs import frozen

COMMAND = [sys.executable, "-m", "controller.start"]
LOOK_EVERY = 10.0  # s
IN_FLIGHT = 64
RATES = (40, 8, 25, 15)
FAULTS = "error_share=0.03&reset_share=0.03&cut_share=0.02&truncate_share=0.02&stall_share=0.01&stall_seconds=30"
SETTLING = 6  # looks at the beginning that do not count: imports, first connections
MOST_GROWTH = 15.0  # MB from the first third to the last: some tens of thousands of finished lines, and noise


@frozen
class Look:
    """memory: resident set in MB; descriptors: open ones."""

    memory: float
    descriptors: int


def profile(minutes: int) -> str:
    """Limits and outages over time."""
    rates = [[60 * minute, RATES[minute % len(RATES)]] for minute in range(minutes + 2)]
    outages = [[60 * minute + 30, 60 * minute + 50] for minute in range(3, max(minutes, 4), 4)]
    return f"steady?rate={json.dumps(rates)}&outages={json.dumps(outages)}&latency=1&words=20&{FAULTS}".replace(" ", "")


def look(process: int) -> Look:
    """What the process holds now."""
    status = Path(f"/proc/{process}/status").read_text()
    resident = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")), 0)
    return Look(resident / 1024, len(os.listdir(f"/proc/{process}/fd")))


def connections_open(url: str) -> int:
    """At the upstream, beside the one that asks."""
    with urllib.request.urlopen(url.removesuffix("/v1") + "/_sim/statistics") as answer:  # noqa: S310  ours
        return int(json.load(answer)["connections_open"]) - 1


def write_prompts(folder: Path, count: int) -> Path:
    """More than can be finished."""
    path = folder / "p.jsonl"
    path.write_text("".join(f'{{"id":{n},"prompt":"prompt {n}"}}\n' for n in range(count)))
    return path


def watch(url: str, folder: Path, minutes: int) -> tuple[list[Look], str, int]:
    """The looks, stderr, and the exit code of a run that is stopped at the end."""
    flags = ("--base-url", url, "--model", "m", "--max-in-flight", str(IN_FLIGHT), "--no-remember")
    times = ("--first-payload-timeout", "15", "--between-payloads-timeout", "15", "--max-failures", "20")
    command = [
        *COMMAND,
        "run",
        str(write_prompts(folder, 60 * 50 * minutes)),
        "-o",
        str(folder / "r.jsonl"),
        *flags,
        *times,
    ]
    looks: list[Look] = []
    with (folder / "stderr").open("w") as stderr, subprocess.Popen(command, stderr=stderr) as process:
        until = time.monotonic() + 60 * minutes
        while time.monotonic() < until and process.poll() is None:
            time.sleep(LOOK_EVERY)
            looks.append(look(process.pid))
        process.send_signal(signal.SIGTERM)
    return looks, (folder / "stderr").read_text(), process.returncode


def main() -> None:
    """Run, look, and say what was seen; exit 1 if a goal is missed."""
    minutes = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    serve = [*COMMAND, "upstream", profile(minutes), "--port", "0"]
    with (
        tempfile.TemporaryDirectory() as name,
        subprocess.Popen(serve, stderr=subprocess.PIPE, text=True) as upstream,
    ):
        assert upstream.stderr is not None
        url = upstream.stderr.readline().split()[-1]
        looks, said, code = watch(url, Path(name), minutes)
        still_open = connections_open(url)
        upstream.send_signal(signal.SIGTERM)
    counted, lines = looks[SETTLING:], said.splitlines()
    third = max(len(counted) // 3, 1)
    first, last = (statistics.median(each.memory for each in part) for part in (counted[:third], counted[-third:]))
    descriptors = [each.descriptors for each in counted]
    print(f"{minutes} minutes, exit code {code}; {lines[-1]}")
    print(
        f"memory {first:.1f} MB in the first third, {last:.1f} MB in the last; descriptors {min(descriptors)} to ",
        end="",
    )
    print(f"{max(descriptors)}; {len(lines)} lines on stderr; {still_open} connections left open at the upstream")
    good = (
        last - first < MOST_GROWTH and max(descriptors) <= IN_FLIGHT + 24 and len(lines) < max(200 * minutes / 30, 40)
    )
    sys.exit(0 if good and still_open == 0 and code == 143 and "missing 0, double 0" in lines[-1] else 1)


if __name__ == "__main__":
    main()
