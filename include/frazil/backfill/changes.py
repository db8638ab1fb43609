"""Finds the staged files of a backfill or replay that must be merged into tables, and merges them.

Before the merge, no table and no branch has these files, so only the journals of the chunks list them. An upsert table
cannot show which dead letters are not merged yet, because a later change may have replaced the row. The dead-letter
table shows it: only a published replay removes dead letters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from pyiceberg.table import Table
from pyroaring import BitMap64

from frazil.commit.journal import Journal
from frazil.commit.merging import MergeWriter
from frazil.commit.mode import MERGING_MODES
from frazil.commit.snapshot import SnapshotWriter
from frazil.commit.stream_tables import StreamTables
from frazil.ingest.contract import StagedFile
from frazil.merge.contract import MergeRules
from frazil.offsets.spans import Spans, TopicPartition, to_bitmaps
from frazil.offsets.tally import OffsetTally, Tallies
from frazil.table.landed_offsets import tally_files


def writer_for_older_files(tables: StreamTables, files: tuple[StagedFile, ...]) -> SnapshotWriter | MergeWriter:
    """Return the writer for staged files of a backfill or replay, whose records are older than rows in the table.

    In append mode, the files are added unchanged. Otherwise they are merged, one task per group of files. If a commit
    attempt must be repeated, only groups whose files changed run again.
    """
    merging = tables.merging
    if merging is None or not files or files[0].content not in MERGING_MODES:
        return SnapshotWriter(files)

    def rules(table: Table) -> MergeRules:
        return dataclasses.replace(merging.rules(table), replays=True)

    older = dataclasses.replace(merging, rules=rules, parallelism=lambda: len(files))
    return MergeWriter(tables.stream, files, older, tables.landed)


def files_to_merge(journals: Iterable[Journal]) -> tuple[StagedFile, ...]:
    """Return the staged files whose content must be merged into the default table."""
    return tuple(f for journal in journals for f in journal.staged_for("main") if f.content in MERGING_MODES)


def tally_merged(table: Table, journals: Iterable[Journal]) -> dict[TopicPartition, OffsetTally]:
    """Collect the offsets of the records in the staged files that must be merged into the default table."""
    return tally_files(table.io, (file.path for file in files_to_merge(journals)))


def offsets_without_dead_letters(spans: Spans, dead_letters: Tallies) -> dict[TopicPartition, BitMap64]:
    """Return the offsets of the spans that are not dead letters, or no longer are."""
    return {tp: offsets - _offsets_in(dead_letters, tp) for tp, offsets in to_bitmaps(spans).items()}


def no_longer_dead_letters(rows: Tallies, dead_letters: Tallies) -> Tallies:
    """Return the offsets of staged rows that are no longer dead letters."""
    left: Mapping[TopicPartition, BitMap64] = {tp: rows[tp].seen - _offsets_in(dead_letters, tp) for tp in rows}
    return {tp: OffsetTally([*offsets]) for tp, offsets in left.items() if offsets}


def _offsets_in(dead_letters: Tallies, tp: TopicPartition) -> BitMap64:
    return dead_letters[tp].seen if tp in dead_letters else BitMap64()
