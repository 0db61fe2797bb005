"""The queue's rules without a clock: order, who is woken, and what a head need not ask again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controller.adaptive import AdaptiveBucket
from controller.limiter import Limiter
from controller.outcome import Answer, Completed
from controller.permits import Blocked, Booking, Wait
from controller.waiters import Ticket, Waiters
from policies.contract import LimitedBy
from policies.fixed import Fixed, FixedOptions

ONE = {"requests": 1.0}
OK = Completed(answer=Answer(text="yes", finish_reason="stop", model=None, usage=None, body={}))


def waiters_at(rate: float, *, max_in_flight: int = 100) -> Waiters:
    policy = Fixed(FixedOptions(refill_rate=rate), seed=0, now=0.0)
    return Waiters(Limiter({"requests": AdaptiveBucket(policy, 0.0)}, max_in_flight))


@given(steps=st.lists(st.tuples(st.sampled_from(("join", "again", "leave")), st.integers(0, 50)), max_size=60))
def test_whoever_leaves_the_others_keep_their_order_and_refused_ones_go_first(steps: list[tuple[str, int]]) -> None:
    waiters = waiters_at(1.0)
    again: list[Ticket] = []
    fresh: list[Ticket] = []
    for what, which in steps:
        queue = [*again, *fresh]
        if what != "leave":
            (again if what == "again" else fresh).append(waiters.join(again=what == "again"))
        elif queue:
            ticket = queue[which % len(queue)]
            (again if ticket in again else fresh).remove(ticket)
            woken = waiters.leave(ticket)
            following = next(iter([*again, *fresh]), None)
            assert woken is (following if ticket is queue[0] else None)
        assert waiters.head is next(iter([*again, *fresh]), None)
        assert len(waiters) == len(again) + len(fresh)


@given(gaps=st.lists(st.floats(0.0, 3.0), min_size=1, max_size=30), cap=st.integers(1, 4))
def test_a_head_that_is_not_woken_would_have_been_told_the_same(gaps: list[float], cap: int) -> None:
    waiters, now = waiters_at(1.0, max_in_flight=cap), 0.0
    under_way: list[Booking] = []
    for gap in gaps:
        now += gap
        head = waiters.head or waiters.join()
        answer = waiters.ask(head, ONE, now)
        if isinstance(answer, Booking):
            waiters.leave(head)
            under_way.append(answer)
            continue
        if not under_way:
            continue
        waiters.limiter.accept(under_way[0], {}, now)
        waiters.limiter.settle(under_way.pop(0), OK, now)
        if waiters.freed(more=False) is None:
            assert waiters.limiter.admit(ONE, now, waited=answer) == answer
        else:
            assert answer.by is not Blocked.RATE


def test_whoever_follows_a_waiting_head_was_held_back_by_the_same_thing() -> None:
    waiters = waiters_at(1.0)
    first = waiters.ask(head := waiters.join(), ONE, 0.0)
    assert isinstance(first, Booking)
    assert first.limited_by == {"requests": LimitedBy.APP}
    waiters.leave(head)
    head, follower = waiters.join(), waiters.join()
    assert isinstance(waiters.ask(head, ONE, 0.0), Wait)
    assert isinstance(waiters.ask(head, ONE, 5.0), Booking)
    assert waiters.leave(head) is follower
    assert isinstance(told := waiters.ask(follower, ONE, 9.0), Booking)
    assert told.limited_by == {"requests": LimitedBy.RATE}


def test_a_bucket_that_holds_more_than_it_was_to_frees_a_head_that_waits_for_it() -> None:
    waiters = waiters_at(1.0)
    waiters.ask(first := waiters.join(), ONE, 0.0)
    waiters.leave(first)
    head = waiters.join()
    assert isinstance(waiters.ask(head, ONE, 0.0), Wait)
    assert waiters.freed(more=False) is None
    assert waiters.freed(more=True) is head
