"""Every built-in policy before the conformance kit, then the literal law of aimd by numbers, then the registry."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
from attrs import field, frozen, validators

from policies import plugins, registry
from policies.aimd import Aimd, AimdOptions
from policies.contract import Accepted, Admitted, LimitedBy, Pace, Policy, Reason, Refused, Remembered, Scope
from policies.law import Law, Standing, Subject
from simulations.check import judge, laws_of, lines_of

START = 1000.0


def built_in(name: str) -> Subject:
    policy_class = registry.find(name)
    return Subject(policy_class, registry.make_options(policy_class, {}))


EVERY_DAY, ON_TRIAL = (
    [
        pytest.param(name, law, id=f"{name}-{law.name}")
        for name in registry.BUILT_IN
        for law in laws_of(built_in(name))
        if law.name not in without
    ]
    for without in (("key_is_shared",), ())  # a run of several clients takes seconds
)


def verdict_is_not_broken(name: str, law: Law[object], *, examples: int, seed: int) -> None:
    verdict = judge(law, built_in(name), examples=examples, seed=seed)
    assert verdict.standing is not Standing.BROKEN, "\n".join(lines_of(verdict))


@pytest.mark.parametrize(("name", "law"), EVERY_DAY)
def test_a_built_in_policy_keeps_every_law_it_does_not_decline(name: str, law: Law[object]) -> None:
    verdict_is_not_broken(name, law, examples=6, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "law"), ON_TRIAL)
def test_a_built_in_policy_keeps_them_on_many_cases(name: str, law: Law[object]) -> None:
    verdict_is_not_broken(name, law, examples=80, seed=1)


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


@pytest.mark.parametrize(
    ("limit", "age", "rate"),
    [(100.0, 60.0, 70.0), (100.0, 1200.0, 25.0), (2.0, 1200.0, 2.0), (100.0, 6000.0, 5.0)],
)
def test_a_limit_learnt_lately_is_used_at_once_a_later_one_is_a_hint_and_an_old_one_nothing(
    limit: float, age: float, rate: float
) -> None:
    policy = Aimd(AimdOptions(), seed=0, now=START, remembered=Remembered(limit=limit, age=age))
    assert policy.pace.refill_rate == rate
    assert (policy.ssthresh is not None) == (age == 60.0), "a hint does not end slow start"


def test_a_snapshot_of_another_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="no snapshot of this policy"):
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


def test_a_module_that_fails_in_its_own_way_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_policy.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"'failing_policy:X' can't be imported: ZeroDivisionError: division by zero"):
        registry.find("failing_policy:X")


def test_a_module_that_is_not_there_leads_to_the_path() -> None:
    with pytest.raises(ValueError, match="PYTHONPATH"):
        registry.find("no.such.module:Law")


def test_a_class_without_the_verbs_of_a_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="has no on and no snapshot and no restore"):
        registry.find(f"{__name__}:NoVerbs")


def test_a_name_that_two_packages_offer_has_to_be_spelt_out(monkeypatch: pytest.MonkeyPatch) -> None:
    points = EntryPoints(EntryPoint("brisk", f"{module}:Brisk", registry.GROUP) for module in ("a", "b"))
    monkeypatch.setattr(plugins, "entry_points", lambda group: points.select(group=group))
    assert registry.names() == [*registry.BUILT_IN, "brisk"]
    with pytest.raises(ValueError, match="offered more than once; say which: a:Brisk, b:Brisk"):
        registry.find("brisk")


def test_a_class_of_another_module_can_be_named() -> None:
    assert registry.find("policies.fixed:Fixed") is registry.find("fixed")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"start_rat": "3"}, "unknown policy option 'start_rat' \\(did you mean \"start_rate\""),
        ({"start_rate": "fast"}, "start_rate='fast' is not a float"),
        ({"decrease_factor": "1.5"}, "decrease_factor"),
        ({"start_rate": "-1"}, r"start_rate.*: -1.0 \(units/s\)"),
        ({"start_rate": "nan"}, "start_rate"),
    ],
)
def test_a_bad_policy_option_is_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        registry.make_options(registry.find("aimd"), given)


@frozen(kw_only=True)
class NeedyOptions:
    """One option without a default."""

    limit: float = field(validator=validators.gt(0), metadata={"unit": "units/s", "help": "must be told"})


class NoVerbs:
    """Has options, and nothing else of a policy."""

    options_class = NeedyOptions


def test_an_option_that_has_to_be_given_is_named() -> None:
    with pytest.raises(ValueError, match=r"policy option missing: .*'limit'"):
        registry.make_options(NoVerbs, {})  # type: ignore[arg-type]  # only its options matter
