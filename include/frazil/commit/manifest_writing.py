"""Writes manifests of data files or delete files.

Caches schemas and encoders, which PyIceberg builds again for each manifest. Copies the entries of a replaced manifest
without decoding, because the entries may have fields that PyIceberg does not know. Both share the encoding, so they are
in one module.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, Self

from pyiceberg.avro.codecs import AVRO_CODEC_KEY, CODEC_MAPPING_ICEBERG_TO_AVRO, AvroCompressionCodec
from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.file import MAGIC, META_SCHEMA, SYNC_SIZE, AvroFile, AvroFileHeader, AvroOutputFile, D
from pyiceberg.avro.resolver import construct_writer, resolve_writer
from pyiceberg.avro.writer import IntegerWriter, OptionWriter, Writer
from pyiceberg.io import FileIO, OutputFile
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import VoidTransform
from pyiceberg.typedef import TableVersion
from pyiceberg.types import BooleanType, NestedField, StructType, UnknownType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from frazil.errors import SchemaIncompatible
from frazil.ingest.contract import StagedFile, parse_schema
from frazil.pyiceberg_fixes import construct_reader, file_key, first_row_id
from frazil.table.faster_commits import BoundedCache
from frazil.table.object_store import count_request

IN_MEMORY: TableVersion = 3
FIRST_ROW_ID = 142
"""Field id of `first_row_id` in a data file."""

_AVRO_CODECS: dict[str, AvroCompressionCodec] = {
    "gzip": "deflate",
    "deflate": "deflate",
    "zstd": "zstandard",
    "snappy": "snappy",
    "uncompressed": "null",
}


@dataclass(frozen=True, slots=True)
class ManifestLayout:
    spec: PartitionSpec
    schema: Schema

    @classmethod
    def for_staged_file(cls, file: StagedFile, metadata: TableMetadata) -> ManifestLayout:
        """Return a staged file's layout. Raises SchemaIncompatible if the table no longer has its schema."""
        if file.content == "position-deletes":  # the data file may be older than the newest schema and spec
            return cls.for_spec(metadata.specs()[file.spec_id], metadata)
        schema = metadata.schema_by_id(file.schema_id)
        if schema is None:
            raise SchemaIncompatible(f"the table no longer has schema {file.schema_id} of staged file {file.path}")
        return cls(metadata.specs()[file.spec_id], schema)

    @classmethod
    def for_spec(cls, spec: PartitionSpec, metadata: TableMetadata) -> ManifestLayout:
        """Return a layout for this spec. Raises SchemaIncompatible if no schema has the columns of its values."""
        if (schema := schema_of_spec(spec, metadata)) is None:
            raise SchemaIncompatible(
                f"another program removed the schemas with the columns of the table's partition spec {spec.spec_id}. "
                "Rewrite the files of this spec with a query engine, then start again"
            )
        return cls(spec, schema)


def schema_of_spec(spec: PartitionSpec, metadata: TableMetadata) -> Schema | None:
    """Return the newest schema with the columns of a spec's values, if any. Void fields need no column."""
    sources = {f.source_id for f in spec.fields if not isinstance(f.transform, VoidTransform)}
    newest = (metadata.schema(), *reversed(metadata.schemas))
    return next((schema for schema in newest if sources <= schema.field_ids), None)


MAX_CACHED_ENCODINGS = 64
MAX_REMEMBERED_BYTES = 64 * 2**20
"""Maximum memory (bytes) for manifest entries: about 1 KB per file, and 40 bytes per column of a file."""
MAX_REMEMBERED_FILES = 32
"""Maximum number of a commit's files whose entries are kept in memory."""
MAX_REMEMBERED_ENTRIES = 1_024
"""Maximum number of entries of a manifest that is kept in memory. Larger manifests are not merged again."""


@dataclass(frozen=True, slots=True)
class _ManifestEncoding:
    schema: Schema
    header: Mapping[str, str]
    data_file: Writer


