"""The law of recall by numbers: what each refusal measures, and what the rate does afterwards."""

from __future__ import annotations

import math

import pytest
from recall_sender import START, Sender, at_cruise

from policies.contract import (
    Bounds,
    Hints,
    LimitedBy,
    Reason,
    Remembered,
    Scope,
)
from policies.recall import Recall
from policies.recall_log import GRAIN, SendLog
from policies.recall_state import Phase, RecallOptions, Turn
from policies.recall_turn import agrees, learn_turn, next_turn, turn_is_known, turn_span
from simulations.quota import FixedWindow, Gcra
from simulations.sliding_log import SlidingLog
from simulations.steps import Steps

# -- the cut is what was measured


def test_a_window_that_is_shut_has_measured_its_limit() -> None:
    sender = Sender()
    sender.run_against(90, FixedWindow(Steps.constant(100), 60.0, offset=START))
    assert sender.limit == pytest.approx(100 / 60, rel=1e-6)
    assert sender.policy.pace.refill_rate == pytest.approx(0.99 * 100 / 60)


def test_a_window_that_turns_soon_may_be_a_short_one_so_the_next_is_filled_at_once() -> None:
    sender, quota = Sender(), FixedWindow(Steps.constant(100), 60.0, offset=START - 20)
    sender.run_against(60, quota)
    assert sender.phase is Phase.CLIMB
    assert sender.limit == pytest.approx(100 / 60, rel=1e-6)
    sender.run_against(130, quota)
    assert sender.policy.state.phase is Phase.CRUISE
    assert sender.limit == pytest.approx(100 / 60, rel=1e-6)


def test_a_log_that_is_shut_has_measured_its_limit() -> None:
    sender = Sender()
    sender.run_against(70, SlidingLog(Steps.constant(100), 60.0))
    assert sender.limit == pytest.approx(100 / 60, rel=1e-6)


def test_the_rate_falls_at_the_refusal_itself_and_the_end_of_the_block_refines_it() -> None:
    sender = at_cruise(10.0)
    pace = sender.refuse(sender.admit())
    assert pace.refill_rate == pytest.approx(0.96 * 9.9)
    assert pace.reason is Reason.CUT
    sender.now = pace.held_until
    after = sender.accept(sender.admit())
    assert after.learned_limit == pytest.approx(9.6, rel=0.02)
    assert after.reason is Reason.CLEARED


def test_twenty_refusals_of_one_epoch_are_one_cut() -> None:
    sender = at_cruise(10.0)
    permits = [sender.admit() for _ in range(20)]
    first = sender.refuse(permits[0])
    assert [sender.refuse(permit) for permit in permits[1:]] == [first] * 19


def test_two_refusals_of_a_bucket_measure_its_rate() -> None:
    sender = Sender()
    sender.run_against(60, Gcra(Steps.constant(20.0), burst=20.0))
    assert sender.limit == pytest.approx(20.0, rel=0.06)
    assert len(sender.refusals) <= 3


def test_after_a_buckets_first_refusal_the_search_goes_on_below_the_rate_that_did_not_hold() -> None:
    sender = Sender()
    while sender.policy.pace.refill_rate < 40:
        sender.accept(sender.admit())
        sender.now += 1 / sender.policy.pace.refill_rate
    met_at = sender.policy.pace.refill_rate
    sender.now = sender.refuse(sender.admit()).held_until
    sender.accept(sender.admit())
    assert sender.phase is Phase.SEARCH
    assert sender.policy.pace.refill_rate == pytest.approx(0.6 * met_at)


def test_a_search_that_survives_goes_up_by_half_of_what_is_left() -> None:
    sender = Sender()
    sender.accept(sender.admit())
    sender.now += 3.0
    sender.now = sender.refuse(sender.admit()).held_until
    sender.accept(sender.admit())
    low, high = sender.policy.pace.refill_rate, sender.policy.state.high
    sender.run(sender.now - START + 12, lambda _: True)
    assert sender.policy.pace.refill_rate == pytest.approx((low + high) / 2)


def test_a_small_count_cuts_by_a_bounded_factor() -> None:
    sender = at_cruise(0.2, seconds=100)
    sender.now += 55.0  # little was accepted lately
    sender.now = sender.refuse(sender.admit()).held_until
    sender.accept(sender.admit())
    assert sender.limit >= 0.7 * 0.2


