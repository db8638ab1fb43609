"""Converts JSON numbers, and ISO 8601 dates and times in quotation marks, in compiled code.

Numbers become exact integers, decimals, or the nearest double; dates and times become days and microseconds. `NO` means
that the text is invalid, or that the result is uncertain.

Doubles: Clinger's fast path, then Lemire and Eisel ("Number Parsing at a Gigabyte per Second", 2021).
"""

# ruff: noqa: PLR0911, PLR0912, PLR1714 - compiled code follows the grammar, and each call and container costs

from __future__ import annotations

import numpy as np

from frazil.ingest.formats.json.scan import NO, Octets, is_digit, loop, special_number_end

_MIN_POWER, _MAX_POWER = -342, 308
"""Powers of ten beyond which a number of up to 19 digits is zero or infinite."""


def _powers_of_five() -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Return the highest 128 bits of 5^q for each power q, as two words, rounded up for negative powers."""
    words = []
    for q in range(_MIN_POWER, _MAX_POWER + 1):
        power = 5 ** abs(q)
        bits = power.bit_length()
        if q >= 0:
            scaled = power << 128 - bits if bits <= 128 else power >> bits - 128
        else:
            bits = (power - 1).bit_length()
            scaled = (1 << (bits + 127 if q >= -27 else 2 * bits + 128)) // power + 1
            scaled >>= max(0, scaled.bit_length() - 128)
        words += [scaled >> 64, scaled & 2**64 - 1]
    return np.array(words, np.uint64)


POWERS_OF_FIVE = _powers_of_five()
POWERS_OF_TEN = np.array([10.0**q for q in range(23)])
"""Powers of ten that doubles represent exactly."""
_LOW = np.uint64(2**32 - 1)
_32 = np.uint64(32)
_0, _1, _3, _10 = map(np.uint64, (0, 1, 3, 10))
_TOP, _ALL = np.uint64(63), np.uint64(2**64 - 1)
_ROUNDED = np.uint64((2**64 - 1) >> 55)
_HIDDEN = np.uint64(1 << 52)
_NO_NUMBER = (NO, 0.0)


@loop
def parse_integer(b: Octets, p: int) -> tuple[int, int]:
    """Read a 64-bit integer. Returns the position after it (or NO), which the caller must check, and its value."""
    negative = b[p] == 45
    if negative:
        p += 1
    if not is_digit(b[p]) or (b[p] == 48 and is_digit(b[p + 1])):
        return NO, 0
    first, value = p, 0
    while is_digit(b[p]) and p - first < 18:
        value = value * 10 + (b[p] - 48)
        p += 1
    if not is_digit(b[p]):
        return p, -value if negative else value
    digit = b[p] - 48
    if is_digit(b[p + 1]) or value > 922337203685477580:
        return NO, 0
    if value == 922337203685477580 and digit > (8 if negative else 7):
        return NO, 0
    return p + 1, -value * 10 - digit if negative else value * 10 + digit


@loop
def parse_exponent(b: Octets, p: int) -> tuple[int, int]:
    """Read an exponent, after its `e`. Returns the position after it, and its value, limited to about 10^9."""
    negative = b[p] == 45
    if negative or b[p] == 43:
        p += 1
    if not is_digit(b[p]):
        return NO, 0
    value = 0
    while is_digit(b[p]):
        if value < 10**8:
            value = value * 10 + (b[p] - 48)
        p += 1
    return p, -value if negative else value


@loop
def parse_double(b: Octets, p: int) -> tuple[int, float]:
    """Read a number. Returns the position after it (NO if invalid, too large or uncertain), and the nearest double."""
    negative = b[p] == 45
    if negative:
        p += 1
    if b[p] == 78 or b[p] == 73:
        p, special = special_number_end(b, p), np.nan if b[p] == 78 else np.inf
        return p, -special if negative and special == np.inf else special
    if not is_digit(b[p]) or (b[p] == 48 and is_digit(b[p + 1])):
        return _NO_NUMBER
    digits, whole, power, is_truncated = 0, 0, 0, False
    while is_digit(b[p]):
        if digits < 18:
            whole = whole * 10 + (b[p] - 48)
            digits += whole != 0
        else:
            power += 1
            is_truncated |= b[p] != 48
        p += 1
    if b[p] == 46:
        p += 1
        if not is_digit(b[p]):
            return _NO_NUMBER
        while is_digit(b[p]):
            if digits < 18:
                whole = whole * 10 + (b[p] - 48)
                digits += whole != 0
                power -= 1
            else:
                is_truncated |= b[p] != 48
            p += 1
    if b[p] | 32 == 101:
        p, shift = parse_exponent(b, p + 1)
        if p < 0:
            return _NO_NUMBER
        power += shift
    if whole == 0:
        return p, -0.0 if negative else 0.0
    if not is_truncated and whole <= 2**53 and -22 <= power <= 22:
        value = whole / POWERS_OF_TEN[-power] if power < 0 else whole * POWERS_OF_TEN[power]
        return p, -value if negative else value
    bits = nearest_double(np.uint64(whole), power)
    if bits == _ALL or (is_truncated and nearest_double(np.uint64(whole + 1), power) != bits):
        return _NO_NUMBER
    value = np.uint64(bits).view(np.float64)
    return p, -value if negative else value


@loop
def multiply(a: np.uint64, b: np.uint64) -> tuple[np.uint64, np.uint64]:
    al, ah, bl, bh = a & _LOW, a >> _32, b & _LOW, b >> _32
    low = al * bl
    middle = ah * bl + (low >> _32)
    other = al * bh + (middle & _LOW)
    return ah * bh + (middle >> _32) + (other >> _32), (other << _32) | (low & _LOW)


@loop
def nearest_double(whole: np.uint64, power: int) -> np.uint64:
    """Return the bits of the double nearest to `whole` (at most 10^18) * 10^`power`; all ones if uncertain."""
    if power < _MIN_POWER:
        return _0  # at most 10^-325, less than half the smallest double
    if power > _MAX_POWER:
        return _ALL
    zeros = 0
    while whole >> _TOP == _0:
        whole <<= _1
        zeros += 1
    at = 2 * (power - _MIN_POWER)
    high, low = multiply(whole, POWERS_OF_FIVE[at])
    if high & _ROUNDED == _ROUNDED:
        more, _ = multiply(whole, POWERS_OF_FIVE[at + 1])
        low += more
        if more > low:
            high += _1
    if low == _ALL and not -27 <= power <= 55:
        return _ALL
    upper = high >> _TOP
    dropped = upper + np.uint64(9)
    mantissa = high >> dropped
    exponent = (((152170 + 65536) * power) >> 16) + 63 + np.int64(upper) - zeros + 1023
    if exponent <= 0:
        # Subnormal. It cannot be half-way between two doubles: `whole` would be a multiple of 5^300.
        if exponent < -62:
            return _0
        mantissa >>= np.uint64(1 - exponent)
        return (mantissa + (mantissa & _1)) >> _1
    if low <= _1 and -4 <= power <= 23 and mantissa & _3 == _1 and mantissa << dropped == high:
        mantissa &= ~_1  # half-way between two: round to even
    mantissa += mantissa & _1
    mantissa >>= _1
    if mantissa >= _HIDDEN << _1:
        mantissa = _HIDDEN
        exponent += 1
    if exponent >= 0x7FF:
        return _ALL
    return (mantissa & ~_HIDDEN) | np.uint64(exponent) << np.uint64(52)


@loop
def times_ten(high: np.uint64, low: np.uint64, digit: np.uint64) -> tuple[np.uint64, np.uint64]:
    lower = (low & _LOW) * _10 + digit
    upper = (low >> _32) * _10 + (lower >> _32)
    return high * _10 + (upper >> _32), (upper << _32) | (lower & _LOW)


@loop
def parse_decimal(b: Octets, p: int, precision: int, scale: int, is_text: bool) -> tuple[int, np.uint64, np.uint64]:
    """Read a number as a decimal of this scale.

    Returns the position after it (NO if it does not fit), and the high and low word of the unscaled value in two's
    complement. `is_text` means that the number is in a string, in any form that Python's Decimal accepts.
    """
    negative = b[p] == 45
    if negative or (is_text and b[p] == 43):
        p += 1
    high, low, digits, zeros, power, seen = _0, _0, 0, 0, 0, 0
    if not is_text and b[p] == 48 and is_digit(b[p + 1]):
        return NO, _0, _0
    fraction = False
    while True:
        c = b[p]
        if is_digit(c):
            seen += 1
            power -= fraction
            if c == 48:
                zeros += digits != 0
            else:
                if digits + zeros >= 38:
                    return NO, _0, _0
                for _ in range(zeros):
                    high, low = times_ten(high, low, _0)
                high, low = times_ten(high, low, np.uint64(c - 48))
                digits += zeros + 1
                zeros = 0
        elif c == 46 and not fraction and (is_text or (seen and is_digit(b[p + 1]))):
            fraction = True
        else:
            break
        p += 1
    if seen == 0:
        return NO, _0, _0
    if b[p] | 32 == 101:
        p, shift = parse_exponent(b, p + 1)
        if p < 0:
            return NO, _0, _0
        power += shift
    if digits == 0:
        return p, _0, _0
    more = power + zeros + scale
    if more < 0 or digits + more > precision:
        return NO, _0, _0
    for _ in range(more):
        high, low = times_ten(high, low, _0)
    if negative:
        high, low = ~high + (_1 if low == _0 else _0), ~low + _1
    return p, high, low


@loop
def parse_seconds(b: Octets, p: int) -> tuple[int, int]:
    """Read a number of seconds. Returns the position after it, and the microseconds, rounded down."""
    negative = b[p] == 45
    if negative:
        p += 1
    if not is_digit(b[p]) or (b[p] == 48 and is_digit(b[p + 1])):
        return NO, 0
    first, whole, micros, left, finer = p, 0, 0, 6, False
    while is_digit(b[p]) and p - first < 13:
        whole = whole * 10 + (b[p] - 48)
        p += 1
    if b[p] == 46:
        p += 1
        if not is_digit(b[p]):
            return NO, 0
        while is_digit(b[p]):
            if left:
                micros = micros * 10 + (b[p] - 48)
                left -= 1
            else:
                finer |= b[p] != 48
            p += 1
    for _ in range(left):
        micros *= 10
    micros += negative and finer
    is_too_big = whole > 9223372036854 or (whole == 9223372036854 and micros > 775807 + negative)
    if is_too_big or is_digit(b[p]) or b[p] | 32 == 101:
        return NO, 0
    value = whole * 1_000_000 + micros
    return p, -value if negative else value


INVALID_DATE = -(2**63)


@loop
def _two_digits(b: Octets, p: int) -> int:
    return (b[p] - 48) * 10 + (b[p + 1] - 48) if is_digit(b[p]) and is_digit(b[p + 1]) else NO


@loop
def parse_date(b: Octets, p: int) -> int:
    """Parse a date of ten characters, in the years 0 to 9999. Returns the days since 1970, or INVALID_DATE."""
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
    if day > last_day:
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
