"""Laws of the token bucket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from controller.bucket import TOLERANCE, TokenBucket

RATES = st.floats(0.01, 1000)
CAPACITIES = st.floats(1, 100)
COSTS = st.floats(0.1, 500)
STEPS = st.floats(0, 100)


class BucketMachine(RuleBasedStateMachine):
    """Against the integral: what may have been spent is what was there, what accrued, and one oversize debt."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.bucket = TokenBucket(capacity=5.0, refill_rate=2.0, level=1.0, updated_at=self.now)
        self.spent = 0.0
        self.accrued = 1.0
        self.largest_cost = 0.0

    @rule(seconds=STEPS)
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.accrued += seconds * self.bucket.refill_rate

    @rule(cost=COSTS)
    def take_if_allowed(self, cost: float) -> None:
        if self.bucket.delay(cost, self.now) == 0:
            self.bucket.take(cost, self.now)
            self.spent += cost
            self.largest_cost = max(self.largest_cost, cost)

    @rule(cost=COSTS)
    def wait_and_take(self, cost: float) -> None:
        delay = self.bucket.delay(cost, self.now)
        self.time_passes(delay)
        assert self.bucket.delay(cost, self.now) == 0, "after waiting the delay, there is none"
        self.take_if_allowed(cost)

    @precondition(lambda self: self.spent > 1)
    @rule()
    def put_back(self) -> None:
        self.bucket.put_back(1.0, self.now)
        self.spent -= 1.0

    @rule(rate=RATES, capacity=CAPACITIES)
    def change_pace(self, rate: float, capacity: float) -> None:
        before = self.bucket.delay(0.0, self.now)
        self.bucket.set_pace(rate, capacity, self.now)
        assert (self.bucket.delay(0.0, self.now) == 0) == (before == 0)

    @rule(seconds=STEPS)
    def pause(self, seconds: float) -> None:
        self.bucket.pause(self.now + seconds, self.now)
        assert self.bucket.level <= 0
        if seconds > 0:
            assert self.bucket.delay(0.1, self.now) >= seconds

    @invariant()
    def level_fits(self) -> None:
        assert self.bucket.level <= self.bucket.capacity

    @invariant()
    def never_more_spent_than_accrued(self) -> None:
        assert self.spent <= self.accrued + self.largest_cost + 1e-6 * (1 + self.accrued) + 500 * TOLERANCE


TestBucketMachine = BucketMachine.TestCase


@given(RATES, CAPACITIES, st.floats(-50, 50), st.floats(0, 1000), st.floats(0, 1), COSTS)
def test_refilling_in_two_steps_is_refilling_in_one(
    rate: float, capacity: float, level: float, seconds: float, split: float, cost: float
) -> None:
    once = TokenBucket(capacity, rate, min(level, capacity), 0.0)
    twice = TokenBucket(capacity, rate, min(level, capacity), 0.0)
    twice.take(0.0, seconds * split)
    once.take(0.0, seconds)
    twice.take(0.0, seconds)
    assert once.level == pytest.approx(twice.level, abs=1e-6)


def test_a_rate_change_never_acts_on_the_past() -> None:
    bucket = TokenBucket(capacity=100, refill_rate=1, level=0, updated_at=0)
    bucket.set_pace(50, 100, now=10)
    assert bucket.level == 10


def test_a_cost_above_the_capacity_waits_for_a_full_bucket_and_leaves_a_debt() -> None:
    bucket = TokenBucket(capacity=4, refill_rate=2, level=0, updated_at=0)
    assert bucket.delay(4096, now=0) == 2
    bucket.take(4096, now=2)
    assert bucket.level == 4 - 4096
    assert bucket.delay(1, now=2) == pytest.approx((1 + 4092) / 2)


def test_a_clock_that_steps_back_gives_nothing_and_takes_nothing() -> None:
    bucket = TokenBucket(capacity=10, refill_rate=1, level=3, updated_at=100)
    bucket.take(0, now=50)
    assert (bucket.level, bucket.updated_at) == (3, 100)


def test_a_pause_ends_with_an_empty_bucket_whatever_is_put_back_meanwhile() -> None:
    bucket = TokenBucket(capacity=10, refill_rate=1, level=8, updated_at=0)
    bucket.pause(until=5, now=1)
    bucket.put_back(3, now=2)
    assert bucket.delay(1, now=5) == 1
    bucket.put_back(3, now=6)
    assert bucket.level == 4
