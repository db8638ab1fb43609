"""Measures a committed batch. The planner uses the measurements to plan the next batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise

from pyiceberg.table import Table

from frazil.commit.history import ancestors
from frazil.commit.journal import Journal
from frazil.commit.manifest_lists import read_manifests
from frazil.errors import StaleBatch
from frazil.host.exchange import Exchange
from frazil.ingest.contract import RangeProgress
from frazil.stream.engine import TaskAnswer
from frazil.stream.plan import learned
from frazil.stream.planner_exchange import read_rates, write_rates
from frazil.stream.throttle import Measure


def write_rates_of(exchange: Exchange, journal: Journal, answers: Sequence[TaskAnswer], *, batch_s: float) -> None:
    """Update the planner's rates after a batch that took `batch_s` seconds in all."""
    task_s = [a.seconds for a in answers]
    rates = learned(
        read_rates(exchange),
        records=journal.records,
        written_bytes=sum(f.bytes for f in journal.staged_for("main")),
        task_s=sum(task_s),
        overhead_s=batch_s - max(task_s, default=0.0),
    )
    write_rates(exchange, rates)


def metadata_of(table: Table, *, commit_s: float, at_ms: int) -> Measure:
    """Measure a table's metadata after a commit that took `commit_s` seconds.

    Counts only the snapshots of the branch `main`, as maintenance does. An open backfill branch would count each of
    these snapshots again.
    """
    main = list(ancestors(table.metadata))
    manifests = len(read_manifests(main[0], table.io)) if main else 0
    return Measure(len(main), manifests, commit_s, at_ms)


def join_ranges(pieces: Iterable[RangeProgress]) -> tuple[RangeProgress, ...]:
    """Join the pieces that several tasks read into one range per topic-partition.

    Raises `StaleBatch` if offsets between two pieces were not read. Only a bug can cause this, and such a batch must
    never be journaled.
    """
    whole = []
    for (topic, partition), group in groupby(sorted(pieces, key=_by_offset), key=lambda p: p.topic_partition):
        parts = list(group)
        if any(a.end != b.start for a, b in pairwise(parts)):
            raise StaleBatch(f"the ranges of {topic}-{partition} do not join: {[(p.start, p.end) for p in parts]}")
        times = [p.max_event_time_us for p in parts if p.max_event_time_us is not None]
        whole.append(
            RangeProgress(
                topic,
                partition,
                parts[0].start,
                parts[-1].end,
                records=sum(p.records for p in parts),
                rejected=sum(p.rejected for p in parts),
                dropped=sum(p.dropped for p in parts),
                max_event_time_us=max(times, default=None),
                future=sum(p.future for p in parts),
            )
        )
    return tuple(whole)


def _by_offset(piece: RangeProgress) -> tuple[str, int, int]:
    return (piece.topic, piece.partition, piece.start)
