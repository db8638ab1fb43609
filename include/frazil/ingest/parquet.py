"""Writes one Parquet file of a table, and collects the statistics for its manifest entry. Chooses the encoding of each
column from the file's first rows. A table property enables encodings v2 (DELTA_BINARY_PACKED, BYTE_STREAM_SPLIT), which
not all readers support.
"""

from __future__ import annotations

import base64
import dataclasses
import io as memory
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyiceberg.conversions import to_bytes
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.types import IcebergType

import frazil.pyiceberg_fixes.data_files  # noqa: F401 - patches the bounds of strings
from frazil.errors import SpecError
from frazil.ingest.arrow_values import VARIANT_GROUP, fill_hidden_nulls
from frazil.ingest.contract import Content, PartitionKey, StagedFile, Target, TargetTable, parse_schema
from frazil.ingest.formats.fields import find_defaults
from frazil.spec.iceberg import check_variants, variant_columns
from frazil.spec.property_rules import COMPRESSION_LEVELS, ENCODINGS_PROPERTY, find_writing_property_problem

MAX_SAMPLED_ROWS = 8_192
"""Maximum number of sampled rows, and of sampled elements, keys and values of lists and maps."""
MAX_BATCH_VALUES, MAX_BATCH_BYTES = 1_024, 2**20
"""Maximum number and bytes of values that Parquet's writer encodes before it checks whether a page is full."""
MINIBLOCK_VALUES = 32
"""Number of values of DELTA_BINARY_PACKED with the same bit width. Four miniblocks form a block."""
PACKED_INDICES = 8
"""Number of different indices that a dictionary page packs together (Parquet's RLE/bit-packing hybrid)."""
DELTA, SPLIT = "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"


@dataclass(frozen=True, slots=True)
class Encodings:
    """Arguments for `pyarrow.parquet.ParquetWriter`. Columns are named by their path."""

    use_dictionary: list[str]
    column_encoding: dict[str, str]
    batch_values: int = MAX_BATCH_VALUES


def choose_encodings(rows: pa.Table, *, allows_v2: bool) -> Encodings:
    """Choose encodings for a file that begins with these rows. `allows_v2` allows encodings of v2.

    Numbers and times get a dictionary only if it is smaller than every other encoding. Other columns get a dictionary,
    which Parquet's writer abandons if the dictionary grows too large.
    """
    use_dictionary: list[str] = []
    column_encoding: dict[str, str] = {}
    widest = 1.0
    sample = rows.slice(0, MAX_SAMPLED_ROWS)
    for field, column in zip(sample.schema, sample.columns, strict=True):
        # Text chunks are not combined, because they may be large.
        leaves = [(field.name, column)] if _is_text(field.type) else _leaves(field.name, column.combine_chunks())
        for path, values in leaves:
            other = None
            if _is_text(values.type):
                widest = max(widest, values.nbytes / max(len(values), 1))
            else:
                other = _better_encoding(values[:MAX_SAMPLED_ROWS])
            if other is None:
                use_dictionary.append(path)
            elif allows_v2:
                column_encoding[path] = other
    return Encodings(use_dictionary, column_encoding, max(1, min(MAX_BATCH_VALUES, int(MAX_BATCH_BYTES / widest))))


def _is_text(kind: pa.DataType) -> bool:
    return any(
        is_one(kind)
        for is_one in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    )


