"""The header-driven law: what an allowance is worth under each meaning of reset, and what the policy makes of it."""

from __future__ import annotations

import math

import pytest

from policies.allowance import Allowance, Style
from policies.contract import Accepted, Admitted, Hints, LimitedBy, Pace, Reason, Refused, Scope
from policies.headers import Headers, HeadersOptions
from simulations.closed_loop import simulate_policy
from simulations.quota import FixedWindow, Gcra, Quota
from simulations.scenario_files import load_scenario
from simulations.sliding_log import SlidingLog
from simulations.steps import Steps

START = 1000.0
LATE = 0.5  # s; an answer's delay


def quota(kind: str) -> Quota:
    match kind:
        case "window":
            return FixedWindow(limit=Steps.constant(360), period=60, offset=START + 17)
        case "sliding":
            return SlidingLog(limit=Steps.constant(360), period=60)
        case _:
            return Gcra(limit=Steps.constant(6), burst=360)


class Driver:
    """Sends to a hidden quota at the policy's pace, answers coming LATE, with the headers that the quota announces."""

    def __init__(self, policy: Headers, hidden: Quota) -> None:
        self.policy, self.hidden, self.now, self.permit = policy, hidden, START, -1
        self.answers: list[tuple[float, Accepted | Refused]] = []
        self.refused = 0

    def run(self, until: float, told: bool = True) -> None:
        while self.now < until:
            going_at = max(self.policy.pace.held_until, self.now)
            while self.answers and self.answers[0][0] <= going_at:
                self.policy.on(self.answers.pop(0)[1])
                going_at = max(self.policy.pace.held_until, self.now)
            self.now = going_at
            self._send(told)
            self.now += 1 / self.policy.pace.refill_rate

    def _send(self, told: bool) -> None:
        self.permit += 1
        self.policy.on(admitted(self.now, self.permit))
        passes = self.hidden.ask(self.now, 1.0) <= 0
        if passes:
            self.hidden.take(self.now, 1.0)
        self.refused += not passes
        standing = self.hidden.standing(self.now)
        hints = Hints(limit=360.0, remaining=float(int(standing.remaining)), reset=standing.reset) if told else Hints()
        make = accepted if passes else refused
        self.answers.append((self.now + LATE, make(self.now + LATE, self.permit, hints, self.now)))


def admitted(now: float, permit: int, limited_by: LimitedBy = LimitedBy.RATE) -> Admitted:
    return Admitted(**_facts(now, permit, now, limited_by))  # type: ignore[arg-type]


def accepted(
    now: float, permit: int, hints: Hints, admitted_at: float, limited_by: LimitedBy = LimitedBy.RATE
) -> Accepted:
    return Accepted(**_facts(now, permit, admitted_at, limited_by), hints=hints)  # type: ignore[arg-type]


def refused(now: float, permit: int, hints: Hints, admitted_at: float) -> Refused:
    facts = _facts(now, permit, admitted_at, LimitedBy.RATE)
    return Refused(**facts, hints=hints, scope=Scope.UNKNOWN)  # type: ignore[arg-type]


def _facts(now: float, permit: int, admitted_at: float, limited_by: LimitedBy) -> dict[str, object]:
    return {
        "now": now,
        "permit": permit,
        "admitted_at": admitted_at,
        "cost": 1.0,
        "limited_by": limited_by,
        "in_flight": 1,
        "refill_rate": 6.0,
    }


def headers(**options: float) -> Headers:
    return Headers(HeadersOptions(**options), seed=0, now=START)


def answer(policy: Headers, permit: int, hints: Hints, now: float, limited_by: LimitedBy = LimitedBy.RATE) -> Pace:
    policy.on(admitted(now - LATE, permit, limited_by))
    return policy.on(accepted(now, permit, hints, now - LATE, limited_by))


# -- the three meanings of reset


@pytest.mark.parametrize(
    ("kind", "style"), [("window", Style.WINDOW), ("sliding", Style.SLIDING), ("gcra", Style.BUCKET)]
)
def test_the_meaning_of_reset_is_found_out_and_nothing_is_refused_on_the_way(kind: str, style: Style) -> None:
    driver = Driver(headers(), quota(kind))
    driver.run(START + 200)
    assert driver.policy.allowance.style is style
    assert driver.refused == 0


def test_a_sliding_log_looks_like_a_window_until_the_first_word_after_its_end() -> None:
    driver = Driver(headers(), quota("sliding"))
    styles = []
    for until in (START + 50, START + 62):
        driver.run(until)
        styles.append(driver.policy.allowance.style)
    assert styles == [Style.WINDOW, Style.SLIDING]


def test_a_daily_bucket_is_known_by_its_arithmetic() -> None:
    allowance = Allowance(60.0)
    for permit in range(1, 6):
        now = START + 2 * permit
        told = Hints(limit=200.0, remaining=200.0 - permit, reset=432.0 * permit - 2 * permit)
        allowance.spend(admitted(now - LATE, permit))
        allowance.hear(accepted(now, permit, told, now - LATE))
    assert (allowance.style, allowance.period) == (Style.BUCKET, 86400.0)
    assert allowance.fair == pytest.approx(200 / 86400)


