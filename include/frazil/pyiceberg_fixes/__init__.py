"""Patches values that PyIceberg reads or writes wrongly, in each process that imports this package.

It also parses equal schemas of manifests once. PyIceberg parses each file's schema, which costs more than a few rows.

PyIceberg 0.12 decodes doubles in manifests with the precision of a float: 0.1 becomes 0.10000000149011612, and 1e300
becomes infinity. Scans, merges and delete files would miss files with such partition values, and rewritten manifests
would store the wrong values. `data_files` also patches the values of data files. PyIceberg does not know that -0.0 is
below 0.0, so readers would skip a manifest with such a partition.

PyIceberg writes manifests whose schema declares the field ids of equality deletes as `long`, not `int`. Strict readers
refuse these manifests, even without such deletes.

PyIceberg refuses to write metadata of format version 3, and omits `next-row-id` from new metadata. It ignores the
fields that version 3 adds to manifests and manifest lists. It does not check a snapshot's sequence number. It does not
know the type `variant`. PyIceberg cannot scan such a column, but can scan the others.

gcsfs 2026.10 asks a gRPC service for the kind of a bucket, once for each client. If the service does not answer, each
call on an object waits for a minute. frazil does not need the kind.

The exceptions of a Hive metastore are immutable, so Python cannot raise them through a context manager: a TypeError
replaces them.
"""

from __future__ import annotations

import json
import os
from functools import lru_cache
from math import copysign
from types import FunctionType
from typing import Any, Literal

import pyiceberg.manifest
import pyiceberg.types
from pydantic import Field
from pyiceberg.avro import STRUCT_DOUBLE
from pyiceberg.avro import file as avro_file
from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.file import _SCHEMA_KEY, AvroFileHeader
from pyiceberg.avro.reader import DoubleReader, Reader
from pyiceberg.avro.resolver import resolve_reader
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    DataFile,
    FileFormat,
    ManifestEntry,
    ManifestFile,
    PartitionFieldStats,
    _ManifestCache,
)
from pyiceberg.schema import Schema
from pyiceberg.table import delete_file_index
from pyiceberg.table.metadata import TableMetadata, TableMetadataV3
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AddSnapshotUpdate, _apply_table_update, _TableMetadataUpdateContext
from pyiceberg.typedef import TableVersion
from pyiceberg.types import IcebergType, IntegerType, ListType, StringType, StructType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion


def _read(_: DoubleReader, decoder: BinaryDecoder) -> float:
    value: float = STRUCT_DOUBLE.unpack(decoder.read(8))[0]
    return value


_update_bounds = PartitionFieldStats.update


def _update(self: PartitionFieldStats, value: Any) -> None:
    _update_bounds(self, value)
    if value == 0 and isinstance(value, float):
        self._min = value if self._min == 0 and copysign(1, value) < 0 else self._min
        self._max = value if self._max == 0 and copysign(1, value) > 0 else self._max


PartitionFieldStats.update = _update  # type: ignore[method-assign]
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # gcsfs reads it when it is imported
DoubleReader.read = _read  # type: ignore[method-assign, assignment]


MAX_AVRO_SCHEMAS = 256
"""Maximum number of kept schemas of Avro files, and of their readers."""


@lru_cache(MAX_AVRO_SCHEMAS)
def _parse_avro_schema(text: str) -> Schema:
    return AvroSchemaConversion().avro_to_iceberg(json.loads(text))


def _get_schema(self: AvroFileHeader) -> Schema:
    if _SCHEMA_KEY not in self.meta:
        raise ValueError("No schema found in Avro file headers")
    return _parse_avro_schema(self.meta[_SCHEMA_KEY])


_readers: dict[tuple[Any, ...], tuple[Schema, Schema, Reader]] = {}
"""Readers, and their schemas: a kept schema keeps its `id()`."""


def _resolve_once(file: Schema, requested: Schema, types: dict[int, Any], enums: dict[int, Any]) -> Reader:
    key = (id(file), id(requested), *types.items(), *enums.items())
    if (cached := _readers.get(key)) is None:
        if len(_readers) >= MAX_AVRO_SCHEMAS:
            _readers.clear()
        cached = _readers[key] = file, requested, resolve_reader(file, requested, types, enums)
    return cached[2]


def construct_reader(file: Schema, types: dict[int, Any] | None = None) -> Any:
    """Return the reader of an Avro file with this schema. Kept for the next files."""
    return _resolve_once(file, file, types or {}, {})


AvroFileHeader.get_schema = _get_schema  # type: ignore[method-assign]
vars(avro_file).update(resolve_reader=_resolve_once, construct_reader=construct_reader)


def make_hive_errors_mutable() -> None:
    from hive_metastore import ttypes  # type: ignore[import-untyped]  # an extra

    for member in vars(ttypes).values():
        if isinstance(member, type) and issubclass(member, Exception):
            member.__setattr__ = Exception.__setattr__  # type: ignore[method-assign]


