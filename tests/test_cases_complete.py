"""Every case of other people's failures has a test that bears its number."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

CASES = (
    1, 3, 5, 6, 8, 10, 11, 14, 15, 16, 17, 20, 21, 22, 24, 30, 33, 40, 43, 44, 46, 47, 50, 51, 54, 55, 56, 58, 60, 62,
    63, 64, 69, 70, 71, 72, 73, 75, 77, 80, 90, 91, 93, 94, 96, 98, 99, 100, 110, 112, 113,
)  # fmt: skip


@cache
def named_by_case() -> dict[int, set[str]]:
    """The tests named test_cNN_..., by number; nothing is imported."""
    found: dict[int, set[str]] = {}
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                named = re.match(r"test_c([0-9]+)_", node.name)
                if named:
                    found.setdefault(int(named.group(1)), set()).add(node.name)
    return found


@pytest.mark.parametrize("case", CASES)
def test_a_case_has_its_test(case: int) -> None:
    assert named_by_case().get(case), f"no test_c{case:02}_..."


def test_no_test_bears_a_number_that_is_no_case() -> None:
    assert set(named_by_case()) == set(CASES)
    assert len(set(CASES)) == len(CASES) == 51