_encodings = BoundedCache[_ManifestEncoding](MAX_CACHED_ENCODINGS)


class _Writer(ManifestWriterV2):
    """Writes entries with encoded data files. PyIceberg's writer supports neither delete files nor format version 3."""

    def __init__(self, layout: ManifestLayout, content: ManifestContent, new: NewManifest) -> None:
        count_request("writes", new.path)
        output, metadata = new.table.io.new_output(new.path), new.table.metadata
        super().__init__(layout.spec, layout.schema, output, new.snapshot_id, avro_codec(metadata))
        self._version, self._content = metadata.format_version, content

    def content(self) -> ManifestContent:
        return self._content

    @property
    def version(self) -> TableVersion:
        return self._version

    def write(self, entries: Iterable[ManifestEntry], encoded: EncodedFiles) -> ManifestFile:
        """Write entries, which must be in the order of their encoded data files."""
        self.encoded = encoded
        with self:
            for entry in entries:
                self.add_entry(entry)
        return self.to_manifest_file()

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        writer: Any = _EntryWriter(iter(self.encoded.data_files))
        header = self.encoded.header
        avro = AvroEncoding(self.encoded.schema, "manifest_entry", header[SCHEMA_KEY], writer)
        return PreparedAvroFile(self._output_file, avro, metadata={**header, AVRO_CODEC_KEY: self._compression})

    def encode(self, files: Iterable[DataFile]) -> EncodedFiles:
        encoding = self._encoding()
        return EncodedFiles(encoding.schema, encoding.header, tuple(_encode(encoding.data_file, f) for f in files))

    def _entry_schema(self, format_version: TableVersion) -> Schema:
        """Return the entries' schema. Partition values are optional, even of a required column."""
        fields = self._spec.partition_type(self._schema).fields
        # A void field whose column was dropped has no type. Avro has no optional null.
        types = (BooleanType() if isinstance(f.field_type, UnknownType) else f.field_type for f in fields)
        values = [NestedField(f.field_id, f.name, kind, required=False) for f, kind in zip(fields, types, strict=True)]
        data_file = data_file_with_partition(StructType(*values), format_version)
        return manifest_entry_schema_with_data_file(format_version, data_file)

    def _encoding(self) -> _ManifestEncoding:
        header = {**self._meta, "content": "deletes" if self._content is ManifestContent.DELETES else "data"}
        name = str(header)  # tables of one route have equal schemas and specs
        encoding = _encodings.get(name)
        if encoding is None:
            written, in_memory = self._entry_schema(self.version), self._entry_schema(IN_MEMORY)
            avro = AvroEncoding.resolve(written, in_memory, name="manifest_entry")
            data_file = avro.writer.field_writers[-1][1]  # type: ignore[attr-defined]
            encoding = _ManifestEncoding(written, {**header, SCHEMA_KEY: avro.schema_json}, data_file)
            _encodings.keep(name, encoding)
        return encoding


@dataclass(frozen=True, slots=True)
class NewManifest:
    """The path, table and snapshot of a manifest to write."""

    path: str
    table: Table
    snapshot_id: int


def write_added(
    files: Sequence[DataFile], layout: ManifestLayout, content: ManifestContent, new: NewManifest
) -> ManifestFile:
    """Write a manifest of new files. Keeps the entries of few files in memory for a later merge."""
    writer = _Writer(layout, content, new)
    encoded = writer.encode(files)
    manifest = writer.write((_entry(file, ManifestEntryStatus.ADDED, new.snapshot_id) for file in files), encoded)
    if len(files) <= MAX_REMEMBERED_FILES:
        names = ("content", "file_path", "partition", "record_count")
        slim = (DataFile.from_args(**{name: getattr(file, name) for name in names}) for file in files)
        entries = tuple(_entry(file, ManifestEntryStatus.ADDED, new.snapshot_id) for file in slim)
        recently_written.keep(new.path, WrittenEntries(encoded, entries))
    return manifest


