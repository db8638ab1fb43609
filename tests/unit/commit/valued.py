"""A table in a real catalog with a column of every type in every nesting, and rows with the extremes of each type.

Rows below `CHANGED` are never changed. The expected values are those that DuckDB reads from a file that PyArrow wrote
without frazil.
"""

from __future__ import annotations

import dataclasses
import io
import math
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, IdentityTransform, Transform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from frazil.backfill.commit import BackfillCommitter
from frazil.backfill.request import parse_request
from frazil.commit.backfill_records import BackfillRecord
from frazil.commit.journal import bare_path
from frazil.commit.marker import BatchKey, open_branch_name
from frazil.commit.merging import DEDUPE_MODE, UPSERT_MODE, MergeConfig
from frazil.commit.staging_targets import target_table
from frazil.commit.sweep import batch_folder, sweep_batch
from frazil.ingest.changes import CHANGE, DELETE, OMITTED_COLUMNS, UPSERT
from frazil.ingest.contract import Content, RangeProgress, StagedFile
from frazil.ingest.shaper import find_lowest_truncatable
from frazil.ingest.table_writer import TableWriter, file_namer
from frazil.merge.contract import MergeRules, RowRemoval
from frazil.merge.table_files import nullable_arrow_schema
from frazil.partitions.completeness import Alignment
from frazil.partitions.windows import Grain
from frazil.spec.iceberg import DEAD_LETTER_PARTITION_SPEC, DEAD_LETTER_SCHEMA
from frazil.table.branches import head_of
from tests.unit.commit.conftest import FaultyCatalog, World

CHANGED = 100
"""Changes affect only keys from here on."""
FIRST_OFFSET = 1_000_000
DAY = datetime(2024, 5, 1, tzinfo=UTC)

FIRST, LAST = datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)  # noqa: DTZ001 - wall clocks
EXTREMES: Mapping[str, tuple[PrimitiveType, Sequence[Any]]] = {
    "boolean": (BooleanType(), [False, True]),
    "int": (IntegerType(), [-(2**31), -1, 0, 2**31 - 1]),
    "long": (LongType(), [-(2**63), -1, 0, 2**53 + 1, 2**63 - 1]),
    "float": (FloatType(), [-math.inf, -0.0, 0.0, 2**-149, 0.10000000149011612, 3.4028234663852886e38, math.nan]),
    "double": (DoubleType(), [-math.inf, -0.0, 0.0, 5e-324, 0.1, 16777217.0, 1.7976931348623157e308, math.nan]),
    "decimal_9_2": (DecimalType(9, 2), [Decimal("-9999999.99"), Decimal("0.00"), Decimal("9999999.99")]),
    "decimal_18_0": (DecimalType(18, 0), [Decimal(-(10**18 - 1)), Decimal(0), Decimal(10**18 - 1)]),
    "decimal_38_10": (
        DecimalType(38, 10),
        [Decimal("-" + "9" * 28 + "." + "9" * 10), Decimal("9" * 28 + "." + "9" * 10)],
    ),
    "date": (DateType(), [date.min, date(1969, 12, 31), date(1970, 1, 1), date.max]),
    "time": (TimeType(), [time.min, time.max]),
    "timestamp": (TimestampType(), [FIRST, datetime(1969, 12, 31, 23, 59, 59, 999999), LAST]),  # noqa: DTZ001
    "timestamptz": (TimestamptzType(), [FIRST.replace(tzinfo=UTC), DAY, LAST.replace(tzinfo=UTC)]),
    "string": (StringType(), ["", "\0", "a" * 40, "é\U0010ffff", "NULL"]),
    "uuid": (UUIDType(), [UUID(int=0).bytes, UUID(int=2**128 - 1).bytes, UUID(int=2**127).bytes]),
    "fixed": (FixedType(3), [b"\0\0\0", b"\xff\xff\xff"]),
    "binary": (BinaryType(), [b"", b"\0", b"\xff" * 40]),
}
NESTINGS = ("plain", "struct", "list", "map", "key", "list_struct", "map_struct", "list_list_struct", "struct_list",
            "map_list", "struct_struct")  # fmt: skip


