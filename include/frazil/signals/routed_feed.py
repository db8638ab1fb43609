"""A stream's progress for a table of its route: the progress of its default table, unless rows wait for this table."""

from __future__ import annotations

from datetime import timedelta

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from frazil import clock
from frazil.commit.history import commit_records
from frazil.commit.journal import key_of
from frazil.commit.marker import BatchKey, Marker, of_topics, read_marker
from frazil.commit.missing_rows import first_missing
from frazil.commit.rules import check_ancestry
from frazil.commit.stream_tables import StreamTables
from frazil.errors import RolledBack
from frazil.partitions.completeness import Feed
from frazil.partitions.watermark import holding_back
from frazil.spec.routed_stream import RoutedStream


def routed_feed(table: Table, spec: RoutedStream, marker: Marker) -> Feed:
    """Return the stream's watermark after the last batch whose rows the table has completely.

    The default table is loaded after this table, so newer batches of the default table count as missing. Raises
    `MarkerUnreadable`, and the errors of catalog and storage.
    """
    stream, lateness_us = spec.name, spec.lateness // timedelta(microseconds=1)
    try:
        check_ancestry(table.metadata, marker, table=spec.table.identifier)
        default_table = table.catalog.load_table(spec.default_table)
        decided = read_marker(default_table.properties, stream)
        if decided is None:
            return Feed(stream, None, lateness_us, problem=f"its default table {spec.default_table} has no marker")
        check_ancestry(default_table.metadata, decided, table=spec.default_table)
    except NoSuchTableError:
        return Feed(stream, None, lateness_us, problem=f"its default table {spec.default_table} does not exist")
    except RolledBack as error:
        return Feed(stream, None, lateness_us, problem=str(error))
    tables = StreamTables.of(stream, {"main": default_table}, clock_ms=clock.now_ms)
    first = first_missing(tables, decided, spec.table.identifier, marker)
    if first is not None:
        problem = f"{spec.table.identifier} misses rows from batch {first} on: `frazil route {stream}` shows why"
        before_us = _watermark_before(default_table, stream, first)
        return Feed(stream, before_us, lateness_us, problem=None if before_us is not None else problem)
    offsets = of_topics(decided.offsets, spec.source.reads)
    holder = holding_back(decided.max_event_times_us, partitions=offsets, idle=decided.idle)
    return Feed(stream, decided.watermark_us, lateness_us, holder)


def _watermark_before(default_table: Table, stream: str, first: BatchKey) -> int | None:
    """Return the watermark of the batch before `first`, in microseconds, from the summary of that batch's commit."""
    for snapshot, path in commit_records(default_table.metadata, stream):
        key = key_of(path)
        if key is not None and key < first:
            watermark = snapshot.summary.get("frazil.watermark-ms") if snapshot.summary else None
            return int(watermark) * 1000 if watermark else None
    return None
