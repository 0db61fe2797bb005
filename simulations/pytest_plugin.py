"""`pytest --policy module:Class`: our pytest plug-in. Without the option it does nothing, and imports nothing.

pytest loads it in every run of an environment that has Tidegate. The laws come with `simulations.law_items`.
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Its own options."""
    group = parser.getgroup("tidegate", "laws of rate policies (tidegate)")
    group.addoption(
        "--policy", action="append", default=[], metavar="MODULE:CLASS", help="run the laws on this policy, too"
    )
    group.addoption("--policy-option", action="append", default=[], metavar="KEY=VALUE", help="an option of it")
    group.addoption("--policy-examples", type=int, default=100, metavar="N", help="of each law  [default: 100]")
    group.addoption("--policy-seed", type=int, default=0, metavar="N", help="of the examples  [default: 0]")


def pytest_configure(config: pytest.Config) -> None:
    """Let the laws in when they are asked for."""
    if config.getoption("--policy"):
        config.pluginmanager.import_plugin("simulations.law_items")
