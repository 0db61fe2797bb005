"""What the default policy promises, over real sockets and real time, and in every phase of a window."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from command import ids, results, run, upstream, write_prompts

from controller.settings import Settings
from simulations.profile import load_profile
from simulations.provider import Provider
from simulations.script import Script
from simulations.virtual import run_virtual


def throttled(out: Path) -> int:
    return sum(int(str(line["throttled"])) for line in results(out))


def span(stderr: str) -> float:
    """Seconds of the run, from its closing line."""
    return float(re.findall(r"([\d.]+) s$", stderr, re.MULTILINE)[-1])


@pytest.mark.slow
def test_a_thousand_prompts_at_twenty_a_second_take_a_minute_with_hardly_a_refusal(tmp_path: Path) -> None:
    """49.5 s would be ideal; of the clients measured, none was under 52 s with fewer than three refusals."""
    prompts, out = write_prompts(tmp_path / "p.jsonl", 1000), tmp_path / "r.jsonl"
    with upstream("steady?words=3") as url:
        done = run(prompts, "--base-url", url, "--model", "m", "-o", out)
    assert ids(results(out)) == sorted(range(1000), key=str)
    assert span(done.stderr) <= 60
    assert throttled(out) <= 8


@pytest.mark.slow
def test_twenty_prompts_at_thirty_a_minute_without_hints_lose_nothing_and_little_time(tmp_path: Path) -> None:
    """40 s would be ideal; the best client measured took 55.6 s and met 27 refusals."""
    prompts, out = write_prompts(tmp_path / "p.jsonl", 20), tmp_path / "r.jsonl"
    with upstream("steady?rate=0.5&burst=1&latency=2&retry_after=none&words=3") as url:
        done = run(prompts, "--base-url", url, "--model", "m", "-o", out)
    assert ids(results(out)) == sorted(range(20), key=str)
    assert span(done.stderr) < 60
    assert throttled(out) < 10


class Watched(Provider):
    """The simulated upstream, with the instants of its refusals."""

    def __init__(self, phase: float) -> None:
        super().__init__(load_profile("gemini-free?words=3"), calendar_offset=phase)
        self.refused_at: list[float] = []

    def arrive(self, now: float, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Script:
        """As ever, and written down."""
        script = super().arrive(now, method, path, headers, body)
        if script.status == 429:
            self.refused_at.append(now)
        return script


@pytest.mark.parametrize("phase", range(0, 60, 5))
def test_five_a_minute_without_hints_meets_few_refusals_after_the_first_full_minute(phase: int) -> None:
    lines = [json.dumps({"id": n, "prompt": f"prompt {n}"}).encode() for n in range(30)]
    provider = Watched(float(phase))
    out = run_virtual(lines, provider, Settings())
    assert out.tally.ok == 30
    assert len(provider.refused_at) == out.tally.throttled
    assert sum(at > phase + 60 for at in provider.refused_at) <= 5
