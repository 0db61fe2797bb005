"""The limiter: laws as a state machine, then the decisions one by one."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from controller.adaptive import AdaptiveBucket
from controller.limiter import SLACK, Limiter
from controller.outcome import Answer, Completed, Failed, Kind, Outcome, Throttled
from controller.permits import Blocked, Booking, Wait
from policies.aimd import Aimd, AimdOptions
from policies.contract import LimitedBy, Reason, Scope
from policies.fixed import Fixed, FixedOptions

ONE = {"requests": 1.0}
OK = Completed(answer=Answer(text="yes", finish_reason="stop", model=None, usage=None, body={}))
REFUSED = Throttled(status=429, message="slow down")
LOST = Failed(kind=Kind.NETWORK, message="reset")
UNSENT = Failed(kind=Kind.CONNECT, message="refused", sent=False)
BAD = Failed(kind=Kind.PROMPT, message="too long", status=400)


def aimd_limiter(*, max_in_flight: int = 10, ceiling: float = float("inf"), **options: float) -> Limiter:
    policy = Aimd(AimdOptions(**options), seed=0, now=0.0)
    return Limiter({"requests": AdaptiveBucket(policy, 0.0, ceiling=ceiling)}, max_in_flight)


def fixed_limiter(rate: float, *, max_in_flight: int = 10) -> Limiter:
    policy = Fixed(FixedOptions(refill_rate=rate), seed=0, now=0.0)
    return Limiter({"requests": AdaptiveBucket(policy, 0.0)}, max_in_flight)


def admitted(limiter: Limiter, now: float, *, owner: str = "a", waited: Wait | None = None) -> Booking:
    answer = limiter.admit(ONE, now, owner=owner, waited=waited)
    assert isinstance(answer, Booking), answer
    return answer


def blocked(limiter: Limiter, now: float) -> Wait:
    answer = limiter.admit(ONE, now)
    assert isinstance(answer, Wait)
    return answer


class LimiterMachine(RuleBasedStateMachine):
    """Any order of ends, holds and losses: no permit leaks, no hold is broken, no probe is forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.limiter = aimd_limiter(max_in_flight=6)
        self.open: list[Booking] = []
        self.server_hold = float("-inf")

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.3, 1.0, 7.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def ask(self) -> None:
        answer = self.limiter.admit(ONE, self.now, owner=str(len(self.open)))
        if isinstance(answer, Booking):
            assert self.now >= self.server_hold, "nothing is sent during the server's hold"
            assert self.now >= self.limiter.held_until
            self.open.append(answer)
        elif answer.until < float("inf"):
            assert answer.until > self.now, "an instant to ask again that is now would spin"
        else:
            assert self.open, "waiting for a change with nothing open would wait for ever"

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 5))
    def accept(self, which: int) -> None:
        self.limiter.accept(self.open[which % len(self.open)], {}, self.now)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 5), outcome=st.sampled_from([OK, LOST, UNSENT, BAD]))
    def settle(self, which: int, outcome: Outcome) -> None:
        self.limiter.settle(self.open.pop(which % len(self.open)), outcome, self.now)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 5), retry_after=st.sampled_from([None, 0.5, 60.0]), scope=st.sampled_from(Scope))
    def refuse(self, which: int, retry_after: float | None, scope: Scope) -> None:
        outcome = Throttled(status=429, message="", retry_after=retry_after, scope=scope)
        settlement = self.limiter.settle(self.open.pop(which % len(self.open)), outcome, self.now)
        assert not settlement.spends_budget
        if retry_after is not None:
            self.server_hold = max(self.server_hold, self.now + retry_after)

    @invariant()
    def every_open_permit_is_counted_once(self) -> None:
        statistics = self.limiter.statistics(self.now)
        assert statistics.in_flight == len(self.open) <= statistics.max_in_flight

    @invariant()
    def the_level_never_exceeds_the_capacity(self) -> None:
        bucket = self.limiter.dimensions["requests"].bucket
        assert bucket.level <= bucket.capacity

    def teardown(self) -> None:
        """Liveness: once all is settled, somebody is admitted within the longest hold and the slowest refill."""
        for booking in self.open:
            self.limiter.settle(booking, LOST, self.now)
        held = max(self.limiter.held_until - self.now, 0.0)
        assert held <= 60.0 + SLACK + 1e-9  # an instant less an instant is a rounded number
        self.now += held + 1 / self.limiter.dimensions["requests"].bucket.refill_rate + 1e-6
        assert isinstance(self.limiter.admit(ONE, self.now), Booking)