def column(nesting: str, name: str, ids: Iterator[int]) -> tuple[IcebergType, list[Any]]:
    """Return a type in a nesting, and its values: null, empty ones, ones with nulls, and one for each extreme."""
    kind, extremes = EXTREMES[name]

    def of(inner: IcebergType) -> StructType:
        return StructType(NestedField(next(ids), "a", inner, required=False))

    def each(inner: IcebergType) -> ListType:
        return ListType(next(ids), inner, element_required=False)

    def by(key: IcebergType, inner: IcebergType) -> MapType:
        return MapType(next(ids), key, next(ids), inner, value_required=False)

    rows = [{"a": value} for value in (None, *extremes)]
    values = list(extremes)
    # A map with two NaN keys is no map.
    keys = [(value, number) for number, value in enumerate(extremes)]
    found: dict[str, tuple[IcebergType, list[Any]]] = {
        "plain": (kind, values),
        "struct": (of(kind), rows),
        "list": (each(kind), [[], [None], values, [None, *values]]),
        "map": (by(StringType(), kind), [[], [("", None)], [(str(n), v) for n, v in enumerate(values)]]),
        "key": (by(kind, IntegerType()), [[], keys]),
        "list_struct": (each(of(kind)), [[], [None], [None, *rows]]),
        "map_struct": (by(StringType(), of(kind)), [[], [("", None)], [(str(n), row) for n, row in enumerate(rows)]]),
        "list_list_struct": (each(each(of(kind))), [[], [None], [[], None, [None], rows]]),
        "struct_list": (of(each(kind)), [{"a": None}, {"a": []}, {"a": values}]),
        "map_list": (by(StringType(), each(kind)), [[], [("", None), ("a", []), ("b", values)]]),
        "struct_struct": (of(of(kind)), [{"a": None}, *({"a": row} for row in rows)]),
    }
    kind, values = found[nesting]
    return kind, [None, *values]


def schema_of(place: str, key: str, types: Collection[str]) -> tuple[Schema, dict[str, list[Any]]]:
    """Return a schema with a partition source and a key of the given types, and the values of each column."""
    ids = count(1)
    fields = [
        NestedField(1000 + next(ids), "id", LongType(), required=True),
        NestedField(1000 + next(ids), "k", EXTREMES[key][0], required=True),
        NestedField(1000 + next(ids), "p", EXTREMES[place][0], required=False),
        NestedField(1000 + next(ids), "at", TimestamptzType(), required=True),
        NestedField(1000 + next(ids), "kafka_topic", StringType(), required=True),
        NestedField(1000 + next(ids), "kafka_partition", IntegerType(), required=True),
        NestedField(1000 + next(ids), "kafka_offset", LongType(), required=True),
        NestedField(1000 + next(ids), "kafka_timestamp", TimestamptzType(), required=False),
    ]
    values = {"k": list(EXTREMES[key][1]), "p": [None, *EXTREMES[place][1]]}
    for name in types:
        for nesting in NESTINGS:
            kind, of = column(nesting, name, ids)
            fields.append(NestedField(next(ids), f"{nesting}_{name}", kind, required=False))
            values[f"{nesting}_{name}"] = of
    return Schema(*fields), values


