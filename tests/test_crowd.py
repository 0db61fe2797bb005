"""A limit on concurrency that no answer names: told from a limit on a rate by what is beside refusals."""

from __future__ import annotations

from heapq import heappop, heappush
from pathlib import Path
from random import Random

import pytest
from attrs import define, field
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.crowd import TURNS, Crowd
from controller.room import EAGER, LATE, MOST_PATIENCE, PATIENCE, Room
from simulations.closed_loop import simulate_policy
from simulations.scenario_files import load_scenario

PACED = """
about = "A bucket, and answers that all take about the same time."
duration = 1800

[upstream]
quota = "bucket"
rate = {rate}
burst = 10

[clients]
max_in_flight = 64
workers = 64

[latency]
end_median = {middle}
end_sigma = 0.05
end = [{soonest}, {latest}]
"""


@define
class Street:
    """Attempts one after the other, each with the number of those that are open beside it."""

    rng: Random
    seconds: float  # of a stream, on average
    now: float = 0.0
    ends: list[float] = field(factory=list)

    def beside(self, pause: float) -> int:
        """After a pause."""
        self.now += pause
        while self.ends and self.ends[0] <= self.now:
            heappop(self.ends)
        return len(self.ends)

    def admit(self) -> None:
        """One more, of a random length."""
        heappush(self.ends, self.now + self.rng.expovariate(1 / self.seconds))


@settings(deadline=None)
@given(st.integers(2, 60), st.floats(0.05, 2.0), st.integers(0, 2**32))
def test_a_limit_on_concurrency_is_found_within_a_few_refusals(k: int, pause: float, seed: int) -> None:
    street, crowd, found = Street(Random(seed), 10.0), Crowd(), None
    turns, was_refused = 0, False
    while found is None:
        beside = street.beside(pause * 5 / k)
        if beside < k:
            street.admit()
            crowd.accepted(beside)
        else:
            turns += not was_refused
            found = crowd.refused(beside)
        was_refused = beside >= k
        assert turns <= TURNS + 1
    assert found == k


@settings(deadline=None)
@given(
    st.floats(0.5, 100.0), st.sampled_from((2.0, 8.0, 30.0)), st.sampled_from((0.02, 0.05, 0.1)), st.integers(0, 2**32)
)
def test_a_limit_on_a_rate_is_never_taken_for_one(busy: float, seconds: float, share: float, seed: int) -> None:
    """busy: streams under way on average. share: of attempts that are refused, whatever is beside them."""
    rng = Random(seed)
    street, crowd = Street(rng, seconds), Crowd()
    for _ in range(5 * TURNS):  # refusals, each after as many acceptances as chance will have
        while rng.random() > share:
            crowd.accepted(street.beside(rng.expovariate(busy / seconds)))
            street.admit()
        assert crowd.refused(street.beside(rng.expovariate(busy / seconds))) is None


def _found(fits: int) -> Room:
    """A room whose cap no answer named."""
    room = Room()
    for _ in range(TURNS + 1):
        room.accepted(0, fits, fits - 1, 0)
        found = room.crowded(fits, named=None, newest=0)
    assert found
    assert room.limit == fits
    return room


def _named(room: Room, beside: int) -> None:
    assert room.crowded(beside, named="concurrency", newest=0)


def test_a_refusal_that_names_concurrency_says_how_many_fit() -> None:
    room = Room()
    _named(room, 7)
    assert room.limit == 7
    _named(room, 4)
    assert room.limit == 4
    _named(room, 0)
    assert room.limit == 1, "with none nothing would ever be sent"


@settings(max_examples=20)
@given(st.integers(1, 50))
def test_one_more_is_tried_ever_more_rarely_as_long_as_that_fails(limit: int) -> None:
    room, waits = Room(), []
    _named(room, limit)
    for _ in range(7):
        acceptances = 1
        while not room.accepted(1, limit, limit - 1, 0):
            acceptances += 1
        waits.append(acceptances)
        assert room.limit == limit + 1
        _named(room, limit)
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (PATIENCE, MOST_PATIENCE)


def test_after_one_more_has_held_two_more_are_tried_soon() -> None:
    room = Room()
    _named(room, 4)
    for _ in range(PATIENCE):
        room.accepted(1, 4, 3, 0)
    for _ in range(EAGER):
        room.accepted(1, 5, 4, 0)
    assert room.limit == 7


def test_a_cap_of_one_from_an_earlier_run_is_out_of_the_way_within_two_hundred_acceptances() -> None:
    room, acceptances = Room(limit=1), 0
    while room.limit is not None and room.limit < 100:
        room.accepted(1, room.limit, 0, 0)
        acceptances += 1
    assert acceptances <= 200


def test_what_is_let_through_beside_as_many_as_fit_disproves_a_cap_that_no_answer_named() -> None:
    room = _found(10)
    assert room.accepted(1, 10, 10, 0)
    assert room.limit is None
    for _ in range(TURNS + 1):
        room.accepted(0, 10, 9, 0)
        assert not room.crowded(10, named=None, newest=0), "it takes twice the evidence now"


def test_refusals_that_go_on_at_a_cap_that_no_answer_named_disprove_it() -> None:
    room = _found(10)
    assert [room.crowded(9, named=None, newest=0) for _ in range(LATE)] == [True] * (LATE - 1) + [False]
    assert room.limit is None


@pytest.mark.parametrize(("rate", "soonest", "latest"), [(1, 1.2, 1.5), (2, 0.85, 0.95), (3, 1.4, 1.6)])
def test_paced_sending_with_answers_that_take_the_same_time_keeps_its_rate(
    rate: float, soonest: float, latest: float, tmp_path: Path
) -> None:
    path = tmp_path / "paced.toml"
    path.write_text(PACED.format(rate=rate, soonest=soonest, latest=latest, middle=(soonest + latest) / 2))
    figures = simulate_policy(load_scenario(str(path)), feedback="none", seed=0)
    assert (figures["goodput"] or 0.0) >= 98


def test_a_refusal_with_room_to_spare_drops_a_limit_that_no_answer_named() -> None:
    room = _found(10)
    assert not room.crowded(3, named=None, newest=0)
    assert room.limit is None


def test_four_at_once_are_found_without_a_word() -> None:
    figures = simulate_policy(load_scenario("concurrency_four"), feedback="none", seed=1)
    assert (figures["goodput"] or 0.0) >= 95
    assert (figures["refused"] or 0.0) <= 1
