"""Gentle before the laws of every policy, and its own law by numbers."""

from __future__ import annotations

import pytest
from attrs import asdict
from tidegate_gentle import Gentle, GentleOptions

from policies.contract import Accepted, Admitted, LimitedBy
from simulations.check import run_laws


def test_it_keeps_every_law() -> None:
    report = run_laws(Gentle, examples=60)
    assert report.ok, str(report)


@pytest.mark.parametrize("minutes", [1, 2, 5])
def test_it_grows_by_no_more_than_its_share_per_minute(minutes: int) -> None:
    policy = Gentle(GentleOptions(start_rate=2.0, growth_per_minute=1.5), seed=0, now=0.0)
    now, permit = 0.0, 0
    while now < minutes * 60.0:
        attempt = Admitted(
            now=now,
            permit=permit,
            admitted_at=now,
            cost=1.0,
            limited_by=LimitedBy.RATE,
            in_flight=1,
            refill_rate=policy.pace.refill_rate,
        )
        policy.on(attempt)
        policy.on(Accepted(**asdict(attempt)))
        permit, now = permit + 1, now + 1 / policy.pace.refill_rate
    assert 2.0 * 1.3**minutes < policy.pace.refill_rate <= 2.0 * 1.5**minutes
