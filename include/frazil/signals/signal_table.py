"""Reads and appends signals in a catalog's table `frazil.signals`: one row per complete window and revision.

Each append is a compare-and-swap, so a signal happens once. The cursor of each table is a property of `frazil.signals`,
and moves in the same update. If the cursor has moved meanwhile, nothing is appended. Airflow's events are derived from
the rows.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThan
from pyiceberg.table import Table
from pyiceberg.table.update import SetPropertiesUpdate

import frazil.pyiceberg_fixes.data_files  # noqa: F401 - reads data files
from frazil.commit.history import ancestors
from frazil.commit.snapshot import SnapshotWriter
from frazil.commit.swap import Change, Done, RetryPolicy, TableHandle, commit_snapshot
from frazil.commit.target import target_table
from frazil.errors import FrazilError, MarkerUnreadable
from frazil.ingest.contract import StagedFile
from frazil.ingest.write import TableWriter, file_namer
from frazil.partitions.completeness import Cursor
from frazil.partitions.windows import Grain, Window
from frazil.signals.signal import SCHEMA, SPEC, Signal, from_row, to_arrow
from frazil.spec.type_ends import rows_between
from frazil.table.catalogs import catalog_errors
from frazil.table.declared import DeclaredTable
from frazil.table.storage import open_store
from frazil.table.tables import data_location, ensure_declared

log = logging.getLogger(__name__)

IDENTIFIER = "frazil.signals"
PROPERTY_PREFIX = "frazil.signals."
FORMAT_VERSION = 1
TABLE_KEY, FROM_KEY = "frazil.table", "frazil.from-us"
"""Keys in the summary of each append: the table whose windows are signalled, and the start of the earliest window."""


@dataclass(frozen=True, slots=True)
class TableSignals:
    """The signals of one table, as of the time when `frazil.signals` was loaded."""

    table: str
    cursor: Cursor | None
    number: int
    """The number of the table's last signal; 0 if it has none."""
    at: Table | None

    @classmethod
    def load(cls, catalog: Catalog, table: str) -> TableSignals:
        """Load the signals of one table. Raises MarkerUnreadable if a newer version or a user wrote the cursor."""
        with catalog_errors(catalog.name):
            try:
                signals = catalog.load_table(IDENTIFIER)
            except NoSuchTableError:
                return cls(table, None, 0, None)
        return cls(table, *_read_cursor(signals, table), signals)

    def newest(self, *, from_us: int, to_us: int) -> dict[Window, Signal]:
        """Return the last signal of each window that begins in `[from, to)`."""
        signals = self._scan(rows_between(SCHEMA.find_field("start"), from_us, to_us - 1))
        return {signal.window: signal for signal in signals}

    def after(self, number: int) -> tuple[Signal, ...]:
        """Return all signals after the given number, in order."""
        if self.at is None or number >= self.number:
            return ()
        return self._scan(And(GreaterThan(term="number", value=number), self._since(number)))

    def _since(self, number: int) -> BooleanExpression:
        """Return a filter for the days that may have signals after a number, from summaries of unexpired appends."""
        starts = []
        for snapshot in ancestors(self.at.metadata) if self.at else ():
            summary = snapshot.summary.additional_properties if snapshot.summary else {}
            if summary.get(TABLE_KEY) != self.table:
                continue
            starts.append(int(summary[FROM_KEY]))
            if int(summary["frazil.number"]) <= number + 1:
                return GreaterThan(term="start", value=min(starts) - 1)
        return GreaterThan(term="number", value=number)

    def _scan(self, rows: BooleanExpression) -> tuple[Signal, ...]:
        if self.at is None:
            return ()
        own = And(EqualTo(term="table", value=self.table), rows)
        signals = map(from_row, self.at.scan(row_filter=own).to_arrow().to_pylist())
        return tuple(sorted(signals, key=lambda s: s.number))