# -- while refused


def test_one_attempt_at_a_time_until_one_that_was_admitted_after_the_refusal_is_accepted() -> None:
    sender = at_cruise()
    old = sender.admit()
    assert sender.refuse(sender.admit()).unresolved_limit == 1
    assert sender.accept(old).unresolved_limit == 1, "admitted before, so it proves nothing"
    assert sender.accept(sender.admit()).unresolved_limit is None


def test_holds_double_and_when_it_can_be_no_bucket_they_triple_up_to_the_longest() -> None:
    sender = at_cruise(10.0)
    holds = []
    for _ in range(9):
        pace = sender.refuse(sender.admit())
        holds.append(pace.held_until - sender.now)
        sender.now = pace.held_until
    assert holds[:5] == pytest.approx([0.3, 0.6, 1.8, 5.4, 16.2], rel=1e-3)
    assert max(holds) == pytest.approx(22.0)


def test_the_hold_of_a_refusal_with_a_hint_is_left_to_the_server() -> None:
    sender = at_cruise()
    assert sender.refuse(sender.admit(), retry_after=7.0).held_until == pytest.approx(sender.now)


def test_an_overload_holds_and_teaches_nothing() -> None:
    sender = at_cruise(10.0)
    before = sender.policy.pace
    pace = sender.refuse(sender.admit(), scope=Scope.OVERLOAD)
    assert (pace.refill_rate, pace.unresolved_limit) == (before.refill_rate, 1)
    sender.now = pace.held_until
    after = sender.accept(sender.admit())
    assert (after.refill_rate, after.learned_limit) == (before.refill_rate, before.learned_limit)


def test_refusals_before_anything_was_accepted_measure_nothing() -> None:
    sender = Sender()
    sender.run(20, lambda _: False)
    sender.run(60, lambda _: True)
    assert sender.policy.state.phase is Phase.START
    assert sender.policy.pace.refill_rate > 5.0


def test_an_outage_keeps_the_limit_and_starts_again_at_a_quarter_of_it() -> None:
    sender = at_cruise(10.0)
    shut_from = sender.now - START
    sender.run(shut_from + 300, lambda _: False)
    assert len(sender.refusals) <= 20
    sender.now = sender.policy.pace.held_until
    pace = sender.accept(sender.admit())
    assert pace.learned_limit == 10.0
    assert pace.refill_rate == pytest.approx(2.5)
    sender.run(sender.now - START + 30, lambda _: True)
    assert sender.policy.pace.refill_rate == pytest.approx(9.9)


# -- probes


def test_a_probe_comes_when_its_cost_is_within_the_budget() -> None:
    sender = Sender(remembered=Remembered(limit=5.0, age=1.0))
    sender.run(10, lambda _: True)
    assert sender.phase is Phase.CRUISE
    due_at = sender.policy.state.probe_at
    budgeted = 1.6 / (0.005 * 0.99 * 5.0)  # 65 s for one probe of 1.6 refusals; jitter of a fifth
    assert 0.8 * budgeted < due_at < 1.2 * budgeted + 10
    sender.run(due_at - 0.5, lambda _: True)
    assert sender.policy.pace.refill_rate == pytest.approx(0.99 * 5.0)
    sender.run(due_at + 1.0, lambda _: True)
    assert sender.policy.pace.refill_rate == pytest.approx(1.04 * 5.0)


def test_a_limit_that_costs_more_to_probe_is_probed_less_often() -> None:
    waits = []
    for limit in (1.0, 4.0):
        sender = Sender(remembered=Remembered(limit=limit, age=1.0), margin=0.0)
        sender.run(5, lambda _: True)
        waits.append(sender.policy.state.probe_at - sender.policy.state.now)
    assert waits[0] / waits[1] == pytest.approx(4.0, rel=0.5)


def test_a_refused_probe_confirms_the_limit() -> None:
    window = FixedWindow(Steps.constant(300), 60.0, offset=START - 20)
    sender = Sender(remembered=Remembered(limit=5.0, age=1.0))
    sender.run_against(900, window)
    assert sender.limit == pytest.approx(5.0, rel=0.01)
    assert sender.refusals, "it was probed"
    assert len(sender.refusals) <= 0.006 * sender.accepted + 2


