"""Scenario files: what comes with the program, what a file may say, and how a fault in one is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simulations.bounds import METRICS, Bound
from simulations.closed_loop import simulate_policy
from simulations.measures import unmeasured
from simulations.oracle import allowed, ideal_of
from simulations.scenario import FEEDBACK, Outage, Scenario, Span
from simulations.scenario_files import load_scenario, scenario_names
from simulations.workload import Phase

SMALL = """
about = "A bucket of 5 that fills at 1/s."
duration = 120

[upstream]
quota = "bucket"
rate = 1
burst = 5
"""


def written(folder: Path, text: str) -> str:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


WORLDS = {"u1", "u1f", "u2", "u2c", "u3", "u4", "u5", "u5g", "u6", "u6g", "u7", "u7b", "u8", "u9", "u11", "u11g"}


# -- what comes with the program


@pytest.mark.parametrize("name", scenario_names())
def test_every_scenario_says_what_to_expect(name: str) -> None:
    scenario = load_scenario(name)
    assert len(scenario.about) > 60
    assert scenario.limit_at(0.0) > 0


@pytest.mark.parametrize("name", [name for name in scenario_names() if re.match(r"u\d", name)])
def test_the_named_worlds_have_goals_in_every_feedback_mode(name: str) -> None:
    scenario = load_scenario(name)
    assert scenario.feedback == FEEDBACK
    assert set(scenario.bounds) == set(FEEDBACK)
    assert scenario.duration == 7200.0
    assert scenario.policy is None, "they are for the default policy"


def test_the_sixteen_worlds_are_all_there_and_some_are_fast() -> None:
    worlds = {name.partition("_")[0] for name in scenario_names() if re.match(r"u\d", name)}
    assert worlds == WORLDS
    assert 3 <= sum(load_scenario(name).tag == "fast" for name in scenario_names()) <= 8


# -- what a file may say


def test_a_file_is_read_by_its_path(tmp_path: Path) -> None:
    text = (
        SMALL
        + """
[[outage]]
start = 10
until = 20
status = 503

[clients]
joins = [0, 30]

[workload]
phases = [[0, 1], [60, 2.5]]

[latency]
head = [0.1, 0.2]

