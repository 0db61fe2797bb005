"""A results file that loses its name has one again, with all that it held, and the descriptor writes there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.repair import prepare
from controller.rescue import has_its_name, rescue


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "r.jsonl"


@pytest.fixture
def fd(out: Path) -> Iterator[int]:
    number = os.open(out, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    prepare(number, str(out))
    os.write(number, b"one\n")
    yield number
    os.close(number)


def test_a_file_in_its_place_is_where_it_was(fd: int, out: Path) -> None:
    assert has_its_name(fd, str(out))


def test_a_removed_file_is_back_and_goes_on(fd: int, out: Path) -> None:
    out.unlink()
    assert not has_its_name(fd, str(out))
    assert not rescue(fd, str(out)).stops
    os.write(fd, b"two\n")
    assert has_its_name(fd, str(out))
    assert out.read_bytes() == b"one\ntwo\n"


def test_the_new_file_is_locked_like_the_old_one(fd: int, out: Path) -> None:
    out.unlink()
    rescue(fd, str(out))
    other = os.open(out, os.O_RDWR)
    with pytest.raises(ValueError, match="in use by another run"):
        prepare(other, str(out))
    os.close(other)


def test_a_replaced_file_goes_on_beside_the_other_which_is_left_alone(fd: int, out: Path) -> None:
    out.unlink()
    out.write_bytes(b"other\n")
    assert rescue(fd, str(out)).stops
    os.write(fd, b"two\n")
    assert out.read_bytes() == b"other\n"
    assert out.with_name("r.jsonl.rescued").read_bytes() == b"one\ntwo\n"


def test_a_moved_file_is_left_where_it_is_now(fd: int, out: Path, tmp_path: Path) -> None:
    out.rename(tmp_path / "moved")
    assert rescue(fd, str(out)).stops
    os.write(fd, b"two\n")
    assert (tmp_path / "moved").read_bytes() == b"one\ntwo\n"
    assert not out.exists()


def test_no_file_of_others_is_overwritten(fd: int, out: Path) -> None:
    out.unlink()
    out.write_bytes(b"other\n")
    out.with_name("r.jsonl.rescued").write_bytes(b"theirs\n")
    with pytest.raises(FileExistsError):
        rescue(fd, str(out))
    assert out.with_name("r.jsonl.rescued").read_bytes() == b"theirs\n"
