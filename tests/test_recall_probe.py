"""Recall above its limit: probes at the end of a window, and room that headers show without one."""

from __future__ import annotations

import statistics
from itertools import pairwise

import pytest
from recall_sender import START, Sender, asks

from policies.contract import Hints
from policies.recall_state import Phase
from simulations.quota import FixedWindow, Gcra
from simulations.steps import Steps

TURN = 17.0  # s after the start, and every minute again


def window(*pairs: tuple[float, float]) -> FixedWindow:
    return FixedWindow(Steps(tuple((START + at, limit) for at, limit in pairs)), 60.0, True, START + TURN)


def test_a_probe_of_a_known_window_is_sent_in_its_last_seconds() -> None:
    sender = Sender()
    sender.run_against(1500, window((0, 300)))
    late = [at for at in sender.refusals if at > 300]
    assert len(late) >= 5
    assert all((at - TURN) % 60 > 50 for at in late)


def test_such_probes_cost_few_refusals_and_no_window_loses_what_it_allows() -> None:
    sender, quota = Sender(), window((0, 300))
    sender.run_against(300, quota)
    before, refused = sender.accepted, len(sender.refusals)
    sender.run_against(1500, quota)
    assert len(sender.refusals) - refused <= 13  # in twenty windows; some find out when they turn
    assert sender.accepted - before >= 0.98 * 20 * 300


def test_a_limit_that_rises_fivefold_is_found_within_three_minutes() -> None:
    sender = Sender()
    sender.run_against(940, window((0, 120), (617, 600)))
    assert sender.limit == pytest.approx(10.0, rel=0.02)
    rise_until = min(at for at in sender.refusals if at > 700)
    assert rise_until < 617 + 180


def test_a_probe_that_is_not_filled_in_time_proves_nothing() -> None:
    sender, quota = Sender(), window((0, 300))
    sender.run_against(300, quota)
    while sender.policy.state.phase is not Phase.PROBE:
        sender.run_against(sender.now - START + 0.5, quota)
    limit = sender.limit
    sender.now += 30  # nothing to send until the window has turned
    sender.accept(sender.admit())
    assert (sender.phase, sender.limit) == (Phase.CRUISE, limit)


def gaps(refusals: list[float], since: float, until: float) -> list[float]:
    """Seconds between blocks within a span."""
    inside = [at for at in refusals if since <= at < until]
    return [gap for gap in (after - before for before, after in pairwise(inside)) if gap > 10]


def test_a_limit_that_has_stood_for_long_is_probed_more_rarely_and_one_that_moved_as_often_as_at_first() -> None:
    sender, hour = Sender(), 3600.0
    sender.run_against(4 * hour, Gcra(Steps(((0.0, 2.0), (START + 2 * hour, 3.0))), burst=2.0))
    spans = ((hour, 2 * hour), (2 * hour + 300, 2 * hour + 1200), (3 * hour, 4 * hour))
    stood, moved, stood_again = (statistics.mean(gaps(sender.refusals, *span)) for span in spans)
    assert 1.25 * moved < stood_again < 1.7 * moved
    assert stood_again < stood < 1.6 * stood_again  # of the slower limit; the budget is a share of what is sent


def test_a_limit_whose_probe_survives_has_not_stood_even_if_it_comes_out_where_it_was() -> None:
    sender, quota, hour = Sender(), Gcra(Steps.constant(2.0), burst=2.0), 3600.0
    sender.run_against(hour, quota)
    state, limit = sender.policy.state, sender.limit
    assert sender.now - START - 300 < state.now - state.stood_since
    while state.phase is not Phase.CLIMB:
        sender.run(sender.now - START + 1, lambda now: state.phase is Phase.PROBE or asks(quota, now))
    sender.run_against(hour + 600, quota)
    assert sender.limit == pytest.approx(limit, rel=0.03)
    assert state.now - state.stood_since < 600


# -- room that headers show


def bucket_hints(remaining: float) -> Hints:
    """Of a bucket of 10 that fills at 6/s; reset is the time until it is full."""
    return Hints(limit=360.0, remaining=remaining, reset=(10.0 - remaining) / 6.0)


def sharing() -> Sender:
    """One that others take half of a told limit from: three refusals, and it shares."""
    sender = Sender()
    sender.run(20, lambda _: True, bucket_hints(9.0))
    for _ in range(3):
        for _ in range(20):
            sender.now += 1 / sender.policy.pace.refill_rate
            sender.accept(sender.admit(), hints=bucket_hints(1.0))
        sender.refuse(sender.admit(), hints=bucket_hints(0.0))
        sender.now += 1.0
        sender.accept(sender.admit(), hints=bucket_hints(1.0))
    assert sender.phase is Phase.CONTEND
    return sender


def test_a_learnt_share_of_a_told_limit_outlives_the_next_refusal() -> None:
    sender = sharing()
    sender.run(sender.now - START + 20, lambda _: True, bucket_hints(1.0))
    sender.refuse(sender.admit(), hints=bucket_hints(0.0))
    sender.now += 1.0
    sender.accept(sender.admit(), hints=bucket_hints(1.0))
    assert sender.policy.pace.refill_rate < 0.9 * 6.0


def test_a_bucket_that_stays_full_is_taken_from_without_a_probe() -> None:
    sender = sharing()
    sender.run(sender.now - START + 60, lambda _: True, bucket_hints(9.0))
    assert sender.limit == pytest.approx(6.0)
    assert sender.policy.pace.refill_rate == pytest.approx(6.0, rel=0.05)


def test_a_bucket_that_others_use_is_left_to_them() -> None:
    sender = sharing()
    rate = sender.policy.pace.refill_rate
    sender.run(sender.now - START + 60, lambda _: True, bucket_hints(3.0))
    assert rate < sender.policy.pace.refill_rate < 1.3 * rate


def test_the_first_look_at_a_reset_tells_a_window_from_a_bucket() -> None:
    """Four of five are used and the reset is in 16 s: a bucket would need 48."""
    sender = Sender()
    for used in range(1, 6):
        sender.accept(sender.admit(), hints=Hints(limit=5.0, remaining=5.0 - used, reset=16.0))
    assert sender.policy.pace.held_until >= START + 16
