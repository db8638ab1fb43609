"""Reads and appends signals in a catalog's table `frazil.signals`: one row per complete window and revision.

Each append is a compare-and-swap that also moves the cursor, a property of `frazil.signals`. The tables of a route's
template form a group, named like the template. A group has one sequence of signal numbers.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThan, StartsWith
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import SetPropertiesUpdate
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestamptzType

import frazil.pyiceberg_fixes.data_files  # noqa: F401 - reads data files
from frazil.commit.compare_and_swap import Change, Done, RetryPolicy, TableHandle, swap
from frazil.commit.history import ancestors
from frazil.commit.snapshot import SnapshotWriter
from frazil.commit.staging_targets import target_table
from frazil.errors import FrazilError, MarkerUnreadable
from frazil.ingest.contract import StagedFile
from frazil.ingest.table_writer import TableWriter, file_namer
from frazil.partitions.completeness import Cursor
from frazil.partitions.windows import Grain, Window, microseconds
from frazil.spec.iceberg import filter_between
from frazil.spec.route import VALUE_PLACEHOLDER
from frazil.table.branches import snapshot_summary
from frazil.table.catalogs import find_table, translate_catalog_errors
from frazil.table.declared_tables import DeclaredTable
from frazil.table.storage import open_store
from frazil.table.tables import data_location, ensure_declared

log = logging.getLogger(__name__)

SIGNALS_TABLE = "frazil.signals"
CURSOR_PROPERTY_PREFIX = "frazil.signals."
FORMAT_VERSION = 1
TABLE_KEY, FROM_KEY = "frazil.table", "frazil.from-us"
"""Keys in the summary of each append: the table with the signalled windows, and the start of the earliest window."""


class SignalState(StrEnum):
    """Why a signal was appended."""

    COMPLETE = "complete"
    HELD = "held"
    """The gate failed. An event is sent once an operator releases the window, or it passes the gate after late rows."""
    RELEASED = "released"
    AGAIN = "again"
    """An operator requested that the signal is sent once more."""


@dataclass(frozen=True, slots=True)
class Signal:
    """One window of a table, at one revision. Times are microseconds or milliseconds since 1970, UTC."""

    table: str
    partition: str
    """The window's key: `2013-12-30T15`, or `2013-12-30`."""
    start_us: int
    end_us: int
    revision: int
    """1, plus one for each time that late rows reopened the window."""
    state: SignalState
    rows: int
    dead_letters: int
    """Number of dead letters, of any window, since the previous signal."""
    late_rows: int
    """Number of this window's rows that landed since the previous signal."""
    watermark_us: int
    """The minimum, over the feeding streams, of the stream's watermark minus its lateness."""
    snapshot_id: int
    sequence_number: int
    """The sequence number of the snapshot in which the rows were counted."""
    signalled_at_ms: int
    note: str | None = None
    """The gate's failures; for a released window, the user and the reason."""
    number: int = 0
    """The signal's number in the sequence of the table or group, set by `append_signals`."""

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
    cells = {name: [getattr(s, _TIME_FIELDS.get(name, name), None) for s in signals] for name in _TYPES}
    cells["signalled_at"] = [signal.signalled_at_ms * 1000 for signal in signals]
    return pa.table([pa.array(cells[field.name]).cast(field.type) for field in schema], schema=schema)


def signal_from_row(row: Mapping[str, Any]) -> Signal:
    plain: dict[str, Any] = {
        _TIME_FIELDS.get(name, name): microseconds(value) if isinstance(value, datetime) else value
        for name, value in row.items()
    }
    plain["signalled_at_ms"] = plain.pop("signalled_at") // 1000
    return Signal(**{**plain, "state": SignalState(plain["state"])})


