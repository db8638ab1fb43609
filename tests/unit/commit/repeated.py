"""A stream with `dedupe` in a real catalog. The test stages candidates by hand; the real committer commits them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, HourTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestamptzType

from frazil.commit.committer import Committer
from frazil.commit.journal import Journal
from frazil.commit.marker import BatchKey, Marker
from frazil.commit.merging import DEDUPE_MODE, MergeConfig, RunTasks, run_in_process
from frazil.commit.staging_targets import target_table
from frazil.commit.stream_tables import StreamTables
from frazil.commit.sweep import batch_folder, sweep_batch
from frazil.ingest.contract import StagedFile
from frazil.ingest.table_writer import TableWriter, file_namer
from frazil.merge.contract import MergeContext, MergeResult, MergeRules, MergeTask
from frazil.partitions.windows import Grain
from frazil.spec.iceberg import DEAD_LETTER_PARTITION_SPEC, DEAD_LETTER_SCHEMA
from tests.unit.commit.conftest import FaultyCatalog, World

MINUTE_US = 60_000_000
WITHIN_US = 60 * MINUTE_US
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "at", TimestamptzType(), required=True),
    NestedField(3, "kafka_topic", StringType(), required=True),
    NestedField(4, "kafka_partition", IntegerType(), required=True),
    NestedField(5, "kafka_offset", LongType(), required=True),
    NestedField(6, "kafka_timestamp", TimestamptzType(), required=False),
)
WHOLE = UNPARTITIONED_PARTITION_SPEC
BY_HOUR = PartitionSpec(PartitionField(2, 1000, HourTransform(), "at_hour"))
BY_BUCKET = PartitionSpec(PartitionField(1, 1000, BucketTransform(2), "id_bucket"))

Rows = Sequence[tuple[int, int]]
"""Keys with their event times in minutes."""


@dataclass
class RepeatedWorld(World):
    """A stream with `dedupe`. Rows get consecutive offsets in the order in which they are staged."""

    table: str = "demo.hits"
    dead_letter_table: str = "demo.hits_dead_letters"
    parallelism: int = 1
    run_tasks: RunTasks = run_in_process
    ran: list[MergeTask] = field(default_factory=list)

    def view(self) -> StreamTables:
        def run(context: MergeContext, tasks: Sequence[MergeTask]) -> Sequence[MergeResult]:
            self.ran += tasks
            return self.run_tasks(context, tasks)

        rules = MergeRules(("id",), event_time="at", within_us=WITHIN_US, window_us=Grain.HOUR.us)
        merging = MergeConfig(lambda _: rules, run, lambda: self.parallelism, DEDUPE_MODE)
        return dataclasses.replace(super().view(), merging=merging)

    def arrive(self, committer: Committer, rows: Rows) -> Journal:
        """Stage rows in several files, and write their journal."""
        marker = self.marker()
        key = BatchKey(committer.epoch, marker.key.batch + 1)
        start = marker.offsets["events", 0]
        staged = self.stage_rows(key, rows, start)
        journal = self.journal(key, {0: (start, start + len(rows))}, staged, seen=committer.newest_dead_letters())
        assert self.tables.journals.put(journal)
        return journal

    def batch(self, committer: Committer, rows: Rows) -> Marker:
        """Stage, journal, commit and sweep one batch, as a writer does."""
        journal = self.arrive(committer, rows)
        marker = committer.commit(journal)
        sweep_batch(self.tables, journal)
        return marker

    def stage_rows(self, key: BatchKey, rows: Rows, start: int) -> tuple[StagedFile, ...]:
        table = self.load()
        target = target_table(table, folder=batch_folder(table, self.stream, key))
        made = [
            {"id": number, "at": minute * MINUTE_US, "kafka_topic": "events", "kafka_partition": 0,
             "kafka_offset": start + place, "kafka_timestamp": None}
            for place, (number, minute) in enumerate(rows)
        ]  # fmt: skip
        found: list[StagedFile] = []
        for part in (made[::2], made[1::2]):
            writer = TableWriter(target, "main", io=table.io, file_name=file_namer(0, 0))
            if part:
                writer.add(pa.Table.from_pylist(part, schema=writer.layout.arrow_schema))
            found += writer.finish()
        return tuple(dataclasses.replace(file, content="candidates") for file in found)

    def offsets(self) -> list[int]:
        """Return the offsets of the table's rows, sorted."""
        return sorted(self.load().scan().to_arrow()["kafka_offset"].to_pylist())

    def summary(self) -> dict[str, str]:
        head = self.load().current_snapshot()
        assert head is not None
        assert head.summary is not None
        return {"operation": head.summary.operation.value, **head.summary.additional_properties}

    def append_hits(self, rows: Rows, *, offset: int) -> None:
        """Append rows of another writer."""
        table = self.load()
        made = [
            {"id": number, "at": minute * MINUTE_US, "kafka_topic": "other", "kafka_partition": 0,
             "kafka_offset": offset, "kafka_timestamp": None}
            for number, minute in rows
        ]  # fmt: skip
        table.append(pa.Table.from_pylist(made, schema=table.schema().as_arrow()))

    def needed_files(self) -> set[str]:
        """Return the data files of all snapshots."""
        table = self.load()
        return {
            entry.data_file.file_path.removeprefix("file://")
            for snapshot in table.metadata.snapshots
            for manifest in snapshot.manifests(table.io)
            for entry in manifest.fetch_manifest_entry(table.io)
        }


def kept_of(rows: Sequence[tuple[int, int, int]], there: Sequence[tuple[int, int]] = ()) -> list[int]:
    """Return the offsets of the rows (offset, key, minute) that the rule keeps next to the rows `there`."""
    kept, offsets = list(there), []
    for offset, number, minute in rows:
        if not any(k == number and abs(m - minute) * MINUTE_US <= WITHIN_US for k, m in kept):
            kept.append((number, minute))
            offsets.append(offset)
    return offsets


def repeated_world(
    catalog: FaultyCatalog, folder: Path, spec: PartitionSpec = BY_HOUR, *, parallelism: int = 1
) -> RepeatedWorld:
    """Return a stream whose tables are empty."""
    catalog.inner.create_table("demo.hits", SCHEMA, partition_spec=spec)
    catalog.inner.create_table("demo.hits_dead_letters", DEAD_LETTER_SCHEMA, partition_spec=DEAD_LETTER_PARTITION_SPEC)
    return RepeatedWorld(catalog, folder, parallelism=parallelism)
