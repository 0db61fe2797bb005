"""Requests and LLM tokens together: laws of what is charged, then ceilings, waking dimensions and blame one by one."""

from __future__ import annotations

import heapq
from itertools import pairwise

import pytest
from attrs import fields
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from controller.adaptive import AdaptiveBucket
from controller.bucket import SPREAD, TokenBucket
from controller.ceiling import GUARD, PERIOD, Ceiling
from controller.dormant import Dormant
from controller.gates import limiter_maker
from controller.knowledge import Lessons, Limit
from controller.limiter import Limiter
from controller.outcome import Answer, Completed, Failed, Kind, Outcome, Throttled
from controller.permits import Booking, Cost, Wait
from controller.rows import LONGEST_HOLD
from controller.settings import Settings
from policies.aimd import Aimd, AimdOptions
from policies.contract import Accepted, Admitted, Hints, LimitedBy, Policy, Reason, Remembered
from policies.fixed import Fixed, FixedOptions
from policies.recall import Recall
from policies.recall_state import RecallOptions

OK = Completed(answer=Answer(text="yes", finish_reason="stop", model=None, usage=None, body={}))
LOST = Failed(kind=Kind.NETWORK, message="reset")
REFUSED = Throttled(status=429, message="")
UNSENT = Failed(kind=Kind.CONNECT, message="refused", sent=False)
NAMES = ("requests", "tokens", "input_tokens", "output_tokens")


def fixed(rate: float, capacity: float = 1.0, unit: float = 1.0) -> AdaptiveBucket:
    return AdaptiveBucket(Fixed(FixedOptions(refill_rate=rate, capacity=capacity), seed=0, now=0.0), 0.0, unit=unit)


def aimd(now: float, remembered: Remembered | None = None) -> Policy:
    return Aimd(AimdOptions(), seed=0, now=now, remembered=remembered)


def recall(now: float, remembered: Remembered | None = None) -> Policy:
    return Recall(RecallOptions(), seed=0, now=now, remembered=remembered)


def cost_of(tokens: float) -> Cost:
    return {"requests": 1.0, "tokens": tokens, "input_tokens": tokens, "output_tokens": 1.0}


def admitted(limiter: Limiter, tokens: float, now: float, waited: Wait | None = None) -> Booking:
    answer = limiter.admit(cost_of(tokens), now, waited=waited)
    assert isinstance(answer, Booking), answer
    return answer


# -- laws


