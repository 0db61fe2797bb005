"""What recall knows: its options, its phases, and all of its memory as values that go into a snapshot.

Instants are seconds on the policy's own clock, which starts at its creation: so a snapshot means the same on another
machine, and no arithmetic depends on how long that one has been up.
"""

from __future__ import annotations

from enum import Enum

from attrs import define, field, frozen, validators

from policies.contract import Reason
from policies.recall_log import SendLog

NEVER = -1e9  # s; an instant before everything, but a number that JSON can hold
TRUSTED = 5  # confirmations, after which probes are as rare as they may be
RANDOM = 2  # blocks in a row with hardly anything accepted between them: it is not the rate that is refused
ENOUGH = 20  # units; a count below it is no measurement (one refusal at a count of 2 must not halve a limit)


def number(default: float, *, low: float, high: float, unit: str, text: str) -> float:
    """An option with its unit, its help and its range."""
    checks = [validators.ge(low), validators.le(high)]
    value: float = field(default=default, validator=checks, metadata={"unit": unit, "help": text})
    return value


@frozen(kw_only=True)
class RecallOptions:
    """What a user may set; the defaults were tuned in the closed loop (simulations/RESULTS.md)."""

    start_rate: float = number(5.0, low=1e-6, high=1e6, unit="units/s", text="refill_rate before any answer")
    doubling_time: float = number(2.0, low=0.1, high=3600, unit="s", text="of busy time, in slow start")
    period: float = number(60.0, low=1, high=86400, unit="s", text="the upstream counts over this time; most use 60")
    refused_share: float = number(
        0.005, low=1e-5, high=0.5, unit="", text="of attempts that probing may cost; larger finds more room sooner"
    )
    margin: float = number(0.01, low=0, high=0.5, unit="", text="cruise this share below the learned limit")
    probe_step: float = number(0.04, low=0.005, high=1, unit="", text="a probe asks for this share above the limit")
    contention_factor: float = number(0.85, low=0.1, high=0.99, unit="", text="the cut while others share the quota")
    longest_hold: float = number(22.0, low=0.1, high=3600, unit="s", text="the pause after refused probes, at most")


class Phase(Enum):
    """What the rate is doing while nothing is refused."""

    START = "start"  # slow start; after an outage up to the limit known before it
    SEARCH = "search"  # between a rate that held and one that did not
    CRUISE = "cruise"  # just below the learned limit
    PROBE = "probe"  # just above it
    CLIMB = "climb"  # the probe survived: there is more, find out how much
    CONTEND = "contend"  # others take part of the quota: plain AIMD


@define(eq=False, kw_only=True)
class Block:
    """A refusal and what follows until an attempt passes again. rate, phase: of the moment before."""

    sent_at: float  # the refused attempt
    began_at: float  # its refusal
    rate: float
    phase: Phase
    hold: float  # s, the last pause
    again_at: float  # the next probe's earliest instant
    failed_at: float  # the last refused attempt was sent then
    shut_until: float  # the upstream was surely shut until then
    failures: int = 0  # refused probes
    refusals: float = 1.0  # 429s, stale ones too
    overload: bool = False  # part of it was no word on the quota
    partial: bool = False  # another limit had held back what was sent lately, so that its count measures nothing
    owed: float = 0.0  # units of attempts in flight that the upstream charges later


@define(eq=False, kw_only=True)
class Turn:
    """When an upstream window turns over: somewhere in (low, high], and every period later again."""

    low: float = NEVER
    high: float = NEVER
    seen: int = 0  # turns that agreed on it


@define(eq=False, kw_only=True)
class Period:
    """What resets have shown of the period that a told limit is for; all but length and unsure since the last span."""

    length: float = 0.0  # s; 0 as long as nothing speaks against the assumed one
    since: float = NEVER  # the first look
    looked_at: float = NEVER
    gap: float = 0.0  # s between two looks, at most
    farthest: float = 0.0  # s; the largest reset
    looks: int = 0
    odd: int = 0  # of the looks: no bucket of the assumed period would have said so
    unsure: float = 0.0  # s by which length may be too long