def newest_signals(catalog: Catalog, table: str, *, from_us: int, to_us: int) -> tuple[Signal, ...]:
    """Return the last signal of each window of a table that begins in `[from, to)`, by start."""
    newest = TableSignals.load(catalog, table).newest(from_us=from_us, to_us=to_us)
    return tuple(newest[window] for window in sorted(newest))


def append_signals(
    catalog: Catalog, seen: TableSignals, signals: Iterable[Signal], cursor: Cursor, *, clock_ms: int
) -> bool:
    """Append a table's signals and move its cursor. Return False, without an append, if the cursor moved since `seen`.

    Raises the errors of `commit_snapshot`.
    """
    ensure_declared(catalog, DeclaredTable(IDENTIFIER, SCHEMA, SPEC), "signals")
    handle = TableHandle(catalog, IDENTIFIER)
    numbered = [dataclasses.replace(s, number=n) for n, s in enumerate(signals, seen.number + 1)]
    token = uuid.uuid4().hex
    files = _write(handle.current(), numbered, token)
    writer = SnapshotWriter(files)

    def propose(table: Table) -> Done[bool] | Change[bool]:
        if _read_cursor(table, seen.table) != (seen.cursor, seen.number):
            return Done(False)
        prepared = writer.prepare(table, summary=_summary(seen.table, numbered), now_ms=clock_ms)
        proof = (PROPERTY_PREFIX + seen.table, _cursor_text(cursor, seen.number + len(numbered), token))
        moved = SetPropertiesUpdate(updates=dict([proof]))
        return Change(prepared.requirements, (*prepared.updates, moved), True, proof)

    landed = commit_snapshot(handle, propose, (writer,), retry_policy=RetryPolicy(total_s=60))
    # Only if the manifests are proven unused: an append whose response was lost may have landed.
    if not landed and files and not writer.manifests:
        _discard(handle.current(), files)
    return landed


def _summary(table: str, signals: list[Signal]) -> dict[str, str]:
    if not signals:
        return {}
    return {
        TABLE_KEY: table,
        FROM_KEY: str(min(s.start_us for s in signals)),
        "frazil.number": str(signals[0].number),
    }


def _read_cursor(signals: Table, table: str) -> tuple[Cursor | None, int]:
    text = signals.metadata.properties.get(PROPERTY_PREFIX + table)
    if text is None:
        return None, 0
    try:
        raw = json.loads(text)
        if raw["format"] != FORMAT_VERSION:
            raise MarkerUnreadable(
                f"the signals of {table} have format {raw['format']}, but this version of frazil reads format "
                f"{FORMAT_VERSION}: run the version that wrote them, or a newer one"
            )
        held = frozenset(raw["held-us"])
        span, uuid = (raw["from-us"], raw["through-us"]), raw.get("table-uuid")
        return Cursor(Grain(raw["grain"]), *span, raw["sequence-number"], held, uuid), raw["number"]
    except (ValueError, KeyError, TypeError) as error:
        raise MarkerUnreadable(
            f"the property {PROPERTY_PREFIX + table!r} of table {IDENTIFIER} is not a cursor ({error!r}): it was "
            "edited by hand. Restore it"
        ) from error


def _cursor_text(cursor: Cursor, number: int, token: str) -> str:
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
        },
        separators=(",", ":"),
    )


def _discard(table: Table, files: Sequence[StagedFile]) -> None:
    """Delete files. Log errors only, because an error must not hide that the append failed."""
    try:
        open_store(table.location(), table.io.properties).delete(file.path for file in files)
    except (OSError, FrazilError) as error:
        log.warning("cannot delete the files of a failed append to %s: %s", IDENTIFIER, error)


def _write(table: Table, signals: list[Signal], token: str) -> list[StagedFile]:
    if not signals:
        return []
    target = target_table(table, folder=f"{data_location(table)}/{token}")
    writer = TableWriter(target, "main", io=table.io, file_name=file_namer(0, 0))
    writer.add(to_arrow(signals, writer.layout.arrow_schema))
    return writer.finish()
