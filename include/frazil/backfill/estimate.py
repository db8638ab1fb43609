"""Counts what a backfill would write. Decodes its records, or a sample if there are many, into a temporary folder."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass

from frazil.backfill.routes import PredictedRoute
from frazil.backfill.rules import staged_spans
from frazil.backfill.run import Backfill, BackfillPlan
from frazil.backfill.source import offset_ranges
from frazil.commit.marker import BatchKey
from frazil.commit.staging_targets import target_file_bytes
from frazil.ingest.contract import StagedFile, StageResult, StageTask
from frazil.ingest.stage import stage
from frazil.spec.sinks import Mode
from frazil.spec.units import format_count
from frazil.stream.stage_context import stage_below
from frazil.table.branches import summary_value

MAX_EXACT_RECORDS = 5_000
"""Maximum number of missing records that are all decoded. With more, a sample is decoded."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The result of a dry run."""

    requested: int
    """Number of requested offsets in Kafka, or of requested records in files."""
    held: int
    """Number of requested offsets that the table already has, or that are known to have no row."""
    max_records: int
    """Maximum number of missing records: missing offsets in Kafka, or missing records in files."""
    records: int
    """Number of rows, or of records to merge, estimated unless `exact`. Lower than `max_records` if event times are
    filtered, or Kafka has gaps.
    """
    rejected: int
    bytes: int
    files: int
    chunks: int
    partitions: int
    """Number of partitions, of all tables, that the decoded rows have. The backfill has at least as many."""
    sampled: int
    """Number of decoded records with a row or a dead letter."""
    topic_partitions: int
    source_files: int
    source_bytes: int
    exact: bool
    """Whether all missing records were decoded. `bytes` and `files` are estimates nevertheless."""


def estimate(backfill: Backfill, plan: BackfillPlan) -> Estimate:
    """Count the missing records, and count or estimate what they become. Changes nothing in the tables."""
    result = stage_sample(backfill, plan)
    read = backfill.source.max_records(staged_spans([result]))
    landed, rejected = sum(p.records for p in result.progress), sum(p.rejected for p in result.progress)
    files = [f for f in result.files if f.target != "dead-letters"]
    max_records = backfill.source.max_records(plan.spans)
    records = round(max_records * landed / read) if read else 0
    per_record = _bytes_per_record(backfill, files)
    per_file = max(0.0, min((f.bytes - f.records * per_record for f in files), default=0.0))
    table_partitions = len({(f.target, f.partition) for f in files})
    count = len(backfill.source.chunks(plan.spans, limit=backfill.request.chunk_records))
    target = target_file_bytes(backfill.opened.tables.main.current())
    file_count = max(math.ceil(records * per_record / target), count + table_partitions - 1) if records else 0
    return Estimate(
        requested=plan.requested,
        held=plan.requested - max_records,
        max_records=max_records,
        records=records,
        rejected=round(max_records * rejected / read) if read else 0,
        bytes=round(records * per_record + file_count * per_file),
        files=file_count,
        chunks=count,
        partitions=table_partitions,
        sampled=landed + rejected,
        topic_partitions=len(plan.spans),
        source_files=len(backfill.source.files),
        source_bytes=sum(f.bytes for f in backfill.source.files),
        exact=read == max_records,
    )


def estimate_messages(dry_run: Estimate, *, stream: str, mode: Mode) -> list[str]:
    unit = "offsets"
    if dry_run.source_files:
        unit = f"records in {format_count(dry_run.source_files, 'file')} ({dry_run.source_bytes:,} bytes)"
    if not dry_run.requested:
        where = "the files have" if dry_run.source_files else "Kafka has"
        return [f"Stream {stream}: nothing is missing; {where} no records in this range before the stream's position."]
    if not dry_run.max_records:
        return [f"Stream {stream}: none of the {dry_run.requested:,} requested {unit} is missing."]
    missing_text = (
        f"Stream {stream}: {dry_run.max_records:,} of {dry_run.requested:,} {unit} would be read, in "
        f"{format_count(dry_run.topic_partitions, 'topic-partition')}; {dry_run.held:,} are in the table, or have no "
        "row."
    )
    rows = format_count(dry_run.records, mode.noun)
    rows = rows if dry_run.exact else f"about {rows}"
    action = f"compare {rows} with the table's rows, and add" if mode.merges else f"add {rows} and"
    sample = format_count(dry_run.sampled, "record")
    origin = "counted exactly" if dry_run.exact else f"estimated from a sample of {sample}"
    size = (
        f"The backfill would {action} {format_count(dry_run.rejected, 'dead letter')}, {origin}: about "
        f"{dry_run.bytes:,} bytes in {format_count(dry_run.files, 'file')} or more, staged in "
        f"{format_count(dry_run.chunks, 'chunk')}."
    )
    if mode.merges:
        size += " Only the merge shows how many rows change."
    partitions = format_count(dry_run.partitions, "partition")
    files_text = (
        f"The records fall into {partitions} of the table."
        if dry_run.exact
        else f"The sample falls into {partitions} of the table, so at least that many partitions change."
    )
    return [missing_text, size, files_text]


def stage_sample(backfill: Backfill, plan: BackfillPlan) -> StageResult:
    """Stage the plan's records into a temporary folder; a sample if they are many. Changes nothing in the tables."""
    if not plan.spans:
        return StageResult((), ())
    route = PredictedRoute.open(backfill.spec)
    declared = backfill.context(backfill.opened.tables, BatchKey(0, 0), plan.source.topic_ids)

    is_small = backfill.source.max_records(plan.spans) <= MAX_EXACT_RECORDS
    task = StageTask(0, offset_ranges(plan.spans if is_small else backfill.source.sample(plan.spans)))

    def try_stage() -> StageResult:
        with tempfile.TemporaryDirectory(prefix="frazil-backfill-") as folder:
            context = route.add_targets(declared) if route else declared
            return stage(stage_below(context, folder), task, isolated=context.transform is not None)

    result = try_stage()
    if route and result.values:  # rows whose table a writer would create first
        route.create_tables({*result.values})
        result = try_stage()
    return result


def _bytes_per_record(backfill: Backfill, sample: list[StagedFile]) -> float:
    """Return the table's average bytes per record; for an empty table, the sample's without the files' metadata."""
    head = backfill.opened.tables.main.current().current_snapshot()
    rows, size = (int(summary_value(head, f"total-{name}") or 0) for name in ("records", "files-size"))
    if rows and size:
        return size / rows
    return sum(sum(f.column_sizes.values()) for f in sample) / max(1, sum(f.records for f in sample))