def test_a_period_that_is_told_is_believed() -> None:
    allowance = Allowance(60.0)
    allowance.hear(accepted(START, 0, Hints(limit=10.0, remaining=9.0, reset=0.5, period=1.0), START - LATE))
    assert allowance.fair == 10.0


def test_what_was_admitted_after_the_answering_attempt_is_subtracted() -> None:
    allowance = Allowance(60.0)
    for permit in range(5):
        allowance.spend(admitted(START, permit))
    allowance.hear(accepted(START + LATE, 2, Hints(limit=360.0, remaining=100.0, reset=30.0), START))
    assert allowance.left == 98.0, "permits 3 and 4 are not in it"


def test_an_older_answer_that_comes_later_is_not_believed() -> None:
    allowance = Allowance(60.0)
    told = Hints(limit=360.0, remaining=100.0, reset=30.0)
    assert allowance.hear(accepted(START, 5, told, START - LATE))
    assert not allowance.hear(accepted(START, 4, Hints(limit=360.0, remaining=300.0, reset=30.0), START - LATE))
    assert allowance.left == 100.0


@pytest.mark.parametrize("odd", [math.nan, -1.0, math.inf, 1e300, None])
def test_odd_numbers_are_no_hints(odd: float | None) -> None:
    allowance = Allowance(60.0)
    assert not allowance.hear(accepted(START, 0, Hints(limit=360.0, remaining=odd, reset=1.0), START - LATE))
    assert not allowance.hear(accepted(START, 0, Hints(limit=360.0, remaining=1.0, reset=odd), START - LATE))


# -- what the policy makes of it


def test_the_rest_of_a_window_is_spent_by_a_second_before_its_end() -> None:
    driver = Driver(headers(), quota("window"))
    driver.run(START + 20)
    driver.run(START + 17 + 60 - 1.5)
    left = driver.hidden.standing(driver.now).remaining
    assert left < 10
    assert driver.refused == 0


def test_with_nothing_left_it_holds_until_the_reset_without_a_refusal() -> None:
    policy = headers()
    pace = answer(policy, 0, Hints(limit=360.0, remaining=0.0, reset=20.0), START + 1)
    assert pace.held_until == START + 1 + 20
    assert pace.drain


def test_it_holds_no_longer_than_it_is_allowed_to() -> None:
    policy = headers(longest_hold=60.0)
    assert answer(policy, 0, Hints(limit=5.0, remaining=0.0, reset=40000.0), START).held_until == START + 60


def test_the_rate_at_most_doubles_for_one_answer_and_only_for_one_that_it_limited() -> None:
    policy = headers()
    told = Hints(limit=60000.0, remaining=59999.0, reset=59.0)
    assert answer(policy, 0, told, START + 1, LimitedBy.APP).refill_rate == 5.0
    assert answer(policy, 1, told, START + 2).refill_rate == 10.0


def test_without_hints_it_is_the_aimd() -> None:
    driver = Driver(headers(), quota("gcra"))
    driver.run(START + 4, told=False)
    assert driver.policy.pace.refill_rate > 10
    assert driver.policy.pace.reason is Reason.SLOW_START


def test_when_the_hints_stop_it_goes_on_below_what_they_last_allowed() -> None:
    driver = Driver(headers(fresh_for=30.0), quota("window"))
    driver.run(START + 100)
    steady = driver.policy.pace.refill_rate
    driver.run(START + 135, told=False)
    assert driver.policy.pace.refill_rate == pytest.approx(0.7 * steady, rel=0.1)


def test_three_refusals_in_spite_of_a_promise_bring_in_the_aimd() -> None:
    policy = headers(start_rate=6.0)
    told, now, rates = Hints(limit=360.0, remaining=300.0, reset=50.0), START, []
    for epoch in range(3):
        now += 1.0
        answer(policy, 2 * epoch, told, now)
        policy.on(admitted(now, 2 * epoch + 1))
        rates.append(policy.on(refused(now + 0.1, 2 * epoch + 1, Hints(), now)).refill_rate)
    assert rates[1] == rates[0]
    assert rates[2] == pytest.approx(0.7 * 6.0)


@pytest.mark.parametrize(
    ("scenario", "goodput", "refused_share"),
    [("u1_fixed_window", 99.5, 0.0), ("u2_sliding_log", 98.2, 0.0), ("u3_gcra", 99.5, 0.0), ("u5_steps", 99.0, 0.02)],
)
@pytest.mark.slow
def test_figures_with_headers_in_the_closed_loop(scenario: str, goodput: float, refused_share: float) -> None:
    figures = simulate_policy(load_scenario(scenario), "headers", "headers", seed=1)
    reached, share = figures["goodput"], figures["refused"]
    assert reached is not None
    assert share is not None
    assert reached >= goodput
    assert share <= refused_share


def test_a_snapshot_of_another_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="snapshot"):
        Headers.restore(HeadersOptions(), {"aimd": 1}, seed=0, now=START)
