"""A table of keys does what a dict would, in a fraction of the memory."""

from __future__ import annotations

import sys
import tracemalloc
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.keytable import KeyTable

alike = st.binary(min_size=4, max_size=4).map(lambda tail: b"\0\0" + tail)  # all in one bucket
keys_of_six = st.binary(min_size=6, max_size=6) | alike | st.sampled_from([b"\0" * 6, b"\0\0\0\0\0\1", b"\1" * 6])


@given(st.lists(st.tuples(keys_of_six, st.binary(min_size=1, max_size=1))), st.lists(keys_of_six))
def test_it_holds_what_a_dict_would_hold(pairs: list[tuple[bytes, bytes]], others: list[bytes]) -> None:
    table, model = KeyTable(6, 1), dict[bytes, bytes]()
    for key, value in pairs:
        table.put(key, value)
        model[key] = value
    assert dict(table) == model
    assert len(table) == len(model)
    for key in [*others, *model]:
        assert table.get(key) == model.get(key)
        assert (key in table) == (key in model)


@given(st.lists(st.binary(min_size=3, max_size=3)))
def test_without_values_it_is_a_set(keys: list[bytes]) -> None:
    table = KeyTable(3, 0)
    for key in keys:
        table.put(key)
    assert {key for key, _ in table} == set(keys)


def test_what_lies_across_two_entries_is_no_key() -> None:
    table = KeyTable(3, 1)
    table.put(b"\0\1\2", b"\3")
    table.put(b"\0\1\4", b"\5")
    assert table.get(b"\0\2\3") is None
    assert table.get(b"\0\3\1") is None


@pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer counts its own memory")
def test_an_entry_costs_little_more_than_its_bytes() -> None:
    keys = [blake2b(str(number).encode(), digest_size=16).digest() for number in range(100_000)]
    tracemalloc.start()
    table = KeyTable(16, 1)
    for key in keys:
        table.put(key, b"\1")
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used / len(keys) < 50, "of which 25 are the heads of buckets that are not yet full"
