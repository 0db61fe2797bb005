"""Failures of other people's tools, chapters 5 and 9: what an error is taken for, and what the user is told of it."""

from __future__ import annotations

import json

import pytest
from command import at
from wire_answers import Say, error, response, said
from wired import DIALECTS, Wired, wired

from controller.telemetry import Exit
from policies.contract import JSON
from simulations.faults import PAGE

dialects = pytest.mark.parametrize("dialect", DIALECTS)


def then_fine(first: Say, *, dialect: str = "openai", lines: int = 1) -> Wired:
    """A run in which the first answer is this one, and all others are fine."""
    return wired([first, response(*said("fine", dialect))], lines, dialect=dialect, max_in_flight=1)


# -- the content, not the rate

FILTERED = [
    (
        "azure",
        {
            "error": {
                "message": "The response was filtered",
                "type": None,
                "param": "prompt",
                "code": "content_filter",
                "status": 400,
                "innererror": {"code": "ResponsibleAIPolicyViolation", "content_filter_result": {}},
            }
        },
    ),
    ("azure", {"error": {"message": "x", "innererror": {"code": "ResponsibleAIPolicyViolation"}}}),
    ("openai", {"error": {"message": "x", "type": "invalid_request_error", "code": "content_policy_violation"}}),
    ("responses", {"error": {"message": "x", "type": "invalid_request_error", "code": "cyber_policy"}}),
    ("openrouter", {"error": {"code": 403, "message": "x", "metadata": {"reasons": ["x"], "flagged_input": "y"}}}),
    ("anthropic", {"type": "error", "error": {"type": "invalid_request_error", "message": "blocked"}}),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "document"), FILTERED)
@pytest.mark.parametrize("words", ["", " Please retry after 5 seconds."])
def test_c54_a_filtered_prompt_fails_alone_after_one_attempt(dialect: str, document: JSON, words: str) -> None:
    # https://github.com/tatsu-lab/alpaca_eval/issues/227
    told = json.loads(json.dumps(document).replace('"x"', json.dumps(f"x{words}"), 1))
    status = 403 if dialect == "openrouter" else 400
    out = then_fine(error(told, status), dialect=dialect, lines=3)
    assert (out.exit, len(out.texts), out.tally.attempts, out.tally.throttled) == (Exit.SOME_FAILED, 2, 3, 0)
    failed = next(result for result in out.results if result["status"] == "error")
    assert (at(failed, "error", "kind"), failed["attempts"]) == ("prompt", 1)


@dialects
def test_c54_a_filter_that_knows_every_prompt_ends_the_run_in_time(dialect: str) -> None:
    out = wired("steady?fault=http-blocked", 10, dialect=dialect)
    assert (out.exit, out.tally.failed, out.tally.attempts) == (Exit.SOME_FAILED, 10, 10)


# -- what is told of a 429


def test_c55_a_refusal_is_told_as_what_it_is_and_waits_grow() -> None:
    # https://github.com/jackmusick/bifrost/issues/656
    refused = error({"error": {"message": "Too many requests for you", "code": None}}, 429)
    out = wired(refused, 3, give_up_after=120.0)
    assert out.exit is Exit.UPSTREAM
    for words in ("429", "Too many requests for you"):
        assert words in str(out.stop.reason)
    assert "connect" not in str(out.stop.reason)
    assert max(out.gaps) > 1
    assert len(out.requests) == out.tally.throttled < 120


def test_c55_a_refusal_before_the_last_failure_is_counted_in_its_result() -> None:
    out = wired([error({"error": {"code": 429}}, 429), error({"error": {"message": "too long"}}, 400)])
    assert (out.result["attempts"], out.result["throttled"], at(out.result, "error", "status")) == (2, 1, 400)
    assert at(out.result, "error", "message") == "too long"


# -- pages where JSON was due


@dialects
@pytest.mark.parametrize(("fault", "kind", "status"), [("html-502", "server", 502), ("html", "malformed", 200)])
def test_c56_a_web_page_is_classed_by_its_status_and_cut_short(
    fault: str, kind: str, status: int, dialect: str
) -> None:
    # https://github.com/Significant-Gravitas/AutoGPT/issues/944
    out = wired(f"steady?fault={fault}", dialect=dialect, max_failures=2)
    assert (out.exit, out.result["attempts"]) == (Exit.SOME_FAILED, 2)
    told = out.result["error"]
    assert (at(told, "kind"), at(told, "status")) == (kind, status)
    message = str(at(told, "message"))
    assert "Bad Gateway" in message
    assert "<" not in message
    assert len(message) < 400 < len(PAGE)


@dialects
def test_c56_a_502_without_a_body_still_says_what_it_is(dialect: str) -> None:
    out = wired("steady?fault=empty-502", dialect=dialect, max_failures=2)
    assert (out.result["attempts"], at(out.result, "error", "message")) == (2, "Bad Gateway")


@dialects
@pytest.mark.parametrize("fault", ["html-502", "empty-502", "html"])
def test_c56_pages_now_and_then_cost_no_prompt(fault: str, dialect: str) -> None:
    out = wired(f"steady?words=3&fault={fault}&fault_share=0.3", 20, dialect=dialect)
    assert (out.exit, len(out.texts)) == (Exit.OK, 20)


# -- words that change

WORDINGS: list[JSON] = [
    {"error": {"message": "x", "type": "tokens", "code": "rate_limit_exceeded"}},
    {"error": {"message": "x", "type": "requests", "code": "rate_limit_exceeded"}},
    {"error": {"message": "x", "type": "requests", "code": None}},
    {"error": {"message": "x", "type": None, "code": None}},
    {"error": {"message": "x", "code": "429"}},
    {"error": {"message": "x", "code": 429}},
    {"error": "x"},
    {"message": "x"},
    {"detail": "x"},
    {"object": "error", "message": "x", "type": "x", "code": 429},
    {"type": "error", "error": {"type": "a_name_of_tomorrow", "message": "x"}},
    {},
    [],
    "x",
    None,
]


@pytest.mark.parametrize("document", WORDINGS, ids=str)
@dialects
def test_c58_a_429_is_a_refusal_whatever_its_words(document: JSON, dialect: str) -> None:
    # https://github.com/openai/openai-cookbook/pull/1050
    out = then_fine(error(document, 429), dialect=dialect)
    assert (out.result["text"], out.result["throttled"], out.tally.throttled) == ("fine", 1, 1)


@dialects
@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 429 \r\nContent-Type: text/plain\r\nContent-Length: 10\r\n\r\nslow down\n",
        response(b"", status=429, media="text/plain"),
        response(PAGE, status=429, media="text/html"),
        response(b"\xff\xfe\x00{", status=429, media="application/json"),
    ],
)
def test_c110_a_429_without_a_useful_body_is_a_refusal_all_the_same(answer: bytes, dialect: str) -> None:
    # https://github.com/cline/cline/issues/962
    out = wired([answer, answer, response(*said("fine", dialect))], dialect=dialect)
    assert (out.result["text"], out.result["throttled"], out.exit) == ("fine", 2, Exit.OK)
    assert min(out.gaps) > 0.1, "our own back-off"


@dialects
@pytest.mark.parametrize("fault", ["empty-429", "text-429"])
def test_c110_many_of_them_lose_no_prompt(fault: str, dialect: str) -> None:
    out = wired(f"steady?words=3&fault={fault}&fault_share=0.2", 30, dialect=dialect, max_failures=1)
    assert (out.exit, len(out.texts)) == (Exit.OK, 30)
