"""A merge is planned from manifests alone, and reads only those that may list a changed key."""

from __future__ import annotations

import base64
import dataclasses
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    FixedType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from frazil.commit import merge_plan
from frazil.commit.manifest_writing import ManifestLayout, NewManifest, write_added
from frazil.commit.merge_plan import plan_merge
from frazil.commit.merging import UPSERT_MODE
from frazil.commit.snapshot import SnapshotWriter
from frazil.commit.staging_targets import target_table
from frazil.errors import SchemaIncompatible
from frazil.ingest.changes import CHANGE
from frazil.ingest.contract import StagedFile
from frazil.ingest.table_writer import TableWriter, file_namer
from frazil.merge.contract import MergeRules
from frazil.merge.table_files import PATH_ID
from tests.unit.commit.upserts import BY_REGION, WHOLE, upsert_world

KEY = MergeRules(("id",))
BOTH = MergeRules(("id", "region"))


def staged(number, region=None, *, keys=(0, 9), size=1_000, content="data", bounds=True):  # noqa: PLR0913
    """Return an entry of a file that is never read."""
    lower, upper = (base64.b64encode(to_bytes(LongType(), key)).decode() for key in keys)
    partition = () if region is None else (base64.b64encode(to_bytes(StringType(), region)).decode(),)
    return StagedFile(
        target="main",
        path=f"file:///nowhere/{content}-{number:05d}.parquet",
        records=10,
        bytes=size,
        schema_id=0,
        spec_id=0,
        sort_order_id=None,
        partition=partition,
        column_sizes={},
        value_counts={},
        null_value_counts={},
        nan_value_counts={},
        lower_bounds={1: lower} if bounds else {},
        upper_bounds={1: upper} if bounds else {},
        split_offsets=(),
        content=content,
    )


def change(number, region=None, **more):
    return staged(number, region, content="changes", **more)


def land(world, files, base=None):
    """Commit the files, in a manifest for each partition."""
    table = world.load()
    writer = SnapshotWriter(files, manifest_key=lambda file: str(file.partition), base=base)
    prepared = writer.prepare(table, summary={}, now_ms=world.clock_ms)
    world.catalog.inner.commit_table(table, prepared.requirements, prepared.updates)
    return world.load()


@pytest.fixture
def by_region(catalog, tmp_path):
    return upsert_world(catalog, tmp_path, BY_REGION)


@pytest.fixture
def whole(catalog, tmp_path):
    return upsert_world(catalog, tmp_path, WHOLE)


@pytest.fixture
def manifests_read(monkeypatch):
    read = []
    fetch = ManifestFile.fetch_manifest_entry

    def counted(self, *args, **more):
        read.append(Path(self.manifest_path).name)
        return fetch(self, *args, **more)

    monkeypatch.setattr(ManifestFile, "fetch_manifest_entry", counted)
    return read


def files_of(plan):
    return {int(Path(file.path).stem.rsplit("-", 1)[1]) for task in plan.tasks for file in task.files}


def test_a_batch_that_touches_3_of_300_partitions_reads_3_manifests(by_region, manifests_read):
    table = land(by_region, [staged(n, f"r{n:03d}") for n in range(300)])
    changes = [change(n, f"r{n:03d}") for n in (7, 8, 200)]

    plan = plan_merge(table, changes, BOTH, parallelism=2)

    assert len(manifests_read) == 3
    assert files_of(plan) == {7, 8, 200}
    assert [task.inserts for task in plan.tasks] == [True, True]
    assert {path for task in plan.tasks for path in task.changes} == {file.path for file in changes}


def test_where_the_key_does_not_decide_the_partition_its_bounds_choose_files(by_region):
    files = [staged(n, "eu" if n % 2 else "us", keys=(10 * n, 10 * n + 9)) for n in range(10)]
    table = land(by_region, [*files, staged(10, "eu", bounds=False)])

    plan = plan_merge(table, [change(0, "eu", keys=(25, 31)), change(1, "us", keys=(28, 38))], KEY, parallelism=1)

    assert files_of(plan) == {2, 3, 10}
    assert [(len(task.changes), task.inserts) for task in plan.tasks] == [(2, True)]


