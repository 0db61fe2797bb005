"""Options of our own test suite, and a state folder of its own."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes says something of the machine: a busy one failed laws that hold.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# A shell starts what it puts into the background with interrupts ignored, and children inherit that: a test that waits
# for the end of an interrupted run would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """--stock-pool: run test_wire_load.py on httpx's own pool, to see which faults it would bring back."""
    parser.addoption("--stock-pool", action="store_true", help="test_wire_load.py on httpx's own pool")


@pytest.fixture(scope="session", autouse=True)
def _no_memory_of_the_developers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test, and no process that one starts, reads or writes what real runs have learned."""
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder))
        patch.setenv("TIDEGATE_REMEMBER", "no")
        yield
    left = [path for path in Path(folder).rglob("*") if path.is_file()]
    assert not left, f"a test kept a memory in the user's folder: {left}"
