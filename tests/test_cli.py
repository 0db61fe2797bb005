"""The command as a user meets it: real processes, real files, real sockets, real signals."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import (
    PATIENCE,
    TIDEGATE,
    at,
    each,
    environment,
    ids,
    results,
    run,
    start,
    statistics,
    upstream,
    write_prompts,
)

from controller.cli import main

SECRET = "sk-test-7c1d9"
FAST = ("--policy-option", "start_rate=30")  # slow start is not what these tests are about


@pytest.fixture(scope="module")
def quick() -> Iterator[str]:
    with upstream() as url:
        yield url


def wait_for_lines(path: Path, count: int) -> None:
    """Until `path` holds so many results; the run that writes them is another process."""
    deadline = time.monotonic() + PATIENCE
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


# -- the main job


def test_a_file_is_answered_and_the_server_saw_no_more_than_was_recorded(tmp_path: Path) -> None:
    prompts, out = write_prompts(tmp_path / "p.jsonl", 100), tmp_path / "r.jsonl"
    with upstream("steady?rate=40&burst=5&latency=0.05&words=3") as url:
        done = run(prompts, "--base-url", url, "--model", "m", "-o", out, *FAST)
        seen = statistics(url)
    assert done.returncode == 0, done.stderr
    assert ids(results(out)) == sorted(range(100), key=str)
    assert all(line["status"] == "ok" and line["text"] for line in results(out))
    assert seen["attempts"] == sum(int(str(line["attempts"])) for line in results(out))
    assert seen["completed"] == 100
    assert "100 ok, 0 failed, 0 pending" in done.stderr
    assert done.stdout == ""


def test_stdin_to_stdout_carries_results_and_nothing_else(quick: str) -> None:
    done = run("--base-url", quick, "--model", "m", text='"one"\n{"prompt": "two", "id": 2}\n')
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert sorted(str(line["id"]) for line in lines) == ["2", "None"]
    assert all(line["source"] == "-" for line in lines)


def test_results_of_a_slow_pipe_appear_while_it_is_still_open(quick: str, tmp_path: Path) -> None:
    fifo, out = tmp_path / "fifo", tmp_path / "r.jsonl"
    os.mkfifo(fifo)
    process = start(fifo, "--base-url", quick, "--model", "m", "-o", out)
    with fifo.open("w") as feed:
        for number in range(3):
            feed.write(json.dumps({"id": number, "prompt": "x"}) + "\n")
            feed.flush()
            wait_for_lines(out, number + 1)
    assert process.wait(PATIENCE) == 0
    process.communicate()
    assert ids(results(out)) == [0, 1, 2]


def test_the_simulated_upstream_needs_no_server_no_key_and_no_model(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    done = run("-", "--base-url", "sim:steady", "-o", out, text='"x"\n')
    assert (done.returncode, len(results(out))) == (0, 1)


def test_a_line_of_five_megabytes_just_works(tmp_path: Path, quick: str) -> None:
    prompts, out = tmp_path / "p.jsonl", tmp_path / "r.jsonl"
    prompts.write_text(json.dumps("long " * 1_000_000) + '\n"short"\n')
    done = run(prompts, "--base-url", quick, "--model", "m", "-o", out)
    assert (done.returncode, len(results(out))) == (0, 2)


# -- being killed, stopped and resumed


def test_after_a_kill_the_same_command_loses_no_id_and_repeats_none(tmp_path: Path) -> None:
    prompts, out = write_prompts(tmp_path / "p.jsonl", 120), tmp_path / "r.jsonl"
    with upstream("steady?rate=60&burst=60&latency=0.05&words=3") as url:
        arguments = (prompts, "--base-url", url, "--model", "m", "-o", out, *FAST)
        for wanted in (5, 40):
            process = start(*arguments)
            wait_for_lines(out, wanted)
            process.kill()
            process.communicate()
        with out.open("ab") as file:
            file.write(b'{"id": 99, "key": "to')  # what a crash in the middle of a write leaves
        done = run(*arguments)
        seen = statistics(url)
    assert done.returncode == 0
    assert "torn last line" in done.stderr
    assert ids(results(out)) == sorted(range(120), key=str)
    assert int(str(seen["completed"])) <= 120 + 2 * 64, "at most what was in flight is paid again"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_drains_and_the_next_run_completes(tmp_path: Path, number: signal.Signals, code: int) -> None:
    prompts, out = write_prompts(tmp_path / "p.jsonl", 60), tmp_path / "r.jsonl"
    with upstream("steady?rate=30&burst=5&latency=0.3&words=3") as url:
        arguments = (prompts, "--base-url", url, "--model", "m", "-o", out, *FAST)
        process = start(*arguments)
        wait_for_lines(out, 3)
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE)
        seen = statistics(url)
        assert process.returncode == code
        assert seen["aborted"] == 0, "what was under way was finished"
        assert seen["completed"] == len(results(out))
        assert "run the same command again" in errors
        assert "Traceback" not in errors
        assert run(*arguments).returncode == 0
    assert ids(results(out)) == sorted(range(60), key=str)


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    prompts, out = write_prompts(tmp_path / "p.jsonl", 20), tmp_path / "r.jsonl"
    with upstream("steady?latency=300") as url:
        process = start(prompts, "--base-url", url, "--model", "m", "-o", out)
        while statistics(url)["in_flight"] == 0:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 143
    assert time.monotonic() - began < 5
    assert "Traceback" not in errors


def test_a_finished_run_has_nothing_left_to_do(tmp_path: Path, quick: str) -> None:
    prompts, out = write_prompts(tmp_path / "p.jsonl", 5), tmp_path / "r.jsonl"
    arguments = (prompts, "--base-url", quick, "--model", "m", "-o", out)
    run(*arguments)
    before = out.read_bytes()
    done = run(*arguments)
    assert (done.returncode, out.read_bytes()) == (0, before)
    assert "of an earlier run 5 ok, 0 failed" in done.stderr
    assert "0 attempts" in done.stderr


def test_the_last_lines_and_the_summary_prove_that_nothing_is_missing_and_nothing_double(
    tmp_path: Path, quick: str
) -> None:
    prompts, out, summary = tmp_path / "p.jsonl", tmp_path / "r.jsonl", tmp_path / "s.json"
    prompts.write_text('{"id": 1, "prompt": "a"}\n"b"\n{broken\n{"id": 1, "prompt": "a"}\n')
    arguments = (prompts, "--base-url", quick, "--model", "m", "-o", out, "--summary", summary)
    done = run(*arguments, "--first", "1")
    assert done.stderr.splitlines()[-1].endswith(
        f"1 read: 1 ok, 0 failed, 0 pending, 0 duplicates; recounted from {out}: missing 0, double 0"
    )
    done = run(*arguments)
    assert "4 read: 2 ok, 1 failed, 0 pending, 1 duplicates" in done.stderr.splitlines()[-1]
    assert "this run: 1 ok, 1 failed; 1 attempts, 0 throttled; " in done.stderr.splitlines()[-2]
    told = json.loads(summary.read_text())
    names = (
        "read",
        "ok",
        "failed",
        "pending",
        "duplicates",
        "missing",
        "double",
        "attempts",
        "throttled",
        "paid_again",
        "this_run_paid_again",
    )
    assert [told[name] for name in names] == [4, 2, 1, 0, 1, 0, 0, 1, 0, 0, 0]
    assert told["output_tokens"] > 0
    assert (told["exit_code"], told["stopped"], done.returncode) == (1, None, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.jsonl", "r.jsonl", "s.json"]


def test_results_that_were_there_twice_are_told_and_so_are_those_that_vanished(tmp_path: Path, quick: str) -> None:
    prompts, out = write_prompts(tmp_path / "p.jsonl", 3), tmp_path / "r.jsonl"
    arguments = (prompts, "--base-url", quick, "--model", "m", "-o", out)
    run(*arguments, "--first", "2")
    out.write_bytes(out.read_bytes() * 2)
    assert "missing 0, double 2" in run(*arguments).stderr
    with prompts.open("a") as file:
        file.write('"one more, so that it is busy"\n')
    with upstream("steady?latency=1") as slow:
        process = start(prompts, "--base-url", slow, "--model", "m", "-o", out)
        while statistics(slow)["in_flight"] == 0:
            time.sleep(0.02)
        os.truncate(out, 0)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 5
    assert "missing 3, double 0" in errors
    assert "was changed while the run wrote to it" in errors


def test_a_file_that_is_removed_in_the_last_moment_comes_back_all_the_same(tmp_path: Path) -> None:
    prompts, out = write_prompts(tmp_path / "p.jsonl", 1), tmp_path / "r.jsonl"
    with upstream("steady?latency=0.1") as url:
        process = start(prompts, "--base-url", url, "--model", "m", "-o", out)
        while not statistics(url)["in_flight"]:
            time.sleep(0.005)
        out.unlink()
        _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, len(results(out))) == (0, 1)
    assert "put back as it was" in errors


def test_failed_prompts_are_tried_again_only_if_so_wished(tmp_path: Path, quick: str) -> None:
    prompts, out = write_prompts(tmp_path / "p.jsonl", 3), tmp_path / "r.jsonl"
    with upstream("steady?error_share=1&latency=0.02") as bad:
        failed = run(
            prompts, "--base-url", bad, "--model", "m", "-o", out, "--max-failures", "1", "--connect-timeout", "1"
        )
    assert failed.returncode == 1, failed.stderr
    arguments = (prompts, "--base-url", quick, "--model", "m", "-o", out)
    left_alone = run(*arguments)
    assert (left_alone.returncode, len(results(out))) == (1, 3)
    again = run(*arguments, "--retry-failed")
    assert again.returncode == 0, again.stderr
    assert [line["status"] for line in results(out)] == ["error"] * 3 + ["ok"] * 3
    assert "3 read: 3 ok, 0 failed, 0 pending, 0 duplicates" in again.stderr
    assert "missing 0, double 0" in again.stderr


def test_a_changed_line_under_a_known_id_is_a_new_prompt_and_is_told(tmp_path: Path, quick: str) -> None:
    prompts, out = write_prompts(tmp_path / "p.jsonl", 3), tmp_path / "r.jsonl"
    arguments = (prompts, "--base-url", quick, "--model", "m", "-o", out)
    run(*arguments)
    prompts.write_text(prompts.read_text().replace("prompt 1", "another prompt"))
    done = run(*arguments)
    assert "1 lines are new under an id that has a result for other content, first " in done.stderr
    assert f"{prompts}:2" in done.stderr
    assert ids(results(out)) == [0, 1, 1, 2]


def test_what_a_pipe_gave_a_killed_run_is_answered_by_the_next_one(tmp_path: Path) -> None:
    out, lines = tmp_path / "r.jsonl", "".join(f'{{"id": {n}, "prompt": "x"}}\n' for n in range(20))
    with upstream("steady?latency=1&rate=500&burst=500") as url:
        process = start("-", "--base-url", url, "--model", "m", "-o", out, *FAST, stdin=subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(lines)
        process.stdin.flush()
        while statistics(url)["in_flight"] == 0:
            time.sleep(0.02)
        process.kill()
        process.communicate()
        done = run("-", "--base-url", url, "--model", "m", "-o", out, *FAST, text='"one more"\n')
    assert done.returncode == 0, done.stderr
    assert "20 lines of an earlier run are taken up first" in done.stderr
    assert "attempts were under way when an earlier run died or was stopped: they may be paid again" in done.stderr
    assert " paid again after a crash or a stop" in done.stderr
    assert "21 read: 21 ok, 0 failed, 0 pending, 0 duplicates" in done.stderr
    assert ids(results(out)) == ids([{"id": n} for n in [*range(20), None]])
    assert [path.name for path in tmp_path.iterdir()] == ["r.jsonl"]


def test_no_resume_answers_the_same_text_again(tmp_path: Path, quick: str) -> None:
    prompts, out = write_prompts(tmp_path / "p.jsonl", 3), tmp_path / "r.jsonl"
    for _ in range(2):
        run(prompts, "--base-url", quick, "--model", "m", "-o", out, "--no-resume")
    assert ids(results(out)) == [0, 0, 1, 1, 2, 2]
    assert len({line["key"] for line in results(out)}) == 6


def test_two_runs_cannot_write_the_same_results(tmp_path: Path) -> None:
    prompts, out = write_prompts(tmp_path / "p.jsonl", 5), tmp_path / "r.jsonl"
    with upstream("steady?latency=300") as url:
        process = start(prompts, "--base-url", url, "--model", "m", "-o", out)
        while statistics(url)["in_flight"] == 0:
            time.sleep(0.02)
        second = run(prompts, "--base-url", url, "--model", "m", "-o", out)
        process.kill()
        process.communicate()
    assert second.returncode == 2
    assert "is in use by another run" in second.stderr


# -- bad input


@pytest.mark.parametrize("endpoint", ["/chat/completions", "/responses", "/messages", "/"])
def test_a_base_url_may_name_the_endpoint_itself(tmp_path: Path, quick: str, endpoint: str) -> None:
    done = run(write_prompts(tmp_path / "p.jsonl", 1), "--base-url", quick + endpoint, "--model", "m")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["text"]


def test_what_is_not_there_is_named_with_its_url(tmp_path: Path, quick: str) -> None:
    done = run(write_prompts(tmp_path / "p.jsonl", 1), "--base-url", f"{quick}/nope", "--model", "m")
    assert done.returncode == 3
    assert f"(POST {quick}/nope/chat/completions)" in done.stderr


def one_line_error(done: subprocess.CompletedProcess[str], *words: str, code: int = 2) -> None:
    """A message of one line that holds `words`, no traceback, nothing on stdout."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("tidegate: error:")]
    for word in words:
        assert word in line
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.jsonl", "--base-url", "sim:steady"], ["none.jsonl", "No such file"]),
        (["folder", "--base-url", "sim:steady"], ["folder", "directory"]),
        (["p.jsonl"], ["--base-url"]),
        (["p.jsonl", "--base-url", "api.example.com/v1"], ["no scheme", "https://api.example.com/v1"]),
        (["p.jsonl", "--base-url", "ftp://x/v1"], ["scheme"]),
        (
            ["p.jsonl", "--base-url", "http://127.0.0.1:9/v1beta/models/gem-1:generateContent"],
            ["--model gem-1", "--base-url http://127.0.0.1:9/v1beta"],
        ),
        (["p.jsonl", "--base-url", "http:///v1"], ["host"]),
        (["p.jsonl", "--base-url", "http://x:99999/v1"], ["port"]),
        (["p.jsonl", "--base-url", "https://api.example.com/v1"], ["key", "api.example.com", "--api-key-env"]),
        (["p.jsonl", "--base-url", "https://u:p4ss@x/v1"], ["--base-url", "--api-key-env"]),
        (["p.jsonl", "--base-url", "u:p4ss@x/v1"], ["--base-url", "--api-key-env"]),
        (["p.jsonl", "--base-url", "https://x/v1?version=1"], ["--base-url", "query"]),
        (["p.jsonl", "--base-url", "https://x/v1\n"], ["--base-url", "line ends"]),
        (["p.jsonl", "--base-url", "http://a..localhost/v1"], ["--base-url", "host"]),
        (["p.jsonl", "--base-url", "https://x/v1", "--api-key-env", "NO_SUCH"], ["--api-key-env", "that is set"]),
        (["p.jsonl", "--base-url", "https://x/v1", "--api-key-file", "none.key"], ["--api-key-file", "No such file"]),
        (["p.jsonl", "--base-url", "sim:steedy"], ["steedy", 'did you mean "steady"']),
        (["p.jsonl", "--base-url", "sim:steady?rat=3"], ["rat", 'did you mean "rate"']),
        (["p.jsonl", "--base-url", "sim:steady", "--policy", "aimed"], ['did you mean "aimd"']),
        (["p.jsonl", "--base-url", "sim:steady", "--policy-option", "start_rat=2"], ['did you mean "start_rate"']),
        (["p.jsonl", "--base-url", "sim:steady", "--dialect", "opnai"], ["opnai"]),
        (["p.jsonl", "--base-url", "sim:steady", "--param", "temperature"], ["temperature", "KEY=VALUE"]),
        (["p.jsonl", "--base-url", "sim:steady", "--param", "stop=END"], ["stop", "not JSON"]),
        (["p.jsonl", "--base-url", "sim:steady", "--max-in-flight", "0"], ["--max-in-flight", "at least 1"]),
        (["p.jsonl", "--base-url", "sim:steady", "--total-timeout", "nan"], ["--total-timeout"]),
        (["p.jsonl", "--base-url", "sim:steady", "--config", "bad.toml"], ["bad.toml", 'did you mean "max_in_flight"']),
        (["p.jsonl", "--base-url", "sim:steady", "--config", "none.toml"], ["none.toml"]),
        (["p.jsonl", "--base-url", "sim:steady", "-o", "p.jsonl"], ["p.jsonl", "-o"]),
        (["p.jsonl", "--base-url", "sim:steady", "-o", "link.jsonl"], ["p.jsonl"]),
        (["p.jsonl", "--base-url", "sim:steady", "-o", "no/such/r.jsonl"], ["no/such"]),
        (["p.jsonl", "--base-url", "sim:steady", "-o", "folder"], ["folder", "directory"]),
        (["p.jsonl", "--base-url", "sim:steady", "-o", "notes.txt"], ["notes.txt"]),
        (["p.jsonl", "--base-url", "sim:steady", "--decisions", "no/d"], ["no/d"]),
        (["p.jsonl", "--base-url", "sim:steady", "--decisions", "link.jsonl"], ["--decisions", "p.jsonl"]),
        (
            ["p.jsonl", "--base-url", "sim:steady", "-o", "r.jsonl", "--decisions", "./r.jsonl"],
            ["--decisions", "r.jsonl"],
        ),
        (["p.jsonl", "--base-url", "sim:steady", "--max-in-flight", "9" * 20], ["--max-in-flight", "at most"]),
        (["p.jsonl", "--base-url", "sim:steady", "--policy", "json:Class"], ["json:Class"]),
        (["p.jsonl", "--base-url", "https://x", "--ca-file", "none.pem", "--api-key-env", "HOME"], ["none.pem"]),
        (["p.jsonl", "--base-url", "sim:steady", "--no-such-flag"], ["--no-such-flag"]),
    ],
)
def test_what_cannot_work_is_said_in_one_line_before_anything_is_sent(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arguments: list[str],
    words: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_prompts(tmp_path / "p.jsonl", 2)
    (tmp_path / "folder").mkdir()
    (tmp_path / "bad.toml").write_text("max-in-fligt = 3\n")
    (tmp_path / "notes.txt").write_text("my notes, no results\n")
    os.link(tmp_path / "p.jsonl", tmp_path / "link.jsonl")
    monkeypatch.setattr(sys, "argv", ["tidegate", "run", *arguments])  # in this process: nothing is started
    with pytest.raises(SystemExit) as ended:
        main()
    out, errors = capfd.readouterr()
    one_line_error(subprocess.CompletedProcess(arguments, int(str(ended.value.code)), out, errors), *words)
    assert "p4ss" not in errors
    assert (tmp_path / "p.jsonl").read_text().count("\n") == 2
    assert (tmp_path / "notes.txt").read_text() == "my notes, no results\n"


def test_a_broken_line_becomes_an_error_result_with_its_place_and_the_run_goes_on(tmp_path: Path, quick: str) -> None:
    prompts, out = tmp_path / "p.jsonl", tmp_path / "r.jsonl"
    prompts.write_bytes(b'"fine"\n{"prompt": \n\xff\xfe\n"fine too"\n')
    done = run(prompts, "--base-url", quick, "--model", "m", "-o", out)
    assert done.returncode == 1
    by_line = {line["line"]: line for line in results(out)}
    assert [by_line[number]["status"] for number in (1, 2, 3, 4)] == ["ok", "error", "error", "ok"]
    assert by_line[2]["source"] == str(prompts)
    assert isinstance(by_line[2]["error"], dict)
    assert by_line[2]["error"]["kind"] == "input"
    assert run(prompts, "--base-url", quick, "--model", "m", "-o", out).returncode == 1, "it still has failed"
    assert len(results(out)) == 4


def test_utf_16_is_named_with_the_way_to_convert_it(tmp_path: Path, quick: str) -> None:
    prompts, out = tmp_path / "p.jsonl", tmp_path / "r.jsonl"
    prompts.write_bytes('"hello"\n'.encode("utf-16"))
    done = run(prompts, "--base-url", quick, "--model", "m", "-o", out)
    assert done.returncode == 1
    assert "iconv" in out.read_text()


def test_no_prompts_and_no_pipe_is_a_usage_error(quick: str) -> None:
    master, terminal = os.openpty()
    process = start("--base-url", quick, stdin=terminal)
    _, errors = process.communicate(timeout=PATIENCE)
    os.close(master)
    os.close(terminal)
    assert process.returncode == 2
    assert "no prompts" in errors


def test_a_line_without_a_model_is_a_usage_error(tmp_path: Path, quick: str) -> None:
    done = run(write_prompts(tmp_path / "p.jsonl", 2), "--base-url", quick, "-o", tmp_path / "r.jsonl")
    assert done.returncode == 2
    assert "p.jsonl:1 names no model; give --model" in done.stderr


# -- trouble with the output and the key


def test_a_full_disk_ends_the_run_resumably(tmp_path: Path, quick: str) -> None:
    done = run(write_prompts(tmp_path / "p.jsonl", 5), "--base-url", quick, "--model", "m", "-o", "/dev/full")
    assert done.returncode == 5
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_leaves_ends_the_run_without_a_traceback(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path / "p.jsonl", 200)
    with upstream("steady?rate=50&burst=50&latency=0.02") as url:
        process = start(prompts, "--base-url", url, "--model", "m")
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        errors = process.stderr.read()
        assert process.wait(PATIENCE) == 5
        assert int(str(statistics(url)["attempts"])) < 200
    assert "Traceback" not in errors
    process.stderr.close()


def test_a_wrong_key_stops_the_run_resumably_and_is_never_shown(tmp_path: Path) -> None:
    prompts, out = write_prompts(tmp_path / "p.jsonl", 5), tmp_path / "r.jsonl"
    key = tmp_path / "key"
    key.write_text(SECRET + "\n")
    with upstream("steady?api_key=another") as url:
        done = run(prompts, "--base-url", url, "--model", "m", "-o", out, "--api-key-file", key)
        again = run(prompts, "--base-url", url, "--model", "m", "-o", out, "--api-key-env", "K", K="another")
    assert done.returncode == 3
    assert "401" in done.stderr
    assert SECRET not in done.stderr + out.read_text()
    assert (again.returncode, ids(results(out))) == (0, list(range(5)))


def test_a_key_given_where_a_name_belongs_is_not_repeated(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path / "p.jsonl", 1)
    done = run(prompts, "--base-url", "https://x/v1", "--api-key-env", SECRET)
    one_line_error(done, "--api-key-env", "not the key itself")
    assert SECRET not in done.stderr


def test_settings_come_from_defaults_then_toml_then_environment_then_flags(tmp_path: Path, quick: str) -> None:
    prompts = write_prompts(tmp_path / "p.jsonl", 1)
    config = tmp_path / "t.toml"
    config.write_text(f'base-url = "{quick}"\nmodel = "from-toml"\n')
    shown = [
        json.loads(run(prompts, "--config", config, *flags, **names).stdout)["model"]
        for flags, names in [
            ((), {}),
            ((), {"TIDEGATE_MODEL": "from-env"}),
            (("--model", "flag"), {"TIDEGATE_MODEL": "e"}),
        ]
    ]
    assert shown == ["from-toml", "from-env", "flag"]


def test_decisions_are_written_as_a_trace(tmp_path: Path) -> None:
    trace = tmp_path / "d.jsonl"
    done = run(write_prompts(tmp_path / "p.jsonl", 40), "--base-url", "sim:steady?rate=100", "--decisions", trace)
    assert done.returncode == 0
    rates = [json.loads(line)["new"] for line in trace.read_text().splitlines()]
    assert rates == sorted(rates)
    assert rates[-1] > 5


def test_policies_are_listed_with_their_options() -> None:
    listed = subprocess.run(
        [*TIDEGATE, "policies"], capture_output=True, text=True, timeout=PATIENCE, check=True
    ).stdout
    assert "aimd: Additive increase, multiplicative decrease" in listed
    assert "decrease_factor=0.7" in listed


@pytest.mark.parametrize("name", ["policies", "simulations"])
def test_a_folder_that_shadows_a_package_of_ours_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)  # python -m puts the current folder before all others
    process = start("--help")
    stdout, stderr = process.communicate(timeout=PATIENCE)
    done = subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
    one_line_error(done, str(tmp_path / name), "pipx")