def test_a_table_without_files_has_a_task_that_inserts(by_region):
    (task,) = plan_merge(by_region.load(), [change(0, "eu")], BOTH, parallelism=4).tasks
    assert (task.files, task.inserts) == ((), True)


def test_a_merge_without_changes_plans_no_tasks(whole):
    table = land(whole, [staged(0)])
    plan = plan_merge(table, [], KEY, parallelism=4)
    assert (plan.tasks, plan.insert_tasks) == ((), ())


def test_a_large_group_is_split_and_a_last_task_inserts(whole, monkeypatch):
    monkeypatch.setattr(merge_plan, "MIN_SPLIT_BYTES", 0)
    table = land(whole, [staged(n) for n in range(12)])

    plan = plan_merge(table, [change(0), change(1)], KEY, parallelism=3)

    assert [(len(task.files), task.inserts) for task in plan.tasks] == [(4, False)] * 3
    (last,) = plan.insert_tasks
    assert last.after == (0, 1, 2)
    assert last.make_task(dict.fromkeys(last.after, b"")).changes == plan.tasks[0].changes
    assert files_of(plan) == set(range(12))


def test_merge_groups_are_packed_by_bytes_into_as_many_tasks_as_run_in_parallel(by_region):
    sizes = [100, 90, 50, 40, 20, 10]
    table = land(by_region, [staged(n, f"r{n}", size=size) for n, size in enumerate(sizes)])
    changes = [change(n, f"r{n}", size=0) for n in range(len(sizes))]

    plan = plan_merge(table, changes, BOTH, parallelism=2)

    assert [sum(file.bytes for file in task.files) for task in plan.tasks] == [160, 150]


def test_merge_groups_keep_their_tasks_after_the_table_changed(by_region):
    regions = [f"r{n}" for n in range(8)]
    changes = [change(n, region, size=n + 1) for n, region in enumerate(regions)]
    table = land(by_region, [staged(n, region, size=n + 1) for n, region in enumerate(regions)])
    before = plan_merge(table, changes, BOTH, parallelism=3)

    table = land(by_region, [staged(100, "r0", size=1_000)])
    after = plan_merge(table, changes, BOTH, parallelism=3, prior=before)

    assert len(set(before.tasks) & set(after.tasks)) == 2


def test_files_of_another_spec_are_found_by_their_bounds(by_region, manifests_read):
    table = land(by_region, [staged(n, f"r{n}", keys=(10 * n, 10 * n + 9)) for n in range(4)])
    with table.update_spec() as update:
        update.remove_field("region")
        update.add_field("id", IdentityTransform(), "id")
    spec_id = by_region.load().spec().spec_id
    new = [dataclasses.replace(change(0, keys=(12, 12)), spec_id=spec_id, partition=_longs(12))]
    manifests_read.clear()

    plan = plan_merge(by_region.load(), new, KEY, parallelism=4)

    assert files_of(plan) == {1}


def _longs(value):
    return (base64.b64encode(to_bytes(LongType(), value)).decode(),)


def _delete_file(number, *, of=None, content=DataFileContent.POSITION_DELETES, kind=FileFormat.PARQUET):
    path = (of or "").encode()
    file = DataFile.from_args(
        content=content,
        file_path=f"file:///nowhere/deletes-{number:05d}.parquet",
        file_format=kind,
        partition=Record(),
        record_count=3,
        file_size_in_bytes=100,
        lower_bounds={PATH_ID: path} if of else {},
        upper_bounds={PATH_ID: path} if of else {},
        equality_ids=[1] if content is DataFileContent.EQUALITY_DELETES else None,
    )
    file.spec_id = 0
    return file


def _land_deletes(world, *files):
    table = world.load()
    writer = SnapshotWriter(())
    writer.snapshot_id = table.metadata.new_snapshot_id()
    layout = ManifestLayout.for_spec(table.spec(), table.metadata)
    path = f"{table.location()}/metadata/deletes.avro"
    writer.manifests = [
        write_added(files, layout, ManifestContent.DELETES, NewManifest(path, table, writer.snapshot_id)),
    ]
    prepared = writer.prepare(table, summary={}, now_ms=world.clock_ms)
    world.catalog.inner.commit_table(table, prepared.requirements, prepared.updates)
    return world.load()


