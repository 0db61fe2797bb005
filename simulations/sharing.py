"""The law of several: equal clients with one policy on one key, in the scenarios' own loop.

The table that its bounds come from is of two to four clients and the second hour, after late comers had time to find
their place. Nobody tells a client of the others.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from random import Random

from attrs import frozen
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from controller.adaptive import AdaptiveBucket
from controller.limiter import Limiter
from policies.law import Subject
from simulations.closed_loop import LimiterClient, Run, Seat, simulate
from simulations.knobs import Profile
from simulations.scenario import NONE, RETRY_AFTER, Clients, Scenario
from simulations.tally import Tally

LIMIT = 6.0  # units/s for all together, as in the table; of a few a minute each, nobody can measure a share
BURST = 10.0  # units, of the bucket
LENGTH = 7200.0  # s; the second half is judged
LEAST_JAIN = 0.75
LEAST_SHARE = 0.2  # of an equal one; who gets less starves
SPANS = 12  # of a story
IN_FLIGHT = 100_000  # attempts; the policy's rate is on trial, not this


@frozen(kw_only=True)
class Sharing:
    """A case. kind: of quota, in a profile's words; apart: seconds between two clients' joining; length: in seconds."""

    clients: int
    kind: str
    apart: float
    feedback: str
    seed: int
    length: float = LENGTH

    def scenario(self) -> Scenario:
        """As a world of the closed loop."""
        per_minute = None if self.kind == "bucket" else 60 * LIMIT
        return Scenario(
            name="sharing",
            about="",
            upstream=Profile(
                quota=self.kind,
                limit=per_minute,
                rate=None if per_minute else LIMIT,
                burst=None if per_minute else BURST,
            ),
            duration=self.length,
            clients=Clients(joins=tuple(self.apart * n for n in range(self.clients))),
        )


def sharings() -> SearchStrategy[Sharing]:
    """Two on a window are the simplest, and a late comer has the harder part."""
    return st.builds(
        Sharing,
        clients=st.integers(2, 4),
        kind=st.sampled_from(("fixed", "sliding", "bucket")),
        apart=st.sampled_from((600.0, 0.0)),
        feedback=st.sampled_from((NONE, RETRY_AFTER)),
        seed=st.integers(0, 1000),
    )


def takes_too_much(subject: Subject, case: Sharing) -> str | None:
    """By what each got in the second half."""
    run = _run(subject, case)
    faults = [fault for client in run.clients if isinstance(client, LimiterClient) for fault in client.faults]
    if faults:
        return f"the limiter had to replace it: {faults[0]}"
    shares = [_accepted(tally, case.length / 2, case.length) for tally in run.record.tallies]
    poorest, jain = min(shares), run.figures["jain"]
    if poorest < LEAST_SHARE * sum(shares) / len(shares) or not sum(shares):
        return f"a client starves: {poorest} attempts accepted late in the run, of {sum(shares)} for all"
    if jain is None or jain < LEAST_JAIN:
        return f"late in the run the clients got {_words(shares)}: Jain's index {jain:.2f}, should be {LEAST_JAIN}"
    return None


def shares_told(subject: Subject, case: Sharing) -> list[str]:
    """What each client got, span by span."""
    how = f"{case.clients} clients, {case.apart:g} s apart, feedback {case.feedback}, seed {case.seed}"
    lines = [f"limit {LIMIT:g} units/s ({case.kind}) for all, {how}"]
    tallies = _run(subject, case).record.tallies
    for n in range(SPANS):
        start, end = n * case.length / SPANS, (n + 1) * case.length / SPANS
        got = _words([_accepted(tally, start, end) for tally in tallies])
        refused = sum(bisect_left(tally.refused_at, end) - bisect_left(tally.refused_at, start) for tally in tallies)
        lines.append(f"{start:6.0f} to {end:.0f} s: {got} accepted, {refused} refused")
    return lines


@functools.lru_cache(maxsize=4)
def _run(subject: Subject, case: Sharing) -> Run:
    def client(seat: Seat) -> LimiterClient:
        policy = subject.policy_class(subject.options, seed=seat.seed, now=seat.joined_at)
        limiter = Limiter({seat.dimension: AdaptiveBucket(policy, seat.joined_at)}, IN_FLIGHT)
        return LimiterClient(limiter, seat.backlog, Random(f"{seat.seed}/pauses"), seat.dimension, seat.unit)

    return simulate(case.scenario(), client, case.feedback, case.seed)


def _accepted(tally: Tally, start: float, end: float) -> int:
    return bisect_left(tally.accepted_at, end) - bisect_left(tally.accepted_at, start)


def _words(counts: list[int]) -> str:
    return ", ".join(map(str, counts))