def test_a_growing_file_is_followed_until_the_run_is_stopped(tmp_path: Path, quick: str) -> None:
    prompts, out = write_prompts(tmp_path / "p.jsonl", 2), tmp_path / "r.jsonl"
    process = start(prompts, "--base-url", quick, "--model", "m", "-o", out, "--follow")
    wait_for_lines(out, 2)
    with prompts.open("a") as file:
        file.write('{"id": 2, "prom')
        file.flush()
        file.write('pt": "x"}\n')
    wait_for_lines(out, 3)
    process.terminate()
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 143
    assert ids(results(out)) == [0, 1, 2]


def test_first_reads_only_so_many_lines_and_keep_response_keeps_the_whole_answer(tmp_path: Path, quick: str) -> None:
    prompts, out = write_prompts(tmp_path / "p.jsonl", 9), tmp_path / "r.jsonl"
    arguments = (prompts, "--base-url", quick, "--model", "m", "-o", out, "--first", "3", "--keep-response")
    assert run(*arguments).returncode == 0
    assert ids(results(out)) == [0, 1, 2]
    for line in results(out):
        assert isinstance(line["response"], dict)
        assert line["response"]["object"] == "chat.completion"
    assert "0 attempts" in run(*arguments).stderr


def test_a_dry_run_says_what_would_be_sent_and_touches_nothing(tmp_path: Path, quick: str) -> None:
    prompts, out = tmp_path / "p.jsonl", tmp_path / "r.jsonl"
    batch = {"custom_id": "b", "method": "POST", "url": "/v1/chat/completions"}
    body = {"model": "x", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 7}
    lines = [
        '"one"',
        '{"id": 1, "prompt": "two"}',
        '{"id": 1, "prompt": "two"}',
        "{broken",
        json.dumps(batch | {"body": body}),
    ]
    prompts.write_text("".join(line + "\n" for line in lines))
    run(prompts, "--base-url", quick, "--model", "m", "-o", out, "--first", "1")
    with out.open("ab") as file:
        file.write(b'{"id": "torn')
    before, seen = out.read_bytes(), statistics(quick)["attempts"]
    done = run(prompts, "--base-url", quick, "--model", "m", "-o", out, "--dry-run")
    assert done.returncode == 0
    for words in (
        "5 lines: 2 to send, 1 bad, 1 duplicates",
        "of an earlier run 1 ok, 0 failed",
        "input forms: prompt 2, string 1, Batch 1",
        "models: m 1, x 1",
        "max_tokens: 7 in all",
        "p.jsonl:4",
    ):
        assert words in done.stderr
    assert out.read_bytes() == before
    assert statistics(quick)["attempts"] == seen
    assert run(prompts, "--model", "m", "-o", tmp_path / "new.jsonl", "--dry-run").returncode == 0
    assert not (tmp_path / "new.jsonl").exists()


