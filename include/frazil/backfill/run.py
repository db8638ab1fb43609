"""Runs a backfill: finds missing records, stages them on a branch, audits them, and publishes them.

Each run plans again, and skips records that are already staged. To continue an interrupted backfill, run it again.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyiceberg.table import Table

from frazil import clock
from frazil.audit.claims import Claims, load_all_claims
from frazil.audit.routed_tables import PublishedReplays, read_routed_rows
from frazil.backfill.commit import BackfillCommitter, abandon, finish_ended_backfill
from frazil.backfill.files import FileSource
from frazil.backfill.request import (
    BackfillRequest,
    can_delete_rows,
    check_coordinates,
    check_not_in_future,
    check_restores_no_deleted_rows,
)
from frazil.backfill.routes import (
    BackfillRoute,
    offsets_without_dead_letters,
    staged_files,
    tally_files_to_merge,
    tally_former_dead_letters,
    tally_routed,
)
from frazil.backfill.rules import (
    StagedRecords,
    check_declared_mode,
    check_not_abandoned,
    check_not_recreated,
    check_run_not_abandoned,
    count_already_stored,
    find_complete_ranges,
    find_problems,
    find_rows_in_other_tables,
    next_epoch,
    read_further_message,
    require_marker,
    staged_spans,
)
from frazil.backfill.source import KafkaSource, missing_spans
from frazil.commit.backfill_records import BackfillMarker, BackfillRecord, BackfillState, branch_name, committed_chunks
from frazil.commit.commit_checks import check_same_source
from frazil.commit.marker import BatchKey, Marker, open_branch_name, read_marker
from frazil.commit.open_streams import OpenStream, open_kafka, open_read_only, open_stream
from frazil.commit.stream_tables import StreamTables
from frazil.errors import FrazilError, RouteBehind, SpecError, StaleBatch, WriterBusy
from frazil.host.supervision import start_hint
from frazil.ingest.contract import StageContext, Target
from frazil.kafka.admin import TIMEOUT_S
from frazil.offsets.spans import Offsets, OffsetSets, SourceIdentity, Spans, to_bitmaps, union_offsets
from frazil.offsets.tally import OffsetTally, Tallies, merge_tallies, seen_offsets
from frazil.partitions.window_rows import count_by_window
from frazil.partitions.windows import Grain
from frazil.spec.formats import envelope_of
from frazil.spec.model import StreamSpec
from frazil.spec.references import executor_kafka_properties, resolve_kafka_properties
from frazil.spec.units import format_count
from frazil.stream.stage_context import build_stage_context
from frazil.table.branches import MAIN, head_of
from frazil.table.landed_offsets import RowSelection, has_coordinates, tally_rows
from frazil.table.tables import check_rows_fit

log = logging.getLogger(__name__)

MAX_SPANS = 10_000
"""Maximum number of offset spans in a backfill from Kafka, which reads each span separately."""
MAX_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class BackfillPlan:
    spans: Spans
    requested: int
    """Number of requested offsets in Kafka, or of records in files. Includes records that the tables already have."""
    source: SourceIdentity


@dataclass(frozen=True, slots=True)
class _AuditResult:
    snapshot_id: int
    """The id of main's snapshot with which the staged records were compared; -1 if main had none."""
    replayed: Tallies = field(default_factory=dict)
    """The offsets of dead letters that the publication turns into rows or changes; empty for a backfill."""
    routed: Mapping[Target, Tallies] = field(default_factory=dict)
    """The part of `replayed` with rows for routed tables, by table."""
    read_to: Offsets | None = None
    """The stream's position, which must not change before the publication; None if it may change."""