def _leaves(path: str, array: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    kind: Any = array.type
    if isinstance(array, pa.ExtensionArray):
        yield from _leaves(path, array.storage)
    elif pa.types.is_struct(kind):
        for part, values in zip(kind, array.flatten(), strict=True):
            yield from _leaves(f"{path}.{part.name}", values)
    elif pa.types.is_map(kind):
        yield from _leaves(f"{path}.key_value.{kind.key_field.name}", array.keys)
        yield from _leaves(f"{path}.key_value.{kind.item_field.name}", array.items)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        values = array.values[array.offsets[0].as_py() : array.offsets[-1].as_py()]  # Arrow cannot flatten some UUIDs
        yield from _leaves(f"{path}.list.{kind.value_field.name}", values)
    else:
        yield path, array


def _better_encoding(array: pa.Array) -> str | None:
    """Return an encoding that needs fewer bits than a dictionary, or None."""
    kind: Any = array.type
    real = pa.types.is_float32(kind) or pa.types.is_float64(kind)
    if not (real or pa.types.is_integer(kind) or pa.types.is_temporal(kind)):
        return None
    words = array.drop_null().view(pa.int32() if kind.bit_width == 32 else pa.int64()).to_numpy()
    if len(words) < 2:
        return None
    dictionary = _dictionary_bits(words)
    if real:  # so encoded, values compress to about half
        return SPLIT if dictionary > kind.bit_width / 2 else None
    return DELTA if dictionary > _delta_bits(words) else None


def _dictionary_bits(words: NDArray[Any]) -> float:
    """Estimate the bits per value with a dictionary. Assumes that runs of equal values take no space."""
    half = len(words) // 2
    distinct_in_half, distinct = (int(pc.count_distinct(pa.array(part)).as_py()) for part in (words[:half], words))
    changes = int(np.count_nonzero(words[1:] != words[:-1]))
    indices: float = (distinct - 1).bit_length() * min(1.0, PACKED_INDICES * changes / len(words))
    return indices + 8.0 * words.itemsize * (distinct - distinct_in_half) / (len(words) - half)


def _delta_bits(words: NDArray[Any]) -> float:
    # Differences wrap around, as in Parquet. Their distances from the minimum may wrap around too; they are unsigned.
    differences = np.diff(words)
    blocks = len(differences) // (4 * MINIBLOCK_VALUES)
    if blocks == 0:
        above = (differences - differences.min()).view(f"u{words.itemsize}")
        return int(above.max()).bit_length()
    table = differences[: blocks * 4 * MINIBLOCK_VALUES].reshape(blocks, 4 * MINIBLOCK_VALUES)
    above = (table - table.min(axis=1, keepdims=True)).view(f"u{words.itemsize}")
    greatest = above.reshape(-1, MINIBLOCK_VALUES).max(axis=1)
    return float(np.mean(np.ceil(np.log2(greatest.astype(np.float64) + 1))))


@dataclass(frozen=True)
class FileLayout:
    """Settings for a table's files, parsed once per task from the table's metadata."""

    target: Target
    schema: Schema
    spec: PartitionSpec
    order: SortOrder
    arrow_schema: pa.Schema
    row_group_bytes: int
    row_group_rows: int
    allows_v2: bool
    writer_options: Mapping[str, Any]
    statistics: Mapping[int, Any]
    """The statistics to collect, as PyIceberg plans them, by field id."""
    column_ids: Mapping[str, int]
    partition_types: tuple[IcebergType, ...]
    content: Content
    defaults: Mapping[str, pa.ChunkedArray]
    """The table's own defaults, by column name: see `find_defaults`."""

    def retained_bytes(self, written: int) -> int:
        """Estimate the memory (bytes) that an open file keeps after a row group of `written` Arrow bytes."""
        columns = len(self.schema.column_names)
        max_bytes = 2 * int(self.writer_options["dictionary_pagesize_limit"])
        return min(2 * written + columns * 400_000, columns * max_bytes)

    @classmethod
    def of(cls, table: TargetTable, target: Target) -> FileLayout:
        """Parse a table's metadata. Raises SpecError for a table property with an invalid value."""
        texts = (table.schema_json, table.spec_json, table.sort_order_json)
        own = sorted((name, text) for name, text in table.properties.items() if not name.startswith("frazil."))
        return replace(_parse(texts, tuple(own), table.content), target=target)


@lru_cache(maxsize=64)
def _parse(texts: tuple[str, str, str], all_properties: tuple[tuple[str, str], ...], content: Content) -> FileLayout:
    """Parse a schema, partition spec, sort order and properties. Cached for the next batches, and for tables alike."""
    schema, spec = parse_schema(texts[0]), PartitionSpec.model_validate_json(texts[1])
    check_variants(schema)  # another program may have added one since the table was opened
    properties = dict(all_properties)
    for name, text in all_properties:
        if problem := find_writing_property_problem(name, properties):
            raise SpecError(f"table property {name}: {text!r} {problem}")
    statistics, column_ids = map_variant_statistics(
        schema, compute_statistics_plan(schema, properties), parquet_path_to_id_mapping(schema)
    )
    return FileLayout(
        target="",  # `FileLayout.of` sets it
        schema=schema,
        spec=spec,
        order=SortOrder.model_validate_json(texts[2]),
        arrow_schema=variant_groups_schema(schema_to_pyarrow(schema, include_field_ids=True), variant_columns(schema)),
        row_group_bytes=int(properties.get("write.parquet.row-group-size-bytes", 128 * 2**20)),
        row_group_rows=int(properties.get("write.parquet.row-group-limit", 1_048_576)),
        allows_v2=properties.get(ENCODINGS_PROPERTY) == "v2",
        writer_options=_writer_options(properties),
        statistics=statistics,
        column_ids=column_ids,
        partition_types=tuple(field.field_type for field in spec.partition_type(schema).fields),
        content=content,
        defaults=find_defaults(schema),
    )


def _writer_options(properties: Mapping[str, str]) -> dict[str, Any]:
    codec = properties.get("write.parquet.compression-codec", "zstd").lower()
    codec = "none" if codec == "uncompressed" else codec
    level = properties.get("write.parquet.compression-level")
    return {
        "compression": codec,
        "compression_level": None if level is None or COMPRESSION_LEVELS[codec] is None else int(level),
        "data_page_size": int(properties.get("write.parquet.page-size-bytes", 2**20)),
        "max_rows_per_page": int(properties.get("write.parquet.page-row-limit", 20_000)),
        "dictionary_pagesize_limit": int(properties.get("write.parquet.dict-size-bytes", 2 * 2**20)),
        "store_schema": False,
        "store_decimal_as_integer": True,  # required by the Iceberg specification, appendix A
    }


class ParquetFile:
    """A Parquet file to which row groups are added until it is closed or removed. Without `io`, it is in memory."""

    def __init__(
        self, io: FileIO | None, path: str, layout: FileLayout, partition: tuple[Any, ...], *, encodings: Encodings
    ) -> None:
        self.path = path
        self._io = io
        self._layout = layout
        self._partition = partition
        self._sorted_runs = 0
        self._stream: Any = io.new_output(path).create(overwrite=True) if io else memory.BytesIO()
        self._writer = pq.ParquetWriter(
            self._stream,
            layout.arrow_schema,
            use_dictionary=encodings.use_dictionary,
            column_encoding=encodings.column_encoding or None,
            write_batch_size=encodings.batch_values,
            **layout.writer_options,
        )

    @property
    def bytes(self) -> int:
        size: int = self._stream.tell()
        return size

    def write(self, rows: pa.Table) -> None:
        """Write rows as one or more row groups. The rows of one call must be sorted."""
        self._sorted_runs += 1
        self._writer.write_table(fill_hidden_nulls(rows), row_group_size=self._layout.row_group_rows)

    def close(self) -> StagedFile:
        self._writer.close()
        layout = self._layout
        if names := variant_columns(layout.schema):
            columns = pa.schema([layout.arrow_schema.field(name) for name in names])
            self._stream.write(annotated_footer(self._writer.writer.metadata, columns))
        size = self.bytes
        self._stream.close()
        statistics = collect_statistics(self._writer.writer.metadata, layout)
        ordered = layout.order.order_id != UNSORTED_SORT_ORDER.order_id and self._sorted_runs == 1
        return StagedFile(
            target=layout.target,
            path=self.path,
            records=statistics["record_count"],
            bytes=size,
            schema_id=layout.schema.schema_id,
            spec_id=layout.spec.spec_id,
            sort_order_id=layout.order.order_id if ordered else None,
            partition=encode_partition(layout, self._partition),
            **{name: statistics[name] for name in ("column_sizes", *_COUNTS)},
            lower_bounds=_encode_bounds(statistics["lower_bounds"]),
            upper_bounds=_encode_bounds(statistics["upper_bounds"]),
            split_offsets=tuple(statistics["split_offsets"]),
            content=layout.content,
        )

    def remove(self) -> None:
        """Close and delete the file, even if incomplete. The caller may ignore errors."""
        try:
            self._writer.close()
        finally:
            self._stream.close()
            if self._io:
                self._io.delete(self.path)


def encode_partition(layout: FileLayout, values: tuple[Any, ...]) -> PartitionKey:
    return tuple(
        None if value is None else base64.b64encode(to_bytes(kind, value)).decode()  # type: ignore[arg-type]  # transforms give primitives
        for kind, value in zip(layout.partition_types, values, strict=True)
    )


def collect_statistics(metadata: pq.FileMetaData, layout: FileLayout) -> dict[str, Any]:
    """Return a file's statistics. Omits the bounds of columns with a time that Python cannot hold.

    A row that a merge copies may have such a time, before year 1 or after 9999, from another program.
    """
    plan, ids = dict(layout.statistics), dict(layout.column_ids)
    try:
        return data_file_statistics_from_parquet_metadata(metadata, plan, ids).to_serialized_dict()
    except OverflowError:
        for group, column in product(range(metadata.num_row_groups), range(metadata.num_columns)):
            chunk = metadata.row_group(group).column(column)
            if has_unreadable_bounds(chunk.statistics):
                field_id = ids[chunk.path_in_schema]
                plan[field_id] = replace(plan[field_id], mode=MetricsMode(MetricModeTypes.COUNTS))
        return data_file_statistics_from_parquet_metadata(metadata, plan, ids).to_serialized_dict()


def has_unreadable_bounds(statistics: pq.Statistics | None) -> bool:
    """Return whether a bound is a time outside the years 1 to 9999."""
    try:
        _ = statistics and statistics.has_min_max and (statistics.min, statistics.max)
    except OverflowError:
        return True
    return False


_COUNTS = ("value_counts", "null_value_counts", "nan_value_counts")


def _encode_bounds(bounds: Mapping[int, bytes]) -> dict[int, str]:
    return {field_id: base64.b64encode(bound).decode() for field_id, bound in bounds.items()}


def variant_groups_schema(schema: pa.Schema, names: tuple[str, ...]) -> pa.Schema:
    """Return the schema with these columns as groups. Iceberg gives their parts no field ids."""
    return pa.schema([field.with_type(VARIANT_GROUP) if field.name in names else field for field in schema])


def map_variant_statistics(schema: Schema, statistics: Mapping[int, Any], ids: Mapping[str, int]) -> tuple[Any, Any]:
    """Add variants' columns to PyIceberg's plans for statistics: only their sizes are collected."""
    statistics, ids = {**statistics}, {**ids}
    for name in variant_columns(schema):
        field_id = ids.pop(name)
        ids |= {f"{name}.{part.name}": field_id for part in VARIANT_GROUP}
        statistics[field_id] = dataclasses.replace(statistics[field_id], mode=MetricsMode(MetricModeTypes.NONE))
    return statistics, ids


def annotated_footer(metadata: pq.FileMetaData, columns: pa.Schema) -> bytes:
    """Return the footer of a Parquet file (with its length, and `PAR1`), in which these columns are variants."""
    sink = pa.BufferOutputStream()
    metadata.write_metadata_file(sink)
    footer = sink.getvalue().to_pybytes()[4:-8]
    for field in columns:
        name, field_id = field.name.encode(), int(field.metadata[b"PARQUET:field_id"])
        # Repetition, name, number of children and field id in Thrift's compact form. The field id is unique.
        element = b"\x35" + (b"\x02" if field.nullable else b"\x00") + b"\x18" + _varint(len(name)) + name
        element += b"\x15\x04\x45" + _varint(2 * field_id)
        if element + b"\0" not in footer:
            raise ValueError(f"PyArrow {pa.__version__} writes the column {field.name} in an unknown form")
        footer = footer.replace(element + b"\0", element + _ANNOTATION + b"\0", 1)
    return footer + len(footer).to_bytes(4, "little") + b"PAR1"  # type: ignore[no-any-return]


_ANNOTATION = b"\x1c\x0c\x20\x13\x01\x00\x00"
"""Thrift's compact form of a schema element's logical type: VARIANT, version 1."""


def _varint(value: int) -> bytes:
    octets = bytearray()
    while value > 127:
        octets.append(value & 127 | 128)
        value >>= 7
    return bytes([*octets, value])