class ChargesMachine(RuleBasedStateMachine):
    """Any interleaving of admit, accept and every end: nothing is charged twice, forgotten or given back twice."""

    CEILING = 5000.0

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.limiter = Limiter(
            {"requests": fixed(50.0), "tokens": fixed(40.0, unit=100.0)},
            20,
            dormant={name: Dormant(aimd) for name in ("input_tokens", "output_tokens")},
            ceilings={"tokens": Ceiling(self.CEILING, 0.0)},
        )
        self.open: list[Booking] = []
        self.sent: list[tuple[float, float]] = []  # (instant, the most it may have cost)

    @rule(seconds=st.sampled_from([0.0, 0.02, 0.5, 3.0, 40.0, 60.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(tokens=st.sampled_from([1.0, 40.0, 100.0, 700.0, 4096.0, 9000.0]), patient=st.booleans())
    def ask(self, tokens: float, patient: bool) -> None:
        answer = self.limiter.admit(cost_of(tokens), self.now)
        for _ in range(50 if patient else 0):
            if isinstance(answer, Booking) or answer.until == float("inf"):
                break
            assert answer.until > self.now, "an instant to ask again that is now would spin"
            self.now = answer.until
            answer = self.limiter.admit(cost_of(tokens), self.now, waited=answer)
        if isinstance(answer, Booking):
            last_minute = [cost for at, cost in self.sent if at >= self.now - PERIOD]
            assert sum(last_minute) < 1e-6 or sum(last_minute) + tokens <= self.CEILING + 1e-6
            self.sent.append((self.now, tokens))
            self.open.append(answer)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 9), limit=st.sampled_from([None, 3000.0]))
    def accept(self, which: int, limit: float | None) -> None:
        hints = {"input_tokens": Hints(limit=limit, remaining=10.0, reset=1.0)} if limit else {}
        self.limiter.accept(self.open[which % len(self.open)], hints, self.now)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 9), used=st.sampled_from([None, 0.0, 0.2, 1.0]), lost=st.booleans())
    def settle(self, which: int, used: float | None, lost: bool) -> None:
        booking = self.open.pop(which % len(self.open))
        true_cost = None if used is None else cost_of(used * booking.cost["tokens"])
        self.limiter.settle(booking, LOST if lost else OK, self.now, true_cost=true_cost)
        self._never_more(booking, used)

    def _never_more(self, booking: Booking, used: float | None) -> None:
        reserved = booking.cost["tokens"]
        self.sent.remove((booking.admitted_at, reserved))
        self.sent.append((booking.admitted_at, reserved if used is None else used * reserved))

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 9))
    def never_send(self, which: int) -> None:
        booking = self.open.pop(which % len(self.open))
        self.limiter.settle(booking, UNSENT, self.now)
        self._never_more(booking, 0.0)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 9), named=st.sampled_from([None, *NAMES, "concurrency"]))
    def refuse(self, which: int, named: str | None) -> None:
        outcome = Throttled(status=429, message="", dimension=named)
        self.limiter.settle(self.open.pop(which % len(self.open)), outcome, self.now)

    @invariant()
    def what_is_charged_is_settled_refunded_or_in_flight(self) -> None:
        for name, dimension in self.limiter.dimensions.items():
            ledger = dimension.ledger
            in_flight = sum(booking.cost[name] for booking in self.open if name in booking.limited_by)
            assert ledger.charged == pytest.approx(ledger.settled + ledger.refunded + in_flight, abs=1e-6)

    @invariant()
    def no_refund_lifts_a_level_above_the_capacity(self) -> None:
        for dimension in self.limiter.dimensions.values():
            assert dimension.bucket.level <= dimension.bucket.capacity + 1e-9


TestCharges = ChargesMachine.TestCase
TestCharges.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)


class LongChargesMachine(ChargesMachine):
    """The same, for longer."""


TestLongCharges = pytest.mark.slow(LongChargesMachine.TestCase)
TestLongCharges.settings = settings(max_examples=500, stateful_step_count=60, deadline=None)


Stream = list[tuple[float, float, float]]  # reserved, used, seconds from admission to settlement
STREAMS = st.lists(
    st.tuples(st.floats(0.1, 20.0), st.floats(0.0, 1.0), st.floats(0.0, 30.0)).map(
        lambda drawn: (drawn[0], max(drawn[0] * drawn[1], 0.01), drawn[2])
    ),
    min_size=1,
    max_size=25,
)


def admissions(stream: Stream, rate: float, capacity: float) -> list[float]:
    """The instants at which a queue that never empties is admitted."""
    bucket, now, ends = TokenBucket(capacity, rate, level=1.0, updated_at=0.0), 0.0, list[tuple[float, float]]()
    instants = []
    for reserved, used, seconds in stream:
        while (delay := bucket.delay(reserved, now)) > 0:
            asked_again_at = now + delay
            if ends and ends[0][0] <= asked_again_at:
                now, refund = heapq.heappop(ends)
                bucket.refund(refund, now)
            else:
                now = asked_again_at
        bucket.take(reserved, now)
        heapq.heappush(ends, (now + seconds, reserved - used))
        instants.append(now)
    return instants


@given(stream=STREAMS, rate=st.floats(0.1, 10.0), capacity=st.floats(1.0, 10.0))
def test_a_refund_admits_nobody_earlier_than_if_the_true_cost_had_been_reserved(
    stream: Stream, rate: float, capacity: float
) -> None:
    exact = [(used, used, seconds) for _, used, seconds in stream]
    for with_refund, without in zip(admissions(stream, rate, capacity), admissions(exact, rate, capacity), strict=True):
        assert with_refund >= without - 0.01 / rate  # the bucket's own tolerance, once for each admission


