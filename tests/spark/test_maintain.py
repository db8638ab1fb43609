"""Maintenance in Spark on real tables: no row is lost or repeated, no needed file goes, and no writer waits."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.update import RemoveSnapshotsUpdate
from pyiceberg.transforms import DayTransform

from frazil.commit.commit_checks import check_ancestry, check_open_branch
from frazil.commit.expiry import Pins, plan_expiry
from frazil.commit.writer_expiry import WriterExpiry
from frazil.commit.writer_folding import WriterFolding
from frazil.errors import RolledBack
from frazil.maintenance import run as maintenance_run
from frazil.maintenance import spark_actions
from frazil.maintenance.compaction import CompactionPlan
from frazil.maintenance.due import Action
from frazil.maintenance.outcomes import Ending, Outcome, read_outcomes
from frazil.maintenance.plans import MaintenancePlanner
from frazil.maintenance.run import maintain
from frazil.maintenance.spark_actions import SparkTable
from frazil.maintenance.tables import MaintainedTable, find_maintained
from frazil.spec.load import load_stream
from frazil.table.catalogs import load_catalog
from tests.lineage_backend import tracing
from tests.made_batches import EventTimes, MadeStream
from tests.made_routes import MadeRoute

pytestmark = pytest.mark.usefixtures("shared_home")

DAY_US = 86_400_000_000
BEGIN_US = 1_388_361_600_000_000
"""30 December 2013."""
# Made rows are so much alike that differences would make large files as small as small ones.
YAML = """\
name: {name}
source: {{topics: [{name}], format: json, bootstrap-servers: '127.0.0.1:1'}}
table: {{identifier: maintain.{name}, properties: {{write.parquet.format-version: v1}}}}
schema:
  id: long not null
  at: timestamptz not null
  city: string
  code: binary
  price: decimal(9, 2)
  local: timestamp
  since: date
  good: boolean
  share: double
event-time: at
partition-by: [{partitions}]
{rest}
maintenance:
  compaction: {{min-files: 2, open-files: 4, strategy: {strategy}}}
  manifests: {{max-count: 4}}
  expiry: {{keep: 1h, at-least: 2, at-most: {at_most}}}
