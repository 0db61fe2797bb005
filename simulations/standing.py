"""What all quotas of a simulated upstream have in common: how exactly they count, and what they say of themselves."""

from __future__ import annotations

from attrs import frozen

TOLERANCE = 1e-6  # units, and seconds at window borders: a paced stream k * period / limit must not fail by rounding


@frozen(kw_only=True)
class Standing:
    """What headers would announce: limit and remaining in units, reset in seconds from now."""

    limit: float
    remaining: float
    reset: float
