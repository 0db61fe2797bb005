"""The latency-driven law: against servers that refuse nobody, then its rules by numbers."""

from __future__ import annotations

import heapq
from collections import deque
from math import inf
from random import Random
from statistics import median

import pytest
from attrs import define, field

from policies.contract import Accepted, Admitted, LimitedBy, Pace, Refused, Settled, Unknown
from policies.gradient import Gradient, GradientOptions
from simulations.closed_loop import simulate_policy
from simulations.scenario_files import load_scenario

START = 1000.0


def gradient(**options: float) -> Gradient:
    return Gradient(GradientOptions(**options), seed=0, now=START)


@define
class Server:
    """`slots` places of `service` seconds before a queue without end, and a sender that always has another prompt.

    share: the part of the service after which the first token comes. Figures are kept from the second quarter on.
    """

    slots: int
    service: float
    share: float
    rng: Random = field(factory=lambda: Random(1))
    firsts: list[float] = field(factory=list)  # seconds
    ended: int = 0

    def serve(self, policy: Gradient, duration: float) -> None:
        now, next_at, permits, in_flight = START, START, 0, 0
        waiting: deque[Admitted] = deque()
        busy: list[tuple[float, int, Admitted, float]] = []  # (end, permit, admitted, first token)
        while now < START + duration:
            now = min(busy[0][0] if busy else inf, next_at if in_flight < _limit(policy) else inf)
            while busy and busy[0][0] <= now:
                _, _, admitted, first_at = heapq.heappop(busy)
                policy.on(Settled(**_facts(admitted, now, in_flight), true_cost=1.0, first_token_at=first_at))  # type: ignore[arg-type]
                in_flight -= 1
                self.ended += now > START + duration / 4
            while in_flight < _limit(policy) and now >= next_at:
                in_flight += 1
                waiting.append(_admitted(now, permits, in_flight))
                policy.on(waiting[-1])
                permits, next_at = permits + 1, max(now, next_at) + 1 / policy.pace.refill_rate
                policy.on(Accepted(**_facts(waiting[-1], now, in_flight)))  # type: ignore[arg-type]  # its head comes early
            while waiting and len(busy) < self.slots:
                admitted, service = waiting.popleft(), self.service * self.rng.uniform(0.8, 1.2)
                first_at = now + self.share * service
                heapq.heappush(busy, (now + service, admitted.permit, admitted, first_at))
                if now > START + duration / 4:
                    self.firsts.append(first_at - admitted.now)


def _limit(policy: Gradient) -> int:
    assert policy.pace.in_flight_limit is not None
    return policy.pace.in_flight_limit


def _admitted(now: float, permit: int, in_flight: int) -> Admitted:
    return Admitted(
        now=now,
        permit=permit,
        admitted_at=now,
        cost=1.0,
        limited_by=LimitedBy.RATE,
        in_flight=in_flight,
        refill_rate=5.0,
    )


def _facts(admitted: Admitted, now: float, in_flight: int) -> dict[str, object]:
    return {
        "now": now,
        "permit": admitted.permit,
        "admitted_at": admitted.now,
        "cost": 1.0,
        "limited_by": LimitedBy.RATE,
        "in_flight": in_flight,
        "refill_rate": 5.0,
    }


@pytest.mark.parametrize(
    ("slots", "service", "share"),
    [(1, 1.0, 0.5), (4, 1.0, 1.0), (16, 2.0, 0.2), (64, 10.0, 0.05), (100, 5.0, 0.3)],
)
def test_a_queue_without_end_is_kept_short_and_the_server_busy(slots: int, service: float, share: float) -> None:
    server = Server(slots, service, share)
    server.serve(gradient(), 1600.0)
    assert server.ended / 1200.0 >= 0.9 * slots / service
    assert median(server.firsts) < 3 * share * service


def test_the_queue_of_the_simulator_is_kept_short_too() -> None:
    figures = simulate_policy(load_scenario("unbounded_queue"), "gradient", seed=1)
    goodput, first_token = figures["goodput"], figures["first_token"]
    assert goodput is not None
    assert first_token is not None
    assert goodput >= 90
    assert first_token < 3


# -- by numbers


class Sender:
    """Plays rounds in which each attempt has its first token and its end after so many seconds."""

    def __init__(self, policy: Gradient) -> None:
        self.policy, self.now, self.permit = policy, START, -1

    def play(self, attempts: int, *, first: float, total: float = 10.0, in_flight: int | None = None) -> Pace:
        reached = _limit(self.policy) if in_flight is None else in_flight
        admitted = []
        for _ in range(attempts):
            self.permit += 1
            admitted.append(_admitted(self.now, self.permit, reached))
            self.policy.on(admitted[-1])
        sent_at, self.now = self.now, self.now + total
        for each in admitted:
            facts = _facts(each, self.now, reached)
            self.policy.on(Settled(**facts, true_cost=1.0, first_token_at=sent_at + first))  # type: ignore[arg-type]
        return self.policy.pace