FIRST_ROW_ID_POSITIONS = {DataFile: 16, ManifestFile: 15}
_REFERENCED_POSITION = 17


def first_row_id(record: DataFile | ManifestFile) -> int | None:
    """Return the id of the first row as stored; None if a reader has to derive it."""
    row_id: int | None = record[FIRST_ROW_ID_POSITIONS[type(record)]]
    return row_id


def referenced_data_file(file: DataFile) -> str | None:
    """Return the path of the data file to which this deletion vector applies; None if it is another kind of file."""
    path: str | None = file[_REFERENCED_POSITION] if file.file_format is FileFormat.PUFFIN else None
    return path


def file_key(file: DataFile) -> str:
    """Return the path, which is unique except for deletion vectors: a Puffin file may have several."""
    data_file = referenced_data_file(file)
    return file.file_path if data_file is None else f"{file.file_path}#{data_file}"


def next_row_id(metadata: TableMetadata, parent: Snapshot | None = None) -> int | None:
    """Return the id of the next snapshot's first row, or after the snapshot `parent`; None below format version 3."""
    if metadata.format_version < 3:
        return None
    if parent is not None:
        return (parent.first_row_id or 0) + (parent.added_rows or 0)
    return getattr(metadata, "next_row_id", None) or 0


del TableMetadataV3.model_dump_json
TableMetadataV3.model_fields["next_row_id"].default = 0
TableMetadataV3.model_rebuild(force=True)

# Records in memory have the fields of version 3, which begin with those of version 2.
pyiceberg.manifest.DEFAULT_READ_VERSION = 3  # type: ignore[assignment]
for _kind in (DataFile, ManifestEntry, ManifestFile):
    _kind.from_args.__func__.__defaults__ = (3,)  # type: ignore[union-attr]

_INTS = ListType(element_id=136, element_type=IntegerType(), element_required=True)
for _version in (2, 3):
    # Manifests are read with other objects, whose `long` accepts both types.
    DATA_FILE_TYPE[_version] = StructType(
        *(
            f.model_copy(update={"field_type": _INTS}) if f.field_id == 135 else f
            for f in DATA_FILE_TYPE[_version].fields
        )
    )

_find_by_bounds = delete_file_index._referenced_data_file_path


def _referenced_data_file(delete_file: DataFile) -> str | None:
    return referenced_data_file(delete_file) or _find_by_bounds(delete_file)


delete_file_index._referenced_data_file_path = _referenced_data_file  # deletion vectors have no bounds

_keep_manifest = _ManifestCache.get_or_cache


def _keep_latest(self: _ManifestCache, manifest_file: ManifestFile) -> ManifestFile:
    """Return the cached manifest, unless it was cached before an upgrade to version 3 and has no row id."""
    retained = _keep_manifest(self, manifest_file)
    return retained if first_row_id(retained) == first_row_id(manifest_file) else manifest_file


_ManifestCache.get_or_cache = _keep_latest  # type: ignore[method-assign]

_add_snapshot = _apply_table_update.dispatch(AddSnapshotUpdate)


def _add_newest_snapshot(
    update: AddSnapshotUpdate, base_metadata: TableMetadata, context: _TableMetadataUpdateContext
) -> TableMetadata:
    number = update.snapshot.sequence_number
    if base_metadata.format_version == 3 and update.snapshot.parent_snapshot_id is not None and number is not None:
        last = base_metadata.last_sequence_number
        if number <= last:
            raise ValueError(
                f"Cannot add snapshot with sequence number {number} older than last sequence number {last}"
            )
    return _add_snapshot(update, base_metadata, context)


_apply_table_update.register(AddSnapshotUpdate, _add_newest_snapshot)


class VariantType(StringType):
    """A variant. In memory, it is its JSON text, so it is a string for decoders and transforms.

    frazil encodes the text before it writes the rows (`frazil.ingest.variants`).
    """

    root: Literal["variant"] = Field(default="variant")  # type: ignore[assignment]

    def minimum_format_version(self) -> TableVersion:
        return 3


def _parse(cls: type[IcebergType], v: Any, handler: Any) -> IcebergType:
    """Parse a type. This code runs inside `pyiceberg.types`, so it uses the globals of that module."""
    return VariantType() if v == "variant" and cls is not VariantType else _parse_others(cls, v, handler)  # type: ignore[name-defined] # noqa: F821


# Compiled Pydantic models refer to the function object, so only its code can be replaced.
_parser: Any = IcebergType.handle_primitive_type.__func__
_names = vars(pyiceberg.types)
_names |= {"VariantType": VariantType, "_parse_others": FunctionType(_parser.__code__, _names)}
_parser.__code__ = _parse.__code__
