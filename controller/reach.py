"""Which upstream a run asks: its URL, dialect, key and transport."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import httpx

from controller import assemble
from controller.descriptors import make_room
from controller.dialects.contract import Dialect
from controller.dialects.table import dialect_for
from controller.settings import Settings
from controller.transport import open_transport

SIMULATED_URL = "http://sim/v1"  # in the requests to a simulated upstream; no socket ever sees it

Simulate = Callable[[str, int], tuple[httpx.AsyncBaseTransport, str]]  # profile, seed -> and the dialect it speaks


def upstream_of(
    settings: Settings, environment: Mapping[str, str], simulate: Simulate
) -> tuple[str, Dialect, str | None, httpx.AsyncBaseTransport]:
    """Check what can be checked without sending; ValueError, one line, for what can't be."""
    given = settings.base_url or ""
    if given.startswith(assemble.SIMULATED):
        transport, spoken = simulate(given.removeprefix(assemble.SIMULATED), settings.seed)
        return SIMULATED_URL, dialect_for(settings.dialect or spoken, SIMULATED_URL), None, transport
    url = assemble.checked_url(settings.base_url)
    dialect = dialect_for(settings.dialect, url)
    key = assemble.read_key(settings, environment, url, dialect)
    make_room(settings.max_in_flight)
    url = assemble.base_of(url, dialect)
    return url, dialect, key, open_transport(url, ca_file=settings.ca_file, environ=environment)
