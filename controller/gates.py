"""One gate for each model, and how the limiter behind it is made from the settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Self

import trio
from attrs import define, field, frozen

from controller.adaptive import AdaptiveBucket
from controller.ceiling import Ceiling
from controller.charges import LATE, Charge
from controller.dormant import SAVED_UP, Dormant, MakePolicy
from controller.gate import Gate
from controller.knowledge import HINT, Lessons, Limit, Spending
from controller.limiter import Limiter
from controller.memory import Memory
from controller.permits import Decision
from controller.records import Prompt
from controller.room import CONCURRENCY, Room
from controller.settings import Settings
from controller.soundness import Unmade
from policies import registry
from policies.contract import Policy, Reason, Remembered

TOKENS = ("tokens", "input_tokens", "output_tokens")  # asleep until a limit shows itself

FRESH = 600.0  # s; a limit on LLM tokens or on attempts in flight that is older has to show itself again

Log = Callable[[str, Decision], None]  # model, decision
MakeLimiter = Callable[[float, Lessons, Mapping[str, Spending]], Limiter]  # now, and what earlier runs left


def limiter_maker(settings: Settings, charge: Charge = Charge.LARGER) -> MakeLimiter:
    """Check the policy and its options now (raises ValueError); limiters are made later, as models appear."""
    policy, ceilings, headroom = policy_maker(settings), settings.ceilings, settings.headroom
    late = {"tokens", "output_tokens"} if charge in LATE else set()

    def make(now: float, lessons: Lessons, spent: Mapping[str, Spending]) -> Limiter:
        known = {name: limit for name, limit in lessons.limits.items() if now - limit.at < HINT}
        fresh = {name: limit for name, limit in known.items() if now - limit.at < FRESH}
        most = ceilings.get("requests", float("inf")) / 60
        requests = policy(now, remembered(known["requests"], now) if "requests" in known else None)
        awake = {"requests": AdaptiveBucket(requests, now, ceiling=most, headroom=headroom)}
        for name in TOKENS:
            if name in fresh:
                its = policy(now, remembered(fresh[name], now))
                unit = fresh[name].unit
                awake[name] = AdaptiveBucket(
                    its, now, unit=unit, headroom=headroom, saved_up=SAVED_UP, late=name in late
                )
        limiter = Limiter(
            awake,
            settings.max_in_flight,
            dormant={name: Dormant(policy, headroom, late=name in late) for name in TOKENS if name not in awake},
            ceilings={name: Ceiling(number, now) for name, number in ceilings.items()},
            room=Room(limit=max(int(fresh[CONCURRENCY].limit), 1) if CONCURRENCY in fresh else None),
        )
        for name in spent.keys() & limiter.ceilings.keys():
            limiter.ceilings[name].take_over(spent[name])
        return limiter

    return make


def policy_maker(settings: Settings) -> MakePolicy:
    """The policy with its options, checked: raises ValueError."""
    policy_class = registry.find(settings.policy)
    options = registry.make_options(policy_class, dict(pair(each) for each in settings.policy_option))

    def policy(now: float, remembered: Remembered | None = None) -> Policy:
        try:
            return registry.instance(policy_class, options, seed=settings.seed, now=now, remembered=remembered)
        except ValueError as error:  # it may not bear what it is told of earlier runs
            return Unmade(error)

    registry.instance(policy_class, options, seed=settings.seed, now=0.0)  # better known now, if it can't even be made
    return policy


@frozen(kw_only=True)
class Renewal:
    """What the limiters of a run become when settings are read again. make_policy: None if its options are the same."""

    make_limiter: MakeLimiter
    make_policy: MakePolicy | None
    ceilings: Mapping[str, float]
    max_in_flight: int

    @classmethod
    def of(cls, settings: Settings, charge: Charge, *, options_changed: bool) -> Self:
        """Raises ValueError where a start would."""
        return cls(
            make_limiter=limiter_maker(settings, charge),
            make_policy=policy_maker(settings) if options_changed else None,
            ceilings=settings.ceilings,
            max_in_flight=settings.max_in_flight,
        )

    def apply(self, limiter: Limiter, now: float) -> None:
        """What it has learned stays, and so does what was admitted in the last minute."""
        for name, bucket in limiter.dimensions.items():
            most = self.ceilings.get(name, float("inf")) / 60 if name == "requests" else float("inf")
            bucket.renew(self._policy(bucket.pace.learned_limit, now), most, now)
        for dormant in limiter.dormant.values():
            dormant.make_policy = self.make_policy or dormant.make_policy
        for name in limiter.ceilings.keys() - self.ceilings.keys():
            del limiter.ceilings[name]
        for name, number in self.ceilings.items():
            if name in limiter.ceilings:
                limiter.ceilings[name].move(number, now)
            else:
                limiter.ceilings[name] = Ceiling(number, now)
        limiter.max_in_flight = self.max_in_flight
        limiter.sum_up()

    def _policy(self, learned: float | None, now: float) -> Policy | None:
        if self.make_policy is None:
            return None
        known = learned is not None and 0 < learned < float("inf")
        return self.make_policy(now, Remembered(limit=learned, age=0.0) if known and learned is not None else None)


def remembered(limit: Limit, now: float) -> Remembered:
    """As a policy is told."""
    refused = None if limit.refused is None else limit.refused / limit.unit
    return Remembered(limit=limit.limit / limit.unit, age=max(now - limit.at, 0.0), refused=refused)


def pair(text: str) -> tuple[str, str]:
    """KEY=VALUE as two; raises ValueError."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise ValueError(f"{text!r} is not KEY=VALUE")
    return key, value


@define(eq=False)
class Gates:
    """One gate for each model, made when its first prompt comes."""

    make_limiter: MakeLimiter
    log: Log
    warn: Callable[[str], None] = lambda _: None  # told once of each policy that failed
    memory: Memory = field(factory=Memory)
    by_model: dict[str, Gate] = field(factory=dict)
    _closed: bool = False

    def of(self, prompt: Prompt) -> Gate:
        """The gate of a prompt's model."""
        model = str(prompt.request.get("model"))
        if model not in self.by_model:
            now = trio.current_time()
            limiter = self.make_limiter(now, self.memory.lessons(model, now), self.memory.spent(model, now))
            self.by_model[model] = Gate(limiter, lambda decision: self._heard(model, decision))
            if self._closed:
                self.by_model[model].close()
        return self.by_model[model]

    def _heard(self, model: str, decision: Decision) -> None:
        self.log(model, decision)
        if decision.reason is Reason.FALLBACK:
            fault = self.by_model[model].limiter.dimensions[decision.dimension].fault
            self.warn(f"the policy failed, and aimd goes on from its last good pace ({model}): {fault}")

    def renew(self, renewal: Renewal, now: float) -> None:
        """Settings were read again."""
        self.make_limiter = renewal.make_limiter
        for gate in self.by_model.values():
            renewal.apply(gate.limiter, now)
            gate.wake()

    def answering(self) -> bool:
        """Some attempt under way has been accepted."""
        return any(gate.limiter.accepted_open for gate in self.by_model.values())

    def asked_until(self) -> float:
        """The latest instant that the upstream named for any model; our own holds are no promise of an answer."""
        return max((gate.limiter.asked_until for gate in self.by_model.values()), default=float("-inf"))

    def close(self) -> None:
        """Admit nothing more."""
        self._closed = True
        for gate in self.by_model.values():
            gate.close()