@dataclass(frozen=True, slots=True)
class TableSignals:
    """The signals of one table or group, when `frazil.signals` was loaded."""

    table: str
    cursor: Cursor | None
    """The table's cursor; None before the first signal, and for a group."""
    number: int
    """The last signal's number, or 0."""
    signals_table: Table | None
    """The loaded table `frazil.signals`, if it exists."""
    group: str | None = None
    since: int = 0
    """Number of the table's last signal before the table joined the group. The group has only later signals."""

    @classmethod
    def load(cls, catalog: Catalog, table: str) -> TableSignals:
        """Load the signals of one table or group. Raises MarkerUnreadable for an unknown cursor."""
        with translate_catalog_errors(catalog.name):
            signals = find_table(catalog, SIGNALS_TABLE)
        return cls(table, None, 0, signals).for_table(table)

    def for_table(self, table: str) -> TableSignals:
        if self.signals_table is None:
            return TableSignals(table, None, 0, None)
        return TableSignals(
            table, *_read_cursor(self.signals_table, table), self.signals_table, *_read_group(self.signals_table, table)
        )

    def members(self) -> list[TableSignals]:
        if self.signals_table is None or VALUE_PLACEHOLDER not in self.table:
            return [self]
        start, _, end = self.table.partition(VALUE_PLACEHOLDER)
        prefix = CURSOR_PROPERTY_PREFIX + start
        # Only these are read, so that an unreadable cursor of another table does not matter.
        properties = (name for name in self.signals_table.properties if name.startswith(prefix) and name.endswith(end))
        names = [name.removeprefix(CURSOR_PROPERTY_PREFIX) for name in properties]
        return [self.for_table(name) for name in names if _read_group(self.signals_table, name)[0] == self.table]

    def event_key(self, signal: Signal) -> str:
        """Return the partition key of a signal's event: `<window>`, or `<window>|<table>` for a group."""
        return f"{signal.partition}|{signal.table}" if VALUE_PLACEHOLDER in self.table else signal.partition

    def held(self) -> list[Signal]:
        signals = list[Signal]()
        for member in self.members():
            if member.cursor is not None and (starts := member.cursor.held):
                newest = member.newest(from_us=min(starts), to_us=max(starts) + 1)
                signals += [s for s in newest.values() if not s.sent]
        return signals

    def newest(self, *, from_us: int, to_us: int) -> dict[Window, Signal]:
        """Return the last signal of each window of the table that begins in `[from, to)`."""
        signals = self._scan(filter_between(SIGNALS_SCHEMA.find_field("start"), from_us, to_us - 1))
        return {signal.window: signal for signal in signals}

    def after(self, number: int) -> tuple[Signal, ...]:
        if self.signals_table is None or number >= self.number:
            return ()
        return self._scan(And(GreaterThan(term="number", value=number), self._filter_after(number)))

    def recent(self, count: int) -> tuple[Signal, ...]:
        """Return at least the last `count` signals, in order."""
        shared = TableSignals(self.group, None, 0, self.signals_table).members() if self.group else [self]
        return self.after(max(self.number - count * len(shared), 0))

    def _filter_after(self, number: int) -> BooleanExpression:
        """Return a row filter that keeps all signals after `number`. Reads the summaries of appends, but no rows."""
        starts = []
        # The group's appends do not have the signals from before the table joined it.
        for snapshot in ancestors(self.signals_table.metadata) if self.signals_table and number >= self.since else ():
            summary = snapshot_summary(snapshot)
            if summary.get(TABLE_KEY) != (self.group or self.table):
                continue
            starts.append(int(summary[FROM_KEY]))
            if int(summary["frazil.number"]) <= number + 1:
                return GreaterThan(term="start", value=min(starts) - 1)
        return GreaterThan(term="number", value=number)

    def _scan(self, rows: BooleanExpression) -> tuple[Signal, ...]:
        if self.signals_table is None:
            return ()
        prefix, is_template, _ = self.table.partition(VALUE_PLACEHOLDER)
        tables: BooleanExpression = EqualTo(term="table", value=self.table)
        if is_template:
            tables = StartsWith(term="table", value=prefix)
        signals = map(signal_from_row, self.signals_table.scan(row_filter=And(tables, rows)).to_arrow().to_pylist())
        since = {member.table: member.since if is_template else 0 for member in self.members()}
        selected = (s for s in signals if s.table in since and s.number > since[s.table])
        return tuple(sorted(selected, key=lambda s: s.number))


def load_newest_signals(catalog: Catalog, table: str, *, from_us: int, to_us: int) -> tuple[Signal, ...]:
    """Return the last signal of each window of a table that begins in `[from, to)`, ordered by window start."""
    newest = TableSignals.load(catalog, table).newest(from_us=from_us, to_us=to_us)
    return tuple(newest[window] for window in sorted(newest))


class Append(NamedTuple):
    seen: TableSignals
    signals: Sequence[Signal]
    cursor: Cursor


