"""What recall does not conclude: from windows shorter than its period, from late charges, from a short look."""

from __future__ import annotations

import pytest
from recall_sender import START, Sender, asks, at_cruise

from policies.contract import LimitedBy, Settled
from policies.recall_state import Phase
from simulations.quota import FixedWindow
from simulations.sliding_log import SlidingLog
from simulations.slope import Slope
from simulations.steps import Steps


def settled(sender: Sender, permit: int, lasted: float) -> None:
    """An attempt that was admitted `lasted` seconds ago is over."""
    sender.policy.on(
        Settled(
            now=sender.now,
            permit=permit,
            admitted_at=sender.now - lasted,
            cost=1.0,
            limited_by=LimitedBy.RATE,
            in_flight=1,
            refill_rate=sender.policy.pace.refill_rate,
            true_cost=1.0,
        )
    )


def test_slow_start_is_half_as_fast_when_a_period_has_passed() -> None:
    sender = Sender()
    for _ in range(600):  # twice as fast as slow start begins, so that only doubling bounds it
        sender.accept(sender.admit(LimitedBy.APP), limited_by=LimitedBy.APP)
        sender.now += 0.1
    sender.run(sender.now - START + 1.0, lambda _: True)  # the period ends
    before, at = sender.policy.pace.refill_rate, sender.now
    sender.run(at - START + 4.0, lambda _: True)
    assert sender.policy.pace.refill_rate == pytest.approx(2 * before, rel=0.15)


# -- windows shorter than the period


def test_windows_of_ten_seconds_are_filled_to_nine_tenths() -> None:
    sender = Sender()
    sender.run_against(1200, FixedWindow(Steps.constant(60), 10.0, offset=START + 3))
    assert sender.policy.state.brief
    before = sender.accepted
    sender.run_against(2400, FixedWindow(Steps.constant(60), 10.0, offset=START + 3))
    assert sender.accepted - before >= 0.9 * 1200 * 6


@pytest.mark.parametrize("offset", [0, 3, 4, 8, 9])
def test_a_window_that_turned_early_is_climbed_from_as_fast_as_it_turned(offset: float) -> None:
    """From a sixtieth of what it let in, two minutes would be 58 to 85 % of what they allow."""
    sender = Sender()
    sender.run_against(120, FixedWindow(Steps.constant(60), 10.0, offset=START + offset))
    assert sender.accepted >= 0.9 * 120 * 6


@pytest.mark.parametrize("waited", [0.0, 1e-3, 0.5])
def test_a_window_that_seems_to_turn_at_once_makes_nothing_faster_than_it_was_sent(waited: float) -> None:
    """Only odd clocks show it; after 25 that the application held back, the rate had never risen."""
    sender = Sender()
    for _ in range(25):
        sender.accept(sender.admit(LimitedBy.APP), limited_by=LimitedBy.APP)
    before = sender.policy.pace.refill_rate
    sender.refuse(sender.admit(), retry_after=20.0)
    sender.now += waited
    assert 0 < sender.accept(sender.admit()).refill_rate <= before


@pytest.mark.parametrize("offset", [12, 14, 16])
def test_a_retry_after_that_is_always_the_same_makes_no_minute_a_brief_window(offset: float) -> None:
    """It says that the window is shut when it has turned already."""
    sender, quota, held_until = Sender(), FixedWindow(Steps.constant(300), 60.0, offset=START + offset), 0.0
    while (at := max(sender.now, sender.policy.pace.held_until, held_until)) < START + 200:
        sender.now, permit = at, sender.admit()
        if asks(quota, at):
            sender.accept(permit)
            sender.now += 1 / sender.policy.pace.refill_rate
        else:
            held_until = at + 20
            sender.refuse(permit, retry_after=20.0)
        assert not sender.policy.state.brief


def test_a_window_of_which_others_leave_more_the_second_time_is_no_brief_one() -> None:
    sender, taken = Sender(), [0] * 10

    def passes(now: float) -> bool:
        window = int((now - START + 20) // 60)
        taken[window] += 1
        return taken[window] <= (40 if window == 0 else 90)

    sender.run(130, passes)
    assert sender.refusals
    assert not sender.policy.state.brief


def test_windows_that_others_leave_more_and_less_of_in_turn_are_shared() -> None:
    """Each deep cut is tested by a climb; that this one is refused is no peace."""
    sender, taken = Sender(), [0] * 30

    def passes(now: float) -> bool:
        window = int((now - START + 20) // 60)
        taken[window] += 1
        return taken[window] <= (100 if window % 2 else 55)

    sender.run(8 * 60, passes)
    assert sender.phase is Phase.CONTEND


def test_a_server_that_refuses_growth_is_filled_to_four_fifths_from_the_first_five_minutes_on() -> None:
    """Once its ramp is over it is a log, whose refusals while the ramp leaves it say nothing of others."""
    sender, log, slope = Sender(), SlidingLog(Steps.constant(600), 60.0), Slope(10.0, 20.0)

    def passes(now: float) -> bool:
        assert sender.phase is not Phase.CONTEND
        if slope.ask(now) > 0 or not asks(log, now):
            return False
        slope.take(now)
        return True

    sender.run(300, passes)
    assert sender.accepted >= 0.8 * 5 * 600


def test_a_long_block_ends_the_belief_in_brief_windows() -> None:
    sender = at_cruise(10.0)
    sender.policy.state.brief = True
    pace = sender.refuse(sender.admit())
    while sender.policy.state.block is not None:
        sender.now = pace.held_until
        permit = sender.admit()
        pace = sender.refuse(permit) if sender.now < START + 110 else sender.accept(permit)
    assert not sender.policy.state.brief


# -- what is charged after it was let in


@pytest.mark.parametrize("owed", [0.0, 100.0])
def test_a_bucket_that_pays_debts_is_shut_for_long_without_being_a_window(owed: float) -> None:
    sender = at_cruise(10.0)
    pace = sender.refuse(sender.admit(), owed=owed)
    for _ in range(3):
        sender.now = pace.held_until
        pace = sender.refuse(sender.admit())
    sender.now = pace.held_until
    sender.accept(sender.admit())
    assert (sender.policy.state.windows == 0) is (owed > 0)


def test_refusals_until_all_is_charged_that_was_let_in_before_a_cut_are_of_that_cut() -> None:
    sender = at_cruise(10.0)
    for permit in range(60):
        settled(sender, permit, lasted=20.0)
    sender.now = sender.refuse(sender.admit(), owed=50.0).held_until
    cut = sender.accept(sender.admit()).refill_rate
    for _ in range(3):
        sender.run(sender.now - START + 2.0, lambda _: True)
        pace = sender.refuse(sender.admit(), owed=50.0)
        assert pace.unresolved_limit == 1
        sender.now = pace.held_until
        assert sender.accept(sender.admit()).refill_rate == cut
    sender.run(sender.now - START + 40.0, lambda _: True)
    assert sender.refuse(sender.admit(), owed=50.0).refill_rate < cut


# -- another limit had held things back


def test_a_refusal_soon_after_another_limit_held_things_back_cuts_little_and_means_no_others() -> None:
    sender = at_cruise(10.0)
    for cut in range(1, 5):
        sender.now = sender.refuse(sender.admit(), limited_by=LimitedBy.OTHER).held_until
        sender.accept(sender.admit())
        assert sender.limit == pytest.approx(10.0 * 0.96**cut, rel=0.01)
        sender.run(sender.now - START + 5.0, lambda _: True)
    assert sender.phase is Phase.CRUISE
