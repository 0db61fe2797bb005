"""Lines of files, FIFOs and stdin: real files and real pipes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from controller.sources import CHUNK, Line, Lines, ReadChunk, check_readable, open_file, open_stdin

Pipe = tuple[int, int]


def reader_of(chunks: Iterable[bytes]) -> ReadChunk:
    """A read without a thread, as a virtual run has it."""
    left = iter(chunks)

    async def read() -> bytes:
        await trio.lowlevel.checkpoint()
        return next(left, b"")

    return read


async def lines_of(read: ReadChunk) -> list[Line]:
    return [line async for line in Lines(read)]


@pytest.fixture
def pipe() -> Iterable[Pipe]:
    ends = os.pipe()
    yield ends
    for fd in ends:
        with suppress(OSError):
            os.close(fd)


# Laws


@given(st.lists(st.sampled_from([b"a", b"\n", b"\r\n", b"bc", b"\x85", b"\xe2\x80\xa8"])), st.data())
def test_any_cutting_of_the_bytes_gives_the_same_lines(pieces: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(pieces)
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(whole) - 1)))))
    chunks = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    expected = whole.split(b"\n")[: None if whole and not whole.endswith(b"\n") else -1]
    found = trio.run(lines_of, reader_of(chunk for chunk in chunks if chunk))
    assert [line.raw for line in found] == expected
    assert [line.number for line in found] == list(range(1, len(expected) + 1))


# Lines


async def test_a_last_line_without_lf_counts_and_blank_lines_have_a_number() -> None:
    found = await lines_of(reader_of([b"a\n", b"\n", b"b"]))
    assert found == [Line(number=1, raw=b"a"), Line(number=2, raw=b""), Line(number=3, raw=b"b")]


async def test_the_end_is_asked_for_once_only() -> None:
    asked = 0

    async def read() -> bytes:
        nonlocal asked
        asked += 1
        await trio.lowlevel.checkpoint()
        return b"a" if asked == 1 else b""

    lines = Lines(read)
    assert (await anext(lines)).raw == b"a"
    for _ in range(2):
        with pytest.raises(StopAsyncIteration):
            await anext(lines)
    assert asked == 2


async def test_no_more_than_one_chunk_is_read_ahead() -> None:
    given_out: list[bytes] = []

    async def read() -> bytes:
        await trio.lowlevel.checkpoint()
        given_out.append(b"1\n2\n3\n")
        return given_out[-1]

    lines = Lines(read)
    for _ in range(3):
        await anext(lines)
        assert len(given_out) == 1


async def test_case_c98_a_long_line_costs_its_length_and_the_next_one_still_works() -> None:
    async def seconds(megabytes: int) -> float:
        long = b"x" * (megabytes << 20) + b"\nnext\n"
        began_at = time.perf_counter()
        found = await lines_of(reader_of(long[at : at + 4096] for at in range(0, len(long), 4096)))
        assert [len(line.raw) for line in found] == [megabytes << 20, 4]
        return time.perf_counter() - began_at

    # ten times as long; were the cost quadratic, it would be a hundred times
    assert await seconds(40) < 40 * max(await seconds(4), 0.01)


async def test_case_c93_lines_end_at_lf_only(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    text = "\x85 \u2028 \u2029 \x0b \x0c \x1c \r x"
    path.write_bytes(text.encode() + b"\r\nsecond")
    async with open_file(str(path)) as read:
        assert [line.raw for line in await lines_of(read)] == [text.encode() + b"\r", b"second"]


# Files, FIFOs, stdin


async def test_a_file_of_many_chunks_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    expected = [b"%d" % number * 1000 for number in range(500)]
    path.write_bytes(b"\n".join(expected))
    assert path.stat().st_size > 10 * CHUNK
    async with open_file(str(path)) as read:
        assert [line.raw for line in await lines_of(read)] == expected


async def test_a_line_of_a_fifo_comes_out_as_soon_as_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)  # both ends: opening does not wait
    with trio.fail_after(10):
        async with open_file(str(path)) as read:
            lines = Lines(read)
            for piece, whole in [(b"one\ntw", b"one"), (b"o\n", b"two"), (b"three\n", b"three")]:
                os.write(writer, piece)
                assert (await anext(lines)).raw == whole
            os.write(writer, b"four")
            with trio.move_on_after(0.05) as waiting:
                await anext(lines)
            assert waiting.cancelled_caught
    os.close(writer)


async def test_opening_a_fifo_without_a_writer_holds_up_nobody(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    with trio.move_on_after(0.05) as waiting:
        async with open_file(str(path)):
            pytest.fail("there is no writer")
    assert waiting.cancelled_caught
    os.close(os.open(path, os.O_WRONLY))  # lets the thread that was left behind go


async def test_stdin_is_read_and_left_open(pipe: Pipe, stdin_from: Callable[[int], None]) -> None:
    stdin_from(pipe[0])
    os.write(pipe[1], b"a\nb")
    os.close(pipe[1])
    async with open_stdin() as read:
        assert [line.raw for line in await lines_of(read)] == [b"a", b"b"]
    os.fstat(0)


async def test_what_is_written_after_a_cancelled_read_stays_in_the_pipe(
    pipe: Pipe, stdin_from: Callable[[int], None]
) -> None:
    stdin_from(pipe[0])
    async with open_stdin() as read:
        with trio.move_on_after(0.05):
            await read()
        os.write(pipe[1], b"late\n")
        await trio.sleep(0.05)
        os.set_blocking(pipe[0], False)
        assert os.read(pipe[0], CHUNK) == b"late\n"


async def test_a_device_that_is_always_ready_is_read_too() -> None:
    async with open_file("/dev/null") as null, open_file("/dev/zero") as zero:
        assert (await null(), await zero()) == (b"", b"\0" * CHUNK)


async def test_a_stdin_that_somebody_made_non_blocking_is_waited_for(
    pipe: Pipe, stdin_from: Callable[[int], None], nursery: trio.Nursery
) -> None:
    os.set_blocking(pipe[0], False)
    stdin_from(pipe[0])
    found: list[Line] = []

    async def collect() -> None:
        async with open_stdin() as read:
            found.extend(await lines_of(read))

    nursery.start_soon(collect)
    await trio.testing.wait_all_tasks_blocked(0.02)
    os.write(pipe[1], b"late\n")
    os.close(pipe[1])
    with trio.fail_after(10):
        while not found:  # noqa: ASYNC110 - a pipe tells it to the reader only
            await trio.sleep(0.005)
    assert [line.raw for line in found] == [b"late"]


# What can't be read


def test_a_readable_file_a_fifo_and_stdin_pass(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").touch()
    os.mkfifo(tmp_path / "fifo")
    for path in (str(tmp_path / "prompts.jsonl"), str(tmp_path / "fifo"), "-", "/dev/null"):
        check_readable(path)


def test_a_missing_file_and_a_directory_are_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot read .*/missing: No such file or directory: check the path"):
        check_readable(str(tmp_path / "missing"))
    with pytest.raises(ValueError, match=r"is a directory: name the files in it, such as .*\*\.jsonl"):
        check_readable(str(tmp_path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.touch(mode=0o200)
    with pytest.raises(ValueError, match="Permission denied"):
        check_readable(str(path))


def test_a_closed_stdin_is_no_source(stdin_from: Callable[[int | None], None]) -> None:
    stdin_from(None)
    with pytest.raises(ValueError, match="stdin is closed"):
        check_readable("-")


@pytest.fixture
def stdin_from() -> Iterable[Callable[[int | None], None]]:
    """Put another descriptor in stdin's place, or none."""
    saved = os.dup(0)

    def put(fd: int | None) -> None:
        if fd is None:
            os.close(0)
        else:
            os.dup2(fd, 0)

    yield put
    os.dup2(saved, 0)
    os.close(saved)
