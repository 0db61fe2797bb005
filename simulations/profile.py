"""What a simulated upstream is like: parameters with units and ranges, read from a spec such as `steady?rate=200`.

A spec is the name of a file in simulations/profiles, then parameters in the form of a URL's query. A value is
JSON where it can be (numbers, true, [[0, 20], [120, 8]]), else text; `none` switches an optional parameter off.
`rate` (per second) and `limit` (per period) say the same thing, so giving one replaces the other.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from importlib import resources
from urllib.parse import parse_qsl

from attrs import field, fields, frozen
from attrs.validators import instance_of, optional

from policies.contract import JSON
from policies.words import did_you_mean
from simulations.ranges import LARGEST, LONGEST, OneOf, Within, as_steps
from simulations.steps import Steps

QUOTAS = ("bucket", "fixed", "fixed-first", "sliding", "sliding-refused", "none")
WORDINGS = ("openai", "gemini")


def _about(unit: str, meaning: str) -> dict[str, str]:
    return {"unit": unit, "help": meaning}


def _rate_steps(value: object) -> Steps | None:
    return as_steps("rate", value)


def _limit_steps(value: object) -> Steps | None:
    return as_steps("limit", value)


SHARE = Within(0.0, 1.0, "share of attempts")


@frozen(kw_only=True)
class Profile:
    """One simulated upstream. The fields' metadata say unit and meaning, their validators the range."""

    name: str = "custom"
    quota: str = field(
        default="bucket",
        validator=OneOf(QUOTAS),
        metadata=_about("", "kind of the limit on requests; fixed is aligned to the calendar"),
    )
    rate: Steps | None = field(
        default=None,
        converter=_rate_steps,
        metadata=_about("requests per second", "the limit"),
    )
    limit: Steps | None = field(
        default=None,
        converter=_limit_steps,
        metadata=_about("requests per period", "the limit"),
    )
    period: float = field(
        default=60.0,
        validator=Within(0.001, LONGEST, "seconds"),
        metadata=_about("seconds", "length of a window, and of what headers announce"),
    )
    burst: float | None = field(
        default=None,
        validator=Within(1.0, LARGEST, "requests", or_else=(None,)),
        metadata=_about("requests", "what a full bucket lets through at once; none: one period's limit"),
    )
    tokens_per_minute: float | None = field(
        default=None,
        validator=Within(1.0, LARGEST, "LLM tokens per minute", or_else=(None,)),
        metadata=_about("LLM tokens per minute", "a second bucket, charged on arrival"),
    )
    concurrency: int | None = field(
        default=None,
        validator=Within(1, 1_000_000, "attempts at once", or_else=(None,), whole=True),
        metadata=_about("attempts", "answered at once; more are refused"),
    )
    latency: float = field(
        default=0.5,
        validator=Within(0.0, LONGEST, "seconds"),
        metadata=_about("seconds", "from arrival to the end of an answer (median)"),
    )
    latency_spread: float = field(
        default=0.0,
        validator=Within(0.0, 3.0, "sigma of a lognormal"),
        metadata=_about("", "a larger value spreads the latencies wider; 0: all alike"),
    )
    first_token: float = field(
        default=0.4,
        validator=Within(0.0, 1.0, "share of the latency"),
        metadata=_about("share of the latency", "passed before the head and the first event of a stream"),
    )
    refusal_delay: float = field(
        default=0.05,
        validator=Within(0.0, LONGEST, "seconds"),
        metadata=_about("seconds", "from arrival to a refusal"),
    )
    words: int = field(
        default=20,
        validator=Within(1, 100_000, "words", whole=True),
        metadata=_about("words", "mean length of an answer"),
    )
    error_share: float = field(default=0.0, validator=SHARE, metadata=_about("", "answered with error_status"))
    error_status: int = field(
        default=500,
        validator=Within(500, 599, "HTTP status", whole=True),
        metadata=_about("HTTP status", "of the injected errors"),
    )
    reset_share: float = field(
        default=0.0, validator=SHARE, metadata=_about("", "reset (RST), half before any answer, half within it")
    )
    cut_share: float = field(
        default=0.0, validator=SHARE, metadata=_about("", "closed within the answer, without the last HTTP chunk")
    )
    truncate_share: float = field(
        default=0.0, validator=SHARE, metadata=_about("", "ended cleanly, but without finish_reason and [DONE]")
    )
    stall_share: float = field(
        default=0.0, validator=SHARE, metadata=_about("", "silent, half before any answer, half within it, then cut")
    )
    stall_seconds: float = field(
        default=120.0, validator=Within(0.0, LONGEST, "seconds"), metadata=_about("seconds", "length of a stall")
    )
    retry_after: float | str = field(
        default="rounded",
        validator=Within(0.0, LONGEST, "seconds", or_else=("rounded", "none")),
        metadata=_about("seconds", "hint on a 429: the true delay in whole seconds, rounded up; or fixed; or none"),
    )
    headers: bool = field(
        default=False, validator=OneOf((True, False)), metadata=_about("", "x-ratelimit-* on 200 and 429")
    )
    wording: str = field(default="openai", validator=OneOf(WORDINGS), metadata=_about("", "shape of error bodies"))
    api_key: str | None = field(
        default=None,
        validator=optional(instance_of(str)),
        metadata=_about("", "the key that `Authorization: Bearer` must carry; none: any or no key"),
    )

    def __attrs_post_init__(self) -> None:
        """What no single field can know."""
        if self.quota != "none" and (self.rate is None) == (self.limit is None):
            raise ValueError("give either rate (requests per second) or limit (requests per period)")
        shares = self.error_share + self.reset_share + self.cut_share + self.truncate_share + self.stall_share
        if shares > 1.0:
            raise ValueError(f"the shares of faults must sum up to 1 at most, not {shares:g}")

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


