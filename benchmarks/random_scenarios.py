"""The default policy on scenarios drawn at random: goodput of the second half and share of refusals.

    python benchmarks/random_scenarios.py [COUNT] [FIRST_SEED] [POLICY]

Limits from 5 to 2,000 per minute, evenly on a logarithmic scale; fixed windows of any phase, sliding logs, token
buckets with a burst of 1 to 60 s; all three kinds of feedback; arrival and answer delays from LAN to slow. Two hours
each, as in all scenarios that have goals. The seed says it all, so a bad case is run again by its seed.
"""

from __future__ import annotations

import math
import multiprocessing
import random
import statistics
import sys
from collections.abc import Sequence

from attrs import frozen

from simulations.closed_loop import simulate_policy
from simulations.profile import make_profile
from simulations.scenario import DEFAULT_POLICY, FEEDBACK, Latency, Scenario, Span

DURATION = 7200.0  # s


@frozen
class Case:
    """One drawn world and what came out, in percent."""

    seed: int
    about: str
    goodput: float
    refused: float


def draw(seed: int) -> tuple[Scenario, str]:
    """The scenario and the feedback of a seed."""
    rng = random.Random(f"{seed}/scenario")
    per_minute = round(5 * 400 ** rng.random())
    quota = rng.choice(["fixed", "sliding", "bucket"])
    burst = max(1.0, per_minute / 60 * 60 ** rng.random())
    parameters = {"quota": quota, "limit": per_minute, "period": 60}
    if quota == "bucket":
        parameters |= {"burst": round(burst, 2)}
    head = rng.uniform(0.1, 2.0)
    arrival = rng.uniform(0.005, 0.1)
    scenario = Scenario(
        name=f"random {seed}",
        about="drawn at random",
        upstream=make_profile("random", parameters),
        offset=rng.uniform(0, 60),
        duration=DURATION,
        latency=Latency(
            arrival=Span(arrival / 5, arrival),
            refusal=rng.uniform(arrival, 0.5),
            head=Span(head / 2, head),
            end_median=rng.uniform(2, 15),
        ),
    )
    return scenario, rng.choice(FEEDBACK)


def measure(job: tuple[int, str]) -> Case:
    """Run the world of a seed."""
    seed, policy = job
    scenario, feedback = draw(seed)
    figures = simulate_policy(scenario, policy, feedback, seed)
    profile = scenario.upstream
    about = f"{profile.quota} {scenario.limit_at(0) * 60:.0f}/min burst {profile.burst} {feedback}"
    return Case(seed, about, figures["second_half"] or math.nan, figures["refused"] or 0.0)


def measure_all(count: int, first: int, policy: str) -> list[Case]:
    """On all cores, in the order of the seeds."""
    jobs = [(seed, policy) for seed in range(first, first + count)]
    with multiprocessing.get_context("spawn").Pool() as pool:
        return pool.map(measure, jobs, chunksize=4)


def broken(cases: Sequence[Case]) -> list[str]:
    """The goals that do not hold, in words."""
    goodput, refused = [case.goodput for case in cases], [case.refused for case in cases]
    goals = {
        "second-half goodput at p5 under 96 %": statistics.quantiles(goodput, n=20)[0] >= 96,
        "a case under 90 %": min(goodput) >= 90,
        "429 share above 0.4 % at the median": statistics.median(refused) <= 0.4,
        "429 share above 1.3 % at p95": statistics.quantiles(refused, n=20)[-1] <= 1.3,
    }
    return [words for words, holds in goals.items() if not holds]


def report(cases: Sequence[Case]) -> list[str]:
    """Quantiles, and the worst by goodput and by share of refusals."""
    goodput, refused = [case.goodput for case in cases], [case.refused for case in cases]
    fifth, most = statistics.quantiles(goodput, n=20)[0], statistics.quantiles(refused, n=20)[-1]
    middle = statistics.median(goodput), statistics.median(refused)
    worst = [*sorted(cases, key=lambda case: case.goodput)[:6], *sorted(cases, key=lambda case: -case.refused)[:4]]
    return [
        f"second-half goodput: p5 {fifth:.1f} %, least {min(goodput):.1f} %, median {middle[0]:.1f} %",
        f"429 share: median {middle[1]:.2f} %, p95 {most:.2f} %, most {max(refused):.2f} %",
        *(f"seed {one.seed}: {one.about}: {one.goodput:.1f} % / {one.refused:.2f} %" for one in dict.fromkeys(worst)),
    ]


def main() -> None:
    """Draw, run, print."""
    count, first = (int(text) for text in (sys.argv[1:3] + ["300", "0"][len(sys.argv[1:3]) :]))
    policy = sys.argv[3] if len(sys.argv) > 3 else DEFAULT_POLICY
    print(f"{policy}, {count} scenarios from seed {first}")
    print("\n".join(f"  {line}" for line in report(measure_all(count, first, policy))))


if __name__ == "__main__":
    main()