def append_signals(catalog: Catalog, *appends: Append, clock_ms: int) -> bool:
    """Append signals and move the cursors in one commit. Returns False, without a commit, if a cursor has changed."""
    ensure_declared(catalog, DeclaredTable(SIGNALS_TABLE, SIGNALS_SCHEMA, SIGNALS_PARTITION_SPEC), "signals")
    handle = TableHandle(catalog, SIGNALS_TABLE)
    signals, *_ = (append.seen for append in appends)
    shared = None if signals.group is None else signals.for_table(signals.group).number
    first = max([shared or 0, *(append.seen.number for append in appends)]) + 1
    numbered = [dataclasses.replace(s, number=n) for n, s in enumerate(chain(*(a.signals for a in appends)), first)]
    last = {append.seen.table: append.seen.number for append in appends} | {s.table: s.number for s in numbered}
    token = uuid.uuid4().hex
    files = _write_files(handle.current(), numbered, token)
    writer, summary = SnapshotWriter(files), dict[str, str]()
    if numbered:
        start_us = min(signal.start_us for signal in numbered)
        summary = {TABLE_KEY: signals.group or signals.table, FROM_KEY: str(start_us), "frazil.number": str(first)}

    def propose(table: Table) -> Done[bool] | Change[bool]:
        if any(_read_cursor(table, a.seen.table) != (a.seen.cursor, a.seen.number) for a in appends):
            return Done(False)
        if signals.group is not None and _read_cursor(table, signals.group)[1] != shared:
            return Done(False)
        prepared = writer.prepare(table, summary=summary, now_ms=clock_ms)
        texts = {a.seen.table: _cursor_text(a, last[a.seen.table], token) for a in appends}
        if signals.group is not None:
            number = first - 1 + len(numbered)
            texts[signals.group] = json.dumps({"format": FORMAT_VERSION, "number": number, "token": token})
        properties = {CURSOR_PROPERTY_PREFIX + name: text for name, text in texts.items()}
        moved = SetPropertiesUpdate(updates=properties)
        return Change(prepared.requirements, (*prepared.updates, moved), True, next(iter(properties.items())))

    landed = swap(handle, propose, (writer,), retry_policy=RetryPolicy(total_s=60))
    # Delete the files only if their manifests are unused: an append without a response may have landed.
    if not landed and files and not writer.manifests:
        _delete_files(handle.current(), files)
    return landed


def _read_cursor(signals: Table, table: str) -> tuple[Cursor | None, int]:
    text = signals.metadata.properties.get(CURSOR_PROPERTY_PREFIX + table)
    if text is None:
        return None, 0
    try:
        raw = json.loads(text)
        if raw["format"] != FORMAT_VERSION:
            raise MarkerUnreadable(
                f"the signals of {table} have format {raw['format']}, but this version of frazil reads format "
                f"{FORMAT_VERSION}: run the version that wrote them, or a newer one"
            )
        if VALUE_PLACEHOLDER in table:
            return None, raw["number"]
        held_us = frozenset(raw["held-us"])
        span, uuid = (raw["from-us"], raw["through-us"]), raw.get("table-uuid")
        return Cursor(Grain(raw["grain"]), *span, raw["sequence-number"], held_us, uuid), raw["number"]
    except (ValueError, KeyError, TypeError) as error:
        raise MarkerUnreadable(
            f"the property {CURSOR_PROPERTY_PREFIX + table!r} of table {SIGNALS_TABLE} is not a cursor ({error!r}): it "
            "was edited by hand. Restore it"
        ) from error


def _read_group(signals: Table, table: str) -> tuple[str | None, int]:
    """Return a table's group, and the number of its last signal before it joined. Raises MarkerUnreadable."""
    try:
        raw = json.loads(signals.metadata.properties.get(CURSOR_PROPERTY_PREFIX + table, "{}"))
        return raw.get("group"), raw.get("since", 0)
    except (ValueError, AttributeError):  # its group is unknown
        _read_cursor(signals, table)
        raise


def _cursor_text(append: Append, number: int, token: str) -> str:
    cursor, group = append.cursor, append.seen.group
    return json.dumps(
        {
            "format": FORMAT_VERSION,
            "grain": cursor.grain,
            "from-us": cursor.from_us,
            "through-us": cursor.through_us,
            "sequence-number": cursor.sequence_number,
            "held-us": sorted(cursor.held),
            "table-uuid": cursor.table_uuid,
            "number": number,
            "token": token,
            **({"group": group, "since": append.seen.since} if group else {}),
        },
        separators=(",", ":"),
    )


def _delete_files(table: Table, files: Sequence[StagedFile]) -> None:
    """Delete the files of a failed append. Only logs errors."""
    try:
        open_store(table.location(), table.io.properties).delete(file.path for file in files)
    except (OSError, FrazilError) as error:
        log.warning("cannot delete the files of a failed append to %s: %s", SIGNALS_TABLE, error)


def _write_files(table: Table, signals: list[Signal], token: str) -> list[StagedFile]:
    if not signals:
        return []
    target = target_table(table, folder=f"{data_location(table)}/{token}")
    writer = TableWriter(target, "main", io=table.io, file_name=file_namer(0, 0))
    writer.add(signals_to_arrow(signals, writer.layout.arrow_schema))
    return writer.finish()
