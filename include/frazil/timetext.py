"""Formats times and durations, in the same format for all messages, tables and pages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


def format_elapsed(milliseconds: int) -> str:
    """Format a duration in milliseconds: `0.4 s`, `12 s`, `3 min 5 s`, `2 h 0 min`, `30 d 4 h`."""
    seconds = max(milliseconds, 0) / 1000
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, remainder = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {remainder} s"
    hours, remainder = divmod(minutes, 60)
    return f"{hours} h {remainder} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def parse_moment(value: str | datetime) -> datetime:
    """Parse an ISO 8601 time. The result has a time zone only if the text has one.

    Raises ValueError, even for a valid time that is before year 1 or after year 9999 in UTC.
    """
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    if moment.tzinfo is not None:
        try:
            moment.astimezone(UTC)
        except OverflowError:
            raise ValueError(f"{moment.isoformat()} is in UTC before the year 1 or after 9999") from None
    return moment


def parse_zoned_moment(value: object, prefix: str = "") -> datetime:
    """Parse a time with a zone: without a zone, its meaning would differ between machines.

    The text of its ValueError is the end of a sentence. `prefix` names other values that are allowed.
    """
    try:
        moment = parse_moment(value if isinstance(value, datetime) else str(value))
    except ValueError:
        raise ValueError(f"is not {prefix}an ISO 8601 time with a zone; write it like 2013-12-30T00:00:00Z") from None
    if moment.tzinfo is None:
        raise ValueError("has no time zone; end it with Z (UTC) or an offset such as +02:00")
    return moment


def format_utc(ms: int | None) -> str:
    """Format milliseconds since 1970 as `2013-12-30 04:00:00Z`; None becomes `unknown`."""
    if ms is None:
        return "unknown"
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    except OverflowError:
        return f"{ms} ms"
    return f"{moment:%Y-%m-%d %H:%M:%S}Z"


def format_day(ms: int) -> str:
    """Format the day (UTC) of milliseconds since 1970 as `2013-12-30`."""
    return datetime.fromtimestamp(ms / 1000, UTC).date().isoformat()
