"""Peers that count requests and LLM tokens: the OpenAI cookbook's script told both limits, and curator.

Both are one loop over the prompts, before counters of what each minute has left: capacity accrues at limit / 60 up to
the limit, and the next prompt goes as soon as it fits into all of them. After a 429 the whole loop pauses. They know
the input to the token (tiktoken) and bring no limit on what is under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from math import inf

from attrs import define, field, frozen

from simulations.client import Answer, Attempt, Send
from simulations.workload import Backlog

MINUTE = 60.0  # seconds
ROUNDING = 1e-6
MOST_REMEMBERED = 50  # answers
Cost = Mapping[str, float]


@frozen(kw_only=True)
class Rules:
    """What the two scripts differ in. told: limits per minute by dimension; asks: the first answer's headers tell them.

    full: the counters begin full. pause: seconds after the last 429. attempts: at most, for a prompt. gives_back: what
    an answer did not use goes back into the counters.
    """

    told: Mapping[str, float]
    asks: bool
    full: bool
    pause: float
    attempts: int
    output: Mapping[str, int]  # reserved without a word on max_tokens, and with one: a part of it
    gives_back: bool


@define(eq=False)
class Ticket:
    """A prompt on its way. tries: attempts that failed."""

    send: Send
    tries: int = 0
    cost: Cost = field(factory=dict)


@define(eq=False)
class CountingLoop:
    """dropped: prompts that were given up."""

    rules: Rules
    backlog: Backlog
    dropped: int = field(default=0, init=False)
    _limits: dict[str, float] = field(init=False)  # per minute
    _left: dict[str, float] = field(factory=dict, init=False)
    _at: float = field(default=0.0, init=False)
    _paused_until: float = field(default=-inf, init=False)
    _asking: bool = field(init=False)
    _now: float = field(default=0.0, init=False)
    _again: deque[Ticket] = field(factory=deque, init=False)
    _head: Ticket | None = field(default=None, init=False)
    _leaving: deque[Ticket] = field(factory=deque, init=False)
    _open: dict[int, Ticket] = field(factory=dict, init=False)
    _outputs: deque[int] = field(factory=lambda: deque(maxlen=MOST_REMEMBERED), init=False)

    def __attrs_post_init__(self) -> None:
        """Begin with what was told."""
        self._limits = dict(self.rules.told)
        self._left = {name: limit if self.rules.full else 0.0 for name, limit in self._limits.items()}
        self._asking = self.rules.asks

    def wake_at(self) -> float:
        """When the next prompt is there and fits."""
        if self._asking and (self._open or self._leaving):
            return inf
        if not self._again and self._head is None and self.backlog.next_at() > self._now:
            return max(self.backlog.next_at(), self._paused_until)
        if self._asking:
            return self._paused_until
        ticket = self._next()
        missing = max((ticket.cost[name] - left) / self._limits[name] for name, left in self._left.items())
        too_large = any(ticket.cost[name] > limit + ROUNDING for name, limit in self._limits.items())
        return inf if too_large else max(self._paused_until, self._at + MINUTE * missing - ROUNDING)

    def act(self, now: float) -> Sequence[Send]:
        """All that fits now."""
        self._now = now
        self._refill(now)
        first = len(self._leaving)
        while self.wake_at() <= now:
            ticket = self._next()
            if self._again:
                self._again.popleft()
            else:
                self._head = None
            for name in self._limits:
                self._left[name] -= ticket.cost[name]
            self._leaving.append(ticket)
        return [ticket.send for ticket in list(self._leaving)[first:]]

    def _next(self) -> Ticket:
        if self._again:
            return self._again[0]
        if self._head is None:
            self._head = Ticket(self.backlog.take())
            self._head.cost = self._reserved(self._head.send)
        return self._head

    def sent(self, attempt: Attempt, now: float) -> None:  # noqa: ARG002 - the shape all clients share
        """Attempts are numbered in the order of `act`."""
        self._open[attempt.number] = self._leaving.popleft()

    def accepted(self, attempt: Attempt, now: float, answer: Answer) -> None:  # noqa: ARG002 - the shape all clients share
        """Only the first answer's headers are read."""
        self._first_answer(answer, now)

    def refused(self, attempt: Attempt, now: float, answer: Answer) -> None:
        """Everybody pauses, and the prompt goes to the queue of those that are tried again."""
        self._first_answer(answer, now)
        if answer.status == 429:
            self._paused_until = now + self.rules.pause
        self._failed(attempt, now)

    def ended(self, attempt: Attempt, now: float, ok: bool) -> None:
        """By usage, the counters are corrected where the rules say so."""
        if not ok:
            self._failed(attempt, now)
            return
        self._now = now
        ticket, sized = self._open.pop(attempt.number), attempt.sized
        if sized is None or not self.rules.gives_back:
            return
        self._refill(now)
        self._outputs.append(sized.output_tokens)
        used = _in_dimensions(sized.asked.input_tokens, sized.output_tokens)
        for name in self._limits:
            self._left[name] = min(self._left[name] + ticket.cost[name] - used[name], self._limits[name])

    def _failed(self, attempt: Attempt, now: float) -> None:
        self._now = now
        ticket = self._open.pop(attempt.number)
        ticket.tries += 1
        if ticket.tries < self.rules.attempts:
            self._again.append(ticket)
        else:
            self.dropped += 1

    def _first_answer(self, answer: Answer, now: float) -> None:
        self._now = now
        if self._asking:
            self._asking, self._at = False, now
            told = {name: hints.limit for name, hints in answer.hints.items() if hints.limit is not None}
            self._limits = told or self._limits
            self._left = dict.fromkeys(self._limits, 0.0)
            for ticket in self._open.values():
                ticket.cost = self._reserved(ticket.send)

    def _reserved(self, send: Send) -> Cost:
        sized = send.sized
        if sized is None:
            return {name: 1.0 if name == "requests" else send.cost for name in self._limits}
        most = sized.asked.max_output_tokens
        output = self.rules.output["without"] if most is None else most // self.rules.output["part"]
        if self._outputs:
            output = sum(self._outputs) // len(self._outputs)
        return _in_dimensions(sized.asked.input_tokens, output)

    def _refill(self, now: float) -> None:
        seconds, self._at = now - self._at, now
        for name, limit in self._limits.items():
            self._left[name] = min(self._left[name] + seconds * limit / MINUTE, limit)


