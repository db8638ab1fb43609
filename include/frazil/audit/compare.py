"""Compares the table, commit records and Kafka records of one topic-partition: was each record written exactly once?
Pure. Compaction, transactions and retention leave gaps, so an offset counts as missing only if Kafka and a commit
record have it. All comparisons are in this module, because each leaves out what another one reports.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pyroaring import BitMap64

from frazil.audit.claims import (
    Claims,
    CommittedRange,
    OverlappingRanges,
    claimed_offsets,
    find_accepted_loss,
    group_by_topic_id,
    merge_ranges,
    offsets_claimed_again,
)
from frazil.audit.evidence import Evidence
from frazil.audit.findings import Finding, FindingKind
from frazil.offsets.spans import covered_offsets, format_span, offset_bitmap
from frazil.offsets.tally import OffsetTally, first_spans
from frazil.spec.units import format_count
from frazil.timetext import format_utc

MAX_LISTED_SPANS = 5
FORMER_TOPIC_PREDICATE = "of a former topic of this name and cannot be compared with Kafka"
"""The end of a finding about records of an earlier topic with the same name."""
BY_COMMIT_RECORDS = ": they were checked against commit records only"


def compare_partition(evidence: Evidence) -> tuple[Finding, ...]:
    """Return findings about all errors, and about unchecked evidence."""
    findings = [
        *_report_duplicates(evidence),
        *_report_rows_with_dead_letters(evidence),
        *_report_missing_records(evidence),
        *_report_dropped_records(evidence),
        *_report_truncated_log(evidence),
        *_report_unclaimed_rows(evidence),
        *_report_count_differences(_row_claims(evidence)),
        *_report_count_differences(_dead_letter_claims(evidence)),
        *_report_not_compared(evidence),
        *_report_resets(evidence),
        *_report_limits(evidence),
    ]
    return tuple(f for f in findings if f.count)


def compare_dead_letters(evidence: Evidence) -> tuple[Finding, ...]:
    """Return findings about duplicate and miscounted dead letters."""
    miscounted = _report_count_differences(_dead_letter_claims(evidence))
    return tuple(f for f in (*_report_duplicate_dead_letters(evidence), *miscounted) if f.count)


def count_duplicates(evidence: Evidence) -> int:
    """Return the number of surplus rows. A recreated topic permits one row per topic id."""
    permitted, repeated = _permitted_copies(evidence), evidence.rows.repeated
    at_least = len(repeated - permitted[0]) if permitted else len(repeated)
    if evidence.rewritten:  # the number of rows that such an offset may have is unknown
        return at_least
    return max(at_least, evidence.rows.copies - sum(len(repeated & offsets) for offsets in permitted))


def count_dropped(e: Evidence) -> int:
    """Return the number of records that the transform dropped. A record that was read repeatedly counts once."""
    total = 0
    for group in e.groups:
        bounds = group.bounds(lambda r: r.dropped)
        lowest = sum(lowest for lowest, _ in bounds.values())
        total += lowest if group.is_single or len(bounds) > 1 else min(lowest, len(group.offsets - e.seen))
    return total


def count_rows_of_former_topics(e: Evidence) -> int:
    """Return the number of rows of earlier topics with this name in the audited commits; 0 if unknown."""
    former = [
        bounds
        for group in e.groups
        for topic_id, bounds in group.bounds(_row_claims(e).claimed).items()
        if topic_id != e.topic_id and topic_id in group_by_topic_id(group.audited)
    ]
    return sum(lowest for lowest, _ in former) if all(lowest == highest for lowest, highest in former) else 0


def count_rows(e: Evidence) -> int:
    """Return the number of rows of the audited commits. Omits rows of topic ids that only other periods have."""
    rows, other_rows = 0, list[int]()
    for group in e.groups:
        audited = group_by_topic_id(group.audited)
        for topic_id, (lowest, highest) in group.bounds(_row_claims(e).claimed).items():
            if topic_id in audited:
                rows += highest
            else:
                other_rows.append(lowest)
    return max(0, min(e.rows.rows - sum(other_rows), rows + count_duplicates(e))) if other_rows else e.rows.rows


def _permitted_copies(e: Evidence) -> list[BitMap64]:
    """Return the offsets that may have a second row, then the offsets that may have a third row, and so on."""
    layers: list[BitMap64] = []
    for claimed in (*map(claimed_offsets, e.ranges_by_topic_id.values()), e.rewritten_offsets):
        carried = claimed
        for index, layer in enumerate(layers):
            layers[index], carried = layer | carried, layer & carried
        layers.append(carried)
    return [offsets for offsets in layers[1:] if offsets]


def _report_duplicates(e: Evidence) -> Iterable[Finding]:
    permitted, count = _permitted_copies(e), count_duplicates(e)
    repeated = e.rows.repeated - permitted[0] if permitted else e.rows.repeated
    unnamed = f"{', or ' if repeated else ''}at offsets that a former topic of this name also had"
    where = format_at_offsets(repeated) + (unnamed if permitted and count > len(repeated) else "")
    yield _report_surplus_rows(e, e.tables, count, where)
    yield from _report_duplicate_dead_letters(e)


def _report_duplicate_dead_letters(e: Evidence) -> Iterable[Finding]:
    repeated = e.dead_letters.repeated - e.rewritten_offsets
    yield _report_surplus_rows(
        e, "the dead-letter table", len(repeated) if e.rewritten else e.dead_letters.copies, format_at_offsets(repeated)
    )


def _report_surplus_rows(e: Evidence, table: str, count: int, where: str) -> Finding:
    """Report surplus rows. Operators delete the rows at `where`, so it must name exactly the surplus rows' offsets."""
    return _make_finding(e, FindingKind.DUPLICATES, count, f"{format_count(count, 'row')} too many in {table}, {where}")


