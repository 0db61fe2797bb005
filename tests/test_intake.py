"""What becomes of the lines: prompts, errors and what needs no answer, each counted once."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from controller.assemble import check_files, intake_for
from controller.intake import Intake, read_prompts
from controller.journal import Journal
from controller.outcome import Failed, Kind
from controller.records import Prompt, Result, dump_result
from controller.settings import Settings
from controller.sources import Line, ReadChunk, Source, source_of


def reader_of(chunks: Iterable[bytes]) -> ReadChunk:
    """A read without a thread, as a virtual run has it."""
    left = iter(chunks)

    async def read() -> bytes:
        await trio.lowlevel.checkpoint()
        return next(left, b"")

    return read


def source_with(name: str, *chunks: bytes) -> Source:
    @asynccontextmanager
    async def opened() -> AsyncIterator[ReadChunk]:
        yield reader_of(chunks)

    return Source(name=name, open=opened)


class Doors:
    """Where the intake hands on to: remembers all."""

    def __init__(self) -> None:
        self.prompts: list[Prompt] = []
        self.results: list[Result] = []

    async def accept_prompt(self, prompt: Prompt) -> None:
        await trio.lowlevel.checkpoint()
        self.prompts.append(prompt)

    async def accept_result(self, result: Result) -> None:
        await trio.lowlevel.checkpoint()
        self.results.append(result)

    @property
    def texts(self) -> list[str]:
        return [prompt.request["messages"][0]["content"] for prompt in self.prompts]  # type: ignore[index,call-overload,misc]


async def take_in(intake: Intake, *sources: Source) -> Doors:
    doors = Doors()
    await read_prompts(sources, intake, doors.accept_prompt, doors.accept_result)
    return doors


# Laws


@given(st.lists(st.sampled_from(['"x"', '"y"', '{"id":1,"prompt":"x"}', '{"id":1,"prompt":"z"}', "", "{"])))
def test_every_line_that_is_not_blank_is_counted_once_and_a_second_run_has_nothing_to_do(lines: list[str]) -> None:
    source = source_with("-", "\n".join(lines).encode())
    first = Intake()
    doors = trio.run(take_in, first, source)
    assert first.read == first.prompts + first.duplicates + first.conflicts + first.bad
    assert (first.prompts, first.conflicts + first.bad) == (len(doors.prompts), len(doors.results))
    keys = [one.key for one in doors.prompts] + [one.prompt.key for one in doors.results]
    assert len(set(keys)) == len(keys)
    second = Intake(done={bytes.fromhex(key) for key in keys})
    again = trio.run(take_in, second, source_with("-", "\n".join(lines).encode()))
    assert (again.prompts, again.results) == ([], [])
    assert (second.read, second.skipped_done, second.duplicates) == (first.read, len(keys), first.duplicates)


# Examples


async def test_a_read_that_fails_midway_is_the_callers_to_see() -> None:
    async def read() -> bytes:
        await trio.lowlevel.checkpoint()
        if intake.read:
            raise OSError(errno.EIO, "Input/output error")
        return b'"a"\n'

    @asynccontextmanager
    async def opened() -> AsyncIterator[ReadChunk]:
        yield read

    intake = Intake()
    with pytest.raises(OSError, match="Input/output error"):
        await take_in(intake, Source(name="bad", open=opened))
    assert (intake.prompts, intake.exhausted) == (1, False)


async def test_prompts_bad_lines_and_conflicts_each_go_to_their_door() -> None:
    intake = Intake()
    doors = await take_in(
        intake,
        source_with("one", b'"a"\n\n{"id":1,"prompt":"b"}\nbroken\n'),
        source_with("two", b'{"id":1,"prompt":"b"}\n{"id":1,"prompt":"c"}\n{"prompt":"d","temprature":0}'),
    )
    assert doors.texts == ["a", "b", "d"]
    assert [(prompt.source, prompt.line) for prompt in doors.prompts] == [("one", 1), ("one", 3), ("two", 3)]
    assert [(result.prompt.source, result.prompt.line) for result in doors.results] == [("one", 4), ("two", 2)]
    assert (intake.read, intake.prompts, intake.duplicates, intake.conflicts, intake.bad) == (6, 3, 1, 1, 1)
    assert (intake.carried, intake.exhausted) == ({"temprature"}, True)


async def test_nothing_is_read_while_a_receiver_waits(nursery: trio.Nursery) -> None:
    intake, doors, gate = Intake(), Doors(), trio.Event()

    async def slow(prompt: Prompt) -> None:
        await doors.accept_prompt(prompt)
        await gate.wait()

    source = source_with("-", *(b'"%d"\n' % number for number in range(5)))
    nursery.start_soon(read_prompts, [source], intake, slow, doors.accept_result)
    await trio.testing.wait_all_tasks_blocked()
    assert (intake.read, len(doors.prompts), intake.exhausted) == (1, 1, False)
    gate.set()


async def test_only_the_first_lines_are_read_if_so_wished_and_resuming_does_not_add_to_them() -> None:
    first = await take_in(Intake(first=2), source_with("-", b'"a"\n\n', b'"b"\n"c"'), source_with("x", b'"d"'))
    assert first.texts == ["a", "b"]
    done = {bytes.fromhex(prompt.key) for prompt in first.prompts}
    assert (await take_in(Intake(first=2, done=done), source_with("-", b'"a"\n"b"\n"c"'))).texts == []


@pytest.mark.parametrize("slow", ["a", "b"])
async def test_all_lines_that_were_counted_are_handed_on_when_several_sources_are_read_at_once(slow: str) -> None:
    doors, intake = Doors(), Intake(first=2)

    async def accept(prompt: Prompt) -> None:
        await trio.sleep(0.05 if prompt.source == slow else 0)
        doors.prompts.append(prompt)

    def source(name: str) -> Source:
        @asynccontextmanager
        async def opened() -> AsyncIterator[ReadChunk]:
            chunks = iter([b'"%s"\n' % name.encode()])

            async def read() -> bytes:
                await trio.lowlevel.checkpoint()
                return next(chunks, b"") or await trio.sleep_forever()

            yield read

        return Source(name=name, open=opened)

    await read_prompts([source(name) for name in "abc"], intake, accept, doors.accept_result, at_once=True)
    assert (intake.read, intake.prompts, len(doors.prompts), intake.exhausted) == (2, 2, 2, True)


async def test_a_line_that_comes_when_there_are_enough_is_not_taken() -> None:
    assert list(Intake(first=0).take_all([Line(number=1, raw=b'"a"')], "-")) == []


async def test_a_source_that_is_not_needed_is_not_opened() -> None:
    def refuse() -> AbstractAsyncContextManager[ReadChunk]:
        pytest.fail("it may be a FIFO without a writer")

    doors = await take_in(Intake(first=1), source_with("a", b'"a"\n"b"\n'), Source(name="fifo", open=refuse))
    assert doors.texts == ["a"]


async def test_a_line_whose_failure_is_tried_again_is_no_changed_one(tmp_path: Path) -> None:
    lines = b'{"id":1,"prompt":"x"}\n{"id":2,"prompt":"new"}\n'
    first = await take_in(Intake(), source_with("-", b'{"id":1,"prompt":"x"}\n{"id":2,"prompt":"old"}\n'))
    fault = Failed(kind=Kind.SERVER, message="HTTP 500", sent=True)
    path = tmp_path / "r.jsonl"
    path.write_bytes(b"".join(dump_result(Result(prompt=prompt, error=fault)) for prompt in first.prompts))
    with Journal.open(str(path)) as journal:
        intake = intake_for(Settings(output=str(path), retry_failed=True), journal.ledger)
        doors = await take_in(intake, source_with("-", lines))
    assert doors.texts == ["x", "new"]
    assert (intake.changed, intake.first_changed) == (1, "-:2")


def test_stdin_is_not_read_by_two_at_once() -> None:
    with pytest.raises(ValueError, match="stdin is named twice"):
        check_files(Settings(follow=True), ("-", "-"))


async def test_text_lines_are_prompts_as_they_are() -> None:
    assert (await take_in(Intake(text=True), source_with("-", b'{"prompt":"x"}\r\n{'))).texts == ['{"prompt":"x"}', "{"]


async def test_case_c94_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'\xef\xbb\xbf"a"\r\n"b"\r\n')
    assert (await take_in(Intake(), source_of(str(path)))).texts == ["a", "b"]
