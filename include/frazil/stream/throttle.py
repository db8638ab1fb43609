"""Whether a table's metadata grows faster than its maintenance shrinks it, and how far to stretch the commits. Pure.

Pressure is how many times more snapshots or manifests a table has than maintenance is declared to leave. Between two
runs of it that goes up and down, so being large says little: a table is under pressure while it is large *and* grows.
It begins above `BEGIN`, ends below `END`, and ends as soon as the pressure falls by more than `TURN` from its height.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from frazil.spec.model import StreamSpec
from frazil.spec.units import format_duration

BEGIN = 2.0
END = 1.5
TURN = 1.05
"""A change by less is no change of direction."""


@dataclass(frozen=True, slots=True)
class Measure:
    """What a commit leaves in the table, and how many seconds it took."""

    snapshots: int
    manifests: int
    commit_s: float


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is declared; None for what no maintenance keeps small."""

    table: str
    snapshots: int | None
    manifests: int | None
    interval: timedelta
    longest: timedelta
    """The commit interval at its longest: `commit.interval` itself where nothing is stretched."""

    @classmethod
    def for_stream(cls, spec: StreamSpec) -> Bounds:
        kept = spec.maintenance
        return cls(
            spec.table.identifier,
            kept.expiry.at_most if kept.expiry.enabled else None,
            kept.manifests.most if kept.manifests.enabled else None,
            spec.commit.interval,
            spec.commit.longest_interval,
        )

    def pressure(self, measure: Measure) -> float:
        snapshots = measure.snapshots / self.snapshots if self.snapshots else 0.0
        manifests = measure.manifests / self.manifests if self.manifests else 0.0
        return max(snapshots, manifests)


@dataclass(frozen=True, slots=True)
class Throttle:
    """What the commits so far come to."""

    grows: bool
    turn: float
    """The pressure's height while it grows, and its depth while it does not."""
    stretch: float = 1.0
    """How many times longer than declared the commit interval is."""
    reason: str | None = None
    """A sentence while the table is under pressure, whether the interval is stretched or not."""


def throttle(before: Throttle | None, measure: Measure, bounds: Bounds) -> Throttle:
    """After one more commit. The first one only begins the history."""
    pressure = bounds.pressure(measure)
    grows, turn = _direction(before, pressure)
    if not grows or pressure <= (END if before and before.reason else BEGIN):
        return Throttle(grows, turn)
    interval = min(bounds.interval * pressure / END, bounds.longest)
    return Throttle(grows, turn, interval / bounds.interval, _reason(measure, bounds, interval))


def _direction(before: Throttle | None, pressure: float) -> tuple[bool, float]:
    if before is None:
        return False, pressure
    if before.grows:
        height = max(before.turn, pressure)
        return (False, pressure) if pressure * TURN < height else (True, height)
    depth = min(before.turn, pressure)
    return (True, pressure) if pressure > depth * TURN else (False, depth)


def _reason(measure: Measure, bounds: Bounds, interval: timedelta) -> str:
    parts = [
        f"{count} {what} where maintenance leaves {kept}"
        for count, what, kept in (
            (measure.snapshots, "snapshots", bounds.snapshots),
            (measure.manifests, "manifests", bounds.manifests),
        )
        if kept
    ]
    whole = timedelta(seconds=round(interval.total_seconds()))
    done = (
        f"the commit interval is stretched from {format_duration(bounds.interval)} to {format_duration(whole)}"
        if bounds.longest > bounds.interval
        else "commit.throttle: stretch would commit less often until it is in shape"
    )
    return (
        f"the metadata of table {bounds.table} grows faster than maintenance shrinks it: {', '.join(parts)}, and a "
        f"commit takes {measure.commit_s:.1f} s; {done}. Look whether the table's maintenance runs, "
        "and often enough (maintenance.every)"
    )
