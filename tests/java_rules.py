"""The order of times in table metadata that Iceberg's Java library requires to read or write a table."""

from __future__ import annotations

from itertools import pairwise

from pyiceberg.table.metadata import TableMetadata

TOLERANCE_MS = 60_000
"""`ONE_MINUTE` of org.apache.iceberg.TableMetadata."""


def check_times(metadata: TableMetadata) -> None:
    """Check like the constructor of `TableMetadata`: both logs are sorted, and the last update is not earlier."""
    for log in (metadata.snapshot_log, metadata.metadata_log):
        times = [*(entry.timestamp_ms for entry in log), metadata.last_updated_ms]
        steps = [after - before for before, after in pairwise(times)]
        assert all(step >= -TOLERANCE_MS for step in steps), f"Java refuses these times (ms between them): {steps}"
