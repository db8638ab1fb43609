"""Reads records from files as if Kafka had sent them. The files have the coordinates as additional columns.

JSON lines are decoded by the stream's decoder, and rejected lines become dead letters. Parquet files are already typed:
a file whose columns do not fit the table is refused as a whole. Its rows have no raw bytes for dead letters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from frazil.errors import SpecError
from frazil.ingest.binary_column import BinaryColumn
from frazil.ingest.chunk import Chunk
from frazil.ingest.contract import LETTERS, OffsetRange, RecordFile
from frazil.ingest.coordinates import NAMES
from frazil.ingest.formats import decoder
from frazil.ingest.kafka import CHUNK_BYTES, CHUNK_RECORDS
from frazil.ingest.parquet_columns import cast_columns, check_columns
from frazil.ingest.sealing import Unsealer, header_part, place_of

PARQUET = frozenset({".parquet"})
JSON_LINES = frozenset({".jsonl", ".ndjson", ".json"})
LETTER_COLUMNS = (*NAMES, "key", "value", "headers")
IDENTITY = NAMES[:3]
LETTER_ROWS = 10_000

_COORDINATES = Schema(
    NestedField(1, "kafka_topic", StringType(), required=True),
    NestedField(2, "kafka_partition", LongType(), required=True),  # many tools write every integer as a long
    NestedField(3, "kafka_offset", LongType(), required=True),
    NestedField(4, "kafka_timestamp", TimestamptzType(), required=False),
)


@dataclass(frozen=True, slots=True)
class RowChunk(Chunk):
    """Records that already are rows of the decoded columns. They have no raw values."""

    rows: pa.Table


@dataclass(frozen=True, slots=True)
class FileRecords:
    """Some records of one file, in the file's order."""

    coordinates: pa.Table
    """The columns `kafka_topic`, `kafka_partition`, `kafka_offset` and `kafka_timestamp`."""
    lines: list[bytes] | None = None
    rows: pa.Table | None = None
    letters: pa.Table | None = None
    """The columns `key`, `value` and `headers` of dead letters, as stored."""


def is_record_file(path: str) -> bool:
    return PurePosixPath(path).suffix in {*PARQUET, *JSON_LINES, LETTERS}


def coordinates(path: str, io: FileIO, schema: Schema) -> Iterator[pa.Table]:
    """Yield the coordinates of a file's records, in pieces. `schema` has the columns that decoding fills.

    Raises SpecError for a file, column or line that cannot be used, so that a file that passes can be staged.
    """
    with _named(path):
        if PurePosixPath(path).suffix == LETTERS:
            pieces = _letters(path, io)
        elif PurePosixPath(path).suffix in PARQUET:
            needed = [f.name for f in schema.fields if f.required]
            pieces = _parquet(path, io, schema, wanted=needed)
        else:
            pieces = _json_lines(path, io)
        for piece in pieces:
            yield piece.coordinates


