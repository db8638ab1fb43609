"""What landed in the demo's table, and whether it is every flight exactly once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from frazil.commit.marker import read_marker
from frazil.spec.model import StreamSpec

COORDINATES = ("kafka_topic", "kafka_partition", "kafka_offset")


@dataclass(frozen=True, slots=True)
class Summary:
    """The demo's result; `exact` is what its exit code says."""

    expected: int
    rows: int
    files: int
    commits: int
    duplicates: int
    """Rows whose topic, partition and offset another row has too."""
    gaps: int
    """Records that Kafka has and the table has not."""
    different: int
    """Flights of the source that the table lacks, and rows that no flight of the source is; counted one by one."""
    dead_letters: int
    live_rows: int
    freshness_p50_s: float | None
    freshness_p95_s: float | None

    @property
    def exact(self) -> bool:
        return self.rows == self.expected and not (self.duplicates or self.gaps or self.different or self.dead_letters)


def committed_records(catalog: Catalog, spec: StreamSpec) -> int:
    """How many records the stream's marker is past; 0 where there is no table or marker yet."""
    try:
        marker = read_marker(catalog.load_table(spec.table.identifier).properties, spec.name)
    except NoSuchTableError:
        return 0
    return sum(marker.offsets.values()) if marker else 0


def summarise(catalog: Catalog, spec: StreamSpec, *, flights: pa.Table, published: int, live_from_ms: int) -> Summary:
    """Read the whole table and compare it with the source and with `published`, the records that Kafka has."""
    table = catalog.load_table(spec.table.identifier)
    rows = table.scan().to_arrow()
    distinct = rows.group_by(list(COORDINATES)).aggregate([]).num_rows
    ages = freshness_s(table, live_from_ms=live_from_ms)
    p50, p95 = pc.quantile(ages, [0.5, 0.95]).to_pylist() if len(ages) else (None, None)
    snapshots = table.snapshots()
    return Summary(
        expected=flights.num_rows,
        rows=rows.num_rows,
        files=len(_files(table)),
        commits=sum(_records(snapshot.summary) > 0 for snapshot in snapshots),
        duplicates=rows.num_rows - distinct,
        gaps=published - distinct,
        different=differences(flights, rows.select(flights.column_names)),
        dead_letters=_count(catalog, spec.dead_letter_table),
        live_rows=len(ages),
        freshness_p50_s=p50,
        freshness_p95_s=p95,
    )


def differences(expected: pa.Table, found: pa.Table) -> int:
    """How far two tables are apart as multisets of rows, whatever their order."""
    columns = expected.column_names
    signed = [
        expected.append_column("weight", pa.repeat(pa.scalar(1), expected.num_rows)),
        found.cast(expected.schema).append_column("weight", pa.repeat(pa.scalar(-1), found.num_rows)),
    ]
    weights = pa.concat_tables(signed).group_by(columns).aggregate([("weight", "sum")])["weight_sum"]
    return int(pc.sum(pc.abs(weights)).as_py() or 0)


def freshness_s(table: Table, *, live_from_ms: int) -> pa.Array:
    """For each row sent live: seconds from its Kafka timestamp to the commit that landed it."""
    committed_ms = {snapshot.snapshot_id: snapshot.timestamp_ms for snapshot in table.snapshots()}
    ages = [pa.array([], pa.float64())]
    for path, snapshot_id in _files(table).items():
        at_ms = committed_ms.get(snapshot_id, 0)
        if at_ms < live_from_ms:
            continue
        with table.io.new_input(path).open() as file:
            sent_us = pq.read_table(file, columns=["kafka_timestamp"])["kafka_timestamp"]
        sent_ms = pc.divide(sent_us.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()), 1000)
        live = sent_ms.filter(pc.greater_equal(sent_ms, live_from_ms))
        ages.append(pc.divide(pc.subtract(at_ms, live).cast(pa.float64()), 1000.0).combine_chunks())
    return pa.concat_arrays(ages)


def _files(table: Table) -> dict[str, int]:
    """Each data file's path, and the snapshot that added it."""
    snapshot = table.current_snapshot()
    if snapshot is None:
        return {}
    return {
        entry.data_file.file_path: entry.snapshot_id or 0
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    }


def _records(summary: Mapping[str, str] | None) -> int:
    return int((summary or {}).get("frazil.records") or 0)


def _count(catalog: Catalog, identifier: str) -> int:
    try:
        return catalog.load_table(identifier).scan().count()
    except NoSuchTableError:
        return 0
