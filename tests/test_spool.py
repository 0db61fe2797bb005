"""Lines that can't be read twice are there for the next run until they have their results, whatever they hold."""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import trio
from command import PATIENCE, ids, run, start, statistics, upstream
from command import results as results_of
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.durable import Durable
from controller.half import Half
from controller.intake import Intake, read_prompts
from controller.outcome import Failed, Kind
from controller.records import Prompt, Result, dump_result
from controller.settings import Settings
from controller.sources import Line, ReadChunk, Source, source_of
from controller.spool import SLACK, Spool, Taken
from controller.store import Store

NEVER = Durable("never")
A, B, C = (b'{"id":"%c","prompt":"x"}' % letter for letter in b"abc")


async def nothing() -> None:
    await trio.lowlevel.checkpoint()


def opened(results: Path, done: Iterable[bytes] = ()) -> Spool:
    return Spool.open(str(results), set(done), NEVER)


def lines(*raws: bytes) -> list[Taken]:
    """What an intake makes of these lines."""
    return list(Intake().take_all([Line(number=number, raw=raw) for number, raw in enumerate(raws, 1)], "-"))


def file_of(results: Path) -> Path:
    return results.with_name(results.name + ".pending")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "r.jsonl"


raw_lines = st.binary(min_size=1).filter(lambda raw: b"\n" not in raw) | st.sampled_from(
    [A, B, b'"\xe2\x80\xa8"', b"{"]
)


@settings(deadline=None)  # a busy disk is no fault
@given(st.lists(raw_lines), st.data())
def test_after_a_kill_exactly_what_has_no_result_is_left_in_order_and_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, raws: list[bytes], data: st.DataObject
) -> None:
    results = tmp_path_factory.mktemp("s") / "r.jsonl"
    kept = lines(*raws)
    done = {one.key for one in kept if data.draw(st.booleans())}
    trio.run(opened(results).keep, kept)  # never closed: killed
    for _ in range(2):
        left = opened(results, done).left
        assert left == [one for one in kept if one.key not in done]


def test_a_run_that_answered_all_leaves_no_file(results: Path) -> None:
    spool, kept = opened(results), lines(A, B)
    trio.run(spool.keep, kept)
    trio.run(spool.forget, [one.key for one in kept], nothing)
    assert file_of(results).exists()
    spool.close()
    assert not file_of(results).exists()
    unused = opened(results)
    unused.close()
    assert not file_of(results).exists()


def test_a_torn_last_line_and_a_damaged_one_are_counted_and_the_rest_is_taken_up(results: Path) -> None:
    kept = lines(A, B)
    trio.run(opened(results).keep, kept)
    first, second = file_of(results).read_bytes().splitlines(keepends=True)
    file_of(results).write_bytes(first + b'{"key":"00\n' + second + b'{"key":"5f')
    spool = opened(results)
    assert (spool.left, spool.damaged) == (kept, 2)
    trio.run(spool.keep, lines(C))
    assert len(opened(results).left) == 3, "what follows a torn line is whole"


def test_a_strangers_file_is_refused_and_left_as_it_is(results: Path) -> None:
    file_of(results).write_text("my notes\n")
    with pytest.raises(ValueError, match=r"r\.jsonl\.pending holds no prompts of tidegate"):
        opened(results)
    assert file_of(results).read_text() == "my notes\n"


def test_it_is_written_anew_when_most_of_it_is_answered_and_only_after_the_results_are_synced(results: Path) -> None:
    told: list[str] = []

    async def sync_results() -> None:
        await trio.lowlevel.checkpoint()
        told.append("synced" if file_of(results).stat().st_size > SLACK else "too late")

    spool, kept = opened(results), lines(A, b'"%s"' % (b"x" * 2 * SLACK), B)
    trio.run(spool.keep, kept)
    trio.run(spool.forget, [kept[0].key], sync_results)
    assert told == [], "what is open is most of it"
    trio.run(spool.forget, [kept[1].key], sync_results)
    assert (told, file_of(results).stat().st_size < 1000) == (["synced"], True)
    trio.run(spool.keep, lines(C))
    assert [one.raw for one in opened(results).left] == [B, C]


def test_a_failed_sync_is_an_oserror_before_any_line_goes_on(results: Path) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    spool = Spool.open(str(results), set(), Durable("always", fail))
    with pytest.raises(OSError, match="No space left"):
        trio.run(spool.keep, lines(A))


