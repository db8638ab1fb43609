"""Decides whether a backfill may commit and publish, and writes the error messages. Compares staged records with their
source and the tables. Pure, except `describe_interruption`, which checks whether the backfill's process is alive.
"""

from __future__ import annotations

import dataclasses
import json
import socket
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyroaring import BitMap64

from frazil.audit.claims import Claims, CommittedRange, claimed_offsets, group_by_topic_id
from frazil.backfill.request import BackfillRequest
from frazil.commit.backfill_records import BackfillMarker, branch_name
from frazil.commit.commit_checks import files_fit
from frazil.commit.history import ancestors
from frazil.commit.journal import Journal
from frazil.commit.marker import Marker
from frazil.commit.merging import MERGING_MODES
from frazil.errors import AdoptionRequired, BackfillAbandoned, Fenced, SpecError, StaleBatch, WriterBusy
from frazil.host.processes import is_alive
from frazil.host.records import ProcessMark
from frazil.ingest.contract import StagedFile, StageResult, Target
from frazil.offsets.spans import OffsetSets, Spans, TopicPartition, format_span, merge_spans, offset_bitmap, to_bitmaps
from frazil.offsets.tally import Tallies, get_offsets
from frazil.spec.model import StreamSpec
from frazil.spec.units import format_count, shorten_list
from frazil.table.branches import head_of, summary_value
from frazil.timetext import format_elapsed


def require_marker(spec: StreamSpec, marker: Marker | None) -> Marker:
    """Return the marker, which limits a backfill's offsets. Raises AdoptionRequired if the marker is None."""
    if marker is None:
        raise AdoptionRequired(
            f"stream {spec.name!r} has no marker in table {spec.table.identifier}, and a backfill reads only offsets "
            f"before the marker. Start the stream first (`frazil run {spec.name}`), if necessary with "
            "`source.start: latest`"
        )
    return marker


def check_no_replay(backfill: BackfillMarker | None) -> None:
    if backfill is not None and backfill.is_open and backfill.replays:
        raise WriterBusy(
            f"dead letters of stream {backfill.stream!r} are being replayed: wait until the replay has ended. If the "
            f"replay was interrupted, finish it with `{backfill.command}`"
        )


def check_no_backfill(backfill: BackfillMarker | None) -> None:
    if backfill is not None and backfill.is_open and not backfill.replays:
        raise WriterBusy(
            f"backfill {backfill.id} of stream {backfill.stream!r} is {backfill.state}: finish the backfill, or end it "
            f"with `frazil backfill {backfill.stream} --abandon`, before you replay dead letters"
        )


def next_epoch(backfill: BackfillMarker | None, request: BackfillRequest) -> BackfillMarker:
    """Return the next epoch's marker. Raises WriterBusy if another request's backfill is open."""
    check_run_not_abandoned(backfill, request.run)
    epoch = 1 + (backfill.epoch if backfill else 0)
    fields = request.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude={"run"})
    if backfill is None or not backfill.is_open:
        new = BackfillMarker(request.stream, f"{request.digest}-{epoch}", fields, request.digest, epoch)
        new = dataclasses.replace(new, abandoned_runs=backfill.abandoned_runs if backfill else ())
        return new.with_epoch(epoch, request.run)
    if backfill.digest != request.digest:
        check_no_replay(backfill)
        verb = "publish" if backfill.stays_on_branch else "finish"
        raise WriterBusy(
            f"another backfill of stream {request.stream!r} is {backfill.state}: {backfill.id}. To {verb} it: "
            f"`{backfill.command}`. To remove it: `frazil backfill {request.stream} --abandon`"
        )
    return dataclasses.replace(backfill.with_epoch(epoch, request.run), request=fields)


def check_run_not_abandoned(last: BackfillMarker | None, run: str | None) -> None:
    """Raise BackfillAbandoned if an operator abandoned this run's backfill. `last` is the last backfill, if any."""
    if last is not None and run is not None and run in last.abandoned_runs:
        event = f"an operator abandoned the backfill that run {run} had begun on stream {last.stream!r}"
        raise BackfillAbandoned(_abandoned_message(event))


def check_not_abandoned(last: BackfillMarker | None, backfill_id: str) -> None:
    """Raise BackfillAbandoned if an operator abandoned this backfill. `last` is the stream's last backfill, if any."""
    if last is not None and last.id == backfill_id and last.abandoned_by:
        event = f"{last.abandoned_by} abandoned the {operation_name(last)} {last.id} of stream {last.stream!r}"
        raise BackfillAbandoned(_abandoned_message(event))


def _abandoned_message(event: str) -> str:
    return (
        f"{event}: its rows were not published, and it does not restart by itself. To run it after all, trigger a new "
        "run, or run the command again"
    )


