"""Failures of other people's tools, chapter 2: answers that are cut, empty, or failed within a 200."""

from __future__ import annotations

import json

import pytest
from command import at
from wire_answers import DONE, Say, chunk, closing, error, event, response, said
from wired import DIALECTS, Wired, wired

from controller.telemetry import Exit
from policies.contract import JSON

dialects = pytest.mark.parametrize("dialect", DIALECTS)


def then_fine(first: Say, *, dialect: str = "openai", lines: int = 1) -> Wired:
    """A run in which the first answer is this one, and all others are fine."""
    return wired([first, response(*said("fine", dialect))], lines, dialect=dialect)


def plain(document: JSON) -> bytes:
    """A 200 that is no stream."""
    return response(json.dumps(document).encode(), media="application/json")


# -- cut


@dialects
@pytest.mark.parametrize("fault", ["truncate", "cut"])
def test_c10_an_answer_without_its_end_is_never_taken_for_whole(fault: str, dialect: str) -> None:
    # https://github.com/vercel/ai/issues/19165
    out = wired(f"steady?words=5&fault={fault}", dialect=dialect, max_failures=2)
    assert (out.exit, out.result["status"], out.result["text"]) == (Exit.SOME_FAILED, "error", None)
    assert at(out.result, "error", "kind") in {"truncated", "malformed"}, "malformed where nothing had come at all"
    assert out.result["attempts"] == 2, "it was worth another attempt"


@dialects
@pytest.mark.parametrize("ended", [True, False])
def test_c10_the_part_is_kept_apart_from_the_next_answer(ended: bool, dialect: str) -> None:
    half = closing(response(said("half", dialect)[0], ended=ended))
    out = then_fine(half, dialect=dialect)
    assert (out.result["text"], out.result["attempts"]) == ("fine", 2)


@dialects
def test_c11_an_http_chunk_cut_in_its_middle_is_retried_from_scratch(dialect: str) -> None:
    # https://github.com/kortix-ai/suna/issues/66
    whole = response(*said("half", dialect))
    for cut_at in (len(whole) - 8, len(response(said("half", dialect)[0], ended=False)) - 9):
        out = then_fine(closing(whole[:cut_at]), dialect=dialect)
        assert (out.exit, out.result["text"], out.result["attempts"]) == (Exit.OK, "fine", 2)


def test_c11_a_prompt_whose_answers_are_all_cut_is_called_truncated() -> None:
    out = wired(closing(response(chunk("half"), ended=False)[:-9]), max_failures=2)
    assert (out.result["status"], out.result["text"], at(out.result, "error", "kind")) == ("error", None, "truncated")


# -- strange but whole


def test_c14_an_opening_chunk_without_choices_is_skipped() -> None:
    # https://github.com/TheR1D/shell_gpt/issues/457
    opening: JSON = {"id": "", "model": "", "choices": [], "prompt_filter_results": [{"prompt_index": 0}]}
    named = chunk("fine", model="gpt-x")
    out = wired(response(event(opening), named, chunk(finish="stop"), DONE), keep_response=True)
    assert (out.result["text"], out.result["model"]) == ("fine", "gpt-x")
    assert at(out.result, "response", "id") == "c"


@pytest.mark.parametrize("usage", [{"prompt_tokens": 9, "completion_tokens": 3}, None])
def test_c15_a_closing_chunk_may_hold_usage_alone(usage: JSON) -> None:
    # https://github.com/XSpoonAi/spoon-core/pull/179
    last = event({"choices": [], "usage": usage})
    out = wired(response(chunk("fi"), last, chunk("ne"), chunk(finish="stop"), last, DONE))
    assert out.result["text"] == "fine"
    told = out.result["usage"]
    assert (told and at(told, "output_tokens")) == (3 if usage else None)


def test_c15_the_last_usage_wins_and_a_null_one_takes_nothing_back() -> None:
    counts: list[JSON] = [{"prompt_tokens": 9, "completion_tokens": n} for n in (1, 2)]
    says = [chunk("fine", usage=counts[0]), chunk(usage=None), chunk(finish="stop", usage=counts[1]), chunk(usage=None)]
    out = wired(response(*says, DONE))
    assert at(out.result, "usage", "output_tokens") == 2


# -- an error within a 200

IN_BAND = [
    ({"error": {"message": "slow", "type": "requests", "code": "rate_limit_exceeded"}}, "throttled"),
    ({"error": {"message": "slow", "type": "TooManyRequests", "code": 429}}, "throttled"),
    ({"object": "error", "message": "slow", "type": "x", "code": 429}, "throttled"),
    ({"object": "error", "message": "too long", "type": "BadRequestError", "code": 400}, "prompt"),
    ({"error": {"message": "down", "type": "InternalServerError", "code": 500}}, "server"),
    ({"error": {"message": "no", "type": "invalid_request_error", "code": "invalid_api_key"}}, "fatal"),
]  # fmt: skip


def judged(out: Wired) -> str:
    """What the first answer was taken for."""
    if out.exit is Exit.UPSTREAM:
        assert out.results == [], "what stops the run is no result"
        return "fatal"
    if out.tally.throttled:
        assert out.texts
        return "throttled"
    if out.result["status"] == "error":
        return str(at(out.result, "error", "kind"))
    return "server" if out.result["attempts"] == 2 else "ok"