"""


def columns(rows: int) -> Mapping[str, pa.Array]:
    """Two days of rows; in every column some null, and some that are near 1970, negative, or no ASCII."""
    n = np.arange(rows)

    def pick(*values: Any) -> pa.Array:
        return pa.array([values[i // 2 % len(values)] for i in n])

    return {
        "id": pa.array(n % 5 - 2),
        "at": pa.array(BEGIN_US + n % 2 * DAY_US).cast(pa.timestamp("us", "UTC")),
        "city": pick("Zürich", "Z", None, "東京都"),
        "code": pick(b"\xff\xff", b"\x01\xff\x02", None, b"\x01"),
        "price": pick(Decimal("-1.50"), None, Decimal("100000.25")),
        "local": pick(1, None, BEGIN_US).cast(pa.timestamp("us")),
        "since": pick(-1, None, 20_000).cast(pa.int32()).cast(pa.date32()),
        "good": pick(True, None, False),
        "share": pick(0.0, None, float("nan"), -0.0),
    }


class Made:
    """A stream with commits, and its table as it is maintained."""

    def __init__(  # noqa: PLR0913 - what a stream is declared by
        self, spark: Any, folder: Path, name: str, partitions: str, rest: str = "", *, at_most: int = 500
    ) -> None:
        path, strategy = folder / f"{name}.yaml", "sort" if "sort-by" in rest else "binpack"
        path.write_text(YAML.format(name=name, partitions=partitions, rest=rest, strategy=strategy, at_most=at_most))
        self.folder, self.spec, self.spark = folder, load_stream(path), spark
        self.stream = MadeStream(self.spec, now_ms=0, partitions=1, columns=columns)
        self.catalog: Catalog = load_catalog(None)
        self.landed = 0

    def land(self, commits: int = 1, *, newest_us: int = BEGIN_US + 3 * DAY_US, rows: int = 24) -> None:
        for _ in range(commits):
            self.stream.now_ms = time.time_ns() // 1_000_000
            span = (self.landed, self.landed + rows)
            self.stream.land({0: span}, times=EventTimes(newest_us={0: newest_us}))
            self.landed += rows

    @property
    def table(self) -> Table:
        return self.catalog.load_table(self.spec.table.identifier)

    @property
    def maintained(self) -> MaintainedTable:
        return find_maintained([self.spec], self.spec.table.identifier)

    def plan(self) -> CompactionPlan:
        return MaintenancePlanner(self.catalog, self.maintained, time.time_ns() // 1_000_000).compaction()[1]

    def maintain(self, *actions: Action, later: timedelta = timedelta()) -> tuple[Outcome, ...]:
        now_ms = time.time_ns() // 1_000_000 + later // timedelta(milliseconds=1)
        return maintain(
            lambda: self.spark, self.catalog, self.maintained, actions=actions or tuple(Action), now_ms=now_ms
        )

    def offsets(self) -> Counter[int]:
        return Counter(self.table.scan(selected_fields=("kafka_offset",)).to_arrow()["kafka_offset"].to_pylist())

    def assert_whole(self) -> None:
        assert self.offsets() == Counter(range(self.landed))
        marker = self.stream.tables.marker()
        assert marker is not None
        check_ancestry(self.table.metadata, marker, table="it")
        check_open_branch(self.table.metadata, marker, table="it")


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return re.sub(r"\W", "_", request.node.name.removeprefix("test_"))[-60:].lower().lstrip("_0123456789")


def files_of(table: Table) -> Counter[tuple[Any, ...]]:
    """Data files by partition. Floats are text, since no NaN equals another, and both zeros are equal."""
    found = (task.file.partition for task in table.scan().plan_files())
    return Counter(tuple(str(value) if isinstance(value, float) else value for value in one) for one in found)


@pytest.mark.rotates(2)
@pytest.mark.parametrize(
    "partitions",
    [
        'day(at), "truncate(2, city)", "truncate(2, code)"',
        'hour(at), "bucket(3, id)", "truncate(10, id)", "truncate(50, price)"',
        "city, code, price",
        "local, since, good, month(at)",
        "share",
    ],
    ids=["texts", "numbers", "identities", "times", "floats"],
)
def test_only_the_chosen_partitions_are_compacted_with_any_partitioning(
    spark: Any, tmp_path: Path, name: str, partitions: str
) -> None:
    made = Made(spark, tmp_path, name, partitions)
    made.land(4)
    before, rows = files_of(made.table), texts(made.table)
    plan = made.plan()
    assert len(plan.rewrites) == len(before) > 2
    chosen = plan.rewrites[:: max(2, len(before) // 4)]  # each is a job of Spark's
    done = SparkTable.load(spark, made.catalog, made.table).rewrite(chosen, sort=False)
    assert (done.removed, done.added, done.failed) == (4 * len(chosen), len(chosen), 0)
    assert sorted(files_of(made.table).values()) == [1] * len(chosen) + [4] * (len(before) - len(chosen))
    assert {p.path for p in (r.partition for r in chosen)}.isdisjoint(r.partition.path for r in made.plan().rewrites)
    assert texts(made.table) == rows


def test_partitions_whose_value_is_too_long_for_a_path_are_compacted_if_paths_have_no_values(
    spark: Any, tmp_path: Path, name: str
) -> None:
    """See apache/datafusion-comet#5836: Spark names a folder like the partition."""
    made = Made(spark, tmp_path, name, "city")
    made.stream.columns = lambda rows: {**columns(rows), "city": pa.array(["é" * 120, "x"] * (rows // 2))}
    made.land(4)
    (done,) = made.maintain(Action.COMPACTION)
    assert (done.ending, "partitions not rewritten: 1 (folder names that are too long)" in str(done)) == (
        Ending.DONE,
        True,
    )
    assert sorted(files_of(made.table).values()) == [1, 4]
    with made.table.transaction() as changed:
        layout = {"enabled": "true", "partitioned-paths": "false"}
        changed.set_properties({f"write.object-storage.{key}": value for key, value in layout.items()})
    made.maintain(Action.COMPACTION)
    assert sorted(files_of(made.table).values()) == [1, 1]
    made.assert_whole()


def test_a_table_is_sorted_as_it_is_compacted_and_an_open_partition_waits_for_more_files(
    spark: Any, tmp_path: Path, name: str
) -> None:
    made = Made(spark, tmp_path, name, "day(at)", "sort-by: [id desc]")
    made.land(3, newest_us=BEGIN_US + DAY_US)
    (left,) = made.plan().left
    assert left.reason == "it is still being written, and 3 small files are fewer than 4"
    (compaction,) = made.maintain(Action.COMPACTION)
    assert (compaction.ending, compaction.numbers["files-removed"]) == (Ending.DONE, 3)
    assert sorted(files_of(made.table).values()) == [1, 3]
    reported = made.table.current_snapshot().summary  # type: ignore[union-attr]
    assert compaction.numbers["bytes-added"] == int(reported["added-files-size"])  # type: ignore[index,arg-type]
    made.land(newest_us=BEGIN_US + DAY_US)
    made.maintain(Action.COMPACTION)
    assert sorted(files_of(made.table).values()) == [1, 1]
    newest = [task.file.file_path for task in made.table.scan().plan_files() if task.file.record_count == 48]
    ids = pq.read_table(newest[0].removeprefix("file:"))["id"].to_pylist()
    assert ids == sorted(ids, reverse=True)
    made.assert_whole()


def test_files_of_an_older_spec_are_rewritten_only_if_their_time_is_in_a_planned_partition(
    spark: Any, tmp_path: Path, name: str
) -> None:
    made = Made(spark, tmp_path, name, "month(at)")
    made.land(3)
    with made.table.update_spec() as spec:
        spec.remove_field("at_month").add_field("at", DayTransform(), "at_day")
    made.stream.columns = later
    made.land(3, newest_us=BEGIN_US + 70 * DAY_US)
    assert rewritten(made) == (6, 0)
    made.stream.columns = columns
    made.land(3)
    assert rewritten(made) == (6, 3)
    assert {task.file.spec_id for task in made.table.scan().plan_files()} == {made.table.spec().spec_id}
    made.assert_whole()


def later(rows: int) -> Mapping[str, pa.Array]:
    """The same in another month."""
    at_us = BEGIN_US + (60 + np.arange(rows) % 2) * DAY_US
    return {**columns(rows), "at": pa.array(at_us).cast(pa.timestamp("us", "UTC"))}


def rewritten(made: Made) -> tuple[int, int]:
    """Files as planned of the chosen partitions, and next to them, where Iceberg took exactly that many."""
    plan = made.plan()
    done = SparkTable.load(made.spark, made.catalog, made.table).rewrite(plan.rewrites, sort=False)
    beside = sum(r.old_spec_files for r in plan.rewrites)
    assert (done.removed, done.failed, done.lost, done.errors) == (plan.files + beside, 0, (), ())
    return plan.files, beside


def test_compaction_takes_only_the_smallest_files_of_a_partition_beyond_the_budget(
    spark: Any, tmp_path: Path, name: str
) -> None:
    made = Made(spark, tmp_path, name, "day(at)")
    made.land(2, rows=40_000)
    made.land(8)
    sizes = sorted(task.file.file_size_in_bytes for task in made.table.scan().plan_files())
    whole = made.plan().rewrites[0]
    part = dataclasses.replace(whole, files=6, below_bytes=sizes[15] + 1)
    done = SparkTable.load(spark, made.catalog, made.table).rewrite([part], sort=False)
    assert (done.removed, done.added) == (6, 1)
    assert done.bytes < sizes[-4]
    made.assert_whole()


def test_a_compaction_plan_for_which_iceberg_finds_no_file_fails_with_that_reason(
    spark: Any, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(spark, tmp_path, name, "day(at)")
    made.land(3)
    find = spark_actions.build_partition_filter
    monkeypatch.setattr(spark_actions, "build_partition_filter", lambda jvm, _, **of: find(jvm, [(1,)], **of))
    recreate_table = MaintenancePlanner.compaction

    def overtaken(planner: MaintenancePlanner) -> Any:
        plan = recreate_table(planner)
        made.land()
        return plan

    monkeypatch.setattr(MaintenancePlanner, "compaction", overtaken)
    (compaction,) = made.maintain(Action.COMPACTION)
    assert (compaction.ending, compaction.exit_code) == (Ending.FAILED, 1)
    assert "Iceberg does not find the files" in compaction.sentence


def test_a_writer_commits_throughout_and_every_row_exists_once(spark: Any, tmp_path: Path, name: str) -> None:
    made, ended, failures = Made(spark, tmp_path, name, "day(at)"), threading.Event(), []
    made.land(6)

    def write() -> None:
        try:
            while not ended.wait(0.5):
                made.land()
        except BaseException as error:
            failures.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        outcomes = made.maintain(later=timedelta(hours=2))
    finally:
        ended.set()
        writer.join(60)
    assert not failures
    assert [str(o) for o in outcomes if o.ending is Ending.FAILED] == []
    assert outcomes[0].numbers["files-removed"] > 0
    expiry = outcomes[2]
    if expiry.ending is Ending.GAVE_UP:  # each of its attempts lost against a commit; alone it has to succeed
        (expiry,) = made.maintain(Action.EXPIRY, later=timedelta(hours=2))
    assert expiry.ending is Ending.DONE
    made.assert_whole()


def test_a_compaction_lands_although_writers_expire_snapshots_meanwhile(
    spark: Any, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(spark, tmp_path, name, "day(at)", at_most=4)
    made.land(6)
    begun = made.table.metadata.current_snapshot_id
    rewrite = SparkTable._rewrite

    def after_expiry(table: SparkTable, *arguments: Any, **options: Any) -> Any:
        made.land(6)
        metadata, now_ms = made.table.metadata, time.time_ns() // 1_000_000
        plan = plan_expiry(metadata, made.maintained.settings.expiry, Pins(), table=name, now_ms=now_ms)
        assert plan.expire
        made.table.catalog.commit_table(made.table, (), (RemoveSnapshotsUpdate(snapshot_ids=list(plan.expire)),))
        return rewrite(table, *arguments, **options)

    monkeypatch.setattr(SparkTable, "_rewrite", after_expiry)
    (compaction,) = made.maintain(Action.COMPACTION)
    assert compaction.ending is Ending.DONE, compaction
    assert begun in {snapshot.snapshot_id for snapshot in made.table.metadata.snapshots}
    assert set(made.table.metadata.refs) == {"main"}
    made.assert_whole()


def on_disk(table: Table) -> set[str]:
    """Data files, manifests and manifest lists."""
    root = Path(table.location().removeprefix("file://"))
    return {str(p) for pattern in ("data/**/*.parquet", "metadata/*.avro") for p in root.glob(pattern)}


def referenced(table: Table) -> set[str]:
    """The files that any snapshot of the table refers to."""
    found: set[str] = set()
    for snapshot in table.metadata.snapshots:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            found |= {manifest.manifest_path, *(e.data_file.file_path for e in manifest.fetch_manifest_entry(table.io))}
    return {path.removeprefix("file:").replace("///", "/") for path in found}


def test_expiry_removes_unreferenced_snapshots_and_only_the_files_that_they_alone_used(
    spark: Any, tmp_path: Path, name: str
) -> None:
    made = Made(spark, tmp_path, name, "hour(at)", "commit: {align: watermark}\ncomplete: hour")
    made.land(2, newest_us=BEGIN_US + DAY_US)  # the second day's rows wait on the open branch
    tagged = tag(made, "release")
    made.land(2, newest_us=BEGIN_US + DAY_US)
    with made.table.manage_snapshots() as refs:
        refs.create_branch(snapshot_id=head(made), branch_name="audit")
    forked = head(made)
    made.land(4, newest_us=BEGIN_US + DAY_US)
    made.maintain(Action.COMPACTION)
    made.land(2)
    kept = {head(made), made.table.metadata.snapshot_by_id(head(made)).parent_snapshot_id, tagged, forked}  # type: ignore[union-attr]
    rows, everything = texts(made.table), len(made.table.metadata.snapshots)
    (expiry,) = made.maintain(Action.EXPIRY, later=timedelta(hours=2))
    assert expiry.ending is Ending.DONE, str(expiry)
    after = made.table.metadata
    waiting = {
        int(s.summary["frazil.open-snapshot-id"] or 0) for s in after.snapshots if s.snapshot_id in kept and s.summary
    }
    left = {s.snapshot_id for s in after.snapshots}
    assert left == kept | (waiting - {0}) | {ref.snapshot_id for ref in after.refs.values()}
    assert expiry.numbers["snapshots-expired"] == everything - len(left) > 5
    assert on_disk(made.table) == referenced(made.table)
    assert expiry.numbers["data-files-removed"] > 0
    assert expiry.numbers["bytes-about"] > 0
    assert [(past.action, past.numbers) for past in read_outcomes(made.table)][-1] == ("expiry", expiry.numbers)
    assert texts(made.table) == rows
    assert made.table.scan(snapshot_id=tagged).to_arrow().num_rows == 24
    made.assert_whole()
    made.land(2)
    made.assert_whole()


def test_expiry_removes_the_files_of_folds_that_a_writer_expired(
    spark: Any, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(spark, tmp_path, name, "day(at)", at_most=4)
    main, stage, journals = made.stream.tables.main, made.stream.stage, list[Any]()
    monkeypatch.setattr(made.stream, "stage", lambda *a, **named: journals.append(stage(*a, **named)) or journals[-1])
    clock: Any = lambda: made.stream.now_ms  # noqa: E731
    at_once: Any = lambda work: work()  # noqa: E731
    main.expiry = WriterExpiry(made.maintained.settings.expiry, Pins, clock, at_once, 0)
    folding = WriterFolding(made.spec.name, main, 3, clock, at_once)
    for _ in range(30):
        made.land()
        folding.continue_after(journals[-1].staged_for("main"))
        main.expiry.continue_after(main.current())
    while folding._rewritten:
        folding.continue_after(())
    main.expiry.end()
    (expiry,) = made.maintain(Action.EXPIRY, later=timedelta(hours=2))
    assert expiry.numbers["data-files-removed"] > 30
    assert on_disk(made.table) == referenced(made.table)
    made.assert_whole()


@pytest.mark.rotates(2, turn=1)
def test_spark_reads_compacts_and_expires_a_table_whose_small_manifests_a_writer_merged(
    spark: Any, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frazil.commit.manifest_lists.FAN_IN", 3)
    made = Made(spark, tmp_path, name, "day(at)")
    made.land(11)
    newest = made.table.current_snapshot()
    assert newest is not None
    assert len(newest.manifests(made.table.io)) < 8
    read = spark.table(f"default.maintain.{name}")
    assert read.count() == made.landed
    days = read.where("at >= TIMESTAMP '2013-12-31 00:00:00 UTC'").selectExpr("count(*)", "min(kafka_offset)").first()
    assert tuple(days) == (made.landed // 2, 1)
    changes = spark.read.option("start-snapshot-id", str(made.table.metadata.snapshots[3].snapshot_id)).option(
        "end-snapshot-id", str(newest.snapshot_id)
    )
    added = changes.format("iceberg").load(f"default.maintain.{name}").count()
    assert added == sum(int(s.summary["added-records"]) for s in made.table.metadata.snapshots[4:] if s.summary)
    streamed = list[Any]()
    stream = spark.readStream.format("iceberg").option("streaming-max-files-per-micro-batch", "1")
    stream = stream.option("stream-from-timestamp", str(made.table.metadata.snapshots[0].timestamp_ms))
    query = stream.load(f"default.maintain.{name}").writeStream.option("checkpointLocation", str(tmp_path / "stream"))
    query = query.foreachBatch(lambda rows, _: streamed.extend(rows.select("kafka_offset").collect()))
    query.trigger(availableNow=True).start().awaitTermination()
    assert len(streamed) == made.landed
    done = made.maintain(later=timedelta(hours=2))
    assert [one.ending for one in done] == [Ending.DONE, Ending.DONE, Ending.DONE]
    made.land(4)
    made.assert_whole()


@pytest.mark.parametrize("rows", [0, 5])
def test_a_table_that_spark_replaced_is_noticed(spark: Any, tmp_path: Path, name: str, rows: int) -> None:
    made = Made(spark, tmp_path, name, "day(at)")
    made.land(2)
    made.assert_whole()
    table = f"default.{made.spec.table.identifier}"
    spark.sql(f"CREATE OR REPLACE TABLE {table} USING iceberg AS SELECT * FROM {table} LIMIT {rows}")
    assert sum(made.offsets().values()) == rows
    with pytest.raises(RolledBack, match="was replaced"):
        made.land()


def test_the_first_commit_wins_and_the_maintenance_run_continues(
    spark: Any, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(spark, tmp_path, name, "day(at)")
    made.land(5)
    load, rivals = SparkTable.load, iter([lambda: made.table.delete("id < 2"), lambda: tag(made, "mine", oldest=True)])

    def overtaken(*arguments: Any) -> SparkTable:
        opened = load(*arguments)
        next(rivals)()
        return opened

    monkeypatch.setattr(SparkTable, "load", overtaken)
    compaction, expiry = made.maintain(Action.COMPACTION, Action.EXPIRY, later=timedelta(hours=2))
    assert compaction.ending is expiry.ending is Ending.GAVE_UP
    assert compaction.numbers["files-missed"] == 10
    assert "Still referenced by refs" in expiry.sentence
    assert made.offsets() == Counter(n for n in range(made.landed) if n % 24 % 5 - 2 >= 2)


def test_the_app_maintains_one_table_after_the_other_and_reports_each(
    spark: Any, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(spark, tmp_path, name, "day(at)")
    made.land(3)
    monkeypatch.setattr(maintenance_run, "start_session", lambda *_: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    report = tmp_path / "report.json"
    table = made.spec.table.identifier
    run = [f"{table}_dead_letters", table, "frazil.signals"]
    with tracing(monkeypatch) as received:
        assert maintenance_run.run_maintenance(run, streams=tmp_path, actions=set(Action), report=report) == 0
    job = f"maintenance.{table}"
    assert [(e["eventType"], e["job"]["name"]) for e in received] == [("START", job), ("COMPLETE", job)]
    done = received[1]["run"]["facets"]["frazil_maintenance"]["actions"]
    assert [(one["action"], one["ending"]) for one in done] == [("compaction", "done"), ("manifests", "done")]
    found = json.loads(report.read_text())
    assert [(o["table"], o["action"]) for o in found] == [(t, a) for t in run for a in Action]
    assert [o["ending"] for o in found if o["table"] == table] == ["done", "done", "skipped"]
    assert set(found[3]["numbers"]) >= {"files-removed", "bytes", "seconds", "mb-per-second"}
    with made.table.transaction() as change:
        change.set_properties({"frazil.stream.other": "{}"})
    assert maintenance_run.run_maintenance(run, streams=tmp_path, actions={Action.COMPACTION}, report=report) == 18
    assert maintenance_run.run_maintenance(["no.such"], streams=tmp_path, actions=set(Action)) == 10


def test_one_session_compacts_all_tables_of_a_route_and_a_broken_table_stops_no_other(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
name: market
source: {topics: [market], bootstrap-servers: "127.0.0.1:1"}
table: market.other
schema: {kind: string, at: timestamptz}
event-time: at
route: {by: field, name: kind, template: "market.raw_{value}"}
maintenance: {compaction: {min-files: 2, open-files: 2}, expiry: {keep: 1ms, at-least: 1}}
"""
    (tmp_path / "market.yaml").write_text(text)
    market = MadeRoute(load_stream(tmp_path / "market.yaml"), time.time_ns() // 1_000_000)
    tables = [f"market.raw_{value}" for value in "abc"]
    market.begin_route(*"abc")
    for _ in range(3):
        market.run(dict.fromkeys(tables, 2))
    catalog = load_catalog(None)
    with catalog.load_table("market.raw_a").transaction() as change:
        change.set_properties({"frazil.stream.other": "{}"})
    market.batch({"market.raw_b": 2})  # its rows wait
    monkeypatch.setattr(maintenance_run, "start_session", lambda *_: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    report = tmp_path / "report.json"
    assert maintenance_run.run_maintenance(tables, streams=tmp_path, actions=set(Action), report=report) == 1
    found = {(o["table"], o["action"]): o["ending"] for o in json.loads(report.read_text())}
    assert [found[table, "expiry"] for table in tables] == ["refused", "done", "done"]
    assert [found[table, "compaction"] for table in tables[1:]] == ["done", "done"]
    market.follow()
    for table, rows in (("market.raw_b", 8), ("market.raw_c", 6)):
        loaded = catalog.load_table(table)
        assert loaded.scan().count() == rows
        assert len(loaded.inspect.files()) == (2 if rows == 8 else 1)


def tag(made: Made, label: str, *, oldest: bool = False) -> int:
    """Name main's head, or its oldest snapshot; its id."""
    found = (
        min(made.table.metadata.snapshots, key=lambda s: s.sequence_number or 0).snapshot_id if oldest else head(made)
    )
    with made.table.manage_snapshots() as refs:
        refs.create_tag(snapshot_id=found, tag_name=label)
    return found


def head(made: Made) -> int:
    return made.table.metadata.current_snapshot_id or 0


def texts(table: Table) -> list[str]:
    """Return all rows as texts, because no NaN equals another."""
    return sorted(map(str, table.scan().to_arrow().to_pylist()))


@pytest.mark.rotates(3)
def test_a_jvm_failure_is_reported_with_its_first_cause_and_its_stack_trace_is_in_the_log(
    tmp_path: Path,
) -> None:
    made = Made(None, tmp_path, "damaged_file", "day(at)")
    made.land(4)
    (file, *_) = made.table.scan().plan_files()
    Path(file.file.file_path.removeprefix("file://")).write_bytes(b"PAR1 damaged PAR1")
    command = [sys.executable, "-m", "frazil", "maintain", made.spec.table.identifier, "--actions", "compaction"]
    done = subprocess.run([*command, "--streams", tmp_path], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "4 were not rewritten: 4 failed before their commit, see Spark's log" in done.stdout
    assert "\tat " not in done.stdout + done.stderr
    found = re.search(r"^Spark reported: (.*)\. The log has the details: (.*)$", done.stderr, re.MULTILINE)
    assert found is not None, done.stderr
    assert done.stderr.splitlines() == [found[0]], "what the JVM prints before it reads its configuration is in the log"
    assert found[1].startswith("java.io.EOFException: ")
    assert "\tat org.apache.iceberg" in Path(found[2]).read_text()
