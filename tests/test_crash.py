"""kill -9 at random moments, again and again: nothing is missing, nothing is double, and what it cost is told.

20 kills; `TIDEGATE_KILLS=200 pytest -m slow tests/test_crash.py` is the long form, TIDEGATE_SEED=N another series.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from command import results, start, statistics, upstream

from controller.sources import CHUNK

KILLS = int(os.environ.get("TIDEGATE_KILLS", "20"))
SEED = int(os.environ.get("TIDEGATE_SEED", "1"))
PROMPTS = min(2000, 100 * KILLS)  # few kills are for a quick look
LONGEST_LIFE = 20.0  # s; a busy machine gets less far
IN_FLIGHT = 32
LONG = 6000  # bytes; a line that a pipe takes in parts
FLAGS = (
    *("--model", "m", "--max-in-flight", str(IN_FLIGHT), "--max-failures", "50", "--policy-option", "start_rate=300"),
    *("--first-payload-timeout", "2", "--between-payloads-timeout", "2"),  # for the streams that stall
)


def write_mixed_prompts(path: Path) -> None:
    """With an id and without, some of them twice."""
    lines = [{"prompt": f"prompt {n % 950}"} if n % 2 else {"id": n, "prompt": f"prompt {n}"} for n in range(PROMPTS)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def written(out: Path) -> int:
    return out.read_bytes().count(b"\n") if out.exists() else 0


def told_paid_again(out: Path) -> int:
    """By the last life that was not killed; one that finds the work done begins to count anew."""
    summary = out.with_suffix(".json")
    return int(json.loads(summary.read_text())["paid_again"]) if summary.exists() else 0


@contextmanager
def one_life(url: str, prompts: Path, out: Path, *, piped: bool) -> Iterator[subprocess.Popen[str]]:
    """A run over a file, or over a pipe whose producer begins anew each time; killed at the end if it still runs."""
    with ExitStack() as stack:
        if piped:
            command = ["cat", str(prompts)]
            producer = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))
            assert producer.stdout is not None
            reading = stack.enter_context(producer.stdout).fileno()
        yield stack.enter_context(running("-" if piped else prompts, url, out, reading if piped else None))


@contextmanager
def running(prompts: Path | str, url: str, out: Path, stdin: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """A run, killed at the end if it still runs."""
    flags = ("--base-url", url, "-o", out, "--summary", out.with_suffix(".json"), *FLAGS)
    process = start(prompts, *flags, stdin=stdin)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def one_producer(count: int) -> Iterator[int]:
    """The reading end of a pipe into which `count` long lines are written once, whoever reads them, and its end."""
    reading, writing = os.pipe()

    def produce() -> None:
        with os.fdopen(writing, "wb") as pipe:
            for number in range(count):
                pipe.write(b'{"id":%d,"prompt":"%s"}\n' % (number, b"x" * LONG))

    producer = threading.Thread(target=produce, daemon=True)
    producer.start()
    yield reading
    os.close(reading)
    producer.join(timeout=10)
    assert not producer.is_alive()


def wait_at_random(process: subprocess.Popen[str], out: Path, rng: random.Random, share: int) -> bool:
    """For some more results and a moment, or while it starts; False if it ended before."""
    if rng.random() < 0.2:
        time.sleep(rng.uniform(0, 1.0))
    else:
        wanted, deadline = written(out) + rng.randint(0, 2 * share), time.monotonic() + LONGEST_LIFE
        while written(out) < wanted and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.05))
    return process.poll() is None


@pytest.mark.slow
@pytest.mark.parametrize("piped", [False, True], ids=["file", "pipe"])
def test_whenever_it_is_killed_nothing_is_missing_and_nothing_is_double(tmp_path: Path, piped: bool) -> None:
    prompts, out, rng = tmp_path / "p.jsonl", tmp_path / "r.jsonl", random.Random(SEED)
    write_mixed_prompts(prompts)
    killed = paid_again = 0
    with upstream("flaky?rate=400&latency=0.1&words=3") as url:
        for left in range(KILLS, 0, -1):
            with one_life(url, prompts, out, piped=piped) as process:
                killed += wait_at_random(process, out, rng, max(1, (PROMPTS - written(out)) // (left + 1)))
            paid_again = max(paid_again, told_paid_again(out))
        with one_life(url, prompts, out, piped=piped) as last:
            _, errors = last.communicate(timeout=900)
        seen = statistics(url)
    assert last.returncode == 0, errors
    lines = results(out)  # fails on a line that is no JSON
    assert all(line["status"] == "ok" and line["text"] for line in lines)
    assert [key for key, times in Counter(line["key"] for line in lines).items() if times > 1] == []
    assert sorted(int(str(line["id"])) for line in lines if line["id"] is not None) == list(range(0, PROMPTS, 2))
    assert len(lines) == PROMPTS
    assert "missing 0, double 0" in errors.splitlines()[-1]
    told = json.loads(out.with_suffix(".json").read_text())
    assert (told["missing"], told["double"], told["damaged"], told["pending"]) == (0, 0, 0, 0)
    assert told["ok"] == PROMPTS
    assert killed >= KILLS * 3 // 4
    paid_twice = int(str(seen["completed"])) - PROMPTS
    assert paid_twice <= max(paid_again, told["paid_again"]) <= killed * IN_FLIGHT
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.jsonl", "r.json", "r.jsonl"]


def spooled(out: Path) -> set[str]:
    """The ids of the prompts in the spool; what a kill left of a line is none."""
    pending = out.with_name(out.name + ".pending")
    records = pending.read_bytes().splitlines(keepends=True) if pending.exists() else []
    values = [json.loads(record) for record in records if record.endswith(b"\n")]
    return {str(json.loads(value["raw"])["id"]) for value in values if "raw" in value and value["error"] is None}


@pytest.mark.slow
@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL], ids=["term", "kill"])
def test_a_pipe_that_outlives_its_readers_loses_nothing_to_a_stop_and_little_to_a_kill(
    tmp_path: Path, by: signal.Signals
) -> None:
    out, rng, seen, killed = tmp_path / "r.jsonl", random.Random(SEED), set[str](), 0
    with upstream("steady?rate=400&burst=50&latency=0.1&words=3") as url, one_producer(PROMPTS) as reading:
        for left in range(KILLS // 2, 0, -1):
            with running("-", url, out, reading) as process:
                killed += wait_at_random(process, out, rng, max(1, (PROMPTS - written(out)) // (left + 1)))
                process.send_signal(by)
                process.communicate(timeout=900)
            seen |= spooled(out)
        with running("-", url, out, reading) as last:
            _, errors = last.communicate(timeout=900)
    lines = [line for line in results(out) if line["status"] == "ok"]
    answered = {str(line["id"]) for line in lines}
    assert killed >= KILLS // 4
    assert seen, "no line had to be taken up"
    assert seen <= answered, "what was whole in the spool is answered"
    assert len(lines) == len(answered)
    lost, of_one_kill = PROMPTS - len(answered), CHUNK // LONG + 2
    assert lost <= (0 if by is signal.SIGTERM else killed * of_one_kill), errors
    if by is signal.SIGTERM:
        assert (last.returncode, len(results(out))) == (0, PROMPTS), errors
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".pending"] == []
