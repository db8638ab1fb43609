"""What the protocol's model runs in: a catalog, a store and a Kafka whose every operation can fail, or be the last.

The committer, journal, settle, marker and reset are the real ones, on real manifests. Data files are empty, and the
world knows which records each stands for: so a step takes milliseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyiceberg.catalog.rest import CommitTableResponse
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestFile, write_manifest_list
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import RemoveSnapshotsUpdate, SetSnapshotRefUpdate, update_table_metadata
from pyiceberg.types import LongType, NestedField

from frazil.commit.committer import Committer, StreamTables
from frazil.commit.journal import Journal, JournalStore
from frazil.commit.marker import BatchKey, Marker, SourceIdentity, read_marker
from frazil.commit.rules import head_of
from frazil.commit.settle import Settled, bare_path, batch_folder, highest_epoch, settle, sweep_batch
from frazil.commit.snapshot import SnapshotWriter
from frazil.commit.swap import Patience, TableHandle
from frazil.ingest.contract import RangeProgress, StagedFile, Target
from frazil.table.local_storage import LocalStore
from frazil.table.tables import state_location

STREAM, TOPIC, MAIN, DEAD = "events", "events", "demo.events", "demo.events_dead_letters"
SCHEMA = Schema(NestedField(1, "n", LongType(), required=False))
SOURCE = SourceIdentity("cluster", {TOPIC: "topic-1"})
Record = tuple[int, int]
"""Partition and offset."""


class InjectedError(OSError):
    """The network, the catalog or the storage failed: who asked does not know what happened."""


class KilledError(BaseException):
    """SIGKILL: nothing of the process runs after it, no clean-up either."""


@dataclass
class Faults:
    """What is to happen to the next operations of one process, by kind of operation; then all goes well."""

    others: Callable[[], None]
    """What others do to the table at that very moment, where the fault says so."""
    planned: dict[str, list[str]] = field(default_factory=dict)
    dead: bool = False

    def meet(self, operation: str, effect: Callable[[], Any], late: Callable[[Callable[[], Any]], None]) -> Any:
        if self.dead:
            raise KilledError
        queue = self.planned.get(operation)
        fault = queue.pop(0) if queue else "ok"
        if fault == "late":
            late(effect)
        if fault.startswith("others"):
            self.others()
        if fault.endswith("before") or fault == "late":
            self._fail(fault)
        answer = effect()
        if fault == "overtaken":
            self.others()
        if fault.endswith("after") or fault == "overtaken":
            self._fail(fault)
        return answer

    def _fail(self, fault: str) -> None:
        if fault.startswith("kill"):
            self.dead = True
            raise KilledError
        raise InjectedError(fault)


class SharedCatalog:
    """The catalog itself: requirements and updates are checked and applied by PyIceberg, one commit at a time."""

    def __init__(self, folder: Path) -> None:
        self.io = PyArrowFileIO()
        self.metadata: dict[str, TableMetadata] = {
            name: new_table_metadata(
                SCHEMA, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, f"{folder}/{name}", {"format-version": "2"}
            )
            for name in (MAIN, DEAD)
        }
        self.late: list[Callable[[], Any]] = []
        self.positions: dict[int, dict[tuple[str, int], int]] = {}
        """Where the stream stood with each snapshot of the main table, kept beside what frazil keeps."""
        self.marker_moves: list[tuple[str, Marker | None, Marker | None]] = []

    def load(self, name: str) -> Table:
        metadata = self.metadata[name]
        return Table(tuple(name.split(".")), metadata, "", self.io, self, {})  # type: ignore[arg-type]

    def commit(self, name: str, requirements: Iterable[Any], updates: Iterable[Any]) -> CommitTableResponse:
        before = self.metadata[name]
        for requirement in requirements:
            requirement.validate(before)
        after = update_table_metadata(before, tuple(updates))
        self.metadata[name] = after
        markers = (read_marker(before.properties, STREAM), read_marker(after.properties, STREAM))
        if markers[0] != markers[1]:
            self.marker_moves.append((name, *markers))
        head = head_of(after)
        if name == MAIN and head:
            self.positions.setdefault(head.snapshot_id, dict(markers[1].offsets) if markers[1] else {})
        return CommitTableResponse(metadata=after, metadata_location=f"{name}/{after.last_updated_ms}")

    def land_late(self) -> None:
        """What was reported failed arrives now; a refusal has nobody to go to."""
        late, self.late = self.late, []
        for effect in late:
            try:
                effect()
            except Exception:
                continue


@dataclass
class ProcessCatalog:
    """The catalog as one process reaches it."""

    shared: SharedCatalog
    faults: Faults

    def load_table(self, name: str) -> Table:
        table: Table = self.faults.meet("load", lambda: self.shared.load(name), _never)
        return Table(table.name(), table.metadata, "", table.io, self, {})  # type: ignore[arg-type]

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        name = ".".join(table.name())

        def effect() -> CommitTableResponse:
            return self.shared.commit(name, requirements, updates)

        answer: CommitTableResponse = self.faults.meet("commit", effect, self.shared.late.append)
        return answer


def _never(_: Callable[[], Any]) -> None:
    raise AssertionError("only commits land late")


class ProcessStore(LocalStore):
    """The storage as one process reaches it."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    def put_if_absent(self, path: str, data: bytes) -> bool:
        if self.faults.planned.get("put", [])[:1] == ["torn"]:
            self.faults.planned["put"].pop(0)
            super().put_if_absent(path, data[: len(data) // 2])
            self.faults.dead = True
            raise KilledError
        put = super().put_if_absent
        answer: bool = self.faults.meet("put", lambda: put(path, data), _never)
        return answer

    def put(self, path: str, data: bytes) -> None:
        put = super().put
        self.faults.meet("put", lambda: put(path, data), _never)

    def get(self, path: str) -> bytes | None:
        get = super().get
        answer: bytes | None = self.faults.meet("get", lambda: get(path), _never)
        return answer

    def sync_files(self, paths: Iterable[str]) -> None:
        """An object store does not look whether the files are there: a folder's guard is not to be relied on."""

    def delete(self, paths: Iterable[str]) -> None:
        delete = super().delete
        for path in paths:
            self.faults.meet("delete", lambda path=path: delete([path]), _never)


@dataclass
class Topic:
    """Kafka: records of some partitions, good and bad ones, with gaps in their offsets."""

    partitions: int
    records: dict[Record, bool] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)

    def produce(self, partition: int, goods: Iterable[bool | None]) -> None:
        """A record for each good or bad, a gap for each None."""
        offset = self.ends.get(partition, 0)
        for good in goods:
            if good is not None:
                self.records[partition, offset] = good
            offset += 1
        self.ends[partition] = offset

    def read(self, partition: int, start: int, end: int) -> list[tuple[Record, bool]]:
        wanted = ((partition, offset) for offset in range(start, end))
        return [(record, self.records[record]) for record in wanted if record in self.records]


class World:
    """Everything that outlives a process, and what each data file stands for."""

    def __init__(self, folder: Path, partitions: int = 2) -> None:
        self.folder = folder
        self.catalog = SharedCatalog(folder)
        self.topic = Topic(partitions)
        self.contents: dict[str, tuple[Record, ...]] = {}
        self.store = LocalStore()
        self.serial = 0
        self._lists: dict[str, list[ManifestFile]] = {}
        self._entries: dict[str, list[str]] = {}

    def new_file(self, folder: str, target: Target, records: tuple[Record, ...]) -> StagedFile:
        self.serial += 1
        path = f"{folder}/{self.serial:06d}.parquet"
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(path).touch()
        self.contents[path] = records
        return StagedFile(
            target=target, path=path, records=len(records), bytes=1, schema_id=0, spec_id=0, sort_order_id=None,
            partition=(), column_sizes={}, value_counts={}, null_value_counts={}, nan_value_counts={},
            lower_bounds={}, upper_bounds={}, split_offsets=(),
        )  # fmt: skip

    def tables(self, faults: Faults) -> StreamTables:
        catalog = ProcessCatalog(self.catalog, faults)
        now = Clock()
        return StreamTables(
            stream=STREAM,
            main=TableHandle(catalog, MAIN),  # type: ignore[arg-type]
            dead_letters=TableHandle(catalog, DEAD),  # type: ignore[arg-type]
            journals=JournalStore(ProcessStore(faults), state_location(self.catalog.load(MAIN), STREAM)),
            clock_ms=lambda: 1_700_000_000_000,
            patience=Patience(total_s=4, clock=now, sleep=now.wait),
        )

    def marker(self, name: str = MAIN) -> Marker | None:
        return read_marker(self.catalog.metadata[name].properties, STREAM)

    # What stands in the tables

    def rows(self, name: str) -> Counter[Record]:
        head = head_of(self.catalog.metadata[name])
        return Counter(r for path in self.live_files(head) for r in self.contents[path]) if head else Counter()

    def manifests(self, snapshot: Any) -> list[ManifestFile]:
        """Read once: what a committed snapshot lists never changes."""
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
        """Every path that any snapshot of a table needs: manifest lists, manifests and data files."""
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
        """Put all live files into one, as `rewrite_data_files` does: same rows, other files."""
        head = head_of(self.catalog.metadata[name])
        if head is None:
            return
        records = tuple(self.rows(name))
        location = self.catalog.metadata[name].location
        merged = self.new_file(f"{location}/data/compacted", "main" if name == MAIN else "dead-letters", records)
        self._commit_files(name, (merged,), replacing=True)

    def _commit_files(self, name: str, files: tuple[StagedFile, ...], *, replacing: bool = False) -> None:
        table = self.catalog.load(name)
        writer = SnapshotWriter(files)
        prepared = writer.prepare(table, summary={}, now_ms=1_700_000_000_000)
        if replacing:  # the list holds our manifests alone
            snapshot = prepared.snapshot
            with write_manifest_list(
                2,
                self.catalog.io.new_output(prepared.manifest_list),
                snapshot.snapshot_id,
                snapshot.parent_snapshot_id,
                snapshot.sequence_number,
                "null",
            ) as manifest_list:
                manifest_list.add_manifests(writer.manifests)
        self.catalog.commit(name, prepared.requirements, prepared.updates)

    def expire(self, name: str) -> None:
        """`expire_snapshots(retain_last => 1)`: snapshots go, with every file that only they used."""
        before = self.references(name)
        metadata = self.catalog.metadata[name]
        head = head_of(metadata)
        gone = [s.snapshot_id for s in metadata.snapshots if head is None or s.snapshot_id != head.snapshot_id]
        if gone:
            self.catalog.commit(name, (), (RemoveSnapshotsUpdate(snapshot_ids=gone),))
            self.store.delete(before - self.references(name))

    def roll_back(self, snapshots: int) -> bool:
        """Put the main table's branch back; False where its history does not reach that far."""
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


@dataclass
class Clock:
    """Seconds that only waiting moves."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> None:
        self.now_s += max(seconds, 1.0)


class Writer:
    """One writer process, step by step: what `frazil.stream.batch` does around the committer, without Spark."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.faults = Faults(self._others)
        self.tables = world.tables(self.faults)
        self.store = ProcessStore(self.faults)
        self.committer: Committer | None = None
        self.marker: Marker | None = None
        self.staged: Journal | None = None
        self.journaled = False

    def _others(self) -> None:
        self.world.foreign_append()
        self.world.expire(MAIN)

    @property
    def epoch(self) -> int | None:
        return self.committer.epoch if self.committer else None

    def begin(self) -> Settled:
        committer = Committer.take_over(
            self.tables,
            source=SOURCE,
            initial=lambda: {(TOPIC, p): 0 for p in range(self.world.topic.partitions)},
            first_epoch=1 + highest_epoch(self.tables, self.store),
        )
        settled = settle(self.tables, committer, self.store)
        self.committer, self.marker = committer, self.tables.marker()
        return settled

    def stage(self, most: int, *, leftover: bool) -> None:
        """Files of the next `most` offsets of each partition; with leftovers of an attempt that failed."""
        assert self.committer is not None
        assert self.marker is not None
        key = BatchKey(self.committer.epoch, self.marker.at.batch + 1)
        floor = dict(self.committer.dead_letter_floor())
        main, dead = (batch_folder(self.world.catalog.load(name), STREAM, key) for name in (MAIN, DEAD))
        progress, files = [], []
        for p, newest in sorted(self.world.topic.ends.items()):
            start = self.marker.offsets.get((TOPIC, p), 0)
            end = min(newest, start + most)
            read = self.world.topic.read(p, start, end)
            good = tuple(r for r, fine in read if fine)
            bad = tuple(r for r, fine in read if not fine)
            new_bad = tuple(r for r in bad if r[1] >= floor.get((TOPIC, p), 0))
            files += [self.world.new_file(main, "main", good)] if good else []
            files += [self.world.new_file(dead, "dead-letters", new_bad)] if new_bad else []
            if leftover and read:
                self.world.new_file(main, "main", good)
                self.world.new_file(dead, "dead-letters", bad)
            if end > start:
                progress.append(RangeProgress(TOPIC, p, start, end, len(good), len(bad), end if good else None))
        self.staged = Journal(
            stream=STREAM,
            key=key,
            table_uuid=str(self.world.catalog.metadata[MAIN].table_uuid),
            created_at_ms=0,
            source=SOURCE,
            progress=tuple(progress),
            files=tuple(files),
            dead_letter_floor=floor,
            idle=frozenset(),
            offsets_after={**self.marker.offsets, **{r.topic_partition: r.end for r in progress}},
        )
        self.journaled = False

    def journal(self) -> bool:
        assert self.staged is not None
        self.journaled = self.tables.journals.put(self.staged)
        return self.journaled

    def commit(self) -> Marker:
        assert self.committer is not None
        assert self.staged is not None
        self.marker = self.committer.commit(self.staged)
        sweep_batch(self.tables, self.store, self.staged)
        self.staged, self.journaled = None, False
        return self.marker
