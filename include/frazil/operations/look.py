"""The looks behind the overview: each reads one thing, may take as long as its catalog does, and raises what it raises.

They are asked through `frazil.operations.answers`, which bounds the wait.
"""

from __future__ import annotations

from collections.abc import Sequence

from frazil import clock
from frazil.operations.overview import Windows
from frazil.partitions.completeness import complete_to, moment
from frazil.partitions.windows import Window
from frazil.signals.completion import assess
from frazil.spec.model import StreamSpec
from frazil.status.stream import StreamStatus, stream_status
from frazil.table.catalogs import existing_catalog


def look_at_stream(spec: StreamSpec) -> StreamStatus:
    """Where a stream stands now."""
    return stream_status(spec, now_ms=clock.now_ms())


def look_at_windows(specs: Sequence[StreamSpec]) -> Windows | None:
    """How far a table is complete; None if it does not exist. `specs` are all streams that feed it."""
    seen = assess(existing_catalog(specs[0].table.catalog), specs)
    if seen is None:
        return None
    bound, cursor = complete_to(seen.feeds), seen.signals.cursor
    held = sorted(Window(us, cursor.grain).key for us in cursor.held) if cursor else []
    return Windows(seen.grain, None if bound is None else moment(bound), seen.decision.reason, tuple(held))
