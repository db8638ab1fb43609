"""Audits upsert and dedupe tables: stages Kafka's committed records again, and merges them without a commit.

Every row of the table that this merge would change is an error. The merge needs as much memory and CPU as a batch of
all these records.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from pyiceberg.io import load_file_io
from pyiceberg.table import Table
from pyroaring import BitMap64

from frazil.audit.changed_keys import ChangedKeys, DeclaredRules, Key, find_changed_keys
from frazil.audit.claims import (
    Claims,
    CommittedRange,
    claimed_offsets,
    find_accepted_loss,
    group_by_topic_id,
    load_all_claims,
    load_claims,
    merge_ranges,
    offsets_claimed_again,
)
from frazil.audit.compare import (
    BY_COMMIT_RECORDS,
    FORMER_TOPIC_PREDICATE,
    count_repeats,
    describe_deleted_offsets,
    format_at_offsets,
)
from frazil.audit.evidence import gather_evidence
from frazil.audit.findings import Audit, Finding, FindingKind, PartitionAudit
from frazil.audit.kafka_source import KafkaLogs
from frazil.audit.source_records import ComparedTables, SourceRecords, scratch_folder
from frazil.audit.stream_audit import audit_changes, report_foreign_changes, report_metadata_problems
from frazil.commit.commit_checks import other_streams
from frazil.commit.history import Period, deleted_by_others, reset_times
from frazil.commit.marker import Marker, read_marker, require_own_marker
from frazil.commit.merging import MERGING_MODES, build_merge_rules
from frazil.commit.staging_targets import target_table
from frazil.commit.stream_tables import StreamTables
from frazil.ingest.contract import StagedFile
from frazil.merge.contract import MergeContext, MergeCounts, MergeResult, MergeTask
from frazil.merge.table_files import TableFileReader
from frazil.merge.task import run_merge_task
from frazil.offsets.spans import Offsets, TopicPartition, iter_runs, offset_bitmap
from frazil.spec.model import StreamSpec
from frazil.spec.units import format_count
from frazil.stream.stage_context import hash_rules
from frazil.table.landed_offsets import COORDINATES, split_by_partition

_CompletedTask = tuple[MergeTask, MergeResult]
LATE_AFTER_DELETE = (
    ". The table does not record deletes. So an older change in a later batch than the delete may have restored the "
    "row. Send the delete again. If one batch can read both, you can also reset to before the delete"
)

_BY_OTHERS = "An earlier declaration or version of frazil, or a backfill of files, committed"
UNDECIDED = (
    f"differs from its newest change in Kafka under the current declaration. {_BY_OTHERS} its records under other "
    "rules, so this may be correct, and it was not compared. A reset would insert, replace or delete its row"
)
UNDECIDED_REPEATS = f" under the current declaration. {_BY_OTHERS} them under other rules, so they were not compared"


def audit_upserts(
    spec: StreamSpec, tables: StreamTables, *, window: Period | None = None, with_source: bool = False
) -> Audit:
    """Audit the table and its dead letters. With `with_source`, also compares the rows' values with Kafka's records."""
    table_names, result = spec.sinks.named_tables, None
    while result is None:
        table, marker, claimed = _load_claims(tables, window)
        result = audit_changes(tables, table, claimed, window=window, candidate_names=table_names)
    of_commits, rows = result
    partitions = tuple(_count_partitions(claimed, marker.source.topic_ids))
    changes = sum(partition.rows for partition in partitions)
    changed = report_foreign_changes(table, where=spec.name, window=window, signals=spec.window is not None)
    of_metadata = report_metadata_problems(table, marker, claimed)
    findings = (*of_metadata, *changed, *of_commits, *_report_offsets_read_again(claimed))
    if with_source:
        findings = (*findings, *_compare_with_kafka(spec, tables, table, marker, claimed, window=window))
    elif changes:
        findings = (*findings, _values_not_compared(changes, rows, spec.name))
    return Audit(spec.name, partitions, findings, claimed.batches, window, by_key=True)


def _values_not_compared(changes: int, rows: int | None, stream: str) -> Finding:
    """Report that no values were compared. `rows` is the number of changes with a row, or None if not counted."""
    sentence = (
        f"{format_count(changes, 'change', 'is|are')} counted in commit records; values were not compared with Kafka "
        "(--source compares them)"
    )
    if rows is not None and rows < changes:
        sentence += (
            f". {format_count(changes - rows, 'change', 'has|have')} no row of their own, which is normal if later "
            "changes replaced them"
        )
    return Finding(FindingKind.NOT_COMPARED, changes, sentence, stream)


def compare_with_source(spec: StreamSpec, tables: StreamTables, *, window: Period | None) -> Iterator[Finding]:
    """Yield findings about Kafka's records that are not in a dedupe table. Raises the errors of `audit_stream`."""
    table, marker, claimed = _load_claims(tables, window)
    evidence = gather_evidence(marker, claimed, rows={}, dead_letters={}, kafka={}, covers_history=window is None)
    by_records = count_repeats(evidence, claimed, is_routed=marker.routed is not None) is not None
    yield from _compare_with_kafka(spec, tables, table, marker, claimed, window=window, by_records=by_records)


