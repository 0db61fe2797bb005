"""What stands between an attempt and its answer: the profile's quotas, its slope, its dice and its queue."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from attrs import define, evolve, field

from simulations.asked import Asked
from simulations.charging import Booked, at_the_end, on_arrival, while_produced
from simulations.knobs import Profile
from simulations.production import Production
from simulations.quota import Concurrency, FixedWindow, Gcra, Quota, Quotas, Refusal
from simulations.sliding_log import SlidingLog
from simulations.slope import Slope
from simulations.standing import Standing
from simulations.steps import Steps

PER_DAY = "requests_per_day"  # a dimension
DAY = 86_400.0  # seconds
ANNOUNCED = ("requests", "tokens", "input_tokens", "output_tokens")
UNKNOWN_DELAY = 1.0  # seconds; the hint for a refusal whose end nobody knows (concurrency, dice)
NO_STANDING = Standing(limit=0.0, remaining=0.0, reset=0.0)


@define(eq=False)
class Limits:
    """Decides in the order of arrivals; time never goes back."""

    profile: Profile
    calendar_offset: float  # seconds after the start at which a window begins
    _quotas: Quotas = field(init=False)
    _slope: Slope | None = field(init=False)
    _free_at: float = field(default=-inf, init=False)  # the queue is worked off by then
    _owed: dict[int, Booked] = field(factory=dict, init=False)  # still to be booked, by attempt
    _production: Production = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Begin with fresh quotas."""
        profile = self.profile
        self._quotas = Quotas(quotas_of(profile, self.calendar_offset))
        self._slope = Slope(profile.slope_seconds, profile.slope_free) if profile.slope_seconds else None
        self._production = Production(self._produced)

    def refuse(self, now: float, asked: Asked, drawn: float) -> Refusal | None:
        """Book the attempt with every limit, or with none and say why. drawn: from [0, 1), against refuse_share."""
        self._production.advance(now)
        share = self.profile.refuse_share
        if share is not None and drawn < share.at(now):
            return Refusal(dimension="dice", delay=UNKNOWN_DELAY)
        if self._slope is not None and (wait := self._slope.ask(now)) > 0:
            return Refusal(dimension="slope", delay=wait)
        refusal = self._quotas.take(now, self.charge(asked))
        if refusal is None and self._slope is not None:
            self._slope.take(now)
        return refusal

    def charge(self, asked: Asked) -> Booked:
        """LLM tokens that are booked on arrival, by dimension."""
        return on_arrival(self.profile.charge, asked)

    def queue(self, now: float) -> float:
        """Seconds in the queue for who is admitted now."""
        if self.profile.served_per_second is None:
            return 0.0
        began_at = max(now, self._free_at)
        self._free_at = began_at + 1 / self.profile.served_per_second
        return began_at - now

    def owe(self, number: int, asked: Asked, output: int, *, begins_at: float, ends_at: float) -> None:
        """An admitted attempt will have an answer of so many LLM tokens between two instants."""
        self._owed[number] = at_the_end(self.profile.charge, asked, output)
        produced = while_produced(self.profile.charge, output)
        if produced:
            self._production.begin(number, begins_at, ends_at, produced["tokens"])

    def leave(self, number: int, now: float) -> float:
        """An admitted attempt is over: its place is free; the LLM tokens booked after its arrival, or given back."""
        self._quotas.leave()
        produced = self._production.stop(number, now)
        owed = self._owed.pop(number, {})
        for dimension, tokens in owed.items():
            self._quotas.correct(now, dimension, tokens)
        return produced + owed.get("tokens", 0.0)

    def _produced(self, now: float, tokens: float) -> None:
        for dimension in while_produced("produced", 1):
            self._quotas.correct(now, dimension, tokens)

    def standing(self, now: float, dimension: str) -> Standing:
        """What the text of a refusal may name."""
        return self._announced(dimension, self._quotas.standings(now).get(dimension, NO_STANDING))

    def announced(self, now: float) -> Mapping[str, Standing]:
        """What headers tell: of requests and LLM tokens."""
        standings = self._quotas.standings(now)
        return {name: self._announced(name, standings[name]) for name in ANNOUNCED if name in standings}

    def _announced(self, dimension: str, standing: Standing) -> Standing:
        """In units of a period, whatever window it is enforced in."""
        if dimension != "requests" or self.profile.window is None or self.profile.quota == "bucket":
            return standing
        return evolve(standing, limit=standing.limit * self.profile.period / self.profile.window)


def quotas_of(profile: Profile, calendar_offset: float) -> dict[str, Quota]:
    """Fresh quotas by dimension, as the profile describes them."""
    quotas: dict[str, Quota] = {}
    window = profile.period if profile.window is None else profile.window
    match profile.quota:
        case "bucket":
            burst = max(1.0, _per_window(profile).pairs[0][1]) if profile.burst is None else profile.burst
            quotas["requests"] = Gcra(profile.per_second, burst, profile.period)
        case "fixed" | "fixed-first" as kind:
            quotas["requests"] = FixedWindow(_per_window(profile), window, kind == "fixed", calendar_offset)
        case "sliding" | "sliding-refused" as kind:
            quotas["requests"] = SlidingLog(_per_window(profile), window, kind == "sliding-refused")
    tokens = {
        "tokens": profile.tokens_per_minute,
        "input_tokens": profile.input_tokens_per_minute,
        "output_tokens": profile.output_tokens_per_minute,
    }
    for name, per_minute in tokens.items():
        if per_minute is not None and profile.calendar_minutes:
            quotas[name] = FixedWindow(Steps.constant(per_minute), 60.0, offset=calendar_offset)
        elif per_minute is not None:
            quotas[name] = Gcra(Steps.constant(per_minute / 60), per_minute)
    if profile.requests_per_day is not None:
        quotas[PER_DAY] = FixedWindow(Steps.constant(profile.requests_per_day), DAY, offset=calendar_offset)
    if profile.concurrency is not None:
        quotas["concurrency"] = Concurrency(profile.concurrency)
    return quotas


def _per_window(profile: Profile) -> Steps:
    return profile.per_period if profile.window is None else profile.per_second.scaled(profile.window)
