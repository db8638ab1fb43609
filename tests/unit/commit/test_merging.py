"""A batch of changes is merged in the commit that publishes it, once, whatever the catalog answers."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest
from pyiceberg.manifest import PartitionFieldSummary
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.update import RemoveSchemasUpdate
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from frazil.commit.marked_update import prepare_merge
from frazil.commit.marker import BatchKey
from frazil.commit.merging import UPSERT_MODE, MergeConfig
from frazil.commit.staging_targets import target_table
from frazil.commit.sweep import batch_folder
from frazil.errors import SchemaIncompatible
from frazil.ingest.changes import CHANGE, UPSERT
from frazil.ingest.table_writer import TableWriter, file_namer
from frazil.merge.contract import MergeRules
from frazil.partitions.completeness import Alignment
from frazil.partitions.windows import Grain
from tests.unit.commit import upserts
from tests.unit.commit.conftest import event_time, new_world
from tests.unit.commit.upserts import BY_BUCKET, BY_REGION, SCHEMA, WHOLE, upsert_world


@pytest.fixture(params=[BY_BUCKET, BY_REGION, WHOLE], ids=["by bucket", "by region", "unpartitioned"])
def world(request, catalog, tmp_path):
    return upsert_world(catalog, tmp_path, request.param)


@pytest.fixture
def bucketed(catalog, tmp_path):
    return upsert_world(catalog, tmp_path)


def drop_region(world):
    """Drop the column of a former partition field and all former schemas, as Spark's clean_expired_metadata may do."""
    with world.load().update_schema(allow_incompatible_changes=True) as update:
        update.make_column_optional("region")
    with world.load().update_spec() as update:
        update.remove_field("region")
    with world.load().update_schema() as update:
        update.delete_column("region")
    table = world.load()
    former = [s.schema_id for s in table.metadata.schemas if s.schema_id != table.schema().schema_id]
    world.catalog.inner.commit_table(table, (), (RemoveSchemasUpdate(schema_ids=former),))
    world.tables.main.forget()


FIRST = [(number, ("eu" if number % 2 else "us", number)) for number in range(8)]


@pytest.mark.parametrize("how", ["copy-on-write", "merge-on-read"])
def test_a_merge_lands_rows_and_marker_in_one_snapshot(world, how):
    world.how = how
    committer = world.begin()
    world.upsert(committer, FIRST)
    before = world.snapshots()

    marker = world.upsert(committer, [(0, ("us", 100)), (1, None), (2, ("us", 2)), (9, ("eu", 9)), (9, ("eu", 10))])

    rows = dict(FIRST) | {0: ("us", 100), 9: ("eu", 10)}
    del rows[1]
    assert world.accounts() == rows
    assert world.snapshots() == before + 1
    assert world.marker() == marker
    assert marker.snapshot_id == world.load().current_snapshot().snapshot_id
    counts = {name: world.summary()[f"frazil.{name}"] for name in ("inserted", "updated", "deleted", "unchanged")}
    assert counts == {"inserted": "1", "updated": "1", "deleted": "1", "unchanged": "1"}
    assert world.summary()["frazil.superseded"] == "1"
    assert world.summary()["operation"] == "overwrite"
    assert (world.delete_files() > 0) is (how == "merge-on-read")


def test_summaries_count_files_of_deletes_as_iceberg_does(catalog, tmp_path):
    world = upsert_world(catalog, tmp_path, WHOLE, how="merge-on-read")
    committer = world.begin()
    world.upsert(committer, [(number, ("eu", number)) for number in range(100)])

    world.upsert(committer, [(3, None), (4, ("eu", 5))])
    one = world.summary()
    world.upsert(committer, [(5, None)])
    two = world.summary()

    assert (one["added-delete-files"], one["added-position-delete-files"], one["added-position-deletes"]) == (
        *("1", "1"),
        "2",
    )
    assert (one["total-delete-files"], one["total-position-deletes"], one["total-records"]) == ("1", "2", "101")
    assert (two["added-position-deletes"], two["removed-position-deletes"]) == ("3", "2")
    assert (two["removed-delete-files"], two["total-delete-files"], two["total-position-deletes"]) == ("1", "1", "3")
    assert world.delete_files() == 1


def test_a_batch_that_changes_nothing_commits_its_marker(world):
    committer = world.begin()
    world.upsert(committer, FIRST)
    head = world.load().current_snapshot()

    marker = world.upsert(committer, [FIRST[0], (77, None)])

    summary = world.summary()
    assert world.load().current_snapshot().parent_snapshot_id == head.snapshot_id
    assert marker.offsets["events", 0] == 10
    assert (summary["operation"], summary["frazil.unchanged"]) == ("append", "2")
    assert "added-data-files" not in summary
    assert world.accounts() == dict(FIRST)


