"""Change files that a replay of an upsert stream stages. No table has them until the replay is published.

No branch has them either, so the chunks' journals list what was staged. The table cannot show which dead letters still
have to land, because a later change may have replaced the row. The dead-letter table shows it: only a published replay
removes dead letters.
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
    """Return the merge settings for dead letters, which are older than the changes that followed them in Kafka."""

    def rules(table: Table) -> MergeRules:
        return dataclasses.replace(merging.rules(table), replays=True)

    return dataclasses.replace(merging, rules=rules)


def changes_of(journals: Iterable[Journal]) -> tuple[StagedFile, ...]:
    """Return the staged files that a merge applies."""
    return tuple(f for journal in journals for f in journal.staged_for("main") if f.content in MERGED)


def tally_changes(table: Table, journals: Iterable[Journal]) -> dict[TopicPartition, OffsetTally]:
    """Tally the offsets of the staged changes."""
    return tally_files(table.io, (file.path for file in changes_of(journals)))


def gone(spans: Spans, letters: Tallies) -> dict[TopicPartition, BitMap64]:
    """Return the offsets of the spans that are not, or no longer, dead letters."""
    return {tp: BitMap64.union(*(between(*s) for s in of)) - _seen(letters, tp) for tp, of in spans.items() if of}


def settled_meanwhile(rows: Tallies, letters: Tallies) -> Tallies:
    """Return the staged offsets that are no longer dead letters."""
    left: Mapping[TopicPartition, BitMap64] = {tp: rows[tp].seen - _seen(letters, tp) for tp in rows}
    return {tp: OffsetTally([*offsets]) for tp, offsets in left.items() if offsets}


def _seen(letters: Tallies, tp: TopicPartition) -> BitMap64:
    return letters[tp].seen if tp in letters else BitMap64()
