"""Whether a topic-partition landed exactly once: a pure comparison of what its table, commit records and Kafka say.

What Kafka does not have is not missing: compaction and transactions leave gaps in a topic, and retention deletes its
beginning. What the commit records do not cover was never claimed: a reset skipped it, or it is older than the records.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import reduce
from itertools import pairwise
from typing import Any

from pyroaring import BitMap64

from frazil.offsets.spans import between
from frazil.offsets.tally import OffsetTally, spans
from frazil.spec.units import counted

SPANS_NAMED = 5


@dataclass(frozen=True, slots=True, order=True)
class CommittedRange:
    """What one commit record says about a topic-partition: `[start, end)` became rows and dead letters."""

    start: int
    end: int
    records: int
    rejected: int
    topic_id: str
    selects: bool = False
    """A backfill took only some of the records, by their event time; the others are not missing."""
    leader_epoch: int | None = field(default=None, compare=False)
    """The epoch of the leader that had `end`; None if no broker said so."""


@dataclass(frozen=True, slots=True)
class InKafka:
    """What Kafka has of a topic-partition, read at `read_committed`: `offsets` of `[first, marker)`."""

    first: int
    offsets: BitMap64
    cut: int | None = None
    """Where its log was cut, below what was committed: from this offset on it has, or will have, other records."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that is known about one topic-partition."""

    topic: str
    partition: int
    marker: int
    topic_id: str
    """The id of that topic."""
    ranges: tuple[CommittedRange, ...]
    """What is audited."""
    rows: OffsetTally
    dead_letters: OffsetTally
    kafka: InKafka | None = None
    """None if Kafka was not asked."""
    whole: bool = True
    """False if `ranges` are those of a period, and rows and dead letters only what lies in them."""
    elsewhere: tuple[CommittedRange, ...] = ()
    """What was committed outside of the period, if that was looked up: it may explain what looks wrong."""
    rewritten: tuple[tuple[int, int], ...] = ()
    """Offsets `[start, end)` that Kafka gave to a second record; known and accepted, so they may be there twice."""
    given_up: tuple[tuple[int, int], ...] = ()
    """Committed offsets `[start, end)` whose loss somebody accepted after a rollback."""
    replayed: BitMap64 = field(default_factory=BitMap64)
    """Records that were dead letters when they were committed, and have become rows."""
    tables: str = "the table"
    """What `rows` are of, as sentences call it."""
    drops_repeats: bool = False
    """Whether rows that repeat others were dropped: then the table may have fewer than the commit records count."""

    @property
    def generations(self) -> dict[str, list[CommittedRange]]:
        """All known ranges, by the id of the topic that had the name."""
        return by_topic_id((*self.ranges, *self.elsewhere))


class FindingKind(StrEnum):
    DUPLICATES = "duplicates"
    """An offset is in the table, or in the dead-letter table, more than once."""
    MISSING = "missing"
    """Kafka has the record, a commit claims it, and no table has it."""
    MISCOUNTED = "miscounted"
    """The tables hold more or fewer rows than the commit records say."""
    ROW_AND_DEAD_LETTER = "row and dead letter"
    UNCLAIMED = "unclaimed"
    """Rows that no commit covers."""
    ROLLED_BACK = "rolled back"
    RECORD_GONE = "record gone"
    """A snapshot names a commit record that is missing or unreadable."""
    LOG_CUT = "log cut"
    """Kafka lost committed records and gives their offsets to others, which no table has."""
    UNCHECKED = "unchecked"
    """One witness says nothing, where another was asked."""
    NOT_COMPARED = "not compared"
    """What was committed was held against nothing."""
    SKIPPED = "skipped"
    READ_AGAIN = "read again"
    """Offsets were committed more than once, as after a reset, and are counted each time."""
    CHANGED = "changed"
    """Somebody else's commits deleted or overwrote rows."""

    @property
    def is_wrong(self) -> bool:
        return self not in {
            FindingKind.UNCHECKED,
            FindingKind.NOT_COMPARED,
            FindingKind.SKIPPED,
            FindingKind.READ_AGAIN,
            FindingKind.CHANGED,
        }


