"""What tokens cost, and a budget in money."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import results, run, upstream, write_prompts
from wired import WALL, prompts, wired

from controller.outcome import Usage
from controller.prices import Prices
from controller.records import Prompt
from controller.telemetry import Exit

PROMPT = Prompt(id=None, key="", source="", line=0, request={"model": "gpt-4o-mini"})


def test_a_model_without_a_price_costs_its_own_prompts_and_no_others() -> None:
    given = [*prompts(5), json.dumps({"id": "odd", "prompt": "x", "model": "zzz"}).encode(), *prompts(11)[6:]]
    prices = Prices.of("https://api.openai.com/v1", WALL)
    out = wired("steady?words=3", given, defaults={"model": "gpt-4o-mini"}, price=prices.price, max_cost=5.0)
    assert (out.exit, len(out.results)) == (Exit.SOME_FAILED, 11)
    (error,) = [line["error"] for line in out.results if line["id"] == "odd"]
    assert isinstance(error, dict)
    assert (error["kind"], error["message"]) == ("input", "--max-cost: there is no price for the model zzz")


def test_prices_come_from_the_tables_by_url_or_by_model_alone() -> None:
    usage = Usage(input_tokens=1_000_000, output_tokens=1_000_000)
    there = Prices.of("https://api.openai.com/v1", WALL).price(PROMPT, usage)
    assert there == Prices.of("http://127.0.0.1:1/v1", WALL).price(PROMPT, usage) > 0


def test_a_model_without_a_price_has_none() -> None:
    unknown = Prompt(id=None, key="", source="", line=0, request={"model": "no-such-model"})
    with pytest.raises(ValueError, match="no price for the model no-such-model"):
        Prices.of("https://api.openai.com/v1", WALL).price(unknown, Usage())


@pytest.mark.slow
def test_a_budget_of_money_stops_the_run_resumably(tmp_path: Path) -> None:
    path, out = write_prompts(tmp_path / "p.jsonl", 100), tmp_path / "r.jsonl"
    flags = (path, "--model", "gpt-4o-mini", "--max-tokens", "100", "-o", out)
    with upstream("steady?rate=500&burst=500&latency=0.02&words=100") as url:
        done = run(*flags, "--base-url", url, "--max-cost", "0.001")
        assert done.returncode == 4, done.stderr
        assert "--max-cost 0.001" in done.stderr
        spent = sum(0.6e-6 * int(str(line["usage"]["output_tokens"])) for line in results(out))  # type: ignore[index,call-overload]
        assert 0.8 * 0.001 < spent <= 0.001
        again = run(*flags, "--base-url", url)
    assert again.returncode == 0
    assert len(results(out)) == 100
    refused = run(path, "--base-url", "http://127.0.0.1:9/v1", "--model", "no-such", "--max-cost", "1")
    assert (refused.returncode, "no price" in refused.stderr) == (2, True)
