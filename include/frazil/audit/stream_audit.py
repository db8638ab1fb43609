"""Runs one audit of one stream: reads all evidence at one snapshot, compares it, and returns the findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import count

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyroaring import BitMap64

from frazil.audit.claims import Claims, load_all_claims, load_claims, merge_ranges
from frazil.audit.compare import (
    compare_counts,
    compare_dead_letters,
    compare_partition,
    compare_repeats,
    count_dropped,
    count_duplicates,
    count_repeats,
    count_rows,
    count_rows_of_former_topics,
    is_counted_once,
)
from frazil.audit.evidence import Evidence, RemainingOffsets, gather_evidence, with_other_claims
from frazil.audit.findings import Audit, Finding, FindingKind, PartitionAudit
from frazil.audit.routed_tables import (
    MAX_READ_ATTEMPTS,
    PublishedReplays,
    RoutedRows,
    compare_table_counts,
    find_misplaced_rows,
    join_table_counts,
    read_routed_rows,
    report_uncounted_tables,
    report_unread_rows,
    row_counts,
)
from frazil.commit.backfill_records import BackfillState, branch_name, read_backfill, unsettled_backfill
from frazil.commit.commit_checks import other_streams
from frazil.commit.history import Period, ancestors, parse_number, reset_times
from frazil.commit.journal import parse_key
from frazil.commit.marker import BatchOutcome, Marker, open_branch_name, property_name, read_marker, require_own_marker
from frazil.commit.reset_plan import is_rolled_back
from frazil.commit.stream_tables import StreamTables
from frazil.ingest.contract import Target
from frazil.offsets.spans import Span, TopicPartition
from frazil.offsets.tally import OffsetTally, Tallies, merge_tallies
from frazil.spec.units import format_count
from frazil.table.branches import MAIN, head_of
from frazil.table.landed_offsets import OffsetRanges, RowSelection, has_coordinates, tally_rows
from frazil.timetext import format_utc

FindRemainingOffsets = Callable[[Marker, Claims], tuple[Mapping[TopicPartition, RemainingOffsets], tuple[Finding, ...]]]
"""Returns the claimed offsets that Kafka has, and findings about ranges that Kafka can no longer show."""
AssignRecords = Callable[[Table, Marker, Mapping[TopicPartition, Span]], Mapping[Target, Tallies]]
"""Returns the offsets in these spans that belong in each table, according to the declared route."""


@dataclass(frozen=True, slots=True)
class _AuditRun:
    """The sources of one audit, at one snapshot of the main table."""

    tables: StreamTables
    table: Table
    marker: Marker
    window: Period | None
    find_remaining_offsets: FindRemainingOffsets | None
    drops_repeats: bool
    candidate_names: Collection[Target]
    """The tables that the declared route names."""
    assign: AssignRecords | None = None
    signals: bool = True
    """Whether frazil signals complete windows of the table."""

    def evidence(
        self, claimed: Claims, all_claims: Claims | None = None
    ) -> tuple[tuple[Evidence, ...], tuple[Finding, ...]]:
        """Return evidence and findings. `all_claims` has the claims of all times, which recreated topics need."""
        topics, within = self._topics(claimed), self._within(claimed)
        kafka, notes = self.find_remaining_offsets(self.marker, claimed) if self.find_remaining_offsets else ({}, ())
        on_main = RowSelection(topics, within)
        default = tally_rows(self.table, on_main, replace(on_main, branch=open_branch_name(self.marker.stream)))
        has_route = self.marker.routed is not None
        replays = PublishedReplays.load(self.tables, self.table) if has_route else PublishedReplays()
        dead_letters, former_dead_letters = self.tally_dead_letters(claimed)
        stream, names = (self.tables, self.marker, all_claims or claimed), self.candidate_names
        routed = read_routed_rows(*stream, within=within, replays=replays, candidate_names=names)
        found = gather_evidence(
            self.marker,
            claimed,
            rows=merge_tallies([default, *(entry.rows for entry in routed)]) if routed else default,
            tables="the route" if routed else "the table",
            dead_letters=dead_letters,
            kafka=kafka,
            covers_history=self.window is None,
            drops_repeats=self.drops_repeats,
            former_dead_letters=former_dead_letters,
            reset_times=reset_times(self.table.metadata, self.marker.stream),
        )
        if all_claims:
            found = with_other_claims(found, all_claims, claimed)
        if not routed:
            return found, notes
        default_rows = self.tables.main.identifier, default
        changed = {entry.renamed or entry.target: entry.table for entry in routed if entry.table}
        return found, (
            *notes,
            *report_unread_rows(routed),
            *self._compare_tables(found, default_rows, routed, claimed, replays),
            *(
                finding
                for name, table in sorted(changed.items())
                for finding in report_foreign_changes(table, where=name, window=self.window, signals=self.signals)
            ),
        )

    def _compare_tables(
        self,
        evidence: tuple[Evidence, ...],
        default: tuple[str, Tallies],
        routed: tuple[RoutedRows, ...],
        claimed: Claims,
        replays: PublishedReplays,
    ) -> Iterable[Finding]:
        """Compare the number of rows in each table; if offsets were committed repeatedly, compare the rows."""
        if self.drops_repeats:  # the number of repeats that each table dropped is unknown
            return ()
        if all(map(is_counted_once, evidence)):
            return compare_table_counts(default, routed, claimed, replays)
        if self.assign is None:
            return report_uncounted_tables(default[0], claimed)
        spans = {
            e.topic_partition: (e.kafka.offsets.min(), e.kafka.offsets.max() + 1)
            for e in evidence
            if e.kafka and e.kafka.offsets
        }
        placed, counts = (
            self.assign(self.table, self.marker, spans),
            row_counts(default, routed, claimed, replays),
        )
        return find_misplaced_rows(evidence, default, routed, placed, counts)

    def tally_dead_letters(self, claimed: Claims) -> tuple[Tallies, Mapping[TopicPartition, int]]:
        """Return the dead letters as of the last publication, and the number of dead letters from former topics."""
        ids = self.marker.source.topic_ids
        selection = RowSelection(self._topics(claimed), self._within(claimed), ids, self.marker.stream)
        former = Counter[TopicPartition]()
        dead_letters = tally_rows(self.tables.dead_letters.refresh(), selection, former=former)
        if not any(claimed.former_offsets(ids).values()):
            former.clear()
        properties = self.tables.dead_letters.current().properties
        backfill = unsettled_backfill(self.table.properties, properties, self.marker.stream)
        if backfill is None:
            return dead_letters, former
        if not backfill.replays:
            staged = replace(selection, branch=branch_name(backfill.stream))
            return merge_tallies([dead_letters, tally_rows(self.tables.dead_letters.current(), staged)]), former
        settled = {
            tp: each.get(ids.get(tp[0], ""), BitMap64()) for tp, each in claimed.replayed.items() if tp in dead_letters
        }
        unsettled = {tp: OffsetTally([*(dead_letters[tp].seen - offsets)]) for tp, offsets in settled.items()}
        return {**dead_letters, **unsettled}, former

    def _topics(self, claimed: Claims) -> set[str]:
        return {topic for topic, _ in claimed.ranges.keys() | self.marker.offsets.keys()}

    def _within(self, claimed: Claims) -> OffsetRanges | None:
        if self.window is None:
            return None
        return {tp: spans for tp, parts in claimed.ranges.items() if (spans := merge_ranges(parts))}


def audit_stream(  # noqa: PLR0913 - each choice is an argument
    tables: StreamTables,
    *,
    coordinates: bool = True,
    window: Period | None = None,
    find_remaining_offsets: FindRemainingOffsets | None = None,
    drops_repeats: bool = False,
    replayed_from_source: bool = False,
    candidate_names: Collection[Target] = (),
    assign: AssignRecords | None = None,
    signals: bool = True,
) -> Audit:
    """Read all evidence of one stream, compare it, and return the audit.

    Reads the main table first, because dead letters and commit records of its batches are older, and routed tables are
    committed later. With `replayed_from_source`, the caller compares rows with Kafka's records. Raises
    KafkaUnavailable, MarkerUnreadable, and AdoptionRequired without a marker.
    """
    for attempt in count(1):
        table = tables.main.refresh()
        marker = require_own_marker(tables.stream, read_marker(table.properties, tables.stream))
        run = _AuditRun(
            tables, table, marker, window, find_remaining_offsets, drops_repeats, candidate_names, assign, signals
        )
        claimed = load_claims(tables.journals, marker, table.metadata, window)
        faults = report_metadata_problems(table, marker, claimed)
        if not (coordinates and has_coordinates(table.schema())):
            return _build_audit(
                run, claimed, (), (*faults, *_compare_without_coordinates(run, claimed, has_coordinates=coordinates))
            )
        recreated = window is not None and _has_recreated_topic(run, claimed)
        all_claims = load_all_claims(tables.journals, marker, table.metadata) if recreated else None
        evidence, notes = run.evidence(claimed, all_claims)
        is_overtaken = attempt < MAX_READ_ATTEMPTS and _has_newer_rows_at_former_offsets(run, all_claims or claimed)
        if not (is_overtaken or _has_new_replay(run)):
            break
    if all_claims is None:
        evidence = _add_other_claims(run, claimed, evidence, compare_partition)
    repeats = None
    if drops_repeats:
        repeats = count_repeats(evidence, claimed, is_routed=marker.routed is not None)
        of_repeats = compare_repeats(evidence, repeats, stream=tables.stream, by_source=replayed_from_source)
        notes = (*notes, *of_repeats)
    findings = tuple(f for e in evidence for f in compare_partition(e))
    if not drops_repeats and all(map(is_counted_once, evidence)):
        dead_letters = [f for e in evidence for f in compare_dead_letters(e)]
        notes, findings = join_table_counts(notes, findings, dead_letters)
    return replace(_build_audit(run, claimed, evidence, (*faults, *notes, *findings)), repeats=repeats)


def audit_changes(
    tables: StreamTables, table: Table, claimed: Claims, *, window: Period | None, candidate_names: Collection[Target]
) -> tuple[tuple[Finding, ...], int | None] | None:
    """Compare an upsert stream with its commit records: only the dead letters, for a period or without coordinates.

    Returns the findings, and the number of rows if counted. Returns None if a replay was published since `table` was
    loaded; the caller must then load `table` again.
    """
    marker = require_own_marker(tables.stream, read_marker(table.properties, tables.stream))
    run = _AuditRun(tables, table, marker, window, None, drops_repeats=True, candidate_names=candidate_names)
    by_offset = window is None and has_coordinates(table.schema())
    if by_offset:
        compared: Callable[[Evidence], tuple[Finding, ...]] = compare_partition
        evidence, notes = run.evidence(claimed)
    else:
        compared, notes = compare_dead_letters, ()
        dead_letters, _ = run.tally_dead_letters(claimed)
        evidence = gather_evidence(
            marker, claimed, rows={}, dead_letters=dead_letters, kafka={}, covers_history=window is None
        )
    if _has_new_replay(run):
        return None
    evidence = _add_other_claims(run, claimed, evidence, compared)
    rows = sum(len(e.rows.seen) for e in evidence) if by_offset else None
    return (*notes, *(finding for each in evidence for finding in compared(each))), rows


def report_metadata_problems(table: Table, marker: Marker, claimed: Claims) -> tuple[Finding, ...]:
    """Report a rollback, missing commit records and skipped offsets."""
    findings = []
    if is_rolled_back(table, marker, name=".".join(table.name())):
        sentence = (
            "the table was rolled back to before the marker. To read the missing records again, run `frazil reset "
            f"{marker.stream} --to table`"
        )
        findings.append(Finding(FindingKind.ROLLED_BACK, 1, sentence, marker.stream))
    for path in claimed.missing_commit_records:
        key = parse_key(path)
        is_forgotten = key is None or marker.outcome_of(key) is BatchOutcome.UNKNOWN
        kind = FindingKind.NOT_COMPARED if is_forgotten else FindingKind.RECORD_GONE
        sentence = f"the commit record {path} is missing or unreadable: its batch cannot be audited"
        findings.append(Finding(kind, 1, sentence, marker.stream))
    sentence = "retention deleted offsets before they were read, and source.on-gap skipped them: {}"
    lost = (Finding(FindingKind.SKIPPED, 1, sentence.format(text), marker.stream) for text in claimed.lost)
    return (*findings, *lost)


def _has_new_replay(run: _AuditRun) -> bool:
    """Return whether a replay was published during the audit. Rows may then seem to be missing."""
    backfill = read_backfill(run.table.properties, run.marker.stream)
    if run.marker.routed is not None:  # routed tables get their rows before the dead letters leave
        now = run.tables.last_backfill()
        if now and now.replays and now.state is BackfillState.PUBLISHED and now != backfill:
            return True
    last = read_backfill(run.tables.dead_letters.current().properties, run.marker.stream)
    if last is None or not last.replays or last.state is not BackfillState.PUBLISHED:
        return False
    return (
        backfill is None
        or backfill.epoch < last.epoch
        or (backfill.id == last.id and backfill.state is not BackfillState.PUBLISHED)
    )


def _has_newer_rows_at_former_offsets(run: _AuditRun, claimed: Claims) -> bool:
    """Return whether routed tables may have rows past the marker at offsets of a former topic."""
    reached = run.marker.offsets
    if not claimed.routed or all(r.end <= reached.get(tp, 0) for tp, parts in claimed.ranges.items() for r in parts):
        return False
    return require_own_marker(run.tables.stream, run.tables.marker()).settled != run.marker.settled


def _add_other_claims(
    run: _AuditRun, claimed: Claims, evidence: tuple[Evidence, ...], compared: Callable[[Evidence], tuple[Finding, ...]]
) -> tuple[Evidence, ...]:
    """Return the evidence. If claims of other times may explain the period's errors, adds these claims."""
    if run.window is None or not any(f.kind.is_wrong for e in evidence for f in compared(e)):
        return evidence
    return with_other_claims(evidence, load_all_claims(run.tables.journals, run.marker, run.table.metadata), claimed)