def check_owned(current: BackfillMarker | None, backfill: BackfillMarker) -> BackfillMarker:
    """Return the current marker. Raises BackfillAbandoned, or Fenced if this epoch no longer owns the backfill."""
    check_not_abandoned(current, backfill.id)
    if current is None or (current.id, current.epoch) != (backfill.id, backfill.epoch) or not current.is_open:
        state = "no longer exists" if current is None else f"is {current.id}, epoch {current.epoch}, {current.state}"
        raise Fenced(replaced_message(backfill, f"the last backfill {state}"))
    return current


def replaced_message(backfill: BackfillMarker, evidence: str) -> str:
    if backfill.replays:
        return (
            f"another `{backfill.command}` took over this replay, or an operator abandoned it: this command "
            f"makes no further changes. If no other command is running, run it again ({evidence})"
        )
    return (
        f"another run took over backfill {backfill.id} of stream {backfill.stream!r} from this run (epoch "
        f"{backfill.epoch}): {evidence}. See `frazil backfill {backfill.stream} --status`"
    )


def operation_name(backfill: BackfillMarker) -> str:
    return "replay of dead letters" if backfill.replays else "backfill"


def lost_races_message(backfill: BackfillMarker, lost: str) -> str:
    return (
        f"{lost}. If the other writer is the stream's own, run `frazil pause {backfill.stream}`, then "
        f"`{backfill.command}` to finish, then `frazil resume {backfill.stream}`"
    )


def read_further_message(backfill: BackfillMarker) -> str:
    return (
        f"the writer of stream {backfill.stream!r} has read more records since backfill {backfill.id} was staged. They "
        "may delete rows that the backfill would restore, so nothing was published. Run `frazil pause "
        f"{backfill.stream}`, run the backfill again to stage the rest, then run `frazil resume {backfill.stream}`"
    )


def ended_during_start_message(backfill: BackfillMarker) -> str:
    return (
        f"another {operation_name(backfill)} of stream {backfill.stream!r}, {backfill.id}, ended while this command "
        f"was starting (it is {backfill.state}). This command changed nothing: run it again"
    )


def already_ended_message(backfill: BackfillMarker, last: BackfillMarker | None) -> str:
    kind = operation_name(backfill)
    state = (
        f"The stream's last {kind} is {last.id} ({last.state})" if last else f"The table no longer records any {kind}"
    )
    return (
        f"nothing was changed: the {kind} {backfill.id} of stream {backfill.stream!r} had already ended. {state}. "
        f"To see whether {backfill.id} was published, open *Events* on the page"
    )


def check_files_fit(table: Table, files: tuple[StagedFile, ...] | list[StagedFile], backfill: BackfillMarker) -> None:
    """Check that the table still has the schema and the partition spec of the files. Raises StaleBatch."""
    if not files_fit(table.metadata, files):
        raise StaleBatch(
            f"backfill {backfill.id} was staged for a schema or partition spec that the table no longer has. It is "
            "now staged again"
        )


def check_declared_mode(files: Collection[StagedFile], *, merges: bool, backfill: BackfillMarker) -> None:
    """Raise StaleBatch if the files were staged for a mode other than the declared one."""
    if any((file.content in MERGING_MODES) != merges for file in files):
        raise StaleBatch(
            f"backfill {backfill.id} was staged for a different mode: the declared mode of stream "
            f"{backfill.stream!r} has changed"
        )


def check_no_open_windows(marker: Marker | None, files: Collection[StagedFile], *, table: str) -> None:
    """Check that the stream's open branch has no rows, because a merge would not find them. Raises SpecError."""
    if marker and marker.open_snapshot_id is not None and any(file.content in MERGING_MODES for file in files):
        raise SpecError(
            f"stream {marker.stream!r} still has rows on its open branch, from an earlier declaration with "
            f"commit.align. The writer's next batch moves them to table {table}. Replay the dead letters after that"
        )


def check_not_reset(table: Table, stream: str, audited_at: int, backfill: BackfillMarker) -> None:
    """Check that the live stream was neither reset nor rolled back since the audit. Raises StaleBatch."""
    for snapshot in ancestors(table.metadata):
        if snapshot.snapshot_id == audited_at:
            return
        is_own = summary_value(snapshot, "frazil.stream") == stream
        if is_own and summary_value(snapshot, "frazil.operation") in {"reset", "adopt", "forget"}:
            break
    raise StaleBatch(
        f"stream {stream!r} was reset, or its table was rolled back, since backfill {backfill.id} was audited"
    )


MAX_NAMED_RANGES = 6
COMMIT_TIMEOUT_MS = timedelta(minutes=15) // timedelta(milliseconds=1)
"""Time without a commit after which a backfill of another host counts as interrupted."""


def describe_progress(last: BackfillMarker, metadata: TableMetadata, *, now_ms: int) -> str:
    kind, chunks = "replay" if last.replays else "backfill", f"{last.chunks:,} of {max(last.planned, last.chunks):,}"
    problem = describe_interruption(last, metadata, now_ms=now_ms)
    return f"{kind} {last.id}: {last.state}, {chunks} chunks" + (f"; {problem}" if problem else "")


