"""Failures of other people's tools that only a process shows: proxies, pipes, descriptors, noise, exit codes."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from pathlib import Path

import pytest
import trio
from command import PATIENCE, ids, results, run, start, statistics, upstream, write_prompts
from raw_server import Peer, RawServer

from controller.dialects.table import dialect_for
from controller.outcome import Completed, Failed, Kind, Outcome
from controller.records import Prompt
from controller.transport import open_transport
from controller.upstream import Upstream

FAST = ("--policy-option", "start_rate=50")
DEAD = "http://127.0.0.1:9"
PROXIES = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


def test_c33_a_run_with_streams_cut_short_says_nothing_on_stderr_but_its_own_words(tmp_path: Path) -> None:
    # https://github.com/pydantic/httpx2/issues/1195
    prompts, out = write_prompts(tmp_path / "p.jsonl", 40), tmp_path / "r.jsonl"
    with upstream("steady?rate=500&burst=500&latency=0.02&words=3&manners=held") as url:
        done = run(prompts, "--base-url", url, "--model", "m", "-o", out, *FAST)
    assert (done.returncode, len(results(out))) == (0, 40)
    assert all(line.startswith("tidegate: ") for line in done.stderr.splitlines()), done.stderr


@pytest.mark.parametrize("fault", ["http-quota", pytest.param("in-band-quota", marks=pytest.mark.slow)])
def test_c50_a_spent_account_has_its_own_exit_code_and_the_run_resumes(fault: str, tmp_path: Path) -> None:
    # https://github.com/langchain-ai/langchainjs/issues/1929
    prompts, out = write_prompts(tmp_path / "p.jsonl", 10), tmp_path / "r.jsonl"
    with upstream(f"steady?latency=0.02&fault={fault}") as url:
        done = run(prompts, "--base-url", url, "--model", "m", "-o", out)
        assert int(str(statistics(url)["attempts"])) < 10
    assert (done.returncode, out.read_bytes()) == (3, b"")
    assert "exceeded your current quota" in done.stderr
    with upstream() as url:
        assert run(prompts, "--base-url", url, "--model", "m", "-o", out, *FAST).returncode == 0
    assert ids(results(out)) == list(range(10))


def test_c51_a_day_that_is_used_up_ends_the_run_in_seconds(tmp_path: Path) -> None:
    # https://github.com/google-gemini/gemini-cli/issues/10925
    prompts, out = write_prompts(tmp_path / "p.jsonl", 10), tmp_path / "r.jsonl"
    with upstream("steady?latency=0.02&rate=1&burst=3&hint=per-day") as url:
        gemini = url.removesuffix("/v1") + "/v1beta"
        done = run(prompts, "--base-url", gemini, "--dialect", "gemini", "--model", "m", "-o", out, *FAST)
    assert done.returncode == 3, done.stderr
    assert "exhausted" in done.stderr
    assert all(line["status"] == "ok" for line in results(out))


def test_c71_a_writer_to_stdin_is_held_back_by_what_the_upstream_takes() -> None:
    # https://github.com/EleutherAI/lm-evaluation-harness/issues/3089
    with upstream("steady?latency=60&first_token=0") as url:
        process = start("-", "--base-url", url, "--model", "m", "--max-in-flight", "2", stdin=-1, text=False)
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        line, taken, deadline = json.dumps("x" * 10_000).encode() + b"\n", 0, time.monotonic() + 1.5
        while time.monotonic() < deadline:
            try:
                taken += os.write(process.stdin.fileno(), line)
            except BlockingIOError:
                time.sleep(0.01)
        for _ in range(2):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.1)
        os.set_blocking(process.stdin.fileno(), True)
        process.communicate(timeout=PATIENCE)
    assert 3 * len(line) < taken < 1_000_000, "a pipe, a chunk and the prompts in hand, whatever the writer has"


@pytest.mark.slow
def test_c72_three_hundred_sockets_are_open_at_once(tmp_path: Path) -> None:
    # https://github.com/UKGovernmentBEIS/inspect_ai/issues/847
    prompts, out = write_prompts(tmp_path / "p.jsonl", 900), tmp_path / "r.jsonl"
    with upstream("steady?quota=none&latency=5&words=1") as url:
        flags = ("--max-in-flight", "300", "--policy-option", "start_rate=200")
        done = run(prompts, "--base-url", url, "--model", "m", "-o", out, *flags)
        seen = statistics(url)
    assert (done.returncode, len(results(out))) == (0, 900)
    assert seen["most_in_flight"] == 300
    assert 300 <= int(str(seen["connections"])) <= 310


def test_c72_more_in_flight_than_descriptors_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path / "p.jsonl", 1)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    done = run(prompts, "--base-url", "http://127.0.0.1:9/v1", "--model", "m", "--max-in-flight", str(hard))
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "open files" in done.stderr


@pytest.mark.slow
def test_c77_seconds_of_refusals_are_few_lines_on_stderr(tmp_path: Path) -> None:
    # https://github.com/bespokelabsai/curator/pull/256
    prompts, out = write_prompts(tmp_path / "p.jsonl", 100), tmp_path / "r.jsonl"
    with upstream("steady?rate=500&burst=500&latency=0.02&words=3&retry_after=0&refuse_share=[[0,1],[1.5,0]]") as url:
        done = run(
            prompts, "--base-url", url, "--model", "m", "-o", out, "--progress", "lines", *FAST, "--policy", "aimd"
        )
    assert (done.returncode, len(results(out))) == (0, 100)
    assert len(done.stderr.splitlines()) <= 8, done.stderr


def test_c113_a_proxy_in_the_environment_does_not_catch_loopback(tmp_path: Path) -> None:
    # https://github.com/unslothai/unsloth/pull/6752
    prompts = write_prompts(tmp_path / "p.jsonl", 3)
    with upstream() as url:
        for host in ("127.0.0.1", "localhost"):
            near, out = url.replace("127.0.0.1", host).replace("localhost", host), tmp_path / f"{host}.jsonl"
            done = run(prompts, "--base-url", near, "--model", "m", "-o", out, **dict.fromkeys(PROXIES, DEAD))
            assert (done.returncode, len(results(out))) == (0, 3), done.stderr


PROMPT = Prompt(id="a", key="0" * 32, source="-", line=1, request={"model": "m", "messages": []})


async def through(proxy: str, url: str) -> Outcome:
    """One attempt by way of a proxy."""

    class Seen:
        sent, first_token_at, usage = False, None, None

    class Fake:
        seen = Seen()

        def accept(self, _: object) -> None:
            """Nobody is told."""

    transport = open_transport(url, environ={"http_proxy": proxy, "https_proxy": proxy})
    async with Upstream(transport=transport, base_url=url, dialect=dialect_for("openai", "")) as upstream:
        return await upstream.attempt(PROMPT, Fake())  # type: ignore[arg-type]  # the shape is all that counts


@pytest.mark.parametrize("url", ["http://llm.test/v1", "https://llm.test/v1"])
async def test_c113_a_proxy_that_fails_is_called_a_proxy(url: str, nursery: trio.Nursery) -> None:
    async def refuse(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 503 Proxy Down\r\ncontent-length: 0\r\n\r\n")

    server = await RawServer(refuse).start(nursery)
    dead = await through(DEAD, url)
    assert isinstance(dead, Failed)
    assert (dead.kind, "proxy" in dead.message) == (Kind.CONNECT, True)
    refused = await through(f"http://127.0.0.1:{server.port}", url)
    assert not isinstance(refused, Completed)
    if url.startswith("https"):  # only a tunnel tells the proxy's answer from the upstream's
        assert isinstance(refused, Failed)
        assert (refused.kind, "proxy" in refused.message) == (Kind.CONNECT, True)
    nursery.cancel_scope.cancel()
