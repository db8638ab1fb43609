"""Compiled: dates, times and timestamps as ISO 8601 writes them, to days and microseconds. What is none is `NEVER`."""

from __future__ import annotations

from frazil.ingest.compiled import compiled
from frazil.ingest.formats.json.scan import NO, Bytes, is_digit

NEVER = -(2**63)
_DAY = 86_400_000_000


@compiled
def _two(b: Bytes, p: int) -> int:
    return (b[p] - 48) * 10 + (b[p + 1] - 48) if is_digit(b[p]) and is_digit(b[p + 1]) else NO


@compiled
def days(b: Bytes, p: int) -> int:
    """Of the ten characters from here: days since 1970 in the Gregorian calendar, years 1 to 9999."""
    century, year, month, day = _two(b, p), _two(b, p + 2), _two(b, p + 5), _two(b, p + 8)
    if century < 0 or year < 0 or b[p + 4] != 45 or b[p + 7] != 45 or not 1 <= month <= 12 or day < 1:
        return NEVER
    year += 100 * century
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    most = (29 if leap else 28) if month == 2 else 30 if month in (4, 6, 9, 11) else 31
    if year == 0 or day > most:
        return NEVER
    # Years that begin in March end with the leap day: 1970-01-01 is day 719468 since 0000-03-01.
    year -= month <= 2
    month += 9 if month <= 2 else -3
    return year * 365 + year // 4 - year // 100 + year // 400 + (153 * month + 2) // 5 + day - 1 - 719468


@compiled
def clock(b: Bytes, p: int, end: int) -> tuple[int, int]:
    """`HH`, `HH:MM`, `HHMM`, with `:SS` or `SS`, and a fraction: where it ends, and microseconds since midnight."""
    if end - p < 2:
        return NO, 0
    hour, minute, second, fraction = _two(b, p), 0, 0, 0
    p += 2
    colon = p < end and b[p] == 58
    if colon or (p < end and is_digit(b[p])):
        p += colon
        if end - p < 2:
            return NO, 0
        minute = _two(b, p)
        p += 2
        if p < end and (b[p] == 58 if colon else is_digit(b[p])):
            p += colon
            if end - p < 2:
                return NO, 0
            second = _two(b, p)
            p += 2
            if p < end and b[p] == 46:
                p += 1
                first = p
                while p < end and is_digit(b[p]):
                    if p - first < 6:
                        fraction = fraction * 10 + (b[p] - 48)
                    p += 1
                if p == first:
                    return NO, 0
                for _ in range(6 - (p - first)):
                    fraction *= 10
    if not (0 <= hour <= 23 and 0 <= minute <= 59 and 0 <= second <= 59):
        return NO, 0
    return p, ((hour * 60 + minute) * 60 + second) * 1_000_000 + fraction


@compiled
def time(b: Bytes, p: int, end: int) -> int:
    """Microseconds since midnight."""
    p, micros = clock(b, p, end)
    return micros if p == end else NEVER


@compiled
def timestamp(b: Bytes, p: int, end: int) -> int:
    """Microseconds since 1970 in UTC; without a zone, the time is taken as UTC."""
    if end - p < 10:
        return NEVER
    since = days(b, p)
    if since == NEVER:
        return NEVER
    micros = since * _DAY
    p += 10
    if p == end:
        return micros
    if b[p] != 84 and b[p] != 32 and b[p] != 116:
        return NEVER
    p, of_day = clock(b, p + 1, end)
    if p < 0:
        return NEVER
    micros += of_day
    if p == end:
        return micros
    c = b[p]
    p += 1
    if c == 90 or c == 122:  # noqa: PLR1714 - compiled
        return micros if p == end else NEVER
    if (c != 43 and c != 45) or end - p < 2:  # noqa: PLR1714 - as above
        return NEVER
    hours, minutes = _two(b, p), 0
    p += 2
    if p < end:
        p += b[p] == 58
        if end - p != 2:
            return NEVER
        minutes = _two(b, p)
    if not (0 <= hours <= 23 and 0 <= minutes <= 59):
        return NEVER
    ahead = (hours * 60 + minutes) * 60_000_000
    return micros + ahead if c == 45 else micros - ahead
