"""Files by partition, as PyIceberg's inspection counts them over several specs, and when a partition is over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    write_manifest,
)
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.transforms import HourTransform, MonthTransform, YearTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType

from frazil.commit.manifest_writing import ManifestLayout, NewManifest, write_added
from frazil.maintenance.health import Deletes, PartitionFiles
from frazil.maintenance.partition_files import read_partitions
from frazil.maintenance.tables import find_maintained
from tests.made_batches import MadeStream
from tests.unit.maintenance.day_by_day import DAY_US, FIRST_DAY_US, land


def partitions(made: MadeStream, *more: Any, name: str = "demo.made") -> list[PartitionFiles]:
    maintained = find_maintained([made.spec], name)
    table = (made.tables.main if name == "demo.made" else made.tables.dead_letters).refresh()
    head = table.current_snapshot()
    manifests = [*(head.manifests(table.io) if head else ()), *more]
    return list(read_partitions(table, manifests, maintained, target_bytes=4096))


def inspected(table: Table) -> list[tuple[int, str, int, int]]:
    """Spec, first value, files and bytes."""
    rows = table.inspect.partitions().to_pylist()
    return sorted(
        (r["spec_id"], str(r["partition"]), r["file_count"], r["total_data_file_size_in_bytes"]) for r in rows
    )


def test_each_partition_has_its_files_and_ends_when_its_day_is_over(made: MadeStream):
    land(made, 3)
    first, second = partitions(made)
    assert [(p.path, p.values, p.files) for p in (first, second)] == [
        ("at_day=2013-12-30", (16_069,), 3), ("at_day=2013-12-31", (16_070,), 3),
    ]  # fmt: skip
    assert (first.window_end_us, second.window_end_us) == (FIRST_DAY_US + DAY_US, FIRST_DAY_US + 2 * DAY_US)
    assert sorted(p.bytes for p in (first, second)) == [n[3] for n in inspected(made.tables.main.refresh())]


def test_a_file_is_small_below_three_quarters_of_the_target(made: MadeStream):
    land(made, 1)
    table = made.tables.main.refresh()
    sizes = sorted(f["file_size_in_bytes"] for f in table.inspect.files().to_pylist())
    maintained = find_maintained([made.spec], "demo.made")
    head = table.current_snapshot()
    assert head is not None

    def small(target: int) -> tuple[int, int]:
        found = read_partitions(table, head.manifests(table.io), maintained, target_bytes=target)
        return sum(p.small_files for p in found), sum(p.small_bytes for p in found)

    assert small(sizes[0]) == (0, 0)
    assert small(2 * sizes[-1]) == (2, sum(sizes))


def test_the_p10_file_size_of_a_partition_is_its_tenth_percentile(made: MadeStream):
    land(made, 12, rows=1)
    (found,) = partitions(made)
    sizes = sorted(f["file_size_in_bytes"] for f in made.tables.main.refresh().inspect.files().to_pylist())
    assert (found.files, found.p10_bytes) == (12, sizes[1])


def test_deleted_manifest_entries_are_not_counted_as_files(made: MadeStream):
    land(made, 2)
    made.tables.main.refresh().delete("at < '2013-12-31T00:00:00+00:00'")
    assert [(p.path, p.files) for p in partitions(made)] == [("at_day=2013-12-31", 2)]


@pytest.mark.parametrize(
    ("transform", "path", "end_us"),
    [
        (HourTransform(), "at_t=2013-12-30-00", FIRST_DAY_US + DAY_US // 24),
        (MonthTransform(), "at_t=2013-12", 16_071 * DAY_US),
        (YearTransform(), "at_t=2013", 16_071 * DAY_US),
    ],
)
def test_files_of_an_earlier_spec_are_counted_apart(made: MadeStream, transform: Any, path: str, end_us: int):
    land(made, 1, rows=1)
    with made.tables.main.refresh().update_spec() as update:
        update.remove_field("at_day")
        update.add_field("at", transform, "at_t")
        update.add_field("note", "bucket[4]", "note_bucket")
    land(made, 2, rows=1)
    by_spec = {p.spec_id: p for p in partitions(made)}
    assert {spec: p.files for spec, p in by_spec.items()} == {0: 1, 1: 2}
    assert (by_spec[0].path, by_spec[0].window_end_us) == ("at_day=2013-12-30", FIRST_DAY_US + DAY_US)
    assert by_spec[1].path.startswith(f"{path}/note_bucket=")
    assert by_spec[1].window_end_us == end_us


def test_a_partition_without_a_time_has_no_end(made: MadeStream):
    made.columns = lambda rows: {}  # noqa: ARG005 - the event time is null
    land(made, 1)
    (none,) = partitions(made)
    assert (none.path, none.values, none.files, none.window_end_us) == ("at_day=null", (None,), 1, None)


def test_float_partition_values_are_compared_by_their_bits(made: MadeStream):
    """See apache/doris#5226: as Python compares, each NaN would be a partition, and both zeros would be one."""
    with made.tables.main.refresh().update_schema() as update:
        update.add_column("share", DoubleType())
    with made.tables.main.refresh().update_spec() as update:
        update.remove_field("at_day")
        update.add_field("share", "identity", "share")
    made.columns = lambda rows: {"share": pa.array([0.0, -0.0, float("nan")] * (rows // 3), from_pandas=False)}
    land(made, 2, rows=6)
    assert [(p.path, p.files) for p in partitions(made)] == [("share=-0.0", 2), ("share=0.0", 2), ("share=nan", 2)]
    assert len({p.key for p in partitions(made)}) == 3


def test_delete_files_are_counted_by_partition_and_are_no_data_files(made: MadeStream, tmp_path: Path):
    land(made, 1)
    table = made.tables.main.refresh()
    deletes = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES, file_path="d.parquet", file_format=FileFormat.PARQUET,
        partition=Record(16_069), record_count=1, file_size_in_bytes=10,
    )  # fmt: skip
    deletes.spec_id = 0
    layout, new = ManifestLayout.for_spec(table.spec(), table.metadata), NewManifest(f"{tmp_path}/d.avro", table, 1)
    manifest = write_added([deletes], layout, ManifestContent.DELETES, new)
    first, second = partitions(made, manifest)
    assert [(p.files, p.delete_files) for p in (first, second)] == [(1, 1), (1, 0)]
    assert (first.deletes.shared, first.deletes.bytes, first.deletes.rows) == (1, 10, 1), "it names no one data file"
    assert second.deletes == Deletes()


def test_deletion_vectors_are_counted_for_their_data_files(made: MadeStream, tmp_path: Path):
    land(made, 1)
    table = made.tables.main.refresh()
    head = table.current_snapshot()
    assert head is not None
    first = head.manifests(table.io)[0].fetch_manifest_entry(table.io)[0].data_file
    raw = table.metadata.model_dump() | {"format-version": 3, "next-row-id": 0}
    table = Table(table.name(), TableMetadataUtil.parse_obj(raw), table.metadata_location, table.io, table.catalog)
    vectors = [
        DataFile.from_args(
            content=DataFileContent.POSITION_DELETES, file_path="d.puffin", file_format=FileFormat.PUFFIN,
            partition=first.partition, record_count=1, file_size_in_bytes=10, referenced_data_file=of,
            content_offset=4, content_size_in_bytes=40,
        )
        for of in (first.file_path, "gone.parquet")
    ]  # fmt: skip
    for vector in vectors:
        vector.spec_id = 0
    layout, new = ManifestLayout.for_spec(table.spec(), table.metadata), NewManifest(f"{tmp_path}/d.avro", table, 1)
    manifest = write_added(vectors, layout, ManifestContent.DELETES, new)
    found = [p for p in partitions(made, manifest) if p.delete_files]
    assert [(p.deletes.shared, p.deletes.rows, p.deletes.dangling) for p in found] == [(0, 1, ())]


def test_a_partition_beyond_the_python_calendar_is_counted(made: MadeStream, tmp_path: Path):
    made.tables.main.current()
    far = 10**7
    table = made.tables.main.refresh()
    with write_manifest(2, table.spec(), table.schema(), table.io.new_output(f"{tmp_path}/f.avro"), 1, "deflate") as w:
        file = DataFile.from_args(
            content=DataFileContent.DATA, file_path="f.parquet", file_format=FileFormat.PARQUET,
            partition=Record(far), record_count=1, file_size_in_bytes=10,
        )  # fmt: skip
        file.spec_id = 0
        w.add_entry(ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=1, data_file=file))
    (found,) = partitions(made, w.to_manifest_file())
    assert (found.path, found.window_end_us) == (f"at_day={far}", (far + 1) * DAY_US)


def test_a_day_of_dead_letters_ends_at_the_end_of_that_day(made: MadeStream):
    made.land({0: (0, 5)}, rejected={0: [3, 4]})
    (day,) = partitions(made, name="demo.made_dead_letters")
    end_us = (made.now_ms * 1000 // DAY_US + 1) * DAY_US
    assert (day.path, day.window_end_us) == ("rejected_at_day=2033-05-18", end_us)
