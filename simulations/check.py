"""The conformance kit's face: all laws on one policy, and the command `tidegate policies`.

Hypothesis comes with the extra "check". So nothing that needs it is imported before it is asked for: the command
has to list policies, and to start quickly, without it.
"""

from __future__ import annotations

import importlib
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from types import ModuleType

import attrs
import click

from controller.telemetry import Exit
from policies import registry
from policies.law import Law, Standing, Subject, Verdict, laws_for
from policies.registry import PolicyClass
from policies.words import did_you_mean

EXAMPLES = 200  # of each law; a law of the closed loop takes a twentieth of them
NO_HYPOTHESIS = "the laws need Hypothesis: pip install 'tidegate[check]'"


@attrs.frozen(kw_only=True)
class Report:
    """The verdicts on one policy."""

    verdicts: tuple[Verdict, ...]

    @property
    def broken(self) -> tuple[str, ...]:
        """The names of the laws it breaks."""
        return tuple(each.law.name for each in self.verdicts if each.standing is Standing.BROKEN)

    @property
    def ok(self) -> bool:
        """It breaks none."""
        return not self.broken

    def summary(self) -> str:
        """The count of each standing."""
        counts = {kind: sum(each.standing is kind for each in self.verdicts) for kind in Standing}
        return ", ".join(f"{count} {kind.value}" for kind, count in counts.items())

    def __str__(self) -> str:
        return "\n".join([*(line for verdict in self.verdicts for line in lines_of(verdict)), self.summary()])


def lines_of(verdict: Verdict, again: str = "") -> list[str]:
    """A verdict for a reader. again: the command that comes to it again."""
    law, indent = verdict.law, " " * 10
    lines = [f"{verdict.standing.value:8}  {law.name}: {law.statement}"]
    if verdict.standing is Standing.DECLINED:
        lines.append(f"{indent}its reason: {verdict.text}")
    if verdict.standing is Standing.BROKEN:
        lines += [indent + verdict.text, f"{indent}the law's source: {law.source}", f"{indent}the smallest case:"]
        lines += [f"{indent}  {line}" for line in verdict.story]
        lines += [f"{indent}again: {again}"] if again else []
    return lines


def run_laws(
    policy_class: type | PolicyClass,
    options: object = None,
    *,
    examples: int = EXAMPLES,
    seed: int = 0,
    only: Sequence[str] = (),
    tell: Callable[[Verdict], None] = lambda _: None,
) -> Report:
    """Put a policy to all laws, or to those named by `only`; tell hears each verdict as soon as it is there.

    options: an instance of its options_class, the defaults if None. Raises ValueError for a policy that can't be
    made, for what it claims or declines and there is not, and for an unknown name in `only`.
    """
    policy = registry.as_policy_class(policy_class, getattr(policy_class, "__name__", ""))
    subject = Subject(policy, policy.options_class() if options is None else options)
    verdicts = []
    for law in laws_of(subject, only):
        verdicts.append(judge(law, subject, examples=examples, seed=seed))
        tell(verdicts[-1])
    return Report(verdicts=tuple(verdicts))


def laws_of(subject: Subject, only: Sequence[str] = ()) -> list[Law[object]]:
    """The laws that this policy is asked, or those among them that are named."""
    all_laws: tuple[Law[object], ...] = _kit("simulations.laws").LAWS
    # Who can't be made breaks no law in particular.
    registry.instance(subject.policy_class, subject.options, seed=0, now=0.0)
    names = [law.name for law in all_laws]
    for name in only:
        if name not in names:
            raise ValueError(f"there is no law {name!r}{did_you_mean(name, names)}")
    return [law for law in laws_for(subject, all_laws) if law.name in only or not only]


def judge(law: Law[object], subject: Subject, *, examples: int, seed: int) -> Verdict:
    """See `policies.judge`."""
    verdict: Verdict = _kit("policies.judge").judge(law, subject, examples=examples, seed=seed)
    return verdict


def require_hypothesis() -> None:
    """ValueError, one line, where it is not installed."""
    if find_spec("hypothesis") is None:
        raise ValueError(NO_HYPOTHESIS)


def _kit(module: str) -> ModuleType:
    """A module of the kit, late on purpose: see the top."""
    require_hypothesis()
    return importlib.import_module(module)


# -- the command


@click.group("policies", invoke_without_command=True)
@click.pass_context
def policies(context: click.Context) -> int:
    """List the rate policies and their options (default, unit, meaning, range), or check one."""
    if context.invoked_subcommand is None:
        for name in registry.names():
            click.echo(_listed(name))
    return Exit.OK


def _listed(name: str) -> str:
    try:
        policy = registry.find(name)
    except ValueError as error:  # a plug-in that can't be imported must not hide the others
        return f"{name}: {error}"
    lines = [f"{name}: {_first_sentence(policy)}"]
    for option in attrs.fields(policy.options_class):
        unit = f" {option.metadata['unit']}" if option.metadata.get("unit") else ""
        default = "" if option.default is attrs.NOTHING else option.default
        lines.append(f"    {option.name}={default}{unit}: {option.metadata.get('help', '')}{_range(option.validator)}")
    return "\n".join(lines)


def _range(validator: object) -> str:
    """As far as it is told by attrs' own validators, one or several of them."""
    every = getattr(validator, "_validators", (validator,))
    bounds = {getattr(each, "compare_op", ""): getattr(each, "bound", None) for each in every}
    if {">=", "<="} <= bounds.keys():
        return f"; from {bounds['>=']:g} to {bounds['<=']:g}"
    words = {">=": "at least", ">": "more than", "<=": "at most", "<": "less than"}
    said = [f"{words[sign]} {bound:g}" for sign, bound in bounds.items() if sign in words]
    said += [f"one of {', '.join(map(str, each.options))}" for each in every if hasattr(each, "options")]
    return f"; {', '.join(said)}" if said else ""


def _first_sentence(thing: object) -> str:
    """The first line of what the file a class stands in says of itself."""
    return (sys.modules[thing.__module__].__doc__ or "").strip().partition("\n")[0]


@policies.command()
@click.argument("policy", metavar="NAME|MODULE:CLASS")
@click.option("--policy-option", "given", multiple=True, metavar="KEY=VALUE", help="an option of the policy")
@click.option("--examples", type=click.IntRange(min=1), default=EXAMPLES, show_default=True, help="of each law")
@click.option("--seed", type=click.INT, default=0, show_default=True, help="of the examples")
@click.option("--law", "only", multiple=True, metavar="NAME", help="this law only; may be repeated")
def check(policy: str, given: tuple[str, ...], examples: int, seed: int, only: tuple[str, ...]) -> int:
    """Put a policy to the laws that every policy must hold; exit code 1 when it breaks one."""
    given_again = [word for each in given for word in ("--policy-option", each)]
    again = ["tidegate", "policies", "check", policy, *given_again, "--examples", str(examples), "--seed", str(seed)]

    def tell(verdict: Verdict) -> None:
        click.echo("\n".join(lines_of(verdict, shlex.join([*again, "--law", verdict.law.name]))))

    try:
        policy_class = registry.find(policy)
        options = registry.make_options(policy_class, pairs(given))
        report = run_laws(policy_class, options, examples=examples, seed=seed, only=only, tell=tell)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    click.echo(report.summary())
    return Exit.OK if report.ok else Exit.SOME_FAILED


def pairs(given: Sequence[str]) -> Mapping[str, str]:
    """KEY=VALUE texts as a mapping; ValueError for one that is none."""
    pairs = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not (key and equals):
            raise ValueError(f"--policy-option {each!r} is not KEY=VALUE")
        pairs[key] = value
    return pairs
