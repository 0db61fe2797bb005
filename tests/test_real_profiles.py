"""Profiles of real providers: each kind over real sockets, and all of them under the whole daemon in virtual time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx
import pytest
import trio
from attrs import frozen
from command import write_prompts
from hypothesis import given
from hypothesis import strategies as st

from controller import cli
from controller.dialects.table import DIALECTS
from controller.job import prepare
from controller.outcome import Failed, Kind, Throttled
from controller.settings import Settings
from policies.contract import JSON
from simulations.asked import Asked
from simulations.charging import CHARGES, at_the_end, on_arrival, while_produced
from simulations.production import Production
from simulations.profile import load_profile, profile_names
from simulations.provider import Provider
from simulations.server import serve
from simulations.virtual import VirtualRun, run_virtual

CHAT, MESSAGES, GEMINI = "/v1/chat/completions", "/v1/messages", "/v1beta/models/m:generateContent"
ANTHROPIC = {"anthropic-version": "2023-06-01"}


# -- what is booked, and when


@given(
    asked=st.builds(
        lambda read, most: Asked(endpoint="", digest="", model="", input_tokens=read, max_output_tokens=most),
        st.integers(1, 10_000),
        st.none() | st.integers(1, 10_000),
    ),
    output=st.integers(0, 10_000),
)
def test_who_settles_and_who_counts_as_produced_book_what_was_used_in_the_end(asked: Asked, output: int) -> None:
    booked = dict.fromkeys(CHARGES, 0.0)
    for charge in CHARGES:
        parts = on_arrival(charge, asked), at_the_end(charge, asked, output), while_produced(charge, output)
        for dimension in ("tokens", "output_tokens", "input_tokens"):
            total = sum(part.get(dimension, 0.0) for part in parts)
            if charge in ("settled", "produced"):
                read, written = dimension != "output_tokens", dimension != "input_tokens"
                assert total == read * asked.input_tokens + written * output
            booked[charge] = parts[0]["tokens"]
    assert booked["input"] <= booked["larger"] <= booked["up-front"] == booked["settled"]


STREAMS = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 400), st.integers(0, 400), st.integers(1, 900)))


@given(streams=STREAMS, looks=st.lists(st.integers(0, 1600)))
def test_whatever_breaks_off_and_whenever_one_looks_just_what_was_produced_is_booked(
    streams: list[tuple[int, int, int, int]], looks: list[int]
) -> None:
    booked: list[tuple[float, float]] = []
    production = Production(lambda now, tokens: booked.append((now, tokens)))
    produced = 0.0
    verbs = [(quarter / 4, 2, -1) for quarter in looks]
    for number, (begin, wait, length, _) in enumerate(streams):
        verbs += [(begin / 4, 0, number), ((begin + wait + length // 2) / 4, 1, number)]
    for now, verb, number in sorted(verbs):
        production.advance(now)
        if verb == 0:
            _, wait, length, tokens = streams[number]
            production.begin(number, now + wait / 4, now + (wait + length) / 4, tokens)
        elif verb == 1:
            produced += production.stop(number, now)
    production.advance(1e6)
    assert sum(tokens for _, tokens in booked) == pytest.approx(produced, abs=1e-6)
    assert all(tokens > 0 for _, tokens in booked)
    assert booked == sorted(booked, key=lambda entry: entry[0])


def test_a_long_answer_is_booked_in_steps_and_not_as_a_heap_at_its_end() -> None:
    booked: list[tuple[float, float]] = []
    production = Production(lambda now, tokens: booked.append((now, tokens)))
    production.begin(1, 2.0, 12.0, 500)
    production.advance(4.5)
    assert booked == [(3.0, 50.0), (4.0, 50.0), (4.5, 25.0)]
    assert production.stop(1, 5.0) == 150.0


# -- over real sockets


async def served(spec: str, nursery: trio.Nursery, latency: float = 0.02) -> httpx.AsyncClient:
    provider = Provider(load_profile(f"{spec}&latency={latency}&refusal_delay=0.001&output_speed=100000"))
    port = await nursery.start(partial(serve, provider))
    # No proxy variables, no certificates to load: this is the loopback.
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, verify=False)  # noqa: S501


def chat(number: int = 0, **parameters: JSON) -> dict[str, JSON]:
    return {"model": "m", "messages": [{"role": "user", "content": f"prompt {number}"}], **parameters}


def outcome(response: httpx.Response, dialect: str) -> object:
    """What our own reading makes of an answer that is no stream."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    return DIALECTS[dialect].classify(response.status_code, headers, response.content, wall_now=0.0)


