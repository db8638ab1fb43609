"""Compares a backfill's staged records with their source and with the tables, before publication. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyroaring import BitMap64

from frazil.audit.claims import CommittedRange
from frazil.commit.journal import Journal
from frazil.ingest.contract import StageResult, Target
from frazil.offsets.spans import OffsetSets, Spans, TopicPartition, merge_spans, offset_bitmap
from frazil.offsets.tally import Tallies, get_offsets
from frazil.spec.units import format_count


def find_complete_ranges(
    wanted: Spans, claimed: Mapping[TopicPartition, tuple[CommittedRange, ...]], tallies: Sequence[Tallies]
) -> dict[TopicPartition, BitMap64]:
    """Return the offsets of committed ranges that are completely in the tables. Skips partial backfills."""
    complete = defaultdict[TopicPartition, BitMap64](BitMap64)
    for tp in wanted.keys() & claimed.keys():
        present = _seen_in_any(tallies, tp)
        for r in claimed[tp]:
            if not r.selects and present.range_cardinality(r.start, r.end) >= r.records + r.rejected:
                complete[tp] |= offset_bitmap(r.start, r.end)
    return complete


def topic_generations(
    requested: Spans, claimed: Mapping[TopicPartition, tuple[CommittedRange, ...]], topic: str
) -> set[str]:
    """Return the topic ids of the requested offsets; several if the topic was recreated."""
    ranges = ((r, spans) for tp, spans in requested.items() if tp[0] == topic for r in claimed.get(tp, ()))
    return {r.topic_id for r, spans in ranges if any(r.start < end and start < r.end for start, end in spans)}


@dataclass(frozen=True, slots=True)
class StagedRecords:
    journals: tuple[Journal, ...]
    rows: Tallies
    dead_letters: Tallies
    table_tallies: tuple[Tallies, ...]
    """The rows and dead letters that the stream's tables already have."""
    source: OffsetSets | None = None
    """The source's records in these ranges; None if an event-time filter selected only some of the records."""


def staged_spans(parts: Iterable[Journal | StageResult]) -> Spans:
    return merge_spans((p.topic_partition, (p.start, p.end)) for part in parts for p in part.progress)


def count_already_stored(staged: StagedRecords) -> int:
    own = {tp: _seen_in_any((staged.rows, staged.dead_letters), tp) for tp in staged.rows.keys() | staged.dead_letters}
    return sum(len(offsets & _seen_in_any(staged.table_tallies, tp)) for tp, offsets in own.items())


def find_problems(staged: StagedRecords) -> list[str]:
    """Return a message for each reason not to publish the staged records; empty if they may be published."""
    problems = []
    for name, tallies, count in (
        ("rows", staged.rows, sum(j.records for j in staged.journals)),
        ("dead letters", staged.dead_letters, sum(j.rejected for j in staged.journals)),
    ):
        rows, copies = sum(t.rows for t in tallies.values()), sum(t.copies for t in tallies.values())
        if rows != count:
            problems.append(f"the branch has {rows:,} {name}, but its journals count {count:,}")
        if copies:
            problems.append(f"{copies:,} {name} are on the branch more than once")
    dropped = Counter[TopicPartition]()
    for p in (p for journal in staged.journals for p in journal.progress):
        dropped[p.topic_partition] += p.dropped
    for tp, offsets in (staged.source or {}).items():
        lost = offsets - _seen_in_any((staged.rows, staged.dead_letters), tp)
        if len(lost) != dropped[tp]:
            but = f" (according to its journals, the transform dropped {dropped[tp]:,})" if dropped[tp] else ""
            first = f", the first at offset {lost.min():,}" if lost else ""
            problems.append(f"{tp[0]}-{tp[1]}: {len(lost):,} records of the source are not on the branch{but}{first}")
    return problems


def find_rows_in_other_tables(staged: Mapping[Target, Tallies], tables: Mapping[Target, Tallies]) -> Iterator[str]:
    """Yield a message for each table that has rows of records which are now staged for another table."""
    for target, own in staged.items():
        for other in tables.keys() - {target}:
            if rows := sum(len(tally.seen & get_offsets(tables[other], tp)) for tp, tally in own.items()):
                records = format_count(rows, "record")
                yield f"table {other} has {records} for table {target}, from an earlier declaration of the route"


def _seen_in_any(tallies: Iterable[Tallies], tp: TopicPartition) -> BitMap64:
    return BitMap64.union(BitMap64(), *(get_offsets(tally, tp) for tally in tallies))
