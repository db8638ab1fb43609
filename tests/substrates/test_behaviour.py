"""What frazil guarantees for a stream holds in each supported catalog and storage, with real servers."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import SetSnapshotRefUpdate

from frazil import clock
from frazil.aggregate.day_input import choose_input
from frazil.aggregate.run import DayRun, aggregate_day
from frazil.aggregate.spec import AggregationSpec
from frazil.backfill.request import parse_request
from frazil.backfill.run import open_backfill
from frazil.backfill.stage import run as run_backfill
from frazil.commit.backfill_records import BackfillState
from frazil.commit.catalog_probe import probe
from frazil.commit.expiry import Pins
from frazil.commit.marker import open_branch_name
from frazil.commit.settle import SettleResult, settle
from frazil.commit.snapshot import SnapshotWriter
from frazil.commit.stream_tables import StreamTables
from frazil.commit.writer_expiry import WriterExpiry
from frazil.errors import Fenced, RolledBack, SpecError, StaleBatch
from frazil.events import EpochBegan, Event
from frazil.history.objects import HistoryStore, read_history
from frazil.history.recorder import Recorder
from frazil.ingest.contract import RangeProgress
from frazil.maintenance import orphan_cleanup, outcomes
from frazil.maintenance.due import Action
from frazil.maintenance.orphan_cleanup import clean_orphans
from frazil.maintenance.outcomes import Ending
from frazil.maintenance.run import maintain
from frazil.maintenance.tables import find_maintained
from frazil.signals.completion import Assessment, assess_table, signal_windows
from frazil.spec.maintenance import Expiry
from frazil.spec.model import StreamSpec
from frazil.table.branches import head_of
from frazil.table.catalogs import load_catalog
from frazil.table.object_store import FileInfo, ObjectStore
from frazil.table.storage import open_store
from tests.in_process_engine import InProcessEngine
from tests.made_batches import EventTimes, MadeStream
from tests.substrates.conftest import NOW_MS, VERSION, configure, soaked_but, view_of

Made = Callable[[], MadeStream]


def rows(tables: StreamTables, *, dead_letters: bool = False) -> list[tuple[int, int]]:
    """Partition and offset of each row: duplicates show."""
    handle = tables.dead_letters if dead_letters else tables.main
    found = handle.refresh().scan(selected_fields=("kafka_partition", "kafka_offset")).to_arrow()
    return sorted(zip(*(found[name].to_pylist() for name in ("kafka_partition", "kafka_offset")), strict=True))


def offsets(partition: int, start: int, end: int) -> list[tuple[int, int]]:
    return [(partition, offset) for offset in range(start, end)]


def staged(stream: MadeStream, start: int, end: int) -> Any:
    """A batch of partition 0 that is journaled, and not committed."""
    return stream.stage(
        [RangeProgress(stream.topic, 0, start, end, end - start, 0, None)], {0: np.arange(start, end)}, {}
    )


def files(tables: StreamTables, table: Table, folder: str) -> set[str]:
    """Names of the files in a folder of the table, as its storage lists them."""
    return {f.path.rsplit("/", 1)[-1] for f in tables.store.list_files(f"{table.location().rstrip('/')}/{folder}")}


def test_the_catalog_passes_the_probe_which_leaves_nothing(stream_spec: StreamSpec) -> None:
    catalog = load_catalog(stream_spec.table.catalog)
    assert probe(catalog, stream_spec, now_ms=NOW_MS) == ()
    assert not catalog.namespace_exists("substrates") or not [
        name for _, name in catalog.list_tables("substrates") if name.startswith("frazil_probe")
    ]


@pytest.mark.soak
@pytest.mark.parametrize("substrate", ["hive+local"], indirect=True)
def test_the_probe_finds_that_hive_2_does_not_have_a_type(
    substrate: str, stream_spec: StreamSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(monkeypatch, substrate, {"hive.hive2-compatible": "false"})
    with pytest.raises(SpecError, match=r"hive.hive2-compatible: true"):
        probe(load_catalog(stream_spec.table.catalog), stream_spec, now_ms=NOW_MS)


def test_batches_land_once_each_with_their_dead_letters(made: Made) -> None:
    stream = made()
    stream.land({0: (0, 100), 1: (0, 50)})
    marker = stream.land({0: (100, 200)}, rejected={0: [100, 150]})
    good = [row for row in offsets(0, 0, 200) if row[1] not in (100, 150)] + offsets(1, 0, 50)
    assert rows(stream.tables) == sorted(good)
    assert rows(stream.tables, dead_letters=True) == [(0, 100), (0, 150)]
    assert stream.tables.main.current().metadata.format_version == VERSION
    assert marker.offsets == {(stream.topic, 0): 200, (stream.topic, 1): 50}


def test_a_history_is_stored_next_to_the_table_and_continued_by_the_next_epoch(made: Made) -> None:
    stream = made()
    stream.land({0: (0, 10)})
    objects = HistoryStore.open(stream.tables.main.current(), stream.spec.name)
    for epoch in (1, 2):
        recorder = Recorder(stream.spec.name, interval_ms=60_000)
        recorder.opens(lambda: objects)
        began = EpochBegan(epoch, stream.tables.marker(), SettleResult())  # type: ignore[arg-type]
        recorder.take(Event(stream.spec.name, NOW_MS, began))
        recorder.write(NOW_MS)
    assert {found.epoch for found in objects.list_objects()} == {2}
    history = read_history(stream.spec, since_ms=0)
    assert history.problem is None
    assert len(history.events) == 2


def test_a_take_over_fences_the_writer_before_it(made: Made) -> None:
    first, second = made(), made()
    first.land({0: (0, 10)})
    waiting = staged(first, 10, 20)
    second.begin()
    settle(second.tables, second.committer)  # type: ignore[arg-type]
    with pytest.raises((Fenced, StaleBatch)):
        first.committer.commit(waiting)  # type: ignore[union-attr]
    second.land({0: (20, 30)})
    assert rows(second.tables) == offsets(0, 0, 30)


def test_a_journaled_batch_of_a_dead_writer_is_committed_by_the_next_without_being_staged_again(made: Made) -> None:
    dead, following = made(), made()
    dead.land({0: (0, 10)})
    journal = staged(dead, 10, 20)
    settled = settle(following.tables, following.begin())
    assert settled.committed == (journal,)
    assert rows(following.tables) == offsets(0, 0, 20)


def test_files_that_will_never_be_committed_are_found_by_listing_and_deleted(made: Made) -> None:
    dead, following = made(), made()
    dead.land({0: (0, 10)})
    table = dead.tables.main.refresh()
    before = files(dead.tables, table, "data")
    marker = dead.tables.marker()
    assert marker is not None
    dead.write(table, type(marker.key)(marker.key.epoch, marker.key.batch + 1), "main", {0: np.arange(10, 20)})
    assert files(dead.tables, table, "data") > before
    assert settle(following.tables, following.begin()).deleted_files == 1
    assert files(dead.tables, table, "data") == before


def test_a_commit_whose_answer_is_lost_lands_once_and_every_manifest_of_the_table_stays(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = made()
    stream.land({0: (0, 10)})
    catalog = stream.tables.main.refresh().catalog
    commit, lost = catalog.commit_table, 0

    def unanswered(*change: Any) -> Any:
        nonlocal lost
        answer = commit(*change)
        lost += 1
        if lost == 1:
            raise ConnectionError("the answer was lost")
        return answer

    monkeypatch.setattr(catalog, "commit_table", unanswered)
    stream.land({0: (10, 20)})
    assert rows(stream.tables) == offsets(0, 0, 20)
    table = stream.tables.main.refresh()
    used = {
        path.rsplit("/", 1)[-1]
        for snapshot in table.metadata.snapshots
        for path in (snapshot.manifest_list, *(m.manifest_path for m in snapshot.manifests(table.io)))
    }
    assert {name for name in files(stream.tables, table, "metadata") if name.endswith(".avro")} == used


def test_a_commit_that_lost_a_race_is_tried_again_on_the_new_base(made: Made) -> None:
    stream = made()
    stream.land({0: (0, 10)})
    stream.tables.main.current()
    # Another user changes the table after the writer last saw it.
    other = load_catalog(stream.spec.table.catalog).load_table(stream.spec.table.identifier)
    empty = SnapshotWriter(()).prepare(other, summary={}, now_ms=NOW_MS)
    other.catalog.commit_table(other, empty.requirements, empty.updates)
    stream.land({0: (10, 20)})
    assert rows(stream.tables) == offsets(0, 0, 20)


def test_a_writer_expires_old_snapshots_with_its_commits_and_deletes_their_files(made: Made) -> None:
    stream = made()
    settings = Expiry(at_least=2, at_most=4)
    expiry = WriterExpiry(settings, Pins, lambda: NOW_MS, start=lambda work: work(), delete_delay_ms=0)
    stream.tables.main.expiry = expiry
    for number in range(12):
        stream.land({0: (10 * number, 10 * number + 10)})
        expiry.continue_after(stream.tables.main.current())
    expiry.end()
    table = stream.tables.main.refresh()
    assert len(table.metadata.snapshots) <= 6
    assert len(table.metadata.snapshot_log) <= 6
    assert listed(stream.tables, table) == referenced(table)
    assert rows(stream.tables) == offsets(0, 0, 120)


def test_a_table_that_was_rolled_back_is_refused(made: Made) -> None:
    stream = made()
    stream.land({0: (0, 10)})
    first = stream.tables.main.refresh().current_snapshot()
    assert first is not None
    stream.land({0: (10, 20)})
    stream.land({0: (20, 30)})
    table = stream.tables.main.refresh()
    back = SetSnapshotRefUpdate(ref_name="main", type=SnapshotRefType.BRANCH, snapshot_id=first.snapshot_id)
    table.catalog.commit_table(table, (), (back,))
    with pytest.raises(RolledBack):
        made().begin()


def test_the_first_of_two_journals_of_one_batch_is_kept(made: Made) -> None:
    stream = made()
    stream.land({0: (0, 10)})
    journal = staged(stream, 10, 20)
    assert not stream.tables.journals.put(dataclasses.replace(journal, created_at_ms=NOW_MS + 1))
    assert stream.committer.commit(journal).offsets[stream.topic, 0] == 20  # type: ignore[union-attr]


NOON_US = 1_388_404_800_000_000
"""2013-12-30T12:00:00Z."""
MINUTE_US, HOUR_US, HOUR_MS = 60_000_000, 3_600_000_000, 3_600_000


class Minutes:
    """A stream of a record a minute, from noon on, whose hours complete."""

    def __init__(self, spec: StreamSpec) -> None:
        self.spec, self.catalog, self.stream = spec, load_catalog(spec.table.catalog), view_of(spec)
        self.stream.begin()
        self.read = 0

    def send(self, first: int, last: int) -> None:
        """Commit the records of the minutes `[first, last)` as one batch of partition 0; 1 has come as far."""
        times = [NOON_US + minute * MINUTE_US for minute in range(first, last)]
        self.stream.columns = lambda _: {"at": pa.array(times).cast(pa.timestamp("us", "UTC"))}
        begin, self.read = self.read, self.read + len(times)
        windows = Counter(us // HOUR_US * HOUR_US for us in times)
        self.stream.land(
            {0: (begin, self.read), 1: (0, 0)}, times=EventTimes(dict.fromkeys((0, 1), max(times)), windows)
        )

    def assess(self) -> Assessment:
        seen = assess_table(self.catalog, [self.spec])
        assert seen is not None
        return seen

    def signal(self, seen: Assessment | None = None) -> list[tuple[str, int, int, int]]:
        """Signal windows; returns the hour, revision, rows and late rows of each."""
        sent = signal_windows(self.catalog, seen or self.assess(), clock_ms=NOW_MS)
        return [(s.partition[-3:], s.revision, s.rows, s.late_rows) for s in sent]


@soaked_but("sqlite+local", "rest+s3")
def test_a_complete_hour_is_signalled_once_and_once_more_when_late_rows_reopen_it(
    declare: Callable[..., StreamSpec],
) -> None:
    minutes = Minutes(declare(complete="hour"))
    minutes.send(0, 10)
    assert minutes.signal() == []
    minutes.send(10, 130)
    first, at_once = minutes.assess(), minutes.assess()
    assert minutes.signal(first) == [("T12", 1, 60, 0), ("T13", 1, 60, 0)]
    assert minutes.signal(at_once) == []
    minutes.send(5, 8)
    assert minutes.signal() == [("T12", 2, 63, 3)]
    assert minutes.signal() == []


@soaked_but("sqlite+local", "rest+s3")
def test_rows_of_an_open_hour_wait_on_a_branch_until_it_is_complete(declare: Callable[..., StreamSpec]) -> None:
    minutes = Minutes(declare(complete="hour", commit={"align": "watermark"}))
    minutes.send(0, 90)
    assert rows(minutes.stream.tables) == offsets(0, 0, 60)
    minutes.send(90, 130)
    assert rows(minutes.stream.tables) == offsets(0, 0, 120)
    table = minutes.stream.tables.main.refresh()
    waiting = table.scan(snapshot_id=head_of(table.metadata, open_branch_name(minutes.spec.name)).snapshot_id)  # type: ignore[union-attr]
    assert sorted(waiting.to_arrow()["kafka_offset"].to_pylist()) == list(range(120, 130))


@soaked_but("sqlite+local", "rest+s3")
def test_a_backfill_from_files_adds_each_missing_record_once(made: Made, stream_spec: StreamSpec, archive: str) -> None:
    stream = made()
    stream.land({0: (0, 100)}, records={0: np.r_[0:40, 60:100]})
    table = pa.table(
        {
            "at": pa.array(np.full(30, NOW_MS * 1000)).cast(pa.timestamp("us", "UTC")),
            "kafka_topic": [stream.topic] * 30,
            "kafka_partition": pa.array(np.zeros(30, np.int32)),
            "kafka_offset": np.arange(35, 65),
        }
    )
    written = pa.BufferOutputStream()
    pq.write_table(table, written)
    stream.tables.store.put(f"{archive}/missed.parquet", written.getvalue().to_pybytes())
    request = parse_request({"stream": stream_spec.name, "files": archive, "chunk-records": 15})
    for published in (BackfillState.PUBLISHED, None):
        with open_backfill(stream_spec, request) as backfill:
            ended = run_backfill(backfill, InProcessEngine())
        assert (ended and ended.state) == published
        assert rows(stream.tables) == offsets(0, 0, 100)
    stream.land({0: (100, 110)})
    assert rows(stream.tables) == offsets(0, 0, 110)


MAINTENANCE = {
    "compaction": {"min-files": 2, "open-files": 2},
    "manifests": {"max-count": 2},
    "expiry": {"keep": "1h", "at-least": 1},
    "orphans": {"max-share": 100},
}


def referenced(table: Table) -> set[str]:
    """Names of all files of the table's snapshots."""
    found: set[str] = set()
    for snapshot in table.metadata.snapshots:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            found |= {manifest.manifest_path, *(e.data_file.file_path for e in manifest.fetch_manifest_entry(table.io))}
    return {path.rsplit("/", 1)[-1] for path in found}