async def test_openai_books_max_tokens_and_announces_two_limits(nursery: trio.Nursery) -> None:
    async with await served("openai-tier1?words=3", nursery) as client:
        taken = await client.post(CHAT, json=chat(max_tokens=150_000))
        assert taken.headers["x-ratelimit-limit-requests"] == "500"
        assert taken.headers["x-ratelimit-remaining-tokens"] == "50000"
        refused = await client.post(CHAT, json=chat(max_tokens=150_000))
    assert "tokens per min (TPM)" in refused.json()["error"]["message"]
    read = outcome(refused, "openai")
    assert isinstance(read, Throttled)
    assert (read.dimension, read.retry_after) == ("tokens", 30)


async def test_anthropic_limits_input_and_output_apart_and_settles_the_output(nursery: trio.Nursery) -> None:
    async with await served("anthropic-tier1?words=3", nursery) as client:

        async def ask(most: int) -> httpx.Response:
            return await client.post(MESSAGES, json=chat(max_tokens=most), headers=ANTHROPIC)

        taken = await ask(7000)
        assert taken.headers["anthropic-ratelimit-input-tokens-limit"] == "30000"
        assert taken.headers["anthropic-ratelimit-output-tokens-limit"] == "8000"
        assert int(taken.headers["anthropic-ratelimit-output-tokens-remaining"]) == 1000
        assert int(taken.headers["anthropic-ratelimit-tokens-remaining"]) == 1000  # the tightest
        again = await ask(7000)  # what the first did not use has come back
        assert int(again.headers["anthropic-ratelimit-output-tokens-remaining"]) > 900


async def test_anthropic_books_the_output_of_all_that_is_open_by_max_tokens(nursery: trio.Nursery) -> None:
    async with (
        await served("anthropic-tier1?words=3", nursery, latency=30.0) as client,
        trio.open_nursery() as asking,
    ):
        asking.start_soon(partial(client.post, MESSAGES, json=chat(max_tokens=7000), headers=ANTHROPIC))
        await trio.sleep(0.1)
        refused = await client.post(MESSAGES, json=chat(1, max_tokens=7000), headers=ANTHROPIC)
        asking.cancel_scope.cancel()
    assert "8,000 output tokens per minute" in refused.json()["error"]["message"]
    read = outcome(refused, "anthropic")
    assert isinstance(read, Throttled)
    assert read.dimension == "output_tokens"


async def test_anthropic_counts_output_as_it_is_produced(nursery: trio.Nursery) -> None:
    async with await served("anthropic-start?words=3&output_tokens_per_minute=5", nursery) as client:
        first = await client.post(MESSAGES, json=chat(max_tokens=4096), headers=ANTHROPIC)
        used = first.json()["usage"]["output_tokens"]
        assert first.headers["anthropic-ratelimit-output-tokens-remaining"] == "5"  # max_tokens does not count
        await trio.sleep(0.05)
        refused = await client.post(MESSAGES, json=chat(1, max_tokens=1), headers=ANTHROPIC)
    assert used > 5
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) == pytest.approx(12 * (used - 5), abs=2)


async def test_gemini_limits_input_tokens_and_says_so_in_the_body(nursery: trio.Nursery) -> None:
    async with await served("gemini-tier1?input_tokens_per_minute=20&words=3", nursery) as client:
        body = {"contents": [{"parts": [{"text": "word " * 12}]}], "generationConfig": {"maxOutputTokens": 5000}}
        assert (await client.post(GEMINI, json=body)).status_code == 200
        refused = await client.post(GEMINI, json=body)
    assert "retry-after" not in refused.headers
    read = outcome(refused, "gemini")
    assert isinstance(read, Throttled)
    assert read.dimension == "input_tokens"
    assert read.retry_after is not None
    assert 0 < read.retry_after <= 60


async def test_the_quota_of_a_day_is_spent_for_good(nursery: trio.Nursery) -> None:
    async with await served("gemini-free-flash?requests_per_day=2&words=3", nursery) as client:
        body = {"contents": [{"parts": [{"text": "hello"}]}]}
        statuses = [(await client.post(GEMINI, json=body)).status_code for _ in range(2)]
        refused = await client.post(GEMINI, json=body)
    assert [*statuses, refused.status_code] == [200, 200, 429]
    read = outcome(refused, "gemini")
    assert isinstance(read, Failed)
    assert (read.kind, "PerDay" in read.message) == (Kind.FATAL, True)


