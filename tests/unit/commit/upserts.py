"""An upsert stream in a real catalog. The test stages changes by hand; the real code merges and commits them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.manifest import ManifestContent
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from frazil.commit.committer import Committer
from frazil.commit.journal import Journal
from frazil.commit.marker import BatchKey, Marker
from frazil.commit.merging import UPSERT_MODE, MergeConfig, RunTasks, run_in_process
from frazil.commit.staging_targets import target_table
from frazil.commit.stream_tables import StreamTables
from frazil.commit.sweep import batch_folder, sweep_batch
from frazil.ingest.changes import CHANGE, DELETE, OMITTED_COLUMNS, UPSERT
from frazil.ingest.contract import StagedFile
from frazil.ingest.table_writer import TableWriter, file_namer
from frazil.maintenance.tables import MaintainedTable, find_maintained
from frazil.merge.contract import MergeContext, MergeResult, MergeRules, MergeTask, RowRemoval
from frazil.spec.iceberg import DEAD_LETTER_PARTITION_SPEC, DEAD_LETTER_SCHEMA
from frazil.spec.model import StreamSpec
from tests.unit.commit.conftest import FaultyCatalog, World

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "region", StringType(), required=True),
    NestedField(3, "amount", LongType(), required=False),
)
WHOLE = UNPARTITIONED_PARTITION_SPEC
BY_BUCKET = PartitionSpec(PartitionField(1, 1000, BucketTransform(4), "id_bucket"))
BY_REGION = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))

SPEC = StreamSpec.model_validate(
    {
        "name": "events",
        "source": {"topics": ["events"], "format": "json", "bootstrap-servers": "127.0.0.1:1"},
        "table": "demo.accounts",
        "schema": {"id": "long not null", "region": "string not null", "amount": "long", "at": "timestamptz"},
        "event-time": "at",
        "mode": "upsert",
        "key": "id",
    }
)
"""A declaration of an upsert stream, for functions that need one."""

Row = tuple[str, int | None]
Changes = Sequence[tuple[int, Row | None]]
"""Keys with their rows; None deletes."""


@dataclass
class UpsertWorld(World):
    """An upsert stream whose merges run in this process."""

    table: str = "demo.accounts"
    dead_letter_table: str = "demo.accounts_dead_letters"
    how: RowRemoval = "auto"
    parallelism: int = 1
    run_tasks: RunTasks = run_in_process
    ran: list[MergeTask] = field(default_factory=list)
    """All tasks that were run."""
    offset: int = 0

    def view(self) -> StreamTables:
        def run(context: MergeContext, tasks: Sequence[MergeTask]) -> Sequence[MergeResult]:
            self.ran += tasks
            return self.run_tasks(context, tasks)

        merging = MergeConfig(lambda _: MergeRules(("id",), row_removal=self.how), run, lambda: self.parallelism)
        return dataclasses.replace(super().view(), merging=merging)

    def change(self, committer: Committer, changes: Changes) -> Journal:
        """Stage changes in several files, and write their journal."""
        marker = self.marker()
        key = BatchKey(committer.epoch, marker.key.batch + 1)
        start = marker.offsets["events", 0]
        journal = self.journal(
            key,
            {0: (start, start + len(changes))},
            self.stage_changes(key, changes),
            seen=committer.newest_dead_letters(),
        )
        assert self.tables.journals.put(journal)
        return journal

    def upsert(self, committer: Committer, changes: Changes) -> Marker:
        """Stage, journal, commit and sweep one batch, as a writer does."""
        journal = self.change(committer, changes)
        marker = committer.commit(journal)
        sweep_batch(self.tables, journal)
        return marker

    def stage_changes(self, key: BatchKey, changes: Changes) -> tuple[StagedFile, ...]:
        table = self.load()
        target = UPSERT_MODE.staging_target(target_table(table, folder=batch_folder(table, self.stream, key)), ("id",))
        found: list[StagedFile] = []
        made = [self._row(number, row) for number, row in changes]
        for rows in (made[::2], made[1::2]):
            writer = TableWriter(target, "main", io=table.io, file_name=file_namer(0, 0))
            if rows:
                writer.add(pa.Table.from_pylist(rows, schema=writer.layout.arrow_schema))
            found += writer.finish()
        return tuple(dataclasses.replace(file, content="changes") for file in found)

    def _row(self, number: int, row: Row | None) -> dict[str, Any]:
        self.offset += 1
        region, amount = row or ("eu", None)
        place = {"kafka_topic": "events", "kafka_partition": 0, "kafka_offset": self.offset, "kafka_timestamp": None}
        return {
            "id": number,
            "region": region,
            "amount": amount,
            **place,
            CHANGE: DELETE if row is None else UPSERT,
            OMITTED_COLUMNS: None,
        }

    def accounts(self, **scan: Any) -> dict[int, Row]:
        """Return the table's rows by key. Fails if a key has two rows."""
        rows = self.load().scan(**scan).to_arrow().to_pylist()
        found = {row["id"]: (row["region"], row["amount"]) for row in rows}
        assert len(found) == len(rows)
        return found

    def append_accounts(self, rows: Mapping[int, Row]) -> None:
        """Append rows of another writer."""
        table = self.load()
        made = [{"id": number, "region": region, "amount": amount} for number, (region, amount) in rows.items()]
        table.append(pa.Table.from_pylist(made, schema=table.schema().as_arrow()))

    def summary(self) -> Mapping[str, str]:
        head = self.load().current_snapshot()
        assert head is not None
        assert head.summary is not None
        return {"operation": head.summary.operation.value, **head.summary.additional_properties}

    def delete_files(self) -> int:
        head = self.load().current_snapshot()
        assert head is not None
        manifests = [m for m in head.manifests(self.load().io) if m.content is ManifestContent.DELETES]
        return sum(len(m.fetch_manifest_entry(self.load().io)) for m in manifests)

    def needed_files(self) -> set[str]:
        """Return the data and delete files of all snapshots."""
        table = self.load()
        return {
            entry.data_file.file_path.removeprefix("file://")
            for snapshot in table.metadata.snapshots
            for manifest in snapshot.manifests(table.io)
            for entry in manifest.fetch_manifest_entry(table.io)
        }


def maintained() -> MaintainedTable:
    """Return the table as maintenance sees it."""
    return find_maintained([SPEC], SPEC.table.identifier)


def upsert_world(
    catalog: FaultyCatalog,
    folder: Path,
    spec: PartitionSpec = BY_BUCKET,
    *,
    version: int = 2,
    **settings: Any,
) -> UpsertWorld:
    """Return a stream whose tables are empty."""
    properties = {"format-version": str(version)}
    catalog.inner.create_table("demo.accounts", SCHEMA, partition_spec=spec, properties=properties)
    catalog.inner.create_table(
        "demo.accounts_dead_letters", DEAD_LETTER_SCHEMA, partition_spec=DEAD_LETTER_PARTITION_SPEC
    )
    return UpsertWorld(catalog, folder, **settings)