def test_a_probe_that_survives_finds_the_new_limit() -> None:
    sender = Sender(remembered=Remembered(limit=5.0, age=1.0))
    sender.run_against(700, FixedWindow(Steps.constant(900), 60.0, offset=START - 20))
    assert sender.limit == pytest.approx(15.0, rel=0.02)


def test_success_that_was_not_limited_by_the_rate_never_raises_it() -> None:
    sender = Sender()
    for _ in range(1000):
        sender.accept(sender.admit(LimitedBy.APP), limited_by=LimitedBy.APP)
        sender.now += 1.0
    assert sender.policy.pace.refill_rate == 5.0


def test_slow_start_doubles_in_two_seconds_but_never_beyond_what_was_sent() -> None:
    sender = Sender()
    sender.run(2.0, lambda _: True)
    assert sender.policy.pace.refill_rate == pytest.approx(10.0, rel=0.15)
    sender.run(8.0, lambda _: True)
    assert sender.policy.pace.refill_rate <= 2.2 * sender.accepted / 8.0 * 1.02


# -- others on the same quota


def contending() -> Sender:
    sender = at_cruise(10.0)
    for _ in range(3):
        sender.run(sender.now - START + 80, lambda _: True)
        sender.now = sender.refuse(sender.admit()).held_until
        sender.accept(sender.admit())
    return sender


def test_three_refusals_below_the_limit_mean_others_and_plain_aimd() -> None:
    sender = contending()
    assert sender.phase is Phase.CONTEND
    base = sender.limit
    assert sender.policy.pace.refill_rate <= 0.85 * base * 1.001
    assert sender.policy.state.slope == pytest.approx(0.15 * math.sqrt(base) / 60)


def test_in_contention_the_rate_grows_by_the_root_of_the_rate() -> None:
    sender = contending()
    before, slope = sender.policy.pace.refill_rate, sender.policy.state.slope
    sender.run(sender.now - START + 20, lambda _: True)
    assert sender.policy.pace.refill_rate - before == pytest.approx(20 * slope, rel=0.05)


# -- headers


def test_headers_are_used_at_once_and_almost_without_a_margin() -> None:
    sender = Sender()
    pace = sender.accept(sender.admit(), hints=Hints(limit=1200.0, remaining=1199.0, reset=30.0))
    assert (pace.refill_rate, pace.learned_limit) == (0.998 * 20.0, 20.0)
    sender.run(400, lambda _: True, Hints(limit=1200.0, remaining=600.0, reset=30.0))
    assert sender.policy.pace.refill_rate == 0.998 * 20.0, "no probes"


def test_headers_that_change_change_the_rate() -> None:
    sender = Sender()
    sender.accept(sender.admit(), hints=Hints(limit=1200.0))
    sender.now += 1
    assert sender.accept(sender.admit(), hints=Hints(limit=120.0)).refill_rate == pytest.approx(2.0, rel=0.01)


def test_when_nothing_remains_of_a_window_the_next_attempt_waits_for_its_end() -> None:
    sender = Sender()
    for second in range(10):
        pace = sender.accept(sender.admit(), hints=Hints(limit=600.0, remaining=10.0 - second, reset=30.0 - second))
        sender.now += 1.0
    assert pace.held_until < START, "something remained until now"
    sender.admit()
    pace = sender.accept(sender.permit, hints=Hints(limit=600.0, remaining=0.0, reset=20.0))
    assert pace.held_until == pytest.approx(sender.now + 20.0, abs=0.06)


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, -1.0, 0.0, 1e308])
def test_odd_hints_do_no_harm(odd: float) -> None:
    sender = Sender()
    hints = Hints(limit=odd, remaining=odd, reset=odd, period=odd)
    pace = sender.accept(sender.admit(), hints=hints)
    assert 0 < pace.refill_rate < 1e3
    pace = sender.refuse(sender.admit(), retry_after=odd, hints=hints)
    assert pace.held_until <= sender.now + 30.0
    pace = sender.refuse(
        sender.admit(), retry_after=1.0, hints=Hints(limit=600.0, remaining=odd, reset=odd, period=odd)
    )
    assert 0 < pace.refill_rate < 1e3
    assert pace.held_until <= sender.now + 60.0


