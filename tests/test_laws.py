"""The conformance kit itself: it refuses each bad policy by the law it breaks, passes sound ones, and says so."""

from __future__ import annotations

from pathlib import Path

import bad_policies
import pytest
from attrs import evolve

from policies.law import Law, Standing, Subject, Verdict
from simulations import check as kit
from simulations.laws import LAWS
from simulations.sharing import Sharing, shares_told, takes_too_much

BY_NAME = {law.name: law for law in LAWS}


def verdict_on(policy: type[bad_policies.Plain], law: str, *, examples: int = 200, seed: int = 0) -> Verdict:
    subject = Subject(policy, bad_policies.PlainOptions())  # type: ignore[arg-type]  # a class, as its protocol says
    return kit.judge(BY_NAME[law], subject, examples=examples, seed=seed)


BAD = [
    (bad_policies.CutsPerRefusal, "stale_changes_nothing"),
    (bad_policies.GrowsWhileAppLimited, "only_rate_limited_success_raises"),
    (bad_policies.HasAHiddenClock, "same_events_same_paces"),
    (bad_policies.AnswersNan, "pace_can_be_kept"),
    (bad_policies.FreezesAfterACut, "cut_is_no_freeze"),
    (bad_policies.WaitsForItsProbe, "lost_probe_leads_to_another"),
    (bad_policies.GrowsOnStaleSuccess, "stale_changes_nothing"),
    (bad_policies.NeverRecovers, "step_up_is_followed"),
    (bad_policies.GrowsOnLittle, "growth_is_measured_by_what_was_sent"),
    (bad_policies.ForgetsTheBlock, "order_of_answers_is_no_news"),
]
BAD_IN_OTHER_WAYS = [
    (bad_policies.CutsPerRefusal, "one_cut_per_epoch"),
    (bad_policies.KnowsTheHour, "time_shift_changes_no_rate"),
    (bad_policies.FreezesAfterACut, "outage_ends"),
    (bad_policies.WaitsForItsProbe, "probing_never_deadlocks"),
    (bad_policies.ForgetsItsHold, "snapshot_fits_another_clock"),
    (bad_policies.HoldsForAMoment, "outage_costs_little"),
    (bad_policies.IgnoresRefusals, "limit_is_found"),
    (bad_policies.IgnoresRefusals, "refusals_stay_rare"),
    (bad_policies.GainsByRefusals, "refusal_is_no_better"),
    (bad_policies.GainsByRefusals, "refusal_never_raises"),
    (bad_policies.CutsOnOverload, "overload_keeps_the_rate"),
    (bad_policies.CutsOnLoss, "unknown_keeps_the_rate"),
    (bad_policies.GrowsAtTheEnd, "settled_keeps_the_rate"),
    (bad_policies.GrowsByTheClock, "clock_jump_is_bounded"),
    (bad_policies.GrowsByTheClock, "clock_going_back_is_harmless"),
    (bad_policies.ForgetsItsEpoch, "snapshot_continues"),
    (bad_policies.SaysOneDoesAnother, "pace_is_the_last_answer"),
    (bad_policies.SlowsOnSuccess, "success_never_lowers"),
    (bad_policies.GrabsWhatOthersLeave, "key_is_shared"),
]
REFUSED_BY_ONE_LAW_ONLY = [
    (bad_policies.GrowsOnLittle, "growth_is_measured_by_what_was_sent"),
    (bad_policies.ForgetsTheBlock, "order_of_answers_is_no_news"),
    (bad_policies.GrabsWhatOthersLeave, "key_is_shared"),
]


def is_refused(policy: type[bad_policies.Plain], law: str) -> None:
    verdict = verdict_on(policy, law)
    assert verdict.standing is Standing.BROKEN
    assert verdict.text
    assert verdict.story


@pytest.mark.parametrize(("policy", "law"), BAD)
def test_a_bad_policy_is_refused_by_the_law_it_breaks(policy: type[bad_policies.Plain], law: str) -> None:
    is_refused(policy, law)


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "law"), BAD_IN_OTHER_WAYS)
def test_every_other_law_refuses_a_policy_that_breaks_it(policy: type[bad_policies.Plain], law: str) -> None:
    is_refused(policy, law)


@pytest.mark.slow
@pytest.mark.parametrize("law", BY_NAME)
@pytest.mark.parametrize(("policy", "own"), REFUSED_BY_ONE_LAW_ONLY)
def test_what_one_law_refuses_no_other_would_have_found(policy: type[bad_policies.Plain], own: str, law: str) -> None:
    verdict = verdict_on(policy, law, examples=60)
    expected = Standing.BROKEN if law == own else Standing.HELD
    assert verdict.standing is expected, "\n".join(kit.lines_of(verdict))


def test_a_policy_that_changes_its_events_is_refused() -> None:
    verdict = verdict_on(bad_policies.ChangesItsEvents, "pace_can_be_kept")
    assert verdict.standing is Standing.BROKEN
    assert any("FrozenInstanceError" in line for line in kit.lines_of(verdict))


def test_every_law_has_a_bad_policy_of_its_own() -> None:
    assert {law for _, law in [*BAD, *BAD_IN_OTHER_WAYS]} == set(BY_NAME)


