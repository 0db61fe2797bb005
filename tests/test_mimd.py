"""The multiplicative law by numbers: 1.05 up, 0.7 down, and the guards around it."""

from __future__ import annotations

import pytest

from policies.contract import Accepted, Admitted, LimitedBy, Pace, Reason, Refused, Remembered, Scope
from policies.mimd import Mimd, MimdOptions

START = 1000.0


class Sender:
    """One attempt at a time."""

    def __init__(self, *, remembered: Remembered | None = None, **options: float) -> None:
        self.policy = Mimd(MimdOptions(**options), seed=0, now=START, remembered=remembered)
        self.now, self.permit = START, -1

    def admit(self) -> int:
        self.permit += 1
        self.policy.on(Admitted(**self._facts(self.permit, LimitedBy.RATE)))  # type: ignore[arg-type]
        return self.permit

    def accept(self, permit: int, limited_by: LimitedBy = LimitedBy.RATE) -> Pace:
        return self.policy.on(Accepted(**self._facts(permit, limited_by)))  # type: ignore[arg-type]

    def refuse(self, permit: int, scope: Scope = Scope.UNKNOWN) -> Pace:
        return self.policy.on(Refused(**self._facts(permit, LimitedBy.RATE), scope=scope))  # type: ignore[arg-type]

    def _facts(self, permit: int, limited_by: LimitedBy) -> dict[str, object]:
        return {
            "now": self.now,
            "permit": permit,
            "admitted_at": self.now,
            "cost": 1.0,
            "limited_by": limited_by,
            "in_flight": 1,
            "refill_rate": self.policy.pace.refill_rate,
        }


def test_a_success_multiplies_by_1_05_and_a_refusal_by_0_7() -> None:
    sender = Sender(start_rate=2.0)
    assert sender.accept(sender.admit()).refill_rate == pytest.approx(2.1)
    assert sender.accept(sender.admit()).refill_rate == pytest.approx(2.0 * 1.05**2)
    pace = sender.refuse(sender.admit())
    assert pace.refill_rate == pytest.approx(0.7 * 2.0 * 1.05**2)
    assert (pace.reason, pace.unresolved_limit) == (Reason.CUT, 1)
    assert pace.learned_limit == pytest.approx(2.0 * 1.05**2)


def test_no_doubling_is_faster_than_the_doubling_time() -> None:
    sender = Sender(start_rate=100.0, doubling_time=2.0)
    for _ in range(200):  # two seconds of busy time at the first rate
        sender.accept(sender.admit())
    assert 150 < sender.policy.pace.refill_rate < 200, "1.05 ** 200 is seventeen thousand"


def test_twenty_refusals_of_one_epoch_are_one_cut() -> None:
    sender = Sender(start_rate=10.0)
    for permit in [sender.admit() for _ in range(20)]:
        sender.refuse(permit)
    assert sender.policy.pace.refill_rate == pytest.approx(7.0)


def test_a_success_from_before_the_cut_and_the_probe_itself_raise_nothing() -> None:
    sender = Sender(start_rate=10.0)
    old = sender.admit()
    sender.refuse(sender.admit())
    sender.accept(old)
    pace = sender.accept(sender.admit())
    assert pace.refill_rate == pytest.approx(7.0)
    assert (pace.reason, pace.unresolved_limit) == (Reason.CLEARED, None)
    assert sender.accept(sender.admit()).refill_rate == pytest.approx(7.35)


def test_only_what_the_rate_has_limited_counts() -> None:
    sender = Sender(start_rate=2.0)
    for limited_by in (LimitedBy.APP, LimitedBy.IN_FLIGHT, LimitedBy.CEILING, LimitedBy.OTHER):
        assert sender.accept(sender.admit(), limited_by).refill_rate == 2.0


def test_cuts_stop_at_the_floor() -> None:
    sender = Sender(start_rate=1.0, floor=0.5)
    for _ in range(5):
        sender.refuse(sender.admit())
        sender.now += 60
        sender.accept(sender.admit())
    assert sender.policy.pace.refill_rate == 0.5


def test_an_overload_holds_and_cuts_nothing() -> None:
    sender = Sender(start_rate=10.0)
    pace = sender.refuse(sender.admit(), Scope.OVERLOAD)
    assert (pace.refill_rate, pace.reason, pace.unresolved_limit) == (10.0, Reason.HOLD, 1)
    assert pace.learned_limit is None


def test_refused_probes_hold_twice_as_long_and_cut_nothing() -> None:
    sender = Sender(start_rate=10.0, first_hold=1.0)
    holds = []
    for _ in range(4):
        pace = sender.refuse(sender.admit())
        holds.append(pace.held_until - sender.now)
        sender.now = pace.held_until
    assert holds == pytest.approx([1, 2, 4, 8])
    assert sender.policy.pace.refill_rate == pytest.approx(7.0)


def test_a_limit_learnt_lately_is_used_at_once() -> None:
    assert Sender(remembered=Remembered(limit=100.0, age=60.0)).policy.pace.refill_rate == 70.0


def test_a_snapshot_of_another_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="snapshot"):
        Mimd.restore(MimdOptions(), {"keeper": 3}, seed=0, now=START)
