"""The default policy on scenarios drawn at random: goodput of the second half and share of refusals.

    python benchmarks/random_scenarios.py [COUNT] [FIRST_SEED] [POLICY]

Limits from 5 to 2,000 per minute, evenly on a logarithmic scale; fixed windows of any phase,
sliding logs, token buckets with a burst of 1 to 60 s; all three kinds of feedback; arrival and
answer delays from LAN to slow. One hour each. The seed says it all, so a bad case is run again by its seed.
"""

from __future__ import annotations

import math
import multiprocessing
import random
import statistics
import sys

from attrs import frozen

from simulations.closed_loop import simulate_policy
from simulations.profile import make_profile
from simulations.scenario import DEFAULT_POLICY, FEEDBACK, Latency, Scenario, Span

HOUR = 3600.0


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
        duration=HOUR,
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


def main() -> None:
    """Draw, run on all cores, print quantiles and the worst cases."""
    count, first = (int(text) for text in (sys.argv[1:3] + ["300", "0"][len(sys.argv[1:3]) :]))
    policy = sys.argv[3] if len(sys.argv) > 3 else DEFAULT_POLICY
    jobs = [(seed, policy) for seed in range(first, first + count)]
    with multiprocessing.get_context("spawn").Pool() as pool:
        cases = list(pool.imap_unordered(measure, jobs, chunksize=4))
    goodput = sorted(case.goodput for case in cases)
    refused = sorted(case.refused for case in cases)
    at = statistics.quantiles(goodput, n=20)[0], statistics.quantiles(refused, n=20)[-1]
    print(f"{policy}, {count} scenarios from seed {first}")
    print(
        f"  second-half goodput  p5 {at[0]:.1f} %  least {goodput[0]:.1f} %  median {statistics.median(goodput):.1f} %"
    )
    print(
        f"  429 share            median {statistics.median(refused):.2f} %  p95 {at[1]:.2f} %  most {refused[-1]:.2f} %"
    )
    for case in sorted(cases, key=lambda case: case.goodput)[:6]:
        print(f"  seed {case.seed}: {case.about}: {case.goodput:.1f} % / {case.refused:.2f} %")
    for case in sorted(cases, key=lambda case: -case.refused)[:4]:
        print(f"  seed {case.seed}: {case.about}: {case.goodput:.1f} % / {case.refused:.2f} %")


if __name__ == "__main__":
    main()
