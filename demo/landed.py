"""What landed in the demo's table, and whether it is every flight exactly once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError

from demo.freshness import Freshness, freshness
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
    live: Freshness | None
    """Of the flights that were sent live; None where none landed."""

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
    return Summary(
        expected=flights.num_rows,
        rows=rows.num_rows,
        files=len(list(table.scan().plan_files())),
        commits=sum(_records(snapshot.summary) > 0 for snapshot in table.snapshots()),
        duplicates=rows.num_rows - distinct,
        gaps=published - distinct,
        different=differences(flights, rows.select(flights.column_names)),
        dead_letters=_count(catalog, spec.dead_letter_table),
        live=freshness(table, since_ms=live_from_ms),
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


def _records(summary: Mapping[str, str] | None) -> int:
    return int((summary or {}).get("frazil.records") or 0)


def _count(catalog: Catalog, identifier: str) -> int:
    try:
        return catalog.load_table(identifier).scan().count()
    except NoSuchTableError:
        return 0