@pytest.mark.parametrize("had_dead_letters", [True, False])
def test_once_a_stream_had_dead_letters_a_batch_updates_the_coordinates_of_unchanged_rows(bucketed, had_dead_letters):
    committer = bucketed.begin()
    if had_dead_letters:
        journal = bucketed.stage(committer, {0: (0, 1)}, rejected={0: {0}})
        bucketed.commit_dead_letters(committer, journal)
    journal = bucketed.change(committer, FIRST)
    writer = prepare_merge(bucketed.tables, journal, journal.staged_for("main"))
    assert writer is not None
    assert writer.traced is had_dead_letters


def _compacted(world):
    world.compact()


def _appended(world):
    world.append_accounts({500: ("eu", 5)})


def _evolved(world):
    with world.load().update_schema() as update:
        update.rename_column("amount", "sum")


@pytest.mark.parametrize("happens", [_compacted, _appended])
def test_a_merge_that_another_commit_overtakes_is_planned_again(world, catalog, happens):
    committer = world.begin()
    world.upsert(committer, FIRST)
    catalog.next_meets(lambda: happens(world), "demo.accounts")
    others = {} if happens is _compacted else {500: ("eu", 5)}

    committer.commit(world.change(committer, [(0, ("us", 100)), (1, None)]))  # no sweep deletes what the commit left

    assert world.accounts() == {**{k: v for k, v in FIRST if k > 1}, 0: ("us", 100), **others}
    merged = {path for path in world.parquet_files() if "/merged/" in path}
    assert merged <= world.needed_files()
    assert world.manifests() == world.used_manifests()


def test_merge_tasks_with_unchanged_input_keep_their_results(bucketed, catalog):
    bucketed.parallelism = 4
    committer = bucketed.begin()
    bucketed.upsert(committer, FIRST)
    bucketed.ran.clear()
    catalog.next_meets(lambda: bucketed.append_accounts({500: ("eu", 5)}), "demo.accounts")

    bucketed.upsert(committer, [(number, ("us", 100)) for number in (*range(8), 500)])

    first = len({task.index for task in bucketed.ran})
    assert first > 1
    assert len(bucketed.ran) == first + 1
    assert len(bucketed.accounts()) == 9


@pytest.mark.parametrize("changes", [[(0, ("us", 100)), (1, None)], [FIRST[0]]], ids=["rows change", "nothing changes"])
@pytest.mark.parametrize("fault", ["next_answer_is_lost", "next_lands_late"])
def test_a_merge_lands_once_whatever_happens_to_the_response(bucketed, catalog, fault, changes):
    committer = bucketed.begin()
    bucketed.upsert(committer, FIRST)
    before = bucketed.snapshots()
    getattr(catalog, fault)("demo.accounts")

    marker = bucketed.upsert(committer, changes)

    expected = dict(FIRST) | dict(changes)
    assert bucketed.accounts() == {k: v for k, v in expected.items() if v is not None}
    assert bucketed.snapshots() == before + 1
    assert bucketed.marker() == marker


def test_a_killed_writers_merge_is_done_from_its_journal(world):
    committer = world.begin()
    world.upsert(committer, FIRST)
    world.change(committer, [(0, ("us", 100)), (1, None)])

    settled = world.settle(world.take_over())

    assert settled.committed
    assert world.accounts() == {**{k: v for k, v in FIRST if k > 1}, 0: ("us", 100)}


def test_change_files_are_deleted_after_their_merge_even_if_a_dead_attempt_merged_them(bucketed):
    committer = bucketed.begin()
    bucketed.upsert(committer, FIRST)
    bucketed.change(committer, [(0, ("us", 100)), (1, None)])
    inner = bucketed.run_tasks

    def dies(context, tasks):
        inner(context, tasks)
        raise KeyboardInterrupt

    bucketed.run_tasks = dies
    with pytest.raises(KeyboardInterrupt):
        bucketed.settle(bucketed.take_over())
    bucketed.run_tasks = inner

    bucketed.begin()

    assert bucketed.accounts() == {**{k: v for k, v in FIRST if k > 1}, 0: ("us", 100)}
    assert bucketed.parquet_files() == bucketed.needed_files()


def test_a_column_renamed_between_plan_and_commit_of_a_merge_is_handled(bucketed, catalog):
    committer = bucketed.begin()
    bucketed.upsert(committer, FIRST)
    catalog.next_meets(lambda: _evolved(bucketed), "demo.accounts")

    bucketed.upsert(committer, [(0, ("us", 100))])

    rows = {row["id"]: row["sum"] for row in bucketed.load().scan().to_arrow().to_pylist()}
    assert rows == {**{k: v[1] for k, v in FIRST}, 0: 100}


@pytest.mark.parametrize("transform", [BucketTransform(4), IdentityTransform(), None], ids=str)
def test_a_key_that_another_program_widened_finds_its_rows(catalog, tmp_path, monkeypatch, transform):
    """See apache/iceberg-python#3744: bounds of older files keep the four bytes of an int."""
    narrow = Schema(NestedField(1, "id", IntegerType(), required=True), *SCHEMA.fields[1:])
    monkeypatch.setattr(upserts, "SCHEMA", narrow)
    parts = [] if transform is None else [PartitionField(1, 1000, transform, "part")]
    world = upsert_world(catalog, tmp_path, PartitionSpec(*parts))
    committer = world.begin()
    world.upsert(committer, FIRST)
    with world.load().update_schema() as update:
        update.update_column("id", LongType())

    world.upsert(committer, [(0, ("us", 100)), (1, None), (2**40, ("eu", 9))])
    world.upsert(committer, [(0, ("us", 101)), (2**40, ("eu", 10))])

    rows = dict(FIRST) | {0: ("us", 101), 2**40: ("eu", 10)}
    del rows[1]
    assert world.accounts() == rows


