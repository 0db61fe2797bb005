"""Token counts out of an answer's usage object, whatever a provider calls them."""

from __future__ import annotations

from controller.outcome import Usage
from policies.contract import JSON


def usage_of(document: JSON, *, read: tuple[str, ...], written: tuple[str, ...]) -> Usage | None:
    """Input and output tokens as sums over the names under which they are counted; None if there is no count at all.

    The first of the names is the count that everybody has, the others (cached, thoughts) stay among the details too.
    """
    if not isinstance(document, dict) or not document:
        return None
    main = (read[0], written[0])
    return Usage(
        input_tokens=_total(document, read),
        output_tokens=_total(document, written),
        details={key: value for key, value in document.items() if key not in main and value is not None},
    )


def _total(document: dict[str, JSON], names: tuple[str, ...]) -> int | None:
    values = [document.get(name) for name in names]
    counts = [value for value in values if isinstance(value, int) and not isinstance(value, bool) and value >= 0]
    return sum(counts) if counts else None
