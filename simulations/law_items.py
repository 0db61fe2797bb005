"""Each law on each policy of `pytest --policy` as a test item; a law that the policy declines is skipped."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

import pytest

from policies import registry
from policies.law import Law, Standing, Subject, Verdict
from simulations.check import judge, laws_of, lines_of, pairs


class BrokenLawError(Exception):
    """The policy on trial breaks a law."""

    def __init__(self, verdict: Verdict, again: str) -> None:
        super().__init__("\n".join(lines_of(verdict, again)))


class LawItem(pytest.Item):
    """One law on one policy. `law` and `subject` are set by its collector."""

    law: Law[object]
    subject: Subject

    def runtest(self) -> None:
        """Judge."""
        examples, seed = self.config.getoption("--policy-examples"), self.config.getoption("--policy-seed")
        verdict = judge(self.law, self.subject, examples=examples, seed=seed)
        if verdict.standing is Standing.DECLINED:
            pytest.skip(f"declined: {verdict.text}")
        if verdict.standing is Standing.BROKEN:
            raise BrokenLawError(verdict, shlex.join(["pytest", *self.config.invocation_params.args, "-k", self.name]))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:
        """The verdict alone: a traceback of the kit tells an author nothing."""
        if isinstance(excinfo.value, BrokenLawError):
            return str(excinfo.value)
        return str(super().repr_failure(excinfo, style))  # type: ignore[arg-type]  # pytest's own word for its styles

    def reportinfo(self) -> tuple[os.PathLike[str], int | None, str]:
        """What a failure is headed with."""
        return self.path, None, self.nodeid


class PolicyUnderLaw(pytest.Collector):
    """The laws of one policy; its name is the policy's."""

    def collect(self) -> Iterator[LawItem]:
        """An item for each law that the policy is asked."""
        try:
            policy_class = registry.find(self.name)
            options = registry.make_options(policy_class, pairs(self.config.getoption("--policy-option")))
            subject = Subject(policy_class, options)
            laws = laws_of(subject)
        except ValueError as error:
            raise pytest.UsageError(f"--policy {self.name}: {error}") from error
        for law in laws:
            item = LawItem.from_parent(self, name=law.name)
            item.law, item.subject = law, subject
            yield item


@pytest.hookimpl(tryfirst=True)  # so that -k and -m choose among the laws, too
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """The laws come after what was collected."""
    for name in config.getoption("--policy"):
        items += PolicyUnderLaw.from_parent(session, name=name, nodeid=name).collect()
