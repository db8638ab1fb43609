"""Defines a signal (a window of a table is complete at one revision) and its row in the signals table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestamptzType

from frazil.partitions.windows import Window, microseconds


class SignalState(StrEnum):
    """Why a signal was appended."""

    COMPLETE = "complete"
    HELD = "held"
    """The quality gate failed. An event is sent when the window is released, or passes the gate after late rows."""
    RELEASED = "released"
    AGAIN = "again"
    """The signal is sent once more on request."""


@dataclass(frozen=True, slots=True)
class Signal:
    """One window of a table, at one revision. Times are microseconds or milliseconds since 1970, UTC."""

    table: str
    partition: str
    """The window's key: `2013-12-30T15`, or `2013-12-30`."""
    start_us: int
    end_us: int
    revision: int
    """1, plus one each time that late rows reopened the window."""
    state: SignalState
    rows: int
    dead_letters: int
    """Number of dead letters since the previous signal, of any window."""
    late_rows: int
    """Number of this window's rows that landed since the previous signal."""
    watermark_us: int
    """The minimum of each feeding stream's watermark minus its lateness."""
    snapshot_id: int
    sequence_number: int
    """The sequence number of the snapshot in which the rows were counted."""
    signalled_at_ms: int
    note: str | None = None
    """The gate's failures; for a released window, the user and the reason."""
    number: int = 0
    """The number of this signal among the table's signals, set by `append_signals`."""

    @property
    def window(self) -> Window:
        return Window.parse(self.partition)

    @property
    def sent(self) -> bool:
        return self.state is not SignalState.HELD


_TYPES: Mapping[str, Any] = {
    "table": StringType(),
    "partition": StringType(),
    "start": TimestamptzType(),
    "end": TimestamptzType(),
    "revision": IntegerType(),
    "state": StringType(),
    "rows": LongType(),
    "dead_letters": LongType(),
    "late_rows": LongType(),
    "watermark": TimestamptzType(),
    "snapshot_id": LongType(),
    "sequence_number": LongType(),
    "signalled_at": TimestamptzType(),
    "note": StringType(),
    "number": LongType(),
}
SIGNALS_SCHEMA = Schema(
    *(NestedField(i, name, kind, required=name != "note") for i, (name, kind) in enumerate(_TYPES.items(), 1))
)
SIGNALS_PARTITION_SPEC = PartitionSpec(
    PartitionField(source_id=1, field_id=1000, transform=IdentityTransform(), name="table"),
    PartitionField(source_id=3, field_id=1001, transform=DayTransform(), name="start_day"),
)
_TIME_FIELDS = {"start": "start_us", "end": "end_us", "watermark": "watermark_us"}
"""The time columns, each with the field of `Signal` in microseconds."""


def signals_to_arrow(signals: Sequence[Signal], schema: pa.Schema) -> pa.Table:
    cells = [{name: getattr(s, _TIME_FIELDS.get(name, name), None) for name in _TYPES} for s in signals]
    for cell, signal in zip(cells, signals, strict=True):
        cell["signalled_at"] = signal.signalled_at_ms * 1000
    return pa.table([pa.array([c[f.name] for c in cells]).cast(f.type) for f in schema], schema=schema)


def signal_from_row(row: Mapping[str, Any]) -> Signal:
    plain: dict[str, Any] = {
        _TIME_FIELDS.get(name, name): microseconds(value) if isinstance(value, datetime) else value
        for name, value in row.items()
    }
    plain["signalled_at_ms"] = plain.pop("signalled_at") // 1000
    return Signal(**{**plain, "state": SignalState(plain["state"])})
