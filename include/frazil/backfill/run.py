"""A backfill from request to publication: find what is missing, stage it in chunks on a branch, audit, publish.

An interrupted backfill continues when it is run again: every run plans again, and counts what was staged as held. It
neither waits for the live stream's writer nor makes it wait.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyiceberg.table import Table
from pyroaring import BitMap64

import frazil.pyiceberg_fixes.data_files  # noqa: F401 - reads data files
from frazil import clock
from frazil.audit.claims import Claims, claims
from frazil.backfill import audit as backfill_audit
from frazil.backfill.audit import Staged, spans_of
from frazil.backfill.changes import gone, settled_meanwhile, tally_changes
from frazil.backfill.commit import BackfillCommitter, abandon, clear_ended
from frazil.backfill.eligible import check_backfilled, check_coordinates
from frazil.backfill.files import FileSource
from frazil.backfill.plan import missing
from frazil.backfill.request import BackfillRequest, check_not_ahead
from frazil.backfill.routes import LettersRoute, tally_routed
from frazil.backfill.rules import (
    check_begun,
    check_declared,
    check_not_abandoned,
    check_wanted,
)
from frazil.backfill.source import KafkaSource, RecordSource
from frazil.commit.backfill_marker import BackfillMarker, BackfillState, branch_name, read_backfill
from frazil.commit.backfill_records import Record
from frazil.commit.backfill_records import chunks as staged_chunks
from frazil.commit.journal import Journal
from frazil.commit.marker import BatchKey, Marker, open_branch, read_marker
from frazil.commit.mode import merging_mode
from frazil.commit.opened import OpenStream, open_kafka, open_stream, read_stream
from frazil.commit.rules import check_same_source
from frazil.commit.stream_tables import StreamTables
from frazil.errors import FrazilError, SpecError, StaleBatch
from frazil.ingest.contract import StageContext, Target
from frazil.kafka.admin import TIMEOUT_S
from frazil.kafka.identity import SourceIdentity
from frazil.offsets.spans import Spans, TopicPartition, between
from frazil.offsets.tally import OffsetTally, Tallies, seen, together
from frazil.partitions.windows import Grain
from frazil.spec.model import StreamSpec
from frazil.spec.references import executors_kafka_properties, kafka_properties
from frazil.spec.topics import named
from frazil.spec.units import counted
from frazil.stream.stage_context import stage_context
from frazil.table.branches import head_of
from frazil.table.landed_offsets import Wanted, has_coordinates, tally

log = logging.getLogger(__name__)

MAX_SPANS = 10_000
"""Each span is read separately; with more, deleting the rows in between first is faster."""
ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class BackfillPlan:
    """What a backfill reads."""

    spans: Spans
    asked: int
    """Requested offsets in Kafka, or records in files, including those that landed already."""
    source: SourceIdentity


@dataclass(frozen=True, slots=True)
class _Audited:
    """What an audit found, for the commit that publishes."""

    at: int
    """The snapshot of main that was compared."""
    replayed: Tallies
    """The offsets that become rows or changes when a replay is published; empty for a backfill."""
    routed: Mapping[Target, Tallies]
    """The part of `replayed` whose rows are for routed tables."""


@dataclass(slots=True)
class Backfill:
    """One request on one stream whose table exists."""

    request: BackfillRequest
    opened: OpenStream
    source: RecordSource
    route: LettersRoute | None = None
    """The route, if dead letters of a stream with a route are replayed."""
    epoch: int = 0
    """The last epoch that this run began."""
    held: str = ""
    """The id of the last backfill that this run began or continued."""

    @property
    def spec(self) -> StreamSpec:
        return self.opened.spec

    def last(self) -> BackfillMarker | None:
        """Return this request's backfill; None if the stream's last backfill was for another request."""
        found = _last_backfill(self.opened)
        return found if found and found.digest == self.request.digest else None

    def plan(self, last: BackfillMarker | None = None) -> BackfillPlan:
        """Find what is missing, without what an open `lane` has staged. Changes nothing.

        Raises SpecError if the table's rows do not identify their records, or a file cannot be used; AdoptionRequired,
        TopicRecreated, KafkaUnavailable.
        """
        table, marker = self._table_and_marker()
        identity = self.source.identity(marker.source)
        check_same_source(marker.source, identity, stream=self.spec.name)
        wanted = self.source.asked(self.request, marker)
        claimed = claims(self.opened.tables.journals, marker, table.metadata)
        self._check_one_generation(wanted, claimed)
        if self._by_letters:
            held = self._gone(wanted, marker.source)
        else:
            trusted = claimed.ranges if self.source.is_whole else {}
            held = backfill_audit.held(wanted, claimed=trusted, tallies=self._tallies(table, wanted, marker.source))
            if self.request.dead_letters:
                held = {tp: offsets | held[tp] for tp, offsets in self._gone(wanted, marker.source).items()}
        staged = staged_chunks(self.opened.tables.journals, last) if last and last.is_open else []
        for tp, spans in spans_of(staged).items():
            for span in spans:
                held[tp] = held.get(tp, between(0, 0)) | between(*span)
        left = self.source.holding(missing(wanted, held))
        if sum(map(len, left.values())) > MAX_SPANS:
            raise SpecError(
                f"what table {self.spec.table.identifier} lacks of stream {self.spec.name!r} is in more than "
                f"{MAX_SPANS:,} pieces: ask for less, or delete the rows of that range first"
            )
        return BackfillPlan(left, self.source.at_most(wanted), identity)

    def context(self, tables: StreamTables, key: BatchKey, topic_ids: Mapping[str, str]) -> StageContext:
        """Return a chunk's context. Its dead letters stay out of their table until publication, so they do not count as
        held.
        """
        properties = executors_kafka_properties(self.spec, os.environ)
        context = stage_context(self.spec, tables, key, kafka_properties=properties, topic_ids=topic_ids)
        if self.route:
            context = self.route.placed(context, tables, key)
        return self.source.context(dataclasses.replace(context, event_times_us=self.request.event_times_us))

    def publish(self) -> BackfillMarker | None:
        """Audit the staged records, and publish them unless the target is the branch. None if nothing was staged.

        Raises StaleBatch if the stream was reset or the table changed; the backfill is then dropped, and begins again
        with the next run. Raises BackfillAbandoned if an operator abandoned it, and FrazilError if the audit fails.
        """
        self.check_wanted()
        last = self.last()
        if last is None:
            return None
        check_not_abandoned(last, last.id)
        if last.state is BackfillState.ABANDONED:
            raise FrazilError(f"backfill {last.id} was dropped: run it again to start over")
        if last.state is BackfillState.STAGING:
            raise FrazilError(
                f"backfill {last.id} is not staged yet ({counted(last.chunks, 'chunk')}): run it again to finish it"
            )
        if last.state is BackfillState.PUBLISHED:
            clear_ended(self.opened.tables)
            return last
        for attempt in range(ATTEMPTS):
            try:
                committer = self.begin(last)
                audited = self._audited(committer)
                if self.request.target == "branch":
                    return committer.backfill
                routed = {target: seen(of) for target, of in audited.routed.items()}
                record = Record(committer.backfill, self._late(), seen(audited.replayed), routed)
                return committer.publish(record, audited_at=audited.at)
            except StaleBatch as stale:
                log.warning("%s", stale)
                if attempt == ATTEMPTS - 1:
                    self.drop()
                    raise
        raise AssertionError

    def begin(self, last: BackfillMarker | None) -> BackfillCommitter:
        """Begin the next epoch of the backfill, or a new backfill. Raises what `BackfillCommitter.begin` raises."""
        going_on = last.id if last and last.is_open else None
        self.held = going_on or self.held
        committer = BackfillCommitter.begin(self.opened.tables, self.request, going_on=going_on)
        self.epoch, self.held = committer.backfill.epoch, committer.backfill.id
        return committer

    def drop(self) -> None:
        """Drop what was staged if it can no longer be used. Raises as `check_wanted`."""
        if (last := self.last()) and last.is_open:
            abandon(self.opened.tables, last)
        self.check_wanted()

    def check_wanted(self) -> None:
        """Raise BackfillAbandoned if an operator abandoned the backfill of this run, or of an earlier attempt of it."""
        last = _last_backfill(self.opened)
        check_not_abandoned(last, self.held)
        check_wanted(last, self.request.run)

    def check(self) -> None:
        """Raise the errors that any plan of this stream would raise, before Spark starts."""
        self._table_and_marker()

    def _table_and_marker(self) -> tuple[Table, Marker]:
        table = self.opened.tables.main.refresh()
        marker = check_begun(self.spec, read_marker(table.metadata.properties, self.spec.name))
        if not self.request.dead_letters:
            check_backfilled(self.spec, routed=marker.routed is not None)
        check_coordinates(self.spec, table_has=has_coordinates(table.schema()))
        return table, marker

    def _check_one_generation(self, wanted: Spans, claimed: Claims) -> None:
        for topic in {tp[0] for tp in wanted}:
            if len(backfill_audit.generations(wanted, claimed.ranges, topic)) > 1:
                raise SpecError(
                    f"several topics had the name {topic!r}, and their offsets overlap where this backfill reads: "
                    "nothing tells which of them the table's rows came from. Ask for other offsets"
                )

    def _tallies(self, table: Table, spans: Spans, source: SourceIdentity) -> tuple[Tallies, Tallies, Tallies]:
        """Tally the tables: rows on main, rows of open windows, and dead letters.

        A replay leaves out the dead letters, because they are what it reads.
        """
        wanted = Wanted({topic for topic, _ in spans}, spans)
        return (
            tally(table, wanted),
            tally(table, dataclasses.replace(wanted, branch=open_branch(self.spec.name))),
            {} if self.request.dead_letters else self._letters(spans, source),
        )

    def _letters(self, spans: Spans, source: SourceIdentity) -> Tallies:
        """Tally the dead-letter table; for a replay, without discarded dead letters."""
        asked = Wanted({topic for topic, _ in spans}, spans, topic_ids=source.topic_ids, stream=self.spec.name)
        wanted = dataclasses.replace(asked, discarded=not self.request.dead_letters)
        return tally(self.opened.tables.dead_letters.refresh(), wanted)

    def _gone(self, spans: Spans, source: SourceIdentity) -> dict[TopicPartition, BitMap64]:
        return gone(spans, self._letters(spans, source))

    @property
    def _merges(self) -> bool:
        """Whether records are merged into the table."""
        return merging_mode(self.spec) is not None

    @property
    def _by_letters(self) -> bool:
        """Whether the dead-letter table, not the table itself, shows what still has to land."""
        return self._merges or self.route is not None

    def _audited(self, committer: BackfillCommitter) -> _Audited:
        """Run the audit. If it fails because an operator abandoned the backfill, raise that instead."""
        try:
            return self._audit(committer)
        except StaleBatch:
            raise
        except (OSError, FrazilError):
            self.check_wanted()
            raise

    def _audit(self, committer: BackfillCommitter) -> _Audited:
        """Compare the staged records with main, the journals and the source."""
        table, marker = self._table_and_marker()
        journals = tuple(committer.journals())
        spans = spans_of(journals)
        files = [f for journal in journals for f in journal.staged_for("main")]
        check_declared(files, merges=self._merges, backfill=committer.backfill)
        branch = Wanted({topic for topic, _ in spans}, spans, branch=branch_name(self.spec.name))
        routed = tally_routed(table, journals)
        replayed = self._replayed(table, marker, journals, routed) if self.request.dead_letters else {}
        rows: Tallies
        elsewhere: tuple[Tallies, ...]
        if self._by_letters:
            rows, elsewhere = replayed, (settled_meanwhile(replayed, self._letters(spans, marker.source)),)
        else:
            rows, elsewhere = tally(table, branch), self._tallies(table, spans, marker.source)
        staged = Staged(
            journals,
            rows=rows,
            dead_letters=tally(self.opened.tables.dead_letters.current(), branch),
            elsewhere=elsewhere,
            source=None if self.request.event_times_us else self.source.records(spans),
        )
        if landed := backfill_audit.landed_elsewhere(staged):
            raise StaleBatch(
                f"{counted(landed, 'record')} of backfill {committer.backfill.id} landed in the table meanwhile"
            )
        if said := backfill_audit.problems(staged):
            raise FrazilError(
                f"backfill {committer.backfill.id} is not published: {'; '.join(said)}. Abandon it with "
                f"`frazil backfill {self.spec.name} --abandon`, and run it again"
            )
        head = head_of(table.metadata)
        return _Audited(head.snapshot_id if head else -1, replayed, routed)

    def _replayed(
        self, table: Table, marker: Marker, journals: Sequence[Journal], routed: Mapping[Target, Tallies]
    ) -> Tallies:
        """Tally what a replay staged: rows on the branch, changes, and rows for routed tables."""
        if self._merges:  # a record may be several changes, but lands as a whole
            changes = together([tally_changes(table, journals), *routed.values()])
            return {tp: OffsetTally([*of.seen]) for tp, of in changes.items()}
        topics = named(self.spec.source.reads, marker.source.topic_ids)
        default = tally(table, Wanted(topics, branch=branch_name(self.spec.name)))
        return together([default, *routed.values()])

    def _late(self) -> dict[int, int]:
        """Count the rows on the branch by window. Windows that were complete reopen, once each."""
        table, counts = self.opened.tables.main.refresh(), Counter[int]()
        head = head_of(table.metadata, branch_name(self.spec.name))
        if head is None or self.spec.window is None:
            return {}
        grain_us = Grain(self.spec.window).us
        scan = table.scan(snapshot_id=head.snapshot_id, selected_fields=(self.spec.event_time.column,))
        for batch in scan.to_arrow_batch_reader():
            times = batch.column(0).drop_null().cast(pa.int64()).to_numpy()
            for begin, rows in zip(*np.unique(times - times % grain_us, return_counts=True), strict=True):
                counts[int(begin)] += int(rows)
        return dict(sorted(counts.items()))


def _last_backfill(opened: OpenStream) -> BackfillMarker | None:
    return read_backfill(opened.tables.main.refresh().metadata.properties, opened.spec.name)


@contextmanager
def open_backfill(
    spec: StreamSpec, request: BackfillRequest, *, kafka_timeout_s: float = TIMEOUT_S, read_only: bool = False
) -> Iterator[Backfill]:
    """Open the request's stream and source; with `looks`, nothing may be changed.

    Raises SpecError if the table or the files do not exist, and as `check_backfilled` and `check_not_ahead`.
    """
    check_backfilled(spec)
    check_not_ahead(request, clock.now_ms())
    opened = read_stream(spec) if read_only else open_stream(spec)
    if request.files:
        files = FileSource.open(request.files, opened.tables.main.current())
        yield Backfill(files.pinned(request), opened, files)
    else:
        with open_kafka(spec, timeout_s=kafka_timeout_s) as kafka:
            yield Backfill(request, opened, KafkaSource(kafka, kafka_properties(spec, os.environ)))