def listed(tables: StreamTables, table: Table) -> set[str]:
    """Names of the files below the table's folders.

    Left out are metadata.json, of which the catalog keeps a number, and checksums that Hadoop puts next to local files.
    """
    found = files(tables, table, "data") | files(tables, table, "metadata")
    return {name for name in found if not name.endswith((".metadata.json", ".crc"))}


@pytest.fixture
def maintained_stream(declare: Callable[..., StreamSpec]) -> MadeStream:
    """A stream with six commits, each with a file of its own."""
    stream = view_of(declare(maintenance=MAINTENANCE))
    for start in range(0, 60, 10):
        stream.land({0: (start, start + 10)})
    return stream


@pytest.mark.rotates(2, turn=1)
@soaked_but("sqlite+local", "rest+s3", needs_spark=True)
def test_the_writer_continues_after_spark_compacts_rewrites_manifests_and_expires(
    maintained_stream: MadeStream, spark_here: Any
) -> None:
    stream, tables = maintained_stream, maintained_stream.tables
    table = tables.main.refresh()
    maintained = find_maintained([stream.spec], stream.spec.table.identifier)
    outcomes = maintain(lambda: spark_here, table.catalog, maintained, now_ms=NOW_MS + 2 * HOUR_MS)
    assert [(o.action, o.ending) for o in outcomes] == [(action, Ending.DONE) for action in Action], outcomes
    assert (outcomes[0].numbers["files-removed"], outcomes[0].numbers["files-added"]) == (6, 1)
    assert rows(tables) == offsets(0, 0, 60)
    # The writer goes on; until its next commit, its last one is kept, with the files that were compacted.
    stream.land({0: (60, 70)})
    (expiry,) = maintain(
        lambda: spark_here, table.catalog, maintained, actions=[Action.EXPIRY], now_ms=NOW_MS + 4 * HOUR_MS
    )
    assert (expiry.ending, expiry.numbers["data-files-removed"]) == (Ending.DONE, 6), expiry
    table = tables.main.refresh()
    assert listed(tables, table) == referenced(table)
    following = view_of(stream.spec)
    following.begin()
    following.land({0: (70, 80)})
    assert rows(tables) == offsets(0, 0, 80)


