"""Half an hour of real time against an upstream that changes its limit, fails and heals: does anything leak?

    python benchmarks/endurance.py [MINUTES]

The run gets more prompts than it can finish, is looked at every 10 s from outside, and stopped by SIGTERM. Every minute
the limit steps, every fourth minute has an outage of 20 s, and all the time some answers are cut, reset or silent.
Goals: memory that grows by no more than the finished lines cost, no more descriptors than attempts in flight need, no
more threads at the end than in the beginning, stderr below 200 lines in half an hour, nothing missing, nothing double.
And no connection that nobody uses: the upstream is asked while the run lives, and at the moments of least load it has
hardly more open than attempts in flight, at the end as in the beginning. What is kept for later goes within a minute;
whoever forgets to give one back piles them up.
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
MOST_IDLE = IN_FLIGHT // 2  # connections beyond those in flight, when fewest are open: kept for the next minute
MOST_PILED_UP = 8  # connections more, or threads more, in the last third than in the first
MOST_GROWTH = 15.0  # MB from the first third to the last: some tens of thousands of finished lines, and noise


@frozen
class Look:
    """memory: resident set in MB; descriptors: open ones. connections and in_flight: as the upstream sees it."""

    memory: float
    descriptors: int
    threads: int
    connections: int
    in_flight: int


def profile(minutes: int) -> str:
    """Limits and outages over time."""
    rates = [[60 * minute, RATES[minute % len(RATES)]] for minute in range(minutes + 2)]
    outages = [[60 * minute + 30, 60 * minute + 50] for minute in range(3, max(minutes, 4), 4)]
    return f"steady?rate={json.dumps(rates)}&outages={json.dumps(outages)}&latency=1&words=20&{FAULTS}".replace(" ", "")


def look(process: int, url: str) -> Look:
    """What the process holds now, and the upstream of it."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    with urllib.request.urlopen(url.removesuffix("/v1") + "/_sim/statistics") as answer:  # noqa: S310  ours
        seen = json.load(answer)
    return Look(
        memory=int(status["VmRSS"].split()[0]) / 1024,
        descriptors=len(os.listdir(f"/proc/{process}/fd")),
        threads=int(status["Threads"]),
        connections=int(seen["connections_open"]) - 1,  # beside the one that asks
        in_flight=int(seen["in_flight"]),
    )


def fewest_open(looks: list[Look]) -> Look:
    """The look with the fewest connections, but for outages, which close all."""
    return min((each for each in looks if each.in_flight), key=lambda each: each.connections, default=looks[0])


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
            looks.append(look(process.pid, url))
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
        upstream.send_signal(signal.SIGTERM)
    counted, lines = looks[SETTLING:], said.splitlines()
    third = max(len(counted) // 3, 1)
    print(f"{minutes} minutes, exit code {code}; {lines[-1]}")
    good = compared(counted[:third], counted[-third:])
    descriptors = [each.descriptors for each in counted]
    print(f"descriptors {min(descriptors)} to {max(descriptors)}; {len(lines)} lines on stderr")
    good = good and max(descriptors) <= IN_FLIGHT + 24 and len(lines) < max(200 * minutes / 30, 40)
    sys.exit(0 if good and code == 143 and "missing 0, double 0" in lines[-1] else 1)


def compared(first: list[Look], last: list[Look]) -> bool:
    """Whether the last third of the looks holds no more than the first one, or than it needs."""
    memory = [statistics.median(each.memory for each in part) for part in (first, last)]
    threads = [max(each.threads for each in part) for part in (first, last)]
    fewest = [fewest_open(part) for part in (first, last)]
    print(
        f"first third, last third: memory {memory[0]:.1f}, {memory[1]:.1f} MB; threads {threads[0]}, {threads[1]}; ",
        end="",
    )
    print(
        f"connections at the least {fewest[0].connections}, {fewest[1].connections}, "
        f"then in flight {fewest[0].in_flight}, {fewest[1].in_flight}"
    )
    return (
        memory[1] - memory[0] < MOST_GROWTH
        and threads[1] - threads[0] <= MOST_PILED_UP
        and fewest[1].connections - fewest[0].connections <= MOST_PILED_UP
        and fewest[1].connections - fewest[1].in_flight <= MOST_IDLE
    )


if __name__ == "__main__":
    main()
