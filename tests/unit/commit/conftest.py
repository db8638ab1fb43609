"""A stream on a real catalog with real Parquet files, and a catalog whose answers can be made to fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import RemoveSnapshotsUpdate, SetSnapshotRefUpdate
from pyiceberg.transforms import DayTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestamptzType

from frazil.commit.committer import Committer, StreamTables
from frazil.commit.journal import Journal, JournalStore
from frazil.commit.marker import BatchKey, Marker, SourceIdentity, read_marker
from frazil.commit.settle import Settled, bare_path, batch_folder, highest_epoch, settle
from frazil.commit.swap import Patience, TableHandle
from frazil.ingest.contract import RangeProgress, StagedFile, TargetTable
from frazil.ingest.write import TableWriter, file_namer
from frazil.spec.iceberg import DEAD_LETTER_PARTITION_SPEC, DEAD_LETTER_SCHEMA
from frazil.table.local_storage import LocalStore
from frazil.table.tables import state_location

TOPIC = "events"
SCHEMA = Schema(
    NestedField(1, "ts", TimestamptzType(), required=True),
    NestedField(2, "name", StringType(), required=False),
    NestedField(3, "kafka_partition", IntegerType(), required=True),
    NestedField(4, "kafka_offset", LongType(), required=True),
)
BY_DAY = PartitionSpec(PartitionField(source_id=1, field_id=1000, transform=DayTransform(), name="ts_day"))
EPOCH_BEGAN = datetime(2013, 12, 30, 10, tzinfo=UTC)

Ranges = Mapping[int, tuple[int, int]]


def event_time(offset: int) -> datetime:
    """A record a minute."""
    return EPOCH_BEGAN + timedelta(minutes=offset)


class FaultyCatalog:
    """A catalog whose next commits go wrong in the ways that a network makes possible.

    A fault is `(identifier or None for any, what happens)`; `attempts` are all commits that were tried.
    """

    def __init__(self, inner: SqlCatalog) -> None:
        self.inner = inner
        self.faults: list[tuple[str | None, Callable[[Callable[[], Any]], Any]]] = []
        self.attempts: list[str] = []
        self.loads = 0
        self._late: list[Callable[[], Any]] = []

    def load_table(self, identifier: str) -> Table:
        self.loads += 1
        return self.inner.load_table(identifier)

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> Any:
        identifier = ".".join(table.name())
        self.attempts.append(identifier)

        def effect() -> Any:
            return self.inner.commit_table(table, requirements, updates)

        for position, (wanted, fault) in enumerate(self.faults):
            if wanted in (None, identifier):
                del self.faults[position]
                return fault(effect)
        self.land_now()
        return effect()

    def land_now(self) -> None:
        """What was reported failed reaches the catalog now; a refusal has nobody to go to."""
        late, self._late = self._late, []
        for effect in late:
            try:
                effect()
            except Exception:
                continue

    def next_fails_before(self, error: Exception, table: str | None = None, times: int = 1) -> None:
        def fault(effect: Callable[[], Any]) -> Any:  # noqa: ARG001
            raise error

        self.faults += [(table, fault)] * times

    def next_answer_is_lost(self, table: str | None = None) -> None:
        def fault(effect: Callable[[], Any]) -> Any:
            effect()
            raise ConnectionError("the answer was lost")

        self.faults.append((table, fault))

    def next_lands_late(self, table: str | None = None) -> None:
        def fault(effect: Callable[[], Any]) -> Any:
            self._late.append(effect)
            raise ConnectionError("no answer in time")

        self.faults.append((table, fault))

    def next_meets(self, event: Callable[[], Any], table: str | None = None) -> None:
        """Something else changes the table right before the next commit arrives."""

        def fault(effect: Callable[[], Any]) -> Any:
            event()
            return effect()

        self.faults.append((table, fault))


@dataclass
class FakeTime:
    """A clock that only waiting moves."""

    now_s: float = 0.0
    waits: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now_s += max(seconds, 0.001)

    def patience(self, total_s: float = 60.0) -> Patience:
        return Patience(total_s=total_s, clock=lambda: self.now_s, sleep=self.sleep)


@dataclass
class World:
    """One stream with its two tables. Batches are staged by hand, committed by the real committer."""

    catalog: FaultyCatalog
    root: Path
    stream: str = "events"
    table: str = "demo.events"
    dead_letter_table: str = "demo.events_dead_letters"
    time: FakeTime = field(default_factory=FakeTime)
    clock_ms: int = 1_800_000_000_000
    source: SourceIdentity = field(default_factory=lambda: SourceIdentity("cluster-1", {TOPIC: "topic-1"}))
    starts: dict[tuple[str, int], int] = field(default_factory=lambda: {(TOPIC, 0): 0, (TOPIC, 1): 0})
    store: LocalStore = field(default_factory=LocalStore)

    def __post_init__(self) -> None:
        self.tables = self.view()

    def view(self) -> StreamTables:
        """Another process's view of the same stream."""
        main = self.load()
        return StreamTables(
            stream=self.stream,
            main=TableHandle(self.catalog, self.table),  # type: ignore[arg-type]
            dead_letters=TableHandle(self.catalog, self.dead_letter_table),  # type: ignore[arg-type]
            journals=JournalStore(self.store, state_location(main, self.stream)),
            clock_ms=lambda: self.clock_ms,
            patience=self.time.patience(),
        )

    def load(self) -> Table:
        return self.catalog.inner.load_table(self.table)

    def load_dead_letters(self) -> Table:
        return self.catalog.inner.load_table(self.dead_letter_table)

    # The writer's steps

    def take_over(self, tables: StreamTables | None = None) -> Committer:
        tables = tables or self.tables
        return Committer.take_over(
            tables,
            source=self.source,
            initial=lambda: self.starts,
            first_epoch=1 + highest_epoch(tables, self.store),
        )

    def settle(self, committer: Committer, tables: StreamTables | None = None) -> Settled:
        return settle(tables or self.tables, committer, self.store)

    def begin(self) -> Committer:
        """A new epoch, as a writer begins it."""
        committer = self.take_over()
        self.settle(committer)
        return committer

    def stage(self, committer: Committer, ranges: Ranges, *, rejected: Mapping[int, Iterable[int]] = {}) -> Journal:
        """Stage the next batch: real files, and a journal that is not written yet."""
        marker = self.marker()
        key = BatchKey(committer.epoch, marker.at.batch + 1)
        bad = {(p, o) for p, offsets in rejected.items() for o in offsets}
        floor = committer.dead_letter_floor()
        good = [(p, o) for p, (start, end) in ranges.items() for o in range(start, end) if (p, o) not in bad]
        new_bad = sorted((p, o) for p, o in bad if o >= floor.get((TOPIC, p), 0))
        files = self.write(key, good) + (self.write_dead_letters(key, new_bad) if new_bad else ())
        return self.journal(key, ranges, files, bad=bad, floor=floor)

    def journal(  # noqa: PLR0913 - a journal has many parts
        self,
        key: BatchKey,
        ranges: Ranges,
        files: tuple[StagedFile, ...] = (),
        *,
        bad: set[tuple[int, int]] = frozenset(),  # type: ignore[assignment]
        floor: Mapping[tuple[str, int], int] = {},
        idle: frozenset[tuple[str, int]] = frozenset(),
    ) -> Journal:
        progress = []
        for p, (start, end) in ranges.items():
            good = [o for o in range(start, end) if (p, o) not in bad]
            newest_us = int(event_time(max(good)).timestamp()) * 1_000_000 if good else None
            progress.append(RangeProgress(TOPIC, p, start, end, len(good), end - start - len(good), newest_us))
        marker = self.marker()
        return Journal(
            stream=self.stream,
            key=key,
            table_uuid=str(self.load().metadata.table_uuid),
            created_at_ms=self.clock_ms,
            source=self.source,
            progress=tuple(progress),
            files=files,
            dead_letter_floor=dict(floor),
            idle=idle,
            offsets_after={**marker.offsets, **{p.topic_partition: p.end for p in progress}},
        )

    def run(self, committer: Committer, ranges: Ranges, *, rejected: Mapping[int, Iterable[int]] = {}) -> Marker:
        """Stage, journal and commit one batch."""
        journal = self.stage(committer, ranges, rejected=rejected)
        assert self.tables.journals.put(journal)
        return committer.commit(journal)

    def write(self, key: BatchKey, records: Iterable[tuple[int, int]]) -> tuple[StagedFile, ...]:
        table = self.load()
        rows = [{"ts": event_time(o), "name": f"{p}-{o}", "kafka_partition": p, "kafka_offset": o} for p, o in records]
        return self._write(table, key, "main", rows)

    def write_dead_letters(self, key: BatchKey, records: Iterable[tuple[int, int]]) -> tuple[StagedFile, ...]:
        rows = [
            {
                "kafka_topic": TOPIC,
                "kafka_partition": p,
                "kafka_offset": o,
                "error_class": "NotJson",
                "error": "it is not JSON",
                "rejected_at": EPOCH_BEGAN,
            }
            for p, o in records
        ]
        return self._write(self.load_dead_letters(), key, "dead-letters", rows)

    def _write(self, table: Table, key: BatchKey, target: Any, rows: list[dict[str, Any]]) -> tuple[StagedFile, ...]:
        if not rows:
            return ()
        metadata = table.metadata
        writer = TableWriter(
            TargetTable(
                schema_json=metadata.schema().model_dump_json(),
                spec_json=metadata.spec().model_dump_json(),
                sort_order_json=metadata.sort_order().model_dump_json(),
                properties={},
                folder=batch_folder(table, self.stream, key),
                target_file_bytes=2**20,
            ),
            target,
            io=table.io,
            file_name=file_namer(0, 0),
        )
        writer.add(pa.Table.from_pylist(rows, schema=writer.layout.arrow_schema))
        return tuple(writer.finish())

    # What stands in the tables

    def marker(self) -> Marker:
        found = read_marker(self.load().metadata.properties, self.stream)
        assert found is not None
        return found

    def dead_letter_marker(self) -> Marker:
        found = read_marker(self.load_dead_letters().metadata.properties, self.stream)
        assert found is not None
        return found

    def rows(self, **scan: Any) -> list[tuple[int, int]]:
        return self._coordinates(self.load(), **scan)

    def dead_letters(self) -> list[tuple[int, int]]:
        return self._coordinates(self.load_dead_letters())

    def _coordinates(self, table: Table, **scan: Any) -> list[tuple[int, int]]:
        found = table.scan(selected_fields=("kafka_partition", "kafka_offset"), **scan).to_arrow()
        return sorted(zip(*(found[name].to_pylist() for name in ("kafka_partition", "kafka_offset")), strict=True))

    def snapshots(self) -> int:
        return len(self.load().metadata.snapshots)

    def parquet_files(self, table: Table | None = None) -> set[str]:
        location = (table or self.load()).location().removeprefix("file://")
        return {str(p) for p in Path(location).glob("data/**/*.parquet")}

    def all_parquet_files(self) -> set[str]:
        return self.parquet_files() | self.parquet_files(self.load_dead_letters())

    def manifests(self, table: Table | None = None) -> set[str]:
        """Names of all manifests and manifest lists that exist."""
        location = (table or self.load()).location().removeprefix("file://")
        return {p.name for p in Path(location).glob("metadata/*.avro")}

    def used_manifests(self, table: Table | None = None) -> set[str]:
        """Names of all manifests and manifest lists that a snapshot uses."""
        table = table or self.load()
        used: set[str] = set()
        for snapshot in table.metadata.snapshots:
            listed = snapshot.manifests(table.io)
            used |= {Path(path).name for path in [snapshot.manifest_list, *(m.manifest_path for m in listed)]}
        return used

    # What others do to the table

    def foreign_append(self, offset: int = 1_000_000) -> None:
        table = self.load()
        arrow = table.schema().as_arrow()
        row = {"ts": EPOCH_BEGAN, "name": "foreign", "kafka_partition": 99, "kafka_offset": offset}
        table.append(pa.Table.from_pylist([row], schema=arrow))

    def compact(self) -> None:
        """Rewrite every file, as compaction does."""
        table = self.load()
        table.overwrite(table.scan().to_arrow())

    def roll_back(self, snapshots: int, table: Table | None = None) -> None:
        """Put the branch back by some snapshots; the table's properties stay."""
        table = table or self.load()
        target = table.current_snapshot()
        for _ in range(snapshots):
            assert target is not None
            target = table.snapshot_by_id(target.parent_snapshot_id)  # type: ignore[arg-type]
        assert target is not None
        self.move_branch(target.snapshot_id, table)

    def move_branch(self, snapshot_id: int, table: Table | None = None, **retention: int) -> None:
        move = SetSnapshotRefUpdate(ref_name="main", type=SnapshotRefType.BRANCH, snapshot_id=snapshot_id, **retention)
        self.catalog.inner.commit_table(table or self.load(), (), (move,))

    def expire_all_but_newest(self, table: Table | None = None) -> None:
        """`expire_snapshots(retain_last => 1)`: the history goes, with the manifest lists that only it used."""
        table = table or self.load()
        head = table.current_snapshot()
        assert head is not None
        gone = [s for s in table.metadata.snapshots if s.snapshot_id != head.snapshot_id]
        needed = {m.manifest_path for m in head.manifests(table.io)} | {head.manifest_list}
        waste = {m.manifest_path for s in gone for m in s.manifests(table.io)} | {s.manifest_list for s in gone}
        update = RemoveSnapshotsUpdate(snapshot_ids=[s.snapshot_id for s in gone])
        self.catalog.inner.commit_table(table, (), (update,))
        for path in waste - needed:
            table.io.delete(path)

    def lose_journal(self, key: BatchKey) -> None:
        Path(bare_path(self.tables.journals.path(key))).unlink()


@pytest.fixture
def catalog(tmp_path: Path) -> FaultyCatalog:
    inner = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=(tmp_path / "warehouse").as_uri())
    inner.create_namespace("demo")
    yield FaultyCatalog(inner)
    inner.engine.dispose()


@pytest.fixture
def world(catalog: FaultyCatalog, tmp_path: Path) -> World:
    """A stream whose tables are there and empty; no writer has ever begun."""
    catalog.inner.create_table("demo.events", SCHEMA, partition_spec=BY_DAY)
    catalog.inner.create_table(
        "demo.events_dead_letters", DEAD_LETTER_SCHEMA, partition_spec=DEAD_LETTER_PARTITION_SPEC
    )
    return World(catalog, tmp_path)