class LongLimiterMachine(LimiterMachine):
    """The same, for longer."""


TestLimiterMachine = LimiterMachine.TestCase
TestLimiterMachine.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestLongLimiterMachine = pytest.mark.slow(LongLimiterMachine.TestCase)
TestLongLimiterMachine.settings = settings(max_examples=600, stateful_step_count=60, deadline=None)


def test_only_a_head_that_waited_for_its_bucket_is_limited_by_rate() -> None:
    limiter = fixed_limiter(1.0)
    assert admitted(limiter, 0.0).limited_by["requests"] is LimitedBy.APP
    wait = blocked(limiter, 0.0)
    assert (wait.by, wait.until) == (Blocked.RATE, 1.0)
    assert admitted(limiter, 1.0, waited=wait).limited_by["requests"] is LimitedBy.RATE


def test_a_rate_at_the_users_ceiling_is_limited_by_the_ceiling_and_does_not_grow() -> None:
    limiter = aimd_limiter(ceiling=2.0)
    admitted(limiter, 0.0)
    wait = blocked(limiter, 0.0)
    assert wait.until == pytest.approx(0.5)
    booking = admitted(limiter, 0.5, waited=wait)
    assert booking.limited_by["requests"] is LimitedBy.CEILING
    assert limiter.settle(booking, OK, 1.0).decisions == ()
    assert limiter.statistics(1.0).refill_rate == {"requests": 2.0}


def test_a_ceiling_below_the_floor_wins() -> None:
    assert aimd_limiter(ceiling=0.001).statistics(0.0).refill_rate == {"requests": 0.001}


def test_the_cap_on_attempts_in_flight_waits_for_a_change() -> None:
    limiter = fixed_limiter(1000.0, max_in_flight=1)
    booking = admitted(limiter, 0.0)
    wait = blocked(limiter, 5.0)
    assert (wait.by, wait.until) == (Blocked.IN_FLIGHT, float("inf"))
    limiter.settle(booking, OK, 5.0)
    assert admitted(limiter, 5.0, waited=wait).limited_by["requests"] is LimitedBy.IN_FLIGHT


def test_a_servers_hold_is_extended_and_never_shortened() -> None:
    limiter = fixed_limiter(1000.0)
    first, second = admitted(limiter, 0.0), admitted(limiter, 1.0)
    limiter.settle(first, Throttled(status=429, message="", retry_after=60.0), 1.0)
    limiter.settle(second, Throttled(status=429, message="", retry_after=2.0), 1.0)
    assert blocked(limiter, 1.0) == Wait(by=Blocked.HOLD, until=61.0 + SLACK)


def test_a_pause_ends_with_an_empty_bucket() -> None:
    limiter = fixed_limiter(1.0)
    limiter.settle(admitted(limiter, 0.0), Throttled(status=429, message="", retry_after=10.0), 0.0)
    wait = blocked(limiter, 10.0 + SLACK)
    assert wait.by is Blocked.RATE
    assert wait.until == pytest.approx(11.0 + SLACK)


def test_a_refused_attempt_gets_its_reservation_back_once() -> None:
    limiter = fixed_limiter(1.0)
    booking = limiter.admit({"requests": 50.0}, 0.0)
    assert isinstance(booking, Booking)
    assert limiter.dimensions["requests"].bucket.level == -49
    limiter.settle(booking, REFUSED, 0.0)
    assert limiter.dimensions["requests"].bucket.level == 0, "back, and emptied by the pause"


