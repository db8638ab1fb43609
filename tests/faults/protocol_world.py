"""The world of the protocol model: a catalog, a storage and a Kafka that outlive every process.

Planner, batch, committer, journal, settling, marker and reset are the real code, on real manifests. Data files are
empty, and the world knows the records of each, so a step takes milliseconds.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pyiceberg.catalog.rest import CommitTableResponse
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSnapshotUpdate,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSpecUpdate,
    SetSnapshotRefUpdate,
    update_table_metadata,
)
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType, NestedField

from frazil.commit.compare_and_swap import RetryPolicy, TableHandle
from frazil.commit.journal import JournalStore, bare_path
from frazil.commit.marker import Marker, read_marker, read_markers
from frazil.commit.snapshot import BaseManifests, SnapshotWriter
from frazil.commit.stream_tables import StreamTables
from frazil.ingest.contract import StagedFile, Target
from frazil.offsets.spans import TopicPartition
from frazil.offsets.tally import OffsetTally
from frazil.table.branches import head_of
from frazil.table.faster_commits import _change_class, _sharing_class
from frazil.table.landed_offsets import RowSelection
from frazil.table.metadata_times import order_times
from frazil.table.storage import LocalStore
from frazil.table.tables import state_location

from .protocol_faults import Clock, Faults, ProcessIO, ProcessStore
from .protocol_kafka import Record, Topic

EVENTS, ORDERS = "events", "orders"
STREAMS = (EVENTS, ORDERS)
"""Two streams that write to the same tables, each from its own topic."""
MAIN, DEAD = "demo.events", "demo.events_dead_letters"
SCHEMA = Schema(NestedField(1, "n", LongType(), required=False))


@dataclass(frozen=True, slots=True)
class MarkerMove:
    """One stream's marker in one table, before and after a commit."""

    version: int
    """The number of the commit that changed the marker."""
    table: str
    stream: str
    before: Marker | None
    after: Marker | None
    by: Faults | None
    """The process that changed the marker, represented by its faults."""


class SharedCatalog:
    """The catalog itself. PyIceberg checks the requirements and applies the updates, one commit at a time."""

    name = "shared"

    def __init__(self, folder: Path) -> None:
        self.io = PyArrowFileIO()
        self.metadata: dict[str, TableMetadata] = {
            name: new_table_metadata(
                SCHEMA, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, f"{folder}/{name}", {"format-version": "2"}
            )
            for name in (MAIN, DEAD)
        }
        self.past: dict[str, deque[TableMetadata]] = {name: deque(maxlen=3) for name in (MAIN, DEAD)}
        """What each table was like before its last changes."""
        self.versions = 0
        self.rows_at: Callable[[Snapshot | None], Iterable[Record]] = lambda _: ()
        self.late: list[Callable[[], Any]] = []
        self.positions: dict[int, dict[str, dict[TopicPartition, int]]] = {}
        """The rows of each stream at each snapshot of the main table, kept next to what frazil keeps."""
        self.marker_moves: list[MarkerMove] = []

    def load(self, name: str, *, behind: int = 0) -> Table:
        """Load the table, or a cached one that is `behind` changes old."""
        past = self.past[name]
        metadata = past[-behind] if 0 < behind <= len(past) else self.metadata[name]
        return Table(tuple(name.split(".")), metadata, "", self.io, self, {})  # type: ignore[arg-type]

    def commit(
        self, name: str, requirements: Iterable[Any], updates: Iterable[Any], by: Faults | None = None
    ) -> CommitTableResponse:
        before = self.metadata[name]
        for requirement in requirements:
            requirement.validate(before)
        self.versions += 1
        # As the catalogs that `load_catalog` opens: snapshots are not copied, and times are in order.
        shared = _change_class(_sharing_class(type(before)), before)
        made = update_table_metadata(shared, tuple(updates), metadata_location=str(self.versions))
        after = order_times(before, _change_class(type(before), made))
        self.past[name].append(before)
        self.metadata[name] = after
        old, new = read_markers(before.properties), read_markers(after.properties)
        for stream in {*old, *new}:
            if old.get(stream) != new.get(stream):
                move = MarkerMove(self.versions, name, stream, old.get(stream), new.get(stream), by)
                self.marker_moves.append(move)
        head = head_of(after)
        if name == MAIN and head:
            before_it = self.positions.get(head.parent_snapshot_id or 0, {})
            moved = {stream: dict(m.offsets) for stream, m in new.items() if m != old.get(stream)}
            self.positions.setdefault(head.snapshot_id, {**before_it, **moved})
        return CommitTableResponse(metadata=after, metadata_location=str(self.versions))

    def land_late(self) -> None:
        """Let the commits that were reported as failed arrive now. Refusals are ignored."""
        late, self.late = self.late, []
        for effect in late:
            try:
                effect()
            except Exception:
                continue


