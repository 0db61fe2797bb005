"""Scenarios: TOML files of parameters, prose and bounds -> frozen values.

A file says what the hidden upstream is like (`[upstream]`: a profile's quota parameters; `[[outage]]`,
`[[neighbour]]`, and a few habits of upstreams), who sends (`[clients]`, `[workload]`), how long answers take
(`[latency]`), which feedback modes are run, and what has to come out of it for the default policy
(`[bounds.MODE]`). Faults are ValueErrors of one line that name the file and the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, exp, inf
from statistics import NormalDist, fmean

from attrs import field, frozen

from controller.settings import Settings
from simulations.bounds import Bounds
from simulations.charging import CHARGES, Booked
from simulations.knobs import Profile
from simulations.ranges import LARGEST, LONGEST, OneOf, Within
from simulations.sizes import prompts_per_second
from simulations.workload import Workload

DEFAULT_POLICY = Settings().policy  # the daemon's own
TOKENS = ("tokens", "input_tokens", "output_tokens")
NONE, RETRY_AFTER, HEADERS = "none", "retry-after", "headers"
FEEDBACK = (NONE, RETRY_AFTER, HEADERS)  # what answers tell: nothing; Retry-After; that and limit, remaining, reset


@frozen
class Span:
    """A range of seconds, low <= high."""

    low: float
    high: float

    def __attrs_post_init__(self) -> None:
        """Refuse one that is none."""
        if not 0 <= self.low <= self.high <= LONGEST:
            raise ValueError(f"a range is [low, high] in seconds, not [{self.low:g}, {self.high:g}]")


@frozen(kw_only=True)
class Latency:
    """Seconds after a request was sent. arrival, head: drawn evenly; end: a lognormal within a range."""

    arrival: Span = Span(0.01, 0.05)  # upstream decides; the spread lets attempts overtake each other
    refusal: float = field(default=0.1, validator=Within(0.0, LONGEST, "seconds"))
    head: Span = Span(0.3, 0.8)
    end_median: float = field(default=8.0, validator=Within(0.0, LONGEST, "seconds"))
    end_sigma: float = field(default=0.7, validator=Within(0.0, 3.0, "sigma of a lognormal"))
    end: Span = Span(1.0, 60.0)

    def mean_end(self) -> float:
        """The mean of the ends, by the middles of a thousand equal shares."""
        normal = NormalDist()
        draws = (self.end_median * exp(self.end_sigma * normal.inv_cdf((n + 0.5) / 1000)) for n in range(1000))
        return fmean(min(max(draw, self.end.low), self.end.high) for draw in draws)


@frozen(kw_only=True)
class Outage:
    """All attempts that arrive in [start, until) are refused with a status, without a hint."""

    start: float = field(validator=Within(0.0, LONGEST, "seconds"))
    until: float = field(validator=Within(0.0, LONGEST, "seconds"))
    status: int = 429

    def __attrs_post_init__(self) -> None:
        """Refuse an empty one."""
        _require_order(self.start, self.until)
        if self.status not in (429, 503):
            raise ValueError(f"status must be 429 or 503, not {self.status!r}")


@frozen(kw_only=True)
class Neighbour:
    """Somebody else on the same quota: so many evenly spaced requests per second in [start, until), no retries."""

    start: float = field(validator=Within(0.0, LONGEST, "seconds"))
    until: float = field(validator=Within(0.0, LONGEST, "seconds"))
    per_second: float = field(validator=Within(0.001, 10_000.0, "requests per second"))

    def __attrs_post_init__(self) -> None:
        """Refuse an empty one."""
        _require_order(self.start, self.until)


@frozen(kw_only=True)
class Habits:
    """What some upstreams do besides quotas; each is off by default."""

    hides_429: bool = field(default=False, validator=OneOf((True, False)))  # a router answers 502 in its place
    slope_seconds: float = field(default=0.0, validator=Within(0.0, 600.0, "seconds"))
    """429 when more would be let through within so long than twice what was in the time before it; 0: never."""
    slope_free: float = field(default=20.0, validator=Within(0.0, LARGEST, "requests"))  # that many always pass
    served_per_second: float = field(default=0.0, validator=Within(0.0, 10_000.0, "requests per second"))
    """An unbounded queue that is worked off at this speed and delays heads and ends; 0: no queue."""
    says_which: bool = field(default=True, validator=OneOf((True, False)))  # with a mix: a 429 names the limit


@frozen(kw_only=True)
class Clients:
    """Who sends, all with the same key: one client for each instant in `joins`."""

    joins: tuple[float, ...] = (0.0,)
    max_in_flight: int = field(default=100_000, validator=Within(1, 1_000_000, "attempts", whole=True))
    workers: int = field(default=0, validator=Within(0, 1_000_000, "workers", whole=True))
    """For peers that are pools of workers; 0: as many as twice the limit keeps busy for 10 s."""
    charge: str | None = field(default=None, validator=OneOf((None, *CHARGES)))
    """With a mix: how they believe that LLM tokens are booked; None: as they are."""

    def __attrs_post_init__(self) -> None:
        """Somebody must send."""
        if not self.joins or any(not 0 <= at <= LONGEST for at in self.joins):
            raise ValueError("joins is a list of instants in seconds, at least one")


@frozen(kw_only=True)
class Scenario:
    """One world with its expectations. Instants and durations in seconds."""

    name: str
    about: str  # prose: the shape to expect
    upstream: Profile
    offset: float = field(default=0.0, validator=Within(0.0, LONGEST, "seconds"))  # a calendar window begins here
    duration: float = field(default=7200.0, validator=Within(1.0, LONGEST, "seconds"))
    feedback: tuple[str, ...] = FEEDBACK
    policy: str | None = None  # whom the bounds are for; None: the default policy
    options: Mapping[str, str] = field(factory=dict)  # of that policy
    tag: str | None = field(default=None, validator=OneOf((None, "fast")))
    outages: tuple[Outage, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()
    habits: Habits = Habits()
    clients: Clients = Clients()
    workload: Workload = field(factory=Workload)
    latency: Latency = Latency()
    bounds: Mapping[str, Bounds] = field(factory=dict)  # by feedback mode

    def __attrs_post_init__(self) -> None:
        """What no single part can know."""
        if not self.feedback or any(mode not in FEEDBACK for mode in self.feedback):
            raise ValueError(f"feedback is a list out of {', '.join(FEEDBACK)}")
        if self.limit_at(0.0) == inf:
            raise ValueError("upstream: there is no limit at all; give rate, limit, tokens_per_minute or concurrency")
        if not self.limit_at(0.0) > 0:
            raise ValueError("upstream: the limit is 0 at the start; let an outage do that")
        if self.is_mixed and (self.neighbours or self.habits.hides_429 or self.habits.served_per_second):
            raise ValueError("workload.mix: no neighbours, no hidden 429s and no queue beside it")
        for mode in self.bounds:
            if mode not in self.feedback:
                raise ValueError(f"bounds.{mode}: that feedback mode is not run")

    @property
    def bounded_policy(self) -> str:
        """Whom the bounds are for."""
        return self.policy or DEFAULT_POLICY

    @property
    def is_mixed(self) -> bool:
        """Requests and LLM tokens are both counted, and prompts are the unit of all figures."""
        return bool(self.workload.mix)

    @property
    def charge(self) -> str:
        """How clients believe that LLM tokens are booked."""
        return self.clients.charge or self.upstream.charge

    @property
    def dimension(self) -> str:
        """The quota dimension that costs are counted in, and the only one unless there is a mix."""
        if self.is_mixed:
            return "requests"
        return "tokens" if self.upstream.quota == "none" and self.upstream.tokens_per_minute else "requests"

    def limit_at(self, now: float) -> float:
        """The hidden limit in units per second, outages and neighbours left out; inf where there is none."""
        if self.is_mixed:
            return prompts_per_second(self.workload.mix, self.upstream.charge, self.limits_at(now))
        if self.dimension == "tokens":
            assert self.upstream.tokens_per_minute is not None
            return self.upstream.tokens_per_minute / 60
        if self.upstream.quota != "none":
            return self.upstream.per_second.at(now)
        if self.habits.served_per_second:
            return self.habits.served_per_second
        places = self.upstream.concurrency
        return inf if places is None else places / self.latency.mean_end()

    def limits_at(self, now: float) -> Booked:
        """All hidden limits on rates, per second, by dimension."""
        limits = {} if self.upstream.quota == "none" else {"requests": self.upstream.per_second.at(now)}
        for name in TOKENS:
            per_minute = getattr(self.upstream, f"{name}_per_minute")
            if per_minute is not None:
                limits[name] = per_minute / 60
        return limits

    @property
    def workers(self) -> int:
        """Of peers that are pools of workers: as said, else what keeps twice the limit busy for 10 s."""
        return self.clients.workers or max(1, ceil(2 * self.limit_at(0.0) / self.workload_unit * 10))

    @property
    def work(self) -> Workload:
        """The workload, with costs in units of the limit."""
        return self.workload if self.dimension == "tokens" else self.workload.in_requests()

    @property
    def workload_unit(self) -> float:
        """What one prompt costs on average, in units of the limit."""
        return self.work.typical_cost


def _require_order(start: float, until: float) -> None:
    if until <= start:
        raise ValueError(f"until {until:g} is not after start {start:g}")
