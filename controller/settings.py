"""Frozen settings, built from defaults < TOML < environment < flags."""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class Timeouts:
    """The four clocks of an attempt, in seconds (design: connect, first payload, between payloads, total)."""

    connect: float = 10.0
    first_payload: float = 120.0
    between_payloads: float = 60.0  # SSE comments do not count as payload
    total: float = 900.0