@dataclass
class ValuedWorld(World):
    table: str = "demo.valued"
    dead_letter_table: str = "demo.valued_dead_letters"
    how: RowRemoval = "auto"
    drops_repeats: bool = False
    key_columns: tuple[str, ...] = ("k", "id")
    values: dict[str, list[Any]] = dataclasses.field(default_factory=dict)
    live: dict[int, dict[str, Any]] = dataclasses.field(default_factory=dict)
    """What the table must have, by `id`."""
    listed: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    """The first manifest entry of each file, and the first list entry of each manifest."""
    texts: dict[str, list[tuple[Any, ...]]] = dataclasses.field(default_factory=dict)
    """The rows that DuckDB has read from each file."""

    def __post_init__(self) -> None:
        self.starts = {("events", 0): FIRST_OFFSET}
        super().__post_init__()

    @property
    def rows_of_each(self) -> int:
        """The number of rows after which every value of every column has occurred."""
        return max(map(len, self.values.values()))

    def row(self, number: int, shift: int = 0) -> dict[str, Any]:
        made = {name: of[(number + shift) % len(of)] for name, of in self.values.items()}
        fixed = {name: self.values[name][number % len(self.values[name])] for name in ("k", "p")}
        return {**made, **fixed, "id": number, "at": DAY}

    # What a writer does

    def _merging(self) -> MergeConfig:
        if self.drops_repeats:
            rules = MergeRules(self.key_columns, event_time="at", within_us=3_600_000_000)
            return MergeConfig(lambda _: rules, mode=DEDUPE_MODE)
        rules = MergeRules(self.key_columns, row_removal=self.how)
        return MergeConfig(lambda _: rules)

    def batch(self, rows: Sequence[dict[str, Any]], content: Content, *, align: Alignment | None = None) -> None:
        """Begin an epoch; then stage, journal, commit and sweep one batch."""
        self.drops_repeats = content == "candidates"
        self.tables = dataclasses.replace(self.view(), merging=self._merging(), align=align)
        committer = self.begin()
        marker = self.marker()
        key, start = BatchKey(committer.epoch, marker.key.batch + 1), marker.offsets["events", 0]
        files = self.stage_values(key, rows, content, start)
        journal = self.journal(key, {0: (start, start + len(rows))}, files, seen=committer.newest_dead_letters())
        progress = (RangeProgress("events", 0, start, start + len(rows), len(rows), 0, self._us(DAY)),)
        journal = dataclasses.replace(journal, progress=progress)
        assert self.tables.journals.put(journal)
        committer.commit(journal)
        sweep_batch(self.tables, journal)

    def stage_values(
        self, key: BatchKey, rows: Sequence[Mapping[str, Any]], content: Content, start: int
    ) -> tuple[StagedFile, ...]:
        table = self.load()
        target = target_table(table, folder=batch_folder(table, self.stream, key))
        if content == "changes":
            target = UPSERT_MODE.staging_target(target, self.key_columns)
        writer = TableWriter(target, "main", io=table.io, file_name=file_namer(0, 0))
        coordinates = {
            "kafka_topic": "events",
            "kafka_partition": 0,
            "kafka_timestamp": None,
            CHANGE: UPSERT,
            OMITTED_COLUMNS: None,
        }
        made = [{**coordinates, "kafka_offset": start + place, **row} for place, row in enumerate(rows)]
        writer.add(table_of(made, writer.layout.arrow_schema))
        return tuple(dataclasses.replace(file, content=content) for file in writer.finish())

    def append(self, rows: Sequence[dict[str, Any]]) -> None:
        self.batch(rows, "data")
        self._put(rows)

    def upsert(self, rows: Sequence[dict[str, Any]], how: RowRemoval) -> None:
        self.how = how
        self.batch(rows, "changes")
        self._put([row for row in rows if row.get(CHANGE) != DELETE])
        for row in rows:
            if row.get(CHANGE) == DELETE:
                self.live.pop(row["id"], None)

    def dedupe(self, rows: Sequence[dict[str, Any]]) -> None:
        self.batch(rows, "candidates")
        self._put([row for row in rows if row["id"] not in self.live])

    def wait_and_publish(self, rows: Sequence[dict[str, Any]]) -> None:
        """Let the rows wait on the open branch until a writer without alignment moves them to main."""
        self.batch(rows, "data", align=Alignment("at", Grain.DAY, lateness_us=86_400_000_000))
        assert open_branch_name(self.stream) in self.load().metadata.refs
        self.batch([], "data")
        assert open_branch_name(self.stream) not in self.load().metadata.refs
        self._put(rows)

    def backfill(self, rows: Sequence[dict[str, Any]]) -> None:
        self.tables = dataclasses.replace(self.view(), merging=None)
        committer = BackfillCommitter.begin(self.tables, parse_request({"stream": self.stream}))
        key = committer.next_key()
        self.stream, stream = committer.own_tables.stream, self.stream
        files = self.stage_values(key, rows, "data", 0)
        self.stream = stream
        committer.commit(self.journal(key, {0: (0, len(rows))}, files), planned=1)
        committer.mark_staged()
        head = head_of(self.load().metadata)
        assert head is not None
        committer.publish(BackfillRecord(committer.backfill, {}), audited_at=head.snapshot_id)
        self._put(rows)

    def evolve(self, number: int) -> None:
        table = self.load()
        with table.update_schema() as update:
            update.add_column(f"new_{number}", StringType())
            for name in sorted(table.schema().column_names):
                if (
                    not name.endswith("key")
                    and name != "kafka_partition"
                    and (wider := wider_than(table.schema().find_type(name)))
                ):
                    update.update_column(name, wider)
        with table.update_spec() as spec:
            spec.add_field("id", f"bucket[{number + 4}]", f"bucket_{number}") if number % 2 else spec.add_identity(
                f"new_{number}"
            )

    def _put(self, rows: Sequence[dict[str, Any]]) -> None:
        self.live.update({row["id"]: row for row in rows})

    @staticmethod
    def _us(moment: datetime) -> int:
        return int(moment.timestamp()) * 1_000_000

    # What the table has

    def check(self) -> None:
        """Check that each row is in the table once, as it was sent, and in a file with the row's partition values."""
        expected = self._expected()
        found: dict[int, tuple[Any, ...]] = {}
        for entry in self.entries("data"):
            for number, *row in self._read(entry["file_path"]):
                assert number not in found, f"row {number} is twice"
                found[number] = tuple(row)
        assert sorted(found) == sorted(expected)
        names = [*self.values]
        wrong = {
            (number, name): (was, now)
            for number, row in expected.items()
            for name, was, now in zip(names, row, found[number], strict=True)
            if was != now
        }
        assert not wrong, [*wrong.items()][:5]
        self.check_partitions()
        self.check_entries()

    def check_entries(self) -> None:
        """Check that each file's manifest entry is the same as at first, with every field that its writer set."""
        for content in ("data", "deletes"):
            for entry in self.entries(content):
                said = {name: value for name, value in sorted(entry.items()) if value is not None}
                assert repr(said) == repr(self.listed.setdefault(entry["file_path"], said))

    def check_partitions(self) -> None:
        of_path: dict[str, Any] = {}
        for entry in self.entries("data"):
            of_path[entry["file_path"]] = partition = {name: plain(v) for name, v in entry["partition"].items()}
            for name in {"k", "p"} & {*partition}:
                rows = self._read(entry["file_path"])
                assert {plain(self.live[number][name]) for number, *_ in rows} <= {partition[name]}
        for entry in self.entries("deletes"):
            paths = set(pq.read_table(bare_path(entry["file_path"]))["file_path"].to_pylist())
            partition = {name: plain(value) for name, value in entry["partition"].items()}
            assert {repr(of_path[path]) for path in paths & of_path.keys()} <= {repr(partition)}

    def _expected(self) -> dict[int, tuple[Any, ...]]:
        declared = nullable_arrow_schema(self.load().schema())
        schema = pa.schema([f for f in declared if f.name in {"id", *self.values}])
        path = self.root / f"truth-{len(self.texts)}.parquet"
        pq.write_table(table_of([*self.live.values()], schema), path)
        return {number: tuple(row) for number, *row in self._texts(str(path))}

    def _read(self, path: str) -> list[tuple[Any, ...]]:
        gone = set()
        for entry in self.entries("deletes"):
            rows = pq.read_table(bare_path(entry["file_path"]))
            pairs = zip(rows["file_path"].to_pylist(), rows["pos"].to_pylist(), strict=True)
            gone |= {position for of, position in pairs if of == path}
        return [row for place, row in enumerate(self._texts(bare_path(path))) if place not in gone]

    def _texts(self, path: str) -> list[tuple[Any, ...]]:
        """Return `id`, and the other columns as text from DuckDB, in the order of the file."""
        if path not in self.texts:
            columns = ", ".join(f"CAST({name} AS VARCHAR)" for name in self.values)
            with duckdb.connect(config={"threads": 1}) as connection:
                self.texts[path] = connection.sql(
                    f"SELECT id, {columns} FROM read_parquet('{path}', hive_partitioning = false)"
                ).fetchall()
        return self.texts[path]

    def entries(self, content: str) -> list[dict[str, Any]]:
        """Return live files of one content type, read without PyIceberg's Avro reader."""
        head = head_of(self.load().metadata)
        assert head is not None
        wanted = 0 if content == "data" else 1
        manifests = [m for m in records(head.manifest_list) if m["content"] == wanted]
        for manifest in manifests:  # each list has the first one's entry of a manifest
            assert repr(manifest) == repr(self.listed.setdefault(manifest["manifest_path"], manifest))
        entries = [entry for m in manifests for entry in records(m["manifest_path"])]
        return [entry["data_file"] for entry in entries if entry["status"] != 2]