def test_more_attempts_in_flight_than_open_files_allowed_is_refused_before_anything_is_sent(
    tmp_path: Path, quick: str
) -> None:
    prompts = write_prompts(tmp_path / "p.jsonl", 1)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    done = run(prompts, "--base-url", quick, "--model", "m", "--max-in-flight", str(hard))
    one_line_error(done, "--max-in-flight", "open files")


def test_batch_lines_are_answered_as_batch_lines(tmp_path: Path, quick: str) -> None:
    prompts, out = tmp_path / "b.jsonl", tmp_path / "r.jsonl"
    messages = [{"role": "user", "content": "hi"}]
    lines = [
        ("chat", "/v1/chat/completions", {"model": "m", "messages": messages, "n": 2}),
        ("plain", "/v1/chat/completions", {"model": "m", "messages": messages, "stream": False}),
        ("vector", "/v1/embeddings", {"model": "e", "input": ["a", "b"]}),
        ("wrong", "/v1/images", {"model": "e"}),
    ]
    prompts.write_text(
        "".join(json.dumps({"custom_id": i, "method": "POST", "url": u, "body": b}) + "\n" for i, u, b in lines)
    )
    done = run(prompts, "--base-url", quick, "-o", out)
    assert done.returncode == 1
    by_id = {str(line["custom_id"]): line for line in results(out)}
    assert set(by_id) == {"chat", "plain", "vector", "wrong"}
    for name in ("chat", "plain"):
        body = at(by_id[name], "response", "body")
        assert at(body, "object") == "chat.completion"
        assert at(body, "usage", "total_tokens") != 0
        assert set(each(at(body, "choices"), "finish_reason")) == {"stop"}
    assert each(at(by_id["chat"], "response", "body", "choices"), "index") == [0, 1]
    assert each(at(by_id["vector"], "response", "body", "data"), "index") == [0, 1]
    assert by_id["wrong"]["response"] is None
    assert "/images" in str(at(by_id["wrong"], "error", "message"))
    assert all(str(line["id"]).startswith("batch_req_") for line in by_id.values())
    again = run(prompts, "--base-url", quick, "-o", out)
    assert "0 attempts" in again.stderr


