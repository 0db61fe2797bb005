"""The period that a told limit is for, learnt from resets."""

from __future__ import annotations

from itertools import accumulate

from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from policies.recall_period import LOOKS, doubt_period, is_vague, learn_period
from policies.recall_state import Period
from simulations.closed_loop import simulate_policy
from simulations.scenario_files import load_scenario

MINUTE = 60.0
GAPS = st.lists(st.floats(0.05, 20.0), min_size=5, max_size=80)


def looks_at_window(period: float, turn: float, instants: list[float], *, rounded: bool) -> list[float]:
    """What a window of `period` says for reset at those instants; it turns over at `turn` + n * period."""
    resets = [period - (at - turn) % period for at in instants]
    return [float(-(-reset // 1)) for reset in resets] if rounded else resets


@given(
    gaps=GAPS, period=st.floats(1.0, 300.0), turn=st.floats(0.0, 300.0), rounded=st.booleans(), used=st.floats(0, 0.5)
)
def test_no_window_is_taken_for_a_shorter_one(
    gaps: list[float], period: float, turn: float, rounded: bool, used: float
) -> None:
    seen, instants = Period(), list(accumulate(gaps))
    for at, reset in zip(instants, looks_at_window(period, turn, instants, rounded=rounded), strict=True):
        told = learn_period(seen, MINUTE, at, 100.0, 100.0 * (1 - used), reset)
        assert told >= min(period, MINUTE) - 1e-6


@given(gaps=GAPS, limit=st.floats(1.0, 1e4), share=st.lists(st.floats(0.0, 1.0), min_size=80, max_size=80))
def test_a_bucket_that_is_full_again_within_a_minute_keeps_its_minute(
    gaps: list[float], limit: float, share: list[float]
) -> None:
    seen = Period()
    for at, used in zip(accumulate(gaps), share, strict=False):
        assert learn_period(seen, MINUTE, at, limit, limit * (1 - used), MINUTE * used) == MINUTE


def test_ten_seconds_are_seen_within_half_a_minute_at_one_look_a_second() -> None:
    seen, instants = Period(), [float(second) + 0.3 for second in range(30)]
    resets = looks_at_window(10.0, 0.0, instants, rounded=False)
    for at, reset in zip(instants, resets, strict=True):
        told = learn_period(seen, MINUTE, at, 60.0, 59.0, reset)
    assert 10.0 <= told <= 11.0


def test_few_looks_prove_nothing() -> None:
    seen = Period()
    for at in range(LOOKS - 1):
        assert learn_period(seen, MINUTE, 10.0 * at, 60.0, 59.0, 1.0) == MINUTE


def test_refusals_take_back_what_was_learnt_up_to_what_was_assumed() -> None:
    seen = Period(length=10.0)
    doubt_period(seen, MINUTE)
    assert seen.length == 12.5
    for _ in range(20):
        doubt_period(seen, MINUTE)
    assert seen.length == MINUTE


def test_a_refusal_where_nothing_was_learnt_changes_nothing() -> None:
    seen = Period()
    doubt_period(seen, MINUTE)
    assert seen.length == 0.0


def test_a_span_of_looks_far_apart_is_forgotten() -> None:
    seen = Period()
    for at in (0.3, 20.3, 26.3, 32.3):
        learn_period(seen, MINUTE, at, 60.0, 48.0, 1.0)
    instants = [40.0 + 0.2 * step for step in range(300)]
    for at, reset in zip(instants, looks_at_window(1.0, 0.0, instants, rounded=True), strict=True):
        told = learn_period(seen, MINUTE, at, 60.0, 48.0, reset)
    assert 1.0 <= told <= 1.3


def test_a_short_period_is_vague_where_looks_are_far_apart() -> None:
    assert not is_vague(Period())
    assert is_vague(Period(length=1.3, unsure=0.3))
    assert not is_vague(Period(length=10.3, unsure=0.3))


def test_a_limit_a_second_is_measured_where_resets_do_not_tell_what_it_is_for() -> None:
    scenario = evolve(load_scenario("window_one_second"), duration=600.0)
    figures = simulate_policy(scenario, "recall", "headers", seed=0)
    begun, refused = figures["first_five_minutes"], figures["refused"]
    assert begun is not None
    assert refused is not None
    assert begun >= 82.0, "under 80 where the resets alone are waited for, span by span"
    assert refused <= 1.0
