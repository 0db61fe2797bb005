"""Results out: what was reported as written is there, and what can't be written is said, in a file or on stdout."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import trio
import trio.testing
from disks import largest_file

from controller.durable import Durable
from controller.intake import Intake
from controller.journal import Journal, JournalError, check_output
from controller.sources import Line
from controller.spool import Spool
from controller.store import Store
from controller.telemetry import Exit, Stop


def key_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


def record(number: int, text: str = "yo", *, ok: bool = True) -> bytes:
    value = {"id": number, "key": key_of(number).hex(), "status": "ok" if ok else "error", "text": text}
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def numbers(keys: Iterable[bytes]) -> set[int]:
    return {int.from_bytes(key, "big") for key in keys}


def bytes_of(path: Path) -> bytes:
    return path.read_bytes()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.jsonl"


# Writing


async def test_case_c99_bytes_with_an_escaped_surrogate_are_written_and_read(path: Path) -> None:
    line = record(1).replace(b"yo", b"\\ud835")
    with Journal.open(str(path)) as journal:
        await journal.write([line])
    with Journal.open(str(path)) as journal:
        assert numbers(journal.ledger.answered) == {1}


async def test_a_full_disk_leaves_whole_records_only_and_every_later_write_says_so(path: Path) -> None:
    whole = record(1) + record(2)
    with Journal.open(str(path)) as journal:
        await journal.write([record(1)])
        with (
            largest_file(len(whole) + 20),
            pytest.raises(JournalError, match=r"results\.jsonl: File too large") as told,
        ):
            await journal.write([record(2), record(3), record(4)])
        assert isinstance(told.value.__cause__, OSError)
        assert str(path) in str(told.value)
        assert bytes_of(path) == whole
        with pytest.raises(JournalError, match="File too large"):
            await journal.write([record(5)])
    assert bytes_of(path) == whole


def test_a_disk_without_room_for_a_line_is_told_before_anything_is_paid_for(path: Path) -> None:
    path.write_bytes(record(1))
    with largest_file(len(record(1)) + 100), pytest.raises(JournalError, match=r"results\.jsonl: File too large"):
        Journal.open(str(path))
    assert bytes_of(path) == record(1)
    with Journal.open(str(path)) as journal:
        assert bytes_of(path) == record(1)
        trio.run(journal.write, [record(2)])
    assert bytes_of(path) == record(1) + record(2)


def test_a_start_that_dies_while_it_looks_for_room_leaves_a_torn_line_only(path: Path) -> None:
    path.write_bytes(record(1) + b"\0" * 4096)
    with Journal.open(str(path)) as journal:
        assert (numbers(journal.ledger.answered), journal.ledger.damaged) == ({1}, 0)
    assert bytes_of(path) == record(1)


async def test_dev_full_is_a_journal_error() -> None:
    with Journal.open("/dev/full") as journal:
        assert not journal.resumable
        with pytest.raises(JournalError, match="/dev/full: No space left on device"):
            await journal.write([record(1)])


async def test_dev_null_takes_everything() -> None:
    with Journal.open("/dev/null") as journal:
        await journal.write([record(1)])
        assert numbers(journal.ledger.answered) == set()


async def test_a_write_that_had_not_begun_when_it_was_cancelled_writes_nothing(path: Path) -> None:
    with Journal.open(str(path)) as journal:
        with trio.CancelScope() as scope:
            scope.cancel()
            await journal.write([record(1)])
        assert bytes_of(path) == b""
        await journal.write([record(2)])
    assert bytes_of(path) == record(2)


async def test_a_write_once_begun_to_a_file_is_finished_though_cancelled(path: Path) -> None:
    with Journal.open(str(path)) as journal:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(journal.write, [record(1, "x" * 30_000_000)])
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    with Journal.open(str(path)) as journal:
        assert (numbers(journal.ledger.answered), journal.ledger.torn_bytes) == ({1}, 0)


async def test_a_fifo_is_written_to_and_its_end_is_a_closed_pipe(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    with Journal.open(str(fifo)) as journal:
        await journal.write([record(1)])
        assert os.read(reader, 1000) == record(1)
        os.close(reader)
        with pytest.raises(JournalError) as told:
            await journal.write([record(2)])
        assert "Broken pipe" in str(told.value)


@contextmanager
def stdout_into_pipe() -> Iterator[int]:
    """The reading end of a pipe that stands in stdout's place. No fixture: pytest changes stdout after those."""
    saved, (reader, writer) = os.dup(1), os.pipe()
    os.dup2(writer, 1)
    os.close(writer)
    try:
        yield reader
    finally:
        os.dup2(saved, 1)
        os.close(saved)
        with suppress(OSError):
            os.close(reader)