@given(refunds=st.lists(st.floats(0.1, 50.0), min_size=1, max_size=20), rate=st.floats(0.1, 10.0))
def test_refunds_that_come_together_let_no_burst_go(refunds: list[float], rate: float) -> None:
    bucket = TokenBucket(1.0, rate, level=1.0, updated_at=0.0)
    for refund in refunds:
        bucket.refund(refund, 0.0)
    now, taken = 0.0, 0.0
    while now < SPREAD:
        now += bucket.delay(1.0, now)
        bucket.take(1.0, now)
        taken += 1.0
        assert taken <= 1.01 + rate * now + sum(refunds) * min(now / SPREAD, 1.0) + 1e-3 * taken
    assert bucket.level <= bucket.capacity


@given(costs=st.lists(st.floats(0.5, 2500.0), min_size=2, max_size=30), idle=st.floats(0.0, 200.0))
def test_in_no_minute_is_a_ceiling_exceeded_and_nobody_waits_longer_than_a_minute_or_the_debt_before(
    costs: list[float], idle: float
) -> None:
    ceiling, now, log = Ceiling(1000.0, 0.0), idle, list[tuple[float, float]]()
    for number, cost in enumerate(costs):
        asked_at = now
        while (delay := ceiling.delay(cost, now)) > 0:
            now += delay
        ceiling.take(cost, now)
        log.append((now, cost))
        before = costs[number - 1] if number else 0.0
        assert now - asked_at <= max(PERIOD + GUARD, before / (1000.0 / PERIOD) + 0.1) + 1e-6
    for at, _ in log:
        inside = [cost for when, cost in log if at <= when <= at + PERIOD]
        assert len(inside) == 1 or sum(inside) <= 1000.0 + 1e-6


@given(
    stream=st.lists(
        st.tuples(st.floats(0.1, 50.0), st.floats(0.0, 30.0), st.sampled_from((OK, LOST, UNSENT, REFUSED))),
        min_size=1,
        max_size=25,
    ),
    requests=st.floats(0.1, 10.0),
    tokens=st.floats(0.1, 10.0),
    in_flight=st.integers(1, 5),
)
def test_nobody_waits_longer_than_if_all_before_it_went_one_by_one(
    stream: list[tuple[float, float, Outcome]], requests: float, tokens: float, in_flight: int
) -> None:
    """Each at the pace of its dearest dimension, and to its end; a refused attempt, or one that failed, pauses all."""
    limiter = Limiter({"requests": fixed(requests), "tokens": fixed(tokens, capacity=5.0)}, in_flight)
    now, bound, waited = 0.0, 0.0, None
    ends: list[tuple[float, int, Booking, Outcome]] = []
    for number, (cost, seconds, outcome) in enumerate(stream):
        bound += max(1.0 / requests, cost / tokens)
        while isinstance(answer := limiter.admit({"requests": 1.0, "tokens": cost}, now, waited=waited), Wait):
            waited, now = answer, min(answer.until, ends[0][0] if ends else float("inf"))
            while ends and ends[0][0] <= now:
                _, _, booking, over = heapq.heappop(ends)
                limiter.settle(booking, over, now)
        assert now <= bound + 1e-6
        heapq.heappush(ends, (now + seconds, number, answer, outcome))
        bound += seconds + (LONGEST_HOLD if outcome is not OK else 0.0)


# -- seeds that other designs hang on


def served_at(limiter: Limiter, tokens: float, count: int) -> list[float]:
    now, waited, instants = 0.0, None, list[float]()
    while len(instants) < count:
        answer = limiter.admit({"tokens": tokens}, now, waited=waited)
        if isinstance(answer, Wait):
            waited, now = answer, answer.until
            continue
        instants.append(now)
        limiter.settle(answer, OK, now)
    return instants


def test_a_cost_of_4096_passes_a_capacity_of_4_and_is_paid_off_afterwards() -> None:
    instants = served_at(Limiter({"tokens": fixed(512.0, capacity=4.0)}, 10), 4096.0, 5)
    assert instants[0] < 0.01
    assert [later - sooner for sooner, later in pairwise(instants)] == pytest.approx([8.0] * 4, abs=0.01)


