"""Laws of the simulated upstream's quotas, each from its definition and with its own counting.

Instants are multiples of 1/64 s, which floats hold exactly, so that a window's border is no matter of rounding.
"""

from __future__ import annotations

from itertools import pairwise
from math import inf

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from simulations.quota import Concurrency, FixedWindow, Gcra, Quota, Quotas
from simulations.sliding_log import SlidingLog
from simulations.steps import Steps

TICKS = st.lists(st.integers(0, 64 * 30), max_size=120).map(lambda ticks: [tick / 64 for tick in sorted(ticks)])
LIMITS = st.integers(1, 8)
PERIODS = st.sampled_from([0.25, 1.0, 2.0, 7.0])


def admitted(quota: Quota, instants: list[float], cost: float = 1.0) -> list[float]:
    quotas = Quotas({"requests": quota})
    return [now for now in instants if quotas.take(now, {"requests": cost}) is None]


def kinds(limit: int, period: float) -> list[Quota]:
    steps = Steps.constant(limit)
    return [
        FixedWindow(steps, period),
        FixedWindow(steps, period, aligned=False),
        SlidingLog(steps, period),
        SlidingLog(steps, period, counts_refused=True),
        Gcra(Steps.constant(limit / period), burst=1),
    ]


@given(instants=TICKS, limit=LIMITS, period=PERIODS, offset=st.integers(0, 64).map(lambda tick: tick / 64))
def test_an_aligned_window_never_admits_more_than_its_limit_and_never_less_than_it_could(
    instants: list[float], limit: int, period: float, offset: float
) -> None:
    passed = admitted(FixedWindow(Steps.constant(limit), period, offset=offset), instants)
    for k in range(-70, 200):
        start = offset + k * period
        inside = sum(start <= now < start + period for now in passed)
        came = sum(start <= now < start + period for now in instants)
        assert inside == min(limit, came)


@given(instants=TICKS, limit=LIMITS, period=PERIODS)
def test_a_window_from_the_first_request_begins_with_an_admission(
    instants: list[float], limit: int, period: float
) -> None:
    passed = admitted(FixedWindow(Steps.constant(limit), period, aligned=False), instants)
    while passed:
        inside = [now for now in passed if now < passed[0] + period]
        assert len(inside) <= limit
        passed = passed[len(inside) :]


@given(instants=TICKS, limit=LIMITS, period=PERIODS, counts_refused=st.booleans())
def test_a_sliding_log_never_admits_more_than_its_limit_in_any_half_open_window(
    instants: list[float], limit: int, period: float, counts_refused: bool
) -> None:
    passed = admitted(SlidingLog(Steps.constant(limit), period, counts_refused), instants)
    assert all(sum(start <= now < start + period for now in passed) <= limit for start in passed)


@frozen
class Change:
    """So much is charged, or (below 0) given back, some ticks of 1/64 s after the change before."""

    ticks: int
    cost: float


CHANGES = st.builds(Change, st.sampled_from([0, 0, 1, 16, 100]), st.integers(-12, 16).map(lambda half: half / 2))


def seconds_until_it_fits(entries: list[Change], limit: Steps, period: float, now: float, cost: float) -> float:
    """A log by its definition: tried at every instant at which anything changes. ticks: of an entry's instant."""
    ends = [entry.ticks / 64 + period for entry in entries]
    for instant in sorted({now, *(at for at in (*ends, *limit.changes_after(now)) if at > now)}):
        used = sum(entry.cost for entry, end in zip(entries, ends, strict=True) if end > instant)
        if used + cost <= limit.at(instant):
            return instant - now
    return inf


@given(
    changes=st.lists(CHANGES, max_size=40),
    limits=st.lists(LIMITS, min_size=1, max_size=3),
    period=PERIODS,
    cost=st.sampled_from([0.5, 1.0, 3.0, 9.0]),
)
def test_a_log_to_which_costs_are_given_back_says_what_its_definition_says(
    changes: list[Change], limits: list[int], period: float, cost: float
) -> None:
    steps = Steps(tuple((4.0 * index, float(limit)) for index, limit in enumerate(limits)))
    log, entries, ticks = SlidingLog(steps, period), [], 0  # type: tuple[SlidingLog, list[Change], int]
    for change in changes:
        ticks += change.ticks
        log.take(ticks / 64, change.cost)
        entries.append(Change(ticks, change.cost))
        assert log.ask(ticks / 64, cost) == seconds_until_it_fits(entries, steps, period, ticks / 64, cost)
        in_use = sum(entry.cost for entry in entries if entry.ticks / 64 + period > ticks / 64)
        assert log.standing(ticks / 64).remaining == max(0.0, steps.at(ticks / 64) - in_use)


def test_a_log_that_counts_refusals_keeps_a_hammering_client_out() -> None:
    hammering = [tick / 4 for tick in range(80)]
    assert admitted(SlidingLog(Steps.constant(2), 1.0, counts_refused=True), hammering) == [0.0, 0.25]
    assert len(admitted(SlidingLog(Steps.constant(2), 1.0), hammering)) == 40


@given(instants=TICKS, rate=st.sampled_from([0.5, 1.0, 4.0, 16.0]), burst=LIMITS)
def test_a_bucket_admits_at_most_its_burst_and_its_rate_over_any_interval(
    instants: list[float], rate: float, burst: int
) -> None:
    passed = admitted(Gcra(Steps.constant(rate), burst), instants)
    for first, start in enumerate(passed):
        for last, end in enumerate(passed[first:], start=first):
            assert last - first + 1 <= burst + rate * (end - start) + 1e-3


