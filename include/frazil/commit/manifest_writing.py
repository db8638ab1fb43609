"""Writes manifests of data files or of delete files, with the partition spec and schema of these files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pyiceberg.avro.codecs import AVRO_CODEC_KEY, AvroCompressionCodec
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.io import OutputFile
from pyiceberg.manifest import (
    DEFAULT_READ_VERSION,
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
    ManifestWriterV2,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import TableVersion
from pyiceberg.types import NestedField, StructType

from frazil.commit.avro_forms import SCHEMA_KEY, AvroForm, FormedAvroFile
from frazil.commit.counted_output import CountedOutput
from frazil.commit.manifest_copying import CopiedEntries
from frazil.errors import SchemaIncompatible
from frazil.ingest.contract import StagedFile
from frazil.table.recent import Recent

FORMAT_VERSION: Literal[2] = 2

_AVRO_CODECS: dict[str, AvroCompressionCodec] = {
    "gzip": "deflate",
    "deflate": "deflate",
    "zstd": "zstandard",
    "snappy": "snappy",
    "uncompressed": "null",
}


@dataclass(frozen=True, slots=True)
class Layout:
    """The partition spec and schema that a manifest is written with, which are those of its files."""

    spec: PartitionSpec
    schema: Schema

    @classmethod
    def of_staged(cls, file: StagedFile, metadata: TableMetadata) -> Layout:
        if file.content == "position-deletes":  # of a data file that may be older than the newest schema, and its spec
            return cls.of_spec(metadata.specs()[file.spec_id], metadata)
        schema = metadata.schema_by_id(file.schema_id)
        if schema is None:
            raise SchemaIncompatible(f"schema {file.schema_id} of staged file {file.path} is no longer the table's")
        return cls(metadata.specs()[file.spec_id], schema)

    @classmethod
    def of_spec(cls, spec: PartitionSpec, metadata: TableMetadata) -> Layout:
        """Return a layout with this spec, and with the current schema or else the newest schema that has all of the
        spec's columns.
        """
        sources = {f.source_id for f in spec.fields}
        newest = [metadata.schema(), *reversed(metadata.schemas)]
        return cls(spec, next(s for s in newest if sources <= set(index_by_id(s))))


MAX_CACHED_FORMS = 64
"""Number of manifest forms to cache: two kinds for each of a stream's tables."""


@dataclass(frozen=True, slots=True)
class _Form:
    """What all manifests with one layout, content and codec share: their Avro form and header metadata."""

    layout: Layout
    avro: AvroForm
    metadata: Mapping[str, str]


_forms = Recent[_Form](MAX_CACHED_FORMS)


class _Writer(ManifestWriterV2):
    """Writes manifests of data files or of delete files, and resolves the schema of a layout once.

    PyIceberg's writer writes only manifests of data files.
    """

    def __init__(  # noqa: PLR0913 - what a manifest consists of
        self,
        layout: Layout,
        content: ManifestContent,
        output: OutputFile,
        *,
        of: str,
        snapshot_id: int,
        codec: AvroCompressionCodec,
        copied: CopiedEntries | None = None,
    ) -> None:
        super().__init__(layout.spec, layout.schema, output, snapshot_id, codec)
        self._layout, self._content, self._of, self._copied = layout, content, of, copied

    def content(self) -> ManifestContent:
        return self._content

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        form = self._form() if self._copied is None else self._copied_form(self._copied)
        return FormedAvroFile(self._output_file, form.avro, metadata=form.metadata)

    def _copied_form(self, copied: CopiedEntries) -> _Form:
        writer: Any = copied.writer()
        avro = AvroForm(copied.schema, "manifest_entry", copied.header[SCHEMA_KEY], writer)
        return _Form(self._layout, avro, {**copied.header, AVRO_CODEC_KEY: self._compression})

    def _with_partition(self, format_version: TableVersion) -> Schema:
        """Return the schema of manifest entries, with optional partition values.

        Iceberg allows a null partition value even if the column is required.
        """
        values = [
            NestedField(field.field_id, field.name, field.field_type, required=False)
            for field in self._spec.partition_type(self._schema).fields
        ]
        data_file = data_file_with_partition(StructType(*values), format_version)
        return manifest_entry_schema_with_data_file(format_version, data_file)

    def _form(self) -> _Form:
        name = f"{self._of} {self._schema.schema_id} {self._spec.spec_id} {self._content} {self._compression}"
        form = _forms.get(name)
        # A schema that never landed may have had the number of this one.
        if form is None or form.layout != self._layout:
            content = "deletes" if self._content is ManifestContent.DELETES else "data"
            written, in_memory = self._with_partition(self.version), self._with_partition(DEFAULT_READ_VERSION)
            avro = AvroForm.resolved(written, in_memory, name="manifest_entry")
            form = _Form(self._layout, avro, {**self._meta, "content": content})
            _forms.keep(name, form)
        return form