def write_with_removals(
    removed: Collection[str], manifest: ManifestFile, entries: Sequence[ManifestEntry], new: NewManifest
) -> ManifestFile:
    """Rewrite a manifest with its live `entries`. Files with the keys `removed` get deleted entries."""
    copied = EncodedFiles.from_manifest(manifest, new.table.io)
    spec, metadata = new.table.metadata.specs()[manifest.partition_spec_id], new.table.metadata
    layout = copied.layout(spec, metadata) if copied else ManifestLayout.for_spec(spec, metadata)
    writer = _Writer(layout, manifest.content, new)
    encoded = copied.with_row_ids(manifest, entries) if copied else writer.encode(e.data_file for e in entries)
    written = (_updated_entry(e, new.snapshot_id, is_deleted=file_key(e.data_file) in removed) for e in entries)
    return writer.write(written, encoded)


def write_merged(
    merged: Mapping[ManifestFile, WrittenEntries], new: NewManifest, *, removed: Collection[str] = ()
) -> ManifestFile:
    """Merge manifests of one kind into one. Files with the keys `removed` become deleted entries."""
    first = next(iter(merged))
    entries = [entry for manifest, written in merged.items() for entry in written.existing(manifest)]
    copies = [written.copied.with_row_ids(manifest, written.entries) for manifest, written in merged.items()]
    copied = replace(copies[0], data_files=tuple(data_file for copy in copies for data_file in copy.data_files))
    leaves = [file_key(entry.data_file) in removed for entry in entries]
    pairs = zip(entries, leaves, strict=True)
    written = [_updated_entry(entry, new.snapshot_id, is_deleted=True) if drop else entry for entry, drop in pairs]
    layout = copied.layout(new.table.metadata.specs()[first.partition_spec_id], new.table.metadata)
    made = _Writer(layout, first.content, new).write(written, copied)
    stays = [not drop for drop in leaves]
    if any(stays) and sum(stays) < MAX_REMEMBERED_ENTRIES:
        remaining = replace(copied, data_files=tuple(compress(copied.data_files, stays)))
        recently_written.keep(new.path, WrittenEntries(remaining, tuple(compress(entries, stays))))
    if not removed:  # a snapshot with removals has one attempt, and the next one may merge these manifests
        for manifest in merged:
            recently_written.forget(manifest.manifest_path)
    return made


def _updated_entry(entry: ManifestEntry, snapshot_id: int, *, is_deleted: bool) -> ManifestEntry:
    status = ManifestEntryStatus.DELETED if is_deleted else ManifestEntryStatus.EXISTING
    numbers = entry.sequence_number, entry.file_sequence_number
    return _entry(entry.data_file, status, snapshot_id if is_deleted else entry.snapshot_id, numbers)


def _entry(
    file: DataFile,
    status: ManifestEntryStatus,
    snapshot_id: int | None,
    numbers: tuple[int | None, int | None] = (None, None),
) -> ManifestEntry:
    """Return an entry with `numbers`, the sequence numbers of its data and of its file."""
    return ManifestEntry(status, snapshot_id, *numbers, file)


def manifest_content(content: DataFileContent) -> ManifestContent:
    return ManifestContent.DATA if content is DataFileContent.DATA else ManifestContent.DELETES


def metadata_folder(metadata: TableMetadata) -> str:
    configured = metadata.properties.get(TableProperties.WRITE_METADATA_PATH)
    return configured.rstrip("/") if configured else f"{metadata.location.rstrip('/')}/metadata"


def avro_codec(metadata: TableMetadata) -> AvroCompressionCodec:
    name = metadata.properties.get(TableProperties.WRITE_AVRO_COMPRESSION, "gzip")
    return _AVRO_CODECS.get(name, "deflate")


_OPTIONAL_LONG = OptionWriter(IntegerWriter())  # type: ignore[no-untyped-call]
_FIELDS = [(0, True), (1, False), (3, False), (4, False), (2, True)]
"""Field ids of a manifest entry since format version 2, and whether each is required. The data file comes last."""