def test_the_limit_doubles_while_nothing_queues_and_rises_by_one_for_each_end() -> None:
    sender = Sender(gradient(start_in_flight=16))
    assert sender.play(8, first=0.5).in_flight_limit == 16
    assert sender.play(4, first=0.5).in_flight_limit == 20
    assert sender.play(100, first=0.5).in_flight_limit >= 32  # type: ignore[operator]


def test_a_queue_takes_away_what_stands_in_it() -> None:
    sender = Sender(gradient(start_in_flight=8, tolerance=1.0))
    sender.play(8, first=1.0, total=11.0)
    sender.play(8, first=1.0 + 10.0, total=21.0)  # at a limit of 16: ten seconds in line, eleven without one
    queue, spare = 16 * 10 / 21, 16 * 1 / 12
    assert sender.policy.limit == pytest.approx(16 - queue + spare)


def test_a_round_that_did_not_reach_the_limit_does_not_raise_it() -> None:
    sender = Sender(gradient(start_in_flight=16))
    sender.play(100, first=0.5, in_flight=3)
    assert sender.policy.limit == 16
    sender.play(8, first=0.5)
    sender.play(50, first=5.0)  # a queue: no more doubling from here on
    before = sender.policy.limit
    sender.play(100, first=0.5, in_flight=3)
    assert sender.policy.limit == before
    sender.play(100, first=0.5)
    assert sender.policy.limit > before


def test_attempts_from_before_a_change_are_not_judged() -> None:
    sender = Sender(gradient(start_in_flight=16))
    policy = sender.policy
    old = [_admitted(START, permit, 16) for permit in range(40)]
    for each in old:
        policy.on(each)
    for each in old[:8]:
        facts = _facts(each, START + 10, 16)
        policy.on(Settled(**facts, true_cost=1.0, first_token_at=START + 0.5))  # type: ignore[arg-type]
    for each in old[8:]:
        facts = _facts(each, START + 30, 16)
        policy.on(Settled(**facts, true_cost=1.0, first_token_at=START + 20))  # type: ignore[arg-type]
    assert policy.limit == 32, "they queued, but under the old limit"
    assert policy.floor == 0.5


def test_a_server_that_got_slower_for_good_gets_a_new_floor() -> None:
    sender = Sender(gradient(start_in_flight=64))
    sender.play(32, first=0.5)
    for _ in range(60):
        sender.play(max(8, int(sender.policy.limit)), first=2.0)
    assert sender.policy.floor == 2.0
    assert sender.policy.limit > 32, "half the load did not help, so it was no queue"


def test_an_old_floor_is_measured_again_at_half_the_limit() -> None:
    sender = Sender(gradient(start_in_flight=40, floor_lifetime=100))
    limits = []
    for _ in range(30):
        before = sender.policy.limit
        sender.play(60, first=0.5, in_flight=20)
        limits.append(sender.policy.limit / before)
    assert min(limits) == 0.5
    assert sender.policy.limit == 40


def test_refusals_hold_and_cut_the_rate_as_aimd_does_and_leave_the_limit() -> None:
    policy = gradient(start_rate=10.0)
    admitted = _admitted(START, 0, 1)
    policy.on(admitted)
    facts = _facts(admitted, START + 0.1, 1) | {"refill_rate": 10.0}
    pace = policy.on(Refused(**facts))  # type: ignore[arg-type]
    assert pace.refill_rate == pytest.approx(7.0)
    assert (pace.unresolved_limit, pace.in_flight_limit) == (1, 16)
    assert pace.held_until > START


def test_without_a_first_token_the_head_stands_for_it() -> None:
    policy = gradient(start_in_flight=8)
    for permit in range(8):
        admitted = _admitted(START, permit, permit + 1)
        policy.on(admitted)
        policy.on(Accepted(**_facts(admitted, START + 0.4, 8)))  # type: ignore[arg-type]
        policy.on(Settled(**_facts(admitted, START + 5.0, 8), true_cost=1.0))  # type: ignore[arg-type]
    assert policy.floor == pytest.approx(0.4)


def test_what_was_lost_is_forgotten() -> None:
    policy = gradient()
    for permit in range(1000):
        admitted = _admitted(START, permit, 1)
        policy.on(admitted)
        policy.on(Accepted(**_facts(admitted, START + 0.4, 1)))  # type: ignore[arg-type]
        policy.on(Unknown(**_facts(admitted, START + 5.0, 1)))  # type: ignore[arg-type]
    assert policy.snapshot(START + 5.0)["heads"] == []


def test_a_snapshot_of_another_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="snapshot"):
        Gradient.restore(GradientOptions(), {"limit": "many"}, seed=0, now=START)
