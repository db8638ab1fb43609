"""A manifest's length, counted while it is written, equals the length of the file."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.io import FileIO
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField

from frazil.commit.manifest_writing import AvroEncoding, PreparedAvroFile


def test_a_manifest_list_knows_the_length_of_each_manifest(world):
    committer = world.begin()
    committer.commit(world.stage(committer, {0: (0, 3)}))
    table = world.catalog.inner.load_table(world.table)
    manifests = table.current_snapshot().manifests(table.io)
    assert manifests
    for manifest in manifests:
        path = Path(manifest.manifest_path.removeprefix("file://"))
        assert manifest.manifest_length == path.stat().st_size


@pytest.mark.parametrize("file_io", [FsspecFileIO({}), PyArrowFileIO({})], ids=["fsspec", "pyarrow"])
def test_the_length_is_known_without_the_file(tmp_path: Path, file_io: FileIO) -> None:
    path, schema = tmp_path / "file", Schema(NestedField(1, "number", LongType(), required=True))
    encoding = AvroEncoding.resolve(schema, schema, name="row")
    metadata = {"avro.codec": "null"}
    with PreparedAvroFile[Record](file_io.new_output(f"file://{path}"), encoding, metadata=metadata) as file:
        file.write_block([Record(1), Record(2)])
    size = path.stat().st_size
    path.unlink()
    assert len(file.output_file) == size > 100
