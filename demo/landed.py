"""What landed in the demo's table, and whether each flight is there exactly once."""

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
    """The demo's result; `exact` decides its exit code."""

    expected: int
    rows: int
    files: int
    commits: int
    duplicates: int
    """Rows with the topic, partition and offset of another row."""
    gaps: int
    """Records in Kafka that the table does not have."""
    different: int
    """Source flights that the table does not have, plus rows that are no source flight."""
    dead_letters: int
    live: Freshness | None
    """The freshness of live flights; None if none landed."""

    @property
    def exact(self) -> bool:
        return self.rows == self.expected and not (self.duplicates or self.gaps or self.different or self.dead_letters)


def committed_records(catalog: Catalog, spec: StreamSpec) -> int:
    """Return the number of records that the stream has committed; 0 without a table or marker."""
    try:
        marker = read_marker(catalog.load_table(spec.table.identifier).properties, spec.name)
    except NoSuchTableError:
        return 0
    return sum(marker.offsets.values()) if marker else 0


def summarise(catalog: Catalog, spec: StreamSpec, *, flights: pa.Table, published: int, live_from_ms: int) -> Summary:
    """Compare the whole table with the source, and with `published`, the number of records in Kafka."""
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
    """Count the rows in which two tables differ as multisets, in any order."""
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
