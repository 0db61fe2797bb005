"""The laws of every policy that need no loop: what must hold on any trace of events, with their sources.

"contract" is policies/contract.py. The laws of the closed loop stand in simulations/laws.py;
`tidegate policies check module:Class` asks for all of them.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis.strategies import SearchStrategy

from policies import complaints
from policies.bursts import bursts, outgrows
from policies.contract import Settled, Unknown
from policies.disorder import Disorder, disorders, disturbed, retold
from policies.law import Law, Subject
from policies.stories import story
from policies.traces import START, Trace, traces

PLAIN = traces()
ANYTHING = traces(jumps=True, costs=True, hints=True)


def _law(
    name: str,
    statement: str,
    source: str,
    complaint: Callable[[Subject, Trace], str | None],
    cases: SearchStrategy[Trace] = PLAIN,
    *,
    costs: int = 1,
    claimed: bool = False,
) -> Law[Trace]:
    return Law(
        name=name,
        statement=statement,
        source=source,
        cases=cases,
        complaint=complaint,
        story=lambda subject, trace: story(subject.make(START), trace),
        costs=costs,
        claimed=claimed,
    )


TRACE_LAWS: tuple[Law[Trace] | Law[Disorder], ...] = (
    _law(
        "pace_can_be_kept",
        "Every pace is finite, positive, at least one unit deep and held for a day at most, whatever the headers say.",
        "contract, Pace; RFC 9110 section 10.2.3 leaves Retry-After to whoever writes it",
        complaints.each(complaints.can_be_kept),
        traces(jumps=True, backwards=True, costs=True, hints=True),
    ),
    _law(
        "pace_is_the_last_answer",
        "The pace in force is what the policy answered last.",
        "contract, Policy",
        complaints.is_in_force,
        ANYTHING,
    ),
    _law(
        "refusal_never_raises",
        "A refusal raises neither refill_rate nor capacity.",
        "Chiu and Jain 1989: under congestion every linear control that converges decreases",
        complaints.each(complaints.refusal_raises),
        ANYTHING,
    ),
    _law(
        "stale_changes_nothing",
        "After a cut, the fate of attempts admitted before it changes nothing: one cut per epoch.",
        "RFC 9002 section 7.3.2: a single reduction in a recovery period",
        complaints.stale_teaches,
    ),
    Law(
        name="order_of_answers_is_no_news",
        statement="Told in another order, or twice, the answers of one epoch end at most one cut apart.",
        source="RFC 5681 section 3.2, RFC 9002 section 6.1.1: reordering is no loss",
        cases=disorders(),
        complaint=disturbed,
        story=retold,
    ),
    _law(
        "overload_keeps_the_rate",
        "An overload holds, and changes neither the rate nor the learned limit.",
        "contract, Scope.OVERLOAD",
        complaints.each(complaints.overload_cuts),
    ),
    _law(
        "refusal_is_no_better",
        "Had an attempt been refused instead of accepted, the rate would be no higher.",
        "a controller that gains by refusals seeks them",
        complaints.refusal_pays,
    ),
    _law(
        "only_rate_limited_success_raises",
        "Only the success of an attempt that waited for this rate raises it.",
        "RFC 9002 section 7.8: no growth while the sender is not limited by its window",
        complaints.each(complaints.raised_by_else),
    ),
    _law(
        "growth_is_measured_by_what_was_sent",
        "A rate is raised to no more than its start, 2.2 times what was sent in the last 10 s, or 1.25 times the "
        "learned limit.",
        "RFC 7661 section 4.3: a rate that was not used is not validated",
        outgrows,
        bursts(),
        costs=4,
    ),
    _law(
        "unknown_keeps_the_rate",
        "An attempt that ends with no word on the quota changes no rate.",
        "contract, Unknown",
        complaints.each(complaints.changes(Unknown)),
        ANYTHING,
    ),
    _law(
        "settled_keeps_the_rate",
        "The end of an accepted attempt changes no rate.",
        "contract, Settled: its news came with the acceptance, seconds to minutes before",
        complaints.each(complaints.changes(Settled)),
        ANYTHING,
    ),
    _law(
        "lost_probe_leads_to_another",
        "A probe that ends unknown is followed by another, and an accepted one ends the probing.",
        "contract, Unknown: it frees the probe's place",
        complaints.probe_is_stuck,
        PLAIN.map(complaints.lost_probes),
    ),
    _law(
        "clock_jump_is_bounded",
        "One event at most doubles the rate, even after a suspend.",
        "RFC 7661: an idle time is no evidence of capacity",
        complaints.each(complaints.jumps),
        traces(jumps=True),
    ),
    _law(
        "clock_going_back_is_harmless",
        "On a clock that steps back a pace can still be kept, and no step raises it by more than an event may.",
        "a virtual machine's clock after a migration",
        complaints.each(complaints.steps_back),
        traces(backwards=True),
    ),
    _law(
        "same_events_same_paces",
        "The same seed and events give the same paces.",
        "contract: a pure state machine, with no clock and no randomness",
        complaints.decides_otherwise,
        ANYTHING,
    ),
    _law(
        "time_shift_changes_no_rate",
        "The same events at another time of the clock give the same rates.",
        "contract: only differences of instants mean anything",
        complaints.knows_the_time,
        traces(jumps=True, costs=True, hints=True, shifts=True),
    ),
    _law(
        "snapshot_continues",
        "A snapshot that went through JSON continues exactly where it was taken.",
        "contract, Policy.snapshot",
        complaints.forgets,
        traces(costs=True, hints=True, shifts=True),
    ),
    _law(
        "snapshot_fits_another_clock",
        "A snapshot restored on another clock holds for as long and goes as fast.",
        "contract, Policy.snapshot: ages, not instants",
        complaints.is_bound_to_its_clock,
        traces(shifts=True),
    ),
    _law(
        "success_never_lowers",
        "A success lowers no rate.",
        "RFC 5681 section 3.1: acknowledgements only open the window",
        complaints.each(complaints.success_lowers),
        claimed=True,
    ),
    _law(
        "one_cut_per_epoch",
        "The refusals of one epoch change the rate once.",
        "RFC 9002 section 7.3.2",
        complaints.cuts_twice,
        claimed=True,
    ),
)
