"""Server-Sent Events: the law that cutting does not matter, and the forms met in the wild."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.sse import STRAY_LIMIT, Event, Splitter

ALPHABET = [
    b"data",
    b"event",
    b"id",
    b"retry",
    b":",
    b" ",
    b"x",
    b"\r",
    b"\n",
    b"\r\n",
    b"\xef\xbb\xbf",
    b"\xe2\x80\xa8",
]
documents = st.lists(st.sampled_from(ALPHABET) | st.binary(max_size=3), max_size=60).map(b"".join)


def events(*chunks: bytes) -> list[Event]:
    """All events of a stream that came in these chunks."""
    splitter = Splitter()
    found = [event for chunk in chunks for event in splitter.feed(chunk)]
    return found + splitter.close()


def data(*chunks: bytes) -> list[str]:
    """Their data only."""
    return [event.data for event in events(*chunks)]


@given(documents, st.lists(st.integers(0, 200)))
def test_any_cutting_gives_the_same_events_and_the_same_stray_bytes(document: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(document)) for cut in cuts), len(document)]
    whole, cut = Splitter(), Splitter()
    expected = whole.feed(document) + whole.close()
    pieces = [document[start:end] for start, end in itertools.pairwise(edges)]
    assert [event for piece in pieces for event in cut.feed(piece)] + cut.close() == expected
    assert cut.stray == whole.stray


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), min_size=1), max_size=5))
def test_what_was_sent_as_data_lines_comes_out_joined(lines: list[str]) -> None:
    document = "".join(f"data: {line}\n" for line in lines) + "\n"
    assert data(document.encode()) == (["\n".join(lines)] if lines else [])


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_each_of_the_three_line_ends_ends_a_line(end: bytes) -> None:
    document = end.join([b"event: a", b"data: 1", b"data: 2", b"", b"data: 3", b"", b""])
    expected = [Event(data="1\n2", name="a"), Event(data="3")]
    assert events(document) == expected
    assert events(*(bytes([byte]) for byte in document)) == expected


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1e", "\x00"])
def test_unicode_line_separators_are_text(separator: str) -> None:
    # C01: https://github.com/florimondmanca/httpx-sse/issues/34
    assert data(f"data: a{separator}b\n\n".encode()) == [f"a{separator}b"]


def test_a_code_point_cut_in_two_reads_is_whole() -> None:
    # C03: https://github.com/vllm-project/vllm/pull/38732
    assert data(*(bytes([byte]) for byte in "data: 日本\n\n".encode())) == ["日本"]


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (b"data:x\n\n", ["x"]),  # C05: https://github.com/googleapis/python-genai/pull/2584
        (b"data:  x\n\n", [" x"]),  # one space only
        (b"data\n\n", [""]),
        (b"data: a\ndata\ndata: b\n\n", ["a\n\nb"]),
        (b"\xef\xbb\xbfdata: x\n\n", ["x"]),
        (b": comment\ndata: a\n: another\ndata: b\n\n", ["a\nb"]),
        (b": keep-alive\n\n: keep-alive\n\n", []),
        (b"id: 1\nretry: 10\ndata: x\n\n", ["x"]),
        (b"event: ping\n\ndata: x\n\n", ["x"]),
        (b"\n\n\n", []),
        (b"data: \xff\n\n", ["\ufffd"]),
    ],
)
def test_a_document_gives_this_data(document: bytes, expected: list[str]) -> None:
    assert data(document) == expected


def test_the_name_of_an_event_without_data_is_forgotten() -> None:
    assert events(b"event: ping\n\ndata: x\n\n") == [Event(data="x", name="message")]


@pytest.mark.parametrize("tail", [b"data: [DONE]", b"data: [DONE]\n", b"data: [DONE]\r"])
def test_an_event_without_its_blank_line_comes_out_incomplete_at_the_end(tail: bytes) -> None:
    assert events(b"data: a\n\n" + tail) == [Event(data="a"), Event(data="[DONE]", complete=False)]


def test_a_body_that_is_no_stream_is_kept_line_by_line() -> None:
    # C06: https://github.com/googleapis/python-genai/issues/1162
    splitter = Splitter()
    assert splitter.feed(b'{\n "error": {\n  "code": 429\n }\n}') == []
    splitter.close()
    assert bytes(splitter.stray) == b'{\n "error": {\n  "code": 429\n }\n}\n'


def test_stray_bytes_are_bounded() -> None:
    splitter = Splitter()
    for _ in range(4):
        splitter.feed(b"x" * (STRAY_LIMIT // 3) + b"\n")
    assert len(splitter.stray) == STRAY_LIMIT


def test_a_line_of_4_mb_in_small_chunks_costs_linear_time() -> None:
    # C98: a quadratic splitter needs minutes here.
    splitter = Splitter()
    began_at = time.perf_counter()
    splitter.feed(b"data: ")
    for _ in range(65_536):
        splitter.feed(b"x" * 64)
    (event,) = splitter.feed(b"\n\n")
    assert len(event.data) == 4 << 20
    assert time.perf_counter() - began_at < 2
