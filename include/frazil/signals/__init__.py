"""Decides from a table's metadata which windows are complete, and records each one once in `frazil.signals`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # writers import this before they start the JVM
    from pyiceberg.catalog import Catalog

    from frazil.commit.expiry import Pins
    from frazil.spec.maintenance import Expiry


MAX_RECENT_SIGNALS = 500
"""Number of signals whose snapshots are kept."""


def read_pins(catalog: Catalog, table: str, expiry: Expiry, *, now_ms: int) -> Pins:
    """Return the snapshots that a table's signals need. Raises MarkerUnreadable, and the catalog's errors."""
    from frazil.commit.expiry import Pins
    from frazil.signals.signal_table import TableSignals

    signals, since_ms = TableSignals.load(catalog, table), now_ms - expiry.keep // timedelta(milliseconds=1)
    recent = (s for s in signals.recent(MAX_RECENT_SIGNALS) if s.signalled_at_ms >= since_ms)
    return Pins(signals.cursor, frozenset(s.snapshot_id for s in recent))
