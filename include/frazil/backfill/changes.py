"""Files that a backfill or a replay merges into tables. Until then, they are in no table and in no branch.

So the journals of the chunks list the staged files. An upserted table cannot show which dead letters still have to be
merged, because a later change may have replaced the row. The dead-letter table shows it: only a published replay
removes dead letters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from pyiceberg.table import Table
from pyroaring import BitMap64

from frazil.commit.journal import Journal
from frazil.commit.merging import MergeWriter
from frazil.commit.mode import MERGED
from frazil.commit.snapshot import SnapshotWriter
from frazil.commit.stream_tables import StreamTables
from frazil.ingest.contract import StagedFile
from frazil.merge.contract import MergeRules
from frazil.offsets.spans import Spans, TopicPartition, bitmaps
from frazil.offsets.tally import OffsetTally, Tallies
from frazil.table.landed_offsets import tally_files


def merging_older(tables: StreamTables, files: tuple[StagedFile, ...]) -> SnapshotWriter | MergeWriter:
    """Return the writer of staged files, which are older than rows of records that followed them in Kafka.

    Files of a stream that appends become the table's as they are. Others are merged, in a task for each group of them:
    a task whose files are unchanged is not done again where a round is lost.
    """
    merging = tables.merging
    if merging is None or not files or files[0].content not in MERGED:
        return SnapshotWriter(files)

    def rules(table: Table) -> MergeRules:
        return dataclasses.replace(merging.rules(table), replays=True)

    older = dataclasses.replace(merging, rules=rules, parallelism=lambda: len(files))
    return MergeWriter(tables.stream, files, older, tables.landed)


def changes_of(journals: Iterable[Journal]) -> tuple[StagedFile, ...]:
    """Return the staged files that a merge applies."""
    return tuple(f for journal in journals for f in journal.staged_for("main") if f.content in MERGED)


def tally_merged(table: Table, journals: Iterable[Journal]) -> dict[TopicPartition, OffsetTally]:
    """Tally the offsets of the staged files that are merged into the default table."""
    return tally_files(table.io, (file.path for file in changes_of(journals)))


def gone(spans: Spans, dead_letters: Tallies) -> dict[TopicPartition, BitMap64]:
    """Return those offsets of the spans that are not dead letters, or no longer."""
    return {tp: offsets - _offsets_in(dead_letters, tp) for tp, offsets in bitmaps(spans).items()}


def settled_meanwhile(rows: Tallies, dead_letters: Tallies) -> Tallies:
    """Return the staged offsets that are no longer dead letters."""
    left: Mapping[TopicPartition, BitMap64] = {tp: rows[tp].seen - _offsets_in(dead_letters, tp) for tp in rows}
    return {tp: OffsetTally([*offsets]) for tp, offsets in left.items() if offsets}


def _offsets_in(dead_letters: Tallies, tp: TopicPartition) -> BitMap64:
    return dead_letters[tp].seen if tp in dead_letters else BitMap64()
