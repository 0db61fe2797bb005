"""The bench of the conformance kit: Hypothesis looks for a case that breaks a law, and makes it small.

The verdict on a broken law carries the smallest case, told as a story. The same command with the same seed and number
of examples gives the same verdict again. Another command may not: Hypothesis also tries the constants that it finds in
the code of the modules that happen to be imported.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Generic, TypeVar

import hypothesis
from attrs import frozen
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis.errors import Flaky
from hypothesis.strategies import SearchStrategy

from policies.law import Law, Standing, Subject, Verdict
from policies.words import in_one_line

Case = TypeVar("Case")

SHRINKS = 400  # tries to make a broken case smaller; most need fewer, and a hidden clock would take them for ever


def judge(law: Law[Case], subject: Subject, *, examples: int, seed: int) -> Verdict:
    """Try the law on about `examples` cases. Deterministic in seed, unless the policy is not."""
    any_law: Law[object] = law  # type: ignore[assignment]  # a verdict only shows the law, it draws no cases from it
    if law.name in subject.declines:
        return Verdict(law=any_law, standing=Standing.DECLINED, text=subject.declines[law.name])
    broken = _smallest_broken(law, subject, max(1, examples // law.costs), seed)
    if broken is None:
        return Verdict(law=any_law, standing=Standing.HELD)
    again = _complaint(law, subject, broken.case)
    also = "; and not each time: something beside the events decides" if again is None else ""
    story = tuple(law.story(subject, broken.case))
    return Verdict(law=any_law, standing=Standing.BROKEN, text=broken.complaint + also, story=story)


class _BrokenError(Exception):
    """Tells Hypothesis that a case broke the law."""


@frozen
class _Broken(Generic[Case]):
    """A case, and the complaint about it."""

    complaint: str
    case: Case


def _smallest_broken(law: Law[Case], subject: Subject, examples: int, seed: int) -> _Broken[Case] | None:
    """The last broken case: whatever is tried after the first one is smaller."""
    broken: list[_Broken[Case]] = []
    cases: SearchStrategy[Case] = law.cases  # type: ignore[assignment]  # policies.law must not need Hypothesis
    tries_left = max(1, SHRINKS // law.costs)

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,  # nothing but the seed decides
        phases=(Phase.generate, Phase.shrink),
        verbosity=Verbosity.quiet,
        suppress_health_check=[HealthCheck.too_slow],  # a case may be a quarter of an hour of simulated sending
    )
    @hypothesis.given(cases)
    def run(case: Case) -> None:
        nonlocal tries_left
        tries_left -= bool(broken)
        complaint = _complaint(law, subject, case) if tries_left > 0 else None
        if complaint is not None:
            broken.append(_Broken(complaint, case))
            raise _BrokenError

    # Flaky: the policy is not deterministic, or there were no tries left for the last word.
    with suppress(_BrokenError, Flaky):
        run()
    return broken[-1] if broken else None


def _complaint(law: Law[Case], subject: Subject, case: Case) -> str | None:
    try:
        return law.complaint(subject, case)
    except Exception as error:  # the policy is a stranger's code
        return f"it raised {in_one_line(error)}"