def wider_than(kind: IcebergType) -> IcebergType | None:
    """Return the type to which a column is widened, or None. Floats stay: DuckDB prints doubles differently."""
    if isinstance(kind, IntegerType):
        return LongType()
    return (
        DecimalType(kind.precision + 1, kind.scale) if isinstance(kind, DecimalType) and kind.precision < 38 else None
    )


def table_of(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Build an Arrow table without casts of nested values."""
    columns = [pa.array([row.get(f.name) for row in rows], stored(f.type)) for f in schema]
    return pa.table([as_declared(array, f.type) for array, f in zip(columns, schema, strict=True)], schema=schema)


def stored(kind: pa.DataType) -> pa.DataType:
    """Return the type with UUIDs as their storage type, because Arrow cannot build UUIDs in nested values."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    if not pa.types.is_nested(kind):
        return kind
    children = (
        [kind.key_field, kind.item_field]
        if pa.types.is_map(kind)
        else [*kind]
        if pa.types.is_struct(kind)
        else [kind.value_field]
    )
    fields = [child.with_type(stored(child.type)) for child in children]
    if pa.types.is_map(kind):
        return pa.map_(*fields)
    if pa.types.is_struct(kind):
        return pa.struct(fields)
    return (pa.large_list if pa.types.is_large_list(kind) else pa.list_)(*fields)


def as_declared(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, array)
    if pa.types.is_struct(kind):
        parts = [as_declared(array.field(n), kind.field(n).type) for n in range(kind.num_fields)]
    elif pa.types.is_map(kind):
        entries = [as_declared(array.keys, kind.key_type), as_declared(array.items, kind.item_type)]
        parts = [pa.StructArray.from_arrays(entries, fields=[kind.key_field, kind.item_field])]
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        parts = [as_declared(array.values, kind.value_type)]
    else:
        return array
    return pa.Array.from_buffers(
        kind, len(array), array.buffers()[: 1 if pa.types.is_struct(kind) else 2], children=parts
    )


def records(path: str) -> list[dict[str, Any]]:
    return list(fastavro.reader(io.BytesIO(Path(bare_path(path)).read_bytes())))  # type: ignore[arg-type]


def plain(value: Any) -> Any:
    """Return a value that equals another value only if both have the same bits."""
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, UUID):
        return value.bytes
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