@dataclass
class ProcessCatalog:
    """The catalog as one process accesses it."""

    shared: SharedCatalog
    faults: Faults
    name: ClassVar[str] = "protocol"

    def load_table(self, name: str) -> Table:
        stale = self.faults.stale("load")
        table: Table = self.faults.meet("load", lambda: self.shared.load(name, behind=stale))
        return Table(table.name(), table.metadata, "", ProcessIO(self.faults), self, {})  # type: ignore[arg-type]

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        name = ".".join(table.name())

        def effect() -> CommitTableResponse:
            return self.shared.commit(name, requirements, updates, by=self.faults)

        answer: CommitTableResponse = self.faults.meet("commit", effect, self.shared.late.append)
        return answer


def tally_of_the_world(table: Table, *wanted: RowSelection) -> dict[TopicPartition, OffsetTally]:
    """Replaces `frazil.table.landed_offsets.tally_rows`: data files are empty, and the world knows their records."""
    process = table.catalog
    assert isinstance(process, ProcessCatalog)
    rows = process.faults.meet("load", lambda: process.shared.rows_at(head_of(table.metadata)))
    found: dict[TopicPartition, OffsetTally] = {}
    for (topic, partition, offset), each in itertools.product(rows, wanted):
        tp, within = (topic, partition), each.within
        inside = within is None or any(start <= offset < end for start, end in within.get(tp, ()))
        if topic in each.topics and inside:
            found.setdefault(tp, OffsetTally()).add([offset])
    return found


