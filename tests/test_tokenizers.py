"""Other people's tokenizers: how they are found, what they are asked, and that their faults cost nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import run, write_prompts
from hypothesis import given
from hypothesis import strategies as st

from controller.charges import Charge, Meters, Reservation, asked_of
from controller.estimate import ANSWERS, Content, Estimator, Size, size_of
from controller.outcome import Answer, Completed, Usage
from controller.records import Prompt
from controller.tokenizers import Sizer, TokenEstimator, find
from policies.contract import JSON

REQUEST: dict[str, JSON] = {"model": "m", "messages": [{"role": "user", "content": "one two three"}]}
PLUGIN = """
def count(request, model):
    if "prompt 1" in str(request):
        raise RuntimeError("too hard")
    return 1000
"""


def words(request: dict[str, JSON], model: str) -> int:
    assert model == "m"
    return str(request["messages"]).count(" ")


@given(
    st.integers(max_value=0) | st.floats() | st.booleans() | st.none() | st.text() | st.integers(min_value=10**9 + 1)
)
def test_whatever_it_answers_instead_of_a_count_ours_is_taken_and_that_is_said_once(answer: object) -> None:
    said: list[str] = []
    sizer = Sizer("other", lambda *_: answer, said.append)  # type: ignore[arg-type]  # on purpose
    assert sizer(REQUEST, "m") == sizer(REQUEST, "m") == size_of(REQUEST)
    assert len(said) == 1
    assert "token estimator other failed" in said[0]


def test_a_count_is_reserved_as_it_is_and_corrected_by_what_the_upstream_counts() -> None:
    sizer = Sizer("words", words, pytest.fail)
    assert sizer(REQUEST, "m") == Size(tokens=5.0, kind=Content.COUNTED)
    estimator, size = Estimator(), Size(tokens=100.0, kind=Content.COUNTED)
    assert estimator.input_tokens(size) == 100
    for _ in range(ANSWERS):
        estimator.learn_input(size, 100, 107)
    assert estimator.input_tokens(size) == 107


def test_every_prompt_is_counted_once_whatever_number_of_attempts_it_takes() -> None:
    asked: list[str] = []

    def counting(request: dict[str, JSON], model: str) -> int:
        asked.append(model)
        return 40

    meters = Meters(Charge.UP_FRONT, sizer=Sizer("counting", counting, pytest.fail))
    prompt = Prompt(id=None, key="", source="", line=0, request=REQUEST)
    reservation = Reservation(meters.of(prompt))
    for _ in range(3):
        cost = reservation.costs(prompt)()
        assert cost["input_tokens"] == 40
        ok = Completed(answer=Answer(text="", finish_reason="stop", model=None, usage=None, body={}))
        reservation.settle(prompt, cost, ok, Usage(input_tokens=41, output_tokens=1))
    assert asked == ["m"]
    assert meters.words() == ["input tokens: 120 estimated, 123 counted (-2 %)"]
    assert asked_of(prompt).size == size_of(REQUEST), "without one, it is ours"


def test_a_name_leads_to_a_callable_or_to_one_line_that_says_why_not() -> None:
    found: TokenEstimator = find(f"{__name__}:words")
    assert found is words
    for name, message in (
        ("nobody", "unknown token estimator 'nobody'"),
        ("no.such:thing", "can't be imported"),
        (f"{__name__}:nothing", "can't be imported"),
        (f"{__name__}:REQUEST", "is not callable"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            find(name)
        assert "\n" not in str(caught.value)


def test_an_installed_plug_in_is_found_by_its_name_and_used_by_a_run(tmp_path: Path) -> None:
    """As an installer would leave it: a module and the metadata of its distribution."""
    (tmp_path / "site" / "counter-1.dist-info").mkdir(parents=True)
    (tmp_path / "site" / "counter.py").write_text(PLUGIN)
    about = tmp_path / "site" / "counter-1.dist-info"
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: counter\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[tidegate.token_estimators]\nthousand = counter:count\n")
    prompts, path = write_prompts(tmp_path / "p.jsonl", 3), {"PYTHONPATH": str(tmp_path / "site")}
    done = run(prompts, "--base-url", "sim:steady?latency=0.02", "--token-estimator", "thousand", **path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("token estimator thousand failed") == 1
    assert "too hard" in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "input tokens:" in line]
    assert 2000 <= int(line.split()[3]) < 2100, line
    unknown = run(prompts, "--base-url", "sim:steady", "--token-estimator", "thousands", **path)
    assert unknown.returncode == 2
    assert 'did you mean "thousand"?' in unknown.stderr
