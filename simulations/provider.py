"""A simulated upstream: hidden quotas, latencies and faults behind OpenAI's endpoints, with time as an argument.

`arrive` decides everything about an attempt at once and returns it as a Script; a shell plays the script and says
`leave` when the answer has ended or the client has gone. One seed gives one behaviour: the text of an answer depends
on the prompt alone, latency and faults on the prompt and on how often it was let through before, so neither
depends on how attempts interleave.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, inf, isfinite
from random import Random

from attrs import define, evolve, field

from policies.contract import JSON
from simulations import answers
from simulations.asked import Asked, parse
from simulations.census import Census
from simulations.profile import Profile
from simulations.quota import Concurrency, FixedWindow, Gcra, Quota, Quotas, Refusal, SlidingLog
from simulations.script import Fault, Piece, Script, broken, timed_events
from simulations.steps import Steps

PREFIXES = ("/v1beta/openai", "/openai/v1", "/api/v1", "/v1", "")  # where clients look for OpenAI's endpoints
ENDPOINTS = {"chat/completions": "POST", "embeddings": "POST", "models": "GET"}
UNKNOWN_DELAY = 1.0  # seconds; the hint for a refusal whose end nobody knows (concurrency)


@define(eq=False)
class Provider:
    """One upstream. Instants are seconds since its start, on a clock that never goes back."""

    profile: Profile
    seed: int = field(default=0, kw_only=True)
    calendar_offset: float = field(default=0.0, kw_only=True)  # seconds after the start at which a window begins
    _quotas: Quotas = field(init=False)
    _census: Census = field(factory=Census, init=False)
    _admissions: dict[str, int] = field(factory=dict, init=False)  # how often a prompt was let through

    def __attrs_post_init__(self) -> None:
        """Begin with fresh quotas."""
        self._quotas = Quotas(quotas_of(self.profile, self.calendar_offset))

    def arrive(self, now: float, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Script:
        """Decide about one attempt. headers: lower-case names. Every script is ended by one `leave`."""
        endpoint = _endpoint(path)
        number = self._census.arrived(now, counts=endpoint != "models")
        if endpoint is None:
            return self._reject(number, 404, f"Unknown request URL: {method} {path}.", "unknown_url")
        if method != ENDPOINTS[endpoint]:
            rejected = self._reject(number, 405, f"Not allowed to {method} on {path}.", "method_not_supported")
            return evolve(rejected, headers=(("allow", ENDPOINTS[endpoint]), *rejected.headers))
        if self.profile.api_key is not None and headers.get("authorization") != f"Bearer {self.profile.api_key}":
            return self._reject(number, 401, "Incorrect API key provided.", "invalid_api_key")
        if endpoint == "models":
            return _in_one_piece(number, 200, answers.models_body(), 0.0)
        try:
            asked = parse(endpoint, body)
        except ValueError as error:
            return self._reject(number, 400, str(error), None)
        return self._answer_or_refuse(now, number, asked)

    def leave(self, number: int, now: float, *, gone: bool = False, wire: float = 0.0) -> None:
        """The answer has been played to its end, or (gone, or too early for that) its client went away.

        Once is enough. wire: seconds after which the client must have heard of a refusal.
        """
        if self._census.left(number, now, gone=gone, wire=wire):
            self._quotas.leave()

    def connect(self) -> None:
        """A client opened a connection; only a shell with connections knows."""
        self._census.connections += 1

    def statistics(self) -> dict[str, JSON]:
        """What it saw since its start or the last reset."""
        return self._census.statistics()

    def reset(self) -> None:
        """Forget everything: fresh quotas, empty statistics; attempts still open no longer count."""
        self._quotas = Quotas(quotas_of(self.profile, self.calendar_offset))
        # Numbers go on, lest an attempt from before be taken for a new one when it leaves.
        self._census = Census(last_number=self._census.last_number)
        self._admissions = {}

    def _answer_or_refuse(self, now: float, number: int, asked: Asked) -> Script:
        refusal = self._quotas.take(now, {"tokens": asked.charge})
        if refusal is not None:
            script, retry_after = self._refuse(now, number, asked, refusal)
            self._census.refused(asked, refusal.dimension, script, retry_after)
            return script
        nth = self._admissions[asked.digest] = self._admissions.get(asked.digest, 0) + 1
        script = self._answer(number, asked, Random(f"{self.seed}/{asked.digest}/{nth}"))
        script = evolve(script, headers=(*script.headers, *self._limit_headers(now)))
        self._census.admitted(asked, script)
        return script

    def _answer(self, number: int, asked: Asked, rng: Random) -> Script:
        profile = self.profile
        latency = profile.latency * rng.lognormvariate(0.0, profile.latency_spread)
        fault = self._draw_fault(rng)
        if fault is Fault.ERROR:
            body = answers.error_body(
                profile.wording, profile.error_status, "The server had an error.", "server_error", None
            )
            failed = _in_one_piece(number, profile.error_status, body, latency * profile.first_token)
            return evolve(failed, fault=fault)
        script, unbroken = self._whole_answer(number, asked, latency)
        return script if fault is None else broken(script, fault, rng, stall=profile.stall_seconds, unbroken=unbroken)

    def _whole_answer(self, number: int, asked: Asked, latency: float) -> tuple[Script, int]:
        """The script, and how many of its pieces come before the proof of completion."""
        if asked.endpoint == "embeddings":
            return _in_one_piece(number, 200, answers.embeddings_body(asked, self.seed), latency), 0
        choices = answers.write_choices(asked, self.seed, self.profile.words)
        if not asked.stream:
            return _in_one_piece(number, 200, answers.chat_body(asked, choices, number), latency), 0
        events, first = answers.chat_events(asked, choices, number), latency * self.profile.first_token
        script = Script(
            number=number,
            status=200,
            headers=(("content-type", "text/event-stream"), ("x-request-id", f"req_{number}")),
            head_at=first,
            pieces=timed_events(events, first, latency),
            ends_at=latency,
        )
        return script, len(events.opening) + len(events.content)

    def _draw_fault(self, rng: Random) -> Fault | None:
        drawn, profile = rng.random(), self.profile
        shares = {
            Fault.ERROR: profile.error_share,
            Fault.RESET: profile.reset_share,
            Fault.CUT: profile.cut_share,
            Fault.TRUNCATE: profile.truncate_share,
            Fault.STALL: profile.stall_share,
        }
        for fault, share in shares.items():
            if drawn < share:
                return fault
            drawn -= share
        return None

    def _refuse(self, now: float, number: int, asked: Asked, refusal: Refusal) -> tuple[Script, float | None]:
        """The 429, and the seconds its Retry-After says, None if it says nothing."""
        retry_after = self._retry_after(refusal)
        # The text tells the true delay where the header has rounded it up.
        true = self.profile.retry_after == "rounded" and isfinite(refusal.delay)
        told = refusal.delay if true and retry_after is not None else retry_after
        if self.profile.wording == "gemini":
            body = answers.gemini_refusal(told)
        else:
            standing = self._quotas.standings(now)[refusal.dimension]
            body = answers.openai_refusal(asked, refusal, standing, told)
        script = _in_one_piece(number, 429, body, self.profile.refusal_delay)
        hint = () if retry_after is None else (("retry-after", f"{retry_after:g}"),)
        return evolve(script, headers=(*script.headers, *hint, *self._limit_headers(now))), retry_after

    def _retry_after(self, refusal: Refusal) -> float | None:
        never = refusal.delay == inf and refusal.dimension != "concurrency"
        match self.profile.retry_after:
            case "rounded":
                return None if never else float(ceil(refusal.delay)) if isfinite(refusal.delay) else UNKNOWN_DELAY
            case float() | int() as fixed:
                return float(fixed)
            case _:
                return None

    def _limit_headers(self, now: float) -> tuple[tuple[str, str], ...]:
        if not self.profile.headers:
            return ()
        pairs: list[tuple[str, str]] = []
        for dimension, standing in self._quotas.standings(now).items():
            if dimension != "concurrency":
                pairs += [
                    (f"x-ratelimit-limit-{dimension}", f"{standing.limit:.0f}"),
                    (f"x-ratelimit-remaining-{dimension}", f"{int(standing.remaining)}"),
                    (f"x-ratelimit-reset-{dimension}", answers.go_duration(standing.reset)),
                ]
        return tuple(pairs)

    def _reject(self, number: int, status: int, message: str, code: str | None) -> Script:
        self._census.rejected(status)
        body = answers.error_body(self.profile.wording, status, message, "invalid_request_error", code)
        return _in_one_piece(number, status, body, 0.0)


def quotas_of(profile: Profile, calendar_offset: float) -> dict[str, Quota]:
    """Fresh quotas by dimension, as the profile describes them."""
    quotas: dict[str, Quota] = {}
    match profile.quota:
        case "bucket":
            burst = max(1.0, profile.per_period.pairs[0][1]) if profile.burst is None else profile.burst
            quotas["requests"] = Gcra(profile.per_second, burst, profile.period)
        case "fixed" | "fixed-first" as kind:
            quotas["requests"] = FixedWindow(profile.per_period, profile.period, kind == "fixed", calendar_offset)
        case "sliding" | "sliding-refused" as kind:
            quotas["requests"] = SlidingLog(profile.per_period, profile.period, kind == "sliding-refused")
    if profile.tokens_per_minute is not None:
        per_minute = profile.tokens_per_minute
        quotas["tokens"] = Gcra(Steps.constant(per_minute / 60), per_minute)
    if profile.concurrency is not None:
        quotas["concurrency"] = Concurrency(profile.concurrency)
    return quotas


def _endpoint(path: str) -> str | None:
    path = path.partition("?")[0].rstrip("/")
    for prefix in PREFIXES:
        rest = path.removeprefix(f"{prefix}/")
        if path.startswith(f"{prefix}/") and rest in ENDPOINTS:
            return rest
    return None


def _in_one_piece(number: int, status: int, body: bytes, at: float) -> Script:
    headers = (
        ("content-type", "application/json"),
        ("content-length", str(len(body))),
        ("x-request-id", f"req_{number}"),
    )
    return Script(
        number=number, status=status, headers=headers, head_at=at, pieces=(Piece(offset=at, data=body),), ends_at=at
    )
