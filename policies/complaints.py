"""What breaks a law on a trace of events: each function plays the trace and complains, or finds nothing to say.

They look at what a policy answers, never at how it is made; the laws themselves stand in policies/laws.py.
An epoch, here, begins with a refusal that lowers the rate. Hints are silent where a law is about what an attempt's
fate proves: a header is a fact of its own, and may move a rate at any time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator

import attrs

from policies.contract import Accepted, LimitedBy, Pace, Refused, Scope, Settled, Unknown
from policies.law import Subject
from policies.traces import FLOOR, LONGEST_HOLD, START, Player, Step, Told, Trace, play

MOST_PER_EVENT = 2.0  # times the rate before; slow start doubles, nothing needs more
EXACTLY = 1e-9  # relative; what is left of floats when nothing else differs
NEARLY = 1e-3  # relative; floats at another place of the clock, where two instants may fall together
TINY = math.ulp(0.0)  # the least that is more than nothing
PROBES = 3  # lost in a row, then as many accepted

Look = Callable[[Told], str | None]  # a complaint about one event


def each(look: Look) -> Callable[[Subject, Trace], str | None]:
    """A law that looks at one event at a time."""

    def complaint(subject: Subject, trace: Trace) -> str | None:
        return next(filter(None, map(look, play(subject.make(START), trace))), None)

    return complaint


# -- a pace that can be kept


def can_be_kept(told: Told) -> str | None:
    pace, now = told.pace, told.event.now
    if not isinstance(pace, Pace):
        return f"it answered {pace!r} instead of a Pace"
    for name, least in (("refill_rate", TINY), ("capacity", 1.0), ("held_until", -math.inf)):
        value = getattr(pace, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < math.inf:
            return f"{name} is {value!r}"
    if not pace.held_until - now <= LONGEST_HOLD:  # NaN, too; a hint is the limiter's to obey
        return f"held for {pace.held_until - now} s"
    for name in ("in_flight_limit", "unresolved_limit"):
        limit = getattr(pace, name)
        if limit is not None and not limit >= 1:
            return f"{name} is {limit}: nothing would be sent"
    if pace.learned_limit is not None and not 0 < pace.learned_limit < math.inf:
        return f"learned_limit is {pace.learned_limit}"
    return None


def is_in_force(subject: Subject, trace: Trace) -> str | None:
    policy = subject.make(START)
    player = Player(policy=policy, ceiling=trace.ceiling, now=START)
    for told in player.play(trace.steps):
        if policy.pace is not told.pace and policy.pace != told.pace:
            return f"its pace is not what it answered: {_difference(policy.pace, told.pace)}"
    return None


# -- what a refusal does


def refusal_raises(told: Told) -> str | None:
    if not isinstance(told.event, Refused):
        return None
    if told.pace.refill_rate > told.before.refill_rate:
        return f"a refusal raised refill_rate from {told.before.refill_rate} to {told.pace.refill_rate}"
    if told.pace.capacity > told.before.capacity:
        return f"a refusal raised capacity from {told.before.capacity} to {told.pace.capacity}"
    return None


def with_staleness(subject: Subject, trace: Trace) -> Iterator[tuple[Told, bool]]:
    """What was told, and whether it is about an attempt that was admitted before the last cut."""
    newest, newest_at_cut = -1, -1
    for told in play(subject.make(START), trace):
        yield told, told.event.permit <= newest_at_cut
        newest = max(newest, told.event.permit)
        if isinstance(told.event, Refused) and told.pace.refill_rate < told.before.refill_rate:
            newest_at_cut = newest


def stale_teaches(subject: Subject, trace: Trace) -> str | None:
    for told, stale in with_staleness(subject, trace):
        if stale and isinstance(told.event, Accepted | Refused) and told.pace is not told.before:
            return f"attempt {told.event.permit} was admitted before the cut, and its end made a new pace"
    return None


def cuts_twice(subject: Subject, trace: Trace) -> str | None:
    for told, stale in with_staleness(subject, trace):
        if stale and isinstance(told.event, Refused) and told.pace.refill_rate != told.before.refill_rate:
            return f"attempt {told.event.permit} was admitted before the cut, and its refusal changed the rate"
    return None


def overload_cuts(told: Told) -> str | None:
    if not (isinstance(told.event, Refused) and told.event.scope is Scope.OVERLOAD):
        return None
    if told.pace.refill_rate != told.before.refill_rate or told.pace.learned_limit != told.before.learned_limit:
        return "an overload says nothing of the quota, and it changed the rate or the learned limit"
    return None


def refusal_pays(subject: Subject, trace: Trace) -> str | None:
    """Every acceptance of a trace is replaced by a refusal, in turn; while probing, a rate sends nothing anyway."""
    told = play(subject.make(START), trace)
    places = [n for n, each in enumerate(told) if isinstance(each.event, Accepted) and not each.before.unresolved_limit]
    for place in places[:: max(1, len(places) // 8)]:
        event, policy = told[place].event, subject.make(START)
        for each in told[:place]:
            policy.on(each.event)
        facts = {name: getattr(event, name) for name in ("now", "permit", "admitted_at", "cost", "limited_by")}
        refused = policy.on(Refused(**facts, in_flight=event.in_flight, refill_rate=event.refill_rate))
        if refused.refill_rate > told[place].pace.refill_rate:
            return f"had attempt {event.permit} been refused instead, the rate would be higher: {refused.refill_rate}"
    return None


# -- what raises, what changes nothing


def raised_by_else(told: Told) -> str | None:
    if told.pace.refill_rate <= told.before.refill_rate:
        return None
    if isinstance(told.event, Accepted) and told.event.limited_by is LimitedBy.RATE:
        return None
    what = f"{type(told.event).__name__.lower()}, limited by {told.event.limited_by.value}"
    return f"attempt {told.event.permit} {what}, raised the rate"


def changes(kind: type[Settled] | type[Unknown]) -> Look:
    def look(told: Told) -> str | None:
        if told.pace is told.before:
            return None  # also when its rate is NaN
        if isinstance(told.event, kind) and told.pace.refill_rate != told.before.refill_rate:
            return f"{kind.__name__} changed the rate from {told.before.refill_rate} to {told.pace.refill_rate}"
        return None

    return look


def success_lowers(told: Told) -> str | None:
    if isinstance(told.event, Accepted) and told.pace.refill_rate < told.before.refill_rate:
        return f"a success lowered the rate from {told.before.refill_rate} to {told.pace.refill_rate}"
    return None


def probe_is_stuck(subject: Subject, trace: Trace) -> str | None:
    """For a trace that ends in `lost_probes`: it holds for no longer than it may, and is done with probing."""
    policy = subject.make(START)
    usual = policy.pace.unresolved_limit
    for told in play(policy, trace):
        held = told.pace.held_until - told.event.now
        if not held <= LONGEST_HOLD:
            return f"it holds for {held:g} s"
    limit = policy.pace.unresolved_limit
    if limit is not None and limit <= 1 and limit != usual:
        return "in the end, all being accepted, it still sends one attempt at a time"
    return None


def lost_probes(trace: Trace) -> Trace:
    """The trace, then a refusal, probes that are lost, and as many that are accepted."""
    lost, accepted = (Step(what="probe"), Step(what="lose")), (Step(what="probe"), Step(what="accept"))
    tail = (Step(what="end"), Step(what="admit"), Step(what="refuse"), *PROBES * lost, *PROBES * accepted)
    return attrs.evolve(trace, steps=trace.steps + tail)


# -- time and state


def jumps(told: Told) -> str | None:
    before = max(told.before.refill_rate, FLOOR)  # less than the limiter's floor is never sent
    if told.pace.refill_rate > MOST_PER_EVENT * (1 + EXACTLY) * before:
        return f"one event raised the rate from {told.before.refill_rate} to {told.pace.refill_rate}"
    return None


def steps_back(told: Told) -> str | None:
    return can_be_kept(told) or refusal_raises(told) or jumps(told)


def decides_otherwise(subject: Subject, trace: Trace) -> str | None:
    first, second = (play(subject.make(START), trace) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        if repr(one.pace) != repr(other.pace):  # by their words: NaN is not equal to itself
            return f"the same events gave another pace: {_difference(one.pace, other.pace)}"
    return None


def _difference(one: Pace, other: Pace) -> str:
    names = [name for name in attrs.fields_dict(Pace) if repr(getattr(one, name)) != repr(getattr(other, name))]
    return ", ".join(f"{name} {getattr(one, name)} and {getattr(other, name)}" for name in names)


def knows_the_time(subject: Subject, trace: Trace) -> str | None:
    here = play(subject.make(START), trace)
    there = play(subject.make(START + trace.shift), trace, trace.shift)
    for one, other in zip(here, there, strict=True):
        if not math.isclose(one.pace.refill_rate, other.pace.refill_rate, rel_tol=NEARLY):
            return f"{trace.shift:g} s later the rate was {other.pace.refill_rate}, not {one.pace.refill_rate}"
    return None


def forgets(subject: Subject, trace: Trace) -> str | None:
    told = play(subject.make(START), trace)
    first, split = subject.make(START), min(trace.split, len(told))
    for each in told[:split]:
        first.on(each.event)
    now = told[split - 1].event.now if split else START
    again = subject.restore(json.loads(json.dumps(first.snapshot(now))), now)
    for each in told[split:]:
        one, other = each.pace, again.on(each.event)
        if not math.isclose(one.refill_rate, other.refill_rate, rel_tol=EXACTLY):
            return f"after the snapshot the rate went on at {other.refill_rate}, not {one.refill_rate}"
        held = one.held_until >= each.event.now or other.held_until >= each.event.now
        if held and not math.isclose(one.held_until, other.held_until, abs_tol=1e-6):
            return f"after the snapshot it held until {other.held_until}, not {one.held_until}"
        if (one.unresolved_limit, one.in_flight_limit, one.drain) != (
            other.unresolved_limit,
            other.in_flight_limit,
            other.drain,
        ):
            return f"after the snapshot it answered {other}, not {one}"
    return None


def is_bound_to_its_clock(subject: Subject, trace: Trace) -> str | None:
    """The snapshot is restored on a clock that is `shift` off, as after a restart."""
    policy = subject.make(START)
    told = play(policy, trace)
    now = told[-1].event.now if told else START
    again = subject.restore(json.loads(json.dumps(policy.snapshot(now))), now + trace.shift)
    one, other = policy.pace, again.pace
    held = max(one.held_until - now, 0.0), max(other.held_until - now - trace.shift, 0.0)
    if not math.isclose(*held, abs_tol=NEARLY):
        return f"restored on another clock it holds for {held[1]} s instead of {held[0]} s"
    if not math.isclose(one.refill_rate, other.refill_rate, rel_tol=NEARLY):
        return f"restored on another clock its rate is {other.refill_rate} instead of {one.refill_rate}"
    return None
