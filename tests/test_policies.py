"""Laws of every built-in policy on traces of events, then the literal law of aimd by numbers."""

from __future__ import annotations

import json
import math

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import registry
from policies.aimd import Aimd, AimdOptions
from policies.contract import (
    Accepted,
    Admitted,
    Event,
    Hints,
    LimitedBy,
    Pace,
    Policy,
    Reason,
    Refused,
    Remembered,
    Scope,
    Settled,
    Unknown,
)

START = 1000.0
ODD = st.sampled_from([None, 1.0, 0.2, 3600.0, -1.0, 0.0, math.inf, -math.inf, math.nan, 1e308])


@attrs.frozen(kw_only=True)
class Step:
    """One thing that happens: `what` to one of the open permits (`which` picks it) after `wait` seconds."""

    what: str
    wait: float
    which: int
    limited_by: LimitedBy
    scope: Scope
    retry_after: float | None


STEPS = st.lists(
    st.builds(
        Step,
        what=st.sampled_from(["admit", "admit", "admit", "accept", "accept", "refuse", "settle", "lose"]),
        wait=st.sampled_from([0.0, 0.001, 0.05, 0.5, 5.0, 40.0, 700.0]),
        which=st.integers(0, 50),
        limited_by=st.sampled_from([LimitedBy.RATE, LimitedBy.RATE, *LimitedBy]),
        scope=st.sampled_from(Scope),
        retry_after=ODD,
    ),
    max_size=80,
)


def events(policy: Policy, steps: list[Step], shift: float = 0.0) -> list[tuple[Event, Pace]]:
    """Play the steps to the policy as a limiter would; the events with the pace after each."""
    now, numbers, told = START + shift, 0, []
    admitted: dict[int, tuple[float, LimitedBy]] = {}

    def tell(kind: type[Event], permit: int, **more: object) -> None:
        at, limited_by = admitted[permit]
        common = {
            "now": now,
            "permit": permit,
            "admitted_at": at,
            "cost": 1.0,
            "limited_by": limited_by,
            "in_flight": max(1, len(admitted)),
            "refill_rate": policy.pace.refill_rate,
        }
        event = kind(**common, **more)  # type: ignore[arg-type]  # mypy can't follow the dict
        told.append((event, policy.on(event)))

    for step in steps:
        now += step.wait
        if step.what == "admit":
            admitted[numbers] = (now, step.limited_by)
            tell(Admitted, numbers)
            numbers += 1
        elif admitted:
            permit = sorted(admitted)[step.which % len(admitted)]
            if step.what == "accept":
                tell(Accepted, permit, hints=Hints())
            elif step.what == "refuse":
                tell(Refused, permit, scope=step.scope, retry_after=step.retry_after)
            elif step.what == "settle":
                tell(Settled, permit, true_cost=1.0, first_token_at=None)
            else:
                tell(Unknown, permit)
            if step.what != "accept":
                del admitted[permit]
    return told


def make(name: str, shift: float = 0.0) -> Policy:
    policy_class = registry.find(name)
    return policy_class(registry.make_options(policy_class, {}), seed=1, now=START + shift)


every_policy = pytest.mark.parametrize("name", list(registry.BUILT_IN))


@every_policy
@given(steps=STEPS)
def test_a_pace_is_always_one_that_can_be_kept(name: str, steps: list[Step]) -> None:
    for _, pace in events(make(name), steps):
        assert math.isfinite(pace.refill_rate)
        assert pace.refill_rate > 0
        assert pace.capacity >= 1
        assert math.isfinite(pace.capacity)
        assert not math.isnan(pace.held_until)


@every_policy
@given(steps=STEPS)
def test_a_refusal_never_raises_the_rate(name: str, steps: list[Step]) -> None:
    policy = make(name)
    before = policy.pace
    for event, pace in events(policy, steps):
        if isinstance(event, Refused):
            assert pace.refill_rate <= before.refill_rate
            assert pace.capacity <= before.capacity
        before = pace


@every_policy
@given(steps=STEPS)
def test_only_a_success_that_was_limited_by_the_rate_raises_it(name: str, steps: list[Step]) -> None:
    policy = make(name)
    before = policy.pace
    for event, pace in events(policy, steps):
        if pace.refill_rate > before.refill_rate:
            assert isinstance(event, Accepted)
            assert event.limited_by is LimitedBy.RATE
        before = pace


