"""Selects the dead letters of one stream by reason and time, and reads them one file at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import pyarrow as pa
from pydantic import Field
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import Table

import frazil.pyiceberg_fixes.data_files  # noqa: F401 - reads data files
from frazil.backfill.request import UtcMoment
from frazil.spec.model import StreamSpec
from frazil.spec.values import Model
from frazil.table.branches import head_of

ERROR_CLASS_PATTERN = r"^\w+$"
ErrorClass = Annotated[str, Field(pattern=ERROR_CLASS_PATTERN)]


class Selection(Model):
    """Selects dead letters of a stream. `begin` and `end` bound the time of the rejection, `[begin, end)`."""

    reasons: tuple[ErrorClass, ...] = ()
    """Error classes to select; empty selects all."""
    begin: UtcMoment | None = None
    end: UtcMoment | None = None
    discarded: bool = False

    def row_filter(self, spec: StreamSpec) -> str:
        """Return the Iceberg row filter that matches the stream's selected dead letters."""
        parts = [f"stream = '{spec.name}'"]
        if self.reasons:
            parts.append(f"error_class in ({', '.join(map(repr, self.reasons))})")
        if self.begin is not None:
            parts.append(f"rejected_at >= '{self.begin.isoformat()}'")
        if self.end is not None:
            parts.append(f"rejected_at < '{self.end.isoformat()}'")
        if not self.discarded:
            parts.append("discarded_at is null")
        return " and ".join(parts)

    def __str__(self) -> str:
        parts = [
            f"of {', '.join(self.reasons)}" if self.reasons else "",
            f"from {self.begin.isoformat()}" if self.begin else "",
            f"before {self.end.isoformat()}" if self.end else "",
        ]
        return " ".join(filter(None, parts)) or "all"


def read_dead_letters(table: Table, row_filter: str, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the selected rows of the main branch in batches, file by file."""
    head = head_of(table.metadata)
    if head is None:
        return
    scan = table.scan(row_filter=row_filter, selected_fields=tuple(columns), snapshot_id=head.snapshot_id)
    # The snapshot may be older than a column, such as `headers`, which a writer has added since.
    columns_now = table.schema().select(*columns)
    arrow = ArrowScan(table.metadata, table.io, columns_now, scan.row_filter)
    for task in scan.plan_files():
        for batch in arrow.to_record_batches([task]):
            if batch.num_rows:
                yield pa.Table.from_batches([batch])