@pytest.mark.parametrize(
    "law", [pytest.param(law, marks=pytest.mark.slow if law == "key_is_shared" else ()) for law in BY_NAME]
)
def test_the_sound_law_they_are_made_from_keeps_every_law(law: str) -> None:
    verdict = verdict_on(bad_policies.Plain, law, examples=10)
    assert verdict.standing is Standing.HELD, "\n".join(kit.lines_of(verdict))


@pytest.mark.parametrize("kind", ["fixed", "bucket"])
def test_in_ten_minutes_a_sound_policy_makes_room_for_a_late_comer_and_a_grabbing_one_does_not(kind: str) -> None:
    case = Sharing(clients=2, kind=kind, apart=200.0, feedback="none", seed=0, length=600.0)
    sound, grabbing = (
        Subject(policy, bad_policies.PlainOptions())  # type: ignore[arg-type]  # as above
        for policy in (bad_policies.Plain, bad_policies.GrabsWhatOthersLeave)
    )
    assert takes_too_much(sound, case) is None
    complaint = takes_too_much(grabbing, case)
    assert complaint is not None
    assert "starves" in complaint or "Jain's index" in complaint
    assert len(shares_told(grabbing, case)) == 13


def test_the_two_orders_of_the_same_answers_are_told_one_after_the_other() -> None:
    story = verdict_on(bad_policies.ForgetsTheBlock, "order_of_answers_is_no_news").story
    assert story[0] == "in one order:"
    assert story.count("in another:") == 1


def test_the_smallest_case_is_told_line_by_line() -> None:
    story = [" ".join(line.split()) for line in verdict_on(bad_policies.AnswersNan, "pace_can_be_kept").story]
    assert story[:2] == [
        "start: 2 units/s, capacity 1 (start)",
        "+0 s attempt 0 admitted, limited by rate: no change",
    ]
    assert story[2].startswith("+0 s attempt 0 refused, scope dimension, Retry-After ")
    assert story[2].endswith(" s: nan units/s, capacity 1, held for 1 s, 1 unresolved at most (cut)")
    assert len(story) == 3


def test_a_policy_that_raises_breaks_the_law_and_ends_the_story() -> None:
    verdict = verdict_on(bad_policies.Raises, "pace_can_be_kept")
    assert verdict.text == "it raised ZeroDivisionError: after 0.005 units"
    assert "it raised ZeroDivisionError" in verdict.story[-1]


@pytest.mark.parametrize(
    ("policy", "complaint", "last"),
    [
        (bad_policies.AnswersText, r"it answered 'fast\n1000.0' instead of a Pace", "instead of a Pace"),
        (bad_policies.RateIsText, "refill_rate is 'half'", "refill_rate='half'"),
        (bad_policies.HasNoPace, "it raised AttributeError: no pace", "it raised AttributeError: no pace"),
    ],
)
def test_an_answer_of_the_wrong_kind_breaks_a_law_and_not_the_kit(
    policy: type[bad_policies.Plain], complaint: str, last: str
) -> None:
    verdict = verdict_on(policy, "pace_can_be_kept")
    assert verdict.text == complaint
    assert last in verdict.story[-1]
    assert not any("\n" in line for line in verdict.story)


def test_the_same_seed_gives_the_same_verdict() -> None:
    one, other = (
        verdict_on(bad_policies.GrowsWhileAppLimited, "only_rate_limited_success_raises", seed=7) for _ in range(2)
    )
    assert one == other


def test_a_law_that_is_broken_only_now_and_then_says_so() -> None:
    fates = iter(["broken", *[None] * 1000])

    def complaint(subject: Subject, case: object) -> str | None:
        return next(fates)

    law: Law[object] = evolve(BY_NAME["pace_can_be_kept"], complaint=complaint)
    subject = Subject(bad_policies.Plain, bad_policies.PlainOptions())  # type: ignore[arg-type]  # as above
    verdict = kit.judge(law, subject, examples=10, seed=0)
    assert verdict.text == "broken; and not each time: something beside the events decides"


def report(policy: type, *only: str) -> kit.Report:
    return kit.run_laws(policy, examples=20, only=only)


def test_a_declined_law_is_reported_with_its_reason() -> None:
    found = report(bad_policies.Declines, "step_up_is_followed", "pace_can_be_kept")
    assert found.ok
    assert str(found).endswith("its reason: it only ever slows down\n1 held, 0 broken, 1 declined")


def test_a_law_that_nobody_claims_is_not_asked() -> None:
    assert report(bad_policies.Unpromising, "success_never_lowers").verdicts == ()


@pytest.mark.parametrize(
    ("policy", "only", "message"),
    [
        (bad_policies.ClaimsNonsense, (), "claims the law 'success_never_lower', which there is not \\(did you mean"),
        (bad_policies.Plain, ("pace_can_be_kep",), "no law 'pace_can_be_kep' \\(did you mean \"pace_can_be_kept\""),
    ],
)
def test_a_law_that_there_is_not_is_named(policy: type, only: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        report(policy, *only)


def test_the_laws_are_named_in_the_readme_of_the_example() -> None:
    readme = (Path(__file__).parent.parent / "examples" / "policy_plugin" / "README.md").read_text(encoding="utf-8")
    assert [name for name in BY_NAME if f"`{name}`" not in readme] == []
