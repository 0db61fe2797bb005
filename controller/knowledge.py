"""What one run leaves for the next: learned limits, estimates, and what was sent in the last minute.

Three kinds of knowledge age differently. A limit is told to a policy with its age; the policy uses a fresh one at
once, a later one as a hint, and after HINT seconds it is not told at all. What prompts and answers measure (bytes per
LLM token, the length of an answer) changes with the model only, and is kept. What was sent counts for a minute, and
only where the user has set a ceiling: a run that did not say that it ended is taken to have gone on at its ceiling's
pace until now, since it may have been killed between two times of writing.

An instant (`at`) is on the clock of whoever holds the value: Unix time in the file, the run's clock in a run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from attrs import Attribute, evolve, field, frozen, validators

HINT = 3600.0  # s; an older limit is not told
KEPT = 30 * 86400.0  # s; what nobody has renewed for so long is dropped
MINUTE = 60.0  # s; a ceiling looks back no further
GRAIN = 1.0  # s; what was sent within it is noted together, as if at its end
MOST_MODELS = 1000  # of one upstream and key


def _sane(instance: object, attribute: Attribute[float], value: float) -> None:
    """Where a file may have been meddled with."""
    del instance
    if not math.isfinite(value) or (attribute.name != "at" and value <= 0):
        raise ValueError(f"{attribute.name} is {value!r}")


@frozen(kw_only=True)
class Limit:
    """Requests or LLM tokens per second; of the dimension "concurrency", attempts open. at: when it was last tested.

    unit: of them in one unit of a policy (controller.adaptive). refused: see `policies.contract.Remembered`.
    """

    limit: float = field(validator=_sane)
    at: float = field(validator=_sane)
    unit: float = field(default=1.0, validator=_sane)
    refused: float | None = field(default=None, validator=validators.optional(_sane))

    def replaces(self, older: Limit) -> bool:
        """A search that is not over is no news to who has found the limit."""
        found = older.refused is None and self.refused is not None
        return self.at >= older.at + (HINT if found else 0.0)


@frozen(kw_only=True)
class Lessons:
    """What is known of one model. estimates: see `Estimator.learned`; at: when they were last added to."""

    limits: dict[str, Limit] = field(factory=dict)
    estimates: dict[str, float] = field(factory=dict)
    at: float = field(default=0.0, validator=_sane)

    def shifted(self, by: float) -> Lessons:
        """On a clock that shows so much more."""
        limits = {name: evolve(limit, at=limit.at + by) for name, limit in self.limits.items()}
        return evolve(self, limits=limits, at=self.at + by)

    def plus(self, other: Lessons) -> Lessons:
        """Of each thing, what is newer."""
        limits = dict(self.limits)
        for name, limit in other.limits.items():
            if name not in limits or limit.replaces(limits[name]):
                limits[name] = limit
        newer = other if other.at >= self.at else self
        older = self if newer is other else other
        return Lessons(limits=limits, estimates={**older.estimates, **newer.estimates}, at=newer.at)

    def __bool__(self) -> bool:
        return bool(self.limits or self.estimates)


@frozen
class Sent:
    """Requests or LLM tokens, all of which are taken to have gone at that instant."""

    at: float
    cost: float


@frozen(kw_only=True)
class Spending:
    """What was sent under one ceiling in the last minute. debt: what of it the pace has yet to make up for."""

    log: tuple[Sent, ...] = ()
    debt: float = 0.0


@frozen(kw_only=True)
class Run:
    """A run under ceilings, as of `at`. ceilings: per minute, by dimension; models: what it sent, by dimension."""

    at: float = field(validator=_sane)
    ended: bool = False
    ceilings: dict[str, float] = field(factory=dict)
    models: dict[str, dict[str, Spending]] = field(factory=dict)

    def spent(self, model: str, now: float) -> dict[str, Spending]:
        """What it may have sent to a model by now, by dimension."""
        noted = self.models.get(model, {})
        return {name: self._of(name, noted.get(name, Spending()), now) for name in self.ceilings}

    def _of(self, name: str, noted: Spending, now: float) -> Spending:
        pace = self.ceilings[name] / MINUTE
        at = min(self.at, now)  # the wall clock may have been set back
        log = [Sent(min(sent.at, now), sent.cost) for sent in noted.log]
        if not self.ended and now - at < MINUTE:
            log.append(Sent(at, max((sent.cost for sent in log), default=pace)))  # the one that went beyond its pace
            log += [Sent(at + second, pace) for second in range(1, math.floor(now - at) + 1)]
            log.append(Sent(now, pace * ((now - at) % 1.0)))
        kept = tuple(sent for sent in log if sent.at > now - MINUTE and sent.cost > 0)
        return Spending(log=kept, debt=max(noted.debt - pace * (now - at), 0.0))

    def shifted(self, by: float) -> Run:
        """On a clock that shows so much more."""
        models = {
            model: {
                name: evolve(spending, log=tuple(Sent(sent.at + by, sent.cost) for sent in spending.log))
                for name, spending in spent.items()
            }
            for model, spent in self.models.items()
        }
        return evolve(self, at=self.at + by, models=models)


@frozen(kw_only=True)
class Account:
    """All that is known of one upstream and key. models: by name; runs: by a number of their own."""

    models: dict[str, Lessons] = field(factory=dict)
    runs: dict[str, Run] = field(factory=dict)

    def plus(self, other: Account, now: float) -> Account:
        """Both together, without what is too old."""
        models = dict(self.models)
        for name, lessons in other.models.items():
            models[name] = models[name].plus(lessons) if name in models else lessons
        kept = {name: _recent(lessons, now) for name, lessons in models.items()}
        newest = sorted((name for name, lessons in kept.items() if lessons), key=lambda name: _newest(kept[name]))
        runs = dict(self.runs)
        for number, run in other.runs.items():
            if number not in runs or runs[number].at <= run.at:
                runs[number] = run
        return Account(
            models={name: kept[name] for name in newest[-MOST_MODELS:]},
            runs={number: run for number, run in runs.items() if abs(now - run.at) < 2 * MINUTE},
        )

    def __bool__(self) -> bool:
        return bool(self.models or self.runs)

    def spent(self, model: str, now: float) -> dict[str, Spending]:
        """What all runs together may have sent to a model in the last minute, by dimension."""
        return _together(run.spent(model, now) for run in self.runs.values())


def _together(spendings: Iterable[Mapping[str, Spending]]) -> dict[str, Spending]:
    total: dict[str, Spending] = {}
    for each in spendings:
        for name, spending in each.items():
            before = total.get(name, Spending())
            log = sorted((*before.log, *spending.log), key=lambda sent: sent.at)
            total[name] = Spending(log=tuple(log), debt=before.debt + spending.debt)
    return total


def _newest(lessons: Lessons) -> float:
    return max([lessons.at, *(limit.at for limit in lessons.limits.values())])


def _recent(lessons: Lessons, now: float) -> Lessons:
    """Without what is old; nothing is from the future, or it would stay the newest for ever."""
    limits = {
        name: limit if limit.at <= now else evolve(limit, at=now)
        for name, limit in lessons.limits.items()
        if limit.at > now - KEPT
    }
    estimates = lessons.estimates if lessons.at > now - KEPT else {}
    return evolve(lessons, limits=limits, estimates=estimates, at=min(lessons.at, now))