@dataclass(frozen=True, slots=True)
class EncodedFiles:
    """The encoded data files of a manifest's entries, with the manifest's schema and header."""

    schema: Schema
    header: Mapping[str, str]
    data_files: tuple[bytes, ...]

    def layout(self, spec: PartitionSpec, metadata: TableMetadata) -> ManifestLayout:
        """Return the layout of copies, with the manifest's own schema if the table has none for the spec."""
        return ManifestLayout(spec, schema_of_spec(spec, metadata) or parse_schema(self.header["schema"]))

    @property
    def kind(self) -> frozenset[tuple[str, str]]:
        """Properties that manifests must share to be merged: the whole header except the codec."""
        return frozenset((key, text) for key, text in self.header.items() if key != AVRO_CODEC_KEY)

    @classmethod
    def from_manifest(cls, manifest: ManifestFile, file_io: FileIO) -> EncodedFiles | None:
        """Copy a manifest's live entries. Returns None for format version 1."""
        file = _Blocks(file_io.new_input(manifest.manifest_path))
        with file:
            if [(field.field_id, field.required) for field in file.schema.fields] != _FIELDS:
                return None
            readers = [reader for _, reader in construct_reader(file.schema).field_readers]
            data_files = []
            for count, block in file.blocks():
                decoder = new_decoder(block)
                for _ in range(count):
                    status, *_ = (reader.read(decoder) for reader in readers[:-1])
                    start = decoder.tell()
                    readers[-1].read(decoder)  # PyIceberg cannot skip maps
                    if status != ManifestEntryStatus.DELETED:
                        data_files.append(block[start : decoder.tell()])
            return cls(file.schema, file.header.meta, tuple(data_files))

    def with_row_ids(self, manifest: ManifestFile, entries: Iterable[ManifestEntry]) -> EncodedFiles:
        """Return copied entries with explicit row ids. Without these, another manifest would derive other ids."""
        next_id = first_row_id(manifest)
        if next_id is None:
            return self
        copied = self if self._row_id_index is not None else self._with_row_id_field()
        index = copied._row_id_index or 0
        *_, (_, of_data_file) = construct_reader(copied.schema).field_readers
        readers = [reader for _, reader in of_data_file.field_readers]
        data_files = []
        for data_file, entry in zip(copied.data_files, entries, strict=True):
            decoder = new_decoder(data_file)
            for reader in readers[:index]:
                reader.read(decoder)
            start = decoder.tell()
            if readers[index].read(decoder) is None:
                data_file = data_file[:start] + _encode(_OPTIONAL_LONG, next_id) + data_file[decoder.tell() :]  # noqa: PLW2901
                next_id += entry.data_file.record_count
            data_files.append(data_file)
        return replace(copied, data_files=tuple(data_files))

    @property
    def _row_id_index(self) -> int | None:
        fields = self.schema.as_struct().fields[-1].field_type.fields  # type: ignore[attr-defined]
        return next((index for index, field in enumerate(fields) if field.field_id == FIRST_ROW_ID), None)

    def _with_row_id_field(self) -> EncodedFiles:
        schema = json.loads(self.header[SCHEMA_KEY])
        field = {"name": "first_row_id", "type": ["null", "long"], "default": None, "field-id": FIRST_ROW_ID}
        schema["fields"][-1]["type"]["fields"].append(field)
        header = {**self.header, SCHEMA_KEY: json.dumps(schema), "format-version": "3"}
        null = b"\0"
        return EncodedFiles(
            AvroSchemaConversion().avro_to_iceberg(schema), header, tuple(file + null for file in self.data_files)
        )


def _encode(writer: Writer, value: Any) -> bytes:
    buffer = io.BytesIO()
    writer.write(BinaryEncoder(buffer), value)
    return buffer.getvalue()