def _report_rows_with_dead_letters(e: Evidence) -> Iterable[Finding]:
    offsets_in_both = e.rows_with_dead_letters
    offsets, where = format_count(len(offsets_in_both), "offset", "is|are"), format_at_offsets(offsets_in_both)
    sentence = f"{offsets} in the table and in the dead-letter table, {where}"
    yield _make_finding(e, FindingKind.ROW_AND_DEAD_LETTER, len(offsets_in_both), sentence)


def _report_missing_records(e: Evidence) -> Iterable[Finding]:
    lost = e.missing
    records, where = format_count(len(lost), "committed record", "is|are"), format_at_offsets(lost)
    yield _make_finding(e, FindingKind.MISSING, len(lost), f"{records} in Kafka but in no table, {where}")


def _report_dropped_records(e: Evidence) -> Iterable[Finding]:
    """Compare the dropped records in commit records with the dropped records in the tables and in Kafka."""
    if not any(r.dropped for r in e.ranges):
        return
    seen = e.seen
    surpluses = (seen.range_cardinality(r.start, r.end) + r.dropped - (r.end - r.start) for r in e.ranges if r.dropped)
    extra = sum(max(0, n) for n in surpluses) if is_counted_once(e) else 0
    sentence = f"a table has {format_count(extra, 'record')} that the commit records count as dropped by the transform"
    yield _make_finding(e, FindingKind.MISCOUNTED, extra, sentence)
    if e.kafka is None:
        return
    absent = e.in_no_table - e.kafka.dropped - e.missing
    yield _make_finding(
        e, FindingKind.NOT_COMPARED, len(absent),
        f"{format_count(len(absent), 'record', 'is|are')} in no table, and the declared transform would not drop them. "
        f"An earlier transform dropped them, or they are lost: {_format_offsets(absent)}",
    )  # fmt: skip


def _report_truncated_log(e: Evidence) -> Iterable[Finding]:
    if e.kafka is None or e.kafka.truncated_at is None:
        return
    offset = e.kafka.truncated_at
    count = len(e.kafka.offsets & offset_bitmap(offset, e.marker) - e.rewritten_offsets)
    yield _make_finding(
        e, FindingKind.LOG_TRUNCATED, max(count, 1),
        f"Kafka's log was truncated at offset {offset:,}, below the committed offset. From that offset on, the records "
        f"of the table's rows are lost, and {format_count(count, 'newer record', 'is|are')} in no table. To continue "
        "from that offset, run `frazil reset STREAM --to marker`",
    )  # fmt: skip


