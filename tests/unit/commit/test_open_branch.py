"""With `commit.align: watermark`, a reader of main sees each window whole or not at all; no row is lost, or twice."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.update import RemoveSnapshotRefUpdate, RemoveSnapshotsUpdate
from pyiceberg.transforms import DayTransform, HourTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestamptzType

from frazil.audit.run import audit_stream
from frazil.commit.committer import Committer
from frazil.commit.journal import Journal
from frazil.commit.marker import BatchKey, Marker, open_branch
from frazil.commit.marker_change import forget, reset
from frazil.commit.reset import standing
from frazil.commit.settle import bare_path, referenced, sweep
from frazil.errors import Fenced, RolledBack, SchemaIncompatible
from frazil.kafka.identity import SourceIdentity
from frazil.partitions.open_windows import Alignment
from frazil.partitions.windows import Grain
from frazil.spec.iceberg import DEAD_LETTER_SCHEMA

TOPIC, P0, P1 = "events", ("events", 0), ("events", 1)
SCHEMA = Schema(
    NestedField(1, "ts", TimestamptzType(), required=False),
    NestedField(2, "name", StringType(), required=False),
    NestedField(3, "kafka_partition", IntegerType(), required=True),
    NestedField(4, "kafka_offset", LongType(), required=True),
    NestedField(5, "kafka_topic", StringType(), required=False),
)
BY_HOUR = PartitionSpec(PartitionField(source_id=1, field_id=1000, transform=HourTransform(), name="ts_hour"))
BEGAN = datetime(2013, 12, 30, 10, tzinfo=UTC)
BRANCH = open_branch("events")
LATENESS = 30
ALIGN = Alignment("ts", Grain.HOUR, lateness_us=LATENESS * 60_000_000)
FAR = 3 * 24 * 60
"""Minutes ahead of all clocks: rows of a clock that nobody believes."""

Row = tuple[int, int]


def micros(minute: int) -> int:
    return int((BEGAN + timedelta(minutes=minute)).timestamp()) * 1_000_000


@dataclasses.dataclass
class Aligned:
    """A stream of two partitions, whose records have event times in minutes since `BEGAN`, or none."""

    world: Any
    log: dict[int, list[int | None]] = dataclasses.field(default_factory=lambda: defaultdict(list))
    committer: Committer = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.align(ALIGN)
        self.begin()

    def align(self, align: Alignment | None) -> None:
        self.world.tables = dataclasses.replace(self.world.tables, align=align)

    def begin(self) -> None:
        self.committer = self.world.begin()

    def stage(self, minutes: Sequence[Sequence[int | None]], idle: frozenset[tuple[str, int]] = frozenset()) -> Journal:
        """Produce records to each partition, and stage all that is unread."""
        marker = self.world.marker()
        ranges, rows, newest = {}, [], {}
        for p, produced in zip((0, 1), [*minutes, [], []], strict=False):
            self.log[p] += produced
            start, end = marker.offsets[TOPIC, p], len(self.log[p])
            if start < end:
                ranges[p] = (start, end)
                rows += [self._row(p, offset) for offset in range(start, end)]
                believed = [m for m in self.log[p][start:end] if m is not None and m < FAR]
                newest[p] = micros(max(believed)) if believed else None
        key = BatchKey(self.committer.epoch, marker.at.batch + 1)
        files = self.world._write(self.world.load(), key, "main", rows)
        journal = self.world.journal(key, ranges, files, idle=idle, seen=self.committer.letters_seen())
        progress = tuple(dataclasses.replace(p, max_event_time_us=newest[p.partition]) for p in journal.progress)
        return dataclasses.replace(journal, progress=progress)

    def run(self, *minutes: Sequence[int | None], idle: frozenset[tuple[str, int]] = frozenset()) -> None:
        journal = self.stage(minutes, idle)
        assert self.world.tables.journals.put(journal)
        self.committer.commit(journal)

    def _row(self, partition: int, offset: int) -> dict[str, Any]:
        minute = self.log[partition][offset]
        when = None if minute is None else BEGAN + timedelta(minutes=minute)
        return {"ts": when, "kafka_partition": partition, "kafka_offset": offset, "kafka_topic": TOPIC}

    def reset(self, target: dict[tuple[str, int], int]) -> None:
        world = self.world
        reset(world.tables, target=target, source=world.source, seen=standing(world.tables))
        self.begin()

    def head(self, branch: str = BRANCH) -> int | None:
        ref = self.world.load().metadata.refs.get(branch)
        return ref.snapshot_id if ref else None

    def main(self) -> list[Row]:
        return [row for row in self.world.rows() if row[0] < 99]

    def waiting(self) -> list[Row]:
        head = self.head()
        return self.world.rows(snapshot_id=head) if head else []

    def check(self) -> None:
        """Each row of what is committed once; windows that are complete whole in main, and of open ones nothing."""
        marker, main, waiting = self.world.marker(), self.main(), self.waiting()
        assert self.head() == marker.open_snapshot_id
        committed = {(p, o) for p in self.log for o in range(marker.offsets[TOPIC, p])}
        assert sorted(main + waiting) == sorted(committed)
        for row in committed:
            assert (row in waiting) == self.waits(self.log[row[0]][row[1]], marker), row

    def waits(self, minute: int | None, marker: Marker) -> bool:
        """Whether a row's window is open: by the marker alone, in other words than the code's."""
        if minute is None or (minute >= FAR and marker.max_event_times_us):
            return False
        return marker.watermark_us is None or marker.watermark_us < micros((minute // 60 + 1) * 60 + LATENESS)

    def check_storage(self) -> None:
        """Nothing is missing that a snapshot of either branch needs, and nothing is left over."""
        table = self.world.load()
        assert referenced(table) >= self.world.parquet_files()
        assert self.world.used_manifests() == self.world.manifests()


@pytest.fixture
def make(world: Any) -> Callable[..., Any]:
    """A stream by the hour in a catalog and folder of its own."""

    def fresh(folder: Path) -> Aligned:
        inner = SqlCatalog("lake", uri=f"sqlite:///{folder}/hourly.db", warehouse=(folder / "hourly").as_uri())
        inner.create_namespace("demo")
        inner.create_table("demo.events", SCHEMA, partition_spec=BY_HOUR)
        inner.create_table("demo.events_dead_letters", DEAD_LETTER_SCHEMA)
        return Aligned(type(world)(type(world.catalog)(inner), folder))

    return fresh


@pytest.fixture
def stream(make: Callable[..., Any], tmp_path: Path) -> Iterator[Aligned]:
    made = make(tmp_path)
    yield made
    made.world.catalog.inner.engine.dispose()


minutes = st.lists(st.integers(0, 359) | st.none() | st.just(FAR + 5), max_size=3)
steps = st.one_of(
    st.tuples(st.just("batch"), minutes, minutes),
    st.tuples(st.just("batch"), minutes, st.just([])),
    st.sampled_from([("tick", {P0, P1}), ("tick", {P1}), ("take over",), ("crash",), ("compact",), ("append",)]),
    st.sampled_from([("lost",), ("late",), ("meets",), ("fails",), ("expire",)]),
)


@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(st.lists(steps, min_size=4, max_size=10))
def test_a_reader_of_main_sees_each_window_whole_or_not_at_all(make: Any, walk: list[Any]) -> None:
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="frazil-open-", dir=memory if memory.is_dir() else None))
    stream = make(folder)
    try:
        for step in [*walk, ("batch", [0], [359]), ("tick", {P0, P1})]:
            take(stream, *step)
            stream.check()
        stream.check_storage()
        assert audit_stream(stream.world.tables).clean
    finally:
        stream.world.catalog.inner.engine.dispose()
        shutil.rmtree(folder)


def take(stream: Aligned, what: str, *more: Any) -> None:
    world = stream.world
    if what == "batch":
        stream.run(*more)
    elif what == "tick":
        stream.run(idle=frozenset(*more))
    elif what == "take over":
        stream.begin()
    elif what == "crash":
        assert world.tables.journals.put(stream.stage([[61], [100, 200]]))
        stream.begin()
    elif what == "append":
        world.foreign_append()
    elif what == "compact":
        if world.rows():
            world.compact()
    elif what == "expire":
        expire(stream)
    else:
        faults = {
            "lost": world.catalog.next_answer_is_lost,
            "late": world.catalog.next_lands_late,
            "meets": lambda: world.catalog.next_meets(world.foreign_append),
            "fails": lambda: world.catalog.next_fails_before(ConnectionError("down")),
        }
        faults[what]()
        stream.run([30, 90], [150])
        world.catalog.land_now()


def expire(stream: Aligned) -> None:
    """All snapshots but the heads go, with every manifest and file that only they used."""
    world = stream.world
    table = world.load()
    heads = {ref.snapshot_id for ref in table.metadata.refs.values()}
    gone = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id not in heads]
    if not gone:
        return
    files, manifests = referenced(table), world.used_manifests()
    world.catalog.inner.commit_table(table, (), (RemoveSnapshotsUpdate(snapshot_ids=gone),))
    left = world.load()
    for path in files - referenced(left):
        Path(path).unlink()
    for name in manifests - world.used_manifests():
        (Path(bare_path(left.location())) / "metadata" / name).unlink()


# One by one


def test_rows_of_an_open_window_wait_and_come_as_new_files_of_main(stream: Aligned) -> None:
    stream.run([10, 70], [20, 80])
    assert (stream.main(), len(stream.waiting())) == ([], 4)
    stream.run([95], [100])
    assert stream.main() == [(0, 0), (1, 0)]
    stream.check()

    head = stream.world.load().current_snapshot()
    added = [
        (entry.status, entry.snapshot_id, entry.sequence_number)
        for manifest in head.manifests(stream.world.load().io)
        for entry in manifest.fetch_manifest_entry(stream.world.load().io)
    ]
    assert added == [(ManifestEntryStatus.ADDED, head.snapshot_id, head.sequence_number)] * 1
    assert (head.summary["added-records"], head.summary["total-records"]) == ("2", "2")
    branch = stream.world.load().snapshot_by_id(stream.head())
    assert (branch.summary["deleted-records"], branch.summary["total-records"]) == ("2", "4")


def test_no_entry_says_that_a_file_of_main_was_deleted(stream: Aligned) -> None:
    for minute in range(0, 400, 45):
        stream.run([minute], [minute])
    table = stream.world.load()
    for snapshot in table.metadata.snapshots:
        for manifest in snapshot.manifests(table.io):
            assert manifest.deleted_files_count == 0
    assert stream.main()


def test_a_tick_completes_windows_and_a_late_row_goes_to_main_at_once(stream: Aligned) -> None:
    stream.run([10, 200], [20])
    assert stream.main() == []
    stream.run(idle=frozenset({P1}))
    assert stream.main() == [(0, 0), (1, 0)]
    stream.run([15], [])
    assert stream.main() == [(0, 0), (0, 2), (1, 0)]
    stream.check()


def test_rows_without_event_time_or_of_absurd_clocks_are_held_for_nobody(stream: Aligned) -> None:
    stream.run([10, None], [FAR, 15 + 24 * 60])
    assert stream.main() == [(0, 1), (1, 0)]
    assert stream.waiting() == [(0, 0), (1, 1)]


def test_while_nothing_is_known_of_the_event_time_everything_waits(stream: Aligned) -> None:
    stream.run([FAR], [FAR])
    assert stream.waiting() == [(0, 0), (1, 0)]
    stream.run([10], [])
    assert stream.waiting() == [(0, 1)]


def test_a_table_that_is_partitioned_more_coarsely_is_refused_before_anything_is_read(stream: Aligned) -> None:
    with stream.world.load().update_spec() as change:
        change.remove_field("ts_hour")
        change.add_field("ts", DayTransform(), "ts_day")
    with pytest.raises(SchemaIncompatible, match=r"evolve its partitioning to hour\(ts\)"):
        stream.begin()
    stream.align(Alignment("ts", Grain.DAY))
    stream.begin()
    stream.run([10], [24 * 60 + 10])
    assert stream.waiting() == [(0, 0), (1, 0)]


def test_switched_off_the_next_commit_shows_everything_and_removes_the_branch(stream: Aligned) -> None:
    stream.run([10, 70], [20, 80])
    stream.align(None)
    stream.begin()
    assert len(stream.waiting()) == 4
    stream.run([200], [])
    assert len(stream.main()) == 5
    assert stream.head() is None
    assert "open" not in stream.world.marker().to_property()
    assert stream.world.left_behind() == []
    stream.check_storage()


def test_a_stream_that_does_not_align_has_no_trace_of_it(stream: Aligned) -> None:
    stream.align(None)
    stream.begin()
    stream.run([10], [20])
    assert stream.main() == [(0, 0), (1, 0)]
    assert list(stream.world.load().metadata.refs) == ["main"]
    assert "open" not in stream.world.marker().to_property()


def test_the_branch_outlives_every_expiry_of_references(stream: Aligned) -> None:
    stream.run([10], [20])
    stream.run([11], [21])
    assert stream.world.load().metadata.refs[BRANCH].max_ref_age_ms == 2**63 - 1


# Resets


def drop_branch(stream: Aligned) -> None:
    table = stream.world.load()
    stream.world.catalog.inner.commit_table(table, (), (RemoveSnapshotRefUpdate(ref_name=BRANCH),))


def test_a_branch_that_was_dropped_is_refused_and_put_back_by_a_reset(stream: Aligned) -> None:
    stream.run([10, 70], [20, 80])
    drop_branch(stream)
    journal = stream.stage([[300], [300]])
    with pytest.raises(RolledBack, match="frazil reset events --to marker"):
        stream.committer.commit(journal)
    with pytest.raises(RolledBack):
        stream.begin()
    stream.reset(dict(stream.world.marker().offsets))
    stream.check()
    stream.run()
    assert len(stream.main()) == 4
    stream.check()


def test_a_branch_that_is_gone_with_its_snapshots_is_given_up_only_where_that_is_accepted(stream: Aligned) -> None:
    stream.run([10, 70], [20, 80])
    drop_branch(stream)
    expire(stream)
    with pytest.raises(RolledBack, match="was expired"):
        stream.reset({P0: 0, P1: 0})
    stream.reset(dict(stream.world.marker().offsets))
    assert (stream.waiting(), stream.world.marker().open_snapshot_id) == ([], None)
    stream.reset({P0: 0, P1: 0})
    stream.run()
    stream.check()


@pytest.mark.parametrize("target", [{P0: 0, P1: 0}, {P0: 1, P1: 1}, {P0: 2, P1: 2}])
def test_what_is_read_again_leaves_the_branch_and_what_is_not_stays(stream: Aligned, target: Any) -> None:
    stream.run([10], [20])
    stream.run([30], [40])
    stream.reset(target)
    assert stream.world.left_behind() == []
    assert stream.waiting() == sorted((p, o) for (_, p), end in target.items() for o in range(end))
    stream.run()
    stream.check()
    stream.run([200], [200])
    stream.check()
    stream.check_storage()
    assert audit_stream(stream.world.tables).clean


def test_a_batch_on_both_sides_of_a_new_position_stays_whole(stream: Aligned) -> None:
    stream.run([10, 11], [20, 21])
    stream.reset({P0: 1, P1: 2})
    assert stream.waiting() == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_rows_of_a_topic_that_was_made_again_are_read_by_nobody_and_stay(stream: Aligned) -> None:
    stream.run([10], [20])
    stream.world.source = SourceIdentity("cluster-1", {TOPIC: "topic-2"})
    stream.reset({P0: 0, P1: 0})
    assert stream.waiting() == [(0, 0), (1, 0)]


def test_a_writer_that_was_replaced_moves_neither_branch(stream: Aligned) -> None:
    stream.run([10], [20])
    old, journal = stream.committer, stream.stage([[200], [200]])
    stream.begin()
    heads = (stream.head("main"), stream.head())
    with pytest.raises(Fenced):
        old.commit(journal)
    assert (stream.head("main"), stream.head()) == heads


def test_after_a_rollback_of_main_the_branch_goes_back_with_it(stream: Aligned) -> None:
    stream.run([10, 70], [20, 80])
    stream.run([95], [100])
    assert stream.main() == [(0, 0), (1, 0)]
    stream.world.roll_back(1)
    with pytest.raises(RolledBack):
        stream.begin()
    seen = standing(stream.world.tables)
    assert seen.held == {P0: 2, P1: 2}
    stream.reset(dict(seen.held))
    assert sorted(stream.main() + stream.waiting()) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    stream.run()
    stream.check()
    stream.check_storage()
    assert audit_stream(stream.world.tables).clean


def test_a_stream_that_is_forgotten_leaves_all_its_rows_in_main(stream: Aligned) -> None:
    stream.run([10, 70], [20, 80])
    forget(stream.world.tables, state=str(stream.world.root / "nothing"))
    assert (len(stream.main()), stream.head()) == (4, None)
    assert stream.world.left_behind() == []
    stream.check_storage()


def test_the_sweep_knows_the_files_of_the_branch(stream: Aligned) -> None:
    stream.run([10, 70], [20, 80])
    for journal in list(stream.world.tables.journals.keys()):
        stream.world.lose_journal(journal)
    stream.begin()
    sweep(stream.world.tables, below_epoch=stream.committer.epoch)
    assert len(stream.waiting()) == 4


def test_rows_that_wait_have_landed_to_the_audit_with_and_without_coordinates(stream: Aligned) -> None:
    stream.run([10, 70], [20, 80])
    for coordinates in (True, False):
        assert audit_stream(stream.world.tables, coordinates=coordinates).clean
    drop_branch(stream)
    for coordinates in (True, False):
        assert not audit_stream(stream.world.tables, coordinates=coordinates).clean
