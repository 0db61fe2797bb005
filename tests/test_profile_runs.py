"""Profiles of real providers under the whole daemon in virtual time: nothing is lost, and little is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from attrs import frozen
from command import write_prompts

from controller.job import prepare
from controller.settings import Settings
from policies.contract import JSON
from simulations.profile import load_profile, profile_names
from simulations.provider import Provider
from simulations.serving import simulated
from simulations.virtual import VirtualRun, run_virtual


@frozen
class Load:
    """What a profile is given, and the refusals that the default policy may meet there. size: bytes of a prompt."""

    prompts: int = 40
    most_refused: int = 0
    dialect: str = "openai"
    max_tokens: int | None = 60
    size: int = 10


LOADS: Mapping[str, Load] = {
    "anthropic-start": Load(dialect="anthropic"),
    "anthropic-tier1": Load(dialect="anthropic", most_refused=2),
    "anthropic-tier2": Load(dialect="anthropic"),
    "anthropic-tier4": Load(dialect="anthropic"),
    "azure": Load(),
    "deepseek": Load(),
    "gemini-free": Load(15, most_refused=8),
    "gemini-free-flash": Load(25, most_refused=4, dialect="gemini"),
    "gemini-tier1": Load(dialect="gemini"),
    "gemini-tier2": Load(dialect="gemini"),
    "openai-tier1": Load(),
    "openai-tier5": Load(),
    "vllm": Load(),
}
PLAIN = ("flaky", "hostile", "steady")
# So much that each of the limits binds for a minute at least.
BACKLOGS: Mapping[str, Load] = {
    "anthropic-tier1": Load(150, most_refused=4, dialect="anthropic", max_tokens=300),
    "anthropic-tier2": Load(600, most_refused=6, dialect="anthropic", max_tokens=1000),
    "azure": Load(500, most_refused=2, max_tokens=700),
    "deepseek?concurrency=20": Load(300, most_refused=4, max_tokens=None),
    "gemini-tier1": Load(300, most_refused=6, dialect="gemini", max_tokens=None, size=30_000),
    "openai-tier1": Load(500, most_refused=2, max_tokens=1000),
    # The dialect asks for 4,096, of which two do not fit into the minute's 8,000, and books it as it is produced: the
    # first refusal shows that this upstream does not.
    "anthropic-tier1?slope_seconds=0": Load(40, most_refused=4, dialect="anthropic", max_tokens=None),
}


def run(spec: str, load: Load) -> VirtualRun:
    more: dict[str, JSON] = {} if load.max_tokens is None else {"max_tokens": load.max_tokens}
    text = "word " * (load.size // 5)
    lines = [json.dumps({"id": n, "prompt": f"{n} {text}", **more}).encode() for n in range(load.prompts)]
    return run_virtual(lines, Provider(load_profile(spec)), Settings())


def check(spec: str, load: Load) -> None:
    mark = "&" if "?" in spec else "?"
    out = run(f"{spec}{mark}words=30&words_per_event=30", load)
    assert sorted(int(str(result["id"])) for result in out.results) == list(range(load.prompts))
    assert out.tally.ok == load.prompts
    assert out.tally.throttled <= load.most_refused
    assert out.upstream["attempts_by_dialect"] == {load.dialect: out.tally.attempts}


def test_every_profile_of_a_provider_is_run() -> None:
    assert sorted([*LOADS, *PLAIN]) == profile_names()


@pytest.mark.parametrize("name", LOADS)
def test_all_is_answered_in_the_provider_s_dialect_with_few_refusals(name: str) -> None:
    check(name, LOADS[name])


@pytest.mark.slow
@pytest.mark.parametrize("spec", BACKLOGS)
def test_a_backlog_at_the_limit_meets_few_refusals(spec: str) -> None:
    check(spec, BACKLOGS[spec])


def test_a_run_ends_resumably_when_the_quota_of_the_day_is_spent() -> None:
    out = run("gemini-free-flash?requests_per_day=7&words=3", Load(12))
    assert (out.exit.name, out.tally.ok, out.tally.failed) == ("UPSTREAM", 7, 0)


@pytest.mark.parametrize("charge", ["settled", "produced"])
def test_what_an_upstream_booked_is_what_the_results_were_told(charge: str) -> None:
    out = run(f"anthropic-start?charge={charge}&words=12&words_per_event=12", Load(20))
    assert out.upstream["tokens_charged"] == pytest.approx(out.tally.input_tokens + out.tally.output_tokens, abs=15)


@pytest.mark.parametrize(
    ("spec", "dialect", "spoken"),
    [("anthropic-tier2", None, "anthropic"), ("anthropic-tier2", "openai", "openai"), ("steady", None, "openai")],
)
def test_a_simulated_upstream_is_asked_in_its_own_dialect_unless_told_otherwise(
    spec: str, dialect: str | None, spoken: str, tmp_path: Path
) -> None:
    settings = Settings(base_url=f"sim:{spec}", model="m", dialect=dialect, output=str(tmp_path / "r.jsonl"))
    with ExitStack() as stack:
        sources = (str(write_prompts(tmp_path / "p.jsonl", 1)),)
        job = prepare(settings, sources, {}, stack, say=lambda _: None, simulate=simulated, reread=lambda: settings)
        assert job.dialect.name == spoken