async def test_azure_announces_by_minutes_and_enforces_by_ten_seconds(nursery: trio.Nursery) -> None:
    async with await served("azure?limit=12&words=3", nursery) as client:
        answers = [await client.post(CHAT, json=chat(n, max_tokens=100)) for n in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    refused = answers[-1]
    assert refused.headers["x-ratelimit-limit-requests"] == "12"
    assert 0 < int(refused.headers["x-ratelimit-reset-requests"]) <= 10  # plain seconds
    assert 0 < int(refused.headers["retry-after-ms"]) <= 1000 * int(refused.headers["retry-after"]) <= 10_000
    read = outcome(refused, "azure")
    assert isinstance(read, Throttled)
    assert read.dimension == "requests"


async def test_azure_books_the_sum_of_prompt_and_max_tokens(nursery: trio.Nursery) -> None:
    async with await served("azure?words=3", nursery) as client:
        taken = await client.post(CHAT, json=chat(max_tokens=100_000))
        assert taken.headers["x-ratelimit-remaining-tokens"] == str(120_000 - 100_000 - 2)
        refused = await client.post(CHAT, json=chat(max_tokens=20_000))
    read = outcome(refused, "azure")
    assert isinstance(read, Throttled)
    assert read.dimension == "tokens"


async def test_deepseek_limits_what_is_open_at_once_and_says_how_much_that_is(nursery: trio.Nursery) -> None:
    async with (
        await served("deepseek?concurrency=1&words=3", nursery, latency=30.0) as client,
        trio.open_nursery() as asking,
    ):
        asking.start_soon(partial(client.post, CHAT, json=chat()))
        await trio.sleep(0.1)
        refused = await client.post(CHAT, json=chat(1))
        asking.cancel_scope.cancel()
    assert "concurrency is 2" in refused.json()["error"]["message"]
    read = outcome(refused, "deepseek")
    assert isinstance(read, Throttled)
    assert (read.dimension, read.retry_after) == ("concurrency", None)


async def test_vllm_refuses_nothing(nursery: trio.Nursery) -> None:
    async with await served("vllm?words=3", nursery) as client:
        answers = [await client.post(CHAT, json=chat(n)) for n in range(4)]
    assert {answer.status_code for answer in answers} == {200}


# -- under the whole daemon


@frozen
class Load:
    """What a profile is given, and the most refusals that the default policy may meet there."""

    prompts: int
    most_refused: int
    dialect: str = "openai"


LOADS: Mapping[str, Load] = {
    "anthropic-start": Load(150, 5, "anthropic"),
    "anthropic-tier1": Load(60, 5, "anthropic"),
    "anthropic-tier2": Load(150, 5, "anthropic"),
    "anthropic-tier4": Load(300, 5, "anthropic"),
    "azure": Load(300, 5),
    "deepseek": Load(150, 0),
    "gemini-free": Load(20, 5),
    "gemini-free-flash": Load(30, 5, "gemini"),
    "gemini-tier1": Load(150, 5, "gemini"),
    "gemini-tier2": Load(150, 5, "gemini"),
    "openai-tier1": Load(150, 5),
    "openai-tier5": Load(300, 5),
    "vllm": Load(150, 0),
}
PLAIN = ("flaky", "hostile", "steady")


def run(spec: str, count: int, **changed: object) -> VirtualRun:
    lines = [json.dumps({"id": n, "prompt": f"prompt {n}", "max_tokens": 60}).encode() for n in range(count)]
    settings = Settings(**changed)  # type: ignore[arg-type]  # mypy can't follow the keywords
    return run_virtual(lines, Provider(load_profile(spec)), settings)


def test_every_profile_of_a_provider_is_run() -> None:
    assert sorted([*LOADS, *PLAIN]) == profile_names()


@pytest.mark.parametrize("name", LOADS)
def test_all_is_answered_in_the_provider_s_dialect_with_few_refusals(name: str) -> None:
    load = LOADS[name]
    out = run(f"{name}?words=12&words_per_event=12", load.prompts)
    assert sorted(int(str(result["id"])) for result in out.results) == list(range(load.prompts))
    assert out.tally.ok == load.prompts
    assert out.tally.throttled <= load.most_refused
    assert out.upstream["attempts_by_dialect"] == {load.dialect: out.tally.attempts}


def test_a_run_ends_resumably_when_the_quota_of_the_day_is_spent() -> None:
    out = run("gemini-free-flash?requests_per_day=7&words=3", 12)
    assert (out.exit.name, out.tally.ok, out.tally.failed) == ("UPSTREAM", 7, 0)


@pytest.mark.parametrize("charge", ["settled", "produced"])
def test_what_an_upstream_booked_is_what_the_results_were_told(charge: str) -> None:
    out = run(f"anthropic-start?charge={charge}&words=12", 30)
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
        job = prepare(settings, sources, {}, stack, say=lambda _: None, simulate=cli._simulate)
        assert job.dialect.name == spoken