def profile_names() -> list[str]:
    """The names that a spec may begin with."""
    files = resources.files("simulations").joinpath("profiles").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def load_profile(spec: str) -> Profile:
    """The profile that a spec names; raises ValueError in one line that says what would be possible."""
    name, _, query = spec.partition("?")
    names = profile_names()
    if name not in names:
        raise ValueError(f"unknown profile {name!r}{did_you_mean(name, names)}; there are: {', '.join(names)}")
    file = resources.files("simulations").joinpath("profiles", f"{name}.toml")
    base: dict[str, JSON] = tomllib.loads(file.read_text(encoding="utf-8"))
    return make_profile(name, base, _parse_query(query))


def make_profile(name: str, *layers: Mapping[str, JSON]) -> Profile:
    """A profile from layers of parameters, later ones over earlier ones; raises ValueError in one line."""
    values: dict[str, JSON] = {}
    for layer in layers:
        if "rate" in layer and "limit" in layer:
            raise ValueError("rate and limit say the same thing: give one of them")
        for given, replaced in (("rate", "limit"), ("limit", "rate")):
            if given in layer:
                values.pop(replaced, None)
        values.update(layer)
    known = [attribute.name for attribute in fields(Profile) if attribute.name != "name"]
    for key in values:
        if key not in known:
            raise ValueError(f"unknown parameter {key!r}{did_you_mean(key, known)}; there are: {', '.join(known)}")
    return Profile(name=name, **values)  # type: ignore[arg-type]  # the validators check every value


def _parse_query(query: str) -> dict[str, JSON]:
    values: dict[str, JSON] = {}
    for part in filter(None, query.split("&")):
        if "=" not in part:
            raise ValueError(f"write parameters as key=value, not {part!r}")
        [(key, text)] = parse_qsl(part, keep_blank_values=True)
        if key in values:
            raise ValueError(f"{key} is given twice")
        values[key] = _parse_value(key, text)
    return values


def _parse_value(key: str, text: str) -> JSON:
    # "none" as a word is a value of its own for retry_after: no hint.
    if text == "none" and key not in ("retry_after", "quota"):
        return None
    if key == "api_key":
        return text
    try:
        value: JSON = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value
