"""A simulated upstream: hidden quotas, latencies and faults behind several dialects, with time as an argument.

`arrive` decides everything about an attempt at once and returns it as a Script; a shell plays the script and says
`leave` when the answer has ended or the client has gone. The request's path decides the dialect; all dialects share
the quotas. One seed gives one behaviour: the text of an answer depends on the prompt alone, latency and faults on the
prompt and on how often it was let through before, so neither depends on how attempts interleave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import ceil, inf, isfinite
from random import Random

from attrs import define, evolve, field, frozen

from policies.contract import JSON
from simulations.answers import CREATED, Answer, write_choices
from simulations.asked import Asked
from simulations.census import Census
from simulations.dialects.contract import KINDS, Dialect, Endpoint, Refusing, Request, Said, Trouble
from simulations.dialects.table import dialect_of, request_of
from simulations.faults import Around, spoil
from simulations.hinting import EMPTY, FORMS, IN_TEXT, http_date
from simulations.knobs import Profile
from simulations.limits import PER_DAY, UNKNOWN_DELAY, Limits
from simulations.manners import PADDING, padded, spoken, written
from simulations.quota import Refusal
from simulations.script import Ending, Headers, Script, delayed, in_one_piece, streamed

LONG_AGO = 1e9  # Unix seconds; windows that began before the year 2001 are on no wall clock


@frozen(kw_only=True)
class Caller:
    """One attempt at the door: its number, when it came, and the dialect in which it is answered."""

    number: int
    now: float
    dialect: Dialect


@define(eq=False)
class Provider:
    """One upstream. Instants are seconds since its start, on a clock that never goes back."""

    profile: Profile
    seed: int = field(default=0, kw_only=True)
    calendar_offset: float = field(default=0.0, kw_only=True)  # seconds after the start at which a window begins
    _limits: Limits = field(init=False)
    _census: Census = field(factory=Census, init=False)
    _asked: Counter[str] = field(factory=Counter, init=False)  # how often a prompt came
    _admissions: Counter[str] = field(factory=Counter, init=False)  # how often it was let through

    def __attrs_post_init__(self) -> None:
        """Begin with fresh quotas."""
        self._limits = Limits(self.profile, self.calendar_offset)

    def arrive(self, now: float, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Script:
        """Decide about one attempt. headers: lower-case names. Every script is ended by one `leave`."""
        request = request_of(method, path, headers, body)
        dialect = dialect_of(request.path, self.profile.wording)
        endpoint = dialect.endpoint(request)
        number = self._census.arrived(now, dialect.name, counts=endpoint is None or endpoint.name != "models")
        script = self._decide(Caller(number=number, now=now, dialect=dialect), endpoint, request)
        signed = (dialect.request_id_header, f"req_{number}"), ("date", http_date(self._wall(now)))
        return evolve(script, headers=(*script.headers, *signed))

    def leave(self, number: int, now: float, *, gone: bool = False, wire: float = 0.0) -> None:
        """The answer has been played to its end, or (gone, or too early for that) its client went away.

        Once is enough. wire: seconds after which the client must have heard of a refusal.
        """
        if self._census.left(number, now, gone=gone, wire=wire):
            self._census.tokens_charged += round(self._limits.leave(number, now))

    def connect(self) -> None:
        """A client opened a connection; only a shell with connections knows."""
        self._census.connections += 1
        self._census.connections_open += 1

    def disconnect(self) -> None:
        """It is closed."""
        self._census.connections_open -= 1

    def statistics(self) -> dict[str, JSON]:
        """What it saw since its start or the last reset."""
        return self._census.statistics()

    def reset(self) -> None:
        """Forget everything: fresh quotas, empty statistics; attempts still open no longer count."""
        self._limits = Limits(self.profile, self.calendar_offset)
        # Numbers go on, lest an attempt from before be taken for a new one when it leaves.
        self._census = Census(last_number=self._census.last_number, connections_open=self._census.connections_open)
        self._asked, self._admissions = Counter(), Counter()

    def _decide(self, caller: Caller, endpoint: Endpoint | None, request: Request) -> Script:
        dialect, method = caller.dialect, request.method
        if endpoint is None:
            unknown = f"Unknown request URL: {method} {request.path}."
            return self._reject(caller, "missing", unknown, status=404, code="unknown_url")
        if method != endpoint.method:
            text = f"Not allowed to {method} on {request.path}."
            rejected = self._reject(caller, "invalid", text, status=405, code="method_not_supported")
            return evolve(rejected, headers=(("allow", endpoint.method), *rejected.headers))
        if self.profile.api_key is not None and dialect.key(request) != self.profile.api_key:
            return self._reject(caller, "auth", KINDS["auth"])
        if endpoint.name == "models":
            return in_one_piece(caller.number, 200, dialect.models(), 0.0)
        try:
            asked = dialect.parse(endpoint, request)
        except ValueError as error:
            return self._reject(caller, "invalid", str(error))
        return self._answer_or_refuse(caller, asked)

    def _answer_or_refuse(self, caller: Caller, asked: Asked) -> Script:
        if any(start <= caller.now < until for start, until in self.profile.outages):
            script = self._outage(caller, asked)
            self._census.refused(asked, "outage", script, None)
            return script
        self._asked[asked.digest] += 1
        dice = Random(f"{self.seed}/{asked.digest}/{self._asked[asked.digest]}/dice")
        refusal = self._limits.refuse(caller.now, asked, dice.random())
        if refusal is not None:
            script, hold = self._refuse(caller, asked, refusal)
            self._census.refused(asked, refusal.dimension, script, hold)
            return script
        self._admissions[asked.digest] += 1
        rng = Random(f"{self.seed}/{asked.digest}/{self._admissions[asked.digest]}")
        queued, headers = self._limits.queue(caller.now), self._limit_headers(caller)
        answer = self._written(caller, asked)
        script = delayed(self._script(caller, answer, headers, rng), queued)
        begins_at, ends_at = caller.now + (script.head_at or 0.0), caller.now + script.ends_at
        self._limits.owe(caller.number, asked, answer.output_tokens, begins_at=begins_at, ends_at=ends_at)
        self._census.admitted(asked, script, round(self._limits.charge(asked)["tokens"]))
        return script

    def _written(self, caller: Caller, asked: Asked) -> Answer:
        profile = self.profile
        choices = write_choices(asked, self.seed, profile.words, profile.thoughts, profile.words_per_event)
        return Answer(asked=asked, choices=spoken(choices, profile.manners), number=caller.number, seed=self.seed)

    def _script(self, caller: Caller, answer: Answer, headers: Headers, rng: Random) -> Script:
        profile, asked = self.profile, answer.asked
        latency = profile.latency * rng.lognormvariate(0.0, profile.latency_spread)
        first = latency * profile.first_token
        latency += 0.0 if profile.output_speed is None else answer.output_tokens / profile.output_speed
        fault = self._draw_fault(rng)
        if asked.stream:
            kind = "application/json" if asked.as_array else "text/event-stream"
            events = caller.dialect.events(answer)
            script = streamed(caller.number, events, first, latency, (("content-type", kind), *headers))
            script = padded(script, caller.dialect.padding(answer)) if PADDING in profile.manners else script
        else:
            script = in_one_piece(caller.number, 200, caller.dialect.body(answer), latency, headers=headers)
        if fault is not None:
            script = spoil(script, fault, self._around(caller, asked, rng))
        return written(script, profile.manners)

    def _around(self, caller: Caller, asked: Asked, rng: Random) -> Around:
        def say(kind: str, status: int | None) -> Said:
            trouble = Trouble(kind=kind, message=KINDS[kind], number=caller.number, status=status)
            return caller.dialect.say(trouble, asked)

        profile = self.profile
        return Around(
            rng=rng, say=say, at=profile.fault_at, stall=profile.stall_seconds, error_status=profile.error_status
        )

    def _draw_fault(self, rng: Random) -> str | None:
        drawn, profile = rng.random(), self.profile
        for fault, share in profile.shares.items():
            if drawn < share:
                return fault
            drawn -= share
        return None

    def _refuse(self, caller: Caller, asked: Asked, refusal: Refusal) -> tuple[Script, float | None]:
        """The 429, and the seconds for which a client must hold then, None if it can't know."""
        retry_after, profile = self._retry_after(refusal), self.profile
        form = caller.dialect.usual_hint if profile.hint == "usual" else profile.hint
        # The text tells the true delay where the header has rounded it up.
        true = profile.retry_after == "rounded" and isfinite(refusal.delay)
        told = refusal.delay if true and retry_after is not None else retry_after
        refusing = Refusing(
            asked=asked,
            dimension=refusal.dimension,
            standing=self._limits.standing(caller.now, refusal.dimension),
            told=told if form in IN_TEXT and (told is None or told >= 0) else None,
            cost=round(self._limits.charge(asked).get(refusal.dimension, 1)),
            per_day=form == "per-day" or refusal.dimension == PER_DAY,
        )
        said = caller.dialect.say(Trouble(kind="rate", message="", number=caller.number, refusing=refusing), asked)
        hint = () if retry_after is None else FORMS[form](retry_after, self._wall(caller.now))
        headers = (*hint, *self._limit_headers(caller))
        script = in_one_piece(caller.number, said.status, said.body, profile.refusal_delay, headers=headers)
        return script, None if form in EMPTY else retry_after

    def _retry_after(self, refusal: Refusal) -> float | None:
        never = refusal.delay == inf and refusal.dimension != "concurrency"
        match self.profile.retry_after:
            case "rounded":
                return None if never else float(ceil(refusal.delay)) if isfinite(refusal.delay) else UNKNOWN_DELAY
            case float() | int() as fixed:
                return float(fixed)
            case _:
                return None

    def _outage(self, caller: Caller, asked: Asked) -> Script:
        status = self.profile.outage_status
        if status is None:
            return Script(
                number=caller.number, status=503, headers=(), head_at=None, pieces=(), ends_at=0.0, ending=Ending.RESET
            )
        trouble = Trouble(kind="overloaded", message=KINDS["overloaded"], number=caller.number, status=status)
        return in_one_piece(caller.number, status, caller.dialect.say(trouble, asked).body, self.profile.refusal_delay)

    def _reject(
        self, caller: Caller, kind: str, message: str, *, status: int | None = None, code: str | None = None
    ) -> Script:
        trouble = Trouble(kind=kind, message=message, number=caller.number, status=status, code=code)
        said = caller.dialect.say(trouble, None)
        self._census.rejected(said.status)
        return in_one_piece(caller.number, said.status, said.body, 0.0)

    def _limit_headers(self, caller: Caller) -> Headers:
        if not self.profile.headers:
            return ()
        return caller.dialect.limit_headers(self._limits.announced(caller.now), self._wall(caller.now))

    def _wall(self, now: float) -> float:
        """Unix seconds by its own clock, which may be wrong; made up where its windows lie on no wall clock."""
        start = -self.calendar_offset if -self.calendar_offset > LONG_AGO else float(CREATED)
        return start + now + self.profile.clock_skew
