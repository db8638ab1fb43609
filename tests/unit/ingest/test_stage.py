"""No value ends a stream: each record lands in one of the two tables, once."""

from __future__ import annotations

import base64
import errno
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyiceberg.conversions import from_bytes
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortOrder
from pyroaring import BitMap64

from frazil.errors import SpecError
from frazil.ingest import parquet, readers
from frazil.ingest import progress as reporter
from frazil.ingest import stage as staging
from frazil.ingest.chunk import BinaryColumn, RecordChunk
from frazil.ingest.contract import (
    OffsetRange,
    RecordFile,
    Shuffle,
    StageContext,
    StagedFile,
    StageResult,
    StageTask,
    TargetTable,
)
from frazil.ingest.decode import DecodedChunk, Rejection
from frazil.ingest.partitioning import Parcel
from frazil.ingest.stage import PossibleRecordError, ReadResult, stage, stage_after_shuffle, stage_before_shuffle
from frazil.spec import iceberg
from frazil.spec.formats import JsonFormat
from frazil.spec.model import StreamSpec

RANGE_START = 100
NOW_US = 1_800_000_000_000_000
YEAR_10000_MS = 253_402_300_800_000


@dataclass(frozen=True)
class Record:
    value: bytes | None
    key: bytes | None = None
    stamp_ms: int = 1_710_000_000_000


class FakeReader:
    """Yields given chunks where Kafka's would come; each staging reads again."""

    notice: str | None = None

    def __init__(self, chunks: Sequence[RecordChunk]) -> None:
        self.chunks = chunks
        self.readings = 0

    def __call__(self, *_: Any, **__: Any) -> FakeReader:
        self.readings += 1
        return self

    def __enter__(self) -> FakeReader:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __iter__(self) -> Iterator[RecordChunk]:
        return iter(self.chunks)


@dataclass
class World:
    """A stream's two tables as staging sees them, and its outcome for records."""

    folder: Path
    spec: StreamSpec
    monkeypatch: pytest.MonkeyPatch
    chunk_records: int = 1000
    reader: FakeReader | None = None
    writers: int = 0
    """Number of writers that rows are shuffled to; 0: each task writes what it reads."""

    def context(self) -> StageContext:
        schema = iceberg.table_schema(self.spec)
        return StageContext(
            stream="s",
            epoch=1,
            batch=1,
            kafka={},
            format="json",
            event_time_column=self.spec.event_time.column,
            units=self.spec.units,
            coordinates=self.spec.coordinates,
            targets={
                "main": self._target("main", schema, iceberg.partition_spec(self.spec, schema)),
                "dead-letters": self._target("dead", iceberg.DEAD_LETTER_SCHEMA, iceberg.DEAD_LETTER_PARTITION_SPEC),
            },
            topic_ids={"t": "topic-1"},
        )

    def _target(self, name: str, schema: Schema, spec: PartitionSpec) -> TargetTable:
        order = iceberg.sort_order(self.spec, schema) if name == "main" else SortOrder(order_id=0)
        json_forms = (schema.model_dump_json(), spec.model_dump_json(), order.model_dump_json())
        return TargetTable(*json_forms, {}, f"{self.folder}/{name}", 2**27)

    def stage(self, records: Sequence[Record], context: StageContext | None = None) -> StageResult:
        of = OffsetRange("t", 0, RANGE_START, RANGE_START + len(records))
        chunks = [
            self._chunk(records[i : i + self.chunk_records], RANGE_START + i)
            for i in range(0, len(records), self.chunk_records)
        ]
        self.reader = FakeReader(chunks)
        self.monkeypatch.setattr(readers, "create_kafka_reader", self.reader)
        task = StageTask(0, (of,))
        context = context or self.context()
        if self.writers and not context.files:
            try:
                return self._shuffled(replace(context, shuffle=self._shuffle(context)), task)
            except PossibleRecordError:
                for path in self.files():  # which the sweep of the batch finds
                    Path(path).unlink()
        return stage(context, task, attempt=0, now_us=lambda: NOW_US)

    def _shuffle(self, context: StageContext) -> Shuffle:
        """Every partition that the chunks could have is shared by all writers, if it is that of no value."""
        fields = len(PartitionSpec.model_validate_json(context.main.spec_json).fields)
        parts = tuple((writer, (writer + 1) / self.writers) for writer in range(self.writers))
        return Shuffle(self.writers, {(None,) * fields: parts} if fields else {})

    def _shuffled(self, context: StageContext, task: StageTask) -> StageResult:
        """Run two tasks before and after a shuffle; what is sent arrives in another order."""
        sent = [*stage_before_shuffle(context, task, attempt=0, now_us=lambda: NOW_US)]
        reported = sent.pop()
        assert isinstance(reported, ReadResult)
        parcels = [p for p in reversed(sent) if isinstance(p, Parcel)]
        files = list(reported.result.files)
        for writer, rows in enumerate(reported.sent):
            mine = [p for p in parcels if p.writer == writer]
            written = stage_after_shuffle(context, mine, writer=writer, attempt=0)
            assert written.received == ({task.index: rows} if rows else {})
            files += written.files
        return replace(reported.result, files=tuple(files))

    @staticmethod
    def _chunk(records: Sequence[Record], start: int) -> RecordChunk:
        n = len(records)
        stamps = np.array([r.stamp_ms for r in records], np.int64)
        values, keys = [r.value for r in records], [r.key for r in records]
        return RecordChunk(
            BinaryColumn.of(values), BinaryColumn.of(keys), np.zeros(n, np.int32), np.arange(start, start + n), stamps
        )

    def files(self) -> set[str]:
        return {str(path) for path in self.folder.rglob("*.parquet")}


