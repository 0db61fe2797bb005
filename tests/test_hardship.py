"""Trouble around a run, for real: disks, files, pipes, descriptors, names, silence, and being stopped for a while."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command import PATIENCE, ids, results, run, start, statistics, upstream, write_prompts

SLOW_UPSTREAM = "steady?rate=40&burst=40&latency=0.02&words=3"
pytestmark = pytest.mark.slow
PACE = ("--model", "m", "--policy-option", "start_rate=40")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_for_results(path: Path, count: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert process.poll() is None, closing(process)
        assert time.monotonic() < deadline
        time.sleep(0.01)


def closing(process: subprocess.Popen[str]) -> str:
    """Its stderr when it has ended."""
    try:
        _, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert "Traceback" not in errors, errors
    return errors


def resumed(prompts: Path, out: Path, count: int) -> None:
    """The same command goes on, and all is there once."""
    with upstream() as url:
        again = run(prompts, "--base-url", url, "--model", "m", "-o", out, "--policy-option", "start_rate=200")
    assert again.returncode == 0, again.stderr
    assert ids(results(out)) == sorted(range(count), key=str)
    assert "missing 0, double 0" in again.stderr


# -- disks and files


def can_mount() -> bool:
    return (
        os.geteuid() == 0
        and subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode == 0
    )


@contextmanager
def tiny_disk(place: Path, size: str) -> Iterator[Path]:
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.skipif(not can_mount(), reason="only root may mount a tiny disk")
def test_a_disk_that_fills_up_stops_the_run_resumably_and_no_line_is_torn(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path / "p.jsonl", 200)
    with tiny_disk(tmp_path / "disk", "24k") as disk:
        out = disk / "r.jsonl"
        with upstream() as url:
            done = run(prompts, "--base-url", url, "--model", "m", "-o", out, "--policy-option", "start_rate=200")
        assert done.returncode == 5, done.stderr
        assert "No space left" in done.stderr
        whole = results(out)
        assert 0 < len(whole) < 200
        subprocess.run(["mount", "-o", "remount,size=1m", str(disk)], check=True)
        resumed(prompts, out, 200)


def test_a_run_that_has_no_room_for_a_result_sends_nothing(tmp_path: Path) -> None:
    prompts, out = write_prompts(tmp_path / "p.jsonl", 3), tmp_path / "r.jsonl"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    with upstream() as url:
        process = start(prompts, "--base-url", url, "-o", out, *PACE, preexec_fn=limit)
        errors = closing(process)
        assert statistics(url)["attempts"] == 0
    assert process.returncode == 5, errors
    assert "File too large; nothing was sent" in errors
    resumed(prompts, out, 3)


def test_a_file_that_may_grow_no_further_stops_the_run_resumably(tmp_path: Path) -> None:
    prompts, out = write_prompts(tmp_path / "p.jsonl", 100), tmp_path / "r.jsonl"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))

    with upstream() as url:
        process = start(prompts, "--base-url", url, "-o", out, *PACE, preexec_fn=limit)
        errors = closing(process)
    assert process.returncode == 5, errors
    assert "File too large" in errors
    assert results(out)
    resumed(prompts, out, 100)


def test_a_results_file_that_is_removed_comes_back_as_it_was(tmp_path: Path) -> None:
    prompts, out = write_prompts(tmp_path / "p.jsonl", 120), tmp_path / "r.jsonl"
    with upstream(SLOW_UPSTREAM) as url:
        process = start(prompts, "--base-url", url, "-o", out, *PACE)
        wait_for_results(out, 20, process)
        out.unlink()
        errors = closing(process)
    assert process.returncode == 0, errors
    assert "removed while the run wrote to it; it has been put back" in errors
    assert ids(results(out)) == sorted(range(120), key=str)
    assert "missing 0, double 0" in errors


def test_a_results_file_that_is_moved_away_stops_the_run_and_moved_back_resumes_it(tmp_path: Path) -> None:
    prompts, out, moved = write_prompts(tmp_path / "p.jsonl", 120), tmp_path / "r.jsonl", tmp_path / "moved.jsonl"
    with upstream(SLOW_UPSTREAM) as url:
        process = start(prompts, "--base-url", url, "-o", out, *PACE)
        wait_for_results(out, 10, process)
        out.rename(moved)
        errors = closing(process)
    assert process.returncode == 5, errors
    assert "was moved away" in errors
    assert len(results(moved)) >= 10
    moved.rename(out)
    resumed(prompts, out, 120)


def test_what_a_replaced_results_file_held_is_kept_beside_the_new_one(tmp_path: Path) -> None:
    prompts, out, other = write_prompts(tmp_path / "p.jsonl", 120), tmp_path / "r.jsonl", tmp_path / "other"
    with upstream(SLOW_UPSTREAM) as url:
        process = start(prompts, "--base-url", url, "-o", out, *PACE)
        wait_for_results(out, 10, process)
        other.write_bytes(b"")
        other.rename(out)
        errors = closing(process)
    assert process.returncode == 5, errors
    assert "was replaced by another file" in errors
    assert out.read_bytes() == b""
    rescued = tmp_path / "r.jsonl.rescued"
    out.write_bytes(rescued.read_bytes())
    assert len(results(out)) >= 10
    resumed(prompts, out, 120)


def test_rights_that_are_taken_from_a_results_file_meanwhile_lose_nothing(tmp_path: Path) -> None:
    prompts, out = write_prompts(tmp_path / "p.jsonl", 60), tmp_path / "r.jsonl"
    with upstream(SLOW_UPSTREAM) as url:
        process = start(prompts, "--base-url", url, "-o", out, *PACE)
        wait_for_results(out, 10, process)
        out.chmod(0o400)
        errors = closing(process)
    assert process.returncode == 0, errors
    assert ids(results(out)) == sorted(range(60), key=str)


# -- descriptors


def test_with_64_descriptors_the_advice_that_is_given_works(tmp_path: Path) -> None:
    prompts, out = write_prompts(tmp_path / "p.jsonl", 200), tmp_path / "r.jsonl"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    with upstream("steady?rate=500&burst=500&latency=0.2&words=3") as url:
        refused = start(prompts, "--base-url", url, "-o", out, *PACE, preexec_fn=limit)
        errors = closing(refused)
        assert refused.returncode == 2
        advised = re.search(r"lower it to (\d+)", errors)
        assert advised is not None, errors
        flags = ("--model", "m", "--policy-option", "start_rate=400", "--max-in-flight", advised[1])
        process = start(prompts, "--base-url", url, "-o", out, *flags, preexec_fn=limit)
        errors = closing(process)
    assert process.returncode == 0, errors
    assert int(advised[1]) >= 32
    assert {line["attempts"] for line in results(out)} == {1}


# -- the way to the upstream


def test_a_name_that_cannot_be_resolved_parks_the_run_and_costs_no_prompt(tmp_path: Path) -> None:
    prompts, out, key = write_prompts(tmp_path / "p.jsonl", 5), tmp_path / "r.jsonl", tmp_path / "key"
    key.write_text("secret")
    flags = ("--base-url", "http://no-such-host.invalid/v1", "--give-up-after", "3", "--api-key-file", key)
    process = start(prompts, "-o", out, *flags, *PACE)
    errors = closing(process)
    assert process.returncode == 3, errors
    assert "no-such-host.invalid" in errors
    assert out.read_bytes() == b""
    resumed(prompts, out, 5)


def test_an_upstream_that_refuses_connections_for_a_while_is_waited_for(tmp_path: Path) -> None:
    prompts, out, port = write_prompts(tmp_path / "p.jsonl", 30), tmp_path / "r.jsonl", free_port()
    process = start(prompts, "--base-url", f"http://127.0.0.1:{port}/v1", "-o", out, *PACE)
    time.sleep(8)
    assert process.poll() is None
    with upstream("steady?rate=500&burst=500&latency=0.02&words=3", port=port):
        errors = closing(process)
    assert process.returncode == 0, errors
    assert ids(results(out)) == sorted(range(30), key=str)
    assert len(errors.splitlines()) < 20


@contextmanager
def silent_listener() -> Iterator[int]:
    """Takes connections and says nothing, ever."""
    kept: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0), backlog=200) as listener:

        def accept() -> None:
            try:
                while True:
                    kept.append(listener.accept()[0])
            except OSError:
                return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()
    for each in kept:
        each.close()


def test_an_upstream_that_hangs_after_the_connection_parks_the_run(tmp_path: Path) -> None:
    prompts, out = write_prompts(tmp_path / "p.jsonl", 10), tmp_path / "r.jsonl"
    with silent_listener() as port:
        flags = ("--base-url", f"http://127.0.0.1:{port}/v1", "--first-payload-timeout", "0.5", "--give-up-after", "4")
        process = start(prompts, "-o", out, *flags, *PACE)
        errors = closing(process)
    assert process.returncode == 3, errors
    assert "no success for 4 s" in errors
    assert "timeout" in errors
    assert out.read_bytes() == b""
    resumed(prompts, out, 10)


# -- time


def test_a_run_that_was_suspended_goes_on_although_nothing_succeeded_meanwhile(tmp_path: Path) -> None:
    prompts, out = write_prompts(tmp_path / "p.jsonl", 100), tmp_path / "r.jsonl"
    with upstream(SLOW_UPSTREAM) as url:
        process = start(prompts, "--base-url", url, "-o", out, "--give-up-after", "3", *PACE)
        wait_for_results(out, 10, process)
        process.send_signal(signal.SIGSTOP)
        time.sleep(5)
        process.send_signal(signal.SIGCONT)
        errors = closing(process)
    assert process.returncode == 0, errors
    assert ids(results(out)) == sorted(range(100), key=str)


# -- every prompt fails alike


def test_a_parameter_that_no_prompt_can_have_stops_the_run_early_with_the_words_of_the_upstream(tmp_path: Path) -> None:
    prompts, out = write_prompts(tmp_path / "p.jsonl", 300), tmp_path / "r.jsonl"
    with upstream(f"{SLOW_UPSTREAM}&fault=http-invalid") as url:
        done = run(prompts, "--base-url", url, "-o", out, "--most-alike", "5", *PACE)
    assert done.returncode == 3, done.stderr
    assert "every prompt fails alike, 5 so far" in done.stderr
    assert "The request is not valid" in done.stderr
    assert len(results(out)) == 5