def cookbook(backlog: Backlog, limits_per_second: Mapping[str, float]) -> CountingLoop:
    """Told all limits; max_tokens is counted in full, 15 where there is none; five attempts, nothing comes back.

    Source: https://github.com/openai/openai-cookbook, examples/api_request_parallel_processor.py: both counters begin
    full; 15 s of pause after a rate limit error; a prompt larger than a minute's tokens is waited for without end.
    """
    told = {name: MINUTE * limit for name, limit in limits_per_second.items()}
    output = {"without": 15, "part": 1}
    rules = Rules(told=told, asks=False, full=True, pause=15.0, attempts=5, output=output, gives_back=False)
    return CountingLoop(rules, backlog)


def curator_of_both(backlog: Backlog) -> CountingLoop:
    """Told by the headers of a first request, else 200 requests and 100,000 LLM tokens a minute; empty at first.

    Source: https://github.com/bespokelabsai/curator, request_processor/online (base_online_request_processor.py,
    openai_online_request_processor.py) and status_tracker/online_status_tracker.py: the output is reserved as the mean
    of the last ones, before there are any a quarter of max_tokens (of 16,384 where nothing is said); what an answer did
    not use goes back at its end; 10 s of pause after a 429, 10 retries. Left out: that retries wait for the end of the
    first pass (with an endless backlog they would never come).
    """
    told = {"requests": 200.0, "tokens": 100_000.0}
    output = {"without": 4096, "part": 4}
    rules = Rules(told=told, asks=True, full=False, pause=10.0, attempts=11, output=output, gives_back=True)
    return CountingLoop(rules, backlog)


def _in_dimensions(input_tokens: int, output_tokens: int) -> Cost:
    both = float(input_tokens + output_tokens)
    return {
        "requests": 1.0,
        "tokens": both,
        "input_tokens": float(input_tokens),
        "output_tokens": float(output_tokens),
    }