def describe_interruption(last: BackfillMarker, metadata: TableMetadata, *, now_ms: int) -> str | None:
    """Return why an open backfill makes no progress, and what to do; None if it may be running."""
    if not last.is_open:
        return None
    remedy = f"To remove it: `frazil backfill {last.stream} --abandon`"
    if last.stays_on_branch:
        return f"its rows are not published. To publish them: `{last.command}`. {remedy}"
    ways = f"to finish it: `{last.command}`. {remedy}"
    worker, head = last.worker, head_of(metadata, branch_name(last.stream))
    if worker is not None and worker.host == socket.gethostname():
        alive = is_alive(ProcessMark(worker.pid, worker.started_at_s))
        return None if alive else f"its run failed or was interrupted; {ways}"
    quiet_ms = now_ms - head.timestamp_ms if head else 0
    if quiet_ms < COMMIT_TIMEOUT_MS:
        return None
    where = f"process {worker.pid} of host {worker.host}" if worker else "an unknown process"
    return f"no commit for {format_elapsed(quiet_ms)} by {where}. If the process has ended, {ways}"


def find_complete_ranges(
    requested: Spans, claimed: Mapping[TopicPartition, tuple[CommittedRange, ...]], tallies: Sequence[Tallies]
) -> dict[TopicPartition, BitMap64]:
    """Return the offsets of committed ranges that are completely in the tables. Skips partial backfills."""
    complete = defaultdict[TopicPartition, BitMap64](BitMap64)
    for tp in requested.keys() & claimed.keys():
        present = _seen_in_any(tallies, tp)
        for r in claimed[tp]:
            if not r.selects and present.range_cardinality(r.start, r.end) >= r.records + r.rejected:
                complete[tp] |= offset_bitmap(r.start, r.end)
    return complete


def check_not_recreated(requested: Spans, claimed: Claims, topic: str, *, topic_ids: Mapping[str, str]) -> None:
    """Check that the requested offsets were committed from one topic. Raises SpecError, which names the first free
    offsets.
    """
    committed: dict[str, dict[int, BitMap64]] = defaultdict(dict)
    for (name, partition), offsets in to_bitmaps(requested).items():
        ranges = group_by_topic_id(claimed.ranges.get((name, partition), ())) if name == topic else {}
        for found, of_topic in ranges.items():
            if present := claimed_offsets(of_topic) & offsets:
                committed[found][partition] = present
    if len(committed) <= 1:
        return
    held = [
        f"{topic}-{partition} {format_span(offsets.min(), offsets.max() + 1)}"
        f" ({'this topic' if found == topic_ids.get(topic, '') else 'an earlier topic'})"
        for found, partitions in committed.items()
        for partition, offsets in sorted(partitions.items())
    ]
    former = sorted(claimed.former_offsets(topic_ids).items())
    free_from = {tp[1]: offsets.max() + 1 for tp, offsets in former if tp[0] == topic and offsets}
    is_free = any(tp[0] == topic and spans[-1][1] > free_from.get(tp[1], 0) for tp, spans in requested.items())
    ends = json.dumps({topic: {str(partition): end for partition, end in free_from.items()}})
    raise SpecError(
        f"the topic {topic!r} was recreated, and table rows of the requested offsets came from several topics of this "
        f"name: {', '.join(shorten_list(held, MAX_NAMED_RANGES, 'range'))}. frazil cannot determine which of them "
        "are missing",
        remedy=f"Begin after the earlier topic's offsets: --from '{ends}'"
        if is_free
        else f"No requested offset is free: the first one after the earlier topic's offsets is {ends}, and the stream "
        "has not read it yet",
    )


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
    staged_now = (staged.rows, staged.dead_letters)
    stored = {tp: _seen_in_any(staged_now, tp) for tp in staged.rows.keys() | staged.dead_letters}
    return sum(len(offsets & _seen_in_any(staged.table_tallies, tp)) for tp, offsets in stored.items())


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
            where = f", the first at offset {lost.min():,}" if lost else ""
            problems.append(f"{tp[0]}-{tp[1]}: {len(lost):,} records of the source are not on the branch{but}{where}")
    return problems


def find_rows_in_other_tables(staged: Mapping[Target, Tallies], tables: Mapping[Target, Tallies]) -> Iterator[str]:
    """Yield a message for each table that has rows of records which are now staged for another table."""
    for target, tallies in staged.items():
        for other in tables.keys() - {target}:
            if rows := sum(len(tally.seen & get_offsets(tables[other], tp)) for tp, tally in tallies.items()):
                records = format_count(rows, "record")
                yield f"table {other} has {records} for table {target}, from an earlier declaration of the route"


def _seen_in_any(tallies: Iterable[Tallies], tp: TopicPartition) -> BitMap64:
    return BitMap64.union(BitMap64(), *(get_offsets(tally, tp) for tally in tallies))