@pytest.mark.parametrize("how", ["copy-on-write", "merge-on-read"])
def test_files_of_a_spec_whose_schema_was_removed_are_rewritten_but_get_no_delete_files(catalog, tmp_path, how):
    world = upsert_world(catalog, tmp_path, BY_REGION, how=how)
    world.upsert(world.begin(), FIRST)
    drop_region(world)
    committer = world.begin()

    if how == "merge-on-read":
        with pytest.raises(SchemaIncompatible, match=r"removed the schemas with the columns .* spec 0.* Rewrite the"):
            world.upsert(committer, [(0, ("us", 100))])
    else:
        world.upsert(committer, [(0, ("us", 100))])
        found = world.load().scan().to_arrow().to_pylist()
        assert {row["id"]: row["amount"] for row in found} == {n: n or 100 for n, _ in FIRST}


def test_rows_are_found_although_the_partition_bounds_of_their_manifest_are_unknown(bucketed, monkeypatch):
    committer = bucketed.begin()
    with monkeypatch.context() as patch:  # as ClickHouse writes manifests
        unknown = PartitionFieldSummary(False, None, None, None)
        patch.setattr("pyiceberg.manifest.construct_partition_summaries", lambda *_: [unknown])
        bucketed.upsert(committer, FIRST)

    bucketed.upsert(committer, [(0, ("us", 100))])

    assert bucketed.accounts() == dict(FIRST) | {0: ("us", 100)}


def test_a_long_merge_that_lost_a_race_is_planned_again(bucketed, catalog):
    committer = bucketed.begin()
    bucketed.upsert(committer, FIRST)
    inner = bucketed.run_tasks

    def slow(context, tasks):
        bucketed.time.now_s += 10 * bucketed.tables.retry_policy.total_s
        return inner(context, tasks)

    bucketed.run_tasks = slow
    catalog.next_meets(lambda: bucketed.append_accounts({500: ("eu", 5)}), "demo.accounts")

    bucketed.upsert(committer, [(0, ("us", 100))])

    assert bucketed.accounts() == {**dict(FIRST), 0: ("us", 100), 500: ("eu", 5)}


def test_rows_that_waited_on_the_open_branch_are_in_main_before_a_merge(catalog, tmp_path):
    world, key = new_world(catalog, tmp_path), ("kafka_partition", "kafka_offset")
    world.tables = dataclasses.replace(world.tables, align=Alignment("ts", Grain.DAY))
    world.run(world.begin(), {0: (0, 3)})
    assert world.rows() == []
    merging = MergeConfig(lambda _: MergeRules(key))
    world.tables = dataclasses.replace(world.tables, align=None, merging=merging)
    committer = world.begin()
    batch = BatchKey(committer.epoch, world.marker().key.batch + 1)
    table = world.load()
    target = UPSERT_MODE.staging_target(target_table(table, folder=batch_folder(table, world.stream, batch)), key)
    writer = TableWriter(target, "main", io=table.io, file_name=file_namer(0, 0))
    change = {"ts": event_time(1), "name": "new", "kafka_topic": "events", "kafka_partition": 0, "kafka_offset": 1}
    writer.add(pa.Table.from_pylist([{**change, CHANGE: UPSERT}], schema=writer.layout.arrow_schema))
    files = tuple(dataclasses.replace(file, content="changes") for file in writer.finish())
    journal = world.journal(batch, {0: (3, 4)}, files, seen=committer.newest_dead_letters())
    assert world.tables.journals.put(journal)

    marker = committer.commit(journal)

    assert marker.open_snapshot_id is None
    rows = {row["kafka_offset"]: row["name"] for row in world.load().scan().to_arrow().to_pylist()}
    assert rows == {0: "0-0", 1: "new", 2: "0-2"}


def test_deletes_from_a_partition_by_a_later_column_are_read_by_everyone(bucketed):
    bucketed.how = "merge-on-read"
    committer = bucketed.begin()
    bucketed.upsert(committer, FIRST)
    table = bucketed.load()
    with table.update_schema() as update:
        update.add_column("later", StringType())
    with table.update_spec() as update:
        update.add_identity("later")
    committer = bucketed.begin()
    more = [(number, ("eu", number)) for number in range(100, 120)]
    bucketed.upsert(committer, more)

    bucketed.upsert(committer, [(100, None), (101, ("us", 1))])

    rows = dict(FIRST) | dict(more) | {101: ("us", 1)}
    del rows[100]
    assert bucketed.accounts() == rows
    assert bucketed.delete_files() > 0