def _load_claims(tables: StreamTables, window: Period | None) -> tuple[Table, Marker, Claims]:
    table = tables.main.refresh()
    marker = require_own_marker(tables.stream, read_marker(table.properties, tables.stream))
    return table, marker, load_claims(tables.journals, marker, table.metadata, window)


def _count_partitions(claimed: Claims, topic_ids: Mapping[str, str]) -> Iterator[PartitionAudit]:
    for (topic, partition), rs in sorted(item for item in claimed.ranges.items() if item[1]):
        current, rejected = claimed.of_topics(topic_ids)[topic, partition] or rs, sum(r.rejected for r in rs)
        start, end = min(r.start for r in current), max(r.end for r in current)
        replayed = claimed.replayed.get((topic, partition), {})
        spans = (
            (replayed[i], span) for i, r in group_by_topic_id(rs).items() if i in replayed for span in merge_ranges(r)
        )
        merged = min(rejected, sum(offsets.range_cardinality(*span) for offsets, span in spans))
        changes = sum(r.records for r in rs) + merged
        yield PartitionAudit(topic, partition, start, end, changes, changes, 0, None, rejected - merged)


def _report_offsets_read_again(claimed: Claims) -> Iterator[Finding]:
    for (topic, partition), parts in sorted(claimed.ranges.items()):
        if count := sum(len(offsets_claimed_again(ranges)) for ranges in group_by_topic_id(parts).values()):
            sentence = (
                f"{format_count(count, 'offset', 'was|were')} committed more than once, by a backfill or a reset: "
                "their changes and dead letters are counted each time"
            )
            yield Finding(FindingKind.READ_AGAIN, count, sentence, f"{topic}-{partition}")


