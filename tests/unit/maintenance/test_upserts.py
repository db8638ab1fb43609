"""Health measurements of a table with merges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import reduce
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType

from frazil.maintenance.health import Deletes, TableHealth
from frazil.maintenance.measure import measure
from frazil.maintenance.partition_files import _add_deletes, _FileLimits
from frazil.maintenance.plans import find_busy_partitions
from frazil.maintenance.tables import find_maintained
from frazil.merge.contract import RowRemoval
from tests.unit.commit.conftest import catalog_in
from tests.unit.commit.upserts import SPEC, UpsertWorld, maintained, upsert_world

ROWS = 100


@pytest.fixture
def world(tmp_path: Path, frazil_home: Path) -> Iterator[UpsertWorld]:  # noqa: ARG001
    with catalog_in(tmp_path) as catalog:
        yield upsert_world(catalog, tmp_path)


def measured(world: UpsertWorld, *, deep: bool = False) -> TableHealth:
    found = measure(world.catalog.inner, maintained(), now_ms=world.clock_ms, deep=deep)
    assert found is not None
    return found


def merge_batches(world: UpsertWorld, how: RowRemoval, batches: int) -> None:
    """The first inserts all rows, each later one changes some of each bucket."""
    world.how = how
    committer = world.begin()
    world.upsert(committer, [(n, ("eu", 0)) for n in range(ROWS)])
    for batch in range(1, batches):
        world.upsert(committer, [(n, ("eu", batch)) for n in range(batch, ROWS, 10)])


@pytest.mark.parametrize("how", ["copy-on-write", "merge-on-read"])
def test_recent_files_are_those_that_merges_added_and_no_change_files(world: UpsertWorld, how: RowRemoval):
    merge_batches(world, how, 5)
    recent, snapshots = measured(world).recent, world.load().metadata.snapshots
    assert recent is not None
    added = sum(int(s.summary.get("added-data-files") or 0) for s in snapshots if s.summary)
    assert (recent.commits, recent.files, recent.partitions) == (5, added, added), "one file for each bucket"
    if how == "copy-on-write":
        assert recent.bytes == sum(int(s.summary.get("added-files-size") or 0) for s in snapshots if s.summary)


def test_files_that_merges_write_in_place_of_others_do_not_count_as_growth(world: UpsertWorld):
    merge_batches(world, "copy-on-write", 8)
    found = measured(world)
    assert (found.files_since_compaction, found.bytes_since_compaction) == (found.data_files, found.data_bytes)
    assert found.recent is not None
    assert found.recent.bytes > 4 * found.data_bytes, "so much was written"


def deletes(world: UpsertWorld) -> Deletes:
    """Deletes of all partitions."""
    partitions = measured(world, deep=True).partitions or ()
    return reduce(_add_deletes, (p.deletes for p in partitions))


def test_rows_that_are_deleted_and_still_in_files_are_measured(world: UpsertWorld):
    merge_batches(world, "merge-on-read", 1)
    assert (measured(world).deleted_rows, deletes(world)) == (0, Deletes())

    world.upsert(committer := world.begin(), [(n, None) for n in range(10)])
    found, made = measured(world, deep=True), deletes(world)
    assert (found.rows, found.deleted_rows, found.deleted_percent) == (ROWS - 10, 10, 10)
    assert found.merged
    assert found.delete_files == world.delete_files() == found.data_files == 4
    assert found.delete_files_per_file == 1
    assert (made.rows, made.shared, made.dangling, made.due_files) == (10, 0, (), 0)
    assert made.scaled_due_files == 4, "the files are far below the target size"
    assert made.bytes == sum(f["file_size_in_bytes"] for f in world.load().inspect.delete_files().to_pylist())

    world.upsert(committer, [(n, None) for n in range(10, 30)])
    found, made = measured(world, deep=True), deletes(world)
    assert (found.deleted_percent, made.rows) == (30, 30)
    files = {f["file_path"]: f for f in world.load().inspect.data_files().to_pylist()}
    gone = Counter(path for f in world.load().inspect.delete_files().to_pylist() for path in paths_in(f["file_path"]))
    due = [f["file_size_in_bytes"] for path, f in files.items() if 5 * gone[path] >= f["record_count"]]
    assert (made.due_files, made.due_bytes, made.due_largest_bytes) == (len(due), sum(due), max(due))
    assert (made.due_small_files, made.due_small_bytes) == (len(due), sum(due))


@pytest.mark.parametrize(
    ("size", "gone", "due", "scaled"),
    [(500, 99, 0, 0), (500, 100, 0, 1), (500, 200, 1, 1), (749, 149, 0, 0), (749, 150, 0, 1), (750, 199, 0, 0)],
)
def test_a_smaller_file_is_due_at_a_smaller_share_of_deleted_rows(size: int, gone: int, due: int, scaled: int):
    found = _FileLimits(target_bytes=1_000, deleted_percent=20).count_if_due(size, deleted=gone, records=1_000)
    assert (found.due_files, found.scaled_due_files) == (due, scaled)


def test_delete_files_whose_data_file_is_gone_are_found(world: UpsertWorld):
    merge_batches(world, "merge-on-read", 2)
    table = world.load()
    table.delete("id >= 0")  # PyIceberg leaves the delete files of data files that it removes
    kept = {f["file_path"] for f in table.inspect.delete_files().to_pylist()}
    found = deletes(world)
    assert kept
    assert (set(found.dangling), found.rows) == (kept, 0)


def busy(world: UpsertWorld, *, later_ms: int = 0) -> set[object]:
    """The values of busy partitions, which are buckets."""
    found = find_busy_partitions(world.load(), maintained(), now_ms=world.clock_ms + later_ms)
    assert found <= {p.key for p in measured(world, deep=True).partitions or ()}
    return {values[0] for _, values in found}


def bucket_of(number: int) -> object:
    return BucketTransform(4).transform(LongType())(number)


@pytest.mark.parametrize("how", ["copy-on-write", "merge-on-read"])
def test_partitions_changed_by_recent_or_pending_batches_are_busy(world: UpsertWorld, how: RowRemoval):
    merge_batches(world, how, 1)
    assert busy(world) == set(range(4))
    world.clock_ms += 3_600_000
    assert busy(world) == set()

    world.upsert(committer := world.begin(), [(1, None), (2, ("eu", 7)), (3, ("eu", 0))])
    changed = {bucket_of(1), bucket_of(2)}
    assert busy(world) == changed, "that of 3 was read, and is as it was"
    assert busy(world, later_ms=60_000) == changed
    assert busy(world, later_ms=3_600_000) == set()

    world.change(committer, [(4, None)])
    assert busy(world, later_ms=3_600_000) == {bucket_of(4)}, "it is staged, and not merged yet"


def test_a_table_without_a_merging_stream_has_no_busy_partitions(world: UpsertWorld):
    merge_batches(world, "auto", 1)
    appended = SPEC.model_copy(update={"mode": "append"})
    assert not find_busy_partitions(world.load(), find_maintained([appended], world.table), now_ms=world.clock_ms)


def paths_in(delete_file: str) -> list[str]:
    return pq.read_table(delete_file.removeprefix("file://"))["file_path"].to_pylist()
