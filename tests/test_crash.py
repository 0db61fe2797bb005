"""kill -9 at random moments, again and again: nothing is missing, nothing is double, and what it cost is told.

20 kills; `TIDEGATE_KILLS=200 pytest -m slow tests/test_crash.py` is the long form, TIDEGATE_SEED=N another series.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from command import results, start, statistics, upstream

KILLS = int(os.environ.get("TIDEGATE_KILLS", "20"))
SEED = int(os.environ.get("TIDEGATE_SEED", "1"))
PROMPTS = min(2000, 100 * KILLS)  # few kills are for a quick look
LONGEST_LIFE = 20.0  # s; a busy machine gets less far
IN_FLIGHT = 32
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


@contextmanager
def one_life(url: str, prompts: Path, out: Path, *, piped: bool) -> Iterator[subprocess.Popen[str]]:
    """A run over a file, or over a pipe whose producer begins anew each time; killed at the end if it still runs."""
    flags = ("--base-url", url, "-o", out, "--summary", out.with_suffix(".json"), *FLAGS)
    with ExitStack() as stack:
        if piped:
            command = ["cat", str(prompts)]
            producer = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))
            assert producer.stdout is not None
            process = start("-", *flags, stdin=producer.stdout)
            producer.stdout.close()
        else:
            process = start(prompts, *flags)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


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
    killed = 0
    with upstream("flaky?rate=400&latency=0.1&words=3") as url:
        for left in range(KILLS, 0, -1):
            with one_life(url, prompts, out, piped=piped) as process:
                killed += wait_at_random(process, out, rng, max(1, (PROMPTS - written(out)) // (left + 1)))
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
    assert paid_twice <= told["paid_again"] <= killed * IN_FLIGHT
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.jsonl", "r.json", "r.jsonl"]