def _report_unclaimed_rows(e: Evidence) -> Iterable[Finding]:
    """Report rows without a commit record. Rows older than the first commit record count as not compared."""
    claimed = claimed_offsets(e.ranges)
    begin = min((r.start for r in e.ranges), default=e.marker)
    unclaimed_rows = e.rows.seen & offset_bitmap(0, begin)
    rows = format_count(len(unclaimed_rows), "row")
    sentence = f"cannot check {rows} before offset {begin:,}, where the first commit record begins"
    yield _make_finding(e, FindingKind.NOT_COMPARED, len(unclaimed_rows), sentence)
    unclaimed = e.rows.seen - claimed - unclaimed_rows - e.rewritten_offsets
    rows = format_count(len(unclaimed), "row")
    sentence = f"no commit covers {rows} {format_at_offsets(unclaimed)}; the stream's position is {e.marker:,}"
    yield _make_finding(e, FindingKind.UNCLAIMED, len(unclaimed), sentence)


@dataclass(frozen=True, slots=True)
class _TableClaims:
    """One table of rows or dead letters, and the number of its records according to commit records."""

    evidence: Evidence
    name: str
    tally: OffsetTally
    claimed: Callable[[CommittedRange], int]
    groups: list[OverlappingRanges]
    lost: BitMap64
    """Missing offsets that the comparison with Kafka already reports."""

    def compare(self, group: OverlappingRanges) -> tuple[int, int]:
        """Return the minimum number of missing records in a group, and the number of records that exceed its claims."""
        accepted, rewritten = self.evidence.accepted, self.evidence.rewritten_offsets

        def count(r: CommittedRange) -> int:
            return self.tally.seen.range_cardinality(r.start, r.end) + self.lost.range_cardinality(r.start, r.end)

        def count_missing(r: CommittedRange) -> int:
            return max(0, self.claimed(r) - count(r) - accepted.range_cardinality(r.start, r.end))

        if group.is_single:
            (r,) = group.audited
            is_rewritten = rewritten.range_cardinality(r.start, r.end) > 0
            return count_missing(r), 0 if is_rewritten else max(0, count(r) - self.claimed(r))
        audited = group_by_topic_id(group.audited)
        missing = max(group.missing(count_missing), self.count_missing_records(group, audited))
        highest = sum(highest for _, highest in group.bounds(self.claimed).values())
        surplus = len((self.tally.seen | self.lost) & group.offsets) - highest
        return missing, 0 if rewritten & group.offsets else max(0, surplus)

    def count_missing_records(self, group: OverlappingRanges, topic_ids: Container[str]) -> int:
        """Return the minimum number of missing records of these topic ids. All rows of the group must have the ids."""
        if group.is_single:
            return 0
        bounds, offsets = group.bounds(self.claimed), group.offsets
        if len(bounds) < 2:
            return 0
        copies = len(self.tally.repeated & offsets) + self.tally.copies - len(self.tally.repeated)
        total = len((self.tally.seen | self.lost | self.evidence.accepted) & offsets) + copies
        return max(0, sum(lowest for topic_id, (lowest, _) in bounds.items() if topic_id in topic_ids) - total)


def _row_claims(e: Evidence) -> _TableClaims:
    def claimed(r: CommittedRange) -> int:
        return min(r.end - r.start, r.records + e.replayed_of(r))

    return _TableClaims(e, "row", e.rows, claimed, e.groups, e.missing)


def _dead_letter_claims(e: Evidence) -> _TableClaims:
    def claimed(r: CommittedRange) -> int:
        return max(0, r.rejected - e.replayed_of(r))

    return _TableClaims(e, "dead letter", e.dead_letters, claimed, e.dead_letter_groups, BitMap64())


