"""The tables to which one stream commits, with its journals and the storage next to the tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from frazil.commit.backfill_records import BackfillMarker, read_backfill
from frazil.commit.compare_and_swap import RetryPolicy, TableHandle
from frazil.commit.journal import JournalStore
from frazil.commit.marker import BatchKey, Marker, OwnTable, landed_ends, read_marker
from frazil.commit.merging import MergeConfig
from frazil.ingest.contract import Target, is_routed
from frazil.partitions.completeness import Alignment
from frazil.table.atomic_catalogs import CommitTables, find_commit_tables
from frazil.table.object_store import ObjectStore
from frazil.table.tables import state_location


@dataclass(frozen=True, slots=True)
class StreamTables:
    stream: str
    targets: Mapping[Target, TableHandle]
    """"main" and "dead-letters". A batch is committed once it is in "main"."""
    journals: JournalStore
    clock_ms: Callable[[], int]
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)
    align: Alignment | None = None
    """How the writer hides rows of open windows, if declared. None for readers."""
    commit_atomically: CommitTables | None = None
    """Commits all tables of a batch in one step. None if the tables are committed one by one."""
    merging: MergeConfig | None = None
    """How staged files are merged. None for readers, and for appended files."""
    routed: dict[Target, TableHandle] = field(default_factory=dict)

    @classmethod
    def open(  # noqa: PLR0913 - all that the tables of a stream are used with
        cls,
        stream: str,
        targets: Mapping[Target, Table],
        *,
        clock_ms: Callable[[], int],
        retry_policy: RetryPolicy | None = None,
        align: Alignment | None = None,
        atomic: bool = False,
        merging: MergeConfig | None = None,
    ) -> StreamTables:
        """Return the stream's tables. Raises SpecError for unsupported storage, or an unsupported `atomic`."""
        main, handles = targets["main"], {target: TableHandle.from_table(table) for target, table in targets.items()}
        journals = JournalStore(handles["main"].store, state_location(main, stream))
        commit_atomically = find_commit_tables(main.catalog) if atomic else None
        return cls(
            stream, handles, journals, clock_ms, retry_policy or RetryPolicy(), align, commit_atomically, merging
        )

    @property
    def main(self) -> TableHandle:
        return self.targets["main"]

    @property
    def dead_letters(self) -> TableHandle:
        return self.targets["dead-letters"]

    def own_table(self) -> OwnTable:
        table = self.main.current()
        return OwnTable(self.main.identifier, table.location(), str(table.metadata.table_uuid))

    @property
    def store(self) -> ObjectStore:
        return self.journals.store

    def store_of(self, target: Target) -> ObjectStore:
        return self.store if target == "main" else self.handle(target).store

    def handle(self, target: Target) -> TableHandle:
        if not is_routed(target):
            return self.targets[target]
        return self.routed.setdefault(target, self.main.sibling(target))

    @property
    def all(self) -> dict[Target, TableHandle]:
        return {**self.targets, **self.routed}

    @property
    def state(self) -> str:
        return self.journals.state

    def waiting_folder(self, key: BatchKey | None = None) -> str:
        """Return the folder of rows that wait for missing tables, for one batch or all batches."""
        folder = f"{self.state}/waiting"
        return folder if key is None else f"{folder}/{key.epoch:08d}/{key.batch:08d}"

    def marker(self) -> Marker | None:
        return read_marker(self.main.refresh().metadata.properties, self.stream)

    def last_backfill(self, target: Target = "main") -> BackfillMarker | None:
        """Load a table, and return its marker of the stream's last backfill or replay. Raises MarkerUnreadable."""
        return read_backfill(self.targets[target].refresh().metadata.properties, self.stream)

    def landed(self, table: Table) -> tuple[tuple[str, int], ...]:
        """Return the end of a table's records by `topic/partition`; see `MergeRules.landed`."""
        marker, main = (read_marker(handle.metadata.properties, self.stream) for handle in (table, self.main.current()))
        ends = landed_ends(marker, main) if marker and main else {}
        return tuple((f"{topic}/{partition}", end) for (topic, partition), end in sorted(ends.items()))

    def load_marker_with(self, catalog: Catalog) -> Marker | None:
        """Load the marker with another catalog client, for a thread that does not commit."""
        return read_marker(self.main.load_with(catalog).metadata.properties, self.stream)