class FileReader:
    """Reads the records of offset ranges from files. A topic-partition may have several ranges. A reader works only
    once.
    """

    notice: str | None = None
    on_read: Callable[[int], None] = staticmethod(lambda _: None)

    def __init__(
        self,
        files: Sequence[RecordFile],
        ranges: Sequence[OffsetRange],
        *,
        io: FileIO,
        schema: Schema,
        unseal: Unsealer | None = None,
    ) -> None:
        self._unseal = unseal or Unsealer(None, sensitive=False)
        self._files, self._io, self._schema = files, io, schema
        self._lowest, self._end = min((r.start for r in ranges), default=0), max((r.end for r in ranges), default=0)
        by_partition = groupby(sorted((r.topic, r.partition, r.start, r.end, i) for i, r in enumerate(ranges)), _place)
        self._ranges = {tp: np.array([r[2:] for r in of], np.int64).T for tp, of in by_partition}

    def __enter__(self) -> FileReader:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: each file is closed when its last record was read."""

    def __iter__(self) -> Iterator[Chunk]:
        """Yield the records of the ranges. Raises SpecError if a file no longer matches its coordinates."""
        for file in self._files:
            if not any(self._may_hold(r) for r in file.ranges):
                continue
            with _named(file.path):
                for records in self._read(file.path):
                    found = self._find(records.coordinates)
                    if (kept := np.flatnonzero(found >= 0)).size:
                        yield _chunk(records, kept, found[kept], self._unseal)

    def _read(self, path: str) -> Iterator[FileRecords]:
        if PurePosixPath(path).suffix == LETTERS:
            return _letters(path, self._io)
        if PurePosixPath(path).suffix not in PARQUET:
            return _json_lines(path, self._io)
        offset = ds.field("kafka_offset")
        within = (offset >= self._lowest) & (offset < self._end)
        return _parquet(path, self._io, self._schema, within=within)

    def _may_hold(self, some: OffsetRange) -> bool:
        starts, ends, _ = self._ranges.get((some.topic, some.partition), np.empty((3, 0), np.int64))
        return bool(((starts < some.end) & (some.start < ends)).any())

    def _find(self, table: pa.Table) -> NDArray[np.int32]:
        """Return, for each record, the index of its range; -1 if no range contains the record."""
        partitions, offsets = (table[name].to_numpy() for name in IDENTITY[1:])
        found = np.full(len(table), -1, np.int32)
        for (topic, partition), (starts, ends, index) in self._ranges.items():
            rows = np.flatnonzero(pc.equal(table["kafka_topic"], topic).to_numpy() & (partitions == partition))
            place = np.searchsorted(starts, offsets[rows], "right") - 1
            inside = (place >= 0) & (offsets[rows] < ends[place])
            found[rows[inside]] = index[place[inside]]
        return found


def _place(found: tuple[str, int, int, int, int]) -> tuple[str, int]:
    return found[:2]


def _chunk(records: FileRecords, kept: NDArray[np.int64], range_index: NDArray[np.int32], unseal: Unsealer) -> Chunk:
    table = records.coordinates.take(kept)
    micros = table["kafka_timestamp"].cast(pa.int64())
    stamps = pc.fill_null(pc.divide(micros, 1000), -1).to_numpy()
    if records.letters is not None:
        letters = _unsealed(records.letters.take(kept).to_pylist(), table, unseal)
        key, value = (BinaryColumn.of([letter[name] for letter in letters]) for name in ("key", "value"))
        headers = BinaryColumn.of(_packed([letter["headers"] for letter in letters]))
        return Chunk(value, key, range_index, table["kafka_offset"].to_numpy(), stamps, headers=headers)
    nothing = BinaryColumn.nulls(len(kept))
    values = nothing if records.lines is None else BinaryColumn.of([records.lines[i] for i in kept.tolist()])
    columns = (values, nothing, range_index, table["kafka_offset"].to_numpy(), stamps)
    return Chunk(*columns) if records.rows is None else RowChunk(*columns, records.rows.take(kept))


def _unsealed(letters: list[dict[str, Any]], coordinates: pa.Table, unseal: Unsealer) -> list[dict[str, Any]]:
    for letter, at in zip(letters, coordinates.select(IDENTITY).to_pylist(), strict=True):
        place = partial(place_of, at["kafka_topic"], at["kafka_partition"], at["kafka_offset"])
        for part in ("key", "value"):
            letter[part] = unseal(letter[part], place(part))
        for header in letter["headers"] or ():
            header["value"] = unseal(header["value"], place(header_part(header["name"])))
    return letters


def _parquet(
    path: str, io: FileIO, schema: Schema, *, wanted: Sequence[str] | None = None, within: ds.Expression | None = None
) -> Iterator[FileRecords]:
    """Yield a Parquet file's records. `wanted` are the columns to read besides the coordinates; by default all
    columns.
    """
    with io.new_input(path).open() as source:
        fragment = ds.ParquetFileFormat(coerce_int96_timestamp_unit="us").make_fragment(source)
        names = [f.name for f in schema.fields] if wanted is None else [*wanted]
        found = check_columns(path, fragment, schema, _COORDINATES)
        columns = [name for name in (*NAMES, *names) if name in found]
        for batch in fragment.to_batches(columns=columns, filter=within, batch_size=CHUNK_RECORDS):
            rows = pa.Table.from_batches([batch])
            table = cast_columns(path, rows, _COORDINATES)
            yield FileRecords(table, rows=cast_columns(path, rows, schema.select(*names)))


def _letters(path: str, io: FileIO) -> Iterator[FileRecords]:
    with io.new_input(path).open() as source:
        for batch in pq.ParquetFile(source).iter_batches(LETTER_ROWS):
            rows = pa.Table.from_batches([batch])
            yield FileRecords(rows.select(NAMES), letters=rows.select(LETTER_COLUMNS[len(NAMES) :]))


def _packed(headers: list[list[dict[str, Any]] | None]) -> list[bytes | None]:
    from frazil.ingest.headers import packed  # noqa: PLC0415 - loads Numba, which only a reader's process has

    return [packed((header["name"], header["value"]) for header in of or ()) for of in headers]


def _json_lines(path: str, io: FileIO) -> Iterator[FileRecords]:
    read, number = decoder("json", _COORDINATES, {}), 1
    for block in _lines(path, io):
        numbers = [i for i, line in enumerate(block) if line.strip()]
        lines = [block[i].strip() for i in numbers]
        decoded = read(Chunk.of_values(lines))
        if decoded.rejections:
            first = min(decoded.rejections, key=lambda r: r.index)
            raise SpecError(
                f"{path}, line {number + numbers[first.index]:,}: the record's coordinates cannot be read "
                f"({first.error}): a line is a JSON object with {', '.join(IDENTITY)}. Fix the line or remove it"
            )
        if lines:
            yield FileRecords(decoded.rows, lines=lines)
        number += len(block)


def _lines(path: str, io: FileIO) -> Iterator[list[bytes]]:
    """Yield the lines of a file, in one list per block that is read."""
    rest = b""
    with io.new_input(path).open() as source:
        while block := source.read(CHUNK_BYTES):
            *lines, rest = (rest + block).split(b"\n")
            yield lines
    yield [rest]


@contextmanager
def _named(path: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise SpecError(f"{path} cannot be read: {error}. Fix the file or leave it out") from error
