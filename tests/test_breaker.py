"""A run in which every prompt fails alike is stopped; one in which a prompt succeeds never is."""

from __future__ import annotations

import pytest
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
        assert (breaker.failed(refused(word)) is None) == (alike <= 3)


def test_after_one_success_everything_may_fail() -> None:
    breaker = Breaker(2)
    breaker.succeeded()
    assert all(breaker.failed(refused()) is None for _ in range(100))


def test_numbers_and_identifiers_do_not_make_a_fault_another_one() -> None:
    breaker = Breaker(1)
    assert breaker.failed(refused("too long: 9000 tokens (request 7f3a-11)")) is None
    assert breaker.failed(refused("too long: 12345 tokens (request 0b99-42)")) is not None


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
