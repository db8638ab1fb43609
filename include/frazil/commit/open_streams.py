"""Opens a declared stream's tables, journals and Kafka for commands and readers. A writer opens its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from frazil import clock
from frazil.commit.commit_checks import FORGOTTEN_PREFIX
from frazil.commit.compare_and_swap import RetryPolicy, TableHandle
from frazil.commit.journal import JournalStore
from frazil.commit.marker import OwnTable, property_name, read_marker
from frazil.commit.merging import merge_config
from frazil.commit.stream_tables import StreamTables
from frazil.errors import FrazilError, MarkerUnreadable, SpecError, TableLost
from frazil.host.supervision import start_hint
from frazil.ingest.contract import Target
from frazil.kafka.admin import INTERACTIVE_TIMEOUT_S, KafkaAdmin
from frazil.spec.model import StreamSpec
from frazil.spec.references import resolve_kafka_properties
from frazil.table.catalogs import find_table, open_existing_catalog, translate_catalog_errors
from frazil.table.lost_tables import (
    find_lost_table,
    find_newest_metadata,
    find_other_name,
    lost_dead_letters_error,
    registration_command,
)
from frazil.table.storage import open_store
from frazil.table.tables import ensure_dead_letters, load_stream_table, state_location

RETRY_TIMEOUT_S = 60.0
"""Timeout of an interactive command's catalog calls, shorter than a writer's."""


@dataclass(frozen=True, slots=True)
class OpenStream:
    spec: StreamSpec
    tables: StreamTables


class _ReadOnlyDeadLetters(TableHandle):
    """Read-only handle of the dead-letter table; never creates the table."""

    def __init__(self, main: Table, spec: StreamSpec) -> None:
        super().__init__(main.catalog, spec.dead_letter_table)
        self._spec = spec

    def refresh(self) -> Table:
        try:
            return super().refresh()
        except NoSuchTableError:
            raise lost_dead_letters_error(self._spec, start_hint) from None


def open_stream(spec: StreamSpec) -> OpenStream:
    """Open the stream's tables for changes. Creates a missing dead-letter table. Raises SpecError or TableLost."""
    return open_with_table(spec, _load_table(spec))


def open_with_table(spec: StreamSpec, table: Table) -> OpenStream:
    """Open a stream with the table that now has the declared name, even if the stream wrote to another table."""
    return _open(spec, {"main": table, "dead-letters": ensure_dead_letters(table.catalog, spec)})


def open_dead_letters(spec: StreamSpec) -> StreamTables | None:
    """Open the dead-letter table of a stream that has no table. Returns None if it has no dead-letter table either."""
    catalog = open_existing_catalog(spec.table.catalog)
    with translate_catalog_errors(catalog.name):
        table = find_table(catalog, spec.dead_letter_table)
    if table is None:
        return None
    handle, retry_policy = TableHandle.from_table(table), RetryPolicy(total_s=RETRY_TIMEOUT_S)
    journals = JournalStore(handle.store, state_location(table, spec.name))
    return StreamTables(spec.name, {"dead-letters": handle}, journals, clock.now_ms, retry_policy)


def open_read_only(spec: StreamSpec) -> OpenStream:
    """Open the stream's tables without creating any. A missing dead-letter table raises TableLost on use."""
    table = _load_table(spec)
    opened = _open(spec, {"main": table})
    targets = {**opened.tables.targets, "dead-letters": _ReadOnlyDeadLetters(table, spec)}
    return OpenStream(spec, replace(opened.tables, targets=targets))


def _load_table(spec: StreamSpec) -> Table:
    table = load_stream_table(spec)
    check_own_table(spec, table)
    if table is None:
        raise SpecError(
            f"table {spec.table.identifier} of stream {spec.name!r} does not exist yet. The first start of the stream "
            f"creates it: run `frazil run {spec.name}`, or start the stream's DAG"
        )
    return table


def _open(spec: StreamSpec, targets: Mapping[Target, Table]) -> OpenStream:
    policy, merging = RetryPolicy(total_s=RETRY_TIMEOUT_S), merge_config(spec)
    tables = StreamTables.open(spec.name, targets, clock_ms=clock.now_ms, retry_policy=policy, merging=merging)
    return OpenStream(spec, tables)


def open_kafka(spec: StreamSpec, *, timeout_s: float = INTERACTIVE_TIMEOUT_S) -> KafkaAdmin:
    """Open the stream's source in Kafka. Raises SpecError for an unresolvable reference."""
    # By default librdkafka logs every lost connection to stderr; the raised error already reports it.
    properties = {"log_level": "2", **resolve_kafka_properties(spec, os.environ)}
    return KafkaAdmin(properties, spec.source.reads, stream=spec.name, timeout_s=timeout_s)


def check_own_table(spec: StreamSpec, table: Table | None) -> None:
    """Raise TableLost if the catalog no longer has the stream's own table under its name."""
    if lost := explain_lost_table(spec, table):
        raise TableLost(lost, stream=spec.name)


def explain_lost_table(spec: StreamSpec, table: Table | None) -> str | None:
    """Return why the name no longer leads to the stream's own table; None if it does."""
    if _is_marked(spec, table):
        return None
    if table is None and (lost := find_lost_table(spec)):
        return lost
    catalog = open_existing_catalog(spec.table.catalog)
    with translate_catalog_errors(catalog.name):
        try:
            properties = catalog.load_table(spec.dead_letter_table).properties
            marker = read_marker(properties, spec.name)
        except (NoSuchTableError, MarkerUnreadable):
            return None
        if marker is None or (own_table := marker.own_table) is None or own_table.name != spec.table.identifier:
            return None
        if table is not None and _is_marked(spec, find_table(catalog, own_table.name)):
            return None  # the first writer began after `table` was read
        return _explain(catalog, spec, own_table, table, epoch=f"epoch {marker.key.epoch}")


def _is_marked(spec: StreamSpec, table: Table | None) -> bool:
    marks = {property_name(spec.name), FORGOTTEN_PREFIX + spec.name}
    return table is not None and not marks.isdisjoint(table.properties)


def _explain(catalog: Catalog, spec: StreamSpec, lost: OwnTable, table: Table | None, *, epoch: str) -> str:
    name = lost.name
    if table is None:
        problem = (
            f"the table {name} is not in the catalog {catalog.name!r}, but {spec.dead_letter_table} still has the "
            f"stream's {epoch}: the catalog was lost or replaced, or the table was dropped or renamed"
        )
        first_step, begin = "", "to begin again in a new table"
    else:
        problem = (
            f"table {name} is not the table that the stream wrote to: that table was dropped or renamed, and another "
            f"table has its name (the stream's marker in {spec.dead_letter_table} has {epoch})"
        )
        first_step = f"drop the new table without purging it (in Spark `DROP TABLE {name}`, without PURGE), then "
        begin = "to begin again in the new table"
    back = _recovery_step(catalog, lost)
    return f"{problem}. To keep the stream's table, {first_step}{back}. Or run `frazil forget {spec.name}` {begin}"


def _recovery_step(catalog: Catalog, lost: OwnTable) -> str:
    if new_name := find_other_name(catalog, lost.name, location=lost.location, uuid=lost.uuid):
        return f"rename {new_name} back to {lost.name}"
    try:
        newest = find_newest_metadata(open_store(lost.location, catalog.properties), lost.location, lost.uuid)
    except (FrazilError, OSError):
        newest = None
    if newest is None:
        return f"register its newest metadata file, which is not in {lost.location}"
    return f"register it again: `{registration_command(catalog.name, lost.name, newest.path)}`"
