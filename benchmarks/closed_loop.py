"""Attempts a CPU second in the closed loop: what simulated traffic costs.

    python benchmarks/closed_loop.py [POLICY ...]

A run is everything that `tidegate simulate` does for one cell of its table but the oracle, which many runs share: the
loop, the limiter, the policy, the hidden quota and the figures. CPU time of this process, so others on the machine
disturb little.
"""

from __future__ import annotations

import statistics
import sys
import time

from attrs import define, evolve, field

from simulations.closed_loop import simulate
from simulations.oracle import ideal_of
from simulations.runs import maker_of, uncollected
from simulations.scenario import FEEDBACK, Scenario
from simulations.scenario_files import load_scenario

ROUNDS = 5
DURATION = 1800.0  # s of simulated traffic a run
SCENARIOS = ("u1_fixed_window", "u3_gcra")
POLICIES = ("recall", "aimd")


@define(eq=False)
class Plan:
    """A run to be repeated, and what came of it in attempts a CPU second."""

    scenario: Scenario
    policy: str
    feedback: str
    rates: list[float] = field(factory=list, init=False)

    def measure(self, seed: int) -> None:
        """Once."""
        maker = maker_of(self.policy, self.scenario)
        began = time.process_time()
        with uncollected():
            run = simulate(self.scenario, maker, self.feedback, seed)
        self.rates.append(len(run.record.sent_at) / (time.process_time() - began))


def main() -> None:
    """Interleave, repeat, print median and spread."""
    scenarios = [evolve(load_scenario(name), duration=DURATION) for name in SCENARIOS]
    policies = sys.argv[1:] or POLICIES
    plans = [Plan(each, policy, feedback) for each in scenarios for policy in policies for feedback in FEEDBACK]
    for plan in plans:
        ideal_of(plan.scenario, 0)  # asked once for all
    for seed in range(ROUNDS):
        for plan in plans:
            plan.measure(seed)
    for plan in plans:
        title = f"{plan.scenario.name}, {plan.policy}, {plan.feedback}"
        median, spread = statistics.median(plan.rates), f"{min(plan.rates):,.0f} .. {max(plan.rates):,.0f}"
        print(f"{title:36} median {median:8,.0f} attempts a CPU second   {spread}")


if __name__ == "__main__":
    main()
