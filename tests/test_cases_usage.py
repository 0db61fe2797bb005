"""Failures of other people's tools: Gemini's answers without text (chapter 2), and tokens counted twice (chapter 7)."""

from __future__ import annotations

import json

import pytest
from command import at
from wire_answers import DONE, Say, chunk, event, response, said
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


# -- Gemini without text


def test_c24_an_answer_that_spent_all_on_thoughts_is_finished_for_its_length() -> None:
    # https://github.com/stanford-crfm/helm/pull/3804
    spent: JSON = {"promptTokenCount": 5, "thoughtsTokenCount": 100, "totalTokenCount": 105}
    candidate: JSON = {"content": {"role": "model"}, "finishReason": "MAX_TOKENS", "index": 0}
    document: JSON = {"candidates": [candidate], "usageMetadata": spent}
    for answer in (response(event(document)), plain(document)):
        out = wired(answer, dialect="gemini")
        assert (out.exit, out.result["status"], out.result["text"]) == (Exit.OK, "ok", "")
        assert (out.result["finish_reason"], out.result["attempts"]) == ("length", 1)
        assert at(out.result, "usage", "output_tokens") == 100


def test_c24_a_blocked_prompt_fails_alone_and_at_once() -> None:
    document: JSON = {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": {"promptTokenCount": 5}}
    for answer in (response(event(document)), plain(document)):
        out = then_fine(answer, dialect="gemini", lines=3)
        assert (out.exit, len(out.texts), out.tally.attempts) == (Exit.SOME_FAILED, 2, 3)
        failed = next(result for result in out.results if result["status"] == "error")
        assert (at(failed, "error", "kind"), failed["attempts"]) == ("prompt", 1)
        assert "PROHIBITED_CONTENT" in str(at(failed, "error", "message"))


# -- usage


def test_c80_running_totals_of_gemini_are_not_summed() -> None:
    # https://github.com/griptape-ai/griptape/issues/2275
    def totals(n: int) -> bytes:
        part: JSON = {"content": {"parts": [{"text": "x"}]}, **({"finishReason": "STOP"} if n == 100 else {})}
        return event({"candidates": [part], "usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": n}})

    out = wired(response(*map(totals, range(1, 101))), dialect="gemini")
    assert (at(out.result, "usage", "input_tokens"), at(out.result, "usage", "output_tokens")) == (7, 100)
    assert out.tally.output_tokens == 100


def test_c80_the_two_halves_of_anthropics_usage_are_merged() -> None:
    start: JSON = {"usage": {"input_tokens": 25, "output_tokens": 1}, "content": [], "model": "m"}
    deltas = [event({"type": "message_delta", "delta": {}, "usage": {"output_tokens": n}}) for n in (4, 15)]
    _, text, finish, stop = said("fine", "anthropic")
    opening = event({"type": "message_start", "message": start})
    out = wired(response(opening, text, finish, *deltas, stop), dialect="anthropic")
    assert (at(out.result, "usage", "input_tokens"), at(out.result, "usage", "output_tokens")) == (25, 15)


def test_c80_continuous_usage_of_vllm_is_not_summed() -> None:
    says = [chunk("x", usage={"prompt_tokens": 7, "completion_tokens": n}) for n in range(1, 101)]
    out = wired(response(*says, chunk(finish="stop"), DONE), dialect="vllm")
    assert (at(out.result, "usage", "input_tokens"), at(out.result, "usage", "output_tokens")) == (7, 100)


@dialects
def test_c80_every_dialects_count_is_that_of_the_server(dialect: str) -> None:
    """A plain answer has only one count, so there nothing can be summed."""
    lines = [json.dumps({"prompt": f"prompt {n}", "stream": False}).encode() for n in range(5)]
    streamed, unstreamed = (wired("steady?words=9", given, dialect=dialect) for given in (5, lines))
    assert streamed.tally.output_tokens == unstreamed.tally.output_tokens > 5