@dataclass(frozen=True, slots=True)
class Finding:
    kind: FindingKind
    count: int
    """How many offsets, or rows, it is about."""
    sentence: str
    where: str
    """The topic-partition, or the stream."""
    keys: tuple[Mapping[str, Any], ...] = ()
    """Of a stream with a key, the first keys that it is about: values by column, as the table has them."""


def compare(evidence: Evidence) -> tuple[Finding, ...]:
    """Everything that is wrong, and what could not be checked. Pure."""
    found = [
        *_duplicates(evidence),
        *_both(evidence),
        *_missing(evidence),
        *_log_cut(evidence),
        *_unclaimed(evidence),
        *_miscounted(evidence),
        *_limits(evidence),
    ]
    return tuple(f for f in found if f.count)


def missing(evidence: Evidence) -> BitMap64:
    """Offsets that Kafka has and a commit claims, and that are in neither table."""
    if evidence.kafka is None:
        return BitMap64()
    claimed = _claimed(r for r in evidence.ranges if r.topic_id == evidence.topic_id and not r.selects)
    there = evidence.rows.seen | evidence.dead_letters.seen | _whole(evidence.given_up)
    return (evidence.kafka.offsets & claimed) - there


def duplicates(evidence: Evidence) -> int:
    """Surplus rows: an offset may be there once for each topic that had the name."""
    allowed_twice = _whole(evidence.rewritten)
    covered = BitMap64()
    for ranges in evidence.generations.values():
        claimed = _claimed(ranges)
        allowed_twice |= covered & claimed
        covered |= claimed
    if not allowed_twice:
        return evidence.rows.copies
    return len(evidence.rows.repeated - allowed_twice)


def _duplicates(e: Evidence) -> Iterable[Finding]:
    for table, tally, count in (
        (e.tables, e.rows, duplicates(e)),
        ("the dead-letter table", e.dead_letters, _copies(e.dead_letters, e)),
    ):
        yield _finding(
            e, FindingKind.DUPLICATES, count,
            f"{counted(count, 'row')} too many in {table}, at offsets {_named(tally.repeated)}",
        )  # fmt: skip


def _both(e: Evidence) -> Iterable[Finding]:
    if len(e.generations) > 1:
        return
    both = (e.rows.seen & e.dead_letters.seen) - _whole(e.rewritten)
    sentence = (
        f"{counted(len(both), 'offset', 'is row and dead letter|are rows and dead letters')} at once: {_named(both)}"
    )
    yield _finding(e, FindingKind.ROW_AND_DEAD_LETTER, len(both), sentence)


def _missing(e: Evidence) -> Iterable[Finding]:
    lost = missing(e)
    records, are = counted(len(lost), "record"), "is" if len(lost) == 1 else "are"
    sentence = f"{records} that Kafka has of what was committed {are} in no table: {_named(lost)}"
    yield _finding(e, FindingKind.MISSING, len(lost), sentence)


def _log_cut(e: Evidence) -> Iterable[Finding]:
    if e.kafka is None or e.kafka.cut is None:
        return
    cut = e.kafka.cut
    others = len(e.kafka.offsets & between(cut, e.marker) - _whole(e.rewritten))
    yield _finding(
        e, FindingKind.LOG_CUT, max(others, 1),
        f"Kafka's log was cut at offset {cut:,}, below what was committed: "
        f"{counted(others, 'record')} that it has since {'is' if others == 1 else 'are'} in no table, and the table's "
        "rows from there on have no record in Kafka. `frazil reset STREAM --to marker` goes on there",
    )  # fmt: skip


