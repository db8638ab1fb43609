"""The world of the model of upserts and routes, shared by all processes: a SQLite catalog with real files, and a topic.

Take-over, settling, journals, merges, followers and multi-table commits are the real code. Each process accesses the
catalog and its storage through its own faults.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import RemoveSnapshotsUpdate, SetSnapshotRefUpdate

from frazil.commit.compare_and_swap import RetryPolicy, TableHandle
from frazil.commit.journal import Journal, JournalStore, bare_path
from frazil.commit.marker import BatchKey, Marker, read_marker
from frazil.commit.merging import DEDUPE_MODE, MergingMode, merge_config, run_in_process
from frazil.commit.staging_targets import target_table
from frazil.commit.stream_tables import StreamTables
from frazil.commit.sweep import batch_folder
from frazil.ingest.changes import CHANGE, DELETE, OMITTED_COLUMNS, UPSERT
from frazil.ingest.contract import StagedFile, Target
from frazil.ingest.table_writer import TableWriter, file_namer
from frazil.merge.contract import MergeContext, MergeResult, MergeTask
from frazil.offsets.spans import SourceIdentity
from frazil.spec.model import StreamSpec
from frazil.table.atomic_catalogs import TableChange
from frazil.table.sql_catalog import commit_by_sql
from frazil.table.storage import LocalStore
from frazil.table.tables import ensure_dead_letters, ensure_table, state_location

from .protocol_faults import Clock, Faults, ProcessIO, ProcessStore

Kind = Literal[
    "upserts",
    "upserts at once",
    "routes",
    "routes at once",
    "routed upserts",
    "routed upserts at once",
    "routed repeats",
    "routed repeats at once",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
STREAM, HOME, DEAD, ORDERS, PAYMENTS = "shop", "demo.home", "demo.home_dead_letters", "demo.orders", "demo.payments"
ROUTED = (ORDERS, PAYMENTS)
TP = ("shop", 0)
SOURCE = SourceIdentity("cluster", {"shop": "shop-1"})
FOREIGN = 1_000
"""The first key of rows that no stream wrote."""
BAD = "bad"
AT = datetime(2026, 1, 1, tzinfo=UTC)
NOW_MS = 1_767_225_600_000
"""Always before the machine's clock, which dates the commits of other programs."""

Record = str | tuple[int, int | None]
"""A key with its amount (None deletes it), the table of a row to append, or `BAD` for a dead letter."""
PROCESS = "tests.process"
"""The FileIO property with the number of the process to which the FileIO belongs."""


def spec_of(kind: Kind) -> StreamSpec:
    key = ["region", "id"] if "routed" in kind else "id"
    upserts = {"mode": "upsert", "key": key, "partition-by": ["bucket(2, id)"]}
    routes = {"route": {"by": "field", "name": "region", "tables": {name: name for name in ROUTED}}}
    return StreamSpec.model_validate(
        {
            "name": STREAM,
            "source": {"topics": ["shop"], "format": "json", "bootstrap-servers": "nowhere:9092"},
            "table": HOME,
            "schema": {
                "id": "long not null",
                "region": "string not null",
                "amount": "long",
                "at": "timestamptz not null",
            },
            "event-time": "at",
            "commit": {"atomic": kind.endswith("at once")},
            **(upserts if "upserts" in kind else {}),
            **({"dedupe": {"key": "id", "within": "1h"}} if "repeats" in kind else {}),
            **(routes if "route" in kind else {}),
        }
    )


@dataclass(frozen=True, slots=True)
class Move:
    """A stream's marker in one table, before and after a commit."""

    table: str
    before: Marker | None
    after: Marker | None


