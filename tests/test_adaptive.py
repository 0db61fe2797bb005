"""The border to a policy that may be a stranger's code: its faults end here, and sending goes on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Self

import pytest
from attrs import evolve, fields, frozen
from hypothesis import given
from hypothesis import strategies as st

from controller.adaptive import FLOOR, AdaptiveBucket
from controller.limiter import Limiter
from controller.outcome import Answer, Completed, Failed, Kind, Throttled
from controller.permits import Blocked, Booking, Wait
from policies.aimd import Aimd, AimdOptions
from policies.contract import JSON, Accepted, Admitted, Event, Hints, LimitedBy, Pace, Reason, Refused, Settled, Unknown
from policies.fixed import Fixed, FixedOptions

GOOD = Pace(refill_rate=20.0, capacity=1.5)
OK = Completed(answer=Answer(text="", finish_reason="stop", model=None, usage=None, body={}))
REFUSED = Throttled(status=429, message="")
LOST = Failed(kind=Kind.NETWORK, message="")
ONE = {"requests": 1.0}


@frozen
class NoOptions:
    """None."""


class Scripted:
    """Answers what it is given, in turn, and raises what is an exception."""

    options_class: ClassVar[type] = NoOptions
    claims: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, *answers: object, pace: Pace = GOOD) -> None:
        self.answers, self.pace = list(answers), pace
        self.heard = 0

    def on(self, event: Event) -> Pace:
        del event
        self.heard += 1
        answer = self.answers.pop(0) if self.answers else self.pace
        if isinstance(answer, Exception):
            raise answer
        self.pace = answer  # type: ignore[assignment]  # a policy that answers nonsense is what this is for
        return self.pace

    def snapshot(self, now: float) -> dict[str, JSON]:
        del now
        return {}

    @classmethod
    def restore(cls, options: object, snapshot: Mapping[str, JSON], *, seed: int, now: float) -> Self:
        raise NotImplementedError


def event(kind: type[Event], permit: int = 0, now: float = 10.0, **more: object) -> Event:
    facts: dict[str, object] = {
        "now": now,
        "permit": permit,
        "admitted_at": now,
        "cost": 1.0,
        "limited_by": LimitedBy.RATE,
        "in_flight": 1,
        "refill_rate": 20.0,
    }
    return kind(**facts, **more)  # type: ignore[arg-type]  # mypy can't follow the dict


ADMITTED, ACCEPTED, REFUSAL = event(Admitted), event(Accepted), event(Refused)
BAD = [
    evolve(GOOD, refill_rate=math.nan),
    evolve(GOOD, refill_rate=math.inf),
    evolve(GOOD, refill_rate=0.0),
    evolve(GOOD, refill_rate=-1.0),
    evolve(GOOD, refill_rate="fast"),  # type: ignore[arg-type]  # no type checker stands between us and a plug-in
    evolve(GOOD, refill_rate=10**400),  # no float holds it
    evolve(GOOD, capacity=10**400),
    evolve(GOOD, held_until=10**400),
    evolve(GOOD, learned_limit=10**400),
    evolve(GOOD, capacity=0.5),
    evolve(GOOD, capacity=math.nan),
    evolve(GOOD, held_until=math.nan),
    evolve(GOOD, held_until=math.inf),
    evolve(GOOD, learned_limit=math.nan),
    evolve(GOOD, learned_limit="fast"),  # type: ignore[arg-type]
    evolve(GOOD, reason="mood"),  # type: ignore[arg-type]
    evolve(GOOD, unresolved_limit=math.nan),  # type: ignore[arg-type]  # as above
    None,
    7.5,
    ValueError("two\nlines"),
    ZeroDivisionError(),
    RecursionError("deep"),
]


@pytest.mark.parametrize("answer", BAD, ids=str)
def test_a_policy_that_fails_leaves_its_last_good_pace(answer: object) -> None:
    bucket = AdaptiveBucket(Scripted(answer), 0.0)
    assert bucket.tell(ACCEPTED) is Reason.FALLBACK
    assert bucket.bucket.refill_rate == pytest.approx(20.0)
    assert bucket.fault is not None
    assert bucket.fault.startswith("Scripted: ")
    assert "\n" not in bucket.fault


def test_the_fault_is_told_once_and_the_policy_is_never_asked_again() -> None:
    policy = Scripted(ZeroDivisionError("oh"))
    bucket = AdaptiveBucket(policy, 0.0)
    told = [bucket.tell(event(Accepted, n, 10.0 + n)) for n in range(5)]
    assert told.count(Reason.FALLBACK) == 1
    assert policy.heard == 1
    assert bucket.fault == "Scripted: ZeroDivisionError: oh"


class Spoils(Scripted):
    """It changes its events before it does what it was told to."""

    def __init__(self, name: str, value: object, *answers: object) -> None:
        super().__init__(*answers)
        self.name, self.value = name, value

    def on(self, event: Event) -> Pace:
        setattr(event, self.name, self.value)
        return super().on(event)


@pytest.mark.parametrize("kind", [Admitted, Accepted, Refused])
def test_a_policy_that_spoils_an_event_and_fails_leaves_its_last_good_pace(kind: type[Event]) -> None:
    bucket = AdaptiveBucket(Spoils("permit", None, ZeroDivisionError()), 0.0)
    bucket.tell(event(kind))
    assert bucket.fault is not None
    assert bucket.tell(event(Unknown)) is (Reason.FALLBACK if kind is Admitted else None)
    assert 0 < bucket.bucket.refill_rate <= 20.0


def test_what_a_policy_makes_of_its_event_is_not_what_is_logged() -> None:
    faster = evolve(GOOD, refill_rate=21.0)
    limiter = Limiter({"requests": AdaptiveBucket(Spoils("now", 1e6, GOOD, faster), 0.0)}, max_in_flight=8)
    booking = limiter.admit(ONE, 10.0)
    assert isinstance(booking, Booking)
    (decision,) = limiter.accept(booking, {}, 11.0)
    assert (decision.now, decision.new) == (11.0, 21.0)
    assert limiter.dimensions["requests"].bucket.updated_at == 11.0


def test_whether_a_rate_was_tested_is_not_for_the_policy_to_say() -> None:
    bucket = AdaptiveBucket(Spoils("limited_by", LimitedBy.APP), 0.0)
    bucket.tell(event(Accepted))
    assert bucket.tested_at == 10.0


def test_a_fault_at_an_admission_is_told_with_the_next_event_that_is_logged() -> None:
    bucket = AdaptiveBucket(Scripted(ZeroDivisionError()), 0.0)
    assert bucket.tell(ADMITTED) is not Reason.FALLBACK, "what an admission leads to is not logged"
    assert bucket.tell(event(Unknown)) is Reason.FALLBACK


def test_a_refusal_that_is_too_much_for_a_policy_is_still_a_refusal() -> None:
    bucket = AdaptiveBucket(Scripted(ZeroDivisionError()), 0.0)
    assert bucket.tell(REFUSAL) is Reason.FALLBACK
    assert bucket.bucket.refill_rate == pytest.approx(0.7 * 20.0)
    assert bucket.pace.held_until == 11.0
    assert bucket.pace.unresolved_limit == 1


def test_after_a_fault_the_rate_recovers_from_cuts_and_never_exceeds_the_last_good_one() -> None:
    bucket = AdaptiveBucket(Scripted(ZeroDivisionError()), 0.0)
    bucket.tell(REFUSAL)
    rates, now = [], 20.0
    for permit in range(1, 5000):
        bucket.tell(event(Admitted, permit, now))
        bucket.tell(event(Accepted, permit, now))
        rates.append(bucket.bucket.refill_rate)
        now += 1 / rates[-1]
    assert rates == sorted(rates)
    assert rates[0] == pytest.approx(14.0)
    assert rates[-1] == 20.0
    assert bucket.at_ceiling


def test_a_last_good_pace_below_the_floor_goes_on_at_the_floor() -> None:
    bucket = AdaptiveBucket(Scripted(evolve(GOOD, refill_rate=1e-6), ZeroDivisionError()), 0.0)
    bucket.tell(ACCEPTED)
    bucket.tell(ACCEPTED)
    assert bucket.fault is not None
    assert bucket.bucket.refill_rate == pytest.approx(FLOOR)


def test_a_users_ceiling_survives_the_fault() -> None:
    bucket = AdaptiveBucket(Scripted(ZeroDivisionError()), 0.0, ceiling=3.0)
    bucket.tell(ACCEPTED)
    assert bucket.bucket.refill_rate == 3.0
    assert bucket.ceiling == 3.0


def test_a_policy_whose_pace_is_not_its_answer_has_failed() -> None:
    class Liar(Scripted):
        def on(self, event: Event) -> Pace:
            super().on(event)
            return evolve(GOOD, refill_rate=1.0)

    bucket = AdaptiveBucket(Liar(), 0.0)
    assert bucket.tell(ACCEPTED) is Reason.FALLBACK


def test_a_policy_that_starts_with_nonsense_never_starts() -> None:
    bucket = AdaptiveBucket(Scripted(pace=evolve(GOOD, refill_rate=math.nan)), 0.0)
    assert bucket.bucket.refill_rate == AimdOptions().start_rate
    assert bucket.fault == "Scripted: ValueError: refill_rate is nan"


def test_a_sound_policy_has_no_fault() -> None:
    bucket = AdaptiveBucket(Aimd(AimdOptions(), seed=0, now=0.0), 0.0)
    assert [bucket.tell(each) for each in (ADMITTED, REFUSAL)] == [None, Reason.CUT]
    assert bucket.fault is None


@given(
    answers=st.lists(st.sampled_from([GOOD, evolve(GOOD, refill_rate=3.0), *BAD]), max_size=20),
    ends=st.lists(st.sampled_from([OK, REFUSED, LOST]), max_size=20),
)
def test_whatever_a_policy_answers_the_limiter_goes_on(answers: list[object], ends: list[object]) -> None:
    limiter, now = Limiter({"requests": AdaptiveBucket(Scripted(*answers), 0.0)}, 10), 0.0
    for end in ends:
        now = max(now, limiter.held_until) + 60.0
        booking = limiter.admit(ONE, now)
        assert isinstance(booking, Booking)
        limiter.settle(booking, end, now)  # type: ignore[arg-type]  # an outcome, whatever the list says
    assert 0 < limiter.statistics(now).refill_rate["requests"] <= 20.0 + 1e-9


def test_an_end_after_the_fault_changes_nothing() -> None:
    bucket = AdaptiveBucket(Scripted(ZeroDivisionError()), 0.0)
    bucket.tell(ACCEPTED)
    assert bucket.tell(event(Settled, true_cost=1.0)) is None


PACES = st.builds(
    Pace,
    refill_rate=st.sampled_from([20.0, 30.0]),
    capacity=st.just(5.0),
    in_flight_limit=st.sampled_from([None, 1, 3]),
    unresolved_limit=st.sampled_from([None, 2]),
    held_until=st.sampled_from([-math.inf, 5.0, 50.0]),
)


@given(answers=st.lists(PACES, max_size=12))
def test_a_limiter_keeps_to_the_pace_in_force_whatever_changed_in_it(answers: list[Pace]) -> None:
    bucket = AdaptiveBucket(Scripted(*answers, pace=evolve(GOOD, capacity=5.0)), 0.0)
    limiter, now = Limiter({"requests": bucket}, 10), 0.0
    for _ in range(1 + len(answers) // 3):
        now += 100
        booking = limiter.admit(ONE, now)
        assert isinstance(booking, Booking)
        second = limiter.admit(ONE, now) if bucket.pace.in_flight_limit == 1 else None
        assert second is None or (isinstance(second, Wait) and second.by is Blocked.IN_FLIGHT)
        limiter.accept(booking, {}, now)
        limiter.settle(booking, OK, now)
        assert limiter.held_until == bucket.pace.held_until
        assert limiter.statistics(now).probing == (bucket.pace.unresolved_limit is not None)


@pytest.mark.parametrize(("used", "left"), [(0.0, 5.0), (300.0, 30.0), (590.0, 60.0)])
def test_where_the_upstream_had_less_saved_up_the_difference_is_not_saved_up_again(used: float, left: float) -> None:
    policy = Fixed(FixedOptions(refill_rate=10.0, capacity=1.0), seed=0, now=0.0)
    bucket = AdaptiveBucket(policy, 0.0, saved_up=60.0)
    bucket.delay(1.0, 1000.0)  # long enough to fill it
    bucket.take(used, 1000.0)
    bucket.short(1.0, 1000.0)
    assert bucket.saved_up == pytest.approx(left)
    assert bucket.delay(1.0, 1000.0) > 0
    assert bucket.delay(1.0, 2000.0) == 0


@pytest.mark.parametrize(("period", "most"), [(None, 0.8 * 6.0), (60.0, 0.8 * 1.0)])
def test_headroom_is_of_what_the_policy_learned_where_no_header_says_for_how_long_a_limit_is(
    period: float | None, most: float
) -> None:
    bucket = AdaptiveBucket(Scripted(pace=evolve(GOOD, learned_limit=6.0)), 0.0, headroom=0.8)
    bucket.tell(event(Accepted, hints=bucket.in_units(Hints(limit=60.0, remaining=50.0, reset=5.0, period=period))))
    assert bucket.bucket.refill_rate == pytest.approx(most)


def test_all_events_begin_with_the_facts_in_their_order() -> None:
    """The limiter makes them by position."""
    shared = ["now", "permit", "admitted_at", "cost", "limited_by", "in_flight", "refill_rate"]
    for kind in (Admitted, Accepted, Refused, Settled, Unknown):
        assert [each.name for each in fields(kind)][: len(shared)] == shared
    assert [each.name for each in fields(Accepted)][len(shared) :] == ["hints"]
    assert [each.name for each in fields(Settled)][len(shared) :] == ["true_cost", "first_token_at"]