def test_a_refusal_without_a_hint_holds_even_if_the_policy_does_not() -> None:
    """The refused prompt is the first in the queue: it would be sent again at once, for ever."""
    limiter = fixed_limiter(1000.0)
    now, holds = 0.0, []
    for _ in range(9):
        limiter.settle(admitted(limiter, now), REFUSED, now)
        holds.append(limiter.held_until - now)
        now = limiter.held_until + 0.01
    assert holds == pytest.approx([0.3, 0.6, 1.2, 2.4, 4.8, 9.6, 19.2, 30, 30])
    limiter.settle(admitted(limiter, now), OK, now)
    limiter.settle(admitted(limiter, now + 1), REFUSED, now + 1)
    assert limiter.held_until - now - 1 == pytest.approx(0.3)


def test_answers_that_are_never_whole_hold_the_key_although_they_are_accepted() -> None:
    """A maintenance page with status 200, streams that are cut: the prompts are not to blame."""
    limiter = fixed_limiter(1000.0)
    html = Failed(kind=Kind.MALFORMED, message="HTML", status=200)
    budgets = []
    for number in range(6):
        now = max(float(number), limiter.held_until + 1.0)
        booking = admitted(limiter, now, owner=str(number))
        limiter.accept(booking, {}, now)
        budgets.append(limiter.settle(booking, html, now).spends_budget)
    assert budgets == [True] * 4 + [False] * 2
    now = limiter.held_until + 1.0
    probe = admitted(limiter, now)
    limiter.accept(probe, {}, now)
    assert blocked(limiter, now + 1).by is Blocked.PROBE, "accepted is not yet whole"
    limiter.settle(probe, OK, now + 2)
    assert limiter.statistics(now + 2).probing is False


def test_parts_that_will_be_continued_are_no_trouble() -> None:
    """A gateway that cuts every answer is slow to finish them, and no reason to send less."""
    limiter = fixed_limiter(1000.0)
    for n in range(20):
        booking = admitted(limiter, float(n))
        limiter.accept(booking, {}, n + 0.1)
        settled = limiter.settle(booking, Failed(kind=Kind.TRUNCATED, message="cut", status=200, kept=True), n + 0.2)
        assert settled.spends_budget
        assert limiter.held_until <= n + 0.2


def two_dimensions() -> Limiter:
    buckets = {}
    for name in ("requests", "tokens"):
        policy = Aimd(AimdOptions(start_rate=10.0), seed=0, now=0.0)
        buckets[name] = AdaptiveBucket(policy, 0.0)
    return Limiter(buckets, 10)


@pytest.mark.parametrize(("named", "cut"), [("tokens", "tokens"), ("requests", "requests"), (None, "requests")])
def test_a_refusal_cuts_the_dimension_it_names_and_the_others_only_hold(named: str | None, cut: str) -> None:
    limiter = two_dimensions()
    booking = limiter.admit({"requests": 1.0, "tokens": 1.0}, 0.0)
    assert isinstance(booking, Booking)
    limiter.settle(booking, Throttled(status=429, message="", dimension=named), 0.0)
    rates = limiter.statistics(0.0).refill_rate
    assert {name for name, rate in rates.items() if rate < 10.0} == {cut}
    assert rates[cut] == pytest.approx(7.0)


def test_an_unnamed_refusal_is_booked_on_the_dimension_that_held_the_attempt_back() -> None:
    limiter = two_dimensions()
    cost = {"requests": 0.1, "tokens": 1.0}
    assert isinstance(limiter.admit(cost, 0.0), Booking)
    wait = limiter.admit(cost, 0.0)
    assert isinstance(wait, Wait)
    assert wait.dimension == "tokens"
    booking = limiter.admit(cost, wait.until, waited=wait)
    assert isinstance(booking, Booking)
    assert booking.limited_by == {"requests": LimitedBy.OTHER, "tokens": LimitedBy.RATE}
    limiter.settle(booking, REFUSED, wait.until)
    assert limiter.statistics(1.0).refill_rate == {"requests": 10.0, "tokens": pytest.approx(7.0)}


