"""What settings that are read again do to limiters at work: more or less at once, and nothing is forgotten."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from controller.charges import Charge
from controller.crew import Crew
from controller.gates import Renewal, limiter_maker
from controller.knowledge import Lessons
from controller.limiter import Limiter
from controller.outcome import Answer, Completed, Throttled
from controller.permits import Booking
from controller.settings import Settings
from controller.supervisor import Supervisor
from policies import registry

COST = {"requests": 1.0, "tokens": 100.0, "input_tokens": 50.0, "output_tokens": 50.0}
DONE = Completed(answer=Answer(text="yo", finish_reason="stop", model="m", usage=None, body={}))


def made(**changed: object) -> Limiter:
    return limiter_maker(Settings(**changed))(0.0, Lessons(), {})  # type: ignore[arg-type]


def renew(limiter: Limiter, now: float, *, options_changed: bool = False, **changed: object) -> None:
    Renewal.of(Settings(**changed), Charge.LARGER, options_changed=options_changed).apply(limiter, now)  # type: ignore[arg-type]


def admit_all(limiter: Limiter, begin: float, end: float) -> list[Booking]:
    """Ask every 10 ms; each attempt is accepted at once and stays open."""
    bookings = []
    for step in range(int((end - begin) * 100)):
        now = begin + step / 100
        booking = limiter.admit(COST, now)
        if isinstance(booking, Booking):
            limiter.accept(booking, {}, now)
            bookings.append(booking)
    return bookings


def test_another_ceiling_counts_what_was_admitted_in_the_last_minute() -> None:
    limiter = made(policy="fixed", policy_option=("refill_rate=50",), requests_per_minute=600.0, max_in_flight=10_000)
    before = admit_all(limiter, 0.0, 10.0)
    renew(
        limiter,
        10.0,
        policy="fixed",
        policy_option=("refill_rate=50",),
        requests_per_minute=120.0,
        max_in_flight=10_000,
    )
    after = admit_all(limiter, 10.0, 60.0)
    assert 90 <= len(before) <= 101
    assert len(before) + len(after) <= 120


def test_a_ceiling_that_is_taken_away_lets_open_attempts_end() -> None:
    limiter = made(policy="fixed", policy_option=("refill_rate=50",), requests_per_minute=60.0, tokens_per_minute=1e6)
    bookings = admit_all(limiter, 0.0, 5.0)
    renew(limiter, 5.0, policy="fixed", policy_option=("refill_rate=50",))
    for booking in bookings:
        limiter.settle(booking, DONE, 5.0, true_cost={"requests": 1.0})
    assert len(admit_all(limiter, 5.0, 6.0)) > 20


def test_a_lower_cap_admits_nothing_until_enough_have_ended() -> None:
    limiter = made(policy="fixed", policy_option=("refill_rate=50",), max_in_flight=10)
    bookings = admit_all(limiter, 0.0, 5.0)
    renew(limiter, 5.0, policy="fixed", policy_option=("refill_rate=50",), max_in_flight=3)
    for booking in bookings[:7]:
        assert not isinstance(limiter.admit(COST, 5.0), Booking)
        limiter.settle(booking, DONE, 5.0)
    limiter.settle(bookings[7], DONE, 5.0)
    assert len(admit_all(limiter, 6.0, 7.0)) == 1


@pytest.mark.parametrize("name", sorted(registry.BUILT_IN))
@given(st.integers(0, 4), st.booleans())
def test_a_renewed_policy_takes_the_ends_of_attempts_that_it_did_not_see_begin(
    name: str, refused: int, again: bool
) -> None:
    limiter = made(policy=name, max_in_flight=100)
    bookings = admit_all(limiter, 0.0, 2.0)
    renew(limiter, 2.0, options_changed=True, policy=name, max_in_flight=100)
    for at, booking in enumerate(bookings):
        outcome = Throttled(status=429, message="slow down") if at < refused else DONE
        limiter.settle(booking, outcome, 2.0 + at / 100)
    if again:
        admit_all(limiter, 300.0, 310.0)
    assert all(bucket.fault is None for bucket in limiter.dimensions.values())


async def test_a_crew_grows_and_never_shrinks_while_there_is_work(autojump_clock: object) -> None:
    crew, begun = Crew(2), 0

    def begin() -> bool:
        nonlocal begun
        begun += 1
        return True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(crew.hire, begin)
        for size, there in ((1, 2), (5, 5), (3, 5), (6, 6)):
            crew.grow(size)
            await trio.sleep(1)
            assert begun == there
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("told", "watchdog"),
    [
        ({}, None),
        ({"NOTIFY_SOCKET": "/x"}, None),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "3000000"}, 3.0),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, None),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "3000000"}, None),
    ],
)
def test_a_watchdog_is_answered_only_if_it_is_ours(told: dict[str, str], watchdog: float | None) -> None:
    assert Supervisor.of(told).watchdog == watchdog
