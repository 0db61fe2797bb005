"""Frozen settings; `merge.py` builds them from defaults < TOML < environment < flags.

One attrs class is the only source: the command line, the environment names (TIDEGATE_ plus the field in capitals)
and the TOML keys are generated from its fields. What only another part can check (is this file readable, does this
policy exist) is checked there and raises ValueError; cli turns every ValueError into one line.
"""

from __future__ import annotations

from typing import TypeVar

from attrs import field, frozen

PREFIX = "TIDEGATE_"
PROGRESS = ("auto", "bar", "lines", "off")
INPUT_FORMATS = ("jsonl", "text")
FSYNC = ("always", "interval", "never")
ON_QUOTA = ("stop", "wait")
EMISSIONS = ("result", "delta", "sse")

T = TypeVar("T")


class SettingsError(ValueError):
    """A setting that can't be: the user's to mend; the message names it and says how."""


@frozen(kw_only=True)
class Timeouts:
    """The four clocks of an attempt, in seconds."""

    connect: float = 10.0
    first_payload: float = 120.0
    between_payloads: float = 60.0  # SSE comments do not count as payload
    total: float = 900.0


def _set(
    default: T,
    text: str,
    *,
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
) -> T:
    """A setting; low and high: the smallest and largest value allowed."""
    about = {"help": text, "unit": unit, "low": low, "high": high, "choices": choices}
    made: T = field(default=default, metadata=about)
    return made


def _optional(kind: type[T], text: str, *, unit: str = "", low: float | None = None) -> T | None:
    """A setting that may be absent."""
    del kind  # for the reader and the type checker
    made: T | None = field(default=None, metadata={"help": text, "unit": unit, "low": low, "high": None, "choices": ()})
    return made


