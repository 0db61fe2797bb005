"""A sender that recall paces: every attempt is answered at once, by a rule or by a quota of the simulator."""

from __future__ import annotations

from collections.abc import Callable

from policies.contract import Accepted, Admitted, Hints, LimitedBy, Pace, Refused, Remembered, Scope
from policies.recall import Recall
from policies.recall_state import Phase, RecallOptions
from simulations.quota import Quota

START = 1000.0
NOTHING = Hints()


class Sender:
    """Drives one policy at its own pace; every attempt is answered at once, as `passes` or a quota says."""

    def __init__(self, seed: int = 1, remembered: Remembered | None = None, **options: float) -> None:
        self.policy = Recall(RecallOptions(**options), seed=seed, now=START, remembered=remembered)
        self.now, self.permit = START, -1
        self.refusals: list[float] = []  # instants
        self.accepted = 0

    @property
    def limit(self) -> float:
        assert self.policy.pace.learned_limit is not None
        return self.policy.pace.learned_limit

    @property
    def phase(self) -> Phase:
        return self.policy.state.phase

    def admit(self, limited_by: LimitedBy = LimitedBy.RATE) -> int:
        self.permit += 1
        self.policy.on(Admitted(**self._facts(self.permit, limited_by)))  # type: ignore[arg-type]
        return self.permit

    def accept(self, permit: int, *, limited_by: LimitedBy = LimitedBy.RATE, hints: Hints = NOTHING) -> Pace:
        return self.policy.on(Accepted(**self._facts(permit, limited_by), hints=hints))  # type: ignore[arg-type]

    def refuse(
        self,
        permit: int,
        *,
        scope: Scope = Scope.UNKNOWN,
        retry_after: float | None = None,
        hints: Hints = NOTHING,
        limited_by: LimitedBy = LimitedBy.RATE,
        owed: float = 0.0,
    ) -> Pace:
        facts = self._facts(permit, limited_by)
        told = {"scope": scope, "retry_after": retry_after, "hints": hints, "owed": owed}
        refusal = Refused(**facts, **told)  # type: ignore[arg-type]
        return self.policy.on(refusal)

    def run(self, until: float, passes: Callable[[float], bool], hints: Hints = NOTHING) -> None:
        """Paced attempts until so many seconds after the start; an attempt is judged when it is sent."""
        while (at := max(self.now, self.policy.pace.held_until)) < START + until:
            self.now = at
            permit = self.admit()
            if passes(self.now):
                self.accepted += 1
                self.accept(permit, hints=hints)
                self.now += 1 / self.policy.pace.refill_rate
            else:
                self.refusals.append(self.now - START)
                self.refuse(permit)
                self.now += 1e-3

    def run_against(self, until: float, quota: Quota) -> None:
        self.run(until, lambda now: asks(quota, now))

    def _facts(self, permit: int, limited_by: LimitedBy) -> dict[str, object]:
        return {
            "now": self.now,
            "permit": permit,
            "admitted_at": self.now,
            "cost": 1.0,
            "limited_by": limited_by,
            "in_flight": 1,
            "refill_rate": self.policy.pace.refill_rate,
        }


def asks(quota: Quota, now: float) -> bool:
    if quota.ask(now, 1.0) > 0:
        return False
    quota.take(now, 1.0)
    return True


def at_cruise(limit: float = 10.0, seconds: float = 70.0) -> Sender:
    """One that cruises below a remembered limit and has a full minute behind it."""
    sender = Sender(remembered=Remembered(limit=limit, age=1.0), refused_share=1e-4)  # so that no probe disturbs
    sender.run(seconds, lambda _: True)
    assert sender.phase is Phase.CRUISE
    return sender
