"""The parameters of a simulated upstream, each with its unit, range and meaning."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen
from attrs.validators import instance_of, optional

from simulations.charging import CHARGES
from simulations.dialects.table import COMPATIBLE
from simulations.faults import FAULTS
from simulations.hinting import FORMS
from simulations.manners import MANNERS
from simulations.ranges import (
    LARGEST,
    LONGEST,
    AnyOf,
    OneOf,
    Within,
    about,
    as_spans,
    as_words,
    limit_steps,
    maybe,
    maybe_whole,
    rate_steps,
    share_steps,
)
from simulations.steps import Steps

QUOTAS = ("bucket", "fixed", "fixed-first", "sliding", "sliding-refused", "none")
# Dialects by the controller's names.
SPOKEN = ("openai", "azure", "anthropic", "gemini", "gemini-openai", "deepseek", "vllm")
SHARE = Within(0.0, 1.0, "share of attempts")


@frozen(kw_only=True)
class Profile:
    """One simulated upstream. The fields' metadata say unit and meaning, their validators the range."""

    name: str = "custom"
    quota: str = field(
        default="bucket",
        validator=OneOf(QUOTAS),
        metadata=about("", "kind of the limit on requests; fixed is aligned to the calendar"),
    )
    rate: Steps | None = field(default=None, converter=rate_steps, metadata=about("requests per second", "the limit"))
    limit: Steps | None = field(default=None, converter=limit_steps, metadata=about("requests per period", "the limit"))
    period: float = field(
        default=60.0,
        validator=Within(0.001, LONGEST, "seconds"),
        metadata=about("seconds", "length of a window, and of what headers announce"),
    )
    window: float | None = maybe(
        0.001, LONGEST, "seconds", "enforced in windows of this length, though announced per period; none: the period"
    )
    burst: float | None = maybe(
        1.0, LARGEST, "requests", "what a full bucket lets through at once; none: one window's limit"
    )
    tokens_per_minute: float | None = maybe(
        1.0, LARGEST, "LLM tokens per minute", "a second limit, on input and output together"
    )
    input_tokens_per_minute: float | None = maybe(1.0, LARGEST, "LLM tokens per minute", "a limit on the input alone")
    output_tokens_per_minute: float | None = maybe(1.0, LARGEST, "LLM tokens per minute", "a limit on the output alone")
    calendar_minutes: bool = field(
        default=False,
        validator=OneOf((True, False)),
        metadata=about("", "LLM tokens are counted by calendar minutes, not in buckets that hold a minute's worth"),
    )
    charge: str = field(
        default="larger",
        validator=OneOf(CHARGES),
        metadata=about(
            "",
            "LLM tokens booked: the larger of input and max_tokens on arrival; up-front: their sum; input: that alone; "
            "produced: the output as it is produced; settled: the sum, corrected at the end",
        ),
    )
    requests_per_day: float | None = maybe(
        1.0, LARGEST, "requests", "a limit on each day of the calendar (UTC), whose refusals say so"
    )
    concurrency: int | None = maybe_whole(1, 1_000_000, "attempts at once", "answered at once; more are refused")
    refuse_share: Steps | None = field(
        default=None,
        converter=share_steps,
        metadata=about("share of attempts", "refused whatever the limits say; may step over time as the rate does"),
    )
    slope_seconds: float = field(
        default=0.0,
        validator=Within(0.0, LONGEST, "seconds"),
        metadata=about("seconds", "refused is what more than doubles within this time; 0: no such limit"),
    )
    slope_free: float = field(
        default=10.0,
        validator=Within(1.0, LARGEST, "requests"),
        metadata=about("requests", "so many within slope_seconds are never too steep"),
    )
    served_per_second: float | None = maybe(
        0.001, LARGEST, "requests per second", "speed of a queue without end that all must pass; none: no queue"
    )
    outages: tuple[tuple[float, float], ...] = field(
        default=(),
        converter=as_spans,
        metadata=about("seconds", "[[from, until], ...] after the start, in which nothing is answered"),
    )
    outage_status: int | None = maybe_whole(400, 599, "HTTP status", "of an outage; none: every connection is reset")
    latency: float = field(
        default=0.5,
        validator=Within(0.0, LONGEST, "seconds"),
        metadata=about("seconds", "from arrival to the end of an answer (median)"),
    )
    latency_spread: float = field(
        default=0.0,
        validator=Within(0.0, 3.0, "sigma of a lognormal"),
        metadata=about("", "a larger value spreads the latencies wider; 0: all alike"),
    )
    first_token: float = field(
        default=0.4,
        validator=Within(0.0, 1.0, "share of the latency"),
        metadata=about("share of the latency", "passed before the head and the first event of a stream"),
    )
    output_speed: float | None = maybe(
        0.1, LARGEST, "LLM tokens per second", "the output takes that much longer than the latency; none: no longer"
    )
    refusal_delay: float = field(
        default=0.05, validator=Within(0.0, LONGEST, "seconds"), metadata=about("seconds", "from arrival to a refusal")
    )
    words: int = field(
        default=20,
        validator=Within(1, 100_000, "words", whole=True),
        metadata=about("words", "mean length of an answer"),
    )
    words_per_event: int = field(
        default=1,
        validator=Within(1, 100_000, "words", whole=True),
        metadata=about("words", "in each event of a stream; a larger value makes long answers cheaper to simulate"),
    )
    thoughts: int = field(
        default=0,
        validator=Within(0, 100_000, "words", whole=True),
        metadata=about("words", "of reasoning before the text"),
    )
    manners: tuple[str, ...] = field(
        default=(),
        converter=as_words,
        validator=AnyOf(MANNERS),
        metadata=about("", "strange but legal ways of writing every answer, with commas between them"),
    )
    fault: tuple[str, ...] = field(
        default=(),
        converter=as_words,
        validator=AnyOf(tuple(FAULTS)),
        metadata=about("", "what goes wrong, with commas between them: each as often as the others"),
    )
    fault_share: float = field(default=1.0, validator=SHARE, metadata=about("", "of attempts that meet a fault"))
    fault_at: int | None = maybe_whole(0, 100_000, "events", "that come whole before the fault; none: drawn")
    error_share: float = field(default=0.0, validator=SHARE, metadata=about("", "answered with error_status"))
    error_status: int = field(
        default=500,
        validator=Within(500, 599, "HTTP status", whole=True),
        metadata=about("HTTP status", "of the injected errors"),
    )
    reset_share: float = field(
        default=0.0, validator=SHARE, metadata=about("", "reset (RST), half before any answer, half within it")
    )
    cut_share: float = field(
        default=0.0, validator=SHARE, metadata=about("", "closed within the answer, without the last HTTP chunk")
    )
    truncate_share: float = field(
        default=0.0, validator=SHARE, metadata=about("", "ended cleanly, but without finish_reason and [DONE]")
    )
    stall_share: float = field(
        default=0.0, validator=SHARE, metadata=about("", "silent, half before any answer, half within it, then cut")
    )
    stall_seconds: float = field(
        default=120.0, validator=Within(0.0, LONGEST, "seconds"), metadata=about("seconds", "length of a stall")
    )
    retry_after: float | str = field(
        default="rounded",
        validator=Within(-LONGEST, LONGEST, "seconds", or_else=("rounded", "none")),
        metadata=about("seconds", "hint on a 429: the true delay in whole seconds, rounded up; or fixed; or none"),
    )
    hint: str = field(
        default="usual",
        validator=OneOf(("usual", *FORMS)),
        metadata=about("", "form of that hint; usual: as the dialect does; per-day: the body blames a limit per day"),
    )
    clock_skew: float = field(
        default=0.0,
        validator=Within(-LONGEST, LONGEST, "seconds"),
        metadata=about("seconds", "by which its wall clock is ahead, in dates and in resets"),
    )
    headers: bool = field(
        default=False,
        validator=OneOf((True, False)),
        metadata=about("", "x-ratelimit-* or the dialect's like on 200 and 429"),
    )
    wording: str = field(
        default="openai",
        validator=OneOf(tuple(COMPATIBLE)),
        metadata=about("", "shape of error bodies under OpenAI's paths"),
    )
    dialect: str = field(
        default="openai",
        validator=OneOf(SPOKEN),
        metadata=about("", "what `sim:` is asked in unless --dialect says otherwise; over HTTP the path decides"),
    )
    api_key: str | None = field(
        default=None,
        validator=optional(instance_of(str)),
        metadata=about("", "the key that must be given, where the dialect has it; none: any or no key"),
    )

    def __attrs_post_init__(self) -> None:
        """What no single field can know."""
        if self.quota != "none" and (self.rate is None) == (self.limit is None):
            raise ValueError("give either rate (requests per second) or limit (requests per period)")
        shares = sum(self.shares.values())
        if shares > 1.0 + 1e-9:
            raise ValueError(f"the shares of faults must sum up to 1 at most, not {shares:g}")
        if self.refuse_share is not None and any(share > 1.0 for _, share in self.refuse_share.pairs):
            raise ValueError("refuse_share must be a share of attempts, from 0 to 1")

    @property
    def shares(self) -> Mapping[str, float]:
        """Shares of attempts by fault, in the order in which they are drawn."""
        shares = {
            "error": self.error_share,
            "reset": self.reset_share,
            "cut": self.cut_share,
            "truncate": self.truncate_share,
            "stall": self.stall_share,
        }
        for name in self.fault:
            shares[name] = shares.get(name, 0.0) + self.fault_share / len(self.fault)
        return shares

    @property
    def per_second(self) -> Steps:
        """The limit on requests per second; asked only where there is one."""
        if self.rate is not None:
            return self.rate
        assert self.limit is not None
        return self.limit.scaled(1 / self.period)

    @property
    def per_period(self) -> Steps:
        """The limit on requests per period; asked only where there is one."""
        return self.limit if self.limit is not None else self.per_second.scaled(self.period)
