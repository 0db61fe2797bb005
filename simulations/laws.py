"""The laws of a policy in the closed loop: alone against a hidden limit, through the daemon's own limiter.

That of several clients on one limit stands in simulations/sharing.py.

Bounds are wide enough for every sensible policy and tight enough for each fault that they are named after; how good
a policy is, as opposed to sound, is for the scenarios to say. Half the limit is what additive increase keeps of a
window of a minute in the worst phase; seven probes a minute are what a hold that doubles from one second sends.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from attrs import evolve
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from policies.law import Law, Subject
from policies.laws import TRACE_LAWS
from simulations.sharing import Sharing, shares_told, sharings, takes_too_much
from simulations.trial import MOST_ATTEMPTS, Fate, Incident, Setting, Trial

LEAST = 0.5  # of the limit, late in a run
FOLLOWED = 0.5  # of the limit, eight minutes after it tripled; so more than all of the old one
MOST = 1.1  # of the limit, refusals included, beside the probes
PROBES = 0.15  # refusals/s
OVERSHOOT = 0.02  # refusals/s, times the limit
LONGEST_GAP = 90.0  # s; a hold of 30 s, and a unit at the limiter's floor of one a minute
AGAIN = 0.4  # of what was accepted before an incident
A_FEW = 5  # attempts; what even the limiter's floor sends, so that a rate of nothing is not "as before"

Complaint = Callable[[Setting, Trial], str | None]


def _settings(
    *, length: float, limits: Sequence[float] = (1.0, 0.5, 2.0), step: float = 1.0, step_at: float = 0.0
) -> SearchStrategy[Setting]:
    return st.builds(
        Setting,
        limit=st.sampled_from(limits),
        kind=st.sampled_from(("window", "sliding", "gcra")),
        latency=st.sampled_from((1.0, 0.2, 5.0)),
        seed=st.integers(0, 1000),
        length=st.just(length),
        hinted=st.booleans(),
        step=st.just(step),
        step_at=st.just(step_at),
    )


@st.composite
def _outages(draw: st.DrawFn) -> Setting:
    setting, length = draw(_settings(length=0.0)), draw(st.sampled_from((60.0, 5.0, 300.0)))
    fate = draw(st.sampled_from((Fate.REFUSED, Fate.OVERLOADED, Fate.LOST)))
    outage = Incident(start=120.0, end=120.0 + length, fate=fate)
    return evolve(setting, length=outage.end + 300.0, incidents=(outage,))


def _with(settings: SearchStrategy[Setting], *incidents: Incident) -> SearchStrategy[Setting]:
    return settings.map(lambda setting: evolve(setting, incidents=incidents))


def _law(
    name: str, statement: str, source: str, complaint: Complaint, cases: SearchStrategy[Setting], *, costs: int
) -> Law[Setting]:
    def complain(subject: Subject, setting: Setting) -> str | None:
        trial = _run(subject, setting)
        return _fault(trial) or complaint(setting, trial)

    def story(subject: Subject, setting: Setting) -> list[str]:
        return _run(subject, setting).story()

    return Law(name=name, statement=statement, source=source, cases=cases, complaint=complain, story=story, costs=costs)


@functools.lru_cache(maxsize=64)
def _run(subject: Subject, setting: Setting) -> Trial:
    """Laws that draw the same settings share their trials."""
    return Trial(setting, subject.make(0.0)).run()


def _fault(trial: Trial) -> str | None:
    if trial.fault is not None:
        return f"the limiter had to replace it: {trial.fault}"
    if trial.stuck_at is not None:
        return f"since {trial.stuck_at:.1f} s nothing is under way, and nothing would ever be sent"
    if len(trial.attempts) >= MOST_ATTEMPTS:
        return f"it sent {MOST_ATTEMPTS} attempts"
    return None


def _goes_on(setting: Setting, trial: Trial) -> str | None:
    """After the incidents as much is accepted as before, and there are probes at any time."""
    start, end = setting.incidents[0].start, setting.incidents[-1].end
    gap = trial.longest_gap(start, setting.length)
    if gap > LONGEST_GAP:
        return f"for {gap:.0f} s there was no attempt"
    late = (end + setting.length) / 2
    before = trial.count(Fate.ACCEPTED, 0.0, start) / start
    wanted = max(AGAIN * before * (setting.length - late), A_FEW)
    got = trial.count(Fate.ACCEPTED, late, setting.length)
    if got < wanted:
        return f"{got} attempts were accepted after {late:.0f} s, and at least {wanted:.0f} should have been"
    return None


def _costs_little(setting: Setting, trial: Trial) -> str | None:
    outage = setting.incidents[0]
    refused = sum(trial.count(fate, outage.start, outage.end) for fate in (Fate.REFUSED, Fate.OVERLOADED))
    most = 20 + (outage.end - outage.start) / 10
    return f"{refused} attempts were refused in the outage, {most:.0f} at most should be" if refused > most else None


def _finds_the_limit(setting: Setting, trial: Trial) -> str | None:
    start, length = 0.4 * setting.length, 0.6 * setting.length
    accepted = trial.count(Fate.ACCEPTED, start, setting.length) / length
    if accepted < LEAST * setting.limit:
        return f"{accepted:.2f} attempts/s were accepted late in the run, of {setting.limit:g}/s"
    sent = trial.count(None, start, setting.length) / length
    if sent > MOST * setting.limit + PROBES:
        return f"{sent:.2f} attempts/s were sent late in the run, to a limit of {setting.limit:g}/s"
    return None


def _is_refused_rarely(setting: Setting, trial: Trial) -> str | None:
    start, length = 0.4 * setting.length, 0.6 * setting.length
    refused = trial.count(Fate.REFUSED, start, setting.length) / length
    most = PROBES + OVERSHOOT * setting.limit
    return f"{refused:.2f} refusals/s late in the run, {most:.2f} at most should be" if refused > most else None


def _follows(setting: Setting, trial: Trial) -> str | None:
    start = setting.length - 120.0
    accepted = trial.count(Fate.ACCEPTED, start, setting.length) / 120.0
    wanted = FOLLOWED * setting.step * setting.limit
    if accepted < wanted:
        seconds = start - setting.step_at
        return (
            f"{seconds:.0f} s after the step {accepted:.2f} attempts/s were accepted, and {wanted:.2f} should have been"
        )
    return None


STEADY = _settings(length=600.0)
OUTAGES = _outages()

LOOP_LAWS: tuple[Law[Setting], ...] = (
    _law(
        "outage_ends",
        "In an outage probes go on, and after it the rate comes back, however attempts ended in it.",
        "liveness",
        _goes_on,
        OUTAGES,
        costs=20,
    ),
    _law(
        "outage_costs_little",
        "An outage costs a few refusals and then one in ten seconds at most.",
        "Jacobson and Karels 1988: retransmit timers back off exponentially",
        _costs_little,
        OUTAGES,
        costs=20,
    ),
    _law(
        "cut_is_no_freeze",
        "Two refused seconds do not end the sending.",
        "liveness",
        _goes_on,
        _with(_settings(length=360.0), Incident(start=60.0, end=62.0, fate=Fate.REFUSED)),
        costs=20,
    ),
    _law(
        "probing_never_deadlocks",
        "Probes that are refused and then lost for a minute are followed by others.",
        "contract, Unknown: it frees the probe's place",
        _goes_on,
        _with(
            _settings(length=420.0),
            Incident(start=60.0, end=80.0, fate=Fate.REFUSED),
            Incident(start=80.0, end=140.0, fate=Fate.LOST),
        ),
        costs=20,
    ),
    _law(
        "limit_is_found",
        "Late in a run what is sent lies between half the limit and little more than the limit.",
        "Chiu and Jain 1989: efficiency",
        _finds_the_limit,
        STEADY,
        costs=20,
    ),
    _law(
        "refusals_stay_rare",
        "Late in a run refusals come no faster than a few probes a minute.",
        "Chiu and Jain 1989: responsiveness and smoothness",
        _is_refused_rarely,
        STEADY,
        costs=20,
    ),
    _law(
        "step_up_is_followed",
        "Eight minutes after the limit tripled, half of it is used.",
        "a rate that never recovers is a fixed one",
        _follows,
        _settings(length=840.0, limits=(2.0,), step=3.0, step_at=240.0),
        costs=50,
    ),
)

SHARING_LAW: Law[Sharing] = Law(
    name="key_is_shared",
    statement="Two to four equal clients share 360 a minute: nobody starves, Jain's index is 0.75 in the second hour.",
    source="Chiu and Jain 1989: fairness; Jain, Chiu and Hawe 1984: the index",
    cases=sharings(),
    complaint=takes_too_much,
    story=shares_told,
    costs=50,
)

LAWS: tuple[Law[object], ...] = (*TRACE_LAWS, *LOOP_LAWS, SHARING_LAW)  # type: ignore[arg-type]  # each draws its own cases