def test_what_a_disk_takes_of_some_lines_before_it_is_full_is_cut_back_to_whole_ones(results: Path) -> None:
    kept = lines(A, B, C)
    spool = opened(results)
    trio.run(spool.keep, kept[:1])
    size = file_of(results).stat().st_size
    with files_of_at_most(2 * size + size // 2), pytest.raises(OSError, match="File too large"):
        trio.run(spool.keep, kept[1:])
    assert file_of(results).stat().st_size == 2 * size
    with files_of_at_most(2 * size + size // 2), pytest.raises(OSError, match="File too large"):
        spool.settle()
    assert file_of(results).stat().st_size == 2 * size
    spool.settle()  # there is room again
    again = opened(results)
    assert (again.left, again.damaged) == (kept, 0)


def test_lines_that_could_not_be_kept_are_named_once_and_are_open_no_more(results: Path) -> None:
    kept, spool = lines(A, B), opened(results)
    spool.halves["-"] = Half(b"x", "-", "")
    with files_of_at_most(file_size := len(A) + 150), pytest.raises(OSError, match="File too large"):
        trio.run(spool.keep, kept)
    with files_of_at_most(file_size), pytest.raises(OSError, match="File too large"):
        spool.settle()
    assert spool.give_up() == ([kept[1].key], 2)
    assert spool.give_up() == ([], 0)
    spool.close()
    assert (opened(results).left, opened(results).halves) == ([kept[0]], {})


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A write beyond it is partial, the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_stays_for_the_next_run_is_synced_at_the_end(results: Path) -> None:
    synced: list[int] = []
    spool = Spool.open(str(results), set(), Durable("interval", lambda fd: synced.append(os.fstat(fd).st_ino)))
    trio.run(spool.keep, lines(A))
    spool.close()
    assert synced[-1] == file_of(results).stat().st_ino


def test_a_folder_that_cannot_be_synced_does_not_part_the_file_from_its_name(results: Path) -> None:
    def sync(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode) and big.key not in spool._open:
            raise OSError(errno.EIO, "Input/output error")

    big, small = lines(b'"%s"' % (b"x" * 2 * SLACK), B)
    spool = Spool.open(str(results), set(), Durable("interval", sync))
    trio.run(spool.keep, [big])
    trio.run(spool.forget, [big.key], nothing)
    trio.run(spool.keep, [small])
    assert opened(results).left == [small]


@pytest.mark.parametrize("again", [False, True])
def test_a_killed_retry_of_what_failed_is_taken_up_if_that_is_still_wished(results: Path, again: bool) -> None:
    (kept,) = lines(A)
    fault = Failed(kind=Kind.SERVER, message="HTTP 500", sent=True)
    results.write_bytes(dump_result(Result(prompt=kept.prompt, error=fault)))
    trio.run(opened(results).keep, [kept])
    with Store.open(Settings(output=str(results), retry_failed=again)) as store:
        assert store.spool is not None
        assert store.spool.left == [kept] * again


# With an intake


def piped(content: bytes, intake: Intake, spool: Spool, *, die_after: int | None = None) -> list[str]:
    """Read `content` from a FIFO; the ids that were handed on before the run died, if it does."""
    fifo, handed = Path(spool.path).with_name("fifo"), list[str]()
    if not fifo.exists():
        os.mkfifo(fifo)

    async def take(one: Prompt | Result) -> None:
        await trio.lowlevel.checkpoint()
        if len(handed) == die_after:
            scope.cancel()
        await trio.lowlevel.checkpoint()
        handed.append(str(one.id if isinstance(one, Prompt) else one.prompt.id))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, fifo.write_bytes, content)
            with scope:
                await read_prompts([source_of(str(fifo))], intake, take, take, spool)

    scope = trio.CancelScope()
    trio.run(main)
    return handed


def test_what_a_killed_run_had_taken_out_of_a_pipe_is_handed_on_first_and_once(results: Path) -> None:
    content = A + b"\n" + B + b"\n" + b"{broken\n" + C + b"\n"
    assert piped(content, Intake(), opened(results), die_after=1) == ["a"]
    spool, intake = opened(results), Intake()
    spool.left = [one for one in spool.left if one.raw != A]  # whose result was written
    intake.done = {one.key for one in lines(A)}
    again = piped(content, intake, spool)
    assert again == ["b", "None", "c"], "the producer began anew, and nothing is handed on twice"
    assert (intake.read, intake.duplicates, intake.skipped_done, len(intake.open)) == (3 + 4, 3, 1, 3)
    assert len(list(intake.keys_read())) == len(set(intake.keys_read())) == 4


def test_a_stream_that_goes_on_where_it_was_loses_nothing(results: Path) -> None:
    assert piped(A + b"\n" + B + b"\n", Intake(), opened(results), die_after=0) == []
    assert piped(C + b"\n", Intake(), opened(results)) == ["a", "b", "c"]


def test_a_stop_between_a_read_and_the_spool_waits_for_the_spool(results: Path) -> None:
    @asynccontextmanager
    async def stopped_at_the_first_read() -> AsyncIterator[ReadChunk]:
        async def read() -> bytes:
            scope.cancel()
            return A + b"\n" + B + b"\n"

        yield read

    async def refuse(what: Prompt | Result) -> None:
        await trio.lowlevel.checkpoint()
        pytest.fail(f"{what}")

    async def main() -> None:
        with scope:
            source = Source(name="-", open=stopped_at_the_first_read, once=True)
            await read_prompts([source], Intake(), refuse, refuse, opened(results))

    scope = trio.CancelScope()
    trio.run(main)
    assert [one.raw for one in opened(results).left] == [A, B]


@pytest.mark.parametrize(
    ("half", "line", "goes_on"),
    [
        (A[:9], A[9:], True),
        (A, b"", True),  # only its LF was missing
        (A[:9], B, False),  # the producer began anew
        (A[:9], b"{broken", False),
        (b'"', b"", False),
    ],
)
@pytest.mark.parametrize("pipe", ["1:2", "3:4", ""])
def test_a_line_is_the_rest_of_a_half_one_if_it_makes_a_prompt_of_it(
    half: bytes, line: bytes, goes_on: bool, pipe: str
) -> None:
    kept = Half(half, "-", "1:2")
    no_prompts = line in (b"{broken", b"") and not goes_on
    assert kept.goes_on(line, pipe, text=False) == (goes_on or (no_prompts and pipe == "1:2"))
    assert kept.goes_on(line, pipe, text=True) == (pipe == "1:2")


def test_a_half_line_that_no_run_came_to_is_kept_and_one_that_was_read_on_is_not_there_after_a_kill(
    results: Path,
) -> None:
    half = Half(b'{"id":"\xff', "-", "1:2")
    spool = opened(results)
    spool.halves["-"] = half
    spool.close()
    again = opened(results)
    assert (again.halves, again.left, again.damaged) == ({"-": half}, [], 0)
    again.close()
    killed = opened(results)
    assert killed.halves == {"-": half}
    assert opened(results).halves == {}


def test_a_stop_in_the_midst_of_a_read_keeps_its_half_line(results: Path) -> None:
    spool = opened(results)
    assert piped(A + b"\n" + B[:9], Intake(), spool, die_after=0) == []
    spool.close()
    assert piped(B[9:] + b"\n" + C, Intake(), opened(results)) == ["a", "b", "c"]


def test_a_producer_that_begins_anew_is_not_joined_to_the_half_line_of_its_first_time(results: Path) -> None:
    content = A + b"\n" + B + b"\n"
    spool = opened(results)
    spool.halves[str(results.with_name("fifo"))] = Half(A[:9], "", "")
    assert piped(content, Intake(), spool) == ["a", "b"]
    assert spool.halves == {}


def test_what_is_read_of_a_pipe_beyond_the_wished_for_number_is_there_for_the_next_run(results: Path) -> None:
    content = A + b"\n\n" + A + b"\n" + B + b"\n{broken\n" + C
    spool, intake = opened(results), Intake(first=1)
    assert piped(content, intake, spool) == ["a"]
    assert (intake.read, len(intake.open), len(set(intake.keys_read()))) == (1, 1, 1), "they don't count as read"
    trio.run(spool.forget, [one.key for one in lines(A)], nothing)
    spool.close()
    spool = opened(results, {one.key for one in lines(A)})
    assert [one.raw for one in spool.left] == [B, b"{broken"]
    assert [half.raw for half in spool.halves.values()] == [C]
    intake = Intake(done={one.key for one in lines(A)})
    assert piped(content, intake, spool) == ["b", "None", "c"], "the producer began anew: nothing twice"


def test_a_file_needs_no_spool(results: Path, tmp_path: Path) -> None:
    prompts, seen = tmp_path / "p.jsonl", list[str]()
    prompts.write_bytes(A + b"\n" + B)

    async def take(one: Prompt | Result) -> None:
        await trio.lowlevel.checkpoint()
        assert isinstance(one, Prompt)
        seen.append(str(one.id))

    trio.run(read_prompts, [source_of(str(prompts))], Intake(), take, take, opened(results))
    assert (seen, file_of(results).exists()) == (["a", "b"], False)


# With a run, and a pipe that stays open over all of them

SLOW = "steady?latency=0.7&rate=500&burst=500"
FAST = ("--policy-option", "start_rate=50")


@contextmanager
def held_open() -> Iterator[tuple[int, int]]:
    """The ends of a pipe: its producer goes on whichever run reads it."""
    ends = os.pipe()
    yield ends
    for fd in ends:
        os.close(fd)


def begun(url: str, reading: int, results: Path, *flags: str) -> subprocess.Popen[str]:
    """A run over the pipe, with an attempt under way."""
    asked = statistics(url)["attempts"]
    process = start("-", "--base-url", url, "--model", "m", "-o", results, *FAST, *flags, stdin=reading)
    wait_until(lambda: statistics(url)["attempts"] != asked, process)
    return process


def wait_until(question: Callable[[], object], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not question():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def stopped(process: subprocess.Popen[str]) -> None:
    """Until it has said that it stops, and is in its drain."""
    process.send_signal(signal.SIGTERM)
    assert process.stderr is not None
    assert any("stopping: " in line for line in process.stderr)


def test_what_is_written_into_a_pipe_while_a_stopped_run_drains_stays_in_it(results: Path) -> None:
    with upstream(SLOW) as url, held_open() as (reading, writing):
        os.write(writing, A + b"\n")
        process = begun(url, reading, results)
        stopped(process)
        os.write(writing, B + b"\n")
        process.communicate(timeout=PATIENCE)
        os.set_blocking(reading, False)
        assert os.read(reading, 1000) == B + b"\n"
    assert ids(results_of(results)) == ["a"]


@pytest.mark.slow  # three processes
def test_the_half_line_at_a_stop_is_put_before_what_the_next_run_reads(results: Path) -> None:
    with upstream(SLOW) as url, held_open() as (reading, writing):
        os.write(writing, A + b"\n" + B[:9])
        process = begun(url, reading, results)
        stopped(process)
        process.communicate(timeout=PATIENCE)
        os.write(writing, B[9:] + b"\n" + C + b"\n")
        process = begun(url, reading, results)
        wait_until(lambda: len(results_of(results)) >= 3, process)
        stopped(process)
        process.communicate(timeout=PATIENCE)
    assert [line["status"] for line in results_of(results)] == ["ok"] * 3
    assert ids(results_of(results)) == ["a", "b", "c"]
    assert not file_of(results).exists()


def test_lines_that_a_full_disk_did_not_keep_are_told_and_not_called_pending(results: Path) -> None:
    count, most = 100, 8000
    with upstream(SLOW) as url, held_open() as (reading, writing):
        os.write(writing, b"".join(b'{"id":%d,"prompt":"%s"}\n' % (n, b"x" * 200) for n in range(count)))
        limit = (most, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
        flags = ("--base-url", url, "--model", "m", "-o", results)
        process = start("-", *flags, stdin=reading, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
        _, errors = process.communicate(timeout=PATIENCE)
    whole = file_of(results).read_bytes().count(b"\n")
    assert (process.returncode, file_of(results).read_bytes()[-1:]) == (5, b"\n")
    assert 0 < whole < count
    assert f"{count - whole} lines read from a pipe could not be kept: send them again" in errors
    assert f"{whole} read: 0 ok, 0 failed, {whole} pending" in errors
    assert len(opened(results).left) == whole


@pytest.mark.slow  # three processes
def test_what_is_missing_from_changed_results_is_sent_again_although_it_came_through_a_pipe(results: Path) -> None:
    count = 20
    with upstream(SLOW) as url, held_open() as (reading, writing):
        os.write(writing, b"".join(b'{"id":%d,"prompt":"x"}\n' % n for n in range(count)))
        process = begun(url, reading, results, "--max-in-flight", "10", "--first", str(count))
        wait_until(lambda: len(results_of(results)) >= 5, process)
        os.truncate(results, 0)
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 5
        assert f"of a pipe what {file_of(results)} still holds" in errors
        again = run("-", "--base-url", url, "--model", "m", "-o", results, *FAST, text="")
    assert again.returncode == 0, again.stderr
    assert ids(results_of(results)) == ids([{"id": n} for n in range(count)])
    assert not file_of(results).exists()