def test_contexts_of_60_000_pass_a_capacity_of_200_000_at_4_000_a_second() -> None:
    instants = served_at(Limiter({"tokens": fixed(4000.0, capacity=200_000.0)}, 10), 60_000.0, 20)
    assert [later - sooner for sooner, later in pairwise(instants)] == pytest.approx([15.0] * 19)


def test_a_burst_mode_is_an_option_of_the_policy() -> None:
    """200,000 saved up, 4,000 a second, contexts of 60,000, as the costs of one dimension."""
    for policy, rate in (("fixed", "refill_rate"), ("aimd", "start_rate")):
        options = ("capacity=200000", f"{rate}=4000")
        limiter = limiter_maker(Settings(policy=policy, policy_option=options))(0.0, Lessons(), {})
        bucket = limiter.dimensions["requests"].bucket
        assert (bucket.capacity, bucket.refill_rate) == (200_000.0, 4000.0)
        now, waited, instants = 60.0, None, list[float]()  # an idle minute fills it
        while len(instants) < 6:
            answer = limiter.admit(dict.fromkeys(NAMES, 60_000.0), now, waited=waited)
            if isinstance(answer, Wait):
                waited, now = answer, answer.until
                continue
            instants.append(now)
        assert instants == pytest.approx([60.0, 60.0, 60.0, 70.0, 85.0, 100.0], abs=0.01)


def test_a_small_prompt_behind_a_huge_one_waits_for_the_debt_and_no_longer() -> None:
    limiter = Limiter({"requests": fixed(100.0), "tokens": fixed(10.0, unit=100.0)}, 10)
    admitted(limiter, 100_000.0, 0.0)
    wait = limiter.admit(cost_of(100.0), 0.0)
    assert isinstance(wait, Wait)
    assert wait.dimension == "tokens"
    assert wait.until == pytest.approx(100.0)
    admitted(limiter, 100.0, wait.until)


# -- dimensions that wake


def sleepy(make_policy: object = recall) -> Limiter:
    dormant = {name: Dormant(make_policy) for name in NAMES[1:]}  # type: ignore[arg-type]  # one of the two above
    return Limiter({"requests": fixed(1000.0, capacity=1000.0)}, 1000, dormant=dormant)


def test_without_a_sign_of_a_limit_tokens_limit_nothing() -> None:
    limiter = sleepy()
    limiter.dimensions["requests"].bucket.level = 1000.0
    for _ in range(100):
        limiter.settle(admitted(limiter, 1e6, 0.0), OK, 0.0)
    assert list(limiter.dimensions) == ["requests"]


def test_a_stated_limit_is_used_at_once_in_units_of_a_typical_cost() -> None:
    limiter = sleepy()
    for number in range(5):
        booking = admitted(limiter, 1000.0, float(number))
    limiter.accept(booking, {"tokens": Hints(limit=30_000.0, remaining=6_000.0, reset=48.0)}, 5.0)
    tokens = limiter.dimensions["tokens"]
    assert tokens.unit == 1000.0
    assert limiter.statistics(5.0).refill_rate["tokens"] == pytest.approx(500.0, rel=0.02)
    admitted(limiter, 1000.0, 5.0)
    wait = limiter.admit(cost_of(1000.0), 5.0)
    assert isinstance(wait, Wait)
    assert wait.dimension == "tokens"
    assert wait.until == pytest.approx(7.0, abs=0.1)


def test_the_tightest_limit_that_anthropic_repeats_as_tokens_wakes_nothing_of_its_own() -> None:
    limiter, told = sleepy(), Hints(limit=8000.0, remaining=8000.0, reset=0.0)
    limiter.accept(admitted(limiter, 10.0, 0.0), {"tokens": told, "output_tokens": told}, 1.0)
    assert set(limiter.dimensions) == {"requests", "output_tokens"}