@define(eq=False, kw_only=True)
class State:
    """The whole memory. rate is what is wished for; the pace follows when it may."""

    log: SendLog
    seed: int
    rate: float
    now: float = 0.0
    phase: Phase = Phase.START
    reason: Reason = Reason.START
    limit: float | None = None  # units/s; what the upstream is believed to allow
    low: float = 0.0  # SEARCH: the rate that held, 0 if none did yet
    high: float = 0.0  # SEARCH: the rate that did not hold
    searched_from: float = NEVER  # SEARCH: sent_at of the refusal it began with, and
    searched_mark: float = 0.0  # what had been accepted by then
    searched_idle: float = 0.0  # s for which that refusal blocked
    searched_count: float = 0.0  # what had been accepted in the period before it
    survived: float = 0.0  # s of busy time in this step of a phase
    stepped_at: float = 0.0
    probe_at: float = NEVER
    probed_from: float = NEVER  # PROBE at the end of a window: when that began
    probe_cost: float = 1.6  # 429s that a refused probe costs, on average
    trust: int = TRUSTED  # probes that confirmed the limit; a limit of which little is known is probed sooner
    stood: float = 0.0  # units/s; about where the limit has been
    stood_since: float = NEVER  # without moving much
    probe_loss: float = 0.0  # s of sending that a refused probe costs where its block is no window's rest
    first_at: float | None = None  # the first admission
    echo_until: float = NEVER  # a log may be full of an earlier burst until then
    burst_until: float = NEVER  # and surely is, of one that outran it by far
    draws: int = 0  # jitter drawn so far
    level: int = 0  # unexpected refusals in a row
    unexpected_at: float = NEVER
    peaks: list[float] = field(factory=list)  # CONTEND: limits as measured at its refusals
    slope: float = 0.0  # CONTEND: units/s per second
    clears: list[list[float]] = field(factory=list)  # [instant, accepted by then] of the ends of short blocks
    windows: int = 0  # 0..3: lately blocks lasted as windows do
    brief: bool = False  # windows are much shorter than a period, and so are treated as buckets are
    young_until: float = NEVER  # the first window was shut until then at least, not for a whole period, and
    young_count: float = 0.0  # had accepted this much
    turn: Turn = field(factory=Turn)
    block: Block | None = None
    passed: int = 0  # acceptances since the last block
    lasting: float = 0.0  # s from admission to end of an attempt, on average
    cut_at: float = NEVER  # the last block that taught something began then
    scattered: int = 0  # blocks in a row with few of them in between, and
    calm_rate: float = 0.0  # the rate at the first of these
    told_limit: float | None = None  # units/s, by headers
    told_at: float = NEVER
    drained_at: float = NEVER  # by headers; when its bucket was last seen to be used
    told_margin: float = 0.0  # of it that is left alone, learnt from refusals in spite of it
    resume_at: float = NEVER  # the first attempt after a block is paced, too
    told_hold: float = NEVER  # nothing remains until then
    told_for: Period = field(factory=Period)
    reset_votes: int = 0  # -3..3: reset means the end of the window (negative) or the time to full
    reset_at: float = NEVER  # as told
    reset_seen_at: float = NEVER
    newest: int = -1  # highest permit admitted
    epoch: int = -1  # permits up to this one are stale

    @property
    def is_random(self) -> bool:
        """Refusals come whatever the rate is: an upstream that serves some and turns others away at the door."""
        return self.scattered >= RANDOM

    def jitter(self) -> float:
        """The next number in [0, 1), mixed from the seed and the count of draws (splitmix64's finisher)."""
        self.draws += 1
        mixed = (self.seed * 0x9E3779B97F4A7C15 + self.draws * 0xBF58476D1CE4E5B9) & (2**64 - 1)
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
        return ((mixed ^ (mixed >> 31)) >> 11) / 2**53
