"""Files that grow, are rotated or cut, and FIFOs whose writers come and go: each line once, none joined to another."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import trio
from command import PATIENCE, ids, results, start, upstream

from controller import following
from controller.following import check_followed, followed
from controller.intake import Intake, read_prompts
from controller.records import Prompt, Result
from controller.sources import Lines

LOOK = 0.01  # s


@pytest.fixture(autouse=True)
def short_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "LINGER", 0.1)


class Collected:
    """Collects the lines of a followed file in a task."""

    def __init__(self, path: Path) -> None:
        self.path, self.lines = path, list[str]()

    async def run(self) -> None:
        async with followed(str(self.path), LOOK).open() as read:
            async for line in Lines(read):
                self.lines.append(line.raw.decode())

    async def has(self, *lines: str) -> None:
        with trio.move_on_after(10):
            while self.lines != list(lines):  # noqa: ASYNC110 - a file tells nobody
                await trio.sleep(LOOK)
        assert self.lines == list(lines)


@pytest.fixture
async def file(tmp_path: Path, nursery: trio.Nursery) -> Collected:
    path = tmp_path / "p.jsonl"
    path.write_text("one\ntw")
    collected = Collected(path)
    nursery.start_soon(collected.run)
    await collected.has("one")
    return collected


def add(path: Path, text: str) -> None:
    with path.open("a") as to:
        to.write(text)


async def test_a_half_line_at_the_end_waits_for_its_rest(file: Collected) -> None:
    await trio.sleep(0.3)
    await file.has("one")
    add(file.path, "o\nthree\n")
    await file.has("one", "two", "three")


async def test_a_rotated_file_is_read_to_its_end_and_then_the_new_one(file: Collected) -> None:
    old = file.path.with_suffix(".1")
    file.path.rename(old)
    await trio.sleep(0.05)
    file.path.write_text("three\n")
    add(old, "o\n")  # its writer has not heard yet
    await file.has("one", "two", "three")
    add(file.path, "four\n")
    await file.has("one", "two", "three", "four")


async def test_half_a_line_at_the_end_of_a_rotated_file_is_not_joined_to_the_new_one(file: Collected) -> None:
    file.path.rename(file.path.with_suffix(".1"))
    file.path.write_text("three\n")
    await file.has("one", "tw", "three")


async def test_files_that_are_rotated_while_the_reading_is_held_up_are_all_read(tmp_path: Path) -> None:
    path, lines = tmp_path / "p.jsonl", list[bytes]()
    path.write_text("one\n")
    async with followed(str(path), LOOK).open() as read:
        lines.append(await read())
        for text in ("two\n", "thr", "four\n"):  # a name for each time, and no read meanwhile
            path.rename(path.with_suffix(f".{text[0]}"))
            path.write_text(text)
            await trio.sleep(20 * LOOK)
        with trio.fail_after(10):
            while len(lines) < 5:
                lines.append(await read())
    assert lines == [b"one\n", b"two\n", b"thr", b"\n", b"four\n"]


async def test_a_new_file_that_can_be_read_a_moment_later_only_is_no_trouble(file: Collected) -> None:
    old = file.path.with_suffix(".1")
    file.path.rename(old)
    file.path.symlink_to(file.path)  # can't be opened, not even by root
    await trio.sleep(5 * LOOK)
    file.path.unlink()
    file.path.write_text("three\n")
    await file.has("one", "tw", "three")


async def test_a_new_file_that_can_never_be_read_ends_the_reading(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text("one\n")

    async def read_on() -> None:
        async with followed(str(path), LOOK).open() as read:
            assert await read() == b"one\n"
            path.rename(path.with_suffix(".1"))
            path.symlink_to(path)
            await read()

    with trio.fail_after(10), pytest.raises(OSError, match="symbolic links"):
        await read_on()


async def test_a_file_that_is_not_there_yet_is_waited_for(tmp_path: Path, nursery: trio.Nursery) -> None:
    path = tmp_path / "p.jsonl"
    check_followed(str(path))
    collected = Collected(path)
    nursery.start_soon(collected.run)
    await trio.sleep(5 * LOOK)
    path.write_text("one\n")
    await collected.has("one")
    add(path, "two\n")
    await collected.has("one", "two")


@pytest.mark.parametrize("name", ["nowhere/p.jsonl", "", "p.jsonl/", "loop"])
def test_a_file_that_can_never_appear_is_told_at_once(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ValueError, match=r"cannot read|is a directory"):
        check_followed(f"{tmp_path}/{name}")


async def test_a_file_that_is_cut_is_read_from_its_beginning(file: Collected) -> None:
    os.truncate(file.path, 0)
    await file.has("one", "tw")
    add(file.path, "new\n")
    await file.has("one", "tw", "new")


async def test_a_fifo_outlives_its_writers(tmp_path: Path, nursery: trio.Nursery) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    collected = Collected(path)
    nursery.start_soon(collected.run)
    there: list[str] = []
    for text in ("one\n", "two\nhal", "four\n"):
        await trio.to_thread.run_sync(path.write_text, text)
        there += text.splitlines()
        await collected.has(*there)


async def test_several_files_are_read_at_once_until_enough_lines_have_come(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.write_text('"first"\n')
    taken: list[str] = []

    async def accept(prompt: Prompt) -> None:
        await trio.lowlevel.checkpoint()
        taken.append(prompt.source)
        if len(taken) in (2, 3):
            add(paths[len(taken) % 2], '"more"\n')

    async def refuse(result: Result) -> None:
        pytest.fail(f"{result}")

    with trio.fail_after(10):
        sources = [followed(str(path), LOOK) for path in paths]
        await read_prompts(sources, Intake(first=4), accept, refuse, at_once=True)
    assert sorted(taken) == sorted(2 * [str(path) for path in paths])


async def test_one_file_that_fails_ends_the_reading_of_all(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")

    async def accept(what: object) -> None:
        pytest.fail(f"{what}")

    sources = [followed(str(tmp_path / name), LOOK) for name in ("a", "missing/b")]
    with trio.fail_after(10), pytest.raises(FileNotFoundError):
        await read_prompts(sources, Intake(), accept, accept, at_once=True)


@pytest.mark.slow
def test_a_daemon_follows_a_rotated_file_and_a_fifo_for_as_long_as_it_lives(tmp_path: Path) -> None:
    prompts, fifo, out = tmp_path / "p.jsonl", tmp_path / "fifo", tmp_path / "r.jsonl"
    prompts.write_text('{"id": 0, "prompt": "x"}\n')
    os.mkfifo(fifo)

    def wait(count: int, process: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not out.exists() or out.read_bytes().count(b"\n") < count:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)

    with upstream() as url:
        process = start(prompts, fifo, "--follow", "--base-url", url, "--model", "m", "-o", out)
        wait(1, process)
        for number in (1, 2):
            fifo.write_text(f'{{"id": {number}, "prompt": "x"}}\n')
            wait(1 + number, process)
        prompts.rename(tmp_path / "p.1")
        prompts.write_text('{"id": 3, "prompt": "x"}\n')
        wait(4, process)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 143
    assert "4 read: 4 ok" in errors
    assert ids(results(out)) == [0, 1, 2, 3]
