"""Records each table that a stream's route has had, in a small object that reveals dropped tables. An object exists
from the stream's first write to the table until the stream is forgotten.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from functools import partial

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from frazil.commit.journal import Journal, later_journals
from frazil.commit.marker import read_marker
from frazil.commit.staging_targets import list_targets, object_path
from frazil.commit.stream_tables import StreamTables
from frazil.errors import FrazilError, error_text
from frazil.ingest.contract import Target
from frazil.table.lost_tables import MetadataFile, find_newest_metadata
from frazil.table.parallel import run_in_parallel
from frazil.table.storage import open_store

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RoutedTableRecord:
    target: Target
    value: str | None
    """The route value with which the template created the table, if it did."""
    location: str
    uuid: str | None = None
    """The table's UUID, if known."""

    def is_other_table(self, table: Table) -> bool:
        return self.uuid is not None and self.uuid != str(table.metadata.table_uuid)


def list_recorded_tables(tables: StreamTables) -> set[Target]:
    return list_targets(tables.store, _folder(tables))


def read_table_record(tables: StreamTables, target: Target) -> RoutedTableRecord | None:
    """Return the record of a table; None if it is missing or of another version."""
    data = tables.store.get(_path(tables, target))
    try:
        return None if data is None else RoutedTableRecord(**json.loads(data))
    except (ValueError, TypeError):  # of another version
        return None


def write_table_record(tables: StreamTables, target: Target, value: str | None, table: Table) -> None:
    record = RoutedTableRecord(target, value, table.location(), str(table.metadata.table_uuid))
    tables.store.put(_path(tables, target), json.dumps(asdict(record)).encode())


def delete_table_record(tables: StreamTables, target: Target) -> None:
    tables.store.delete([_path(tables, target)])


def journals_never_committed(tables: StreamTables, target: Target, waiting: Sequence[Journal]) -> Sequence[Journal]:
    """Return the waiting journals that a missing table never committed, as far as its remaining metadata shows."""
    record = read_table_record(tables, target)
    newest = None if record is None else newest_remaining_metadata(tables, record)
    try:
        marker = None if newest is None else read_marker(newest.properties, tables.stream)
    except FrazilError:
        return waiting
    return waiting if marker is None else later_journals(marker, waiting)


def newest_remaining_metadata(tables: StreamTables, record: RoutedTableRecord) -> MetadataFile | None:
    if record.uuid is None:
        return None
    try:
        store = open_store(record.location, tables.main.io_properties)
        return find_newest_metadata(store, record.location, record.uuid)
    except (FrazilError, OSError):
        return None


def find_renamed_table(
    tables: StreamTables, record: RoutedTableRecord, candidates: Collection[Target] = ()
) -> Target | None:
    """Return the current name of a renamed table, among the route's recorded tables and `candidates`."""
    if record.uuid is None:
        return None
    recorded = list_recorded_tables(tables)
    records = run_in_parallel(partial(read_table_record, tables), sorted(recorded - {record.target}))
    had = [other.target for other in records if other and other.uuid == record.uuid]
    for name in (*had, *sorted({*candidates} - recorded)):
        try:
            table = tables.handle(name).refresh()
        except NoSuchTableError:  # it was renamed once more
            continue
        except Exception as error:  # catalogs' clients raise anything; the other names may still match
            log.warning(
                "cannot load table %s to check whether it is the renamed table %s: %s",
                name,
                record.target,
                error_text(error),
            )
            continue
        if not record.is_other_table(table):
            return name
    return None


def _folder(tables: StreamTables) -> str:
    return f"{tables.state}/members"


def _path(tables: StreamTables, target: Target) -> str:
    return object_path(_folder(tables), target)
