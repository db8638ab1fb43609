"""Writes one Parquet file of a table, and collects the statistics for its manifest entry."""

from __future__ import annotations

import base64
import io as memory
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.conversions import to_bytes
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
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
from frazil.ingest.arrow_values import fill_hidden_nulls
from frazil.ingest.contract import Content, PartitionKey, StagedFile, Target, TargetTable
from frazil.ingest.encodings import Encodings

ENCODINGS_PROPERTY = "write.parquet.format-version"
"""Table property for the encodings' version: v2 in frazil's new tables. The page format is always v1."""


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
    """Field ids by path in the file."""
    partition_types: tuple[IcebergType, ...]
    content: Content

    def retained_bytes(self, written: int) -> int:
        """Estimate the memory (bytes) that an open file keeps after a row group of `written` Arrow bytes."""
        columns = len(self.schema.column_names)
        max_bytes = 2 * int(self.writer_options["dictionary_pagesize_limit"])
        return min(2 * written + columns * 400_000, columns * max_bytes)

    @classmethod
    def of(cls, table: TargetTable, target: Target) -> FileLayout:
        """Parse a table's metadata. Raises SpecError for a table property with an invalid value."""
        properties = tuple(sorted(table.properties.items()))
        return _parse(target, table.schema_json, table.spec_json, table.sort_order_json, properties, table.content)


@lru_cache(maxsize=16)
def _parse(  # noqa: PLR0913, PLR0917 - what a layout depends on
    target: Target,
    schema_json: str,
    spec_json: str,
    sort_order_json: str,
    all_properties: tuple[tuple[str, str], ...],
    content: Content,
) -> FileLayout:
    """Parse a table's metadata. Cached for the next batches of the same table."""
    schema = Schema.model_validate_json(schema_json)
    spec = PartitionSpec.model_validate_json(spec_json)
    properties = dict(all_properties)
    version = properties.get(ENCODINGS_PROPERTY, "v1")
    if version not in ("v1", "v2"):
        raise SpecError(f"table property {ENCODINGS_PROPERTY}: {version!r} is not v1 or v2")
    return FileLayout(
        target=target,
        schema=schema,
        spec=spec,
        order=SortOrder.model_validate_json(sort_order_json),
        arrow_schema=schema_to_pyarrow(schema, include_field_ids=True),
        row_group_bytes=_positive_integer(properties, "write.parquet.row-group-size-bytes", 128 * 2**20),
        row_group_rows=_positive_integer(properties, "write.parquet.row-group-limit", 1_048_576),
        allows_v2=(version == "v2"),
        writer_options=_writer_options(properties),
        statistics=compute_statistics_plan(schema, properties),
        column_ids=parquet_path_to_id_mapping(schema),
        partition_types=tuple(field.field_type for field in spec.partition_type(schema).fields),
        content=content,
    )


def _positive_integer(properties: Mapping[str, str], name: str, default: int) -> int:
    """Return a table property, or Iceberg's `default` if it is not set. Raises SpecError for a value below 1."""
    try:
        value = int(properties.get(name, default))
    except ValueError:
        value = 0
    if value <= 0:
        raise SpecError(f"table property {name}: {properties[name]!r} is not an integer above 0")
    return value


def _writer_options(properties: Mapping[str, str]) -> dict[str, Any]:
    codec = properties.get("write.parquet.compression-codec", "zstd").lower()
    codec = "none" if codec == "uncompressed" else codec
    if codec not in ("none", "snappy", "gzip", "brotli", "lz4", "zstd"):
        raise SpecError(f"table property write.parquet.compression-codec: {codec!r} is not a codec; use zstd")
    level = properties.get("write.parquet.compression-level")
    return {
        "compression": codec,
        "compression_level": None if level is None or codec in ("none", "snappy", "lz4") else int(level),
        "data_page_size": _positive_integer(properties, "write.parquet.page-size-bytes", 2**20),
        "max_rows_per_page": _positive_integer(properties, "write.parquet.page-row-limit", 20_000),
        "dictionary_pagesize_limit": _positive_integer(properties, "write.parquet.dict-size-bytes", 2 * 2**20),
        "store_schema": False,
        "store_decimal_as_integer": True,  # required by the Iceberg specification, appendix A
    }


class ParquetFile:
    """A Parquet file to which row groups are added until it is closed or removed. Only in memory without `io`."""

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
        size = self.bytes
        self._stream.close()
        layout = self._layout
        statistics = data_file_statistics_from_parquet_metadata(
            self._writer.writer.metadata, dict(layout.statistics), dict(layout.column_ids)
        ).to_serialized_dict()
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
            column_sizes=statistics["column_sizes"],
            value_counts=statistics["value_counts"],
            null_value_counts=statistics["null_value_counts"],
            nan_value_counts=statistics["nan_value_counts"],
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
    """Encode partition values as Iceberg's single-value serialisation in base64."""
    return tuple(
        None if value is None else base64.b64encode(to_bytes(kind, value)).decode()  # type: ignore[arg-type]  # transforms give primitives
        for kind, value in zip(layout.partition_types, values, strict=True)
    )


def _encode_bounds(bounds: Mapping[int, bytes]) -> dict[int, str]:
    return {field_id: base64.b64encode(bound).decode() for field_id, bound in bounds.items()}
