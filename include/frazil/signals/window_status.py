"""Whether a window of a table was signalled, and if not, what it waits for: for the sensor and for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from frazil.errors import SpecError
from frazil.partitions.completeness import moment, waits_for
from frazil.partitions.windows import Grain, Window, windows_between
from frazil.signals.completion import Assessment, assess
from frazil.signals.signal import Signal
from frazil.spec.model import StreamSpec
from frazil.spec.routed_stream import never_complete
from frazil.table.catalogs import existing_catalog


@dataclass(frozen=True, slots=True)
class WindowStatus:
    """Status of an hour or a day. `signals` are those of its windows once all were sent; until then it is empty."""

    signals: tuple[Signal, ...]
    waits_for: str
    never: bool = False
    """Whether it is before the first signalled window, so that it will never be signalled."""


def window_status(specs: Sequence[StreamSpec], key: str) -> WindowStatus:
    """The status of an hour or a day. A day of a table with hourly windows stands for all of its hours.

    Raises SpecError if the key is not a window of the table, and what `assess` raises.
    """
    table = specs[0].table.identifier
    wanted = _window(key, specs[0])
    seen = assess(existing_catalog(specs[0].table.catalog), specs)
    if seen is None:
        return WindowStatus((), f"the table {table} does not exist yet: its writer never ran")
    cursor = seen.signals.cursor
    if cursor is not None and wanted.start_us < cursor.from_us:
        first = moment(cursor.from_us)
        return WindowStatus((), f"{key} of {table} is history: signals begin at {first} (`complete-from`)", never=True)
    windows = tuple(windows_between(seen.grain, wanted.start_us, wanted.end_us))
    newest = seen.signals.newest(from_us=wanted.start_us, to_us=wanted.end_us)
    untold = [w for w in windows if w not in newest or not newest[w].sent]
    if untold:
        return WindowStatus((), _reason(seen, untold[0], newest.get(untold[0])))
    return WindowStatus(tuple(newest[w] for w in windows), "")


def _window(key: str, spec: StreamSpec) -> Window:
    try:
        window = Window.parse(key)
    except ValueError as error:
        raise SpecError(f"partition {error}") from error
    if spec.window is None:
        raise SpecError(never_complete(spec))
    if window.grain is Grain.HOUR and spec.window == "day":
        raise SpecError(f"partition {key!r} is an hour, but the windows of {spec.table.identifier} are days")
    return window


def _reason(seen: Assessment, window: Window, last: Signal | None) -> str:
    if last is not None:
        return f"{window} is held by its quality gate: {last.note}"
    waiting = waits_for(seen.feeds, window)
    if not waiting:
        return f"{window} is complete; the table's partition DAG has not run since"
    needs = "; ".join(f"{feed}, and {moment(window.end_us + feed.lateness_us)} is needed" for feed in waiting)
    return f"{window} waits: {needs}"