# -- descriptors that are closed, broken or full


def in_shell(command: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """`command` in a shell, where "$@" is the start of a run with these arguments."""
    line = ["sh", "-c", command, "sh", *TIDEGATE, "run", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE, env=environment(), check=False)


def test_results_never_go_where_a_closed_stdout_left_room(tmp_path: Path) -> None:
    prompts, trace = write_prompts(tmp_path / "p.jsonl", 2), tmp_path / "d.jsonl"
    done = in_shell('"$@" >&-', prompts, "--base-url", "sim:steady", "--decisions", trace)
    assert done.returncode == 2
    assert "stdout is closed" in done.stderr


def test_a_run_needs_no_descriptor_but_its_files(tmp_path: Path) -> None:
    prompts, out = write_prompts(tmp_path / "p.jsonl", 2), tmp_path / "r.jsonl"
    done = in_shell('"$@" <&- >&- 2>&-', prompts, "--base-url", "sim:steady", "-o", out)
    assert (done.returncode, ids(results(out))) == (0, [0, 1])


def test_a_closed_stderr_puts_no_word_among_the_results(tmp_path: Path) -> None:
    done = in_shell('"$@" 2>&-', write_prompts(tmp_path / "p.jsonl", 3), "--base-url", "sim:steady")
    assert [json.loads(line)["status"] for line in done.stdout.splitlines()] == ["ok"] * 3


def test_a_stderr_that_nobody_reads_holds_nothing_up(tmp_path: Path) -> None:
    prompts, out = write_prompts(tmp_path / "p.jsonl", 5), tmp_path / "r.jsonl"
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 65_536)
    os.set_blocking(writing, True)
    process = start(prompts, "--base-url", "sim:steady", "-o", out, stderr=writing)
    assert process.wait(PATIENCE) == 0
    process.communicate()
    os.close(reading)
    os.close(writing)
    assert len(results(out)) == 5