def _has_recreated_topic(run: _AuditRun, claimed: Claims) -> bool:
    """Return whether an audited topic has another id in the marker or the oldest commit record."""
    oldest = next(run.tables.journals.records(table_uuid=run.table.metadata.table_uuid), None)
    ids = {(topic, r.topic_id) for (topic, _), ranges in claimed.ranges.items() for r in ranges}
    sources = [run.marker.source, *([oldest.source] if oldest else [])]
    return any(source.topic_ids.get(topic, id_) != id_ for source in sources for topic, id_ in ids)


def _build_audit(
    run: _AuditRun, claimed: Claims, evidence: tuple[Evidence, ...], findings: tuple[Finding, ...]
) -> Audit:
    changed = report_foreign_changes(run.table, where=run.marker.stream, window=run.window, signals=run.signals)
    partitions = tuple(_count_partition(e) for e in evidence)
    return Audit(run.tables.stream, partitions, (*findings, *changed), claimed.batches, run.window)


def _count_partition(e: Evidence) -> PartitionAudit:
    rows, surplus = count_rows(e), count_duplicates(e)
    current = e.current_ranges or ([] if e.covers_history else e.ranges)
    return PartitionAudit(
        topic=e.topic,
        partition=e.partition,
        start=min((r.start for r in current), default=None),
        end=max([e.marker, *(r.end for r in current)]) if e.covers_history else max(r.end for r in current),
        rows=rows,
        distinct=rows - surplus,
        duplicates=surplus,
        gaps=len(e.missing) if e.kafka is not None else None,
        dead_letters=len(e.dead_letters.seen) + e.former_dead_letters,
        dropped=count_dropped(e),
        of_former_topics=count_rows_of_former_topics(e),
    )


