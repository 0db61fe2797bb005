"""Options of our own test suite."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """--stock-pool: run test_wire_load.py on httpx's own pool, to see which faults it would bring back."""
    parser.addoption("--stock-pool", action="store_true", help="test_wire_load.py on httpx's own pool")
