"""A manifest's length is counted while it is written, and is what its readers find."""

from __future__ import annotations

from pathlib import Path

from pyiceberg.io.fsspec import FsspecFileIO

from frazil.commit.manifest_writing import CountingOutput


def test_a_manifest_list_knows_the_length_of_each_manifest(world):
    committer = world.begin()
    committer.commit(world.stage(committer, {0: (0, 3)}))
    table = world.catalog.inner.load_table(world.table)
    manifests = table.current_snapshot().manifests(table.io)
    assert manifests
    for manifest in manifests:
        path = Path(manifest.manifest_path.removeprefix("file://"))
        assert manifest.manifest_length == path.stat().st_size


def test_bytes_are_counted_again_when_a_file_is_overwritten(tmp_path: Path) -> None:
    output = CountingOutput(FsspecFileIO({}).new_output(f"file://{tmp_path}/file"))
    for text in (b"a longer text", b"short"):
        with output.create(overwrite=True) as stream:
            stream.write(text)
        assert len(output) == len(text)