def report_foreign_changes(table: Table, *, where: str, window: Period | None, signals: bool) -> tuple[Finding, ...]:
    """Report other programs' commits that deleted or overwrote rows. They do not reopen windows."""
    newest_first = list(ancestors(table.metadata))
    foreign = [
        (following, snapshot)
        for following, snapshot in zip([None, *newest_first], newest_first, strict=False)
        if (window is None or snapshot.timestamp_ms in window)
        and _is_foreign(snapshot, Operation.OVERWRITE, Operation.DELETE)
    ]
    if not foreign:
        return ()
    following, last = foreign[0]
    change = _describe_change(last.summary)
    if following and _is_foreign(following, Operation.APPEND):  # PyIceberg overwrites with a delete and an append
        added = parse_number(following.summary.get("added-records") if following.summary else None)
        change += f", and the snapshot after it, {following.snapshot_id}, added {format_count(added, 'row')}"
    sentence = (
        f"{format_count(len(foreign), 'commit')} of other programs deleted or overwrote rows; the last, snapshot "
        f"{last.snapshot_id} of {format_utc(last.timestamp_ms)}, {change}"
        f"{'. Windows already signalled stay signalled' if signals else ''}"
    )
    return (Finding(FindingKind.CHANGED, len(foreign), sentence, where),)