async def test_case_c100_a_closed_stdout_is_told_apart_and_stays_open() -> None:
    with stdout_into_pipe() as reader, Journal.stdout() as journal:
        await journal.write([record(1)])
        assert os.read(reader, 1000) == record(1)
        os.close(reader)
        with pytest.raises(JournalError, match="stdout: Broken pipe") as told:
            await journal.write([record(2)])
        assert "Broken pipe" in str(told.value)
    os.fstat(1)  # not ours to close


@pytest.mark.parametrize("blocking", [True, False])
async def test_a_slow_reader_of_stdout_holds_up_nobody_else_and_can_be_given_up(blocking: bool) -> None:
    big, taken = record(1, "x" * 300_000), b""
    with stdout_into_pipe() as reader, Journal.stdout() as journal:
        os.set_blocking(1, blocking)
        with trio.move_on_after(0.05) as waiting:
            await journal.write([big])
        while len(taken) < len(big):  # lets the thread that was left behind finish
            taken += await trio.to_thread.run_sync(os.read, reader, 65536)
        await journal.write([record(2)])
        following = os.read(reader, 1000)
    assert waiting.cancelled_caught
    assert (taken == big, following) == (True, record(2))


async def test_a_run_without_threads_brings_its_own_append() -> None:
    written: list[bytes] = []

    async def append(data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        if len(written) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(data)

    journal = Journal(name="memory", append=append)
    await journal.write([record(1), record(2)])
    assert written == [record(1) + record(2)]
    with pytest.raises(JournalError, match="memory: No space left on device"):
        await journal.write([record(3)])


# fsync


class Disk:
    """Counts what is made durable, in place of fsync; fails once `broken`."""

    def __init__(self) -> None:
        self.syncs, self.broken = 0, False

    def fsync(self, fd: int) -> None:
        os.fstat(fd)
        if self.broken:
            raise OSError(errno.EIO, "Input/output error")
        self.syncs += 1


@pytest.mark.parametrize(
    ("mode", "per_write", "in_between", "at_the_end"), [("always", 1, 0, 0), ("interval", 0, 1, 1), ("never", 0, 0, 0)]
)
async def test_results_are_synced_at_every_write_or_now_and_then_and_before_exit_or_never(
    path: Path, mode: str, per_write: int, in_between: int, at_the_end: int
) -> None:
    disk = Disk()
    with Journal.open(str(path), Durable(mode, disk.fsync)) as journal:
        begin = disk.syncs  # the folder's, for the name of the new file
        assert begin == (mode != "never")
        for number in range(3):
            await journal.write([record(number)])
        assert disk.syncs == begin + 3 * per_write
        await journal.sync()
        await journal.sync()  # nothing new: nothing to do
        assert disk.syncs == begin + 3 * per_write + in_between
        await journal.write([record(4)])
    assert disk.syncs == begin + 4 * per_write + in_between + at_the_end


async def test_after_a_failed_sync_nothing_more_is_written(path: Path) -> None:
    disk = Disk()
    with Journal.open(str(path), Durable("interval", disk.fsync)) as journal:
        await journal.write([record(1)])
        disk.broken = True
        with pytest.raises(JournalError, match="Input/output error"):
            await journal.sync()
        disk.broken = False
        with pytest.raises(JournalError, match="Input/output error"):
            await journal.write([record(2)])
    assert bytes_of(path) == record(1)


async def test_after_a_failed_sync_no_later_one_is_believed(path: Path) -> None:
    disk = Disk()
    with Journal.open(str(path), Durable("interval", disk.fsync)) as journal:
        await journal.write([record(1)])
        disk.broken = True
        with pytest.raises(JournalError, match="Input/output error"):
            await journal.sync()
        disk.broken = False
        with pytest.raises(JournalError, match="Input/output error"):
            await journal.sync()
        with pytest.raises(JournalError, match="Input/output error"):
            journal.sync_now()


async def test_a_sync_does_not_return_while_another_one_is_still_at_it(path: Path) -> None:
    begun, go_on, over = threading.Event(), threading.Event(), list[str]()

    def slow(fd: int) -> None:
        begun.set()
        go_on.wait()
        over.append("fsync")

    with Journal.open(str(path)) as journal:
        assert journal._output is not None
        journal._output.durable = Durable("interval", slow)
        await journal.write([record(1)])

        async def sync_too() -> None:
            await journal.sync()
            over.append("second sync")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(journal.sync)
            await trio.to_thread.run_sync(begun.wait)
            nursery.start_soon(sync_too)
            await trio.testing.wait_all_tasks_blocked()
            go_on.set()
    assert over == ["fsync", "second sync"]


async def test_a_run_whose_results_may_not_be_on_the_disk_keeps_its_spooled_lines(path: Path) -> None:
    disk, spool = Disk(), Spool.open(str(path), set(), Durable())
    with Store(Journal.open(str(path), Durable("interval", disk.fsync)), spool) as store:
        taken = list(Intake().take_all([Line(number=1, raw=b'{"id":1,"prompt":"x"}')], "-"))
        await store.keep(taken)
        await store.write([record(1)], [])
        disk.broken = True
        with pytest.raises(JournalError):
            await store.journal.sync()
        disk.broken = False
        await spool.forget([taken[0].key], store.journal.sync)
    assert b"prompt" in bytes_of(Path(spool.path))


async def test_a_run_keeps_what_a_crash_of_the_machine_costs_below_a_second(path: Path, autojump_clock: object) -> None:
    disk, stop = Disk(), Stop()
    store = Store(Journal.open(str(path), Durable("interval", disk.fsync)))
    begin = disk.syncs
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.sync_often, stop, pytest.fail)
        for number in range(10):
            await store.write([record(number)], [])
            await trio.sleep(0.1)
        await trio.sleep(0.5)
        assert begin + 1 <= disk.syncs < begin + 10, (
            "the virtual clock does not wait for threads, but it is no sync a write"
        )
        disk.broken = True
        await store.write([record(11)], [])
        await stop.asked.wait()
        nursery.cancel_scope.cancel()
    assert (stop.code, stop.at_once.is_set()) == (Exit.LOCAL_IO, True)
    store.journal.close()


