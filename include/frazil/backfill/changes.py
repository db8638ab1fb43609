"""Finds the staged files of a backfill or replay that must be merged into tables, and merges them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from pyiceberg.table import Table
from pyroaring import BitMap64

from frazil.commit.backfill_marker import BackfillMarker
from frazil.commit.journal import Journal
from frazil.commit.merging import MergeWriter
from frazil.commit.merging_modes import MERGING_MODES
from frazil.commit.snapshot import SnapshotWriter
from frazil.commit.stream_tables import StreamTables
from frazil.ingest.contract import StagedFile, Target
from frazil.merge.contract import MergeRules
from frazil.offsets.spans import Spans, TopicPartition, to_bitmaps
from frazil.offsets.tally import OffsetTally, Tallies, get_offsets
from frazil.table.landed_offsets import tally_files


def writer_for_older_files(tables: StreamTables, files: tuple[StagedFile, ...]) -> SnapshotWriter | MergeWriter:
    """Return a writer for files whose records may be older than rows in the table. It appends or merges the files."""
    merging = tables.merging
    if merging is None or not files or files[0].content not in MERGING_MODES:
        return SnapshotWriter(files)

    def rules(table: Table) -> MergeRules:
        return dataclasses.replace(merging.rules(table), replays=True)

    older = dataclasses.replace(merging, rules=rules, parallelism=lambda: len(files))
    return MergeWriter(tables.stream, files, older, tables.landed)


def staged_files(journals: Iterable[Journal], target: Target) -> tuple[StagedFile, ...]:
    return tuple(file for journal in journals for file in journal.staged_for(target))


def backfill_summary(backfill: BackfillMarker) -> dict[str, str]:
    """Return the snapshot properties of a backfill or replay, without the live stream's `frazil.stream`."""
    return {
        "frazil.operation": "replay" if backfill.replays else "backfill",
        "frazil.backfill": backfill.id,
        "frazil.backfill-stream": backfill.stream,
    }


def tally_files_to_merge(table: Table, journals: Iterable[Journal]) -> dict[TopicPartition, OffsetTally]:
    """Collect the offsets of the records in the staged files that must be merged into the default table."""
    return tally_files(table.io, (f.path for f in staged_files(journals, "main") if f.content in MERGING_MODES))


def offsets_without_dead_letters(spans: Spans, dead_letters: Tallies) -> dict[TopicPartition, BitMap64]:
    """Return the offsets of the spans that are not dead letters."""
    return {tp: offsets - get_offsets(dead_letters, tp) for tp, offsets in to_bitmaps(spans).items()}


def tally_former_dead_letters(rows: Tallies, dead_letters: Tallies) -> Tallies:
    """Return the offsets of staged rows whose records are no longer dead letters."""
    left = {tp: tally.seen - get_offsets(dead_letters, tp) for tp, tally in rows.items()}
    return {tp: OffsetTally([*offsets]) for tp, offsets in left.items() if offsets}
