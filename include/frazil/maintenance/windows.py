"""Finds the next incomplete window of a table, and what the window is waiting for."""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError

from frazil.maintenance.stream_rules import LateWindow
from frazil.partitions.completeness import waiting_text
from frazil.partitions.windows import Window
from frazil.signals.completion import find_feeds
from frazil.signals.signal_table import TableSignals
from frazil.spec.model import StreamSpec


def late_window(
    catalog: Catalog, specs: Sequence[StreamSpec], signals: TableSignals, *, now_ms: int
) -> LateWindow | None:
    """Return the table's next incomplete window. If it should already be complete, includes what it is waiting for.

    Returns None for a table without signals, or a table that no longer exists. `specs` are all declared streams of the
    table.
    """
    cursor = signals.cursor
    if cursor is None:
        return None
    window = Window.containing(cursor.through_us, cursor.grain)
    due_ms = (window.end_us + max(int(spec.lateness.total_seconds() * 1_000_000) for spec in specs)) // 1_000
    if due_ms > now_ms:
        return LateWindow(str(window), due_ms, "")
    try:
        table = catalog.load_table(signals.table)
    except NoSuchTableError:
        return None
    waiting = waiting_text(find_feeds(table, specs), window)
    oldest_ms = min((snapshot.timestamp_ms for snapshot in table.metadata.snapshots), default=now_ms)
    return LateWindow(str(window), due_ms, waiting, is_history=window.end_us < oldest_ms * 1_000)