class ProcessCatalog:
    """The catalog as one process accesses it."""

    def __init__(self, world: World, faults: Faults, number: int) -> None:
        self._world, self._faults, self._number = world, faults, number

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world.catalog, name)

    def load_table(self, identifier: str | tuple[str, ...]) -> Table:
        name = identifier if isinstance(identifier, str) else ".".join(identifier)
        stale = self._faults.stale("load")
        return self._ours(self._faults.meet("load", lambda: self._world.load(name, behind=stale)))

    def create_table(self, *args: Any, **kwargs: Any) -> Table:
        return self._ours(self._faults.meet("load", lambda: self._world.catalog.create_table(*args, **kwargs)))

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> Any:
        def effect() -> Any:
            return self._world.catalog.commit_table(table, requirements, updates)

        return self._met([table], effect)

    def commit_at_once(self, changes: Sequence[TableChange]) -> Any:
        return self._met([c.table for c in changes], lambda: commit_by_sql(self._world.catalog, changes))

    def _met(self, tables: Sequence[Table], effect: Callable[[], Any]) -> Any:
        names = [".".join(table.name()) for table in tables]
        return self._faults.meet("commit", lambda: self._world.changed(names, effect), self._world.late.append)

    def _ours(self, table: Table) -> Table:
        io = ProcessIO(self._faults)
        io.properties = {PROCESS: str(self._number)}
        return Table(table.name(), table.metadata, table.metadata_location, io, self, {})  # type: ignore[arg-type]


