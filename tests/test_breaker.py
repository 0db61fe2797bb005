"""A run in which every prompt fails alike is stopped; one in which a prompt succeeds never is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import run
from hypothesis import given
from hypothesis import strategies as st
from wired import wired

from controller.breaker import Breaker
from controller.outcome import Failed, Kind
from controller.telemetry import Exit

ERROR = b'{"error":{"message":"%b","code":"unsupported_parameter"}}'


def refused(message: str = "Unknown parameter", *, sent: bool = True) -> Failed:
    return Failed(kind=Kind.PROMPT, status=400, message=message, sent=sent)


def answered(status: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 " + status + b"\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


REFUSAL = answered(b"400 Bad Request", ERROR % b"Unknown parameter: 'top_k'")
ANSWER = answered(b"200 OK", b'{"choices":[{"message":{"content":"yo"},"finish_reason":"stop"}]}')


@given(st.integers(1, 30), st.integers(0, 60))
def test_so_many_may_fail_alike_and_not_one_more(allowed: int, tries: int) -> None:
    breaker = Breaker(allowed)
    assert [breaker.failed(refused()) is None for _ in range(tries)] == [n < allowed for n in range(tries)]


@given(st.lists(st.sampled_from(["a", "b"]), max_size=40))
def test_other_words_begin_a_new_count(words: list[str]) -> None:
    breaker = Breaker(3)
    for at, word in enumerate(words):
        alike = len(words[: at + 1]) - len("".join(words[: at + 1]).rstrip(word))
        assert (breaker.failed(refused(word)) is None) == (alike <= 3 and at < 3 * 3)


@given(st.lists(st.text(st.characters(categories=["Ll", "Lu", "Nd"]), min_size=1), min_size=9, max_size=9, unique=True))
def test_whatever_the_words_three_times_as_many_with_one_status_and_code_are_enough(words: list[str]) -> None:
    breaker = Breaker(3)
    for word in words:
        breaker.failed(refused(f"Unknown parameter, request {word}"))
    assert breaker.failed(refused("Unknown parameter")) is not None
    assert Breaker(3).failed(Failed(kind=Kind.PROMPT, status=413, message="other")) is None


def test_after_one_success_everything_may_fail() -> None:
    breaker = Breaker(2)
    breaker.succeeded()
    assert all(breaker.failed(refused()) is None for _ in range(100))


def test_numbers_and_identifiers_do_not_make_a_fault_another_one() -> None:
    breaker = Breaker(1)
    assert breaker.failed(refused("too long: 9000 tokens (request 7f3a-11)")) is None
    assert breaker.failed(refused("too long: 12345 tokens (request 0b99-42)")) is not None


@pytest.mark.parametrize("other", ["req_011CQzk3vGhT", "Zq7TtY", "(9000/8192)", "b3f1c0de-77", "http://h/1?x"])
def test_a_word_with_a_digit_is_of_the_attempt_in_whatever_base(other: str) -> None:
    breaker = Breaker(1)
    assert breaker.failed(refused("Unknown parameter, request wX5pLm0")) is None
    assert breaker.failed(refused(f"Unknown parameter, request {other}")) is not None


def test_what_failed_in_an_earlier_run_may_fail_again() -> None:
    breaker = Breaker(1, failed_before=lambda key: key.startswith("old"))
    assert all(breaker.failed(refused(), f"old-{n}") is None for n in range(100))
    assert breaker.failed(refused(), "new-1") is None
    assert breaker.failed(refused(), "new-2") is not None


def test_the_words_name_the_flag() -> None:
    breaker = Breaker(1)
    breaker.failed(refused())
    assert str(breaker.failed(refused())).startswith(
        "every prompt fails alike, 1 so far, and none succeeded (--most-alike sets how many may): prompt (400): Unknown"
    )


def test_what_was_never_sent_costs_nothing_and_stops_nothing() -> None:
    breaker = Breaker(1)
    assert all(breaker.failed(refused(sent=False)) is None for _ in range(10))


@pytest.mark.parametrize("most", [1, 64])
def test_a_run_whose_parameter_no_prompt_can_have_is_parked_with_the_words_of_the_upstream(
    most: int,
) -> None:
    run = wired(REFUSAL, 200, most_alike=10, max_in_flight=most)
    assert run.exit is Exit.UPSTREAM
    assert run.stop.reason is not None
    assert "Unknown parameter: 'top_k'" in run.stop.reason
    assert len(run.results) == 10
    assert len(run.requests) < 100, "the rest was not even sent"


def test_one_answer_is_enough_to_let_all_others_fail() -> None:
    run = wired([ANSWER, REFUSAL], 50, most_alike=10, max_in_flight=1)
    assert run.exit is Exit.SOME_FAILED
    assert len(run.results) == 50


def test_the_breaker_can_be_switched_off() -> None:
    run = wired(REFUSAL, 50, most_alike=0)
    assert (run.exit, len(run.results)) == (Exit.SOME_FAILED, 50)


@pytest.mark.slow
def test_prompts_that_failed_before_are_all_tried_again(tmp_path: Path) -> None:
    bad = [json.dumps({"id": n, "messages": [{"role": 1, "content": "x"}]}) for n in range(30)]
    (tmp_path / "p.jsonl").write_text("\n".join(bad))
    flags = (tmp_path / "p.jsonl", "--base-url", "sim:steady", "-o", tmp_path / "r.jsonl")
    assert run(*flags, "--most-alike", "0").returncode == 1
    again = run(*flags, "--retry-failed")
    assert (again.returncode, "30 failed" in again.stderr) == (1, True), again.stderr