# A file that loses its name


def test_a_file_that_is_put_back_can_be_read_by_nobody_who_could_not_before(path: Path) -> None:
    with Journal.open(str(path)) as journal:
        trio.run(journal.write, [record(1)])
        path.chmod(0o600)
        path.unlink()
        loss = journal.look_after_now()
        trio.run(journal.write, [record(2)])
    assert loss is not None
    assert not loss.stops
    assert (path.stat().st_mode & 0o777, bytes_of(path)) == (0o600, record(1) + record(2))


def test_a_folder_that_is_moved_away_and_replaced_by_a_file_moved_its_results_too(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    with Journal.open(str(folder / "r.jsonl")) as journal:
        trio.run(journal.write, [record(1)])
        folder.rename(tmp_path / "e")
        folder.touch()
        for loss in (trio.run(journal.look_after), journal.look_after_now()):
            assert loss is not None
            assert loss.stops
            assert "was moved away" in loss.words
        trio.run(journal.write, [record(2)])
        assert len(found.keys if (found := journal.recount()) else "unread") == 0
    assert bytes_of(tmp_path / "e" / "r.jsonl") == record(1) + record(2)


def test_a_folder_that_cannot_be_looked_into_ends_no_run_and_loses_no_result(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    with Journal.open(str(folder / "r.jsonl")) as journal:
        folder.rename(tmp_path / "e")
        folder.symlink_to(folder)
        assert trio.run(journal.look_after) is None
        trio.run(journal.write, [record(1)])
        assert journal.recount() is None
    assert bytes_of(tmp_path / "e" / "r.jsonl") == record(1)


# The recount


async def test_what_a_run_wrote_is_counted_again_from_the_file(path: Path) -> None:
    fill(path, record(1) + record(2, ok=False) + record(3, ok=False))
    with Journal.open(str(path)) as journal:
        await journal.write([record(2), record(4)])
        await journal.write([record(4, ok=False), record(1)])
        ledger = journal.recount()
        assert ledger is not None
        assert (numbers(ledger.answered), numbers(ledger.failed)) == ({1, 2, 4}, {3})
        assert ledger.double == 2, "4 and 1 have a second line; 2 was tried again after its failure"


async def test_a_file_that_somebody_removed_replaced_or_emptied_is_counted_as_it_is_now(path: Path) -> None:
    changes: list[tuple[Callable[[], object], set[int]]] = [
        (path.unlink, set()),
        (lambda: fill(path, b""), set()),
        (lambda: replace(path), {9}),
    ]
    for change, left in changes:
        fill(path, record(1) + record(2))
        with Journal.open(str(path)) as journal:
            await journal.write([record(3)])
            change()
            ledger = journal.recount()
            assert ledger is not None
            assert numbers(ledger.answered) == left


async def test_a_file_that_was_cut_and_has_grown_again_is_counted_as_it_is_now(path: Path) -> None:
    fill(path, record(1) + record(2))
    with Journal.open(str(path)) as journal:
        fill(path, b"")
        await journal.write([record(number) for number in (3, 4, 5)])
        ledger = journal.recount()
        assert ledger is not None
        assert (numbers(ledger.answered), ledger.double) == ({3, 4, 5}, 0)


def fill(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def replace(path: Path) -> None:
    other = path.with_name("other")
    fill(other, record(9))
    other.rename(path)


def test_what_goes_to_a_device_cannot_be_counted_again() -> None:
    with Journal.open("/dev/null") as journal:
        assert journal.recount() is None


# Where results may go


def test_results_never_go_into_their_own_input_by_whatever_name(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('"x"\n')
    (tmp_path / "hard").hardlink_to(prompts)
    (tmp_path / "soft").symlink_to(prompts)
    for output in (prompts, tmp_path / "hard", tmp_path / "soft", tmp_path / "." / "prompts.jsonl"):
        with pytest.raises(ValueError, match=r"-o would write into .*prompts\.jsonl"):
            check_output(str(output), ["/dev/null", str(prompts)])
    check_output(str(tmp_path / "results.jsonl"), [str(prompts)])
    check_output("/dev/null", [str(prompts)])
    check_output("-", ["-", str(prompts)])


def test_a_redirected_stdout_is_known_as_an_input_too(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('"x"\n')
    saved, fd = os.dup(1), os.open(prompts, os.O_WRONLY | os.O_APPEND)
    os.dup2(fd, 1)
    try:
        with pytest.raises(ValueError, match="-o would write into"):
            check_output("-", [str(prompts)])
    finally:
        os.dup2(saved, 1)
        os.close(saved)
        os.close(fd)


def test_an_output_that_cannot_be_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is a directory: name a file, such as .*results\.jsonl"):
        check_output(str(tmp_path), [])
    with pytest.raises(ValueError, match=r"there is no directory .*/a/b: make it with mkdir -p"):
        check_output(str(tmp_path / "a" / "b" / "results"), [])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_output_without_permission_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ValueError, match="no permission to write"):
        check_output(str(tmp_path / "results"), [])