def declared(
    schema: dict[str, str], unit: str = "iso", partition_by: Sequence[str] = (), sort_by: Sequence[str] = ()
) -> StreamSpec:
    return StreamSpec.model_validate(
        {
            "name": "s",
            "source": {"bootstrap-servers": "x:1", "topics": "t"},
            "table": "a.b",
            "schema": {"ts": "timestamptz not null", **schema},
            "event-time": {"column": "ts", "unit": unit},
            "partition-by": list(partition_by),
            "sort-by": list(sort_by),
        }
    )


def rows(result: StageResult, target: str) -> dict[int, dict[str, Any]]:
    """Return a table's rows by offset; a repeated record fails."""
    found: dict[int, dict[str, Any]] = {}
    for file in result.files:
        if file.target == target:
            for row in pq.read_table(file.path).to_pylist():
                assert row["kafka_offset"] not in found
                found[row["kafka_offset"]] = row
    return found


def bounds(file: StagedFile, schema: Schema) -> None:
    """Each bound can be read as its column's type."""
    for encoded in (file.lower_bounds, file.upper_bounds):
        for field_id, bound in encoded.items():
            from_bytes(schema.find_type(field_id), base64.b64decode(bound))  # type: ignore[arg-type]


def check(world: World, records: Sequence[Record], result: StageResult) -> tuple[dict[int, Any], dict[int, Any]]:
    """The law: each record once, in one table; a dead letter is the record's bytes; the counts and bounds are right."""
    main, dead = rows(result, "main"), rows(result, "dead-letters")
    offsets = range(RANGE_START, RANGE_START + len(records))
    assert sorted([*main, *dead]) == list(offsets)
    for offset, dead_letter in dead.items():
        record = records[offset - RANGE_START]
        assert (dead_letter["key"], dead_letter["value"]) == (record.key, record.value)
        assert dead_letter["error_class"]
        assert dead_letter["error"]
    for file in result.files:
        bounds(file, iceberg.table_schema(world.spec) if file.target == "main" else iceberg.DEAD_LETTER_SCHEMA)
    (progress,) = result.progress
    assert (progress.records, progress.rejected) == (len(main), len(dead))
    assert sum(f.records for f in result.files) == len(records)
    assert world.files() == {file.path for file in result.files}
    return main, dead


MakeWorld = Callable[..., World]


@pytest.fixture(params=[0, 3], ids=["one task", "shuffled"])
def make_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> MakeWorld:
    def make(*args: Any, **declaration: Any) -> World:
        return World(tmp_path, declared(*args, **declaration), monkeypatch, writers=request.param)

    return make


GOOD = {"iso": b'{"ts":"2024-01-01T00:00:00Z"}', "s": b'{"ts":1704067200}', "ms": b'{"ts":1704067200000}'}


def test_a_row_that_was_decoded_alone_keeps_its_coordinates(make_world: MakeWorld) -> None:
    world = make_world({}, unit="s")
    records = [Record(b'{"ts":%d}' % (1704067200 + i)) for i in range(20)]
    records[7] = Record(b'{"ts":1.704067207e9}')
    main, _ = check(world, records, world.stage(records))
    assert [main[RANGE_START + i]["ts"].timestamp() for i in range(20)] == [1704067200 + i for i in range(20)]


