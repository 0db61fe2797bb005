"""LiteLLM's proxy as upstream: its limits count by the calendar minute, and its 429s carry no Retry-After."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command import environment, ids, results, start, write_prompts
from judges import environment_with, finish, free_port, serving

from policies.contract import JSON

pytestmark = [pytest.mark.slow, pytest.mark.judge(name="litellm")]

KEY = "sk-made-up-but-long-enough-0123456789"  # it refuses short ones
PER_MINUTE, PROMPTS = 30, 60
ANSWER = "A whole answer of some words."
POLICIES = {"recall": "one", "aimd": "two"}  # with a model each, so that they share no limit
CONFIG: JSON = {
    "model_list": [
        {
            "model_name": name,
            "litellm_params": {
                "model": "openai/m",
                "api_key": "made-up",
                "mock_response": ANSWER,
                "rpm": PER_MINUTE,
            },
        }
        for name in POLICIES.values()
    ],
    "router_settings": {
        "routing_strategy": "usage-based-routing-v2",
        "enable_pre_call_checks": True,
        "num_retries": 0,
    },
    "litellm_settings": {"telemetry": False, "num_retries": 0},
    "general_settings": {"master_key": KEY},
}
AT_HOME = {  # it fetches no prices, reports nothing, reads no .env of ours
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_MODE": "PRODUCTION",
    "LITELLM_TELEMETRY": "False",
    "DISABLE_ADMIN_UI": "True",
    "NO_DOCS": "True",
}
START = 180.0  # s; it takes 20 on a quiet machine
LONGEST = 300.0  # s; for the prompts of three minutes, one of which may be nearly over


@contextmanager
def litellm(folder: Path) -> Iterator[str]:
    """The proxy on a free port, without a database; gives its base URL."""
    programs = environment_with(folder / "env", "litellm[proxy]==1.108.7")
    config = folder / "config.yaml"
    config.write_text(json.dumps(CONFIG))  # JSON is YAML
    port = free_port()
    command = [str(programs / "litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), **AT_HOME}
    with serving(command, port, folder / "litellm.log", env=env, within=START):
        yield f"http://127.0.0.1:{port}/v1"


def test_a_limit_by_the_calendar_minute_that_gives_no_hints_costs_no_prompt(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path / "prompts.jsonl", PROMPTS)
    key = tmp_path / "key"
    key.write_text(KEY)
    with litellm(tmp_path) as url:
        common: list[str | Path] = [prompts, "--base-url", url, "--dialect", "litellm", "--api-key-file", key]
        runs = {
            policy: start(*common, "--model", model, "--policy", policy, "-o", tmp_path / policy, env=environment())
            for policy, model in POLICIES.items()
        }
        finish(runs, within=LONGEST)
    lines = {policy: results(tmp_path / policy) for policy in runs}
    for answered in lines.values():
        assert ids(answered) == sorted(range(PROMPTS), key=str)
        assert {(line["status"], line["text"]) for line in answered} == {("ok", ANSWER)}
    assert any(line["throttled"] for line in lines["aimd"]), "nobody told it of the limit, and it never met it"
    seen = re.findall(r'"POST /v1/chat/completions HTTP/1.1" (\d+)', (tmp_path / "litellm.log").read_text())
    answers = PROMPTS * len(lines)
    refusals = sum(int(str(line["throttled"])) for answered in lines.values() for line in answered)
    assert (seen.count("200"), seen.count("429"), len(seen)) == (answers, refusals, answers + refusals)
