"""Answers out of order: the same answers to attempts under way together, told in two orders, some of them twice.

Attempts overtake each other on their way, and a refusal may come after the success of a later attempt. None of that
is news of the rate, so two orders may end at most one cut apart: where the past ends in a block, a refusal is one more
failed probe if it comes first, and a cut if a success has ended the block before it. A cut may take two steps, one at
the refusal and one at the end of its block, which has measured more.

The attempts are limited by the application, so that no success among them raises anything and only cuts are compared.
From the first refusal on, probes are sent between the answers, and refused: what an old answer may undo is the memory
of the block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from attrs import frozen
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from policies.complaints import EXACTLY
from policies.contract import Admitted, LimitedBy, Scope
from policies.law import Subject
from policies.stories import tell
from policies.traces import START, Player, Step, Told, Trace, traces

GAP = 0.05  # s between two answers
UNDER_WAY = Step(what="admit", limited_by=LimitedBy.APP)
PROBE = Step(what="probe", limited_by=LimitedBy.APP)
REFUSAL = Step(what="refuse", which=-1, scope=Scope.DIMENSION)  # of the newest
OVER = (Step(what="end"), PROBE, Step(what="accept"))


@frozen(kw_only=True)
class Disorder:
    """A case. refused: the fates of the attempts; orders: two, of their numbers; probes: refused, once blocked."""

    trace: Trace  # what went before
    refused: tuple[bool, ...]
    orders: tuple[tuple[int, ...], tuple[int, ...]]
    probes: int


def disorders() -> SearchStrategy[Disorder]:
    """Often the two extremes: all refusals before all successes, and the reverse."""
    fates = st.booleans()
    return (st.lists(fates, min_size=2, max_size=8) | st.lists(fates, min_size=5, max_size=8)).flatmap(_orders)


def _orders(refused: list[bool]) -> SearchStrategy[Disorder]:
    numbers = range(len(refused))
    refusals_first = tuple(sorted(numbers, key=lambda number: not refused[number]))
    twice = st.lists(st.sampled_from(numbers), max_size=3)
    return st.builds(
        Disorder,
        trace=traces(),
        refused=st.just(tuple(refused)),
        orders=st.tuples(
            st.just(refusals_first) | st.permutations(numbers).map(tuple),
            st.just(refusals_first[::-1]) | twice.flatmap(lambda again: st.permutations([*numbers, *again])).map(tuple),
        ),
        probes=st.sampled_from((4, 0, 2)),
    )


@frozen
class _Ending:
    """Of one order. before, after: rates; cut: the deepest fall at one event or in one block, as a factor."""

    before: float
    after: float
    cut: float


def disturbed(subject: Subject, case: Disorder) -> str | None:
    """One cut: the deepest fall of the harsher order, or all that the milder one has lost."""
    milder, harsher = sorted((_end(subject, case, order) for order in case.orders), key=lambda end: -end.after)
    one_cut = min(harsher.cut, milder.after / milder.before)
    if harsher.after < (1 - EXACTLY) * one_cut * milder.after:
        return f"the order of the answers decides whether the rate ends at {milder.after:g} or at {harsher.after:g}"
    return None


def _end(subject: Subject, case: Disorder, order: Sequence[int]) -> _Ending:
    player = _player(subject, case)
    for _ in _past(player, case):
        pass
    before = player.policy.pace.refill_rate
    cut = min(_falls(_answers(player, case, order)))  # which plays them
    return _Ending(before, player.policy.pace.refill_rate, cut)


def _falls(answers: Iterable[Told]) -> Iterator[float]:
    """At each event; at the end of a block together with that at its beginning, not with what fell in between."""
    first = 1.0
    for told in answers:
        fall = told.pace.refill_rate / told.before.refill_rate
        began, ended = (pace.unresolved_limit is not None for pace in (told.before, told.pace))
        yield fall * first if began and not ended else fall
        if ended:
            first = first if began else fall


def _player(subject: Subject, case: Disorder) -> Player:
    return Player(policy=subject.make(START), ceiling=case.trace.ceiling, now=START)


def _past(player: Player, case: Disorder) -> Iterator[Told]:
    return player.play((*case.trace.steps, Step(what="end")))


def _answers(player: Player, case: Disorder, order: Sequence[int]) -> Iterator[Told]:
    attempts = []
    for _ in case.refused:
        yield (told := player.admit(UNDER_WAY))
        assert isinstance(told.event, Admitted)
        attempts.append(told.event)
    probes, blocked = case.probes, False
    for number in order:
        player.now += GAP
        attempt, refused = attempts[number], case.refused[number]
        yield player.refuse_one(attempt, REFUSAL) if refused else player.accept(attempt)
        blocked = blocked or refused
        if blocked and probes:
            yield from player.play((PROBE, REFUSAL))
            probes -= 1
    # As many in every order: a refused probe may be news.
    yield from player.play((*probes * (PROBE, REFUSAL), *OVER))


def retold(subject: Subject, case: Disorder) -> list[str]:
    """Both orders, one after the other."""
    lines = []
    for word, order in zip(("in one order", "in another"), case.orders, strict=True):
        player = _player(subject, case)
        lines += [f"{word}:", *tell(player, chain(_past(player, case), _answers(player, case, order)))]
    return lines