def _later_audit(table: Table, spec: StreamSpec) -> str:
    """Return how to compare only the commits of the recreated topic, which begin at the stream's reset."""
    reset_ms = next(iter(reset_times(table.metadata, spec.name).values()), None)
    if reset_ms is None:
        return "To compare only later commits, use `--from` with a time after the topic was recreated"
    since = datetime.fromtimestamp(reset_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return f"To compare only the commits since the reset: `frazil audit {spec.name} --source --from {since}`"


def _compare_with_kafka(  # noqa: PLR0913 - each source is an argument
    spec: StreamSpec,
    tables: StreamTables,
    table: Table,
    marker: Marker,
    claimed: Claims,
    *,
    window: Period | None = None,
    by_records: bool = False,
) -> Iterator[Finding]:
    """Report how merging Kafka's records of the claimed ranges would change the tables. Commits nothing."""
    if marker.routed is not None and not spec.sinks.has_routed_tables:
        sentence = (
            f"{format_count(claimed.records, 'record', 'was|were')} not compared: the stream had a route, and some "
            "records may belong to other tables. To compare them with Kafka's records, declare the route again"
        )
        yield Finding(FindingKind.NOT_COMPARED, claimed.records, sentence, spec.name)
        return
    current = claimed.of_topics(marker.source.topic_ids)
    starts = {tp: min(r.start for r in parts) for tp, parts in current.items() if parts and tp in marker.offsets}
    yield from _report_former_offsets(spec, table, marker, claimed, by_records=by_records)
    if count := sum(max(0, max(r.end for r in current[tp]) - marker.offsets[tp]) for tp in starts):
        sentence = (
            f"the stream was moved back and has not yet read {format_count(count, 'offset')} again: their records were "
            "not compared. Audit again once the writer has caught up"
        )
        yield Finding(FindingKind.NOT_COMPARED, count, sentence, spec.name)
    logs = KafkaLogs.load(spec, marker, claimed)
    not_read = {tp[0]: reason for tp, reason in logs.not_comparable.items() if tp in starts}
    starts = {tp: start for tp, start in starts.items() if tp in logs.ends and tp[0] not in not_read}
    if window is None:
        yield from logs.report_not_committed(spec, marker)
    for topic, reason in not_read.items():
        offsets = sum(len(claimed_offsets(parts)) for tp, parts in current.items() if tp[0] == topic)
        yield Finding(FindingKind.NOT_COMPARED, offsets, reason, topic)
    yield from _report_truncated_logs({tp: offset for tp, offset in sorted(logs.truncated.items()) if tp in starts})
    all_claims = claimed if window is None else load_all_claims(tables.journals, marker, table.metadata)
    read = {tp: _offsets_to_read(tp, start, all_claims, marker) for tp, start in starts.items()}
    yield from _report_missing_in_kafka(
        spec.name, {tp: (current[tp], read[tp]) for tp in read}, logs.first, by_records=by_records
    )
    spans = {
        tp: [*iter_runs(offsets & offset_bitmap(begin, end), (begin, end))]
        for tp, offsets in sorted(read.items())
        for begin, end in [(logs.first.get(tp, 0), max(logs.first.get(tp, 0), logs.ends[tp].stable))]
    }
    if any(spans.values()):
        sinks = ComparedTables.load(spec, tables, table, marker)
        yield from sinks.findings
        topic_ids, ranges = logs.topics.topic_ids, all_claims.of_topics(marker.source.topic_ids)
        committed = {tp: (*parts, *all_claims.replays.get(tp, ())) for tp, parts in ranges.items()}
        yield from _report_differences(
            SourceRecords(spec, tables, sinks, topic_ids, spans, [*not_read], committed=committed)
        )


def _report_truncated_logs(truncated: Offsets) -> Iterator[Finding]:
    for (topic, partition), offset in truncated.items():
        sentence = (
            f"Kafka's log was truncated at offset {offset:,}, below the committed offset: rows may have later changes "
            "that Kafka no longer has. To continue from there, run `frazil reset STREAM --to marker`"
        )
        yield Finding(FindingKind.LOG_TRUNCATED, 1, sentence, f"{topic}-{partition}")


def _report_former_offsets(
    spec: StreamSpec, table: Table, marker: Marker, claimed: Claims, *, by_records: bool
) -> Iterator[Finding]:
    if former := sum(map(len, claimed.former_offsets(marker.source.topic_ids).values())):
        sentence = f"{format_count(former, 'offset', 'is|are')} {FORMER_TOPIC_PREDICATE}"
        if by_records:
            yield Finding(FindingKind.UNCHECKED, former, f"{sentence}{BY_COMMIT_RECORDS}", spec.name)
        else:
            yield Finding(FindingKind.NOT_COMPARED, former, f"{sentence}. {_later_audit(table, spec)}", spec.name)


def _offsets_to_read(tp: TopicPartition, start: int, all_claims: Claims, marker: Marker) -> BitMap64:
    """Return the offsets to read again, from `start` to the marker. Omits accepted losses and skipped offsets."""
    ranges = all_claims.of_topics(marker.source.topic_ids).get(tp, ())
    lost = find_accepted_loss(ranges, marker.given_up.get(tp, ()), epoch=marker.given_up_epoch)
    up_to_marker = offset_bitmap(start, marker.offsets[tp])
    return (up_to_marker if all_claims.missing_commit_records else up_to_marker & claimed_offsets(ranges)) - lost


def _report_missing_in_kafka(
    stream: str,
    read: Mapping[TopicPartition, tuple[Sequence[CommittedRange], BitMap64]],
    first: Offsets,
    *,
    by_records: bool,
) -> Iterator[Finding]:
    """Report committed records that Kafka no longer has. `read` has the claimed ranges and the offsets to read."""
    deleted = 0
    for tp, (ranges, offsets) in sorted(read.items()):
        expired = offsets & claimed_offsets(ranges) & offset_bitmap(0, first.get(tp, 0))
        if expired and by_records:
            sentence = describe_deleted_offsets(len(expired), first[tp])
            yield Finding(FindingKind.UNCHECKED, len(expired), sentence, f"{tp[0]}-{tp[1]}")
        deleted += min(len(expired), sum(min(r.records + r.rejected, len(r.offsets & expired)) for r in ranges))
    if deleted and not by_records:
        sentence = (
            f"{format_count(deleted, 'committed record', 'was|were')} not compared, because Kafka no longer has the "
            "records"
        )
        yield Finding(FindingKind.NOT_COMPARED, deleted, sentence, stream)


def _report_differences(replay: SourceRecords) -> Iterator[Finding]:
    """Stage the records again, and report how merging them would change each table."""
    stream = replay.spec.name
    with scratch_folder(stream) as folder:
        result, staged = replay.stage(folder)
        hashes = hash_rules(replay.spec, staged, [result])
        declared = DeclaredRules(hashes, replay.committed, rejects=result.rejects.total > 0)
        if values := result.values:
            sentence = f"records of {format_count(len(values), 'route value')} have no table: {[*values[:3]]}"
            yield Finding(FindingKind.NOT_COMPARED, len(values), sentence, stream)
        for target, table in replay.sinks.tables.items():
            changes = tuple(file for file in result.files if file.target == target)
            rules, landed = build_merge_rules(replay.spec, table), replay.tables.landed(table)
            rules = dataclasses.replace(rules, row_removal="merge-on-read", traced=False, landed=landed)
            merged = target_table(table, folder=str(folder / "merged" / target))
            context = MergeContext(stream, rules, staged.targets[target], merged)
            subject = stream if target == "main" else target
            yield from _report_table_differences(replay, table, changes, context, subject, declared=declared)


def _report_table_differences(  # noqa: PLR0913 - each source is an argument
    replay: SourceRecords,
    table: Table,
    changes: tuple[StagedFile, ...],
    context: MergeContext,
    subject: str,
    *,
    declared: DeclaredRules,
) -> Iterator[Finding]:
    completed = _merge_without_commit(table, changes, context)
    counts = sum((result.counts for _, result in completed), MergeCounts())
    if replay.spec.sinks.mode.replaces_rows:
        shared = bool(other_streams(table.properties, stream=replay.spec.name))
        keys = find_changed_keys(completed, _open_reader(context), context, replay.topics, declared, shared=shared)
        deleted = deleted_by_others(table.metadata, replay.spec.name) if shared else 0
        may_delete = "another stream of the table" if deleted is None or counts.inserted <= deleted else None
        if replay.not_read:
            may_delete = f"a record of {', '.join(replay.not_read)}, which cannot be read,"
        yield from _report_keys(keys, replay.spec, subject, may_delete, by_others=deleted or 0)
        return
    missing = _inserted_offsets(completed, changes, context)
    undecided = {tp: offsets & declared.undecided(tp) for tp, offsets in missing.items()}
    for kind, found, note in (
        (FindingKind.MISSING, {tp: offsets - undecided[tp] for tp, offsets in missing.items()}, ""),
        (FindingKind.NOT_COMPARED, undecided, UNDECIDED_REPEATS),
    ):
        if count := sum(map(len, found.values())):
            where = "; ".join(
                f"{tp[0]}-{tp[1]} {format_at_offsets(offsets)}" for tp, offsets in sorted(found.items()) if offsets
            )
            verbs = "has no row and is not a repeat" if count == 1 else "have no row and are not repeats"
            sentence = f"{format_count(count, 'record')} in Kafka {verbs}{note}: {where}"
            yield Finding(kind, count, sentence, subject)


def _inserted_offsets(
    completed: Sequence[_CompletedTask], changes: Sequence[StagedFile], context: MergeContext
) -> dict[TopicPartition, BitMap64]:
    """Return the offsets of rows that merging would add to a dedupe table. Omits rows without an event time."""
    replaced = {path for _, result in completed for path in result.replaced}
    written = [file.path for _, result in completed for file in result.files]
    target, event_time = context.target, context.rules.event_time or ""
    columns = target.schema.select(*COORDINATES, event_time)
    reader = _open_reader(context)
    inserted = defaultdict[TopicPartition, BitMap64](BitMap64)
    for path in (*(file.path for file in changes if file.path not in replaced), *written):
        rows = reader.read_rows(path, columns)
        timed = rows.filter(rows[event_time].is_valid()).select(COORDINATES)
        for batch in timed.to_batches():
            for tp, offsets in split_by_partition(batch):
                inserted[tp] |= BitMap64(offsets.tolist())
    return inserted


def _report_keys(
    keys: ChangedKeys, spec: StreamSpec, subject: str, may_delete: str | None = None, *, by_others: int = 0
) -> Iterator[Finding]:
    """Report keys that merging all records would change. `may_delete` names possible causes of missing keys."""
    note = ""
    if keys.redeclared_columns:
        columns = ", ".join(keys.redeclared_columns)
        note = f". A reset also replaces values of {columns} that an earlier declaration wrote"
    if keys.undecided.total:
        of_keys = format_count(keys.undecided.total, "key")
        note += f". A reset also inserts, replaces or deletes rows of {of_keys} under the current declaration"
    correction = (
        f". To merge Kafka's records again, run `frazil reset {spec.name} --to earliest`, then start the stream{note}"
    )
    restored_text = (
        f". This also restores {format_count(by_others, 'row')} that other streams of the table deleted"
        if by_others
        else ""
    )
    cause_text = f"{LATE_AFTER_DELETE}{note}" if spec.order_by else correction
    absent, of_key = FindingKind.MISSING, "the key's newest change in Kafka"
    of_absent = f"is not in the table, although {of_key} is not a delete{correction}{restored_text}"
    if may_delete:
        absent, of_absent = FindingKind.NOT_COMPARED, f"is not in the table; {may_delete} may have deleted it"
    of_redeclared = (
        f"has values of {', '.join(keys.redeclared_columns)} that an earlier declaration of the stream, or a backfill "
        "of files, wrote. These values were not compared, and a reset would replace them"
    )
    for kind, (count, first), description in (
        (absent, keys.inserted, of_absent),
        (FindingKind.MISCOUNTED, keys.updated, f"has other values in the table than in {of_key}{correction}"),
        (FindingKind.NOT_COMPARED, keys.redeclared, of_redeclared),
        (FindingKind.NOT_COMPARED, keys.undecided, UNDECIDED),
        (FindingKind.UNCLAIMED, keys.deleted, f"is in the table, although {of_key} is a delete{cause_text}"),
    ):
        if count:
            sentence = f"{format_count(count, 'key')}{_format_keys(first, count)}: each {description}"
            yield Finding(kind, count, sentence, subject, first)
    if keys.others:
        sentence = (
            f"{format_count(keys.others, 'key', 'was|were')} not compared: their rows come from records that this "
            "audit does not read, perhaps another stream's"
        )
        yield Finding(FindingKind.NOT_COMPARED, keys.others, sentence, subject)


def _format_keys(keys: tuple[Key, ...], count: int) -> str:
    if not keys:
        return ""
    key_text = "; ".join(", ".join(f"{name} {value}" for name, value in key.items()) for key in keys)
    return f" ({key_text}{'; …' if count > len(keys) else ''})"


def _merge_without_commit(table: Table, changes: tuple[StagedFile, ...], context: MergeContext) -> list[_CompletedTask]:
    rules = context.rules
    if not changes:
        return []
    plan = MERGING_MODES[context.changes.content].plan(table, changes, rules, parallelism=1)
    completed = [(task, run_merge_task(context, task)) for task in plan.tasks]
    inserts = plan.make_insert_tasks([result for _, result in completed])
    return [*completed, *((task, run_merge_task(context, task)) for task in inserts)]


def _open_reader(context: MergeContext) -> TableFileReader:
    target = context.target
    return TableFileReader(load_file_io(dict(target.io), location=target.folder), target.properties)
