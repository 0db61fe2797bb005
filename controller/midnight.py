"""When a quota per day begins anew where no answer says so: at midnight, by the clock of whoever counts.

Gemini counts days in Pacific time (https://ai.google.dev/gemini-api/docs/rate-limits). Its rule for daylight saving
(15 U.S.C. 260a: from the second Sunday of March to the first of November, at 2:00) is written out here, as not every
machine has a database of time zones.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

LATE = 60.0  # s after midnight: clocks differ, and so does the moment in which a counter is reset
STANDARD, SUMMER = timezone(timedelta(hours=-8)), timezone(timedelta(hours=-7))


def until_midnight(wall: float, *, pacific: bool) -> float:
    """Seconds until the next midnight is surely over, in Pacific time or UTC. wall: seconds since the epoch."""
    now = datetime.fromtimestamp(wall, UTC)
    if not pacific:
        return (_midnight_after(now) - now).total_seconds() + LATE
    here = now.astimezone(SUMMER if _is_summer(now) else STANDARD)
    midnight = _midnight_after(here)
    if _is_summer(midnight) != _is_summer(now):  # the clock is changed in between
        midnight = midnight.replace(tzinfo=SUMMER if _is_summer(midnight) else STANDARD)
    return (midnight - now).total_seconds() + LATE


def _midnight_after(here: datetime) -> datetime:
    return here.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)


def _is_summer(instant: datetime) -> bool:
    year = instant.astimezone(STANDARD).year
    begin = datetime(year, 3, 8 + _days_to_sunday(year, 3, 8), 2, tzinfo=STANDARD)
    end = datetime(year, 11, 1 + _days_to_sunday(year, 11, 1), 2, tzinfo=SUMMER)
    return begin <= instant < end


def _days_to_sunday(year: int, month: int, day: int) -> int:
    return 6 - datetime(year, month, day, tzinfo=UTC).weekday()
