"""Profiles of simulated upstreams: specs, ranges and the words for a mistake."""

from __future__ import annotations

import re
from importlib import resources

import pytest
from attrs import fields

from controller.dialects.table import DIALECTS
from simulations import knobs_page
from simulations.dialects.contract import KINDS
from simulations.faults import FAULTS
from simulations.hinting import FORMS
from simulations.knobs import SPOKEN, Profile
from simulations.manners import MANNERS
from simulations.profile import load_profile, make_profile, profile_names


def test_every_profile_in_the_box_loads() -> None:
    anthropic, gemini = [f"anthropic-{tier}" for tier in ("start", "tier1", "tier2", "tier4")], ["gemini-free"]
    gemini += ["gemini-free-flash", "gemini-tier1", "gemini-tier2"]
    rest = ["hostile", "openai-tier1", "openai-tier5", "steady", "vllm"]
    assert profile_names() == [*anthropic, "azure", "deepseek", "flaky", *gemini, *rest]
    for name in profile_names():
        assert load_profile(name).name == name


def test_every_profile_is_asked_in_a_dialect_that_there_is() -> None:
    assert set(SPOKEN) <= DIALECTS.keys()


@pytest.mark.parametrize("name", sorted({*profile_names()} - {"steady", "flaky", "hostile"}))
def test_a_profile_of_a_provider_says_where_its_numbers_are_from(name: str) -> None:
    text = resources.files("simulations").joinpath("profiles", f"{name}.toml").read_text(encoding="utf-8")
    assert re.search(r"^# .*https://", text, re.MULTILINE)


def test_steady_is_a_bucket_of_twenty_per_second() -> None:
    steady = load_profile("steady")
    assert (steady.quota, steady.per_second.at(0.0), steady.burst, steady.latency) == ("bucket", 20, 20, 0.5)


def test_parameters_follow_the_name_like_a_query() -> None:
    profile = load_profile("steady?rate=200&latency=0.1&headers=true&retry_after=none&concurrency=8")
    assert profile.per_second.at(0.0) == 200
    assert (profile.latency, profile.headers, profile.retry_after, profile.concurrency) == (0.1, True, "none", 8)


def test_none_switches_an_optional_parameter_off() -> None:
    assert load_profile("openai-tier1?tokens_per_minute=none").tokens_per_minute is None


def test_a_limit_may_step_over_time() -> None:
    profile = load_profile("steady?rate=[[0,20],[120,8]]")
    assert [profile.per_second.at(now) for now in (0.0, 119.9, 120.0)] == [20, 20, 8]


def test_rate_and_limit_replace_each_other() -> None:
    assert load_profile("gemini-free?rate=2").per_period.at(0.0) == 120
    assert load_profile("steady?limit=90").per_second.at(0.0) == 1.5
    with pytest.raises(ValueError, match="give one of them"):
        load_profile("steady?rate=1&limit=60")


def test_layers_come_from_a_scenario_as_well() -> None:
    assert make_profile("mine", {"limit": 5}, {"period": 10}).per_second.at(0.0) == 0.5


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("stedy", "unknown profile 'stedy' (did you mean \"steady\"?); there are: anthropic-start, anthropic-tier1"),
        ("", "unknown profile ''"),
        ("../steady", "unknown profile"),
        ("steady?latencey=1", "unknown parameter 'latencey' (did you mean \"latency\"?); there are: quota, rate"),
        ("steady?name=x", "unknown parameter 'name'"),
        ("steady?latency=-1", "latency must be a number from 0 to 86400 (seconds), not -1"),
        ("steady?latency=soon", "latency must be a number"),
        ("steady?latency=NaN", "latency must be a number"),
        ("steady?latency=true", "latency must be a number"),
        ("steady?latency=none", "latency must be a number"),
        ("steady?words=2.5", "words must be a whole number from 1 to 100000"),
        ("steady?rate=-1", "rate must be a number from 0"),
        ("steady?rate=[[5,1],[2,3]]", "rate must be a number from 0"),
        ("steady?rate=none", "give either rate (requests per second) or limit (requests per period)"),
        ("steady?error_share=1.5", "error_share must be a number from 0 to 1 (share of attempts), not 1.5"),
        ("steady?error_share=0.6&stall_share=0.6", "the shares of faults must sum up to 1 at most, not 1.2"),
        ("steady?quota=leaky", "quota must be one of bucket, fixed, fixed-first, sliding, sliding-refused, none"),
        ("steady?headers=1", "headers must be one of true, false, not 1"),
        ("steady?retry_after=later", "retry_after must be a number from -86400 to 86400 (seconds) or rounded or none"),
        ("steady?rate", "write parameters as key=value, not 'rate'"),
        ("steady?rate=1&rate=2", "rate is given twice"),
        ("steady?words=" + "[" * 100_000, "words must be a whole number"),
    ],
)
def test_a_mistake_is_told_in_one_line(spec: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        load_profile(spec)
    assert "\n" not in str(caught.value)


def test_every_parameter_says_its_unit_and_meaning() -> None:
    for attribute in fields(Profile):
        if attribute.name != "name":
            assert set(attribute.metadata) == {"unit", "help"}
            assert attribute.metadata["help"]


def test_the_page_of_parameters_is_up_to_date_and_knows_every_word() -> None:
    written = resources.files("simulations").joinpath("profiles", "README.md").read_text(encoding="utf-8")
    assert written == knobs_page.page(), "run python -m simulations.knobs_page > simulations/profiles/README.md"
    families = {f"{way}-{kind}" for way in ("http", "in-band") for kind in KINDS}
    assert set(knobs_page.FAULT_WORDS) | families == set(FAULTS)
    assert set(knobs_page.MANNER_WORDS) == set(MANNERS)
    assert set(knobs_page.FORM_WORDS) == {"usual", *FORMS}