@dataclass
class World:
    """Everything that outlives a process."""

    kind: Kind
    catalog: SqlCatalog
    log: list[Record] = field(default_factory=list)
    """The topic: its only partition, from offset 0."""
    late: list[Callable[[], Any]] = field(default_factory=list)
    """Commits that were reported as failed, but will still arrive."""
    moves: list[Move] = field(default_factory=list)
    positions: dict[int, int] = field(default_factory=dict)
    """The stream's offset in each snapshot of the default table."""
    after_commit: Callable[[], None] = lambda: None
    """Checks what must hold after every commit."""
    processes: list[Faults] = field(default_factory=list)
    foreign: set[int] = field(default_factory=set)
    """The keys of rows that no stream wrote."""
    _past: dict[str, deque[Table]] = field(default_factory=dict)
    _markers: dict[str, Marker | None] = field(default_factory=dict)
    _rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Rows by metadata file."""
    _files: dict[str, list[str]] = field(default_factory=dict)
    """Files by manifest."""

    def __post_init__(self) -> None:
        self.spec = spec_of(self.kind)
        ensure_table(self.catalog, self.spec)
        ensure_dead_letters(self.catalog, self.spec)

    @property
    def merges(self) -> bool:
        return self.mode is not None

    @property
    def mode(self) -> MergingMode | None:
        merging = merge_config(self.spec)
        return merging.mode if merging else None

    @property
    def routed(self) -> tuple[str, ...]:
        return ROUTED if self.spec.route else ()

    def table_of(self, key: int) -> str:
        """Return the table that stores the row of a key."""
        return (HOME, *ROUTED)[key % 3] if self.routed else HOME

    @property
    def names(self) -> tuple[str, ...]:
        return (HOME, DEAD, *(name for name in self.routed if self.there(name)))

    # The catalog

    def load(self, name: str, *, behind: int = 0) -> Table:
        """Load the table, or a cached one that is `behind` changes old."""
        found = self.catalog.load_table(name)
        past = [t for t in self._past.get(name, ()) if t.metadata.table_uuid == found.metadata.table_uuid]
        return past[-behind] if 0 < behind <= len(past) else found

    def there(self, name: str) -> bool:
        try:
            self.catalog.load_table(name)
        except NoSuchTableError:
            return False
        return True

    def changed(self, names: Sequence[str], effect: Callable[[], Any]) -> Any:
        """Run a commit, and record which markers it changed."""
        before = {name: self.catalog.load_table(name) for name in names}
        answer = effect()
        for name in names:
            self._past.setdefault(name, deque(maxlen=3)).append(before[name])
            old, new = (read_marker(t.properties, STREAM) for t in (before[name], self.catalog.load_table(name)))
            if old != new:
                self.moves.append(Move(name, old, new))
        self._note_position()
        self.after_commit()
        return answer

    def _note_position(self) -> None:
        head, marker = self.load(HOME).current_snapshot(), self.marker()
        if head is not None and marker is not None:
            self.positions.setdefault(head.snapshot_id, marker.offsets[TP])

    def land_late(self) -> None:
        late, self.late = self.late, []
        for effect in late:
            with suppress(Exception):  # a refusal has no one to go to
                effect()

    def tables(self, faults: Faults) -> tuple[StreamTables, ProcessCatalog]:
        """Return the tables as a process accesses them, and its catalog."""
        self.processes.append(faults)
        catalog: Any = ProcessCatalog(self, faults, len(self.processes) - 1)
        now = Clock()  # of this process's patience alone

        def run(context: MergeContext, tasks: Sequence[MergeTask]) -> Sequence[MergeResult]:
            found: Sequence[MergeResult] = faults.meet("merge", lambda: run_in_process(context, tasks))
            return found

        tables = StreamTables(
            stream=STREAM,
            targets={"main": TableHandle(catalog, HOME), "dead-letters": TableHandle(catalog, DEAD)},
            journals=JournalStore(ProcessStore(faults), state_location(self.load(HOME), STREAM)),
            clock_ms=lambda: NOW_MS,
            retry_policy=RetryPolicy(total_s=4, clock=now, wait=now.wait),
            commit_atomically=catalog.commit_at_once if self.spec.commit.atomic else None,
            merging=merge_config(self.spec, run, lambda: 2),
        )
        return tables, catalog

    def store(self, _: str, properties: Any, **__: Any) -> LocalStore:
        """Replace `open_store` for all processes. Each process gets a store with its own faults."""
        found = (properties() if callable(properties) else properties).get(PROCESS)
        return LocalStore() if found is None else ProcessStore(self.processes[int(found)])

    # What stands in the tables

    def marker(self, name: str = HOME) -> Marker | None:
        return read_marker(self.load(name).properties, STREAM)

    def offset(self) -> int:
        marker = self.marker()
        return marker.offsets[TP] if marker else 0

    def rows(self, name: str) -> list[dict[str, Any]]:
        table = self.load(name)
        if table.metadata_location not in self._rows:
            wanted = ("kafka_offset",) if name == DEAD else ("id", "amount", "kafka_offset")
            self._rows[table.metadata_location] = table.scan(selected_fields=wanted).to_arrow().to_pylist()
        return self._rows[table.metadata_location]

    def offsets(self, name: str) -> Counter[int]:
        return Counter(row["kafka_offset"] for row in self.rows(name) if row.get("id", 0) < FOREIGN or name == DEAD)

    def records_of(self, target: str) -> set[int]:
        """Return the offsets before the stream's position whose records belong to a table."""
        return {offset for offset, record in enumerate(self.log[: self.offset()]) if record == target}

    def newest(self, name: str, end: int) -> dict[int, int | None]:
        """Return the rows that a table has from records before `end`: the last change of each key, or the first row."""
        found: dict[int, int | None] = {}
        for record in self.log[:end]:
            if isinstance(record, tuple) and self.table_of(record[0]) == name:
                key, amount = record
                if self.mode is DEDUPE_MODE:
                    found.setdefault(key, amount)
                    continue
                found.pop(key, None)
                if amount is not None:
                    found[key] = amount
        return found

    def references(self, name: str) -> set[str]:
        """Return all files to which any snapshot of a table refers."""
        table, found = self.load(name), set()
        for snapshot in table.metadata.snapshots:
            found.add(bare_path(snapshot.manifest_list))
            for manifest in snapshot.manifests(table.io):
                path = manifest.manifest_path
                if path not in self._files:
                    entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                    self._files[path] = [bare_path(entry.data_file.file_path) for entry in entries]
                found |= {bare_path(path), *self._files[path]}
        return found

    def staged_files(self, name: str) -> set[str]:
        """Return all Parquet files in the folders of the stream's batches."""
        return {str(p) for p in Path(bare_path(self.load(name).location()), "data", STREAM).rglob("*.parquet")}

    def journals(self) -> Iterator[Journal]:
        state = state_location(self.load(HOME), STREAM)
        return JournalStore(LocalStore(), state).records()

    # What a batch stages

    def stage(self, tables: StreamTables, key: BatchKey, offsets: Iterable[int]) -> tuple[StagedFile, ...]:
        """Write files for the tables as this process knows them, even if one has been dropped since."""
        by_target: dict[Target, list[int]] = {}
        for offset in offsets:
            record = self.log[offset]
            name = self.table_of(record[0]) if isinstance(record, tuple) else record
            target = {HOME: "main", BAD: "dead-letters"}.get(name, name)
            by_target.setdefault(target, []).append(offset)
        return tuple(
            file
            for target, found in by_target.items()
            for file in self._write(tables.handle(target).current(), key, target, found)
        )

    def _write(self, table: Table, key: BatchKey, target: Target, offsets: Sequence[int]) -> list[StagedFile]:
        layout = target_table(table, folder=batch_folder(table, STREAM, key))
        mode = self.mode if target != "dead-letters" else None
        writer = TableWriter(
            mode.staging_target(layout, self.spec.key) if mode else layout,
            target,
            io=PyArrowFileIO(),
            file_name=file_namer(0, 0),
        )
        made = [self._dead_letter(o) if target == "dead-letters" else self._row(o) for o in offsets]
        writer.add(pa.Table.from_pylist(made, schema=writer.layout.arrow_schema))
        return writer.finish()

    def _row(self, offset: int) -> dict[str, Any]:
        record = self.log[offset]
        key, amount = record if isinstance(record, tuple) else (offset, None)
        place = {"kafka_topic": TP[0], "kafka_partition": TP[1], "kafka_offset": offset, "kafka_timestamp": None}
        change = {CHANGE: UPSERT if amount is not None else DELETE, OMITTED_COLUMNS: None}
        return {"id": key, "region": "eu", "amount": amount, "at": AT, **place, **change}

    def _dead_letter(self, offset: int) -> dict[str, Any]:
        said = {"error_class": "NotJson", "error": "it is not JSON", "rejected_at": AT, "stream": STREAM}
        return {"kafka_topic": TP[0], "kafka_partition": TP[1], "kafka_offset": offset, **said}

    # What others do

    def append(self) -> None:
        """Append a user's row with a new key, once the stream has begun: earlier rows would require an adoption."""
        if self.marker() is None:
            return
        key = max(self.foreign, default=FOREIGN) + 1
        self.foreign.add(key)
        place = {"kafka_topic": "none", "kafka_partition": 9, "kafka_offset": 0, "kafka_timestamp": None}
        table = self.load(HOME)
        row = {"id": key, "region": "eu", "amount": 1, "at": AT, **place}
        table.append(pa.Table.from_pylist([row], schema=table.schema().as_arrow()))
        self._note_position()

    def compact(self, name: str) -> None:
        table = self.load(name)
        if len(rows := table.scan().to_arrow()):
            table.overwrite(rows)
        self._note_position()

    def expire(self, name: str) -> None:
        """Expire all snapshots except the last, and delete the files that only they used."""
        table, before = self.load(name), self.references(name)
        head = table.current_snapshot()
        gone = [s.snapshot_id for s in table.metadata.snapshots if head and s.snapshot_id != head.snapshot_id]
        if gone:
            self.catalog.commit_table(table, (), (RemoveSnapshotsUpdate(snapshot_ids=gone),))
            LocalStore().delete(before - self.references(name))

    def roll_back(self, name: str) -> int | None:
        """Roll a table back to an earlier commit. Return the former snapshot's id; None without an earlier commit."""
        metadata = self.load(name).metadata
        head = metadata.current_snapshot()
        back = head
        while back is not None:
            back = metadata.snapshot_by_id(back.parent_snapshot_id) if back.parent_snapshot_id else None
            # Not in the middle of what another engine does in two snapshots.
            if back is not None and (name != HOME or back.snapshot_id in self.positions):
                assert head is not None
                self.move(name, back.snapshot_id)
                return int(head.snapshot_id)
        return None

    def move(self, name: str, snapshot_id: int) -> bool:
        """Set a table's main branch to a snapshot. Return False if the snapshot no longer exists."""
        table = self.load(name)
        if table.metadata.snapshot_by_id(snapshot_id) is None:
            return False
        move = SetSnapshotRefUpdate(ref_name="main", type=SnapshotRefType.BRANCH, snapshot_id=snapshot_id)
        self.catalog.commit_table(table, (), (move,))
        return True