@pytest.mark.parametrize("make_policy", [recall, aimd])
def test_a_refusal_that_names_a_sleeping_dimension_measures_its_limit(make_policy: object) -> None:
    limiter = sleepy(make_policy)
    taken = [admitted(limiter, 1000.0, number / 10) for number in range(30)]
    late = [admitted(limiter, 1000.0, 3.0) for _ in range(3)]
    refusal = Throttled(status=429, message="", dimension="tokens", retry_after=1.0)
    for booking in late:
        limiter.settle(booking, refusal, 3.1)
    rate = limiter.statistics(3.1).refill_rate["tokens"]
    assert 0.5 * 10_645 <= rate <= 10_645, "33,000 in 3.1 s were too much"
    for booking in taken:
        limiter.accept(booking, {}, 3.5)
    assert limiter.statistics(3.5).refill_rate["tokens"] == rate, "those from before teach it nothing"
    assert limiter.statistics(3.5).refill_rate["requests"] == 1000.0


# -- who is to blame


def two(requests_limit: float, tokens_limit: float, unit: float = 100.0) -> Limiter:
    known = [Remembered(limit=limit, age=0.0) for limit in (requests_limit, tokens_limit)]
    return Limiter(
        {
            "requests": AdaptiveBucket(aimd(0.0, known[0]), 0.0),
            "tokens": AdaptiveBucket(aimd(0.0, known[1]), 0.0, unit=unit),
        },
        1000,
    )


@pytest.mark.parametrize(("tokens", "blamed"), [(10.0, "requests"), (300.0, "tokens")])
def test_an_unnamed_refusal_is_booked_where_most_of_the_learned_limit_is_in_use(tokens: float, blamed: str) -> None:
    limiter, now, waited, booking = two(10.0, 10.0), 0.0, None, None
    while now < 60.0:
        answer = limiter.admit(cost_of(tokens), now, waited=waited)
        if isinstance(answer, Wait):
            waited, now = answer, answer.until
            continue
        if booking is not None:
            limiter.settle(booking, Failed(kind=Kind.PROMPT, message=""), now)
        booking = answer
    assert booking is not None
    before = limiter.statistics(now).refill_rate
    decisions = limiter.settle(booking, Throttled(status=429, message=""), now).decisions
    assert [each.dimension for each in decisions if each.reason is Reason.CUT] == [blamed]
    after = limiter.statistics(now).refill_rate
    assert {name for name in after if after[name] < before[name]} == {blamed}


def test_only_the_dimension_that_binds_may_grow() -> None:
    limiter = two(10.0, 10.0)
    admitted(limiter, 300.0, 0.1)
    wait = limiter.admit(cost_of(300.0), 0.1)
    assert isinstance(wait, Wait)
    booking = admitted(limiter, 300.0, wait.until, waited=wait)
    assert booking.limited_by == {"requests": LimitedBy.APP, "tokens": LimitedBy.RATE}
    before = limiter.statistics(wait.until).refill_rate
    limiter.accept(booking, {}, wait.until + 0.1)
    after = limiter.statistics(wait.until).refill_rate
    assert after["requests"] == before["requests"]
    assert after["tokens"] > before["tokens"]


def test_headroom_uses_a_share_of_the_stated_limit() -> None:
    limiter = Limiter({"requests": AdaptiveBucket(recall(0.0), 0.0, headroom=0.8)}, 10)
    booking = limiter.admit({"requests": 1.0}, 0.0)
    assert isinstance(booking, Booking)
    limiter.accept(booking, {"requests": Hints(limit=600.0, remaining=599.0, reset=0.1)}, 1.0)
    assert isinstance(limiter.admit({"requests": 1.0}, 1.0), Booking)
    wait = limiter.admit({"requests": 1.0}, 1.0)
    assert isinstance(wait, Wait)
    booking = limiter.admit({"requests": 1.0}, wait.until, waited=wait)
    assert isinstance(booking, Booking)
    limiter.accept(booking, {}, wait.until)
    assert limiter.statistics(wait.until).refill_rate["requests"] == pytest.approx(8.0)
    wait = limiter.admit({"requests": 1.0}, wait.until)
    assert isinstance(wait, Wait)
    assert wait.at_ceiling
    fixed_one = AdaptiveBucket(Fixed(FixedOptions(refill_rate=100.0), seed=0, now=0.0), 0.0, headroom=0.8)
    limiter = Limiter({"requests": fixed_one}, 10)
    booking = limiter.admit({"requests": 1.0}, 0.0)
    assert isinstance(booking, Booking)
    limiter.accept(booking, {"requests": Hints(limit=600.0)}, 1.0)
    assert limiter.statistics(1.0).refill_rate["requests"] == pytest.approx(8.0)