@dataclass(frozen=True, slots=True)
class _EntryWriter:
    """Replaces Avro's record writer. Entries must be written in the order of their encoded data files."""

    data_files: Iterator[bytes]

    def write(self, encoder: BinaryEncoder, entry: ManifestEntry) -> None:
        encoder.write_int(entry.status)
        for number in (entry.snapshot_id, entry.sequence_number, entry.file_sequence_number):
            _OPTIONAL_LONG.write(encoder, number)
        encoder.write(next(self.data_files))


@dataclass(frozen=True, slots=True)
class WrittenEntries:
    """The entries of a manifest that this process wrote. The files' statistics are only in `copied`."""

    copied: EncodedFiles
    entries: tuple[ManifestEntry, ...]

    def existing(self, manifest: ManifestFile) -> Iterator[ManifestEntry]:
        """Yield the entries as existing files. Added files get the manifest's snapshot id and sequence number."""
        for entry in self.entries:
            if entry.status is ManifestEntryStatus.EXISTING:
                yield entry
            else:
                numbers = manifest.sequence_number, manifest.sequence_number
                yield _entry(entry.data_file, ManifestEntryStatus.EXISTING, manifest.added_snapshot_id, numbers)

    def memory_bytes(self) -> int:
        return sum(1_000 + len(data_file) for data_file in self.copied.data_files)


recently_written = BoundedCache[WrittenEntries](MAX_REMEMBERED_BYTES, WrittenEntries.memory_bytes)


class _Blocks(AvroFile[ManifestEntry]):
    """An Avro file whose blocks are read and decompressed, but not decoded."""

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        codec = self.header.compression_codec()
        while True:
            try:
                count = self.decoder.read_int()
            except EOFError:
                return
            block = self.decoder.read_bytes()
            yield count, codec.decompress(block) if codec else block
            if self.decoder.read(SYNC_SIZE) != self.header.sync:
                raise ValueError(f"{self.input_file.location}: a block does not end with the file's sync marker")


SCHEMA_KEY = "avro.schema"
_HEADER_WRITER = construct_writer(META_SCHEMA)


@dataclass(frozen=True, slots=True)
class AvroEncoding:
    """Schema, schema JSON and encoder of one kind of Avro file. Threads may share it."""

    file_schema: Schema
    schema_name: str
    schema_json: str
    writer: Writer

    @classmethod
    def resolve(cls, file_schema: Schema, record_schema: Schema, *, name: str) -> Self:
        text = json.dumps(AvroSchemaConversion().iceberg_to_avro(file_schema, schema_name=name))
        return cls(file_schema, name, text, resolve_writer(record_schema=record_schema, file_schema=file_schema))


class PreparedAvroFile(AvroOutputFile[D]):
    """An Avro output file with a prepared encoding. Only the sync marker differs from PyIceberg's bytes."""

    def __init__(self, output_file: OutputFile, encoding: AvroEncoding, *, metadata: Mapping[str, str]) -> None:
        self.output_file, self.file_schema, self.schema_name = output_file, encoding.file_schema, encoding.schema_name
        self.sync_bytes, self.writer = os.urandom(SYNC_SIZE), encoding.writer
        self.metadata, self._schema_json = dict(metadata), encoding.schema_json

    def __enter__(self) -> Self:
        self.output_stream = self.output_file.create(overwrite=True)
        self.encoder = BinaryEncoder(self.output_stream)
        codec = self.metadata[AVRO_CODEC_KEY]
        codec = CODEC_MAPPING_ICEBERG_TO_AVRO.get(codec) or codec
        meta = {**self.metadata, SCHEMA_KEY: self._schema_json, AVRO_CODEC_KEY: codec}
        _HEADER_WRITER.write(self.encoder, AvroFileHeader(MAGIC, meta, self.sync_bytes))
        return self

    def __exit__(self, *error: Any) -> None:
        self._length = self.tell()
        # PyIceberg asks this for the length. The file itself would need a request.
        self.output_file = self  # type: ignore[assignment]
        super().__exit__(*error)

    def __len__(self) -> int:
        return self._length
