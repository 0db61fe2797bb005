"""A run among its keepers: a service manager, signals, a terminal that is closed, settings that are read again."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Self

import pytest
import trio
import trio.testing
from command import PATIENCE, environment, ids, results, start, statistics, upstream, write_prompts

from controller import cli, closing, reload
from controller.supervisor import Supervisor
from controller.telemetry import Exit, Stop

UNIT = Path(__file__).parent.parent / "examples" / "tidegate.service"
STREAMS = "steady?rate=500&burst=500&latency=0.3&words=3"

FROZEN = """
import time
from policies.fixed import Fixed

class Frozen(Fixed):
    def on(self, event):
        time.sleep(3600)
"""


class Manager:
    """A fake of systemd's notify socket."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.settimeout(PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def next(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.socket.recv(4096).decode().splitlines())

    def until(self, key: str) -> dict[str, str]:
        while key not in (told := self.next()):
            pass
        return told


@contextmanager
def running(*arguments: str | Path, **more: object) -> Iterator[subprocess.Popen[str]]:
    process = start(*arguments, **more)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def say_line(process: subprocess.Popen[str], words: str) -> str:
    """Wait for a line on stderr."""
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return line
    raise AssertionError(f"it ended without saying {words!r}")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return write_prompts(tmp_path / "p.jsonl", 100)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "r.jsonl"


# -- a service manager


@pytest.mark.slow
def test_a_service_manager_is_told_of_the_beginning_of_life_and_of_the_end(
    tmp_path: Path, prompts: Path, out: Path
) -> None:
    asked = environment(NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="400000")
    with (
        Manager(str(tmp_path / "notify")) as manager,
        upstream(STREAMS) as url,
        running(prompts, "--follow", "--base-url", url, "--model", "m", "-o", out, env=asked) as run,
    ):
        assert manager.next() == {"READY": "1"}
        signs = [(manager.until("WATCHDOG"), time.monotonic()) for _ in range(10)]
        assert re.match(r"done \d+ ", signs[-1][0]["STATUS"])
        gaps = sorted(later - earlier for (_, earlier), (_, later) in pairwise(signs))
        assert gaps[4] < 0.4, "twice in a period, but for moments in which the machine is busy"
        run.send_signal(signal.SIGHUP)
        assert int(manager.until("RELOADING")["MONOTONIC_USEC"]) > 0
        manager.until("READY")
        run.send_signal(signal.SIGTERM)
        manager.until("STOPPING")
        assert run.wait(PATIENCE) == 143


@pytest.mark.slow
def test_a_frozen_run_gives_no_sign_of_life(tmp_path: Path, prompts: Path, out: Path) -> None:
    (tmp_path / "frozen.py").write_text(FROZEN)
    asked = environment(NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="200000", PYTHONPATH=str(tmp_path))
    flags = (prompts, "--follow", "--base-url", "sim:steady", "--policy", "frozen:Frozen", "-o", out)
    with Manager(str(tmp_path / "notify")) as manager, running(*flags, env=asked) as run:
        manager.until("WATCHDOG")
        manager.socket.settimeout(2.0)
        with pytest.raises(TimeoutError):
            [manager.next() for _ in range(100)]  # at the most a few are from before the first attempt
        assert run.poll() is None


