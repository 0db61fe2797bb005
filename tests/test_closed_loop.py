"""The closed loop: nothing is lost or made up, no quota exceeded, hints are obeyed; it agrees with the daemon."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence

import pytest
from attrs import define, evolve, field
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.settings import Settings
from policies.contract import JSON, Hints
from simulations.bounds import METRICS
from simulations.client import Answer
from simulations.closed_loop import Attempt, Client, Run, Seat, Send, simulate, simulate_policy
from simulations.limiter_client import make_limiter_client
from simulations.oracle import ideal_of
from simulations.profile import make_profile
from simulations.provider import Provider
from simulations.scenario import (
    FEEDBACK,
    HEADERS,
    NONE,
    RETRY_AFTER,
    Clients,
    Habits,
    Latency,
    Neighbour,
    Outage,
    Scenario,
    Span,
)
from simulations.virtual import run_virtual
from simulations.workload import Workload

FIXED: dict[str, JSON] = {"quota": "fixed", "limit": 60}
SLIDING: dict[str, JSON] = {"quota": "sliding", "limit": 60}
NO_QUOTA = make_profile("test", {"quota": "none"})
BUCKET: dict[str, JSON] = {"quota": "bucket", "rate": 1, "burst": 5}


def scenario(quota: dict[str, JSON], **changed: object) -> Scenario:
    made = Scenario(name="test", about="a test", upstream=make_profile("test", quota), duration=300.0)
    return evolve(made, **changed)  # type: ignore[arg-type]  # mypy can't follow the keywords


def policy_run(world: Scenario, policy: str = "aimd", feedback: str = NONE, seed: int = 0) -> Run:
    return simulate(world, lambda seat: make_limiter_client(policy, {}, seat), feedback, seed)


@define(eq=False)
class Watched:
    """A client that does what another does, and remembers all of it."""

    client: Client
    sends: list[Attempt] = field(factory=list)
    heads: list[Attempt] = field(factory=list)
    hints: list[Hints] = field(factory=list)
    refusals: list[tuple[float, float | None]] = field(factory=list)  # (heard at, retry_after)
    statuses: Counter[int] = field(factory=Counter)
    ends: Counter[bool] = field(factory=Counter)

    def wake_at(self) -> float:
        return self.client.wake_at()

    def act(self, now: float) -> Sequence[Send]:
        return self.client.act(now)

    def sent(self, attempt: Attempt, now: float) -> None:
        self.sends.append(attempt)
        self.client.sent(attempt, now)

    def accepted(self, attempt: Attempt, now: float, answer: Answer) -> None:
        self.heads.append(attempt)
        self.hints.append(answer.hints.get("requests", Hints()))
        self.client.accepted(attempt, now, answer)

    def refused(self, attempt: Attempt, now: float, answer: Answer) -> None:
        self.refusals.append((now, answer.retry_after))
        self.statuses[answer.status] += 1
        self.hints.append(answer.hints.get("requests", Hints()))
        self.client.refused(attempt, now, answer)

    def ended(self, attempt: Attempt, now: float, ok: bool) -> None:
        self.ends[ok] += 1
        self.client.ended(attempt, now, ok)


def watched_run(world: Scenario, policy: str, feedback: str, seed: int = 0) -> tuple[Run, list[Watched]]:
    watched: list[Watched] = []

    def make(seat: Seat) -> Client:
        watched.append(Watched(make_limiter_client(policy, {}, seat)))
        return watched[-1]

    return simulate(world, make, feedback, seed), watched


# -- laws

WORLDS = st.builds(
    scenario,
    st.sampled_from([FIXED, SLIDING, BUCKET, {**FIXED, "concurrency": 5}, {"quota": "sliding-refused", "limit": 60}]),
    clients=st.builds(Clients, joins=st.sampled_from([(0.0,), (0.0, 50.0)]), max_in_flight=st.integers(1, 50)),
    workload=st.builds(Workload, prompts=st.sampled_from([None, 40])),
    outages=st.sampled_from([(), (Outage(start=60.0, until=90.0, status=503),)]),
    habits=st.builds(Habits, hides_429=st.booleans()),
)


@settings(max_examples=60, deadline=None)
@given(world=WORLDS, policy=st.sampled_from(["aimd", "fixed"]), feedback=st.sampled_from(FEEDBACK), seed=st.integers(0))
def test_nothing_is_lost_and_nothing_made_up(world: Scenario, policy: str, feedback: str, seed: int) -> None:
    run, watched = watched_run(world, policy, feedback, seed)
    for tally, client in zip(run.record.tallies, watched, strict=True):
        decided = len(tally.accepted_at) + len(tally.refused_at) + len(tally.lost_at)
        on_the_way = [attempt for attempt in client.sends if attempt.sent_at > world.duration - 0.1]
        assert decided <= len(client.sends) <= decided + len(on_the_way)
        assert len(client.heads) <= len(tally.accepted_at)
        assert len(client.refusals) <= len(tally.refused_at)
        assert client.ends[True] <= len(client.heads)
        accepted = Counter(attempt.prompt for attempt in client.heads)
        assert not accepted or max(accepted.values()) == 1, "no prompt is answered twice"
        numbers = [attempt.number for attempt in client.sends]
        assert numbers == sorted(set(numbers))


@settings(max_examples=40, deadline=None)
@given(world=WORLDS, feedback=st.sampled_from(FEEDBACK), seed=st.integers(0))
def test_no_quota_is_exceeded(world: Scenario, feedback: str, seed: int) -> None:
    accepted = policy_run(world, "aimd", feedback, seed).record.accepted_at
    if world.upstream.quota == "fixed":
        assert max(Counter(int(at // 60) for at in accepted).values(), default=0) <= 60
    elif world.upstream.quota == "bucket":
        for first, start in enumerate(accepted):
            for last in range(first, min(first + 30, len(accepted))):
                assert last - first + 1 <= 5 + (accepted[last] - start) + 1e-3
    else:
        for earlier, later in zip(accepted, accepted[60:], strict=False):
            assert later - earlier >= 60 - 1e-3


@settings(max_examples=30, deadline=None)
@given(world=WORLDS, policy=st.sampled_from(["aimd", "fixed"]), seed=st.integers(0))
def test_a_retry_after_stops_the_whole_client(world: Scenario, policy: str, seed: int) -> None:
    _, watched = watched_run(world, policy, RETRY_AFTER, seed)
    for client in watched:
        for heard_at, retry_after in client.refusals:
            if retry_after is not None:
                assert not [a for a in client.sends if heard_at < a.sent_at < heard_at + retry_after]


@pytest.mark.parametrize("feedback", FEEDBACK)
def test_one_seed_gives_one_run_and_another_seed_another(feedback: str) -> None:
    world = scenario(FIXED)
    first, again, other = (policy_run(world, feedback=feedback, seed=seed) for seed in (1, 1, 2))
    assert first.figures == again.figures
    assert first.record.accepted_at == again.record.accepted_at
    assert first.record.accepted_at != other.record.accepted_at


# -- what answers tell


def test_what_a_feedback_mode_does_not_tell_is_not_told() -> None:
    world = scenario(FIXED, duration=150.0)
    _, [silent] = watched_run(world, "aimd", NONE)
    assert {retry_after for _, retry_after in silent.refusals} == {None}
    assert set(silent.hints) == {Hints()}
    _, [timed] = watched_run(world, "aimd", RETRY_AFTER)
    assert all(told is not None and told == math.ceil(told) > 0 for _, told in timed.refusals)
    assert set(timed.hints) == {Hints()}
    _, [told] = watched_run(world, "aimd", HEADERS)
    assert {hints.limit for hints in told.hints} == {60.0}
    assert told.hints[0].remaining == 59.0


def test_an_outage_says_nothing_and_takes_nothing() -> None:
    world = scenario(FIXED, outages=(Outage(start=60.0, until=120.0, status=503),))
    run, [client] = watched_run(world, "aimd", HEADERS)
    assert client.statuses[503] >= 3
    assert not [at for at in run.record.accepted_at if 60 <= at < 120]
    assert run.figures["refused_in_outage"] == client.statuses[503]


def test_a_router_that_hides_its_429s_loses_attempts_but_no_prompts() -> None:
    world = scenario(FIXED, habits=Habits(hides_429=True), duration=600.0)
    run, [client] = watched_run(world, "aimd", NONE)
    assert client.ends[False] > 5
    assert run.figures["refused"] == 0.0
    first_tries = list(dict.fromkeys(attempt.prompt for attempt in client.sends))
    assert first_tries == list(range(len(first_tries)))


def test_a_refused_prompt_goes_before_all_that_were_never_admitted() -> None:
    world = scenario({"quota": "fixed", "limit": 3}, latency=Latency(arrival=Span(0.0, 0.0)))
    _, [client] = watched_run(world, "fixed", RETRY_AFTER)
    prompts = [attempt.prompt for attempt in client.sends]
    assert prompts[:6] == [0, 1, 2, 3, 3, 4], "3 is refused, and is the first to go again"


def test_a_neighbour_takes_its_share_and_goodput_counts_it_as_gone() -> None:
    world = scenario(BUCKET, neighbours=(Neighbour(start=0.0, until=300.0, per_second=0.5),), duration=300.0)
    run = simulate(world, lambda seat: make_limiter_client("fixed", {"refill_rate": "0.5"}, seat), NONE, 0)
    assert len(run.record.neighbour_at) == 150
    assert run.figures["refused"] == 0.0
    assert run.figures["goodput"] == pytest.approx(100.0 * 150 / (305 - 150), abs=1.5)


# -- figures


def test_a_steady_client_just_below_the_limit_gets_what_its_pace_says() -> None:
    world = scenario(FIXED, duration=3600.0, offset=17.0)
    run = simulate(world, lambda seat: make_limiter_client("fixed", {"refill_rate": "0.99"}, seat), NONE, 0)
    assert len(ideal_of(world, 0).at) == 61 * 60, "the oracle touches sixty-one windows"
    assert run.figures["goodput"] == pytest.approx(100 * 0.99 * 60 / 61, abs=0.1)
    assert run.figures["refused"] == 0.0
    assert run.figures["second_half"] == pytest.approx(99.0, abs=0.1)
    assert run.figures["first_five_minutes"] == pytest.approx(99.0, abs=0.5)
    assert run.figures["to_ninety"] == pytest.approx(54.0, abs=2.0)
    assert run.figures["wait_p99"] == 0.0
    assert run.figures["recovery"] is run.figures["jain"] is run.figures["finished"] is None
    assert run.figures.keys() == METRICS.keys()


def test_recovery_and_refusals_of_a_cut_are_taken_from_the_steps() -> None:
    steps: dict[str, JSON] = {"quota": "fixed", "limit": [[0, 60], [600, 30], [1200, 60]]}
    world = scenario(steps, duration=1800.0)
    run = simulate(world, lambda seat: make_limiter_client("fixed", {"refill_rate": "0.95"}, seat), NONE, 0)
    refused = [at for at in run.record.refused_at if 600 <= at < 720]
    assert run.figures["refused_after_cut"] == len(refused) > 5
    assert run.figures["recovery"] is not None
    assert 20 < run.figures["recovery"] < 60


def test_jain_tells_a_fair_share_from_an_unfair_one() -> None:
    world = scenario({"quota": "bucket", "rate": 10, "burst": 10}, clients=Clients(joins=(0.0, 0.0)))
    rates = iter(["2", "2", "3", "1"])
    fair, unfair = (
        simulate(world, lambda seat: make_limiter_client("fixed", {"refill_rate": next(rates)}, seat), NONE, 0)
        for _ in range(2)
    )
    assert fair.figures["jain"] == pytest.approx(1.0, abs=1e-3)
    assert unfair.figures["jain"] == pytest.approx(16 / 20, abs=0.01)


def test_an_unbounded_queue_refuses_nobody_and_lets_all_wait() -> None:
    world = scenario(FIXED, upstream=NO_QUOTA, habits=Habits(served_per_second=2.0), clients=Clients(max_in_flight=40))
    figures = simulate_policy(world, "fixed", NONE, 0, {"refill_rate": "5"})
    assert figures["refused"] == 0.0
    assert figures["goodput"] == pytest.approx(100.0, abs=2.0)
    assert figures["first_token"] is not None
    assert figures["first_token"] > 10


def test_tokens_are_counted_in_units_of_a_typical_request() -> None:
    sizes = Workload(output_reserve=4096, prompt_median=2000, prompt_sigma=0.5)
    world = scenario({"quota": "none", "tokens_per_minute": 400_000}, workload=sizes, duration=1200.0)
    run = policy_run(world, "fixed")  # one typical request a second; the limit bears 1.048
    most = 400_000 + 1200 * 400_000 / 60
    assert run.figures["goodput"] == pytest.approx(100 * 1200 * sizes.typical_cost / most, abs=1.0)
    assert run.figures["refused"] == 0.0
    assert {round(rate, 6) for rate in run.clients[0].curve.refill_rates} == {1.0}  # type: ignore[attr-defined]


def test_sizes_do_not_count_where_requests_do() -> None:
    sizes = Workload(output_reserve=4096, prompt_median=2000, prompt_sigma=0.5)
    assert policy_run(scenario(FIXED, workload=sizes)).figures == policy_run(scenario(FIXED)).figures


def test_a_client_that_spins_is_found_out() -> None:
    @define
    class Spinning(Watched):
        def wake_at(self) -> float:
            return 0.0

        def act(self, now: float) -> Sequence[Send]:
            assert now == 0.0
            return ()

    with pytest.raises(AssertionError, match="client 0 spins at 0 s"):
        simulate(scenario(FIXED), lambda seat: Spinning(make_limiter_client("fixed", {}, seat)), NONE, 0)


# -- the daemon

# No multiple of a start rate's interval: what happens in the same instant may happen in either order.
ANSWERS = {"latency": 0.67, "first_token": 0.37, "refusal_delay": 0.05, "words": 1}
PLAYED = Latency(
    arrival=Span(0.0, 0.0),
    refusal=0.05,
    head=Span(0.2479, 0.2479),
    end_median=0.67,
    end_sigma=0.0,
    end=Span(0.67, 0.67),
)


@pytest.mark.parametrize(
    ("upstream", "policy", "feedback"),
    [
        ({"quota": "bucket", "rate": 20, "burst": 20}, "aimd", RETRY_AFTER),
        ({"quota": "fixed", "limit": 200}, "recall", NONE),
        ({"quota": "sliding", "limit": 150}, "aimd", NONE),
    ],
)
def test_it_agrees_with_the_whole_daemon(upstream: dict[str, JSON], policy: str, feedback: str) -> None:
    prompts, hint = 500, "rounded" if feedback == RETRY_AFTER else "none"
    profile = make_profile("test", {**upstream, **ANSWERS, "retry_after": hint})
    lines = [json.dumps({"id": number, "prompt": f"prompt {number}"}).encode() for number in range(prompts)]
    daemon = run_virtual(lines, Provider(profile, calendar_offset=17.0), Settings(policy=policy))
    world = Scenario(
        name="test",
        about="a test",
        upstream=profile,
        offset=17.0,
        duration=3600.0,
        clients=Clients(max_in_flight=Settings().max_in_flight),
        workload=Workload(prompts=prompts),
        latency=PLAYED,
    )
    loop = simulate_policy(world, policy, feedback)
    assert loop["finished"] is not None
    assert loop["refused"] is not None
    possible = 100 * prompts / world.limit_at(0.0)  # goodput in percent, times the seconds it took
    goodput = possible / daemon.elapsed
    assert possible / (loop["finished"] + 0.67) == pytest.approx(goodput, abs=1.0)
    assert loop["refused"] == pytest.approx(100 * daemon.tally.throttled / daemon.tally.attempts, abs=0.3)
