"""How a refusal says when to come back: each form of a hint is a pure function in a table by its name.

It gets the seconds until then and the wall clock in Unix seconds, and gives the headers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from email.utils import formatdate
from math import ceil

from simulations.script import Headers

DAY = 86_400.0  # seconds
IN_TEXT = ("seconds", "body", "per-day")  # the forms whose text or body names the delay as well
EMPTY = ("past-date", "junk")  # the forms that tell nothing

Form = Callable[[float, float], Headers]


def http_date(wall: float) -> str:
    """The only form of a date that HTTP servers may send (RFC 9110, section 5.6.7)."""
    return formatdate(wall, usegmt=True)


FORMS: Mapping[str, Form] = {
    "seconds": lambda seconds, _: (("retry-after", f"{seconds:g}"),),
    "ms": lambda seconds, _: (("retry-after-ms", f"{seconds * 1000:.0f}"),),
    "both": lambda seconds, _: (("retry-after", f"{ceil(seconds)}"), ("retry-after-ms", f"{seconds * 1000:.0f}")),
    "date": lambda seconds, wall: (("retry-after", http_date(ceil(wall + seconds))),),
    "past-date": lambda _, wall: (("retry-after", http_date(wall - DAY)),),
    "twice": lambda seconds, _: (("retry-after", f"{seconds:g}"), ("retry-after", f"{seconds + 1:g}")),
    "junk": lambda *_: (("retry-after", "soon"),),
    "body": lambda *_: (),
    "per-day": lambda seconds, _: (("retry-after", f"{seconds:g}"),),  # while the body blames a quota per day
}