@every_policy
@given(steps=STEPS)
def test_what_was_admitted_before_a_cut_teaches_nothing_after_it(name: str, steps: list[Step]) -> None:
    policy = make(name)
    before, newest, newest_at_cut = policy.pace, -1, -1
    for event, pace in events(policy, steps):
        if isinstance(event, Admitted):
            newest = event.permit
        if isinstance(event, Accepted | Refused) and event.permit <= newest_at_cut:
            assert pace is before, "stale, so nothing changes, not even the object"
        if pace.refill_rate < before.refill_rate:
            newest_at_cut = newest
        before = pace


@every_policy
@given(steps=STEPS)
def test_an_unknown_end_and_an_overload_never_change_the_rate(name: str, steps: list[Step]) -> None:
    policy = make(name)
    before = policy.pace
    for event, pace in events(policy, steps):
        if isinstance(event, Unknown | Settled) or (isinstance(event, Refused) and event.scope is Scope.OVERLOAD):
            assert pace.refill_rate == before.refill_rate
        before = pace


@every_policy
@given(steps=STEPS, shift=st.sampled_from([1e6, -900.0, 0.123]))
def test_shifting_all_times_changes_no_rate(name: str, steps: list[Step], shift: float) -> None:
    here = events(make(name), steps)
    there = events(make(name, shift), steps, shift)
    for (_, one), (_, other) in zip(here, there, strict=True):
        assert one.refill_rate == pytest.approx(other.refill_rate, rel=1e-3)


@every_policy
@given(steps=STEPS, split=st.integers(0, 80))
def test_a_restored_snapshot_continues_exactly(name: str, steps: list[Step], split: int) -> None:
    told = events(make(name), steps)
    policy_class = registry.find(name)
    options = registry.make_options(policy_class, {})
    first = policy_class(options, seed=1, now=START)
    for event, _ in told[:split]:
        first.on(event)
    now = told[:split][-1][0].now if told[:split] else START
    kept = json.loads(json.dumps(first.snapshot(now)))
    again = policy_class.restore(options, kept, seed=1, now=now)
    for event, pace in told[split:]:
        restored = again.on(event)
        assert restored.refill_rate == pytest.approx(pace.refill_rate, rel=1e-9)
        assert restored.held_until == pytest.approx(pace.held_until, abs=1e-6) or pace.held_until < event.now
        assert (restored.unresolved_limit, restored.drain) == (pace.unresolved_limit, pace.drain)


@every_policy
@given(steps=STEPS)
def test_the_same_events_give_the_same_paces(name: str, steps: list[Step]) -> None:
    assert events(make(name), steps) == events(make(name), steps) or any(
        step.retry_after is not None and math.isnan(step.retry_after) for step in steps
    ), "NaN in an event is not equal to itself"


@every_policy
@given(steps=STEPS)
def test_a_policy_keeps_the_laws_it_claims(name: str, steps: list[Step]) -> None:
    policy = make(name)
    before, newest, newest_at_cut = policy.pace, -1, -1
    for event, pace in events(policy, steps):
        if isinstance(event, Admitted):
            newest = event.permit
        if isinstance(event, Accepted) and "success_never_lowers" in policy.claims:
            assert pace.refill_rate >= before.refill_rate
        if isinstance(event, Refused) and "one_cut_per_epoch" in policy.claims and event.permit <= newest_at_cut:
            assert pace.refill_rate == before.refill_rate
        if pace.refill_rate < before.refill_rate:
            newest_at_cut = newest
        before = pace


# -- aimd by numbers


