"""Determines whether a window of a table was signalled, and if not, why it waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from frazil.errors import SpecError
from frazil.partitions.completeness import never_signalled_text, waiting_text
from frazil.partitions.windows import Grain, Window, windows_between
from frazil.signals.completion import assess
from frazil.signals.signal import Signal
from frazil.spec.model import StreamSpec
from frazil.spec.routed_stream import never_complete
from frazil.table.catalogs import open_existing_catalog


@dataclass(frozen=True, slots=True)
class WindowStatus:
    """Status of an hour or a day. `signals` is empty until the signals of all of its windows were sent."""

    signals: tuple[Signal, ...]
    waits_for: str
    never: bool = False
    """Whether the window is before the first signalled window."""


def window_status(specs: Sequence[StreamSpec], key: str) -> WindowStatus:
    """Return the status of an hour or a day. For a table with hourly windows, a day means all of its hours.

    Raises SpecError if the key is not a window of the table, and the errors of `assess`.
    """
    table = specs[0].table.identifier
    wanted = _parse_window(key, specs[0])
    seen = assess(open_existing_catalog(specs[0].table.catalog), specs)
    if seen is None:
        return WindowStatus((), f"the table {table} does not exist yet: its writer has not committed")
    cursor = seen.signals.cursor
    if reason := never_signalled_text(wanted, cursor):
        return WindowStatus((), f"{key} of {table}: {reason} (`complete-from`)", never=True)
    windows = tuple(windows_between(seen.grain, wanted.start_us, wanted.end_us))
    newest = seen.signals.newest(from_us=wanted.start_us, to_us=wanted.end_us)
    unsent = [w for w in windows if w not in newest or not newest[w].sent]
    if not unsent:
        return WindowStatus(tuple(newest[w] for w in windows), "")
    first, last = unsent[0], newest.get(unsent[0])
    if last is not None:
        return WindowStatus((), f"{first} is held by its quality gate: {last.note}")
    return WindowStatus((), f"{first} waits: {waiting_text(seen.feeds, first, needed=True)}")


def _parse_window(key: str, spec: StreamSpec) -> Window:
    try:
        window = Window.parse(key)
    except ValueError as error:
        raise SpecError(f"partition {error}") from error
    if spec.window is None:
        raise SpecError(never_complete(spec))
    if window.grain is Grain.HOUR and spec.window == "day":
        raise SpecError(f"partition {key!r} is an hour, but the windows of {spec.table.identifier} are days")
    return window