def _report_count_differences(table: _TableClaims) -> Iterable[Finding]:
    """Report differences between a table's records and commit records, except records that are already reported."""
    e, fewer, more, unknown = table.evidence, 0, 0, 0
    first: OverlappingRanges | None = None
    offsets = BitMap64()
    of_rows, dead_letters = table.tally is e.rows, _dead_letter_claims(e)
    accounted = e.seen | e.missing | e.accepted
    for group in table.groups:
        missing, surplus = table.compare(group)
        lost = group.lowest(_claimed_records) - len(accounted & group.offsets)
        if of_rows and _is_exact(e, group):
            missing = max(missing, lost - dead_letters.compare(group)[0])
        if e.drops_repeats and of_rows:
            missing = 0
        reported = len(e.rows_with_dead_letters & group.offsets)  # by another finding, for one of the tables
        if of_rows:
            reported = max(0, reported - dead_letters.compare(group)[1])
        surplus = max(0, surplus - reported)
        fewer, more = fewer + missing, more + surplus
        unknown += max(0, table.count_missing_records(group, group.ranges_by_topic_id) - missing)
        first = first or (group if missing or surplus else None)
        # Records of a former topic, or from before a truncation, may be at the offsets of missing records.
        is_known = e.kafka is None and lost >= missing and len(group.ranges_by_topic_id) == 1
        is_known = is_known and not e.rewritten_offsets & group.offsets
        if missing:
            offsets |= group.offsets - accounted if is_known else group.offsets
    yield _make_finding(
        e, FindingKind.NOT_COMPARED, unknown,
        f"{e.tables} is missing {format_count(unknown, table.name)}, which may be of a former topic of this name. To "
        "compare all commits, audit without a period",
    )  # fmt: skip
    if first is not None:
        fewer_words = [f"is missing {format_count(fewer, table.name)} that the commit records count"] if fewer else []
        surplus_words = [f"has {format_count(more, table.name)} that no commit record counts"] if more else []
        where = _locate(first, BitMap64() if more else offsets, is_exact=len(offsets) == fewer and not more)
        where += "; `--source` names them" if fewer and e.kafka is None and len(offsets) != fewer else ""
        sentence = f"{e.tables} {' and '.join(fewer_words + surplus_words)}, {where}"
        yield _make_finding(e, FindingKind.MISCOUNTED, fewer + more, sentence)


def _locate(first: OverlappingRanges, missing: BitMap64, *, is_exact: bool) -> str:
    """Return where records are missing or too many. `missing` has the missing offsets, and gaps unless `is_exact`."""
    if is_exact:
        return format_at_offsets(missing)
    narrow = missing & first.offsets or first.offsets
    if len(narrow) == 1:
        return f"first {format_at_offsets(narrow)}"
    return f"first between offsets {narrow.min():,} and {narrow.max():,}"


def _claimed_records(r: CommittedRange) -> int:
    return min(r.end - r.start, r.records + r.rejected)


def _is_exact(e: Evidence, group: OverlappingRanges) -> bool:
    """Return whether `OverlappingRanges.lowest` applies: overlapping ranges in one log that was not truncated."""
    is_one_log = len(group.ranges_by_topic_id) == 1 and not e.rewritten_offsets & group.offsets
    return is_one_log and not group.is_single


def _hidden_rows(e: Evidence, group: OverlappingRanges) -> int:
    """Return the maximum number of missing rows that dead letters with the same offsets may hide."""
    dead_letters = _dead_letter_claims(e)
    if all(e.dead_letters.seen.range_cardinality(r.start, r.end) == dead_letters.claimed(r) for r in group.audited):
        return 0
    return len(e.dead_letters.seen & group.offsets)


def compare_repeats(
    evidence: Sequence[Evidence], repeats: int | None, *, stream: str, by_source: bool = False
) -> tuple[Finding, ...]:
    """Compare a dedupe stream's rows with its records minus `repeats`, which is None if unknown."""
    evidence = [_without_accepted(e) for e in evidence]
    rows = sum(e.rows.copies + len(e.rows.seen & claimed_offsets(e.ranges)) for e in evidence)
    bounds = (group.bounds(_row_claims(e).claimed).values() for e in evidence for group in e.groups)
    records = sum(highest for limits in bounds for _, highest in limits)
    if repeats is None:
        if by_source or records <= rows:
            return ()
        sentence = (
            f"{format_count(records - rows, 'committed record', 'has|have')} no row: they were dropped as repeats, or "
            "their rows are missing. frazil cannot count dropped repeats after a reset, a rollback or a backfill of "
            "committed offsets, once snapshots have expired, or with a route. To compare with Kafka's records, use "
            "`--source`"
        )
        return (Finding(FindingKind.NOT_COMPARED, records - rows, sentence, stream),)
    off = records - repeats - rows
    sentence = (
        f"{format_count(records, 'record', 'was|were')} committed, and {repeats:,} of them dropped as repeats. "
        f"The table has {format_count(rows, 'row')}: {abs(off):,} {'missing' if off > 0 else 'too many'}"
    )
    return (Finding(FindingKind.MISCOUNTED, abs(off), sentence, stream),) if off else ()