@pytest.mark.rotates(2)
@soaked_but("sqlite+local", "rest+s3", needs_spark=True)
def test_spark_aggregates_a_day_into_a_table_by_day(made: Made, stream_spec: StreamSpec, spark_here: Any) -> None:
    stream, day = made(), datetime.fromtimestamp(NOW_MS / 1000, UTC).date()
    target = f"{stream_spec.table.identifier}_per_day"
    spec = AggregationSpec.model_validate(
        {
            "name": "per_day",
            "source": stream_spec.table.identifier,
            "event-time": "at",
            "target": target,
            "catalog": stream_spec.table.catalog,
            "sql": "SELECT count(*) AS n, sum(kafka_offset) AS sum FROM source_day",
        }
    )
    for end in (10, 20):
        stream.land({0: (end - 10, end)})
        catalog = load_catalog(stream_spec.table.catalog)
        run = DayRun(catalog, spec, day, choose_input(catalog, spec, day, ()))
        assert aggregate_day(spark_here, run).written
        found = catalog.load_table(target)
        assert found.scan().to_arrow().to_pylist() == [{"day": day, "n": end, "sum": sum(range(end))}]
        assert [(field.name, str(field.transform)) for field in found.spec().fields] == [("day", "identity")]


@soaked_but("sqlite+local", "rest+s3")
def test_files_expired_by_pyiceberg_are_listed_as_orphans_and_deleted_with_a_dead_tasks_file(
    maintained_stream: MadeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, tables = maintained_stream, maintained_stream.tables
    table = tables.main.refresh()
    before = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id != table.metadata.current_snapshot_id]
    table.maintenance.expire_snapshots().by_ids(before).commit()
    tables.store.put(f"{table.location().rstrip('/')}/data/left-by-a-dead-task.parquet", b"nobody's")
    # A storage dates its files itself: here they were all written five days ago.
    monkeypatch.setattr(orphan_cleanup, "open_store", lambda *of: Aged(open_store(*of)))
    cleaned = []
    for hours in (0, 1):
        stream.land({0: (60 + 10 * hours, 70 + 10 * hours)})
        maintained = find_maintained([stream.spec], stream.spec.table.identifier)
        cleaned.append(clean_orphans(table.catalog, maintained, now_ms=clock.now_ms() + hours * HOUR_MS))
    first, second = cleaned
    assert (first.refused, first.deleted, second.refused) == (None, 0, None), cleaned
    assert second.deleted == first.candidates == len(before) + 1
    assert rows(tables) == offsets(0, 0, 80)
    table = tables.main.refresh()
    assert listed(tables, table) == referenced(table)


class Aged:
    """A storage whose files are five days older than they are, but for what the cleanup itself writes."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def list_files(self, folder: str) -> list[FileInfo]:
        found = self._store.list_files(folder)
        own = f"/{outcomes.MAINTENANCE_FOLDER}/"
        return [
            f if own in f.path else dataclasses.replace(f, modified_ms=f.modified_ms - 5 * 24 * HOUR_MS) for f in found
        ]