def valued_world(  # noqa: PLR0913 - what a table is made of
    catalog: FaultyCatalog,
    folder: Path,
    *,
    place: str,
    transform: Transform[Any, Any] | None,
    key: str,
    source: str = "p",
    types: Collection[str] = EXTREMES.keys(),
    location: str | None = None,
) -> ValuedWorld:
    """Return a stream with empty tables, partitioned by day and by a transform of `p`, or of the key `k`."""
    schema, values = schema_of(place, key, types)
    by_id = {field.name: field.field_id for field in schema.fields}
    parts = [PartitionField(by_id["at"], 1000, DayTransform(), "at_day")]
    if transform is not None:
        parts.append(
            PartitionField(by_id[source], 1001, transform, source if transform == IdentityTransform() else "part")
        )
    spec = PartitionSpec(*parts)
    for _, lowest in find_lowest_truncatable(schema, spec):  # what is less is a dead letter
        values[source] = [value for value in values[source] if value is None or value >= lowest]
    catalog.inner.create_table("demo.valued", schema, location, spec)
    catalog.inner.create_table(
        "demo.valued_dead_letters", DEAD_LETTER_SCHEMA, partition_spec=DEAD_LETTER_PARTITION_SPEC
    )
    return ValuedWorld(catalog, folder, values=values)