@given(instants=TICKS, rate=st.sampled_from([0.5, 1.0, 4.0, 16.0]), burst=LIMITS)
def test_a_bucket_admits_exactly_what_a_level_that_refills_would(
    instants: list[float], rate: float, burst: int
) -> None:
    level, last, expected = float(burst), 0.0, []
    for now in instants:
        level, last = min(burst, level + rate * (now - last)), now
        if level >= 1:
            level -= 1
            expected.append(now)
    assert admitted(Gcra(Steps.constant(rate), burst), instants) == expected


@pytest.mark.parametrize("index", range(5))
@given(limit=st.integers(1, 600), period=st.sampled_from([0.1, 1.0, 60.0]), start=st.floats(0, 1e5))
def test_a_stream_paced_at_the_limit_passes_every_kind(index: int, limit: int, period: float, start: float) -> None:
    paced = [start + k * period / limit for k in range(3 * limit + 2)]
    assert admitted(kinds(limit, period)[index], paced) == paced


@given(instants=TICKS, limit=LIMITS, period=PERIODS, cost=st.sampled_from([0.5, 1.0]), index=st.sampled_from([0, 1, 2]))
def test_after_the_told_delay_an_attempt_passes_and_not_before(
    instants: list[float], limit: int, period: float, cost: float, index: int
) -> None:
    quota = kinds(limit, period)[index]
    admitted(quota, instants, cost)
    now = instants[-1] if instants else 0.0
    delay = quota.ask(now, cost)
    assert delay <= 0.01 or quota.ask(now + delay - 0.01, cost) > 0.0
    assert quota.ask(now + delay, cost) <= 1e-6


@given(instants=TICKS)
def test_a_bucket_whose_rate_steps_earns_by_the_rate_of_each_moment(instants: list[float]) -> None:
    passed = admitted(Gcra(Steps(((0.0, 4.0), (10.0, 0.0), (20.0, 1.0))), burst=2), instants)
    assert sum(now < 10 for now in passed) <= 2 + 40
    assert sum(10 <= now < 20 for now in passed) <= 2
    assert sum(now >= 20 for now in passed) <= 2 + 10


def test_a_delay_reaches_over_a_step_of_the_limit() -> None:
    stopped = Steps(((0.0, 1.0), (5.0, 0.0), (8.0, 2.0)))
    bucket = Gcra(stopped, burst=1)
    bucket.take(4.75, 1)
    # A quarter is earned until 5.0, the rest at 2 per second from 8.0 on.
    assert bucket.ask(4.75, 1) == pytest.approx(8.375 - 4.75)
    for window in (FixedWindow(stopped, 1.0), SlidingLog(stopped, 1.0)):
        assert window.ask(6.0, 1) == pytest.approx(2.0)


def test_what_can_never_pass_has_no_finite_delay() -> None:
    assert Gcra(Steps.constant(1.0), burst=3).ask(0.0, 4) == inf
    assert FixedWindow(Steps.constant(3), 1.0).ask(0.0, 4) == inf
    assert SlidingLog(Steps.constant(3), 1.0).ask(0.0, 4) == inf
    assert Gcra(Steps.constant(0.0), burst=1).ask(0.0, 1) == 0.0


@given(limits=st.lists(st.tuples(st.integers(1, 50), st.integers(0, 20)), min_size=1, unique_by=lambda pair: pair[0]))
def test_earning_and_its_inverse_agree(limits: list[tuple[int, int]]) -> None:
    steps = Steps(tuple((float(start), float(limit)) for start, limit in sorted(limits)))
    instants = [steps.pairs[0][0] + tick / 4 for tick in range(260)]
    earned = [steps.earned(now) for now in instants]
    assert all(earlier <= later for earlier, later in pairwise(earned))
    for now, units in zip(instants, earned, strict=True):
        assert steps.when_earned(units) <= now + 1e-9
        if steps.at(now) > 0:
            assert steps.when_earned(units + 1e-3) > now


@given(operations=st.lists(st.booleans()), limit=LIMITS)
def test_concurrency_is_never_above_its_limit(operations: list[bool], limit: int) -> None:
    quotas, inside = Quotas({"concurrency": Concurrency(limit)}), 0
    for arrives in operations:
        if arrives:
            refusal = quotas.take(0.0, {})
            assert (refusal is None) == (inside < limit)
            inside += refusal is None
        elif inside:
            quotas.leave()
            inside -= 1


def test_several_quotas_book_together_or_not_at_all() -> None:
    requests, tokens = Gcra(Steps.constant(1.0), burst=5), Gcra(Steps.constant(10.0), burst=100)
    quotas = Quotas({"requests": requests, "tokens": tokens, "concurrency": Concurrency(1)})
    assert quotas.take(0.0, {"tokens": 60}) is None
    before = quotas.standings(0.0)
    refusal = quotas.take(0.0, {"tokens": 60})
    assert refusal is not None
    assert quotas.standings(0.0) == before
    quotas.leave()
    refusal = quotas.take(0.0, {"tokens": 60})
    assert refusal is not None
    assert refusal.dimension == "tokens"
    assert refusal.delay == pytest.approx(2.0)
    assert quotas.take(2.0, {"tokens": 60}) is None


def test_standings_tell_what_is_left_and_when_it_comes_back() -> None:
    bucket = Gcra(Steps.constant(0.5), burst=30, period=60.0)
    window, log = FixedWindow(Steps.constant(5), 60.0, offset=10.0), SlidingLog(Steps.constant(5), 60.0)
    for quota in (bucket, window, log):
        quota.take(15.0, 2)
        assert quota.standing(15.0).remaining == (28 if quota is bucket else 3)
    assert bucket.standing(15.0).limit == 30
    assert bucket.standing(15.0).reset == pytest.approx(4.0)  # until it is full
    assert window.standing(15.0).reset == pytest.approx(55.0)  # until the window ends
    assert log.standing(25.0).reset == pytest.approx(50.0)  # until the oldest entry runs out
