"""What a backfill would touch, in numbers: for them a sample is decoded, into a folder that is thrown away."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from frazil.commit.marker import BatchKey
from frazil.commit.target import target_file_bytes
from frazil.ingest.contract import OffsetRange, StagedFile, StageResult, StageTask
from frazil.ingest.stage import stage
from frazil.partitions.backfill import Span, chunks, offsets
from frazil.stream.backfill import Backfill, Plan

PLACES = 8
"""Spread evenly over what is missing of each topic-partition."""
AT_A_PLACE = 250


@dataclass(frozen=True, slots=True)
class Estimate:
    """A dry run's answer. What Kafka's gaps and the sample leave open is said by `records_at_most`, `sampled`."""

    asked: int
    """Offsets."""
    held: int
    """Of the asked: in the table, or known to be no record."""
    records_at_most: int
    records: int
    """As the sample has it: less than at most where an event time selects, or Kafka has gaps."""
    rejected: int
    bytes: int
    files: int
    chunks: int
    partitions: int
    """Of the table, in the sample: at least so many are touched."""
    sampled: int
    topic_partitions: int


def estimate(backfill: Backfill, plan: Plan) -> Estimate:
    """Count what is missing, and learn the rest from a sample. Changes nothing."""
    results = list(_sampled(backfill, plan)) if plan.spans else []
    read = sum(p.end - p.start for r in results for p in r.progress)
    landed = sum(p.records for r in results for p in r.progress)
    rejected = sum(p.rejected for r in results for p in r.progress)
    files = [f for r in results for f in r.files if f.target == "main"]
    most = offsets(plan.spans)
    records = round(most * landed / read) if read else 0
    size = round(records * _bytes_per_record(backfill, files))
    table_partitions = len({f.partition for f in files})
    count = len(chunks(plan.spans, most=backfill.request.chunk_records))
    target = target_file_bytes(backfill.opened.tables.main.current())
    return Estimate(
        asked=plan.asked,
        held=plan.asked - most,
        records_at_most=most,
        records=records,
        rejected=round(most * rejected / read) if read else 0,
        bytes=size,
        files=max(math.ceil(size / target), count + table_partitions - 1) if records else 0,
        chunks=count,
        partitions=table_partitions,
        sampled=landed + rejected,
        topic_partitions=len(plan.spans),
    )


def sentences(found: Estimate, *, stream: str) -> list[str]:
    """What a dry run says."""
    if not found.records_at_most:
        return [f"Stream {stream}: nothing of the {found.asked:,} offsets that are asked for is missing."]
    missing = (
        f"Stream {stream}: {found.records_at_most:,} of {found.asked:,} offsets are missing, in "
        f"{found.topic_partitions} topic-partitions; {found.held:,} are held already."
    )
    size = (
        f"It would land about {found.records:,} rows and {found.rejected:,} dead letters, {found.bytes:,} bytes in "
        f"{found.files:,} files or more, staged in {found.chunks:,} chunks."
    )
    touched = (
        f"A sample of {found.sampled:,} records touches {found.partitions:,} partitions of the table: at least so many "
        "change, once."
    )
    return [missing, size, touched]


def _sampled(backfill: Backfill, plan: Plan) -> Iterator[StageResult]:
    with tempfile.TemporaryDirectory(prefix="frazil-backfill-") as folder:
        context = backfill.context(backfill.opened.tables, BatchKey(0, 0), plan.source.topic_ids)
        where = Path(folder).as_uri()
        context = dataclasses.replace(
            context,
            main=dataclasses.replace(context.main, folder=f"{where}/main"),
            dead_letters=dataclasses.replace(context.dead_letters, folder=f"{where}/dead-letters"),
        )
        for place in range(PLACES):
            spans = [(tp, _piece(of, place)) for tp, of in plan.spans.items()]
            ranges = tuple(OffsetRange(*tp, *span) for tp, span in spans if span[0] < span[1])
            yield stage(context, StageTask(place, ranges), attempt=0, on_progress=lambda _: None)


def _piece(of: tuple[Span, ...], place: int) -> Span:
    """A few offsets at one of the places, never two of them twice."""
    length = sum(end - start for start, end in of)
    at, until = length * place // PLACES, length * (place + 1) // PLACES
    for start, end in of:
        if at < end - start:
            return start + at, min(start + at + min(AT_A_PLACE, until - at), end)
        at, until = at - (end - start), until - (end - start)
    return 0, 0


def _bytes_per_record(backfill: Backfill, sample: list[StagedFile]) -> float:
    """The table's own, where it has rows: a sample's small files are mostly footers."""
    head = backfill.opened.tables.main.current().current_snapshot()
    summary = head.summary if head else None
    rows, size = (int(summary.get(f"total-{n}") or 0) if summary else 0 for n in ("records", "files-size"))
    if rows and size:
        return size / rows
    return sum(f.bytes for f in sample) / max(1, sum(f.records for f in sample))