class World:
    """Everything that outlives a process, including the records of each data file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.catalog = SharedCatalog(folder)
        self.catalog.rows_at = self.rows_at
        self.topics = {stream: Topic(stream) for stream in STREAMS}
        self.clock = Clock()
        self.skew_ms = 0
        """How far the wall clock of the next commits is off."""
        self.contents: dict[str, tuple[Record, ...]] = {}
        self.store = LocalStore()
        self.unread: Callable[[], Set[int]] = frozenset
        """Snapshots with late rows that no signal has counted: `frazil maintain` expires none of them."""
        self.serial = 0
        self._lists: dict[str, list[ManifestFile]] = {}
        self._entries: dict[str, list[str]] = {}

    def new_file(self, folder: str, target: Target, records: tuple[Record, ...], *, schema_id: int = 0) -> StagedFile:
        self.serial += 1
        path = f"{folder}/{self.serial:06d}.parquet"
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(path).touch()
        self.contents[path] = records
        return StagedFile(
            target=target, path=path, records=len(records), bytes=1, schema_id=schema_id, spec_id=0, sort_order_id=None,
            partition=(), column_sizes={}, value_counts={}, null_value_counts={}, nan_value_counts={},
            lower_bounds={}, upper_bounds={}, split_offsets=(),
        )  # fmt: skip

    def tables(self, faults: Faults) -> StreamTables:
        """Return the tables as a process of the stream accesses them."""
        catalog = ProcessCatalog(self.catalog, faults)
        now = Clock()  # of this process's patience alone
        return StreamTables(
            stream=faults.stream,
            targets={"main": TableHandle(catalog, MAIN), "dead-letters": TableHandle(catalog, DEAD)},  # type: ignore[arg-type]
            journals=JournalStore(ProcessStore(faults), state_location(self.catalog.load(MAIN), faults.stream)),
            clock_ms=lambda: self.clock.now_ms + self.skew_ms,
            retry_policy=RetryPolicy(total_s=4, clock=now, wait=now.wait),
        )

    def marker(self, stream: str, name: str = MAIN) -> Marker | None:
        return read_marker(self.catalog.metadata[name].properties, stream)

    # What stands in the tables

    def rows(self, name: str, stream: str | None = None) -> Counter[Record]:
        """Return the rows of one stream, or of all streams."""
        found = self.rows_at(head_of(self.catalog.metadata[name]))
        return Counter(record for record in found if stream in (None, record[0]))

    def rows_at(self, head: Snapshot | None) -> list[Record]:
        return [r for path in self.live_files(head) for r in self.contents[path]] if head else []

    def manifests(self, snapshot: Any) -> list[ManifestFile]:
        """Return a snapshot's manifests, cached, because a committed snapshot never changes."""
        if snapshot.manifest_list not in self._lists:
            self._lists[snapshot.manifest_list] = snapshot.manifests(self.catalog.io)
        return self._lists[snapshot.manifest_list]

    def live_files(self, snapshot: Any) -> Iterator[str]:
        for manifest in self.manifests(snapshot):
            path = manifest.manifest_path
            if path not in self._entries:
                found = manifest.fetch_manifest_entry(self.catalog.io, discard_deleted=True)
                self._entries[path] = [bare_path(entry.data_file.file_path) for entry in found]
            yield from self._entries[path]

    def references(self, name: str) -> set[str]:
        """Return all paths to which any snapshot of a table refers: manifest lists, manifests and data files."""
        found: set[str] = set()
        for snapshot in self.catalog.metadata[name].snapshots:
            manifests = {m.manifest_path for m in self.manifests(snapshot)}
            found |= {snapshot.manifest_list, *manifests, *self.live_files(snapshot)}
        return {bare_path(path) for path in found}

    def data_files(self, name: str) -> set[str]:
        return {str(p) for p in Path(self.catalog.metadata[name].location, "data").rglob("*.parquet")}

    # What others do

    def foreign_append(self) -> None:
        self._commit_files(MAIN, (self.new_file(f"{self.catalog.metadata[MAIN].location}/data/foreign", "main", ()),))

    def compact(self, name: str) -> None:
        """Rewrite all live files into one with the same rows, as `rewrite_data_files` does."""
        head = head_of(self.catalog.metadata[name])
        if head is None:
            return
        records = tuple(self.rows(name))
        location = self.catalog.metadata[name].location
        merged = self.new_file(f"{location}/data/compacted", "main" if name == MAIN else "dead-letters", records)
        self._commit_files(name, (merged,), replacing=True)

    def _commit_files(self, name: str, files: tuple[StagedFile, ...], *, replacing: bool = False) -> None:
        table = self.catalog.load(name)
        head = head_of(table.metadata)
        # The list of what replaces all holds our manifests alone.
        base = BaseManifests((), (), head.summary if head else None) if replacing else None
        prepared = SnapshotWriter(files, base=base).prepare(table, summary={}, now_ms=self.clock.now_ms)
        updates = prepared.updates
        if replacing:
            counts = {"total-records": str(sum(file.records for file in files))}
            replaced = prepared.snapshot.model_copy(update={"summary": Summary(Operation.REPLACE, **counts)})
            updates = (AddSnapshotUpdate(snapshot=replaced), *updates[1:])
        self.catalog.commit(name, prepared.requirements, updates)

    def expire(self, name: str) -> None:
        """Expire all snapshots except the last and those that signals need. Delete files that only they used."""
        before = self.references(name)
        metadata = self.catalog.metadata[name]
        head = head_of(metadata)
        kept = {head.snapshot_id if head else None, *(self.unread() if name == MAIN else ())}
        gone = [s.snapshot_id for s in metadata.snapshots if s.snapshot_id not in kept]
        if gone:
            self.catalog.commit(name, (), (RemoveSnapshotsUpdate(snapshot_ids=gone),))
            self.store.delete(before - self.references(name))

    def change_spec(self) -> None:
        """Change the partition spec for later files. Files that are already staged keep theirs."""
        specs = [spec.spec_id for spec in self.catalog.metadata[MAIN].partition_specs]
        field = PartitionField(source_id=1, field_id=1000 + len(specs), transform=BucketTransform(len(specs)), name="b")
        spec = PartitionSpec(field, spec_id=max(specs) + 1)
        self.catalog.commit(MAIN, (), (AddPartitionSpecUpdate(spec=spec), SetDefaultSpecUpdate(spec_id=-1)))

    def add_column(self, *, required: bool) -> None:
        """Add a column. Files staged before a required column was added no longer fit, and must be staged again."""
        before = self.catalog.metadata[MAIN]
        number = before.last_column_id + 1
        column = NestedField(number, f"c{number}", LongType(), required=required)
        schema = Schema(*before.schema().fields, column, schema_id=max(s.schema_id for s in before.schemas) + 1)
        self.catalog.commit(MAIN, (), (AddSchemaUpdate(schema=schema), SetCurrentSchemaUpdate(schema_id=-1)))

    def roll_back(self, snapshots: int) -> bool:
        """Roll the main table back by some snapshots. Return False if its history is too short."""
        metadata = self.catalog.metadata[MAIN]
        target = head_of(metadata)
        for _ in range(snapshots):
            parent = target.parent_snapshot_id if target else None
            target = metadata.snapshot_by_id(parent) if parent else None
        if target is None:
            return False
        move = SetSnapshotRefUpdate(ref_name="main", type=SnapshotRefType.BRANCH, snapshot_id=target.snapshot_id)
        self.catalog.commit(MAIN, (), (move,))
        return True