@frozen(kw_only=True)
class Settings:
    """Everything a user can set for `tidegate run`."""

    output: str | None = _optional(str, "append results to this file and resume from it; default: stdout")
    base_url: str | None = _optional(str, "where the API is, e.g. https://api.openai.com/v1, or sim:PROFILE")
    model: str | None = _optional(str, "for lines that name none")
    dialect: str | None = _optional(str, "request and answer format; default: guessed from the URL")
    api_key_env: str | None = _optional(str, "environment variable that holds the API key; default: the provider's own")
    api_key_file: str | None = _optional(str, "file that holds the API key; read again once when it is refused")
    max_tokens: int | None = _optional(int, "output tokens, for lines that say nothing", unit="LLM tokens", low=1)
    param: tuple[str, ...] = _set((), "KEY=JSON: a request parameter for lines that do not set it; repeatable")
    input_format: str = _set("jsonl", "what a line is: a JSON value, or the prompt itself", choices=INPUT_FORMATS)
    emit: str = _set(
        "result",
        "what goes to stdout: results; or also the text as it comes, as JSON lines (delta) or Server-Sent Events (sse)",
        choices=EMISSIONS,
    )
    continue_truncated: int = _set(
        0, "ask up to so many times for the rest of an answer that broke off, instead of starting over", low=0
    )
    follow: bool = _set(False, "keep reading files that grow or are rotated, and FIFOs, all at once, until stopped")
    first: int | None = _optional(int, "read only so many lines", unit="lines", low=1)
    resume: bool = _set(True, "skip what the output holds already; off for live streams")
    retry_failed: bool = _set(False, "send again what the output holds as failed")
    fsync: str = _set(
        "interval", "make results durable at every write, within 1 s and at the end, or never", choices=FSYNC
    )
    summary: str | None = _optional(str, "write what the run came to into this file, as JSON")
    policy: str = _set("recall", "rate policy: a name from `tidegate policies`, or module:Class")
    policy_option: tuple[str, ...] = _set((), "KEY=VALUE for the policy; repeatable")
    requests_per_minute: float | None = _optional(
        float, "ceiling: never send more, whatever the policy thinks", unit="requests/min", low=1e-6
    )
    tokens_per_minute: float | None = _optional(
        float, "ceiling on LLM tokens, input and output together", unit="LLM tokens/min", low=1.0
    )
    input_tokens_per_minute: float | None = _optional(float, "the same, input only", unit="LLM tokens/min", low=1.0)
    output_tokens_per_minute: float | None = _optional(float, "the same, output only", unit="LLM tokens/min", low=1.0)
    headroom: float = _set(1.0, "share of a stated or learned limit to use; less leaves others more", low=0.01, high=1)
    charge: str | None = _optional(
        str,
        "how LLM tokens are booked: larger, up-front, input, produced or settled; default: as the provider does",
    )
    token_estimator: str | None = _optional(
        str, "a tokenizer to count prompts by: the name of an installed plug-in, or module:callable"
    )
    max_in_flight: int = _set(64, "attempts open at once; more needs more memory and descriptors", low=1, high=100_000)
    max_failures: int = _set(5, "transient failures of a prompt before it ends in error; throttles never count", low=1)
    connect_timeout: float = _set(10.0, "longest wait for a connection", unit="s", low=0.001)
    first_payload_timeout: float = _set(120.0, "longest wait for the first payload of an answer", unit="s", low=0.001)
    between_payloads_timeout: float = _set(60.0, "longest silence within an answer", unit="s", low=0.001)
    total_timeout: float = _set(900.0, "longest an attempt may take", unit="s", low=0.001)
    drain_timeout: float = _set(30.0, "how long a stop waits for answers under way", unit="s", low=0.0)
    longest_wait: float = _set(900.0, "an upstream that asks for a longer wait parks the run", unit="s", low=0.0)
    on_quota: str = _set(
        "stop", "a spent daily quota, or a longer wait than that: stop, or wait for its reset", choices=ON_QUOTA
    )
    deadline: float | None = _optional(
        float, "a prompt without an answer so long after it was read ends in an error", unit="s", low=0.001
    )
    max_output_tokens: int | None = _optional(
        int, "budget of this run: stop before what is under way could exceed it", unit="LLM tokens", low=1
    )
    max_cost: float | None = _optional(
        float, "the same in money, by the prices of the extra [prices]", unit="$", low=1e-9
    )
    give_up_after: float = _set(900.0, "no success at all for this long parks the run", unit="s", low=0.001)
    most_alike: int = _set(
        20, "when more prompts than this failed alike and none succeeded, stop; 0 lets them all fail", low=0
    )
    keep_response: bool = _set(False, "keep the whole answer of the API in each result, as `response`")
    ca_file: str | None = _optional(str, "PEM file with the certificate authorities to trust")
    state: str | None = _optional(
        str, "folder where learned limits are kept; default: the user's own, and none for simulated upstreams"
    )
    remember: bool = _set(True, "begin with what earlier runs learned, and leave what this one learns")
    forget: bool = _set(False, "drop what was learned of this upstream and key, all models, and begin anew")
    decisions: str | None = _optional(str, "write every change of pace to this file, JSON lines")
    progress: str = _set("auto", "what to show on stderr while running", choices=PROGRESS)
    seed: int = _set(0, "of all jitter, and of the simulated upstream", low=0)

    @property
    def ceilings(self) -> dict[str, float]:
        """Those that are set, per minute, by dimension."""
        all_four = {
            "requests": self.requests_per_minute,
            "tokens": self.tokens_per_minute,
            "input_tokens": self.input_tokens_per_minute,
            "output_tokens": self.output_tokens_per_minute,
        }
        return {name: number for name, number in all_four.items() if number is not None}

    @property
    def timeouts(self) -> Timeouts:
        """The four clocks together."""
        return Timeouts(
            connect=self.connect_timeout,
            first_payload=self.first_payload_timeout,
            between_payloads=self.between_payloads_timeout,
            total=self.total_timeout,
        )


def flag_of(name: str) -> str:
    """The flag of a field; a switch that is on by default is named by its opposite."""
    return f"--no-{name}" if name in ("resume", "remember") else "--" + name.replace("_", "-")
