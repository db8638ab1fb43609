"""Audits upsert and dedupe tables: merging Kafka's records into the table again must change nothing.

Rows of an upsert table cannot be counted against records, because most records replace a row. So the audit reads the
committed ranges from Kafka again, up to the marker, and stages them in a separate folder. It merges them with the
table's files as of that marker, without committing. Every row that this merge would insert, update or delete is an
error in the table. The audit needs as much memory and CPU as one batch of these records.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pyiceberg.io import load_file_io
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyroaring import BitMap64

from frazil.audit.changed_keys import ChangedKeys, Key, changed_keys
from frazil.audit.claims import Claims, claims, window_claims
from frazil.audit.compare import OF_FORMER_TOPIC, at_offsets, checked_by_commit_records, counts_rows
from frazil.audit.evidence import gather
from frazil.audit.findings import Finding, FindingKind
from frazil.audit.ranges import (
    CommittedRange,
    accepted_loss,
    by_topic_id,
    claimed_again,
    claimed_offsets,
    merged_ranges,
)
from frazil.audit.replay import Replay, scratch_folder
from frazil.audit.run import Audit, PartitionAudit, audit_changes, marker_of, standing_findings
from frazil.audit.sinks import Sinks
from frazil.audit.source import cut_logs, why_not_comparable
from frazil.commit.history import Period
from frazil.commit.marker import Marker
from frazil.commit.mode import MERGING_MODES, merge_rules
from frazil.commit.opened import open_kafka
from frazil.commit.stream_tables import StreamTables
from frazil.commit.target import target_table
from frazil.ingest.contract import StageContext, StagedFile, Target
from frazil.merge.contract import Counts, MergeContext, MergeResult, MergeTask
from frazil.merge.table_files import Reader
from frazil.merge.task import merge
from frazil.offsets.spans import TopicPartition, offset_bitmap, offset_runs
from frazil.spec.model import StreamSpec
from frazil.spec.units import counted
from frazil.table.file_bounds import COORDINATES
from frazil.table.landed_offsets import split_by_partition

_Done = tuple[MergeTask, MergeResult]
LATE_AFTER_DELETE = (
    ". An older change that came in a later batch than the delete brings a row back, because a deleted row leaves "
    "nothing behind: send the delete again, and it goes. `frazil reset` to before the delete fixes it too, where one "
    "batch then reads both"
)


def audit_upserts(
    spec: StreamSpec, tables: StreamTables, *, window: Period | None = None, with_source: bool = False
) -> Audit:
    """Audit the table and its dead letters. The values of rows are compared only if `with_source` is True.

    Raises the same errors as `audit_stream`.
    """
    named, found = {*spec.route.tables.values()} if spec.route else set[Target](), None
    while found is None:
        table, marker, claimed = _claimed(tables, window)
        found = audit_changes(tables, table, claimed, window=window, named=named)
    of_commits, rows = found
    partitions = tuple(_numbers(claimed))
    changes = sum(partition.rows for partition in partitions)
    standing = standing_findings(table, marker, claimed, window, signals=spec.window is not None)
    findings = (*standing, *of_commits, *_read_again(claimed))
    if with_source:
        findings = (*findings, *_compared(spec, tables, table, marker, claimed, window=window))
    elif changes:
        findings = (*findings, _by_commit_records(changes, rows, spec.name))
    return Audit(spec.name, partitions, findings, claimed.batches, window, by_key=True)


def _by_commit_records(changes: int, rows: int | None, stream: str) -> Finding:
    """Report that no values were compared.

    `rows` is the number of rows that these changes have; None if they were not counted.
    """
    sentence = (
        f"{counted(changes, 'change', 'is|are')} counted in commit records; values were not compared with Kafka "
        "(--source does)"
    )
    if rows is not None and rows < changes:
        sentence += (
            f". {counted(changes - rows, 'change', 'has|have')} no row of their own, which is normal if later changes "
            "replaced them"
        )
    return Finding(FindingKind.NOT_COMPARED, changes, sentence, stream)


def compared_with_source(spec: StreamSpec, tables: StreamTables, *, window: Period | None) -> Iterator[Finding]:
    """Yield findings about records in Kafka that are missing from the table of a stream with dedupe.

    Raises the same errors as `audit_stream`.
    """
    table, marker, claimed = _claimed(tables, window)
    evidence = gather(marker, claimed, rows={}, dead_letters={}, kafka={}, whole=window is None)
    by_records = marker.routed is None and counts_rows(evidence, claimed.repeats)
    yield from _compared(spec, tables, table, marker, claimed, window=window, by_records=by_records)


def _claimed(tables: StreamTables, window: Period | None) -> tuple[Table, Marker, Claims]:
    table = tables.main.refresh()
    marker = marker_of(tables, table)
    if window is None:
        return table, marker, claims(tables.journals, marker, table.metadata)
    return table, marker, window_claims(tables.journals, marker, table.metadata, window)


def _numbers(claimed: Claims) -> Iterator[PartitionAudit]:
    """Yield the counts of each topic-partition.

    A record that was committed twice counts twice, and a replayed dead letter counts as a change.
    """
    for (topic, partition), of in sorted(item for item in claimed.ranges.items() if item[1]):
        start, end, rejected = min(r.start for r in of), max(r.end for r in of), sum(r.rejected for r in of)
        replayed = claimed.replayed.get((topic, partition), {})
        spans = ((replayed[i], span) for i, r in by_topic_id(of).items() if i in replayed for span in merged_ranges(r))
        merged = min(rejected, sum(offsets.range_cardinality(*span) for offsets, span in spans))
        changes = sum(r.records for r in of) + merged
        yield PartitionAudit(topic, partition, start, end, changes, changes, 0, None, rejected - merged)


def _read_again(claimed: Claims) -> Iterator[Finding]:
    """Report the offsets that were committed, and so counted, more than once."""
    for (topic, partition), of in sorted(claimed.ranges.items()):
        if again := sum(len(claimed_again(ranges)) for ranges in by_topic_id(of).values()):
            sentence = (
                f"{counted(again, 'offset', 'was|were')} committed more than once, as after a reset: changes and dead "
                "letters count each time"
            )
            yield Finding(FindingKind.READ_AGAIN, again, sentence, f"{topic}-{partition}")


def _compared(  # noqa: PLR0913 - each source is an argument
    spec: StreamSpec,
    tables: StreamTables,
    table: Table,
    marker: Marker,
    claimed: Claims,
    *,
    window: Period | None = None,
    by_records: bool = False,
) -> Iterator[Finding]:
    """Merge Kafka's records of the claimed ranges, and all later ones, into the tables without a commit. Yields
    findings about the differences.

    `by_records` is whether commit records alone determine the number of rows of these ranges.
    """
    if marker.routed is not None and spec.route is None:
        sentence = (
            f"{counted(claimed.records, 'record')} of a stream that had a route: which of them belong to other tables "
            "is not known. Declare the route again to compare them with Kafka's records"
        )
        yield Finding(FindingKind.NOT_COMPARED, claimed.records, sentence, spec.name)
        return
    current = claimed.of_topics(marker.source.topic_ids)
    starts = {tp: min(r.start for r in of) for tp, of in current.items() if of and tp in marker.offsets}
    if former := sum(map(len, claimed.former_offsets(marker.source.topic_ids).values())):
        sentence = f"{counted(former, 'offset', 'is|are')} {OF_FORMER_TOPIC}"
        yield Finding(FindingKind.NOT_COMPARED, former, sentence, spec.name)
    if again := sum(max(0, max(r.end for r in current[tp]) - marker.offsets[tp]) for tp in starts):
        sentence = (
            f"the stream was moved back, and {counted(again, 'offset')} of it are yet to be read again: nothing is "
            "compared with their records. Audit again once the writer has caught up"
        )
        yield Finding(FindingKind.NOT_COMPARED, again, sentence, spec.name)
    with open_kafka(spec) as kafka:
        found = kafka.describe()
        why_not = {
            topic: why
            for topic in sorted({topic for topic, _ in starts})
            if (why := why_not_comparable(topic, marker.source, found.identity, spec))
        }
        first, ends = kafka.earliest(found.partitions), kafka.log_ends(found.partitions)
        starts = {tp: start for tp, start in starts.items() if tp in ends and tp[0] not in why_not}
        cut = cut_logs(kafka, marker, {tp: current[tp] for tp in starts})
    for topic, why in why_not.items():
        offsets = sum(len(claimed_offsets(of)) for tp, of in current.items() if tp[0] == topic)
        yield Finding(FindingKind.NOT_COMPARED, offsets, why, topic)
    for (topic, partition), offset in sorted(cut.items()):
        sentence = (
            f"Kafka's log was cut at offset {offset:,}, below what was committed: rows may have changes from there on "
            "that Kafka no longer has. `frazil reset STREAM --to marker` goes on there"
        )
        yield Finding(FindingKind.LOG_CUT, 1, sentence, f"{topic}-{partition}")
    every = claimed if window is None else claims(tables.journals, marker, table.metadata)
    read = {
        tp: _to_read(tp, start, every, marker) for tp, start in starts.items() if tp in ends and tp[0] not in why_not
    }
    yield from _gone_from_kafka(spec.name, {tp: (current[tp], read[tp]) for tp in read}, first, by_records=by_records)
    spans = {
        tp: [*offset_runs(offsets & offset_bitmap(begin, end), (begin, end))]
        for tp, offsets in sorted(read.items())
        for begin, end in [(first.get(tp, 0), max(first.get(tp, 0), ends[tp].stable))]
    }
    if any(spans.values()):
        sinks = Sinks.of(spec, tables, table, marker)
        yield from sinks.findings
        yield from _differences(Replay(spec, tables, sinks, found.identity.topic_ids, spans, [*why_not]))


def _to_read(tp: TopicPartition, start: int, every: Claims, marker: Marker) -> BitMap64:
    """Return the offsets from `start` to the marker whose records the audit must read again.

    Later records than the claimed ones are included, because a later record of a key replaces an earlier one. Leaves
    out offsets that a reset or `source.on-gap` skipped, and those that an operator gave up after a rollback.
    """
    ranges = every.of_topics(marker.source.topic_ids).get(tp, ())
    lost = accepted_loss(ranges, marker.given_up.get(tp, ()))
    up_to_marker = offset_bitmap(start, marker.offsets[tp])
    return (up_to_marker if every.gone else up_to_marker & claimed_offsets(ranges)) - lost


def _gone_from_kafka(
    stream: str,
    read: Mapping[TopicPartition, tuple[Sequence[CommittedRange], BitMap64]],
    first: Mapping[TopicPartition, int],
    *,
    by_records: bool,
) -> Iterator[Finding]:
    """Report the committed records that Kafka no longer has. `read` has the claimed ranges and the offsets to read."""
    gone = 0
    for tp, (ranges, offsets) in sorted(read.items()):
        before = offsets & claimed_offsets(ranges) & offset_bitmap(0, first.get(tp, 0))
        if before and by_records:
            sentence = checked_by_commit_records(len(before), first[tp])
            yield Finding(FindingKind.UNCHECKED, len(before), sentence, f"{tp[0]}-{tp[1]}")
        gone += min(len(before), sum(min(r.records + r.rejected, len(r.offsets & before)) for r in ranges))
    if gone and not by_records:
        were = "was" if gone == 1 else "were"
        sentence = f"{counted(gone, 'committed record', 'is|are')} gone from Kafka and {were} not compared"
        yield Finding(FindingKind.NOT_COMPARED, gone, sentence, stream)


def _differences(replay: Replay) -> Iterator[Finding]:
    stream = replay.spec.name
    with scratch_folder(stream) as folder:
        results, staged = replay.staged(folder)
        if values := sorted({value for result in results for value in result.values}):
            sentence = f"records of {counted(len(values), 'value')} have no table: {values[:3]}"
            yield Finding(FindingKind.NOT_COMPARED, len(values), sentence, stream)
        for target, table in replay.sinks.tables.items():
            changes = tuple(file for result in results for file in result.files if file.target == target)
            context = _merge_context(replay, staged, target, folder)
            subject = stream if target == "main" else target
            yield from _differences_of(replay, table, changes, context, subject)


def _merge_context(replay: Replay, staged: StageContext, target: Target, folder: Path) -> MergeContext:
    """Return the context of a merge of the staged records into a table. The merge is never committed."""
    table = replay.sinks.tables[target]
    rules = dataclasses.replace(
        merge_rules(replay.spec, table), how="merge-on-read", traced=False, landed=replay.tables.landed(table)
    )
    merged = target_table(table, folder=str(folder / "merged" / target))
    return MergeContext(replay.spec.name, rules, staged.targets[target], merged)


def _differences_of(
    replay: Replay, table: Table, changes: tuple[StagedFile, ...], context: MergeContext, subject: str
) -> Iterator[Finding]:
    done = _merged(table, changes, context)
    counts = sum((result.counts for _, result in done), Counts())
    if replay.spec.dedupe is None:
        yield from _of_keys(counts, _keys(done, context, replay.topics), replay.spec, subject, replay.not_read)
        return
    if missing := _inserted(done, changes, context):
        count = sum(map(len, missing.values()))
        where = "; ".join(f"{topic}-{partition} {at_offsets(of)}" for (topic, partition), of in sorted(missing.items()))
        verbs = "has no row and repeats none" if count == 1 else "have no row and repeat none"
        what = f"{counted(count, 'record')} of Kafka {verbs}: {where}"
        yield Finding(FindingKind.MISSING, count, what, subject)


def _inserted(
    done: Sequence[_Done], changes: Sequence[StagedFile], context: MergeContext
) -> dict[TopicPartition, BitMap64]:
    """Return the offsets of the rows that a merge of a stream with dedupe would add to the table.

    Leaves out rows without an event time: they never count as repeats, so every merge adds them again.
    """
    replaced = {path for _, result in done for path in result.replaced}
    written = [file.path for _, result in done for file in result.files]
    target, event_time = context.target, context.rules.event_time or ""
    columns = Schema.model_validate_json(target.schema_json).select(*COORDINATES, event_time)
    reader = Reader(load_file_io(dict(target.io), location=target.folder), target.properties)
    found = defaultdict[TopicPartition, BitMap64](BitMap64)
    for path in (*(file.path for file in changes if file.path not in replaced), *written):
        rows = reader.read_all(path, columns)
        timed = rows.filter(rows[event_time].is_valid()).select(COORDINATES)
        for batch in timed.to_batches():
            for tp, offsets in split_by_partition(batch):
                found[tp] |= BitMap64(offsets.tolist())
    return found


def _of_keys(
    counts: Counts, keys: ChangedKeys, spec: StreamSpec, subject: str, not_read: Sequence[str] = ()
) -> Iterator[Finding]:
    """Report the keys that a merge of all records would change.

    Records of the topics in `not_read` may have deleted other keys.
    """
    again = f". `frazil reset {spec.name} --to earliest`, then a run, merges Kafka's records again"
    late = LATE_AFTER_DELETE if spec.order_by else again
    for kind, count, which, what in (
        (
            FindingKind.NOT_COMPARED if not_read else FindingKind.MISSING,
            counts.inserted,
            keys.inserted,
            f"is not in the table; a record of {', '.join(not_read)}, which cannot be read, may have deleted it"
            if not_read
            else f"is not in the table, though Kafka's newest record of it is no delete{again}",
        ),
        (
            FindingKind.MISCOUNTED,
            counts.updated - keys.others_updated,
            keys.updated,
            f"has other values in the table than in Kafka's newest record of it{again}",
        ),
        (
            FindingKind.UNCLAIMED,
            counts.deleted - keys.others_deleted,
            keys.deleted,
            f"is in the table, though Kafka's newest record of it deletes it{late}",
        ),
    ):
        if count:
            sentence = f"{counted(count, 'key')}{_named(which, count)}: each {what}"
            yield Finding(kind, count, sentence, subject, which)
    if others := keys.others_updated + keys.others_deleted:
        of_records = "its row is of a record" if others == 1 else "their rows are of records"
        sentence = (
            f"{counted(others, 'key', 'is|are')} not compared: {of_records} that this audit does not read, such as "
            "another stream's"
        )
        yield Finding(FindingKind.NOT_COMPARED, others, sentence, subject)


def _named(keys: tuple[Key, ...], count: int) -> str:
    if not keys:
        return ""
    named = "; ".join(", ".join(f"{name} {value}" for name, value in key.items()) for key in keys)
    return f" ({named}{'; …' if count > len(keys) else ''})"


def _merged(table: Table, changes: tuple[StagedFile, ...], context: MergeContext) -> list[_Done]:
    rules = context.rules
    if not changes:
        return []
    plan = MERGING_MODES[context.changes.content].plan(table, changes, rules, parallelism=1)
    done = {task.index: (task, merge(context, task)) for task in plan.tasks}
    for last in plan.insert_tasks:
        maps = [BitMap64.deserialize(m) for i in last.after if (m := done[i][1].matched)]
        matched = BitMap64.union(*maps) if maps else BitMap64()
        task = last.task(matched.serialize())
        done[task.index] = task, merge(context, task)
    return [*done.values()]


def _keys(done: list[_Done], context: MergeContext, topics: set[str]) -> ChangedKeys:
    target = context.target
    reader = Reader(load_file_io(dict(target.io), location=target.folder), target.properties)
    return changed_keys(done, reader, Schema.model_validate_json(target.schema_json), context.rules.key, topics)