def test_a_decision_log_that_cannot_be_written_ends_no_run(tmp_path: Path) -> None:
    prompts, out = write_prompts(tmp_path / "p.jsonl", 20), tmp_path / "r.jsonl"
    done = run(prompts, "--base-url", "sim:steady", "-o", out, "--decisions", "/dev/full")
    assert (done.returncode, len(results(out))) == (0, 20)
    assert "--decisions: not all was written" in done.stderr


def test_a_port_in_use_is_said_in_one_line(quick: str) -> None:
    port = quick.rsplit(":", 1)[1].removesuffix("/v1")
    command = [*TIDEGATE, "upstream", "steady", "--port", port]
    one_line_error(subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False), port)


def test_a_dash_means_stdout_as_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(write_prompts(tmp_path / "p.jsonl", 2), "--base-url", "sim:steady", "-o", "-")
    assert len(done.stdout.splitlines()) == 2
    assert not (tmp_path / "-").exists()


def test_a_line_without_a_model_among_others_is_an_error_result(tmp_path: Path, quick: str) -> None:
    prompts, out = tmp_path / "p.jsonl", tmp_path / "r.jsonl"
    prompts.write_text('{"prompt": "a", "model": "m"}\n' * 5 + '"no model"\n')
    done = run(prompts, "--base-url", quick, "-o", out, *FAST)
    assert done.returncode == 1
    assert [line["line"] for line in results(out) if line["status"] == "error"] == [6]