@dataclass(slots=True)
class Backfill:
    """One backfill request on one stream whose table exists."""

    request: BackfillRequest
    opened: OpenStream
    source: KafkaSource | FileSource
    route: BackfillRoute | None = None
    """The stream's route; None without a route, or if opened read-only, because plans do not need it."""
    epoch: int = 0
    """The last epoch that this run began; 0 if it has begun none."""
    backfill_id: str = ""
    """The id of the last backfill that this run began or continued."""

    @property
    def spec(self) -> StreamSpec:
        return self.opened.spec

    def last(self) -> BackfillMarker | None:
        """Return the marker of this request's backfill; None if the last backfill was for another request."""
        last = self.opened.tables.last_backfill()
        return last if last and last.digest == self.request.digest else None

    def plan(self, last: BackfillMarker | None = None) -> BackfillPlan:
        """Find the missing records that the open backfill `last` has not staged. Changes nothing."""
        table, marker = self._load_table_and_marker()
        identity = self.source.identity(marker.source)
        check_same_source(marker.source, identity, stream=self.spec.name)
        requested = self.source.find_requested_spans(self.request, marker)
        claimed = load_all_claims(self.opened.tables.journals, marker, table.metadata)
        if not self.request.dead_letters:
            for topic in _topics(requested):
                check_not_recreated(requested, claimed, topic, topic_ids=identity.topic_ids)
        staged = committed_chunks(self.opened.tables.journals, last) if last and last.is_open else []
        present = [to_bitmaps(staged_spans(staged))]
        if self.request.dead_letters:
            present.append(offsets_without_dead_letters(requested, self._tally_dead_letters(requested, marker.source)))
        if not self._is_decided_by_dead_letters:
            *rows, dead_letters = tallies = self._tally_tables(table, marker, requested, claimed)
            complete = find_complete_ranges(requested, claimed.ranges, tallies) if self.source.is_whole else {}
            present += [complete, seen_offsets(dead_letters)]
            exact = self._find_missing(requested, [*present, *map(seen_offsets, rows)])
            if sum(map(len, exact.values())) <= MAX_SPANS or not self._drops_reread_rows(table):
                return self._build_plan(exact, requested, identity)
        return self._build_plan(self._find_missing(requested, present), requested, identity)

    def _find_missing(self, requested: Spans, offset_sets: Sequence[OffsetSets]) -> Spans:
        """Return the requested offsets that no set has. A replay's spans include offsets that no copied record has."""
        present = union_offsets(offset_sets)
        if self.request.dead_letters:
            copied = self.source.records(requested)
            present = {tp: offsets & copied[tp] for tp, offsets in present.items() if tp in copied}
        return self.source.select_with_records(missing_spans(requested, present))

    def _build_plan(self, missing: Spans, requested: Spans, identity: SourceIdentity) -> BackfillPlan:
        if sum(map(len, missing.values())) > MAX_SPANS and not self.source.files:
            raise SpecError(
                f"the records of stream {self.spec.name!r} that table {self.spec.table.identifier} is missing are in "
                f"more than {MAX_SPANS:,} separate offset ranges: request a smaller range, or delete the rows in the "
                "range first"
            )
        return BackfillPlan(missing, self.source.max_records(requested), identity)

    def _drops_reread_rows(self, table: Table) -> bool:
        """Return whether `dedupe` would drop every row that is read again, because every row has an event time."""
        column = table.schema().find_field(self.spec.event_time.column)
        return self.spec.sinks.mode.drops_repeats and column.required and not self.request.dead_letters

    def context(self, tables: StreamTables, key: BatchKey, topic_ids: Mapping[str, str]) -> StageContext:
        properties = executor_kafka_properties(self.spec, os.environ)
        context = build_stage_context(self.spec, tables, key, kafka_properties=properties, topic_ids=topic_ids)
        if self.route:
            context = self.route.add_targets(context, tables, key)
        return self.source.context(dataclasses.replace(context, event_times_us=self.request.event_times_us))

    def publish(self) -> BackfillMarker | None:
        """Audit the staged records, and publish them unless the target is the branch. Returns None if none are staged.

        If the stream was reset or the table changed, drops the staged records and raises StaleBatch. Raises
        BackfillAbandoned, and FrazilError if the audit fails.
        """
        self.check_run_not_abandoned()
        last = self.last()
        if last is None:
            return None
        check_not_abandoned(last, last.id)
        if last.state is BackfillState.ABANDONED:
            raise FrazilError(f"backfill {last.id} was dropped because its records became unusable: run it again")
        if last.state is BackfillState.STAGING:
            raise FrazilError(
                f"backfill {last.id} is not staged yet ({format_count(last.chunks, 'chunk')}): run it again to "
                "finish it"
            )
        if last.state is BackfillState.PUBLISHED:
            finish_ended_backfill(self.opened.tables)
            return last
        for attempt in range(MAX_ATTEMPTS):
            try:
                committer = self.begin(last)
                audited = self._run_audit(committer)
                if self.request.target == "branch":
                    return committer.backfill
                routed = {target: seen_offsets(tallies) for target, tallies in audited.routed.items()}
                late, replayed = self._count_late_rows(), seen_offsets(audited.replayed)
                record = BackfillRecord(committer.backfill, late, replayed, routed)
                return committer.publish(record, audited_at=audited.snapshot_id, read_to=audited.read_to)
            except StaleBatch as stale:
                log.warning("%s", stale)
                if attempt == MAX_ATTEMPTS - 1:
                    self.drop()
                    raise
        raise AssertionError

    def begin(self, last: BackfillMarker | None) -> BackfillCommitter:
        """Begin the next epoch of the backfill, or a new backfill. Raises the errors of `BackfillCommitter.begin`."""
        continuing_id = last.id if last and last.is_open else None
        self.backfill_id = continuing_id or self.backfill_id
        committer = BackfillCommitter.begin(self.opened.tables, self.request, continuing_id=continuing_id)
        self.epoch, self.backfill_id = committer.backfill.epoch, committer.backfill.id
        return committer

    def drop(self) -> None:
        """Drop the staged records, which have become unusable. Raises the errors of `check_not_abandoned`."""
        if (last := self.last()) and last.is_open:
            abandon(self.opened.tables, last)
        self.check_run_not_abandoned()

    def drop_if_empty(self) -> None:
        """Drop the backfill if no run has staged records of it, and its epoch is still this run's."""
        last = self.last()
        if last and last.is_open and last.epoch == self.epoch and not last.chunks:
            abandon(self.opened.tables, last)

    def check_run_not_abandoned(self) -> None:
        """Raise BackfillAbandoned if an operator abandoned the backfill of this run, or of its earlier attempt."""
        last = self.opened.tables.last_backfill()
        check_not_abandoned(last, self.backfill_id)
        check_run_not_abandoned(last, self.request.run)

    def check(self) -> None:
        """Check that the stream can be backfilled, before Spark starts.

        Raises AdoptionRequired, SpecError, WriterBusy if another backfill is open, and SchemaIncompatible if rows of a
        new backfill would not fit the tables.
        """
        table, _ = self._load_table_and_marker()
        next_epoch(self.opened.tables.last_backfill(), self.request)
        if not ((last := self.last()) and last.is_open):
            check_rows_fit(table, self.opened.tables.dead_letters.refresh(), self.spec, start_hint=start_hint)

    def _load_table_and_marker(self) -> tuple[Table, Marker]:
        table = self.opened.tables.main.refresh()
        marker = require_marker(self.spec, read_marker(table.metadata.properties, self.spec.name))
        check_coordinates(self.spec, table_has_coordinates=has_coordinates(table.schema()))
        return table, marker

    def _tally_tables(
        self, table: Table, marker: Marker, spans: Spans, claimed: Claims | None = None
    ) -> tuple[Tallies, ...]:
        """Collect the offsets of rows on main, on the open branch and in routed tables, and of dead letters.

        Omits rows of an upsert stream, because later records may have replaced these rows. A replay reads dead letters,
        so it omits their offsets, and the offsets of a deleted topic of the same name.
        """
        if self.request.dead_letters:
            claimed = claimed or load_all_claims(self.opened.tables.journals, marker, table.metadata)
            spans = missing_spans(spans, claimed.former_offsets(marker.source.topic_ids))
        dead_letters: Tallies = {} if self.request.dead_letters else self._tally_dead_letters(spans, marker.source)
        if self.spec.sinks.mode.replaces_rows:
            return (dead_letters,)
        selection = RowSelection(_topics(spans), spans)
        open_windows = dataclasses.replace(selection, branch=open_branch_name(self.spec.name))
        rows = (tally_rows(table, selection), tally_rows(table, open_windows))
        return (*rows, *self._tally_routed(table, marker, spans, claimed).values(), dead_letters)

    def _tally_routed(
        self, table: Table, marker: Marker, spans: Spans, claimed: Claims | None = None
    ) -> dict[Target, Tallies]:
        """Return the offsets of each routed table's rows, including waiting rows. Raises RouteBehind on errors."""
        if marker.routed is None:
            return {}
        tables, names = self.opened.tables, self.spec.sinks.named_tables
        claimed = claimed or load_all_claims(tables.journals, marker, table.metadata)
        replays = PublishedReplays.load(tables, table)
        routed = read_routed_rows(tables, marker, claimed, within=spans, replays=replays, candidate_names=names)
        if problems := [f"{entry.target}: {entry.problem}" for entry in routed if entry.problem]:
            raise RouteBehind(
                f"cannot backfill stream {self.spec.name!r}: the rows of a routed table cannot be determined. "
                f"{problems[0]}"
            )
        return {entry.renamed or entry.target: entry.rows for entry in routed}

    def _tally_dead_letters(self, spans: Spans, source: SourceIdentity) -> Tallies:
        """Collect the offsets of the stream's dead letters. For a replay, discarded dead letters are left out."""
        counts_discarded = not self.request.dead_letters
        selection = RowSelection(_topics(spans), spans, source.topic_ids, self.spec.name, discarded=counts_discarded)
        return tally_rows(self.opened.tables.dead_letters.refresh(), selection)

    @property
    def _is_decided_by_dead_letters(self) -> bool:
        """Whether a replay must write exactly the records that are still dead letters."""
        return self.request.dead_letters is not None and (
            self.spec.sinks.mode.merges or self.spec.sinks.has_routed_tables
        )

    def _run_audit(self, committer: BackfillCommitter) -> _AuditResult:
        """Run the audit. If it fails because the backfill was abandoned, raises BackfillAbandoned."""
        try:
            return self._audit(committer)
        except StaleBatch:
            raise
        except (OSError, FrazilError):
            self.check_run_not_abandoned()
            raise

    def _audit(self, committer: BackfillCommitter) -> _AuditResult:
        """Compare the staged records with main, journals and source.

        Raises FrazilError; StaleBatch if some of the records have landed in the meantime.
        """
        table, marker = self._load_table_and_marker()
        journals = tuple(committer.journals())
        spans = staged_spans(journals)
        merges = self.spec.sinks.mode.merges
        check_declared_mode(staged_files(journals, "main"), merges=merges, backfill=committer.backfill)
        branch = RowSelection(_topics(spans), spans, branch=branch_name(self.spec.name))
        routed: dict[Target, Tallies] = {**tally_routed(table, journals)}
        default = merge_tallies([tally_rows(table, branch), tally_files_to_merge(table, journals)])
        rows = merge_tallies([default, *routed.values()])
        if self.spec.sinks.mode.replaces_rows:  # a record may have several changes, which are always committed together
            rows = {tp: OffsetTally([*tally.seen]) for tp, tally in rows.items()}
        table_tallies: tuple[Tallies, ...] = ()
        if not self._is_decided_by_dead_letters:
            table_tallies = self._tally_tables(table, marker, spans)[-1 if self._drops_reread_rows(table) else 0 :]
        if self.request.dead_letters:
            former = tally_former_dead_letters(rows, self._tally_dead_letters(spans, marker.source))
            table_tallies = (*table_tallies, former)
        # Some records may change no row, such as deletes whose routing value has no table.
        deletes = self.spec.sinks.mode.replaces_rows and self.spec.sinks.has_routed_tables and not self.request.files
        may_skip = deletes or envelope_of(self.spec.source.format) is not None
        is_whole = self.request.event_times_us is None and not may_skip
        staged = StagedRecords(
            journals,
            rows=rows,
            dead_letters=tally_rows(self.opened.tables.dead_letters.current(), branch),
            table_tallies=table_tallies,
            source=self.source.records(spans) if is_whole else None,
        )
        if landed := count_already_stored(staged):
            raise StaleBatch(
                f"{format_count(landed, 'record')} of backfill {committer.backfill.id} were added to the table while "
                "the backfill was staged"
            )
        problems = find_problems(staged)
        if self.spec.sinks.mode.replaces_rows and not self.request.dead_letters:
            name = self.opened.tables.main.identifier
            tables: dict[Target, Tallies] = {name: tally_rows(table, dataclasses.replace(branch, branch=MAIN))}
            tables.update(self._tally_routed(table, marker, spans))
            problems += find_rows_in_other_tables({name: default, **routed}, tables)
        if problems:
            raise FrazilError(
                f"backfill {committer.backfill.id} is not published: {'; '.join(problems)}. Abandon it with "
                f"`frazil backfill {self.spec.name} --abandon`, and run it again"
            )
        head = head_of(table.metadata)
        audited_at = head.snapshot_id if head else -1
        if self.request.dead_letters:
            return _AuditResult(audited_at, rows, routed)
        return _AuditResult(audited_at, read_to=self._position_to_keep(committer.backfill, marker))

    def _position_to_keep(self, backfill: BackfillMarker, marker: Marker) -> Offsets | None:
        """Return the position that the stream must keep until publication; None if the position may advance.

        Raises WriterBusy if the stream has read further than the backfill.
        """
        if self.request.target == "branch" or not can_delete_rows(self.spec):
            return None
        if self.plan(backfill).spans:
            raise WriterBusy(read_further_message(backfill))
        return marker.offsets

    def _count_late_rows(self) -> dict[int, int]:
        """Count the rows on the branch by window start (us since 1970), to reopen complete windows."""
        table = self.opened.tables.main.refresh()
        head = head_of(table.metadata, branch_name(self.spec.name))
        if head is None or self.spec.window is None:
            return {}
        column, grain = self.spec.event_time.column, Grain(self.spec.window)
        return count_by_window(table, column=column, grain=grain, snapshot_id=head.snapshot_id)


def _topics(spans: Spans) -> set[str]:
    return {topic for topic, _ in spans}


@contextmanager
def open_backfill(
    spec: StreamSpec, request: BackfillRequest, *, kafka_timeout_s: float = TIMEOUT_S, read_only: bool = False
) -> Iterator[Backfill]:
    """Open the request's stream and source. With `read_only`, nothing is changed. Raises SpecError."""
    check_coordinates(spec)
    check_restores_no_deleted_rows(spec, request)
    check_not_in_future(request, clock.now_ms())
    opened = open_read_only(spec) if read_only else open_stream(spec)
    route = None if read_only else BackfillRoute.open(spec, opened.tables)
    if request.files:
        files = FileSource.open(request.files, opened.tables.main.current(), opened.spec)
        yield Backfill(files.with_listing(request), opened, files, route)
    else:
        with open_kafka(spec, timeout_s=kafka_timeout_s) as kafka:
            yield Backfill(request, opened, KafkaSource(kafka, resolve_kafka_properties(spec, os.environ)), route)