def write_added(  # noqa: PLR0913 - what a manifest consists of, and its place
    files: Iterable[DataFile], layout: Layout, *, content: ManifestContent, path: str, table: Table, snapshot_id: int
) -> ManifestFile:
    """Write a manifest of files that have one layout and content, all added by this snapshot."""
    entries = (
        ManifestEntry.from_args(
            status=ManifestEntryStatus.ADDED,
            snapshot_id=snapshot_id,
            sequence_number=None,
            file_sequence_number=None,
            data_file=file,
        )
        for file in files
    )
    return _write(entries, layout, content, path=path, table=table, snapshot_id=snapshot_id)


def write_without(  # noqa: PLR0913 - what a manifest consists of, and its place
    gone: Collection[str],
    manifest: ManifestFile,
    entries: Iterable[ManifestEntry],
    *,
    path: str,
    table: Table,
    snapshot_id: int,
) -> ManifestFile:
    """Write a manifest again, with the files at the paths `gone` marked as deleted by this snapshot.

    `entries` are the manifest's live entries, in order.
    """
    layout = Layout.of_spec(table.metadata.specs()[manifest.partition_spec_id], table.metadata)
    written = (_kept_or_deleted(entry, snapshot_id, deleted=entry.data_file.file_path in gone) for entry in entries)
    copied = CopiedEntries.of(manifest, table.io)
    return _write(written, layout, manifest.content, path=path, table=table, snapshot_id=snapshot_id, copied=copied)


def _kept_or_deleted(entry: ManifestEntry, snapshot_id: int, *, deleted: bool) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.DELETED if deleted else ManifestEntryStatus.EXISTING,
        snapshot_id=snapshot_id if deleted else entry.snapshot_id,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=entry.data_file,
    )


def _write(  # noqa: PLR0913 - what a manifest consists of, and its place
    entries: Iterable[ManifestEntry],
    layout: Layout,
    content: ManifestContent,
    *,
    path: str,
    table: Table,
    snapshot_id: int,
    copied: CopiedEntries | None = None,
) -> ManifestFile:
    output, codec = CountedOutput(table.io.new_output(path)), avro_codec(table.metadata)
    of = str(table.metadata.table_uuid)
    writer: ManifestWriter
    with _Writer(layout, content, output, of=of, snapshot_id=snapshot_id, codec=codec, copied=copied) as writer:
        for entry in entries:
            writer.add_entry(entry)
    return writer.to_manifest_file()


def manifest_content(content: DataFileContent) -> ManifestContent:
    """Return the manifest content type (data or deletes) for files of this content type."""
    return ManifestContent.DATA if content is DataFileContent.DATA else ManifestContent.DELETES


def metadata_folder(metadata: TableMetadata) -> str:
    configured = metadata.properties.get(TableProperties.WRITE_METADATA_PATH)
    return configured.rstrip("/") if configured else f"{metadata.location.rstrip('/')}/metadata"


def avro_codec(metadata: TableMetadata) -> AvroCompressionCodec:
    """Return Avro's name for the table's compression codec; Iceberg uses other names."""
    name = metadata.properties.get(TableProperties.WRITE_AVRO_COMPRESSION, "gzip")
    return _AVRO_CODECS.get(name, "deflate")
