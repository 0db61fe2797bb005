"""A results file that an earlier run left behind: whatever state it is in, it is valid again and nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from controller.journal import Journal


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


# Laws


@given(st.integers(0, 4), st.data())
def test_wherever_a_crash_cuts_the_file_whole_records_stay_and_the_next_ones_are_whole(
    tmp_path_factory: pytest.TempPathFactory, count: int, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("cut") / "results.jsonl"
    lines = [record(number, "a\u2028\x85b") for number in range(count)]
    whole = b"".join(lines)
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    with Journal.open(str(path)) as journal:
        answered = numbers(journal.ledger.answered)
        trio.run(journal.write, [record(99)])
    ends = [len(b"".join(lines[:number])) for number in range(count + 1)]
    kept = max(number for number in range(count + 1) if ends[number] - 1 <= cut)  # its LF may be missing
    assert answered == set(range(kept))
    assert bytes_of(path) == b"".join(lines[:kept]) + record(99)


# Opening


async def test_a_new_file_is_made_written_and_known_to_the_next_run(path: Path) -> None:
    with Journal.open(str(path)) as journal:
        assert journal.resumable
        await journal.write([record(1), record(2, ok=False)])
        assert bytes_of(path) == record(1) + record(2, ok=False)
        await journal.write([])
        await journal.write([record(3)])
    with Journal.open(str(path)) as journal:
        assert (numbers(journal.ledger.answered), numbers(journal.ledger.failed)) == ({1, 3}, {2})
        assert (journal.ledger.damaged, journal.ledger.torn_bytes) == (0, 0)


def test_a_prompt_that_failed_and_was_answered_in_a_later_run_counts_as_answered(path: Path) -> None:
    path.write_bytes(record(1, ok=False) + record(1) + record(2) + record(2, ok=False))
    with Journal.open(str(path)) as journal:
        assert (numbers(journal.ledger.answered), numbers(journal.ledger.failed)) == ({1, 2}, set())


def test_batch_lines_are_known_too(path: Path) -> None:
    response = {"status_code": 200, "request_id": "r", "body": {}}
    done = {"id": "batch_req_" + key_of(7).hex(), "custom_id": "a", "response": response, "error": None}
    failed = {**done, "id": "batch_req_" + key_of(8).hex(), "response": {**response, "status_code": 400}}
    path.write_text(json.dumps(done) + "\n" + json.dumps(failed) + "\n")
    with Journal.open(str(path)) as journal:
        assert (numbers(journal.ledger.answered), numbers(journal.ledger.failed)) == ({7}, {8})


def test_case_c90_a_torn_last_line_is_cut_and_counted(path: Path) -> None:
    path.write_bytes(record(1) + b'{"id":"7","te')
    with Journal.open(str(path)) as journal:
        assert (numbers(journal.ledger.answered), journal.ledger.torn_bytes) == ({1}, 13)
    assert bytes_of(path) == record(1)


def test_case_c90_a_whole_last_record_gets_its_lf(path: Path) -> None:
    path.write_bytes(record(1) + record(2)[:-1])
    with Journal.open(str(path)) as journal:
        assert (numbers(journal.ledger.answered), journal.ledger.completed) == ({1, 2}, True)
    assert bytes_of(path) == record(1) + record(2)


@pytest.mark.parametrize("tail", [b"{", b'{"id":', b'{"id":1,"key":"00', b"\0" * 512])
def test_case_c90_a_file_that_is_nothing_but_a_torn_record_begins_anew(path: Path, tail: bytes) -> None:
    path.write_bytes(tail)
    with Journal.open(str(path)) as journal:
        assert journal.ledger.torn_bytes == len(tail)
    assert bytes_of(path) == b""


def test_case_c91_damaged_lines_in_the_middle_are_skipped_counted_and_left(path: Path) -> None:
    content = record(1) + b'{"id":2,"key\n' + b"\n" + b"\xff\xfe\n" + record(3).replace(b"\n", b"\r\n") + b"\n"
    path.write_bytes(content)
    with Journal.open(str(path)) as journal:
        assert (numbers(journal.ledger.answered), journal.ledger.damaged) == ({1, 3}, 2)
    assert bytes_of(path) == content


def test_case_c93_records_end_at_lf_only(path: Path) -> None:
    path.write_bytes(b"".join(record(number, "\x85\u2028\u2029\x7f") for number in range(82)))
    with Journal.open(str(path)) as journal:
        assert (len(numbers(journal.ledger.answered)), journal.ledger.damaged) == (82, 0)


@pytest.mark.parametrize("content", [b"my notes", b"my notes\nof today", b'{"prompt":"x"}\n', b'"x"\n"y"'])
def test_a_file_with_nothing_of_ours_is_refused_and_left_as_it_is(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"results\.jsonl holds no results of tidegate"):
        Journal.open(str(path))
    assert bytes_of(path) == content


def test_a_second_run_on_the_same_file_is_refused_until_the_first_is_over(path: Path) -> None:
    with Journal.open(str(path)), pytest.raises(ValueError, match="in use by another run"):
        Journal.open(str(path))
    with Journal.open(str(path)):
        pass


def test_what_cannot_be_opened_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot write .*/missing/results: No such file or directory"):
        Journal.open(str(tmp_path / "missing" / "results"))
    with pytest.raises(ValueError, match=r"cannot write .*: Is a directory"):
        Journal.open(str(tmp_path))