[bounds.none]
goodput = 90
"""
    )
    scenario = load_scenario(written(tmp_path, text))
    assert scenario.name == "mine"
    assert scenario.outages == (Outage(start=10, until=20, status=503),)
    assert scenario.clients.joins == (0.0, 30.0)
    assert scenario.workload.phases == (Phase(0.0, 1.0), Phase(60.0, 2.5))
    assert scenario.latency.head == Span(0.1, 0.2)
    assert scenario.bounds == {"none": (Bound("goodput", 90),)}


def test_a_trace_is_read_from_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text('{"timestamp": 5, "input_length": 2, "output_length": 3}\n', encoding="utf-8")
    scenario = load_scenario(written(tmp_path, SMALL + '[workload]\ntrace = "trace.jsonl"\n'))
    assert scenario.workload.arrivals is not None
    assert [arrival.cost for arrival in scenario.workload.arrivals] == [5.0]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ('colour = "red"', "unknown key colour"),
        ("durations = 5", 'unknown key durations (did you mean "duration"?)'),
        ("[upstream2]", 'unknown key upstream2 (did you mean "upstream"?)'),
        ("[clients]\nworker = 5", 'unknown key clients.worker (did you mean "workers"?)'),
        ("[clients]\njoins = []", "clients: joins"),
        ("[clients]\njoins = 5", "clients.joins: a list of instants"),
        ("[clients]\nmax_in_flight = 0", "clients: max_in_flight must be a whole number from 1"),
        ("[latency]\nhead = [2, 1]", "latency.head: a range is"),
        ("[latency]\nhead = 2", "latency.head: a range is"),
        ("[latency]\nrefusal = -1", "latency: refusal must be"),
        ("[workload]\nphases = [[0, -1]]", "workload.phases: "),
        ("[workload]\nphases = [[10, 1], [5, 1]]", "workload: phases must be in order"),
        ("[workload]\nprompts = 0", "workload: prompts must be"),
        ('[workload]\ntrace = "none.csv"', "workload.trace: none.csv can't be read"),
        ('[workload]\ntrac = "x.csv"', 'unknown key workload.trac (did you mean "trace"?)'),
        (
            '[workload]\ntrace = "x.csv"\nspeed = 3',
            "unknown key workload.speed; there are with a trace: trace, prompts",
        ),
        ('[workload]\ntrace = "x.csv"\nphases = [[0, 1]]', "unknown key workload.phases; there are with a trace"),
        ("[workload]\narrivals = [[0, 1]]", "unknown key workload.arrivals"),
        ("[[outage]]\nstart = 5\nuntil = 5", "outage: until 5 is not after start 5"),
        ("[[outage]]\nstart = 5\nuntil = 6\nstatus = 404", "outage: status must be 429 or 503"),
        ("[[outage]]\nstart = 5", "outage: until is missing"),
        ("[[outage]]\nstart = 120\nuntil = 130", "outage: 120 s is not before the end, which is at 120 s"),
        ("[[neighbour]]\nstart = 500\nuntil = 600\nper_second = 1", "neighbour: 500 s is not before the end"),
        ("[clients]\njoins = [0, 121]", "clients.joins: 121 s is not before the end"),
        ("[outage]\nstart = 5", "outage must be given as [[outage]]"),
        ("[[neighbour]]\nstart = 5\nuntil = 6\nper_second = 0", "neighbour: per_second must be"),
        ("[habits]\nhides_429 = 1", "habits: hides_429 must be one of true, false"),
        ("[bounds.none]\ngood = 5", "bounds.none: unknown metric 'good' (did you mean \"goodput\"?)"),
        ("[bounds.none]\ngoodput = 100.5", "bounds.none: goodput can be bounded from 0 to 100"),
        ("[bounds.none]\nrefused = -1", "bounds.none: refused can be bounded from 0 to 100"),
        ("[bounds.none]\njain = 1.1", "bounds.none: jain can be bounded from 0 to 1"),
        ("[bounds.none]\njain = true", "bounds.none: jain can be bounded"),
        ("[bounds.none]\njain = 0.9", "bounds.none: jain can't be met: there is one client"),
        ("[bounds.none]\nrecovery = 60", "bounds.none: recovery can't be met: nothing ever rises"),
        ("[bounds.none]\nrefused_after_cut = 5", "bounds.none: refused_after_cut can't be met: no limit falls"),
        ("[bounds.none]\nrefused_in_outage = 5", "bounds.none: refused_in_outage can't be met: there is no outage"),
        ("[bounds.none]\nfinished = 60", "bounds.none: finished can't be met: workload.prompts"),
        ("[bounds.none]\nfirst_token = 3", "bounds.none: first_token can't be met: there is no queue"),
        ("[bounds.loud]\njain = 1", "bounds.loud: that feedback mode is not run"),
        ("[bounds]\nnone = 5", "none must be a table"),
        ("[options]\nspeed = 5", "options: give a policy as well"),
    ],
)
def test_a_fault_is_told_in_one_line_with_file_and_key(tmp_path: Path, more: str, words: str) -> None:
    text = f"{more}\n{SMALL}" if not more.startswith("[") else f"{SMALL}\n{more}\n"
    with pytest.raises(ValueError, match=re.escape(words)) as fault:
        load_scenario(written(tmp_path, text))
    assert "mine.toml: " in str(fault.value)
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("rate = 1", "rate = -1", "upstream: rate must be"),
        ("rate = 1", "speed = 1", "upstream: unknown parameter 'speed'"),
        ('quota = "bucket"\nrate = 1\n', 'quota = "none"\n', "upstream: there is no limit at all"),
        ("rate = 1", "rate = 0", "upstream: the limit is 0 at the start"),
        ("rate = 1", "rate = 1\noffset = -1", "offset must be"),
        (
            'quota = "bucket"\nrate = 1\nburst = 5\n',
            'quota = "none"\ntokens_per_minute = 1000\n[bounds.none]\novershoot = 5\n',
            "bounds.none: overshoot can't be met: the limit counts LLM tokens",
        ),
        ("duration = 120", "duration = 0", "duration must be"),
        ("duration = 120", 'duration = "long"', "duration must be"),
        ("duration = 120", 'tag = "slow"', "tag must be one of"),
        ("duration = 120", 'feedback = ["none", "shouting"]', "feedback is a list out of"),
        ("duration = 120", "feedback = []", "feedback is a list out of"),
        ("duration = 120", 'feedback = "none"', "feedback must be a list"),
        ("duration = 120", 'policy = "amd"', "unknown policy 'amd'"),
        ("duration = 120", "policy = 7", "policy must be"),
        ("A bucket of 5 that fills at 1/s.", " ", "about: "),
        ("[upstream]", "[upstream", "is not TOML"),
    ],
)
def test_a_fault_in_what_must_be_there_is_told_as_well(tmp_path: Path, old: str, new: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)) as fault:
        load_scenario(written(tmp_path, SMALL.replace(old, new)))
    assert "mine.toml" in str(fault.value)
    assert "\n" not in str(fault.value)


def test_a_scenario_that_there_is_not_is_told_with_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r'unknown scenario .*did you mean "u1_fixed_window"'):
        load_scenario("u1_fixed_windows")
    with pytest.raises(ValueError, match=r"missing\.toml can't be read"):
        load_scenario(str(tmp_path / "missing.toml"))


# -- the oracle and the limit's integral


def loaded(folder: Path, text: str) -> Scenario:
    return load_scenario(written(folder, text))


def test_the_oracle_takes_all_that_the_quota_gives(tmp_path: Path) -> None:
    assert ideal_of(loaded(tmp_path, SMALL), 0).between(0.0, 120.0) == 5 + 119
    window = SMALL.replace('"bucket"\nrate = 1\nburst = 5', '"fixed"\nlimit = 30\noffset = 17')
    assert ideal_of(loaded(tmp_path, window), 0).between(0.0, 120.0) == 3 * 30, "it touches three windows"


def test_the_oracle_takes_no_more_than_there_is_to_do(tmp_path: Path) -> None:
    scenario = loaded(tmp_path, SMALL + "[workload]\nprompts = 3\n[clients]\njoins = [0, 100]\n")
    assert ideal_of(scenario, 0).between(0.0, 50.0) == 3
    assert ideal_of(scenario, 0).between(0.0, 120.0) == 6


def test_an_outage_is_counted_against_nobody(tmp_path: Path) -> None:
    scenario = loaded(tmp_path, SMALL + "[[outage]]\nstart = 30\nuntil = 60\n")
    assert allowed(scenario, 0.0, 120.0) == pytest.approx(90.0)
    assert allowed(scenario, 40.0, 50.0) == pytest.approx(0.0)
    assert ideal_of(scenario, 0).between(30.0, 60.0) == 0


def test_places_that_are_given_back_are_worth_places_over_time(tmp_path: Path) -> None:
    scenario = loaded(tmp_path, SMALL.replace('"bucket"\nrate = 1\nburst = 5', '"none"\nconcurrency = 10'))
    assert scenario.limit_at(0.0) == pytest.approx(10 / scenario.latency.mean_end())
    assert scenario.latency.mean_end() == pytest.approx(10.0, abs=0.5), "exp(0.7^2 / 2) times the median, clipped"


# -- bounds


def test_a_bound_knows_its_direction_and_names_what_broke_it() -> None:
    assert Bound("goodput", 98).broken_by(98.0) is None
    assert Bound("goodput", 98).broken_by(97.5) == "goodput is 97.5 %, should be at least 98 %"
    assert Bound("recovery", 60).broken_by(59.0) is None
    assert Bound("recovery", 60).broken_by(61.0) == "recovery is 61 s, should be at most 60 s"
    assert Bound("jain", 0.9).broken_by(None) == "jain is missing, should be at least 0.9"


def test_what_can_not_be_bounded_has_no_figure_and_the_rest_has_one(tmp_path: Path) -> None:
    scenario = loaded(tmp_path, SMALL)
    missing = {metric for metric, figure in simulate_policy(scenario).items() if figure is None}
    assert missing == {metric for metric in METRICS if unmeasured(scenario, metric) is not None}


def test_every_metric_says_what_it_means() -> None:
    assert all(len(metric.meaning) > 15 for metric in METRICS.values())