# -- memory


def test_a_limit_learnt_lately_is_used_at_once_later_from_a_quarter_and_an_old_one_is_forgotten() -> None:
    assert Sender(remembered=Remembered(limit=100.0, age=60.0)).policy.pace.refill_rate == 99.0
    assert Sender(remembered=Remembered(limit=100.0, age=1200.0)).policy.pace.refill_rate == 25.0
    assert Sender(remembered=Remembered(limit=2.0, age=1200.0)).policy.pace.refill_rate == 2.0
    assert Sender(remembered=Remembered(limit=100.0, age=7200.0)).policy.pace.refill_rate == 5.0


@pytest.mark.parametrize("limit", [8.5, 10.0, 14.0, 100.0])
def test_a_search_that_was_broken_off_goes_on_where_it_was(limit: float) -> None:
    cold, held = Sender(), 0.8 * limit
    warm = Sender(remembered=Remembered(limit=held, age=60.0, refused=1.5 * limit))
    assert (warm.phase, warm.policy.pace.refill_rate, warm.policy.pace.learned_limit) == (Phase.SEARCH, held, None)
    assert warm.policy.pace.bounds == Bounds(held=held, refused=1.5 * limit)
    for sender in (cold, warm):
        sender.run_against(60.0, Gcra(Steps.constant(limit), burst=max(limit / 2, 1.0)))
    assert warm.policy.pace.bounds is None
    assert warm.limit == pytest.approx(limit, rel=0.1)
    assert len(warm.refusals) < len(cold.refusals)
    assert warm.accepted > (1.1 if limit >= 100.0 else 0.96) * cold.accepted, "slow start lives on the burst"


def test_a_search_that_was_broken_off_long_ago_or_makes_no_sense_is_begun_anew() -> None:
    assert Sender(remembered=Remembered(limit=50.0, age=1200.0, refused=70.0)).policy.pace == Sender().policy.pace
    assert Sender(remembered=Remembered(limit=50.0, age=1.0, refused=40.0)).policy.pace.learned_limit == 50.0


@pytest.mark.parametrize(("held", "refused"), [(0.0, 1.0), (2.0, 1.0), (1.0, math.inf), (math.nan, 1.0)])
def test_bounds_that_bound_nothing_are_none(held: float, refused: float) -> None:
    with pytest.raises(ValueError, match="bounds"):
        Bounds(held=held, refused=refused)


@pytest.mark.parametrize("kept", [{}, {"state": {}}, {"state": 3, "elapsed": 1.0}])
def test_a_snapshot_of_another_policy_is_refused(kept: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not a snapshot of recall"):
        Recall.restore(RecallOptions(), kept, seed=0, now=START)  # type: ignore[arg-type]


def test_the_log_counts_spans_and_stays_short() -> None:
    log = SendLog(keep=120.0)
    for number in range(200_000):
        log.add(number / 1000, 1.0)
    assert len(log.times) <= 2 * 120 / GRAIN + 2
    assert log.accepted(140.0, 200.0) == pytest.approx(60_000, rel=0.001)
    log.take_back(199.5, 1.0)
    assert log.accepted(140.0, 200.0) == pytest.approx(59_999, rel=0.001)
    assert log.sent(190.0) == pytest.approx(10_000, rel=0.01)


# -- the turn of a window


def test_two_blocks_that_end_alike_tell_when_a_window_turns() -> None:
    turn = Turn()
    learn_turn(turn, 60.0, 100.0, 103.0, sure=True)
    assert not turn_is_known(turn, 60.0)
    learn_turn(turn, 60.0, 161.5, 165.0, sure=True)
    assert turn_is_known(turn, 60.0)
    assert next_turn(turn, 60.0, 170.0) == pytest.approx(turn.high + 60, abs=0.01)
    assert turn_span(turn, 60.0, 215.0, 230.0)[0] == pytest.approx(221.5)


def test_blocks_that_end_at_odd_instants_tell_nothing() -> None:
    turn = Turn()
    learn_turn(turn, 60.0, 100.0, 101.0, sure=True)
    assert not agrees(turn, 60.0, 180.0, 181.0)
    learn_turn(turn, 60.0, 180.0, 181.0, sure=True)
    assert not turn_is_known(turn, 60.0)