def test_a_merge_task_gets_the_delete_files_of_its_data_files_shared_or_not(whole):
    table = land(whole, [staged(0), staged(1)])
    first = staged(0).path
    table = _land_deletes(whole, _delete_file(0, of=first), _delete_file(1))
    table = land(whole, [staged(2)])

    (task,) = plan_merge(table, [change(0)], KEY, parallelism=1).tasks

    found = [[(Path(delete.path).stem, delete.alone) for delete in file.deletes] for file in task.files]
    of_many = ("deletes-00001", False)
    assert found == [[("deletes-00000", True), of_many], [of_many], []]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"content": DataFileContent.EQUALITY_DELETES}, "has equality deletes"),
        ({"kind": FileFormat.PUFFIN}, "has a file in PUFFIN format"),
    ],
)
def test_deletes_that_a_merge_does_not_apply_are_refused(whole, more, said):
    table = land(whole, [staged(0)])
    table = _land_deletes(whole, _delete_file(0, **more))

    with pytest.raises(SchemaIncompatible, match=said):
        plan_merge(table, [change(0)], KEY, parallelism=1)


def test_a_missing_key_column_is_refused(whole):
    with pytest.raises(SchemaIncompatible, match="is missing other of the stream's key"):
        plan_merge(whole.load(), [change(0)], MergeRules(("id", "other")), parallelism=1)


DAY = date(2013, 1, 2)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC).replace(tzinfo=None)
VALUES = [
    (BooleanType(), True, False),
    (IntegerType(), 1, 2),
    (LongType(), 1, 2**40),
    (DecimalType(9, 2), Decimal("1.25"), Decimal("-3.50")),
    (DateType(), DAY, date(1969, 5, 1)),
    (TimeType(), time(1, 2, 3), time(4)),
    (TimestampType(), datetime(2013, 1, 2, tzinfo=UTC).replace(tzinfo=None), EPOCH),
    (TimestamptzType(), datetime(2013, 1, 2, tzinfo=UTC), datetime(1960, 1, 1, tzinfo=UTC)),
    (StringType(), "a" * 40, "ä"),
    (UUIDType(), UUID(int=1).bytes, UUID(int=2**127 + 5).bytes),
    (FixedType(2), b"ab", b"\xff\x00"),
    (BinaryType(), b"a", b"\xff" * 40),
]


@pytest.mark.parametrize("transform", [IdentityTransform(), BucketTransform(4), None], ids=str)
@pytest.mark.parametrize(
    ("kind", "one", "other"), VALUES, ids=lambda value: str(value) if "(" not in str(value) else ""
)
def test_keys_of_every_type_find_their_files(catalog, kind, one, other, transform):
    if isinstance(transform, BucketTransform) and not transform.can_transform(kind):
        transform = None  # Iceberg has no buckets of it
    field = NestedField(1, "key", kind, required=True)
    parts = [] if transform is None else [PartitionField(1, 1000, transform, "part")]
    table = catalog.inner.create_table("demo.keyed", Schema(field), partition_spec=PartitionSpec(*parts))
    target = target_table(table, folder=f"{table.location()}/data")

    def write(to, value):
        writer = TableWriter(to, "main", io=table.io, file_name=file_namer(0, 0))
        rest = dict.fromkeys(writer.layout.arrow_schema.names)
        rest |= {"kafka_topic": "t", "kafka_partition": 0, "kafka_offset": 0, CHANGE: 0} if to is not target else {}
        rows = [{**rest, "key": value}]
        writer.add(pa.Table.from_pylist(rows, schema=writer.layout.arrow_schema))
        return writer.finish()

    prepared = SnapshotWriter(write(target, one)).prepare(table, summary={}, now_ms=1_800_000_000_000)
    catalog.inner.commit_table(table, prepared.requirements, prepared.updates)
    table = catalog.inner.load_table("demo.keyed")
    found = {
        value: sum(len(task.files) for task in plan_merge(table, write(changes, value), rules, parallelism=1).tasks)
        for changes, rules in [(UPSERT_MODE.staging_target(target, ("key",)), MergeRules(("key",)))]
        for value in (one, other)
    }
    # Other engines order UUIDs by halves with a sign; these two share a bucket.
    unbounded = isinstance(kind, UUIDType) and not isinstance(transform, IdentityTransform)
    assert found == {one: 1, other: int(unbounded)}