@pytest.mark.parametrize(
    ("unit", "odd"),
    [
        ("s", b'{"ts":1704067200000}'),
        ("ms", b'{"ts":1704067200000000}'),
        ("ms", b'{"ts":253402300800000}'),
        ("iso", b'{"ts":"9999-12-31T23:59:59-05:00"}'),
        ("iso", b'{"ts":"0000-01-01T00:00:00Z"}'),
        ("iso", b'{"ts":"0001-01-01T00:00:00+12:00"}'),
    ],
)
@pytest.mark.parametrize("partition_by", [(), ("day(ts)",), ("hour(ts)", "bucket(16, ts)")])
def test_a_time_out_of_range_is_a_dead_letter(
    unit: str, odd: bytes, partition_by: Sequence[str], make_world: MakeWorld
) -> None:
    world = make_world({}, unit=unit, partition_by=partition_by)
    records = [Record(GOOD[unit])] * 20
    records[7] = Record(odd)
    result = world.stage(records)
    _, dead = check(world, records, result)
    assert list(dead) == [RANGE_START + 7]
    dead_letter = dead[RANGE_START + 7]
    assert dead_letter["error_class"] == "OutOfRange"
    assert dead_letter["error"].startswith("ts: ")
    assert "is outside the years 1 to 9999" in dead_letter["error"]
    assert result.progress[0].max_event_time_us == 1_704_067_200_000_000
    assert world.reader is not None
    assert world.reader.readings == 1


@pytest.mark.parametrize(
    ("kind", "first", "odd", "path"),
    [
        ("timestamp", b'"9999-12-31T23:59:59.999999"', b'"0000-12-31T23:59:59"', "x"),
        ("date", b'"0001-01-01"', b'"0000-12-31"', "x"),
        ("struct<a: struct<d: date>>", b'{"a":{"d":"9999-12-31"}}', b'{"a":{"d":"0000-01-01"}}', "x.a.d"),
        ("list<date>", b'[null,"0001-01-01"]', b'["2024-01-01","0000-01-01"]', "x.element"),
        ("map<string, date>", b'{"k":"0001-01-01"}', b'{"j":null,"k":"0000-01-01"}', "x.value"),
        ("list<struct<l: list<date>>>", b'[{"l":[]},{"l":["0001-01-01"]}]', b'[{"l":["0000-01-01"]}]', "x.element.l."),
    ],
)
def test_an_out_of_range_time_is_a_dead_letter_at_any_nesting_and_the_error_has_its_path(
    kind: str, first: bytes, odd: bytes, path: str, make_world: MakeWorld
) -> None:
    world = make_world({"x": kind})
    texts = [first, b"null", odd, first, odd]
    records = [Record(b'{"ts":"2024-01-01T00:00:00Z","x":' + text + b"}") for text in texts]
    _, dead = check(world, records, world.stage(records))
    assert list(dead) == [RANGE_START + 2, RANGE_START + 4]
    assert [dead_letter["error"][: len(path)] for dead_letter in dead.values()] == [path, path]


@pytest.mark.parametrize("stamp_ms", [YEAR_10000_MS, 2**63 - 1])
def test_a_kafka_timestamp_out_of_range_is_a_dead_letter_with_that_error(stamp_ms: int, make_world: MakeWorld) -> None:
    world = make_world({})
    odd_twice = Record(b'{"ts":"0000-01-01T00:00:00Z"}', stamp_ms=stamp_ms)
    records = [Record(GOOD["iso"]), Record(GOOD["iso"], stamp_ms=stamp_ms), Record(b"?", stamp_ms=stamp_ms), odd_twice]
    main, dead = check(world, records, world.stage(records))
    assert list(main) == [RANGE_START]
    assert [dead_letter["kafka_timestamp"] for dead_letter in dead.values()] == [None, None, None]
    assert {dead_letter["error_class"] for dead_letter in dead.values()} == {"OutOfRange", "NotAnObject"}
    assert all(f"kafka_timestamp: {stamp_ms} milliseconds" in dead_letter["error"] for dead_letter in dead.values())


@pytest.mark.parametrize("stamp_ms", [-1, -(2**63)])
def test_a_missing_kafka_timestamp_is_null(stamp_ms: int, make_world: MakeWorld) -> None:
    world = make_world({})
    records = [Record(GOOD["iso"], stamp_ms=stamp_ms), Record(b"?", stamp_ms=stamp_ms)]
    main, dead = check(world, records, world.stage(records))
    assert [row["kafka_timestamp"] for row in (*main.values(), *dead.values())] == [None, None]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("struct<r: long not null, o: string>", b'{"r":1}'),
        ("struct<s: struct<r: string not null> not null>", b'{"s":{"r":"x"}}'),
        ("struct<l: list<long> not null, m: map<string, long> not null>", b'{"l":[1],"m":{"a":1}}'),
        ("struct<u: uuid not null>", b'{"u":"ffffffff-ffff-ffff-ffff-ffffffffffff"}'),
        ("list<struct<r: long not null>>", b'[{"r":1},null]'),
        ("map<string, struct<r: decimal(9,2) not null, b: boolean not null>>", b'{"a":null,"b":{"r":1.5,"b":true}}'),
        ("struct<o: struct<r: date not null>>", b'{"o":null}'),
    ],
)
def test_required_fields_inside_a_missing_optional_value_are_not_missed(
    kind: str, value: bytes, make_world: MakeWorld
) -> None:
    world = make_world({"x": kind})
    texts = [b"null", value, b"null", value, b"null"]
    records = [Record(b'{"ts":"2024-01-01T00:00:00Z","x":' + text + b"}") for text in texts]
    result = world.stage(records)
    main, dead = check(world, records, result)
    assert dead == {}
    assert [main[RANGE_START + i]["x"] is None for i in range(5)] == [True, False, True, False, True]
    assert main[RANGE_START + 1]["x"] == main[RANGE_START + 3]["x"]
    (file,) = result.files
    assert pq.read_schema(file.path).field("x").nullable


