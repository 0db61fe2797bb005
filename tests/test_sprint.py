"""The sprinting law by numbers: windows are filled at once, and their ends waited for."""

from __future__ import annotations

import pytest

from policies.contract import Accepted, Admitted, Hints, LimitedBy, Pace, Refused
from policies.sprint import Sprint, SprintOptions
from simulations.closed_loop import simulate_policy
from simulations.scenario_files import load_scenario

START = 1000.0


class Sender:
    """One attempt at a time, each limited by the rate."""

    def __init__(self, **options: float) -> None:
        self.policy = Sprint(SprintOptions(**options), seed=0, now=START)
        self.now, self.permit = START, -1

    def admit(self) -> int:
        self.permit += 1
        self.policy.on(Admitted(**self._facts(self.permit)))  # type: ignore[arg-type]
        return self.permit

    def accept(self, permit: int, hints: Hints = Hints()) -> Pace:
        return self.policy.on(Accepted(**self._facts(permit), hints=hints))  # type: ignore[arg-type]

    def refuse(self, permit: int, retry_after: float | None = None, hints: Hints = Hints()) -> Pace:
        return self.policy.on(Refused(**self._facts(permit), retry_after=retry_after, hints=hints))  # type: ignore[arg-type]

    def window(self, units: int) -> Pace:
        """So many accepted, one refused with a long hint, and the probe after the hold accepted."""
        for _ in range(units):
            self.accept(self.admit())
        self.refuse(self.admit(), retry_after=40.0)
        self.now += 41.0
        return self.accept(self.admit())

    def _facts(self, permit: int) -> dict[str, object]:
        return {
            "now": self.now,
            "permit": permit,
            "admitted_at": self.now,
            "cost": 1.0,
            "limited_by": LimitedBy.RATE,
            "in_flight": 1,
            "refill_rate": self.policy.pace.refill_rate,
        }


def test_a_refusal_with_a_long_hint_is_a_spent_window_and_cuts_nothing() -> None:
    sender = Sender()
    pace = sender.refuse(sender.admit(), retry_after=40.0)
    assert (pace.refill_rate, pace.unresolved_limit) == (20.0, 1)


@pytest.mark.parametrize("retry_after", [None, 1.0, 4.9])
def test_a_refusal_with_a_short_hint_or_none_is_cut_as_by_aimd(retry_after: float | None) -> None:
    sender = Sender()
    assert sender.refuse(sender.admit(), retry_after=retry_after).refill_rate == pytest.approx(14.0)


def test_a_reset_in_the_refusals_headers_is_a_hint_too() -> None:
    sender = Sender()
    pace = sender.refuse(sender.admit(), hints=Hints(limit=360.0, remaining=0.0, reset=30.0))
    assert pace.refill_rate == 20.0
    assert pace.held_until == START + 30


def test_it_holds_before_the_refusal_where_headers_say_that_nothing_is_left() -> None:
    sender = Sender()
    assert sender.accept(sender.admit(), Hints(limit=360.0, remaining=0.0, reset=30.0)).held_until == START + 30


def test_after_an_announced_end_one_attempt_finds_out_what_is_left() -> None:
    sender = Sender()
    sender.accept(sender.admit(), Hints(limit=5.0, remaining=0.0, reset=30.0))
    sender.now += 31
    permit = sender.admit()
    assert sender.policy.pace.unresolved_limit == 1
    assert sender.accept(permit, Hints(limit=5.0, remaining=4.0, reset=59.0)).unresolved_limit is None


def test_no_sprint_is_faster_than_it_may_be() -> None:
    sender = Sender(start_rate=20.0, fastest_rate=25.0)
    for _ in range(500):
        sender.accept(sender.admit())
        sender.now += 0.04
    assert sender.policy.pace.refill_rate == 25.0


def test_near_the_end_of_a_window_that_is_known_two_attempts_at_a_time() -> None:
    sender = Sender()
    assert sender.window(100).unresolved_limit is None
    assert sender.policy.wall == 100
    for _ in range(90):
        assert sender.accept(sender.admit()).unresolved_limit is None
    while sender.policy.pace.unresolved_limit is None:
        sender.accept(sender.admit())
    assert 93 < sender.policy._sent < 100
    for _ in range(12):
        pace = sender.accept(sender.admit())
    assert pace.unresolved_limit is None, "this window takes more than the last: the brake is off again"


def test_what_went_through_before_the_refusal_counts_though_its_answer_came_after() -> None:
    sender = Sender()
    late = [sender.admit() for _ in range(10)]
    sender.refuse(sender.admit(), retry_after=40.0)
    for permit in late:
        sender.accept(permit)
    sender.now += 41
    sender.accept(sender.admit())
    assert sender.policy.wall == 10


@pytest.mark.slow
@pytest.mark.parametrize(("feedback", "refused"), [("retry-after", 0.45), ("headers", 0.05)])
def test_a_stepping_window_is_filled_at_once(feedback: str, refused: float) -> None:
    figures = simulate_policy(load_scenario("u5_steps"), "sprint", feedback, seed=1)
    goodput, share = figures["goodput"], figures["refused"]
    assert goodput is not None
    assert share is not None
    assert goodput >= 99.5
    assert share <= refused


def test_a_snapshot_of_another_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="snapshot"):
        Sprint.restore(SprintOptions(), {"aimd": []}, seed=0, now=START)
