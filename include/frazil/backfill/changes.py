"""What a replay of an upsert stream stages: change files, which are in no table until the replay is published.

No branch has them, so what was staged is told by the files that the chunks' journals name. Nor can the table tell
which letters are still to land, for a later change may have replaced what one brought: the dead-letter table tells
that, since only a published replay takes letters out of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from pyiceberg.table import Table
from pyroaring import BitMap64

from frazil.commit.journal import Journal
from frazil.commit.merging import Merging
from frazil.commit.mode import MERGED
from frazil.ingest.contract import StagedFile
from frazil.merge.contract import MergeRules
from frazil.offsets.spans import Spans, TopicPartition, between
from frazil.offsets.tally import OffsetTally, Tallies
from frazil.table.landed_offsets import tally_files


def replaying(merging: Merging) -> Merging:
    """How dead letters are merged, which are older than what Kafka has after them."""

    def rules(table: Table) -> MergeRules:
        return dataclasses.replace(merging.rules(table), replays=True)

    return dataclasses.replace(merging, rules=rules)


def changes_of(journals: Iterable[Journal]) -> tuple[StagedFile, ...]:
    """The files of a lane's chunks that a merge takes."""
    return tuple(f for journal in journals for f in journal.staged_for("main") if f.content in MERGED)


def tally_changes(table: Table, journals: Iterable[Journal]) -> dict[TopicPartition, OffsetTally]:
    """The offsets of the staged changes."""
    return tally_files(table.io, (file.path for file in changes_of(journals)))


def gone(spans: Spans, letters: Tallies) -> dict[TopicPartition, BitMap64]:
    """The offsets of the spans that are no dead letters, or none any more."""
    return {tp: BitMap64.union(*(between(*s) for s in of)) - _seen(letters, tp) for tp, of in spans.items() if of}


def settled_meanwhile(rows: Tallies, letters: Tallies) -> Tallies:
    """What was staged and is no dead letter any more."""
    left: Mapping[TopicPartition, BitMap64] = {tp: rows[tp].seen - _seen(letters, tp) for tp in rows}
    return {tp: OffsetTally([*offsets]) for tp, offsets in left.items() if offsets}


def _seen(letters: Tallies, tp: TopicPartition) -> BitMap64:
    return letters[tp].seen if tp in letters else BitMap64()