@pytest.mark.parametrize(("document", "kind"), IN_BAND)
@pytest.mark.parametrize("done", [b"", DONE])
@pytest.mark.parametrize("text", [b"", chunk("half")])
def test_c16_an_error_in_a_data_line_is_judged_by_its_code(document: JSON, kind: str, done: bytes, text: bytes) -> None:
    # https://github.com/block/goose/pull/8031
    assert judged(then_fine(response(text, event(document), done))) == kind


@pytest.mark.parametrize(("code", "kind"), [(429, "throttled"), (502, "server"), (503, "server"), (400, "prompt")])
@pytest.mark.parametrize("streamed", [True, False])
def test_c17_an_error_beside_empty_choices_counts_like_its_status(code: int, kind: str, streamed: bool) -> None:
    # https://github.com/diegosouzapw/OmniRoute/pull/8210
    fault: JSON = {"code": code, "message": "Provider returned error", "metadata": {"provider_name": "x"}}
    choice: JSON = {"index": 0, "delta": {"content": ""}, "finish_reason": "error"}
    for choices in ([], [choice]):
        document: JSON = {"id": "gen-1", "choices": choices, "error": fault}
        first = response(event(document), DONE) if streamed else plain(document)
        assert judged(then_fine(first, dialect="openrouter")) == kind


def test_c17_a_finish_reason_of_error_alone_is_no_success() -> None:
    assert judged(then_fine(response(chunk("half", finish="error"), DONE))) == "server"


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        ({"error": {"code": 429, "message": "slow"}}, "throttled"),
        ({"error": {"code": 503, "message": "down"}}, "server"),
        ({"error": {"code": 400, "message": "bad"}}, "prompt"),
        ({"error": {"code": 401, "message": "who"}}, "fatal"),
        ({"id": None, "choices": None}, "server"),
        ({"id": "x", "choices": []}, "server"),
        ({"choices": [{"message": {"content": None}, "finish_reason": None}]}, "server"),
        (None, "server"),
    ],
)
def test_c20_a_plain_200_without_content_is_a_failure(document: JSON, kind: str) -> None:
    # https://github.com/BerriAI/litellm/pull/21755; "server" stands for all that another attempt may cure
    assert judged(then_fine(plain(document) if document else response(media="application/json"))) == kind


@dialects
@pytest.mark.parametrize("fault", ["empty", "no-choices"])
def test_c20_nothing_at_all_is_no_answer_in_any_dialect(fault: str, dialect: str) -> None:
    out = wired(f"steady?fault={fault}", dialect=dialect, max_failures=2)
    assert (out.exit, at(out.result, "error", "kind"), out.result["attempts"]) == (Exit.SOME_FAILED, "malformed", 2)


ANTHROPIC = [
    ("overloaded_error", "throttled"), ("rate_limit_error", "throttled"), ("api_error", "server"),
    ("timeout_error", "server"), ("invalid_request_error", "prompt"), ("authentication_error", "fatal"),
    ("permission_error", "fatal"), ("billing_error", "fatal"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind"), ANTHROPIC)
@pytest.mark.parametrize("named", [True, False])
def test_c21_an_error_event_after_some_text_is_judged_by_its_type(name: str, kind: str, named: bool) -> None:
    # https://github.com/anthropics/anthropic-sdk-python/issues/1258
    failed = event({"type": "error", "error": {"type": name, "message": "x"}}, "error" if named else "")
    assert judged(then_fine(response(*said("half", "anthropic")[:2], failed), dialect="anthropic")) == kind


@pytest.mark.parametrize(("name", "kind"), ANTHROPIC)
def test_c22_an_error_as_the_first_event_is_judged_alike(name: str, kind: str) -> None:
    # https://github.com/vercel/ai/pull/10653
    failed = event({"type": "error", "error": {"type": name, "message": "x"}}, "error")
    assert judged(then_fine(response(failed), dialect="anthropic")) == kind


def test_c22_an_overload_at_once_slows_the_run_down_like_a_529() -> None:
    document: JSON = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    within, status = (
        then_fine(answer, dialect="anthropic", lines=20)
        for answer in (response(event(document, "error")), error(document, 529))
    )
    assert (within.tally.throttled, len(within.texts)) == (1, 20)
    assert within.gaps == pytest.approx(status.gaps), "one is held against the rate as the other is"


FATAL = ["auth", "billing", "forbidden", "missing", "quota"]
HARMLESS = ["invalid", "blocked", "context", "large", "rate", "server", "overloaded", "timeout"]


@dialects
@pytest.mark.parametrize("kind", [*FATAL, *HARMLESS])
def test_c21_any_trouble_means_the_same_in_a_stream_and_in_a_status(kind: str, dialect: str) -> None:
    """One by one the prompts would fail otherwise, for a model that does not exist."""
    within, status = (
        wired(f"steady?fault={way}-{kind}&fault_at=1", 2, dialect=dialect, max_failures=2, give_up_after=30.0)
        for way in ("in-band", "http")
    )
    assert within.exit is status.exit
    assert (within.exit is Exit.UPSTREAM) == (kind in (*FATAL, "rate", "overloaded"))
    assert [at(each, "error", "kind") for each in within.results] == [at(e, "error", "kind") for e in status.results]
    assert bool(within.tally.throttled) == bool(status.tally.throttled)


def test_c16_an_error_after_a_whole_answer_changes_nothing() -> None:
    out = wired(response(*said("fine"), event({"error": {"code": 500, "message": "late"}})))
    assert (out.result["text"], out.result["attempts"]) == ("fine", 1)