class Sender:
    """Drives one policy at its own pace, one attempt at a time; every permit is numbered."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.now, self.permit = policy, START, -1

    def admit(self, limited_by: LimitedBy = LimitedBy.RATE) -> int:
        self.permit += 1
        self.policy.on(Admitted(**self._facts(self.permit, limited_by)))  # type: ignore[arg-type]
        return self.permit

    def accept(self, permit: int, limited_by: LimitedBy = LimitedBy.RATE) -> Pace:
        return self.policy.on(Accepted(**self._facts(permit, limited_by)))  # type: ignore[arg-type]

    def refuse(self, permit: int, *, scope: Scope = Scope.UNKNOWN, retry_after: float | None = None) -> Pace:
        facts = self._facts(permit, LimitedBy.RATE)
        return self.policy.on(Refused(**facts, scope=scope, retry_after=retry_after))  # type: ignore[arg-type]

    def succeed_for(self, seconds: float) -> float:
        """Paced success for so long; the rate at the end."""
        end = self.now + seconds
        while self.now < end:
            self.accept(self.admit())
            self.now += 1 / self.policy.pace.refill_rate
        return self.policy.pace.refill_rate

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


def aimd(**options: float) -> tuple[Sender, Aimd]:
    policy = Aimd(AimdOptions(**options), seed=0, now=START)
    return Sender(policy), policy


def test_slow_start_never_asks_for_more_than_twice_what_was_sent() -> None:
    sender, policy = aimd()
    sent: list[float] = []
    while sender.now < START + 12:
        permit = sender.admit()
        sent.append(sender.now)
        sender.accept(permit)
        lately = sum(at > sender.now - 10 for at in sent) / min(10.0, max(sender.now - START, 1.0))
        assert policy.pace.refill_rate <= max(5.0, 2.2 * lately * 1.01)  # a grain may straddle the edge
        sender.now += 1 / policy.pace.refill_rate
    assert policy.pace.refill_rate > 20


def test_a_cut_multiplies_by_the_factor_and_the_increase_brings_the_rate_back_in_the_recovery_time() -> None:
    sender, policy = aimd(start_rate=10.0, decrease_factor=0.7, recovery_time=60.0)
    pace = sender.refuse(sender.admit())
    assert pace.refill_rate == pytest.approx(7.0)
    assert pace.reason is Reason.CUT
    assert policy.ssthresh == 10.0
    sender.now = pace.held_until
    sender.accept(sender.admit())  # the probe
    assert sender.succeed_for(60.0) == pytest.approx(10.0, rel=0.01)


def test_twenty_refusals_of_one_epoch_are_one_cut() -> None:
    sender, policy = aimd(start_rate=10.0)
    for permit in [sender.admit() for _ in range(20)]:
        sender.refuse(permit)
    assert policy.pace.refill_rate == pytest.approx(7.0)


def test_after_a_cut_one_attempt_at_a_time_until_one_is_accepted() -> None:
    sender, _ = aimd()
    old = sender.admit()
    assert sender.refuse(sender.admit()).unresolved_limit == 1
    assert sender.accept(old).unresolved_limit == 1, "admitted before the cut, so it proves nothing"
    assert sender.accept(sender.admit()).unresolved_limit is None


def test_a_refused_probe_doubles_the_hold_and_cuts_nothing() -> None:
    sender, _ = aimd(first_hold=1.0, longest_hold=30.0)
    holds, rates = [], set()
    for _ in range(8):
        pace = sender.refuse(sender.admit())
        holds.append(pace.held_until - sender.now)
        rates.add(pace.refill_rate)
        sender.now = pace.held_until
    assert holds == pytest.approx([1, 2, 4, 8, 16, 30, 30, 30])
    assert len(rates) == 1


def test_the_hold_of_a_refusal_with_a_hint_is_left_to_the_server() -> None:
    sender, _ = aimd()
    assert sender.refuse(sender.admit(), retry_after=0.2).held_until == sender.now


def test_an_overload_holds_without_a_cut() -> None:
    sender, policy = aimd(start_rate=10.0)
    pace = sender.refuse(sender.admit(), scope=Scope.OVERLOAD)
    assert (pace.refill_rate, pace.unresolved_limit, pace.reason) == (10.0, 1, Reason.HOLD)
    assert policy.ssthresh is None


def test_a_limit_learnt_lately_is_used_at_once_and_an_old_one_is_not() -> None:
    fresh = Aimd(AimdOptions(), seed=0, now=START, remembered=Remembered(limit=100.0, age=60.0))
    stale = Aimd(AimdOptions(), seed=0, now=START, remembered=Remembered(limit=100.0, age=6000.0))
    assert (fresh.pace.refill_rate, stale.pace.refill_rate) == (70.0, 5.0)


def test_a_snapshot_of_another_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="not a snapshot of aimd"):
        Aimd.restore(AimdOptions(), {"refill_rate": "fast"}, seed=0, now=START)


# -- the registry


def test_an_unknown_policy_gets_a_suggestion() -> None:
    with pytest.raises(ValueError, match=r'unknown policy \'aimed\' \(did you mean "aimd"\?\); there are: aimd, fixed'):
        registry.find("aimed")


@pytest.mark.parametrize("name", ["no.such.module:Law", "math:pi", "json:JSONDecoder", "math:nothing", ":x"])
def test_what_is_no_policy_class_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(ValueError, match="policy") as caught:
        registry.find(name)
    assert "\n" not in str(caught.value)


def test_a_class_of_another_module_can_be_named() -> None:
    assert registry.find("policies.fixed:Fixed") is registry.find("fixed")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"start_rat": "3"}, "unknown policy option 'start_rat' \\(did you mean \"start_rate\""),
        ({"start_rate": "fast"}, "start_rate='fast' is not a float"),
        ({"decrease_factor": "1.5"}, "decrease_factor"),
        ({"start_rate": "nan"}, "start_rate"),
    ],
)
def test_a_bad_policy_option_is_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        registry.make_options(registry.find("aimd"), given)