def test_signs_of_life_go_on_while_the_results_are_counted(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = closing.Ending.close

    def slowly(*given: object) -> object:
        time.sleep(0.5)
        return close(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(closing.Ending, "close", slowly)
    monkeypatch.setattr(cli, "stay", lambda: None)
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    flags = ["--base-url", "sim:steady?latency=0.01", "--no-remember", "-o", str(out)]
    with Manager(str(tmp_path / "notify")) as manager:
        code = cli.commands.main(["run", str(write_prompts(tmp_path / "p", 1)), *flags], standalone_mode=False)
        manager.until("READY")
        for _ in range(3):
            told = manager.until("EXTEND_TIMEOUT_USEC")
            assert (told["WATCHDOG"], int(told["EXTEND_TIMEOUT_USEC"]) >= 1e7) == ("1", True)
    assert code == 0


@pytest.mark.parametrize("place", ["/nowhere/at/all", "relative", "", "@", "/" + "x" * 200])
def test_a_socket_that_is_not_there_is_no_trouble(place: str) -> None:
    Supervisor.of({"NOTIFY_SOCKET": place}).tell("READY=1")


def test_a_socket_without_a_file_is_a_socket_too() -> None:
    name = f"tidegate-{os.getpid()}"
    with Manager("\0" + name) as manager:
        Supervisor.of({"NOTIFY_SOCKET": f"@{name}"}).tell("READY=1", "STATUS=fine")
        assert manager.next() == {"READY": "1", "STATUS": "fine"}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_the_example_unit_is_one(tmp_path: Path) -> None:
    unit = tmp_path / "tidegate.service"
    unit.write_text(UNIT.read_text().replace("/usr/local/bin/tidegate", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_example_unit_starts_nothing_again_that_would_only_fail_again() -> None:
    unit = dict(line.split("=", 1) for line in UNIT.read_text().splitlines() if re.match(r"\w+=", line))
    assert unit["RestartPreventExitStatus"].split() == ["1", "2", "3", "4", "5"]
    assert (unit["StartLimitIntervalSec"], unit["StartLimitBurst"]) == ("1h", "10"), "nor any other end for ever"
    assert (unit["Type"], unit["SuccessExitStatus"]) == ("notify", "143")


# -- signals


@pytest.mark.slow
def test_settings_are_read_again_without_dropping_a_stream(tmp_path: Path, prompts: Path, out: Path) -> None:
    config, key = tmp_path / "c.toml", tmp_path / "key"
    config.write_text("requests_per_minute = 60\nmax_in_flight = 1\npolicy_option = ['start_rate=5']\n")
    key.write_text("one")
    flags = ("--model", "m", "--config", config, "--api-key-file", key, "-o", out)
    with upstream(STREAMS) as url, running(prompts, "--base-url", url, *flags) as run:
        while not out.exists() or out.read_bytes().count(b"\n") < 2:
            time.sleep(0.01)
        config.write_text(
            "requests_per_minute = 60000\nmax_in_flight = 20\npolicy_option = ['start_rate=200']\nseed = 7\n"
        )
        key.write_text("two")
        run.send_signal(signal.SIGHUP)
        said = say_line(run, "settings read again")
        for words in (
            "--requests-per-minute 60000",
            "--max-in-flight 20",
            "--policy-option start_rate=200",
            "another key",
        ):
            assert words in said
        assert "--seed" in say_line(run, "only a restart")
        assert run.wait(PATIENCE / 2) == 0, "a hundred at one a second would take longer"
        seen = statistics(url)
    assert ids(results(out)) == sorted(range(100), key=str)
    assert seen["attempts"] == 100
    assert 10 < int(str(seen["most_in_flight"])) <= 20


@pytest.mark.slow
def test_a_key_file_that_holds_no_key_is_told_and_the_old_key_stays(tmp_path: Path, prompts: Path, out: Path) -> None:
    key = tmp_path / "key"
    key.write_text("one")
    flags = ("--model", "m", "--api-key-file", key, "-o", out, "--follow")
    spoil: list[tuple[Callable[[], object], str]] = [
        (lambda: key.write_text(""), "is empty"),
        (lambda: key.write_text("two words"), "holds no key"),
        (key.unlink, "can't be read"),
    ]
    with upstream(STREAMS) as url, running(prompts, "--base-url", url, *flags) as run:
        while not out.exists() or not out.read_bytes():
            time.sleep(0.01)
        for change, words in spoil:
            change()
            run.send_signal(signal.SIGHUP)
            assert words in say_line(run, "settings read again: the key stays as it was: the file of --api-key-file")
        key.write_text("one")
        run.send_signal(signal.SIGHUP)
        assert "nothing new" in say_line(run, "settings read again")


@pytest.mark.slow
def test_settings_that_cannot_be_change_nothing(tmp_path: Path, prompts: Path, out: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("requests_per_minute = 6000\n")
    with (
        upstream(STREAMS) as url,
        running(prompts, "--base-url", url, "--model", "m", "--config", config, "-o", out, "--follow") as run,
    ):
        while not out.exists() or not out.read_bytes():
            time.sleep(0.01)
        config.write_text("requests_per_minute = 'many'\n")
        run.send_signal(signal.SIGHUP)
        assert "requests-per-minute" in say_line(run, "were not read again")
        while out.read_bytes().count(b"\n") < 100:
            time.sleep(0.01)
        run.send_signal(signal.SIGTERM)
        assert run.wait(PATIENCE) == 143


@pytest.mark.slow
def test_statistics_are_told_when_they_are_asked_for(prompts: Path, out: Path) -> None:
    with upstream(STREAMS) as url, running(prompts, "--base-url", url, "--model", "m", "-o", out, "--follow") as run:
        while not out.exists() or not out.read_bytes():
            time.sleep(0.01)
        run.send_signal(signal.SIGUSR1)
        assert re.search(r"\d+ ok, 0 failed, \d+ in hand; \d+ attempts", say_line(run, "in hand"))
        assert re.search(r"requests [\d.e+]+/min; \d+ of 64 in flight", say_line(run, "model m:"))


@pytest.mark.slow
def test_a_terminal_that_is_closed_stops_the_run_as_other_signals_do(prompts: Path, out: Path) -> None:
    ours, theirs = pty.openpty()
    with (
        upstream(STREAMS) as url,
        running(prompts, "--base-url", url, "--model", "m", "-o", out, "--follow", stdin=theirs) as run,
    ):
        while not out.exists() or not out.read_bytes():
            time.sleep(0.01)
        run.send_signal(signal.SIGHUP)
        assert run.wait(PATIENCE) == 129
    os.close(ours)
    os.close(theirs)
    assert json.loads(out.read_text().splitlines()[-1])["status"] == "ok"


def keeps(process: int, number: signal.Signals) -> bool:
    """Until somebody asks for it, by the kernel's word; while it is being started a process keeps all signals."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    blocked = int(lines["SigBlk"], 16)
    return bool(blocked >> (number - 1) & 1) and not blocked >> (signal.SIGTERM - 1) & 1


@pytest.mark.slow
def test_signals_that_ask_for_something_do_not_end_a_run_that_has_not_begun(tmp_path: Path, prompts: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")  # it waits for a reader
    (config := tmp_path / "c.toml").write_text("max_in_flight = 10\n")
    flags = ("--base-url", "sim:steady?rate=500&burst=500", "--model", "m", "--config", config)
    with running(prompts, *flags, "-o", pipe, "--decisions", log := tmp_path / "log") as run:
        deadline = time.monotonic() + PATIENCE
        while not log.exists():  # it has read its settings
            assert run.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        run.send_signal(signal.SIGUSR1)
        run.send_signal(signal.SIGHUP)
        config.write_text("max_in_flight = 20\n")
        assert len(pipe.read_bytes().splitlines()) == 100
        assert "20" in say_line(run, "settings read again"), "it was not lost, though it came too early"
        assert run.wait(PATIENCE) == 0


@pytest.mark.slow
def test_an_interrupt_before_the_run_listens_ends_it_as_any_other(tmp_path: Path, prompts: Path, out: Path) -> None:
    for hundredths in (0, 5, 10, 20):
        with running(prompts, "--base-url", "sim:steady", "--model", "m", "-o", out, "--follow") as run:
            while not keeps(run.pid, signal.SIGUSR1):
                assert run.poll() is None
                time.sleep(0.001)
            time.sleep(hundredths / 100)
            run.send_signal(signal.SIGINT)
            _, errors = run.communicate(timeout=PATIENCE)
        assert (run.returncode, "Traceback" in errors) == (130, False), errors


def test_an_interrupt_that_a_nursery_wraps_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupted() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            signal.raise_signal(signal.SIGINT)
            await trio.lowlevel.checkpoint()

    class Early:
        def run(self) -> None:
            trio.run(interrupted, restrict_keyboard_interrupt_to_checkpoints=True)

    monkeypatch.setattr(cli, "prepare", lambda *_, **__: Early())
    monkeypatch.setattr(cli, "stay", lambda: None)
    prompts = write_prompts(tmp_path / "p.jsonl", 1)
    assert cli.commands.main(["run", str(prompts), "--base-url", "sim:steady"], standalone_mode=False) == 130


@pytest.mark.slow
def test_a_run_waits_for_a_file_that_is_not_there_yet_and_says_so(tmp_path: Path, out: Path) -> None:
    flags = (tmp_path / "late.jsonl", "--base-url", "sim:steady?latency=0.01", "-o", out)
    with running(*flags) as refused:
        assert (refused.wait(PATIENCE), out.exists()) == (2, False)
    with running(*flags, "--follow", "--first", "3") as run:
        assert "late.jsonl" in say_line(run, "is not there yet: waiting for it")
        write_prompts(tmp_path / "late.jsonl", 3)
        assert run.wait(PATIENCE) == 0
    assert ids(results(out)) == [0, 1, 2]


@pytest.mark.parametrize("stopping", [False, True])
async def test_a_reload_makes_a_run_ready_again_unless_it_stops(
    tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, stopping: bool
) -> None:
    monkeypatch.setattr(reload, "has_terminal", lambda: False)
    stop, read = Stop(), trio.Event()

    class Settings:
        def now(self) -> None:
            read.set()

    if stopping:
        stop.ask(Exit.TERMINATED, "SIGTERM")
    with Manager(address := str(tmp_path / "notify")) as manager:
        listen = reload.listen(stop, Settings(), Supervisor(address), lambda: None)  # type: ignore[arg-type]
        nursery.start_soon(lambda: listen)
        await trio.testing.wait_all_tasks_blocked()
        signal.raise_signal(signal.SIGHUP)
        await read.wait()
        await trio.testing.wait_all_tasks_blocked()
        manager.socket.settimeout(0.0)
        if stopping:
            with pytest.raises(BlockingIOError):
                manager.next()
        else:
            assert [next(iter(manager.next())) for _ in range(2)] == ["RELOADING", "READY"]