def _is_foreign(snapshot: Snapshot, *operations: Operation) -> bool:
    summary = snapshot.summary
    return (
        summary is not None
        and summary.operation in operations
        and not any(key.startswith("frazil.") for key in summary.additional_properties)
    )


def _describe_change(summary: Summary | None) -> str:
    """Return how many rows a commit removed, not counting rows that it only moved to other files."""

    def count(name: str) -> int:
        return parse_number(summary.get(name) if summary else None)

    added, by_value = count("added-records"), count("added-equality-deletes")
    # A new deletion vector contains the marks of the one that it replaces.
    deleted = count("deleted-records") + max(count("added-position-deletes") - count("removed-position-deletes"), 0)
    if by_value:
        row_text = f"deleted {format_count(deleted, 'row')}, added {added:,}, and " if deleted or added else ""
        return f"{row_text}wrote {format_count(by_value, 'equality delete')}, each for any number of rows"
    if deleted <= added:
        return f"replaced {format_count(deleted, 'row')} with {added:,}"
    rewritten_text = f" ({deleted:,} rewritten as {added:,})" if added else ""
    return f"removed {format_count(deleted - added, 'row')}{rewritten_text}"


def _compare_without_coordinates(run: _AuditRun, claimed: Claims, *, has_coordinates: bool) -> tuple[Finding, ...]:
    """Compare the number of rows with the committed records."""
    stream, properties = run.marker.stream, run.table.properties
    if run.window is not None:
        sentence = f"the stream stores no Kafka coordinates, so a period cannot be audited. Use `frazil audit {stream}`"
        return (Finding(FindingKind.NOT_COMPARED, claimed.batches, sentence, stream),) if claimed.batches else ()
    tables = format_count(len(claimed.routed), "routed table", "was|were")
    sentence = f"{tables} not counted, because the stream stores no Kafka coordinates"
    notes = (Finding(FindingKind.NOT_COMPARED, len(claimed.routed), sentence, stream),) if claimed.routed else ()
    other_names = other_streams(properties, stream=stream)
    heads = (head_of(run.table.metadata, branch) for branch in (MAIN, open_branch_name(stream)))
    findings = compare_counts(
        rows=sum(run.table.scan(snapshot_id=head.snapshot_id).count() for head in heads if head),
        claimed=claimed.records - sum(claimed.routed.values()),
        adopted=run.marker.adopted_rows,
        other_streams=sum(property_name(name) in properties for name in other_names),
        forgotten=len(other_names),
        stream=stream,
        has_coordinates=has_coordinates,
    )
    return (*notes, *findings)
