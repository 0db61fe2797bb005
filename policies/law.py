"""The words of the conformance kit: a policy on trial, a law, and a verdict. Nothing here needs Hypothesis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Generic, TypeVar

from attrs import field, frozen

from policies.contract import JSON, Policy
from policies.registry import PolicyClass
from policies.words import did_you_mean

Case = TypeVar("Case")


class Standing(Enum):
    """What became of a law."""

    HELD = "held"
    BROKEN = "broken"
    DECLINED = "declined"


@frozen
class Subject:
    """The policy on trial, with the options it gets."""

    policy_class: PolicyClass
    options: object

    def make(self, now: float) -> Policy:
        """A new controller; always with the same seed."""
        return self.policy_class(self.options, seed=1, now=now)

    def restore(self, snapshot: Mapping[str, JSON], now: float) -> Policy:
        """One that goes on where the snapshot was taken."""
        return self.policy_class.restore(self.options, snapshot, seed=1, now=now)

    @property
    def claims(self) -> frozenset[str]:
        """The laws it promises beside those for every policy."""
        return frozenset(getattr(self.policy_class, "claims", ()))

    @property
    def declines(self) -> Mapping[str, str]:
        """Law -> reason."""
        declines: Mapping[str, str] = getattr(self.policy_class, "declines", {})
        return declines


@frozen(kw_only=True)
class Law(Generic[Case]):
    """One promise.

    cases: a Hypothesis strategy of Case. complaint: what is wrong with a case, None if nothing; story: what happened
    in it, in lines. costs: how many examples of other laws one example of this takes. claimed: asked only of a policy
    that claims it.
    """

    name: str
    statement: str
    source: str
    cases: object = field(eq=False, repr=False)
    complaint: Callable[[Subject, Case], str | None]
    story: Callable[[Subject, Case], Sequence[str]]
    costs: int = 1
    claimed: bool = False


@frozen(kw_only=True)
class Verdict:
    """What the trial of one law came to. text: the complaint or the policy's reason; story: the smallest bad case."""

    law: Law[object]
    standing: Standing
    text: str = ""
    story: tuple[str, ...] = ()


def laws_for(subject: Subject, laws: Sequence[Law[object]]) -> list[Law[object]]:
    """Those that this policy is asked; ValueError for a claim or a refusal of a law that there is not."""
    known = {law.name for law in laws}
    for word, named in (("claims", subject.claims), ("declines", subject.declines)):
        for name in named:
            if name not in known:
                raise ValueError(f"it {word} the law {name!r}, which there is not{did_you_mean(name, known)}")
    return [law for law in laws if not law.claimed or law.name in subject.claims]