def _unclaimed(e: Evidence) -> Iterable[Finding]:
    """Rows at or past the marker, or in a gap between commits. Rows older than the records are only a note."""
    claimed = _claimed(e.ranges)
    begin = min((r.start for r in e.ranges), default=e.marker)
    before = e.rows.seen & between(0, begin)
    yield _finding(
        e,
        FindingKind.UNCHECKED,
        len(before),
        f"{counted(len(before), 'row', 'lies|lie')} before the first commit record, at offset {begin:,}",
    )
    unclaimed = e.rows.seen - claimed - before
    sentence = (
        f"{counted(len(unclaimed), 'row')} that no commit covers (the marker is {e.marker:,}): {_named(unclaimed)}"
    )
    yield _finding(e, FindingKind.UNCLAIMED, len(unclaimed), sentence)


def _miscounted(e: Evidence) -> Iterable[Finding]:
    """Compare commit records with the tables, range by range. What is missing by Kafka is not reported again."""
    if len(e.generations) > 1:
        return
    lost = missing(e)
    for name, tally, lost_here in (("row", e.rows, lost), ("dead letter", e.dead_letters, BitMap64())):
        fewer = more = 0
        first: CommittedRange | None = None
        for r in _read_once(e):
            moved = e.replayed.range_cardinality(r.start, r.end)
            said = r.records + moved if tally is e.rows else r.rejected - moved
            there = tally.seen.range_cardinality(r.start, r.end)
            off = there + lost_here.range_cardinality(r.start, r.end) - said
            if e.drops_repeats and tally is e.rows:
                off = max(off, 0)
            fewer, more = fewer - min(off, 0), more + max(off, 0)
            first = first or (r if off else None)
        if first is not None:
            lacks = [f"lacks {counted(fewer, name)} that commit records count"] if fewer else []
            has = [f"has {counted(more, name)} that no commit record counts"] if more else []
            where = f"first between offsets {first.start:,} and {first.end - 1:,}"
            sentence = f"{e.tables} {' and '.join(lacks + has)}, {where}"
            yield _finding(e, FindingKind.MISCOUNTED, fewer + more, sentence)


def _limits(e: Evidence) -> Iterable[Finding]:
    """What could not be checked, and what was skipped on purpose."""
    generations = e.generations
    if len(generations) > 1:
        yield _finding(
            e, FindingKind.UNCHECKED, len(generations),
            f"{len(generations)} topics bore this name: their offsets overlap, and are not counted against the records",
        )  # fmt: skip
    current = [r for r in e.ranges if r.topic_id == e.topic_id]
    if e.whole:
        there = e.rows.seen | e.dead_letters.seen
        # The marker ends them: a reset may have moved it, and nothing was committed since.
        read = [*merged_ranges(current), (e.marker, e.marker)] if current else []
        holes = [(a[1], b[0] - 1) for a, b in pairwise(read) if a[1] < b[0]]
        holes = sorted([*holes, *((a, b - 1) for a, b in e.given_up if not there & between(a, b))])
        skipped = sum(last - first + 1 for first, last in holes)
        yield _finding(
            e,
            FindingKind.SKIPPED,
            skipped,
            f"{counted(skipped, 'offset', 'was|were')} skipped, by a reset or by source.on-gap: {_spans_named(holes)}",
        )
    again = _whole(e.rewritten)
    yield _finding(
        e, FindingKind.UNCHECKED, len(again),
        f"{counted(len(again), 'offset', 'was|were')} given to a second record after Kafka's log was cut, and may be "
        f"there twice: "
        f"{_named(again)}",
    )  # fmt: skip
    if e.kafka is not None:
        gone = len(_claimed(current) & between(0, e.kafka.first))
        yield _finding(
            e, FindingKind.UNCHECKED, gone,
            f"{counted(gone, 'offset', 'is|are')} no longer in Kafka, before {e.kafka.first:,}: checked against the "
            "records alone",
        )  # fmt: skip


def _whole(spans: Iterable[tuple[int, int]]) -> BitMap64:
    return reduce(lambda whole, span: whole | between(*span), spans, BitMap64())


def _copies(tally: OffsetTally, e: Evidence) -> int:
    return len(tally.repeated - _whole(e.rewritten)) if e.rewritten else tally.copies


def _finding(e: Evidence, kind: FindingKind, count: int, sentence: str) -> Finding:
    return Finding(kind, count, sentence, f"{e.topic}-{e.partition}")


