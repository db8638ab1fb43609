"""Parses and formats durations, sizes and counts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal

MAX_DURATION = timedelta(days=100_000)
"""Maximum duration: Python cannot wait for longer than 292 years."""
MAX_SIZE_BYTES = 2**60

_SECONDS_BY_UNIT = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
_MILLISECONDS_BY_UNIT = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")

_BYTES_BY_UNIT = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BYTES_BY_UNIT |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE = re.compile(r"(\d+)|(\d+(?:\.\d+)?)\s*([KMGT]i?B|B)")


def format_count(number: int, noun: str, verb: str = "") -> str:
    """Format a number with its noun: `3 batches`. With the verb `is|are`: `1 row is`, `2 rows are`."""
    plural = "es" if noun.endswith(("ch", "sh")) else "s"
    singular_verb, _, plural_verb = verb.partition("|")
    words = noun if number == 1 else f"{noun}{plural}"
    return f"{number:,} {words} {singular_verb if number == 1 else plural_verb}".rstrip()


def shorten_list(sentences: Sequence[str], limit: int, noun: str) -> list[str]:
    """Return the first `limit` sentences and, if there are more, their number: `a`, `b`, `and 3 more tables`."""
    hidden = len(sentences) - limit
    return [*sentences[:limit], *([f"and {format_count(hidden, f'more {noun}')}"] if hidden > 0 else [])]


def parse_duration(value: object) -> timedelta:
    """Parse `60s`, `250ms`, `1h30m`, `7d`, or `0`. Raises ValueError for other texts: only 0 needs no unit."""
    if isinstance(value, timedelta):
        duration = value
    else:
        text = str(value).strip()
        parts = _DURATION_PART.findall(text) if len(text) <= 1000 else []
        if text == "0":
            duration = timedelta(0)
        elif parts and "".join(number + unit for number, unit in parts) == text:
            seconds = sum(float(number) * _SECONDS_BY_UNIT[unit] for number, unit in parts)
            duration = timedelta(seconds=min(seconds, 2 * MAX_DURATION.total_seconds()))
        else:
            raise ValueError("is not a duration; write a number with ms, s, m, h or d: 60s, 250ms, 1h30m, 7d")
    if duration < timedelta(0):
        raise ValueError("is negative; a duration is zero or more")
    if duration > MAX_DURATION:
        raise ValueError(f"is too long; a duration is at most {MAX_DURATION.days}d")
    return duration


def parse_bytes(value: object) -> int:
    """Parse `128MiB` (binary), `1GB` (decimal), `512B`, or a number of bytes. Raises ValueError."""
    match = _SIZE.fullmatch("" if isinstance(value, bool) else str(value).strip())
    if match is None:
        raise ValueError(
            "is not a size; write bytes, or a number with KiB, MiB, GiB, TiB, KB, MB, GB or TB: 128MiB, 1GB"
        )
    size = Decimal(match[1] or match[2]) * _BYTES_BY_UNIT[match[3] or "B"]
    if size > MAX_SIZE_BYTES:
        raise ValueError(f"is too large; a size is at most {format_bytes(MAX_SIZE_BYTES)}")
    return int(size)


def format_duration(duration: timedelta) -> str:
    """Format a duration, rounded to ms, as the shortest text that `parse_duration` accepts: `1h30m`, `0s`."""
    rest_ms = round(duration / timedelta(milliseconds=1))
    text = ""
    for unit, length_ms in _MILLISECONDS_BY_UNIT.items():
        count, rest_ms = divmod(rest_ms, length_ms)
        if count:
            text += f"{count}{unit}"
    return text or "0s"


def format_rounded_bytes(size_bytes: float) -> str:
    """Format a measured size with one decimal: `512 B`, `1.4 GiB`."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"


def format_bytes(size_bytes: int) -> str:
    """Format a size exactly, as `parse_bytes` accepts it, in the largest unit that divides it: `128MiB`, `1GB`."""
    if size_bytes == 0:
        return "0B"
    for unit in ("TiB", "GiB", "MiB", "TB", "GB", "KiB", "MB", "KB"):
        if size_bytes % _BYTES_BY_UNIT[unit] == 0:
            return f"{size_bytes // _BYTES_BY_UNIT[unit]}{unit}"
    return f"{size_bytes}B"


_NUMBERS = re.compile(r"\d[\d.,:]*")


def mask_numbers(line: str) -> str:
    """Return a line's shape: the line with # in place of each number."""
    return _NUMBERS.sub("#", line)
