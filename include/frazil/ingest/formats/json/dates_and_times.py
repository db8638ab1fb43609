"""Converts ISO 8601 dates, times and timestamps in quotation marks to days and microseconds, in compiled code."""

# ruff: noqa: PLR0911, PLR1714 - compiled code follows the grammar, and each call and container costs

from __future__ import annotations

from frazil.ingest.formats.json.scan import NO, Octets, is_digit, loop

INVALID_DATE = -(2**63)


@loop
def _two_digits(b: Octets, p: int) -> int:
    return (b[p] - 48) * 10 + (b[p + 1] - 48) if is_digit(b[p]) and is_digit(b[p + 1]) else NO


@loop
def parse_date(b: Octets, p: int) -> int:
    """Parse a date of ten characters, in the years 1 to 9999. Returns the days since 1970, or INVALID_DATE."""
    if p + 10 > len(b) or b[p + 4] != 45 or b[p + 7] != 45:
        return INVALID_DATE
    century, year, month, day = _two_digits(b, p), _two_digits(b, p + 2), _two_digits(b, p + 5), _two_digits(b, p + 8)
    if century < 0 or year < 0 or not 1 <= month <= 12 or day < 1:
        return INVALID_DATE
    year += 100 * century
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    last_day = (
        (29 if leap else 28) if month == 2 else 30 if month == 4 or month == 6 or month == 9 or month == 11 else 31
    )
    if year == 0 or day > last_day:
        return INVALID_DATE
    # Years that begin in March end with the leap day: 1970-01-01 is day 719468 since 0000-03-01.
    year -= month <= 2
    month += 9 if month <= 2 else -3
    return year * 365 + year // 4 - year // 100 + year // 400 + (153 * month + 2) // 5 + day - 1 - 719468


@loop
def parse_time(b: Octets, p: int) -> tuple[int, int]:
    """Read `HH[:MM[:SS[.f]]]`, also without colons. Returns the position after it (or NO), and its microseconds."""
    hour, minute, second, fraction = _two_digits(b, p), 0, 0, 0
    if hour < 0:
        return NO, 0
    p += 2
    colon = b[p] == 58
    if colon or is_digit(b[p]):
        p += colon
        minute = _two_digits(b, p)
        if minute < 0:
            return NO, 0
        p += 2
        if b[p] == 58 if colon else is_digit(b[p]):
            p += colon
            second = _two_digits(b, p)
            if second < 0:
                return NO, 0
            p += 2
            if b[p] == 46:
                first = p + 1
                p = first
                while is_digit(b[p]):
                    if p - first < 6:
                        fraction = fraction * 10 + (b[p] - 48)
                    p += 1
                if p == first:
                    return NO, 0
                for _ in range(6 - (p - first)):
                    fraction *= 10
    if hour > 23 or minute > 59 or second > 59:
        return NO, 0
    return p, ((hour * 60 + minute) * 60 + second) * 1_000_000 + fraction


@loop
def parse_timestamp(b: Octets, p: int) -> tuple[int, int]:
    """Read a timestamp (UTC without a zone). Returns the position after it (or NO), and the microseconds since 1970."""
    since = parse_date(b, p)
    if since == INVALID_DATE:
        return NO, 0
    micros = since * 86_400_000_000
    p += 10
    if b[p] == 34:
        return p, micros
    if b[p] != 84 and b[p] != 32 and b[p] != 116:
        return NO, 0
    p, of_day = parse_time(b, p + 1)
    if p < 0:
        return NO, 0
    micros += of_day
    c = b[p]
    if c == 90 or c == 122:
        return p + 1, micros
    if c != 43 and c != 45:
        return p, micros
    hours, minutes = _two_digits(b, p + 1), 0
    if hours < 0:
        return NO, 0
    p += 3
    if b[p] != 34:
        p += b[p] == 58
        minutes = _two_digits(b, p)
        p += 2
    if hours > 23 or not 0 <= minutes <= 59:
        return NO, 0
    ahead = (hours * 60 + minutes) * 60_000_000
    return p, micros + ahead if c == 45 else micros - ahead
