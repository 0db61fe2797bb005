"""A curve in the terminal: dots of a braille cell (two across, four down) for what we did, a line for the limit.

https://www.unicode.org/charts/PDF/U2800.pdf numbers the dots of a cell.
"""

from __future__ import annotations

from collections.abc import Sequence

ROWS = 10  # text lines
BLANK = 0x2800
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # by row and column within a cell
LIMIT = "╌"
HEADROOM = 1.25  # the plot is so much higher than the highest limit; what is above it is drawn at its top


def plot(asked: Sequence[float], allowed: Sequence[float], seconds: float) -> str:
    """Lines of text. Both curves have the same number of points, evenly spaced over `seconds`."""
    top = HEADROOM * max(allowed) or max(asked) or 1.0
    columns = (len(asked) + 1) // 2
    cells = [[BLANK] * columns for _ in range(ROWS)]
    for x, value in enumerate(asked):
        y = _row(value, top, 4 * ROWS)
        cells[y // 4][x // 2] |= DOTS[y % 4][x % 2]
    limits = [_row(allowed[2 * column], top, ROWS) for column in range(columns)]
    lines = []
    for row, dots in enumerate(cells):
        empty = (LIMIT if limit == row else " " for limit in limits)
        marks = (nothing if dot == BLANK else chr(dot) for dot, nothing in zip(dots, empty, strict=True))
        lines.append(f"{_label(row, top)} │{''.join(marks).rstrip()}")
    axis = f"{'0 s':<{columns // 2}}{f'{seconds:g} s':>{columns - columns // 2}}"
    return "\n".join([*lines, f"{'':8}└{'─' * columns}", f"{'':9}{axis}"])


def _row(value: float, top: float, rows: int) -> int:
    return rows - 1 - min(rows - 1, int(value / top * rows))


def _label(row: int, top: float) -> str:
    return f"{top * (ROWS - row) / ROWS:>7.3g}" if row in (0, ROWS // 2) else " " * 7