def by_topic_id(ranges: Iterable[CommittedRange]) -> dict[str, list[CommittedRange]]:
    found: dict[str, list[CommittedRange]] = defaultdict(list)
    for r in ranges:
        found[r.topic_id].append(r)
    return dict(found)


def _claimed(ranges: Iterable[CommittedRange]) -> BitMap64:
    return reduce(lambda whole, r: whole | between(*r), merged_ranges(ranges), BitMap64())


def merged_ranges(ranges: Iterable[CommittedRange]) -> list[tuple[int, int]]:
    """Ranges `[start, end)` in order; those that touch or overlap are merged, and empty ones are left out."""
    whole: list[tuple[int, int]] = []
    for r in sorted(r for r in ranges if r.end > r.start):
        if whole and r.start <= whole[-1][1]:
            whole[-1] = (whole[-1][0], max(whole[-1][1], r.end))
        else:
            whole.append((r.start, r.end))
    return whole


def read_again(ranges: Iterable[CommittedRange]) -> int:
    """How many offsets of a topic are in more than one of the ranges."""
    found, reach = [], 0
    for r in sorted(ranges):
        found.append((r.start, min(r.end, reach)))
        reach = max(reach, r.end)
    return len(_whole(span for span in found if span[0] < span[1]))


def _read_once(e: Evidence) -> list[CommittedRange]:
    """Audited ranges that no other overlaps: a count cannot tell apart what was read twice."""
    ordered = sorted(r for r in (*e.ranges, *e.elsewhere) if r.end > r.start)
    alone = []
    reach = -1
    for index, r in enumerate(ordered):
        follower = ordered[index + 1] if index + 1 < len(ordered) else None
        if r.start >= reach and (follower is None or follower.start >= r.end):
            alone.append(r)
        reach = max(reach, r.end)
    audited, other = set(e.ranges), _whole((*e.rewritten, *e.given_up))
    return [r for r in alone if r in audited and not other.range_cardinality(r.start, r.end)]


def counted_once(e: Evidence) -> bool:
    """Whether no audited offset was read, or given, more than once: only then rows can be counted without offsets."""
    return len(e.generations) <= 1 and len(_read_once(e)) == sum(r.end > r.start for r in e.ranges)


def _named(offsets: BitMap64) -> str:
    return _spans_named(list(spans(offsets, limit=SPANS_NAMED + 1)))


def _spans_named(found: list[tuple[int, int]]) -> str:
    """The first few spans, as text."""
    named = [f"{first}" if first == last else f"{first} to {last}" for first, last in found[:SPANS_NAMED]]
    return ", ".join(named) + (", …" if len(found) > SPANS_NAMED else "")


def compare_counts(  # noqa: PLR0913 - all that is counted, and why nothing else is
    *, rows: int, claimed: int, other_streams: int, stream: str, adopted: int = 0, declared: bool = False
) -> tuple[Finding, ...]:
    """For a stream without Kafka coordinates: compare the number of rows with the sum of the commit records. Pure.

    `adopted` is the number of rows that the table had before the stream. `declared`: whether the stream is declared
    with coordinates, which its table then lacks.
    """
    where = "its table lacks the columns" if declared else "coordinates: false"
    found = [
        Finding(
            FindingKind.UNCHECKED, 1,
            f"the stream keeps no Kafka coordinates ({where}): it cannot be audited by offset, only by count",
            stream,
        )
    ]  # fmt: skip
    if other_streams:
        sentence = f"{other_streams} other streams write to the table: its rows cannot be counted against this one's"
        found.append(Finding(FindingKind.NOT_COMPARED, other_streams, sentence, stream))
    elif rows != claimed + adopted:
        before = f", beside {adopted:,} that were adopted" if adopted else ""
        sentence = f"the table has {counted(rows, 'row')}, and the commit records count {claimed:,}{before}"
        found.append(Finding(FindingKind.MISCOUNTED, abs(rows - claimed - adopted), sentence, stream))
    return tuple(found)
