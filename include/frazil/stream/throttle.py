"""Decides whether metadata grows faster than maintenance shrinks it, and how far to stretch the commit interval.

Pure. The *low* is the lowest number of snapshots, and of manifests, in about two maintenance periods. The *pressure* is
the larger of two ratios: each low, divided by the number that maintenance is declared to keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from pyiceberg.table import Table

from frazil.commit.history import ancestors
from frazil.commit.manifest_lists import read_manifests
from frazil.spec.model import StreamSpec
from frazil.spec.units import format_duration

BEGIN_PRESSURE = 2.0
END_PRESSURE = 1.5
REVERSAL_FACTOR = 1.05
"""Factor by which the pressure must change before its direction counts as reversed."""
MAX_SLICES = 4
"""Maximum number of slices (half maintenance periods) in a low."""


@dataclass(frozen=True, slots=True)
class MetadataMeasurement:
    """The size of main's history after a commit, and the commit's duration."""

    snapshots: int
    manifests: int
    commit_s: float
    at_ms: int


def measure_metadata(table: Table, *, commit_s: float, at_ms: int) -> MetadataMeasurement:
    main = list(ancestors(table.metadata))
    manifests = len(read_manifests(main[0], table.io)) if main else 0
    return MetadataMeasurement(len(main), manifests, commit_s, at_ms)


class SliceLow(NamedTuple):
    """The fewest snapshots and manifests in one time slice."""

    slice: int
    """Number of the slice, counted since 1970."""
    snapshots: int
    manifests: int


@dataclass(frozen=True, slots=True)
class MetadataBounds:
    """The declared bounds of a table's metadata; None for an unlimited number."""

    table: str
    snapshots: int | None
    manifests: int | None
    every: timedelta
    interval: timedelta
    longest: timedelta
    """The maximum stretched commit interval. If stretching is off, this is `interval`."""

    @classmethod
    def for_stream(cls, spec: StreamSpec) -> MetadataBounds:
        return cls(spec.table.identifier, *spec.maintenance.limits, spec.commit.interval, spec.commit.longest_interval)

    def pressure(self, low: SliceLow) -> float:
        """Return the ratio of a low to these bounds: for snapshots or manifests, whichever is larger."""
        snapshots = low.snapshots / self.snapshots if self.snapshots else 0.0
        manifests = low.manifests / self.manifests if self.manifests else 0.0
        return max(snapshots, manifests)


@dataclass(frozen=True, slots=True)
class Throttle:
    lows: tuple[SliceLow, ...]
    grows: bool
    extreme: float
    """The pressure's maximum while it grows (`grows`); its minimum while it shrinks."""
    stretch: float = 1.0
    reason: str | None = None
    """Why the table is under pressure, even if the interval is not stretched; None without pressure."""


def throttle(previous: Throttle | None, measure: MetadataMeasurement, bounds: MetadataBounds) -> Throttle:
    """Return the state after one more commit. After a long pause, a new history begins."""
    now = SliceLow(timedelta(milliseconds=measure.at_ms) * 2 // bounds.every, measure.snapshots, measure.manifests)
    known_lows = previous.lows if previous else ()
    earlier = (low for low in known_lows if now.slice - MAX_SLICES < low.slice < now.slice)
    lows = (*earlier, _find_lowest([*(low for low in known_lows if low.slice == now.slice), now]))
    if previous and previous.lows[-1].slice not in {low.slice for low in lows}:
        previous = None
    low = _find_lowest(lows)
    pressure = bounds.pressure(low)
    grows, extreme = _direction(previous, pressure)
    pressed = previous is not None and previous.reason is not None
    is_measured = pressed or len(lows) == MAX_SLICES
    if not (is_measured and grows) or pressure <= (END_PRESSURE if pressed else BEGIN_PRESSURE):
        return Throttle(lows, grows, extreme)
    interval = min(bounds.interval * pressure / END_PRESSURE, bounds.longest)
    return Throttle(lows, grows, extreme, interval / bounds.interval, _reason(low, measure.commit_s, bounds, interval))


def _find_lowest(lows: Sequence[SliceLow]) -> SliceLow:
    return SliceLow(lows[-1].slice, min(low.snapshots for low in lows), min(low.manifests for low in lows))


def _direction(previous: Throttle | None, pressure: float) -> tuple[bool, float]:
    """Return whether the pressure grows, and its maximum (if it grows) or minimum since the direction changed."""
    if previous is None:
        return False, pressure
    if previous.grows:
        height = max(previous.extreme, pressure)
        return (False, pressure) if pressure * REVERSAL_FACTOR < height else (True, height)
    depth = min(previous.extreme, pressure)
    return (True, pressure) if pressure > depth * REVERSAL_FACTOR else (False, depth)


def _reason(low: SliceLow, commit_s: float, bounds: MetadataBounds, interval: timedelta) -> str:
    counts = (low.snapshots, "snapshots", bounds.snapshots), (low.manifests, "manifests", bounds.manifests)
    parts = [f"{count} {name} (maintenance should leave {target})" for count, name, target in counts if target]
    normal = timedelta(seconds=round(interval.total_seconds()))
    effects = (
        f"the commit interval is stretched from {format_duration(bounds.interval)} to {format_duration(normal)}"
        if bounds.longest > bounds.interval
        else "commit.throttle: stretch would commit less often until the metadata shrinks"
    )
    return (
        f"the metadata of table {bounds.table} grows faster than maintenance shrinks it: for "
        f"{format_duration(bounds.every * (MAX_SLICES - 1) / 2)} it never had fewer than {', '.join(parts)}, and a "
        f"commit takes {commit_s:.1f} s; {effects}. Check that the table's maintenance runs, and often enough "
        "(maintenance.every)"
    )