def count_repeats(evidence: Iterable[Evidence], claimed: Claims, *, is_routed: bool = False) -> int | None:
    """Return how many repeats a dedupe stream dropped; None if commit records alone do not determine this."""
    evidence = [_without_accepted(e) for e in evidence]
    replays = any(e.replayed_of(r) for e in evidence if not e.covers_history for r in e.ranges)  # of other periods
    if is_routed or replays or not all(map(_is_counted_once_by_topic, evidence)):  # routed tables' repeats are unknown
        return None
    return claimed.repeats


def _without_accepted(e: Evidence) -> Evidence:
    """Return the evidence without ranges that have an accepted loss."""
    lost = find_accepted_loss(e.current_ranges, e.given_up, epoch=e.given_up_epoch)
    if not lost:
        return e
    return replace(e, ranges=tuple(r for r in e.ranges if r.topic_id != e.topic_id or not r.offsets <= lost))


def _report_resets(e: Evidence) -> Iterable[Finding]:
    """Report each reset that made, or will make, the stream read committed offsets again."""
    current = e.ranges_by_topic_id.get(e.topic_id, [])
    pending = offset_bitmap(e.marker, max((r.end for r in current), default=0)) if e.covers_history else BitMap64()
    until = math.inf
    for epoch, at_ms in e.reset_times.items():  # newest first: only the newest reset explains the position
        claimed_before = claimed_offsets(r for r in current if r.epoch is not None and r.epoch < epoch)
        since = claimed_offsets(r for r in current if r.epoch is not None and epoch <= r.epoch < until)
        read_again, pending, until = claimed_before & (since | pending), BitMap64(), epoch
        offsets = _format_offsets(read_again)  # a reset to a later position may also be below committed offsets
        sentence = f"since the reset of {format_utc(at_ms)}, the stream reads committed offsets again: {offsets}"
        yield _make_finding(e, FindingKind.READ_AGAIN, len(read_again), sentence)


def _report_not_compared(e: Evidence) -> Iterable[Finding]:
    """Report ranges that overlap and whose number of records is not exact."""
    if e.drops_repeats:
        return
    open_, rewritten = 0, e.rewritten_offsets
    for group in e.groups:
        if group.is_single or rewritten & group.offsets:
            continue
        begin = group.audited[0].start
        by_kafka = {e.topic_id} if e.kafka is not None and e.kafka.first <= begin else set[str]()
        bounds = group.bounds(_claimed_records)
        if _is_exact(e, group):
            ((topic_id, (lowest, highest)),) = bounds.items()
            lowest = max(lowest, group.lowest(_claimed_records)) - _hidden_rows(e, group)
            bounds = {topic_id: (min(lowest, highest), highest)}
        open_ += sum(highest - lowest for topic_id, (lowest, highest) in bounds.items() if topic_id not in by_kafka)
    remedy = "use `--source`" if e.kafka is None else "Kafka no longer has all of them"
    # The same sentence for each partition, so that it is printed once.
    sentence = (
        "some offsets were committed more than once, by a backfill, by a reset or because the topic was recreated. "
        f"Their records cannot be counted exactly; {remedy}"
    )
    yield _make_finding(e, FindingKind.NOT_COMPARED, open_, sentence)