def test_an_attempt_that_never_connected_is_refunded_and_a_lost_one_is_not() -> None:
    limiter = fixed_limiter(0.001)
    limiter.settle(admitted(limiter, 0.0), UNSENT, 0.0)
    limiter.settle(admitted(limiter, 0.0), LOST, 0.0)
    assert blocked(limiter, 0.0).by is Blocked.RATE


def test_while_probing_only_one_attempt_admitted_after_the_cut_is_open() -> None:
    limiter = aimd_limiter(start_rate=100.0)
    older = admitted(limiter, 0.0)
    decisions = limiter.settle(admitted(limiter, 1.0), REFUSED, 1.0).decisions
    assert [decision.reason for decision in decisions] == [Reason.CUT]
    now = limiter.held_until + 1.0
    probe = admitted(limiter, now)
    assert blocked(limiter, now + 1).by is Blocked.PROBE, "the older one is open too, but it does not count"
    limiter.accept(probe, {}, now + 1)
    admitted(limiter, now + 1)
    limiter.settle(older, OK, now + 2)


def test_a_cancelled_probe_frees_its_place() -> None:
    limiter = aimd_limiter(start_rate=100.0)
    limiter.settle(admitted(limiter, 0.0), REFUSED, 0.0)
    now = limiter.held_until + 1.0
    limiter.settle(admitted(limiter, now), Failed(kind=Kind.CANCELLED, message=""), now)
    admitted(limiter, now + 1.0)


def test_five_unknown_ends_in_a_row_hold_the_key_and_probe_doubling() -> None:
    limiter = fixed_limiter(1000.0)
    bookings = [admitted(limiter, float(n), owner=str(n)) for n in range(8)]
    budgets = [limiter.settle(booking, LOST, 10.0).spends_budget for booking in bookings]
    assert budgets == [True] * 4 + [False] * 4
    assert limiter.held_until == pytest.approx(10.3), "the last three were sent before the hold: no news"
    now, holds = limiter.held_until + 1.0, []
    for _ in range(9):
        booking = admitted(limiter, now, owner="b")
        assert blocked(limiter, now + 0.5).by is Blocked.PROBE
        limiter.settle(booking, LOST, now + 0.5)
        holds.append(limiter.held_until - now - 0.5)
        now = limiter.held_until + 1.0
    assert holds == pytest.approx([0.6, 1.2, 2.4, 4.8, 9.6, 19.2, 30, 30, 30])
    limiter.settle(admitted(limiter, now), OK, now)
    assert limiter.statistics(now).probing is False


def test_a_row_of_unknown_ends_of_one_prompt_alone_is_that_prompts_fault() -> None:
    limiter = fixed_limiter(1000.0)
    budgets = []
    for n in range(7):
        now = max(limiter.held_until, float(n)) + 1.0
        budgets.append(limiter.settle(admitted(limiter, now, owner="bad"), LOST, now).spends_budget)
    assert budgets == [True] * 7


def test_an_answer_about_the_prompt_is_no_sign_of_an_upstream_in_trouble() -> None:
    limiter = fixed_limiter(1000.0)
    for n in range(9):
        limiter.settle(admitted(limiter, float(n), owner=str(n)), BAD, float(n))
    assert limiter.held_until == float("-inf")


def test_a_permit_is_settled_once() -> None:
    limiter = fixed_limiter(1.0)
    booking = admitted(limiter, 0.0)
    limiter.settle(booking, OK, 1.0)
    with pytest.raises(AssertionError, match="settled twice"):
        limiter.settle(booking, OK, 1.0)