@pytest.mark.parametrize(
    ("kind", "lowest", "scale", "width"),
    [
        ("decimal(38,0)", -(10**38 - 1), 0, 10),
        ("decimal(5,2)", -(10**5 - 1), 2, 7),
        ("int", -(2**31), 0, 10),
        ("int", -(2**31), 0, 2**31 - 1),
        ("long", -(2**63), 0, 10),
    ],
)
def test_a_partition_value_that_its_type_cannot_hold_is_a_dead_letter(
    kind: str, lowest: int, scale: int, width: int, make_world: MakeWorld
) -> None:
    world = make_world({"n": kind}, partition_by=[f"truncate({width}, n)"])
    lowest_step = -(-lowest // width * width)

    unscaled = [0, lowest, lowest_step - 1, lowest_step, -lowest - 1]
    values = [f"{n}".encode() if not scale else f"{n / 10**scale:.{scale}f}".encode() for n in unscaled]
    records = [Record(b'{"ts":"2024-01-01T00:00:00Z","n":%s}' % value) for value in [*values, b"null"]]
    main, dead = check(world, records, world.stage(records))
    assert [offset - RANGE_START for offset in dead] == [1, 2]
    assert {dead_letter["error_class"] for dead_letter in dead.values()} == {"OutOfRange"}
    assert dead[RANGE_START + 1]["error"].endswith("is too low for the partition field n_trunc")
    assert main[RANGE_START + 3]["n"] == Decimal(values[3].decode())
    assert main[RANGE_START + 4]["n"] == Decimal(values[4].decode())
    assert world.reader is not None
    assert world.reader.readings == 1


# What no one knows about yet


class Poison:
    """Statistics that fail for files with certain values, like an unknown bug of a library."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, is_bad: Callable[[int], bool], error: Exception) -> None:
        self.calls = 0
        write = parquet.ParquetFile.write

        def failing(file: parquet.ParquetFile, table: pa.Table) -> None:
            self.calls += 1
            if "n" in table.column_names and any(n is not None and is_bad(n) for n in table["n"].to_pylist()):
                raise error
            write(file, table)

        monkeypatch.setattr(parquet.ParquetFile, "write", failing)


def numbered(count: int) -> list[Record]:
    return [Record(b'{"ts":"2024-01-01T00:00:00Z","n":%d}' % n) for n in range(count)]


@pytest.mark.parametrize("error", [ValueError("a bug"), OSError("Couldn't serialize thrift"), RecursionError("deep")])
def test_an_unknown_error_is_narrowed_down_to_its_record(
    error: Exception, make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world({"n": "long"})
    world.chunk_records = 64
    poison = Poison(monkeypatch, lambda n: n in (3, 100), error)
    records = numbered(200)
    main, dead = check(world, records, world.stage(records))
    assert list(dead) == [RANGE_START + 3, RANGE_START + 100]
    assert {dead_letter["error_class"] for dead_letter in dead.values()} == {"Unwritable"}
    assert dead[RANGE_START + 3]["error"] == f"{type(error).__name__}: {error}"
    assert [row["n"] for row in main.values()] == [n for n in range(200) if n not in (3, 100)]
    assert poison.calls < 50
    assert world.reader is not None
    assert world.reader.readings == 2 + bool(world.writers)


def test_many_records_that_break_a_library_cost_a_few_attempts_each(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world({"n": "long"})
    poison = Poison(monkeypatch, lambda n: n % 2 == 0, ValueError("a bug"))
    records = numbered(64)
    _, dead = check(world, records, world.stage(records))
    assert len(dead) == 32
    assert poison.calls <= 2 * 64 + 10


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left"), MemoryError(), pa.ArrowMemoryError("malloc"), SpecError("no")]
)
def test_an_error_of_the_environment_is_raised_at_once(
    error: Exception, make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world({"n": "long"})
    Poison(monkeypatch, lambda n: n == 3, error)
    with pytest.raises(type(error)):
        world.stage(numbered(10))
    assert world.files() == set()
    assert world.reader is not None
    assert world.reader.readings == 1


def test_a_storage_error_without_an_errno_rejects_no_record(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world({"n": "long"})
    close = parquet.ParquetFile.close

    def failing(file: parquet.ParquetFile) -> StagedFile:
        if file._io:
            raise ConnectionError("the bucket is away")
        return close(file)

    monkeypatch.setattr(parquet.ParquetFile, "close", failing)
    with pytest.raises(ConnectionError, match="the bucket is away"):
        world.stage(numbered(10))
    assert world.files() == set()


def test_an_error_that_concerns_the_whole_table_rejects_no_record(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world({"n": "long"})

    def failing(*_: Any) -> None:
        raise NotImplementedError("no statistics for this table")

    parquet._parse.cache_clear()
    monkeypatch.setattr(parquet, "compute_statistics_plan", failing)
    with pytest.raises(NotImplementedError, match="no statistics"):
        world.stage(numbered(10))
    assert world.files() == set()


def test_a_parquet_row_with_an_unrepresentable_value_is_reported_with_its_location(make_world: MakeWorld) -> None:
    world = make_world({"x": "date"})
    path = world.folder / "in.parquet"
    columns = {
        "kafka_topic": ["t", "t"],
        "kafka_partition": pa.array([0, 0], pa.int32()),
        "kafka_offset": [RANGE_START, RANGE_START + 1],
        "ts": pa.array([0, 0], pa.timestamp("us", "UTC")),
        "x": pa.array([0, 3_000_000], pa.date32()),
    }
    pq.write_table(pa.table(columns), path)
    of = OffsetRange("t", 0, RANGE_START, RANGE_START + 2)
    context = replace(world.context(), files=(RecordFile(str(path), path.stat().st_size, 0, (of,)),))
    with pytest.raises(SpecError, match=r"t\[0\]@101 cannot be backfilled: x: 3000000 days since 1970"):
        stage(context, StageTask(0, (of,)), attempt=0)


def test_copies_of_dead_letters_are_read_in_the_topics_format_with_their_keys_and_headers(
    make_world: MakeWorld,
) -> None:
    world = make_world({"x": "long", "user": "string", "trace": "binary"})
    dead_letters = pa.table(
        {
            "kafka_topic": ["t"],
            "kafka_partition": pa.array([0], pa.int32()),
            "kafka_offset": [RANGE_START],
            "kafka_timestamp": pa.array([0], pa.timestamp("us", "UTC")),
            "key": [b"ann"],
            "value": [b"1970-01-01T00:00:00Z,5"],
            "headers": [[{"name": "trace", "value": b"\xff"}]],
        }
    )
    path = world.folder / "in.letters"
    pq.write_table(dead_letters, path)
    of = OffsetRange("t", 0, RANGE_START, RANGE_START + 1)
    context = replace(
        world.context(),
        format={"type": "csv", "columns": ["ts", "x"]},
        key_header_columns={"user": None, "trace": "trace"},
        files=(RecordFile(str(path), path.stat().st_size, 0, (of,)),),
    )
    result = stage(context, StageTask(0, (of,)), attempt=0)
    (row,) = [row for file in result.files for row in pq.read_table(file.path).to_pylist()]
    assert (row["x"], row["user"], row["trace"]) == (5, "ann", b"\xff")


def test_a_replayed_dead_letter_keeps_its_framing_and_key_and_its_value_fills_no_key_column(
    make_world: MakeWorld,
) -> None:
    world = make_world({"x": "long", "user": "string"})
    value = b'{"ts": "1970-01-01T00:00:00Z", "x": 5, "user": "from-value"}'
    records = [(b"ann", b"\0\0\0\0\1" + value), (b"\xff", b"\0\0\0\0\1" + value), (b"ann", value)]
    dead_letters = pa.table(
        {
            "kafka_topic": ["t"] * 3,
            "kafka_partition": pa.array([0] * 3, pa.int32()),
            "kafka_offset": [RANGE_START + n for n in range(3)],
            "kafka_timestamp": pa.array([0] * 3, pa.timestamp("us", "UTC")),
            "key": [key for key, _ in records],
            "value": [value for _, value in records],
            "headers": pa.nulls(3, pa.list_(pa.struct({"name": pa.string(), "value": pa.binary()}))),
        }
    )
    path = world.folder / "in.letters"
    pq.write_table(dead_letters, path)
    of = OffsetRange("t", 0, RANGE_START, RANGE_START + 3)
    context = replace(
        world.context(),
        format={"type": "json", "framing": "confluent"},
        key_header_columns={"user": None},
        files=(RecordFile(str(path), path.stat().st_size, 0, (of,)),),
    )
    result = stage(context, StageTask(0, (of,)), attempt=0)
    rows: dict[str, list[Any]] = {"main": [], "dead-letters": []}
    for file in result.files:
        rows[file.target] += pq.read_table(file.path).to_pylist()
    assert [(row["x"], row["user"]) for row in rows["main"]] == [(5, "ann")]
    assert {row["kafka_offset"] - RANGE_START: row["error_class"] for row in rows["dead-letters"]} == {
        1: "InvalidUtf8",
        2: "NotFramed",
    }


def test_files_of_a_backfill_have_keys_as_columns_and_lines_of_json_whatever_the_topic_has(
    make_world: MakeWorld,
) -> None:
    world = make_world({"x": "long", "user": "string"})
    columns = {
        "kafka_topic": ["t"],
        "kafka_partition": pa.array([0], pa.int32()),
        "kafka_offset": [RANGE_START],
        "ts": pa.array([0], pa.timestamp("us", "UTC")),
        "x": [5],
        "user": ["ann"],
    }
    rows, lines = world.folder / "in.parquet", world.folder / "in.jsonl"
    pq.write_table(pa.table(columns), rows)
    coordinates = {"kafka_topic": "t", "kafka_partition": 0, "kafka_offset": RANGE_START + 1}
    lines.write_text(json.dumps({**coordinates, "ts": "1970-01-01T00:00:00Z", "x": 6, "user": "bob"}) + "\n")
    of = OffsetRange("t", 0, RANGE_START, RANGE_START + 2)
    context = replace(
        world.context(),
        format={"type": "csv", "columns": ["ts", "x"]},
        key_header_columns={"user": None},
        files=tuple(RecordFile(str(path), path.stat().st_size, 0, (of,)) for path in (rows, lines)),
    )
    result = stage(context, StageTask(0, (of,)), attempt=0)
    landed = [row for file in result.files for row in pq.read_table(file.path).to_pylist()]
    assert sorted((row["kafka_offset"], row["x"], row["user"]) for row in landed) == [
        (RANGE_START, 5, "ann"),
        (RANGE_START + 1, 6, "bob"),
    ]


# The dead letter itself


def test_a_dead_letter_stores_any_bytes(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world({})
    anything = bytes(range(256))
    records = [
        Record(None),
        Record(anything, anything),
        Record(b"x" * 20_000_000, b""),
        Record(b"", stamp_ms=2**63 - 1),
    ]
    error = "half a pair: \ud800" + "\U0001f600" * 5000

    def rejecting(chunk: RecordChunk) -> DecodedChunk:
        rejections = [Rejection(i, "Odd\udfff", error) for i in range(len(chunk))]
        empty = schema_to_pyarrow(iceberg.table_schema(world.spec), include_field_ids=True).empty_table()
        return DecodedChunk(empty, np.arange(0), rejections)

    monkeypatch.setattr(staging, "TargetDecoder", lambda _: rejecting)
    _, dead = check(world, records, world.stage(records))
    assert [dead_letter["value"] for dead_letter in dead.values()] == [r.value for r in records]
    assert [dead_letter["key"] for dead_letter in dead.values()] == [r.key for r in records]
    assert dead[RANGE_START]["error_class"] == "Odd\\udfff"
    assert dead[RANGE_START]["error"].startswith("half a pair: \\ud800")


def test_a_dead_letter_table_with_an_unknown_required_column_is_refused(make_world: MakeWorld) -> None:
    world = make_world({})
    context = world.context()
    strange = context.dead_letters.schema_json.replace('"name":"error"', '"name":"reason"')
    context = replace(
        context, targets={**context.targets, "dead-letters": replace(context.dead_letters, schema_json=strange)}
    )
    with pytest.raises(SpecError, match="column reason is required"):
        world.stage([Record(b"?")], context)


# The law

TYPES = [
    "boolean",
    "int",
    "long",
    "float",
    "double",
    "decimal(5,2)",
    "decimal(38,0)",
    "date",
    "timestamp",
    "timestamptz",
    "string",
    "uuid",
    "binary",
    "fixed[2]",
    "struct<r: long not null, d: date>",
    "struct<s: struct<r: timestamptz not null> not null>",
    "list<date>",
    "list<struct<r: long not null>>",
    "map<string, struct<r: date not null>>",
]
TRANSFORMS = {
    "int": ["x", "bucket(4, x)", "truncate(10, x)"],
    "long": ["x", "bucket(4, x)", "truncate(10, x)"],
    "decimal(5,2)": ["x", "bucket(4, x)", "truncate(10, x)"],
    "decimal(38,0)": ["x", "bucket(4, x)", "truncate(10, x)"],
    "date": ["x", "bucket(4, x)", "month(x)", "year(x)"],
    "timestamp": ["x", "day(x)", "hour(x)", "month(x)"],
    "timestamptz": ["x", "bucket(4, x)", "year(x)"],
    "string": ["x", "bucket(4, x)", "truncate(2, x)"],
    "binary": ["x", "bucket(4, x)", "truncate(2, x)"],
}
NINES = "9" * 38
VALUES = [
    "null", "true", "0", "1", "-1", "1.5", "-0.0", "1e308", "NaN", "-Infinity", "2147483647", "-2147483648",
    "9223372036854775807", "-9223372036854775808", "9223372036854775808", NINES, f"-{NINES}", "999.99", "-999.99",
    '""', '"a"', '"\\u0000"', '"\\ud83d\\ude00\\ud83d\\ude00"', '"\\udbff\\udfff"', '"/////w=="', '"AAA="', '"//8="',
    '"2024-02-29"', '"0001-01-01"', '"0000-12-31"', '"9999-12-31"', '"2023-02-29"',
    '"0001-01-01T00:00:00Z"', '"0000-12-31T23:59:59.999999Z"', '"9999-12-31T23:59:59.999999Z"',
    '"9999-12-31T23:59:59-05:00"', '"0001-01-01T00:00:00+05:00"', '"1969-12-31T23:59:59.999999Z"',
    '"00000000-0000-0000-0000-000000000000"', '"ffffffff-ffff-ffff-ffff-ffffffffffff"',
    "{}", "[]", '{"r":1}', '{"r":1,"d":"0000-01-01"}', '{"s":null}', '{"s":{"r":"2024-01-01T00:00:00Z"}}',
    '{"s":{"r":"0000-01-01T00:00:00Z"}}', '["2024-01-01",null]', '["0000-01-01"]', '[{"r":1},null]', '[{"r":null}]',
    '{"k":{"r":"2024-01-01"},"j":null}', '{"k":{"r":"0000-01-01"}}', '{"k":{}}',
]  # fmt: skip
MOMENTS = ["2024-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59-05:00", "0000-01-01T00:00:00Z"]
WHOLE = [None, b"", b"null", b"{", b"\xff", b"{}", b'{"ts":"2024-01-01T00:00:00Z"}{"ts":"2024-01-01T00:00:00Z"}']

records = st.builds(
    Record,
    st.one_of(
        st.sampled_from(WHOLE),
        st.builds(
            lambda ts, x: b'{"ts":"%s","x":%s}' % (ts.encode(), x.encode()),
            st.sampled_from([MOMENTS[0], *MOMENTS]),
            st.sampled_from(VALUES),
        ),
    ),
    st.sampled_from([None, b"", b"\xff\x00", b"k" * 1000]),
    st.sampled_from([0, -1, -(2**63), 1_700_000_000_000, YEAR_10000_MS - 1, YEAR_10000_MS, 2**63 - 1]),
)
layouts = st.sampled_from(TYPES).flatmap(
    lambda kind: st.tuples(st.just(kind), st.sampled_from([None, *TRANSFORMS.get(kind, [])]), st.booleans())
)


def fate(main: dict[int, Any], dead: dict[int, Any], offset: int, at: int) -> Any:
    """A record's row, as if it had been at another offset, or that it is a dead letter."""
    return repr({**main[offset], "kafka_offset": at}) if offset in main else sorted(dead[offset])


@settings(max_examples=max(10, settings().max_examples // 4))
@given(layouts, st.lists(records, min_size=1, max_size=6))
@example(("decimal(38,0)", "truncate(10, x)", True), [Record(b'{"ts":"2024-01-01T00:00:00Z","x":-%d}' % int(NINES))])
def test_each_record_lands_once_by_value_whatever_its_neighbours_are(
    layout: tuple[str, str | None, bool], some: list[Record]
) -> None:
    kind, transform, is_sorted = layout
    sort_by = ["x"] if is_sorted and "<" not in kind else []
    spec = declared({"x": kind}, partition_by=[transform] if transform else [], sort_by=sort_by)
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
        world = World(Path(folder, "all"), spec, monkeypatch)
        main, dead = check(world, some, world.stage(some))
        for i, record in enumerate(some):
            alone = World(Path(folder, str(i)), spec, monkeypatch)
            fates = check(alone, [record], alone.stage([record]))
            assert fate(main, dead, RANGE_START + i, 0) == fate(*fates, RANGE_START, 0)
            if RANGE_START + i in main and record.value is not None:
                assert_same_value(json.loads(record.value), main[RANGE_START + i])


def assert_same_value(sent: dict[str, Any], row: dict[str, Any]) -> None:
    """Compare JSON's value and the row's, as far as they have one form."""
    value, landed = sent.get("x"), row["x"]
    assert (value is None) == (landed is None)
    if isinstance(value, int | str | bool) and type(value) is type(landed):
        assert value == landed


# Progress


def test_progress_that_cannot_be_reported_does_not_fail_the_task(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world({"n": "long"})
    world.chunk_records = 1
    monkeypatch.setattr(reporter, "REPORT_INTERVAL_S", -1.0)

    def unreachable(*_: object) -> None:
        raise OSError(errno.EIO, "the state's folder is away")

    world.stage(numbered(0))
    assert world.reader is not None
    world.reader.chunks = [world._chunk([record], RANGE_START + i) for i, record in enumerate(numbered(3))]
    task = StageTask(0, (OffsetRange("t", 0, RANGE_START, RANGE_START + 3),))
    result = stage(world.context(), task, attempt=0, on_progress=unreachable)
    assert result.progress[0].records == 3
    assert [r.getMessage() for r in caplog.records].count(
        "cannot report the task's progress; the task continues: [Errno 5] the state's folder is away"
    ) == 1


def test_a_record_of_several_lines_lands_whole_with_its_lines_numbered_and_counts_once(make_world: MakeWorld) -> None:
    world = make_world({"user": "string"}, partition_by=("hour(ts)",), sort_by=("user desc",))
    source = world.spec.source.model_copy(update={"format": JsonFormat(lines=True)})
    world.spec = world.spec.model_copy(update={"source": source})
    world.chunk_records = 4
    moment = b'{"ts":"2024-01-01T0%d:00:00Z"}'
    records = [
        Record(b"\n".join([moment % 3, b"", moment % 1, moment % 2]), key=b"ann"),
        Record(b"\n".join([moment % 1, b'{"ts":"9999-12-31T23:59:59-05:00"}', moment % 2])),
        Record(moment % 1),
        Record(b"\n".join([moment % 1, moment % 1]), key=b"\xff"),
        Record(b"\n".join([moment % 1, b'{"ts":null}', b"{}"])),
        Record(b"\n".join([moment % 1, moment % 1]) + b"\n"),
        Record(None),
    ]
    plain = {
        "format": {"type": "json", "lines": True},
        "key_header_columns": {"user": None},
        "window_us": 3_600_000_000,
    }
    held = BitMap64([RANGE_START + 5]).serialize()
    context = replace(world.context(), **plain, existing_dead_letters={("t", 0): held})
    result = world.stage(records, context)
    landed, dead = [], rows(result, "dead-letters")
    for file in result.files:
        if file.target == "main":
            landed += pq.read_table(file.path).to_pylist()
    assert sorted((r["kafka_offset"] - RANGE_START, r["kafka_line"], r["ts"].hour, r["user"]) for r in landed) == [
        (0, 0, 3, "ann"),
        (0, 1, 1, "ann"),
        (0, 2, 2, "ann"),
        (2, 0, 1, None),
    ]
    assert {offset - RANGE_START: (row["error_class"], row["error"][:8]) for offset, row in dead.items()} == {
        1: ("OutOfRange", dead[RANGE_START + 1]["error"][:8]),
        3: ("InvalidUtf8", dead[RANGE_START + 3]["error"][:8]),
        4: ("MissingRequired", "line 2: "),
        6: ("Tombstone", dead[RANGE_START + 6]["error"][:8]),
    }
    assert dead[RANGE_START + 1]["value"] == records[1].value
    (progress,) = result.progress
    assert (progress.records, progress.rejected) == (2, 5), "one that was a dead letter before among them"
    assert sum((result.windows or {}).values()) == 4
    assert result.rejects.total == 4


def test_casts_are_counted_only_for_records_that_land(make_world: MakeWorld) -> None:
    """The second record has a time that no calendar has, and the third a value that is not cast."""
    world = make_world({"n": {"type": "int", "cast": "lenient"}})
    records = [
        Record(b'{"n": "1", "ts": "2024-01-01T00:00:00Z"}'),
        Record(b'{"n": "2", "ts": "9999-12-31T23:59:59-05:00"}'),
        Record(b'{"n": 3, "ts": "2024-01-01T00:00:00Z"}'),
        Record(b'{"n": "4", "ts": "2024-01-01T00:00:00Z"}'),
    ]
    found = world.stage(records)
    assert [p.rejected for p in found.progress] == [1]
    assert found.drift["main"].cast == {"n": 2}


def test_records_that_cannot_be_decoded_or_written_do_not_change_the_count_of_casts(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world({"n": {"type": "int", "cast": "lenient"}})
    decode = staging.TargetDecoder.__call__

    def failing(decoder: Any, chunk: RecordChunk) -> Any:
        if any(b'"13"' in (value or b"") for value in chunk.values):
            raise ValueError("a bug")
        return decode(decoder, chunk)

    monkeypatch.setattr(staging.TargetDecoder, "__call__", failing)
    Poison(monkeypatch, lambda n: n in (3, 4), ValueError("a bug"))
    records = [Record(b'{"ts":"2024-01-01T00:00:00Z","n":"%d"}' % n) for n in (1, 2, 3, 4, 13)]
    found = world.stage(records)
    assert [p.rejected for p in found.progress] == [3]
    assert found.drift["main"].cast == {"n": 2}