def _report_limits(e: Evidence) -> Iterable[Finding]:
    current = e.current_ranges
    if e.covers_history:
        # The marker is the last range: a reset may have moved it, and nothing was committed since.
        read = [*merge_ranges(current), (e.marker, e.marker)] if current else []
        seen = e.seen
        accepted = (span for span in e.given_up if not seen & offset_bitmap(*span))
        holes = covered_offsets([*accepted, *((a[1], b[0]) for a, b in pairwise(read) if a[1] < b[0])])
        skipped = format_count(len(holes), "offset", "was|were")
        sentence = f"{skipped} skipped, by a reset, source.start or source.on-gap: {_format_offsets(holes)}"
        yield _make_finding(e, FindingKind.SKIPPED, len(holes), sentence)
    reused = e.rewritten_offsets
    yield _make_finding(
        e, FindingKind.NOT_COMPARED, len(reused),
        f"Kafka assigned {format_count(len(reused), 'offset')} to a second record, because its log was truncated, or a "
        f"forgotten stream's topic was recreated. The table may have two rows at: {_format_offsets(reused)}",
    )  # fmt: skip
    if e.kafka is not None:
        of_ranges = (g.bounds(lambda r: r.records + e.replayed_of(r)).items() for g in e.groups)
        former = sum(highest for group in of_ranges for topic_id, (_, highest) in group if topic_id != e.topic_id)
        sentence = f"{format_count(former, 'row', 'is|are')} {FORMER_TOPIC_PREDICATE}{BY_COMMIT_RECORDS}"
        yield _make_finding(e, FindingKind.UNCHECKED, former, sentence)
        deleted = len((claimed_offsets(current) & offset_bitmap(0, e.kafka.first)) - e.accepted)
        yield _make_finding(e, FindingKind.UNCHECKED, deleted, describe_deleted_offsets(deleted, e.kafka.first))


def describe_deleted_offsets(committed: int, first: int) -> str:
    """Return a message about committed offsets that Kafka no longer has."""
    checked = format_count(committed, "committed offset", "was|were")
    return f"Kafka no longer has offsets before {first:,}: {checked} checked against commit records only"


def _make_finding(e: Evidence, kind: FindingKind, count: int, sentence: str) -> Finding:
    return Finding(kind, count, sentence, e.partition_label)


def is_counted_once(e: Evidence) -> bool:
    """Return whether counting rows suffices: each audited offset was committed once, for one record."""
    return all(group.is_single for group in e.groups) and _is_counted_once_by_topic(e)


def _is_counted_once_by_topic(e: Evidence) -> bool:
    if covered_offsets((*e.rewritten, *e.given_up)) & claimed_offsets(e.ranges):
        return False
    topics = (ranges for group in e.groups for ranges in group.ranges_by_topic_id.values())
    return not any(group.others for group in e.groups) and not any(map(offsets_claimed_again, topics))


def format_at_offsets(offsets: BitMap64) -> str:
    """Return text such as `at offset 5` or `at offsets 5, 7 to 9`, or ""."""
    return f"at offset{'' if len(offsets) == 1 else 's'} {_format_offsets(offsets)}" if offsets else ""


def _format_offsets(offsets: BitMap64) -> str:
    spans = list(first_spans(offsets, limit=MAX_LISTED_SPANS + 1))
    return ", ".join(format_span(*span) for span in spans[:MAX_LISTED_SPANS]) + (
        ", …" if len(spans) > MAX_LISTED_SPANS else ""
    )


def compare_counts(  # noqa: PLR0913 - each number is an argument
    *,
    rows: int,
    claimed: int,
    other_streams: int,
    stream: str,
    forgotten: int = 0,
    adopted: int = 0,
    has_coordinates: bool = False,
) -> tuple[Finding, ...]:
    """Compare a stream's rows with commit records if it has no coordinates."""
    where = "its table does not have the columns" if has_coordinates else "coordinates: false"
    sentence = f"the stream stores no Kafka coordinates ({where}): it cannot be audited by offset, only by count"
    findings = [Finding(FindingKind.UNCHECKED, 1, sentence, stream)]
    is_equal = rows == claimed + adopted
    if other_count := other_streams or (0 if is_equal else forgotten):
        sentence = (
            f"{format_count(other_count, 'other stream')} wrote to the table, so frazil cannot count this stream's rows"
        )
        findings.append(Finding(FindingKind.NOT_COMPARED, other_count, sentence, stream))
    elif not is_equal:
        adopted_text = f", in addition to {adopted:,} that were adopted" if adopted else ""
        sentence = f"the table has {format_count(rows, 'row')}, but the commit records count {claimed:,}{adopted_text}"
        findings.append(Finding(FindingKind.MISCOUNTED, abs(rows - claimed - adopted), sentence, stream))
    return tuple(findings)
