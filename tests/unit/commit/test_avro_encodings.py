"""Manifests and manifest lists in known formats are byte-identical to PyIceberg's."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
from fastavro import reader
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    MANIFEST_ENTRY_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, StringType

from frazil.commit import manifest_writing
from frazil.commit.manifest_lists import ListWriter
from frazil.commit.manifest_writing import MAX_CACHED_ENCODINGS, ManifestLayout, NewManifest, write_added
from frazil.maintenance.partition_files import _EntryReader
from frazil.table.faster_commits import BoundedCache

SCHEMA = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "day", StringType()), schema_id=3)
BY_DAY = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "day"), spec_id=1)
ENTRIES = _EntryReader(103)
Codec = Literal["deflate", "null", "zstandard"]


@pytest.fixture(autouse=True)
def forms(monkeypatch: pytest.MonkeyPatch) -> BoundedCache[Any]:
    """An empty cache of encodings for each test."""
    kept = BoundedCache[Any](MAX_CACHED_ENCODINGS)
    monkeypatch.setattr(manifest_writing, "_encodings", kept)
    return kept


@pytest.fixture
def table(tmp_path: Path) -> Table:
    catalog = InMemoryCatalog("forms", warehouse=tmp_path.as_uri())
    catalog.create_namespace("demo")
    return catalog.create_table("demo.events", SCHEMA, partition_spec=BY_DAY)


def a_file(spec_id: int, day: str) -> DataFile:
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"file:///data/{day}.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(day),
        record_count=7,
        file_size_in_bytes=900,
        column_sizes={1: 50},
        value_counts={1: 7},
        null_value_counts={1: 0},
        nan_value_counts={},
        lower_bounds={1: b"\0" * 8},
        upper_bounds={1: b"\1" * 8},
        split_offsets=[4],
        sort_order_id=None,
        key_metadata=None,
        equality_ids=None,
    )
    file.spec_id = spec_id
    return file


def written(
    table: Table, layout: ManifestLayout, name: str, *, content: ManifestContent = ManifestContent.DATA
) -> bytes:
    path = f"{table.location()}/{name}.avro"
    files = [a_file(layout.spec.spec_id, "2026-01-01")]
    write_added(files, layout, content, NewManifest(path, table, snapshot_id=11))
    return read(path)


def by_pyiceberg(table: Table, layout: ManifestLayout, codec: Codec) -> bytes:
    path = f"{table.location()}/theirs.avro"
    entry = ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED,
        snapshot_id=11,
        sequence_number=None,
        file_sequence_number=None,
        data_file=a_file(layout.spec.spec_id, "2026-01-01"),
    )
    output = table.io.new_output(path)
    with write_manifest(2, layout.spec, layout.schema, output, 11, codec) as writer:
        writer.add_entry(entry)
    return read(path)


def read(path: str) -> bytes:
    """The file without its random mark, by which each block ends."""
    data = Path(path.removeprefix("file://")).read_bytes()
    return data.replace(data[-16:], b"")


def layout_of(table: Table) -> ManifestLayout:
    return ManifestLayout(table.spec(), table.schema())


@pytest.mark.parametrize(("property", "codec"), [("gzip", "deflate"), ("uncompressed", "null"), ("zstd", "zstandard")])
def test_a_manifest_has_the_same_bytes_as_from_pyiceberg_at_first_and_repeated_writes(
    table: Table, property: str, codec: Codec
):
    table.metadata.properties["write.avro.compression-codec"] = property
    layout = layout_of(table)
    theirs = by_pyiceberg(table, layout, codec)
    assert [written(table, layout, name) for name in ("first", "again")] == [theirs, theirs]


@pytest.mark.parametrize("version", [2, 3])
def test_equality_field_ids_are_ints_and_longs_of_older_manifests_are_readable(
    table: Table, version: int, monkeypatch: pytest.MonkeyPatch, forms: BoundedCache[Any]
) -> None:
    """See apache/iceberg-python#3840: strict readers refuse any manifest whose schema has them as longs."""

    def write(name: str) -> tuple[str, str]:
        new = NewManifest(f"{table.location()}/{name}.avro", table, snapshot_id=11)
        made = write_added([a_file(table.spec().spec_id, name)], layout_of(table), ManifestContent.DATA, new)
        (entry,) = made.fetch_manifest_entry(table.io)
        (file,) = ENTRIES.live(table.io, made)
        assert (entry.data_file.partition[0], file[ENTRIES.index[103]]) == (name, 7)
        with Path(new.path.removeprefix("file://")).open("rb") as opened:
            (data_file,) = (f["type"] for f in reader(opened).writer_schema["fields"] if f["name"] == "data_file")
        types = {field["name"]: field["type"] for field in data_file["fields"]}
        return types["equality_ids"][1]["items"], types["split_offsets"][1]["items"]

    table.metadata = table.metadata.model_copy(update={"format_version": version})
    assert write("new") == ("int", "long")
    older = MANIFEST_ENTRY_SCHEMAS[version].find_field("data_file").field_type
    monkeypatch.setitem(DATA_FILE_TYPE, version, older)
    forms.__init__(MAX_CACHED_ENCODINGS)
    assert write("older") == ("long", "long")


def test_an_avro_encoding_is_resolved_once_for_each_manifest_content(table: Table, forms: BoundedCache[Any]):
    layout = layout_of(table)
    data = written(table, layout, "data")
    deletes = written(table, layout, "deletes", content=ManifestContent.DELETES)
    assert (b"deletes" in deletes, b"deletes" in data) == (True, False)
    assert written(table, layout, "again") == data
    assert len(forms) == 2


def test_another_schema_with_the_same_id_is_not_confused_with_the_cached_one(table: Table):
    """One schema never landed, because another writer's change of the schema came first."""
    ours = layout_of(table)
    written(table, ours, "first")
    more = NestedField(3, "symbol", StringType())
    theirs = ManifestLayout(ours.spec, Schema(*ours.schema.fields, more, schema_id=ours.schema.schema_id))
    assert written(table, theirs, "second") == by_pyiceberg(table, theirs, "deflate")


def test_a_manifest_list_has_the_bytes_that_pyiceberg_writes(tmp_path: Path):
    io, ours, theirs = PyArrowFileIO(), f"{tmp_path}/ours.avro", f"{tmp_path}/theirs.avro"
    with ListWriter(io.new_output(ours), 11, 10, 5, "deflate") as writer:
        writer.add_manifests([])
    with write_manifest_list(2, io.new_output(theirs), 11, 10, 5, "deflate") as other:
        other.add_manifests([])
    assert read(ours) == read(theirs)
