"""Windows: hours or days of event time that become complete. Pure; times are in microseconds since 1970, UTC."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Grain(StrEnum):
    HOUR = "hour"
    DAY = "day"

    @property
    def us(self) -> int:
        return timedelta(hours=1 if self is Grain.HOUR else 24) // timedelta(microseconds=1)

    @property
    def key_format(self) -> str:
        return "%Y-%m-%dT%H" if self is Grain.HOUR else "%Y-%m-%d"

    def floor(self, us: int) -> int:
        return us - us % self.us


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """A window of event time: `[start, start + grain)`."""

    start_us: int
    grain: Grain

    @classmethod
    def containing(cls, us: int, grain: Grain) -> Window:
        return cls(grain.floor(us), grain)

    @classmethod
    def parse(cls, key: str) -> Window:
        """Return the window of a key such as `2013-01-01T05` or `2013-01-01`. Raises ValueError for any other text."""
        for grain in Grain:
            try:
                moment = datetime.strptime(key, grain.key_format).replace(tzinfo=UTC)
            except ValueError:
                continue
            return cls(microseconds(moment), grain)
        raise ValueError(f"{key!r} is neither an hour, such as 2013-01-01T05, nor a day, such as 2013-01-01")

    @property
    def end_us(self) -> int:
        return self.start_us + self.grain.us

    @property
    def key(self) -> str:
        """`2013-01-01T05` for an hour, `2013-01-01` for a day."""
        # isoformat() writes years with four digits; strftime may not below 1000.
        text = (EPOCH + timedelta(microseconds=self.start_us)).isoformat()
        return text[:13] if self.grain is Grain.HOUR else text[:10]

    def __str__(self) -> str:
        return self.key


def microseconds(moment: datetime) -> int:
    """Return a datetime with a time zone as microseconds since 1970."""
    return (moment - EPOCH) // timedelta(microseconds=1)


def windows_between(grain: Grain, from_us: int, to_us: int) -> Iterator[Window]:
    for start in range(grain.floor(from_us), to_us - grain.us + 1, grain.us):
        yield Window(start, grain)
