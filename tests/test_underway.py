"""What a crash may have cost is told by the next run, once for each attempt."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.proof import Proof, Summary
from controller.repair import ANSWERED, Ledger
from controller.underway import HEAD, Underway


def key_of(number: int) -> str:
    return number.to_bytes(16, "big").hex()


def keys(*numbers: int) -> set[bytes]:
    return {bytes.fromhex(key_of(number)) for number in numbers}


def answered(*numbers: int) -> Ledger:
    ledger = Ledger()
    for key in keys(*numbers):
        ledger.keys.put(key, bytes((ANSWERED,)))
    return ledger


def killed(underway: Underway) -> None:
    """The process is gone; its file stays as it is."""
    assert underway._fd is not None
    os.close(underway._fd)


@pytest.fixture
def results(tmp_path: Path) -> str:
    return str(tmp_path / "r.jsonl")


@settings(deadline=None)  # a busy disk is no fault
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 6))), st.sets(st.integers(1, 6)))
def test_what_had_begun_and_not_ended_is_lost_unless_it_has_an_answer(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[bool, int]], done: set[int]
) -> None:
    results, model = str(tmp_path_factory.mktemp("u") / "r"), set[int]()
    first = Underway.open(results, Ledger())
    for begins, number in steps:
        if begins:
            first.begin(key_of(number))
            model.add(number)
        else:
            first.end(key_of(number))
            model.discard(number)
    killed(first)
    second = Underway.open(results, answered(*done))
    assert second.lost == keys(*(model - done))
    killed(second)
    assert Underway.open(results, answered(*done)).lost == second.lost, "untouched, it stays lost"


def test_an_attempt_is_paid_again_once_for_every_crash_that_ends_it(results: str) -> None:
    for crashes in range(3):
        underway = Underway.open(results, Ledger())
        underway.begin(key_of(1))
        underway.end(key_of(1))  # refused: goes round
        underway.begin(key_of(1))
        assert (underway.paid_again, underway.by_this_run) == (crashes, min(crashes, 1))
        killed(underway)


def test_places_are_used_again_so_that_the_file_stays_as_small_as_what_is_under_way(results: str) -> None:
    underway = Underway.open(results, Ledger())
    for number in range(1, 1001):
        underway.begin(key_of(number))
        underway.end(key_of(number))
    assert Path(underway.path).stat().st_size == HEAD + 16
    underway.close(complete=True)


def test_it_goes_when_there_is_nothing_to_tell_and_stays_when_there_is(results: str) -> None:
    underway = Underway.open(results, Ledger())
    underway.begin(key_of(1))
    underway.close(complete=False)  # cancelled at the end of a drain
    assert Underway.open(results, Ledger()).lost == keys(1)
    again = Underway.open(results, Ledger())
    again.begin(key_of(1))
    again.end(key_of(1))
    again.close(complete=False)
    last = Underway.open(results, Ledger())
    assert (last.lost, last.paid_again) == (set(), 1)
    last.close(complete=True)
    assert not Path(last.path).exists()


def test_a_run_that_pays_nothing_again_says_nothing_of_what_earlier_ones_did() -> None:
    proof = Proof(read=1, ok=1, failed=0, pending=0, duplicates=0)
    told = Summary(
        exit_code=0,
        stopped=None,
        proof=proof,
        this_run_ok=1,
        this_run_failed=0,
        changed=0,
        attempts=1,
        throttled=0,
        paid_again=5,
        this_run_paid_again=0,
        input_tokens=1,
        output_tokens=1,
        seconds=1.0,
    )
    assert "paid again" not in told.line()
    assert json.loads(told.dump())["paid_again"] == 5
    assert (
        "1 attempts, 0 throttled, 1 paid again after a crash or a stop;" in evolve(told, this_run_paid_again=1).line()
    )


def test_a_strangers_file_is_refused_and_left_as_it_is(results: str) -> None:
    Path(results + ".underway").write_text("my notes\n")
    with pytest.raises(ValueError, match=r"r\.jsonl\.underway is no file of tidegate"):
        Underway.open(results, Ledger())
    assert Path(results + ".underway").read_text() == "my notes\n"


def test_trouble_with_it_is_kept_and_harms_nothing(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl.underway").mkdir()
    underway = Underway.open(str(tmp_path / "r.jsonl"), Ledger())
    underway.begin(key_of(1))
    underway.end(key_of(1))
    underway.close(complete=True)
    assert isinstance(underway.fault, IsADirectoryError)
