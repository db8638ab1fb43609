"""Decides which windows of a stream with `commit.align: watermark` stay hidden from readers of main. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from frazil.partitions.windows import Grain
from frazil.spec.model import StreamSpec

MAX_AHEAD_US = timedelta(days=1) // timedelta(microseconds=1)
"""Maximum time by which a window may begin after the newest trusted event time. Later windows count as invalid, because
their rows come from wrong clocks.
"""


@dataclass(frozen=True, slots=True)
class Alignment:
    """Settings of a stream that shows a window's rows only when the window is complete.

    Windows are `grain` long, by the event time in `column`, and complete `lateness_us` after their end.
    """

    column: str
    grain: Grain
    lateness_us: int = 0

    @classmethod
    def from_spec(cls, spec: StreamSpec) -> Alignment | None:
        """Return the declared alignment; None for a stream that shows every row at once."""
        if spec.commit.align == "none" or spec.window is None:
            return None
        lateness_us = spec.lateness // timedelta(microseconds=1)
        return cls(spec.event_time.column, Grain(spec.window), lateness_us)

    def waits(self, start_us: int, length_us: int, *, watermark_us: int | None, newest_us: int | None) -> bool:
        """Return whether rows with event times in `[start, start + length)` must stay hidden for now.

        That is the case if their window is still open or has not begun. `newest_us` is the newest trusted event time.
        If both it and the watermark are unknown, all rows wait.
        """
        end_us = max(self.grain.floor(start_us) + self.grain.us, start_us + length_us)
        if watermark_us is not None and end_us <= watermark_us - self.lateness_us:
            return False
        known = [us for us in (watermark_us, newest_us) if us is not None]
        return not known or start_us <= max(known) + MAX_AHEAD_US
