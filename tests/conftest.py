"""Options of our own test suite."""

from __future__ import annotations

import pytest
from hypothesis import settings

# How long an example takes says something of the machine: a busy one failed laws that hold.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    """--stock-pool: run test_wire_load.py on httpx's own pool, to see which faults it would bring back."""
    parser.addoption("--stock-pool", action="store_true", help="test_wire_load.py on httpx's own pool")
