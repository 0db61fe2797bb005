"""The stream of a run as another process reads it: real pipes, real sockets."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from command import PATIENCE, TIDEGATE, at, environment, ids, results, run, start, statistics, upstream, write_prompts
from consumer import Consumer
from raw_server import Peer, RawServer

from controller.assemble import warnings
from controller.dialects.table import DIALECTS
from controller.settings import Settings
from controller.sse import Splitter

FAST = ("--policy-option", "start_rate=50")
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
DONE = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
SAYING = "Once upon a time, "


@pytest.fixture(scope="module")
def quick() -> Iterator[str]:
    with upstream("steady?rate=500&burst=500&latency=0.05&words=10") as url:
        yield url


def chunk(text: str) -> bytes:
    """One event of a stream."""
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode() + b"\n\n"


def consumed(output: str) -> Consumer:
    """What a consumer makes of it."""
    return Consumer().read(output.encode().splitlines())


async def next_line(process: trio.Process, buffer: bytearray) -> dict[str, object]:
    """The next line of its stdout."""
    assert process.stdout is not None
    with trio.fail_after(PATIENCE):
        while b"\n" not in buffer:
            data = await process.stdout.receive_some()
            assert data, "it ended"
            buffer += data
    line, _, rest = bytes(buffer).partition(b"\n")
    buffer[:] = rest
    value: dict[str, object] = json.loads(line)
    return value


async def open_run(port: int, prompts: Path, *more: str | Path) -> trio.Process:
    """A run against the raw server, its stdout a pipe."""
    command = [*TIDEGATE, "run", str(prompts), "--base-url", f"http://127.0.0.1:{port}/v1", "--model", "m"]
    return await trio.lowlevel.open_process(
        [*command, *map(str, more)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment()
    )


async def test_a_delta_is_there_before_the_upstream_says_the_next(tmp_path: Path, nursery: trio.Nursery) -> None:
    """The upstream does not go on before the line has been read at the other end of the pipe."""
    read = [trio.Event() for _ in range(3)]

    async def handler(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD)
        for number, event in enumerate(read):
            await peer.send(chunk(f"{number} "))
            await event.wait()
        await peer.send(DONE)

    server = await RawServer(handler).start(nursery)
    process = await open_run(server.port, write_prompts(tmp_path / "p.jsonl", 1), "--emit", "delta")
    buffer = bytearray()
    for number, event in enumerate(read):
        assert (await next_line(process, buffer))["delta"] == f"{number} "
        event.set()
    assert (await next_line(process, buffer))["text"] == "0 1 2 "
    assert await process.wait() == 0
    nursery.cancel_scope.cancel()


async def test_a_broken_answer_is_continued_after_its_seam(tmp_path: Path, nursery: trio.Nursery) -> None:
    asked: list[dict[str, object]] = []

    async def handler(peer: Peer) -> None:
        request = await peer.request()
        assert request is not None
        asked.append(json.loads(request.partition(b"\r\n\r\n")[2]))
        await peer.send(HEAD + (chunk(SAYING) if len(asked) == 1 else chunk("the end.") + DONE))

    server = await RawServer(handler).start(nursery)
    arguments = ("--emit", "delta", "--continue-truncated", "1", "--dialect", "vllm", "-o", tmp_path / "r.jsonl")
    process = await open_run(server.port, write_prompts(tmp_path / "p.jsonl", 1), *arguments)
    buffer = bytearray()
    assert (await next_line(process, buffer))["delta"] == SAYING
    assert (await next_line(process, buffer))["delta"] == "the end."
    assert (await next_line(process, buffer))["text"] == SAYING + "the end."
    (line,) = results(tmp_path / "r.jsonl")  # it is in the file before it is in the stream
    assert await process.wait() == 0
    assert (line["text"], line["seams"], line["attempts"]) == (SAYING + "the end.", [len(SAYING)], 2)
    assert asked[1]["continue_final_message"] is True
    nursery.cancel_scope.cancel()


def test_with_a_results_file_the_stream_goes_to_stdout_and_never_into_the_file(tmp_path: Path, quick: str) -> None:
    prompts, out = write_prompts(tmp_path / "p.jsonl", 10), tmp_path / "r.jsonl"
    arguments = (prompts, "--base-url", quick, "--model", "m", "-o", out, "--emit", "delta", *FAST)
    done = run(*arguments)
    consumer = consumed(done.stdout)
    assert done.returncode == 0
    assert consumer.deltas >= 10
    assert consumer.agrees()
    assert ids(results(out)) == ids(list(consumer.results.values())) == list(range(10))
    assert all(line["status"] == "ok" for line in results(out))
    again = run(*arguments)
    assert (again.returncode, again.stdout) == (0, "")
    assert "0 attempts" in again.stderr


def test_a_retried_prompt_takes_back_what_its_broken_attempt_said(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path / "p.jsonl", 20)
    url = "sim:steady?rate=500&burst=500&latency=0.05&words=10&truncate_share=0.4"
    done = run(prompts, "--base-url", url, "--emit", "delta", "--max-failures", "50", *FAST)
    consumer = consumed(done.stdout)
    assert done.returncode == 0, done.stderr
    assert len(consumer.results) == 20
    assert len(consumer.restarts) >= 3
    assert consumer.agrees()
    for line in consumer.restarts:
        assert line.keys() == {"id", "key", "restart", "attempt", "kept"}
        assert int(str(line["attempt"])) <= int(str(consumer.results[str(line["key"])]["attempts"]))


def test_server_sent_events_are_read_by_any_reader_of_them(tmp_path: Path, quick: str) -> None:
    prompts = write_prompts(tmp_path / "p.jsonl", 3)
    done = run(prompts, "--base-url", quick, "--model", "m", "--emit", "sse")
    events = Splitter().feed(done.stdout.encode())
    assert {event.name for event in events} == {"delta", "result"}
    consumer = Consumer().read(event.data.encode() for event in events)
    assert consumer.agrees()
    assert len(consumer.results) == 3
    numbers = [line.removeprefix("id: ") for line in done.stdout.splitlines() if line.startswith("id: ")]
    assert numbers == [str(number) for number in range(1, len(events) + 1)]


def test_batch_lines_stream_under_the_names_of_their_results(tmp_path: Path, quick: str) -> None:
    prompts = tmp_path / "b.jsonl"
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "n": 2}
    prompts.write_text(
        json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}) + "\n"
    )
    lines = [json.loads(line) for line in run(prompts, "--base-url", quick, "--emit", "delta").stdout.splitlines()]
    *deltas, result = lines
    assert {line["id"] for line in lines} == {result["id"]}
    assert {line["custom_id"] for line in lines} == {"a"}
    for index in (0, 1):
        text = "".join(line["delta"] for line in deltas if line["index"] == index)
        assert text == at(result, "response", "body", "choices", index, "message", "content")


@pytest.mark.parametrize("to_file", [False, True])
def test_a_reader_that_leaves_ends_the_run_resumably(tmp_path: Path, to_file: bool) -> None:
    prompts, out = write_prompts(tmp_path / "p.jsonl", 100), tmp_path / "r.jsonl"
    with upstream("steady?rate=200&burst=20&latency=0.1&words=10") as url:
        arguments = (prompts, "--base-url", url, "--model", "m", *(("-o", out) if to_file else ()), *FAST)
        process = start(*arguments, "--emit", "delta")
        assert process.stdout is not None
        assert "delta" in json.loads(process.stdout.readline())
        process.stdout.close()
        assert process.stderr is not None
        errors = process.stderr.read()
        process.stderr.close()
        assert process.wait(PATIENCE) == 5
        seen = statistics(url)
        assert "Traceback" not in errors
        assert "cannot write results to stdout" in errors
        assert int(str(seen["attempts"])) < 100
        if to_file:
            assert len(results(out)) == seen["completed"], "what was paid for is kept"
            assert run(*arguments).returncode == 0
            assert ids(results(out)) == sorted(range(100), key=str)


@pytest.mark.slow
def test_a_reader_that_pauses_loses_nothing(tmp_path: Path) -> None:
    """Some 600 kB of stream, ten times what a pipe holds."""
    prompts = write_prompts(tmp_path / "p.jsonl", 30)
    with upstream("steady?rate=500&burst=500&latency=0.2&words=400") as url:
        process = start(
            prompts, "--base-url", url, "--model", "m", "--emit", "delta", "--policy-option", "start_rate=50"
        )
        assert process.stdout is not None
        first = process.stdout.readline()
        while statistics(url)["completed"] != 30:  # the upstream is done although nobody reads
            time.sleep(0.05)
        rest, errors = process.communicate(timeout=PATIENCE)
    consumer = consumed(first + rest)
    assert process.returncode == 0, errors
    assert len(consumer.results) == 30
    assert consumer.agrees()


@pytest.mark.parametrize("output", ["r.jsonl", "/dev/stdout"])
def test_the_stream_is_not_written_where_the_results_go(tmp_path: Path, output: str) -> None:
    prompts = write_prompts(tmp_path / "p.jsonl", 1)
    line = f'"$@" > {tmp_path / "r.jsonl"}' if output == "r.jsonl" else '"$@" | cat'
    command = [*TIDEGATE, "run", str(prompts), "--base-url", "sim:steady", "--emit", "delta", "-o", output]
    done = subprocess.run(
        ["sh", "-c", line, "sh", *command],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=environment(),
        cwd=tmp_path,
        check=False,
    )
    assert "tidegate: error: -" in done.stderr
    assert "--emit" in done.stderr
    assert done.stdout == ""


def test_a_wish_that_the_dialect_cannot_grant_is_said_at_the_start() -> None:
    (line,) = warnings(Settings(continue_truncated=2), DIALECTS["openai"])
    assert "--continue-truncated: dialect openai knows no way" in line
    assert warnings(Settings(continue_truncated=2), DIALECTS["vllm"]) == []
    assert warnings(Settings(), DIALECTS["openai"]) == []
