"""A stream with `commit.align: watermark`, and checks of what must hold after each of its steps."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.update import RemoveSnapshotsUpdate
from pyiceberg.transforms import HourTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestamptzType

from frazil.commit.committer import Committer
from frazil.commit.journal import Journal, bare_path
from frazil.commit.marker import BatchKey, Marker, open_branch_name
from frazil.commit.marker_changes import reset
from frazil.commit.reset_plan import read_state_before_reset
from frazil.commit.sweep import referenced_paths
from frazil.partitions.completeness import Alignment
from frazil.partitions.windows import Grain
from frazil.spec.iceberg import DEAD_LETTER_SCHEMA
from tests.unit.commit.conftest import FaultyCatalog, World

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
BRANCH = open_branch_name("events")
LATENESS = 30
ALIGN = Alignment("ts", Grain.HOUR, lateness_us=LATENESS * 60_000_000)
FAR = 3 * 24 * 60
"""Event times from here on, in minutes, are too far in the future to count for the watermark."""

Row = tuple[int, int]


def micros(minute: int) -> int:
    return int((BEGAN + timedelta(minutes=minute)).timestamp()) * 1_000_000


@dataclasses.dataclass
class Aligned:
    """A stream of two partitions. Its records have event times in minutes since `BEGAN`, or none."""

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
        """Produce records to each partition, and stage all unread records."""
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
        key = BatchKey(self.committer.epoch, marker.key.batch + 1)
        files = self.world._write(self.world.load(), key, "main", rows)
        journal = self.world.journal(key, ranges, files, idle=idle, seen=self.committer.newest_dead_letters())
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
        reset(world.tables, target=target, source=world.source, seen=read_state_before_reset(world.tables))
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
        """Check that each committed row exists once: in main if its window is complete, else on the open branch."""
        marker, main, waiting = self.world.marker(), self.main(), self.waiting()
        assert self.head() == marker.open_snapshot_id
        committed = {(p, o) for p in self.log for o in range(marker.offsets[TOPIC, p])}
        assert sorted(main + waiting) == sorted(committed)
        for row in committed:
            assert (row in waiting) == self.waits(self.log[row[0]][row[1]], marker), row

    def waits(self, minute: int | None, marker: Marker) -> bool:
        """Return whether a row's window is open, computed from the marker alone, and differently from the real code."""
        if minute is None or (minute >= FAR and marker.max_event_times_us):
            return False
        return marker.watermark_us is None or marker.watermark_us < micros((minute // 60 + 1) * 60 + LATENESS)

    def check_storage(self) -> None:
        """Check that every file that a snapshot of either branch needs exists, and no other."""
        table = self.world.load()
        assert referenced_paths(table) >= self.world.parquet_files()
        assert self.world.used_manifests() == self.world.manifests()


def aligned_in(folder: Path, *, version: int = 2) -> Aligned:
    """Return a stream whose table is partitioned by hour, in its own catalog and folder."""
    inner = SqlCatalog("lake", uri=f"sqlite:///{folder}/hourly.db", warehouse=(folder / "hourly").as_uri())
    inner.create_namespace("demo")
    properties = {"format-version": str(version)}
    inner.create_table("demo.events", SCHEMA, partition_spec=BY_HOUR, properties=properties)
    inner.create_table("demo.events_dead_letters", DEAD_LETTER_SCHEMA)
    return Aligned(World(FaultyCatalog(inner), folder))


def expire(stream: Aligned) -> None:
    """Expire all snapshots except the heads, and delete the manifests and files that only they used."""
    world = stream.world
    table = world.load()
    heads = {ref.snapshot_id for ref in table.metadata.refs.values()}
    gone = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id not in heads]
    if not gone:
        return
    files, manifests = referenced_paths(table), world.used_manifests()
    world.catalog.inner.commit_table(table, (), (RemoveSnapshotsUpdate(snapshot_ids=gone),))
    left = world.load()
    for path in files - referenced_paths(left):
        Path(path).unlink()
    for name in manifests - world.used_manifests():
        (Path(bare_path(left.location())) / "metadata" / name).unlink()
