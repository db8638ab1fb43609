"""Opens a declared stream's tables, journals and Kafka for commands and readers. A writer opens its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from frazil import clock
from frazil.commit.compare_and_swap import RetryPolicy, TableHandle
from frazil.commit.journal import JournalStore
from frazil.commit.merging import merge_config
from frazil.commit.own_table_check import check_own_table
from frazil.commit.stream_tables import StreamTables
from frazil.errors import SpecError
from frazil.ingest.contract import Target
from frazil.kafka.admin import INTERACTIVE_TIMEOUT_S, KafkaAdmin
from frazil.spec.model import StreamSpec
from frazil.spec.references import resolve_kafka_properties
from frazil.table.catalogs import open_existing_catalog, translate_catalog_errors
from frazil.table.lost import lost_dead_letters_error
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
            raise lost_dead_letters_error(self._spec) from None


def open_stream(spec: StreamSpec) -> OpenStream:
    """Open the stream's tables for changes. Creates a missing dead-letter table. Raises SpecError or TableLost."""
    return open_with_table(spec, _load_table(spec))


def open_with_table(spec: StreamSpec, table: Table) -> OpenStream:
    """Open a stream with the table that now has the declared name, even if the stream wrote to another one."""
    return _open(spec, {"main": table, "dead-letters": ensure_dead_letters(table.catalog, spec)})


def open_dead_letters(spec: StreamSpec) -> StreamTables | None:
    """Open the dead-letter table of a stream whose own table is missing. Returns None if both are missing."""
    catalog = open_existing_catalog(spec.table.catalog)
    with translate_catalog_errors(catalog.name):
        try:
            table = catalog.load_table(spec.dead_letter_table)
        except NoSuchTableError:
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
    retry_policy = RetryPolicy(total_s=RETRY_TIMEOUT_S)
    return OpenStream(
        spec,
        StreamTables.open(
            spec.name, targets, clock_ms=clock.now_ms, retry_policy=retry_policy, merging=merge_config(spec)
        ),
    )


def open_kafka(spec: StreamSpec, *, timeout_s: float = INTERACTIVE_TIMEOUT_S) -> KafkaAdmin:
    """Open the stream's source in Kafka. Raises SpecError for an unresolvable reference."""
    # By default librdkafka logs every lost connection to stderr; the raised error already reports it.
    properties = {"log_level": "2", **resolve_kafka_properties(spec, os.environ)}
    return KafkaAdmin(properties, spec.source.reads, stream=spec.name, timeout_s=timeout_s)
