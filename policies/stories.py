"""A trace as a reader wants it: one line for each event, with what the policy made of it."""

from __future__ import annotations

from collections.abc import Iterable

from policies.contract import Accepted, Admitted, Event, Pace, Policy, Refused
from policies.traces import START, Player, Told, Trace
from policies.words import in_one_line


def story(policy: Policy, trace: Trace) -> list[str]:
    """Play the trace and tell it; the story ends where the policy raises."""
    player = Player(policy=policy, ceiling=trace.ceiling, now=START)
    return tell(player, player.play(trace.steps))


def tell(player: Player, events: Iterable[Told]) -> list[str]:
    """A line for each event that the player plays."""
    lines: list[str] = []
    try:
        lines.append(f"{'start:':>12} {_pace(player.policy.pace, START)}")
        for told in events:
            lines.append(_line(told))  # noqa: PERF401 - line by line, since the policy may raise in the midst
    except Exception as error:  # the policy is a stranger's code
        lines.append(f"{player.now - START:>+10g} s  it raised {in_one_line(error)}")
    return lines


def _line(told: Told) -> str:
    changed = repr(told.pace) != repr(told.before)  # by their words: NaN is not equal to itself
    after = _pace(told.pace, told.event.now) if changed else "no change"
    return f"{told.event.now - START:>+10g} s  {_event(told.event)}: {after}"


def _event(event: Event) -> str:
    words = [f"attempt {event.permit} {type(event).__name__.lower()}"]
    if isinstance(event, Admitted):
        words.append(f"limited by {event.limited_by.value}")
        if event.cost != 1.0:
            words.append(f"cost {event.cost:g}")
    if isinstance(event, Refused):
        words.append(f"scope {event.scope.value}")
        if event.retry_after is not None:
            words.append(f"Retry-After {event.retry_after:g} s")
    if isinstance(event, Accepted | Refused):
        names = ("limit", "remaining", "reset", "period")
        words += [f"{name} {getattr(event.hints, name):g}" for name in names if getattr(event.hints, name) is not None]
    return ", ".join(words)


def _pace(pace: object, now: float) -> str:
    if not isinstance(pace, Pace):
        return f"{pace!r} instead of a Pace"
    if not all(isinstance(each, int | float) for each in (pace.refill_rate, pace.capacity, pace.held_until)):
        return repr(pace)
    words = [f"{pace.refill_rate:g} units/s", f"capacity {pace.capacity:g}"]
    if not pace.held_until <= now:  # NaN, too
        words.append(f"held for {pace.held_until - now:g} s")
    if pace.unresolved_limit is not None:
        words.append(f"{pace.unresolved_limit} unresolved at most")
    if pace.in_flight_limit is not None:
        words.append(f"{pace.in_flight_limit} in flight at most")
    return f"{', '.join(words)} ({pace.reason.value})"