# -- concurrency


def test_a_limit_of_four_at_once_is_found_and_cuts_no_rate() -> None:
    limiter = Limiter({"requests": fixed(1000.0)}, 64)
    crowded = Throttled(status=429, message="too many concurrent requests", dimension="concurrency")
    now, order, inside, refused, done, waited = 0.0, 0, 0, 0, 0, None
    late = 0
    events: list[tuple[float, int, bool, Booking]] = []  # True: it is over
    while now < 600.0:
        answer = limiter.admit({"requests": 1.0}, now, waited=waited)
        if isinstance(answer, Wait):
            waited = answer
            at = min(answer.until, events[0][0] if events else float("inf"))
            now = at
            while events and events[0][0] <= now:
                _, _, over, booking = heapq.heappop(events)
                if over:
                    inside, done = inside - 1, done + 1
                    limiter.settle(booking, OK, now)
                elif not booking.accepted:
                    limiter.settle(booking, crowded, now)
            continue
        order += 1
        if inside < 4:
            inside += 1
            limiter.accept(answer, {}, now)
            heapq.heappush(events, (now + 1.0 + 0.01 * (order % 7), order, True, answer))
        else:
            refused, late = refused + 1, late + (now > 1.0)
            heapq.heappush(events, (now + 0.1, order, False, answer))
        assert now < 1.0 or limiter.statistics(now).in_flight <= 5
    assert limiter.room.limit in (4, 5)
    assert done >= 0.95 * 600.0 * 4 / 1.03
    assert refused - late <= 64, "of the start: no more than were sent at once"
    assert late <= 0.01 * done
    assert limiter.statistics(now).refill_rate == {"requests": 1000.0}


def test_a_prompt_that_is_too_large_for_the_upstream_holds_up_nobody_behind_it() -> None:
    tokens = AdaptiveBucket(Fixed(FixedOptions(refill_rate=500.0, capacity=1.0), seed=0, now=0.0), 0.0)
    limiter = Limiter(
        {"requests": AdaptiveBucket(Fixed(FixedOptions(refill_rate=100.0), seed=0, now=0.0), 0.0), "tokens": tokens}, 10
    )
    booking = admitted(limiter, 1_200_000.0, 0.0)
    turned_away = {"tokens": 0.0, "input_tokens": 0.0, "output_tokens": 0.0}
    limiter.settle(booking, Failed(kind=Kind.PROMPT, message="too large"), 0.1, true_cost=turned_away)
    wait = limiter.admit(cost_of(100.0), 3.0)
    assert isinstance(wait, Booking), wait
    assert tokens.worth == 1.0, "it says nothing of what reservations are worth"


class Forgetful(Fixed):
    """A stranger's policy that does not bear to be told of earlier runs."""

    def __init__(self, options: FixedOptions, *, seed: int, now: float, remembered: Remembered | None = None) -> None:
        if remembered is not None:
            raise KeyError("earlier")
        super().__init__(options, seed=seed, now=now)


def test_a_policy_that_does_not_bear_what_earlier_runs_learned_is_replaced_and_its_fault_is_told() -> None:
    make = limiter_maker(Settings(policy=f"{__name__}:Forgetful", policy_option=("refill_rate=7",)))
    lessons = Lessons(limits={"requests": Limit(limit=3.0, unit=1.0, at=0.0)})
    dimension = make(1.0, lessons, {}).dimensions["requests"]
    assert "earlier" in (dimension.fault or "")
    event = Admitted(
        now=1.0, permit=0, admitted_at=1.0, cost=1.0, limited_by=LimitedBy.APP, in_flight=1, refill_rate=1.0
    )
    dimension.tell(event)
    told = {field.name: getattr(event, field.name) for field in fields(Admitted)}
    assert dimension.tell(Accepted(**told)) is Reason.FALLBACK, "the run says so"
    assert make(1.0, Lessons(), {}).statistics(1.0).refill_rate["requests"] == 7.0
