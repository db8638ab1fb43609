"""Runs one batch: stage, journal, commit. The engine runs the staging tasks.

The module is longer than others because its steps share the epoch's state: the marker, the last batch and the published
notices. Pure functions in other modules make the decisions.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from pyiceberg.schema import Schema
from pyiceberg.table import Table

from frazil.commit.committer import Committer
from frazil.commit.history import merge_counts
from frazil.commit.journal import Journal
from frazil.commit.marker import BatchKey, Marker, merge_identities, read_marker
from frazil.commit.reasons import count_reasons
from frazil.commit.rules import check_fence, check_same_source
from frazil.commit.stream_tables import StreamTables
from frazil.commit.sweep import delete_fenced_batch, discard_batch, sweep_batch
from frazil.errors import Fenced, FrazilError, StaleBatch
from frazil.events import (
    BatchCommitted,
    DistributionChosen,
    FutureEventTimes,
    NoticeGiven,
    OutageMet,
    PhaseBegan,
    StreamEvent,
    TableEvolved,
    ThrottleEvaluated,
)
from frazil.host.exchange import open_exchange
from frazil.host.heartbeat import Phase
from frazil.ingest.contract import Shuffle, StageContext, Target
from frazil.ingest.rejects import join_rejects
from frazil.ingest.schema_drift import NO_DRIFT, SchemaDrift, joined_drift
from frazil.kafka.admin import KafkaOffsets
from frazil.kafka.identity import SourceIdentity
from frazil.offsets.spans import TopicPartition
from frazil.partitions.windows import Grain
from frazil.spec.model import StreamSpec
from frazil.spec.units import format_duration
from frazil.stream.batch_rates import join_ranges, metadata_of, write_rates_of
from frazil.stream.circuit_breaker import check_circuit_breaker
from frazil.stream.distribution import Distribution, Recent, decide
from frazil.stream.engine import RecordSuspected, Stage, TaskAnswer
from frazil.stream.evolve import MAX_NAMED, Evolved, casts, evolved, ignored, unplaced, without_columns
from frazil.stream.fence_watch import FenceWatch
from frazil.stream.outage import waited_out
from frazil.stream.planner_exchange import read_rates, write_rates
from frazil.stream.position import Position
from frazil.stream.progress import ProgressFolder
from frazil.stream.route import StreamRoute
from frazil.stream.stage_context import stage_context
from frazil.stream.stage_rows import StageRows
from frazil.stream.throttle import Bounds, Throttle, throttle
from frazil.table.catalogs import catalog_errors
from frazil.table.growth import Refusal

log = logging.getLogger(__name__)

MAX_RESTAGES = 10
"""Maximum number of times that one batch may be restaged after schema changes."""
MAX_IGNORED_FIELDS = 100
"""Maximum number of ignored fields named per epoch. Records may have any number of ignored fields."""
RECENT_BATCHES = 4
"""Number of commit records that a new writer reads to learn how many bytes a batch writes to each table partition.

The number is small because a commit record may take megabytes.
"""


@dataclass(slots=True)
class BatchRunner:
    """Runs the batches of one epoch, one after the other."""

    spec: StreamSpec
    kafka: KafkaOffsets
    kafka_properties: Mapping[str, str]
    tables: StreamTables
    committer: Committer
    marker: Marker
    emit: Callable[[StreamEvent], None]
    run_folder: Path
    progress: ProgressFolder
    wait: Callable[[float], object] = time.sleep
    """Waits for a number of seconds. Returns a true value early if the writer is asked to end."""
    rejects_accepted: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Rejected records before these offsets do not open the circuit breaker, because an operator accepted them."""
    throttle: Throttle | None = None
    notices: frozenset[str] = frozenset()
    """Notices that were already published."""
    counted: SchemaDrift = NO_DRIFT
    """Records of this epoch that have no field of any column, and values that were cast."""
    reported: SchemaDrift = NO_DRIFT
    """The part of `counted` in the notices."""
    ignored: frozenset[tuple[str, ...]] = frozenset()
    """Ignored fields that were already reported. Each is the table's name, followed by the field's path."""
    recent: Recent | None = None
    """Average bytes that recent batches wrote to each table partition; None until a batch of this epoch needs them."""
    distribution: Distribution | None = None
    """The shuffle decision for the last batch; None if no batch of this epoch could be shuffled."""
    landed: Journal | None = None
    """The journal of the last batch that this runner committed; None before the first commit."""
    route: StreamRoute | None = None
    """The stream's route; None if the stream never had a route."""
    fence: FenceWatch = field(default_factory=FenceWatch)

    def run(self, stage: Stage, end: Position, *, tasks: int) -> None:
        """Stage, journal and commit one batch that ends at `end` and has `tasks` tasks. Raises the errors that end the
        epoch.

        An empty commit has no tasks: it stages nothing, and only commits `end` as the new position.
        """
        key = BatchKey(self.committer.epoch, self.marker.at.batch + 1)
        began = time.monotonic()
        self.emit(PhaseBegan(Phase.STAGING, key))
        try:
            answers, journal = self._staged(stage, key, end, tasks=tasks)
            self._report_counted(answers)
            rejects = join_rejects(a.result.rejects for a in answers)
            check_circuit_breaker(
                self.spec, rejects, records=journal.records + journal.dropped, journals=self.tables.journals
            )
        except Exception as error:
            self._discard(key)
            self._check_not_replaced(error)
            raise
        staged = time.monotonic()
        try:
            commit_s = self._journal_and_commit(journal)
        except Fenced:
            self._give_back(key)
            raise
        except Exception as error:
            self._check_not_replaced(error)
            raise
        self._give_notices(answers)
        self.report(journal, stage_s=staged - began, commit_s=time.monotonic() - staged)
        self.emit(PhaseBegan(Phase.WAITING))
        self._observe(journal, answers, batch_s=time.monotonic() - began, commit_s=commit_s)
        self._sweep(journal)
        self.sweep_stragglers()
        self.landed = journal
        self.fence.committed()
        if self.route:
            self.route.report()

    def follow(self) -> None:
        """Retry commits to routed tables that are missing rows, and check whether another writer took over.

        Called between batches. Raises RouteBehind and Fenced.
        """
        self.fence.check(self.tables, epoch=self.committer.epoch)
        if self.route:
            self.route.follow()

    def sweep_stragglers(self) -> None:
        """Delete leftover files of the last batch again, if the stream runs on a cluster. An abandoned task attempt
        there may still write files for a while.

        Called after the next batch, and after the engine has ended.
        """
        if self.landed is not None and self.spec.resources.on_cluster:
            self._sweep(self.landed)

    def report(self, journal: Journal, *, stage_s: float = 0, commit_s: float = 0) -> None:
        """Emit the events of a committed batch. The durations (s) are 0 if an earlier epoch staged the batch."""
        key, files = journal.key, len(journal.files)
        self.emit(
            BatchCommitted(
                key,
                self.marker,
                journal.records,
                journal.rejected,
                files,
                stage_s=stage_s,
                commit_s=commit_s,
                bytes=sum(file.bytes for file in journal.files),
                changes=self._changes(journal),
            )
        )
        if journal.future:
            furthest = max(journal.progress, key=lambda p: p.future).topic_partition
            self.emit(FutureEventTimes(key, journal.future, furthest, format_duration(self.spec.watermark.max_future)))

    def _changes(self, journal: Journal) -> dict[str, int]:
        """Return the batch's merge counts, summed over all tables that have committed the batch.

        A stream without merges has only `dropped`, if any.
        """
        if self.tables.merging is None:
            return {"dropped": journal.dropped} if journal.dropped else {}
        total = Counter(_merged(self.tables.main.current(), self.marker))
        missing = self.route.followers.waiting.keys() if self.route else frozenset()
        for target in journal.routed - missing:
            table = self.tables.handle(target).current()
            marker = read_marker(table.properties, self.spec.name)
            if marker is not None and marker.settled == journal.key:
                total.update(_merged(table, marker))
        return dict(total)

    def _report_counted(self, answers: Sequence[TaskAnswer]) -> None:
        """Publish notices about records of this epoch without any column, casts, and changes without a position.

        Each notice replaces its previous one. Those that may be usual are only renewed for twice as many, or for the
        casts of a new column.
        """
        found = (drift.without_changes() for answer in answers for drift in answer.result.drift.values())
        self.counted = now = joined_drift([self.counted, *found])
        before, table = self.reported, self.tables.main.identifier
        if now.unknown > before.unknown:
            self.reported = dataclasses.replace(self.reported, unknown=now.unknown, names=now.names)
        if now.unplaced > 2 * before.unplaced:
            self.reported = dataclasses.replace(self.reported, unplaced=now.unplaced)
        was, total = sum(before.cast.values()), sum(now.cast.values())
        if now.cast.keys() != before.cast.keys() or total > 2 * was:
            self.reported = dataclasses.replace(self.reported, cast=now.cast)
        for notice in (without_columns, casts, unplaced):
            earlier, text = notice(before, table=table), notice(self.reported, table=table)
            if text != earlier:
                self.emit(NoticeGiven(text, replaces=earlier))

    def _give_notices(self, answers: Sequence[TaskAnswer]) -> None:
        said = {notice for answer in answers for notice in answer.result.notices}
        for notice in sorted(said - self.notices):
            self.emit(NoticeGiven(notice))
        self.notices |= said

    def _journal_and_commit(self, journal: Journal) -> float:
        """Write the journal, and commit the batch. Returns the duration of the commit in seconds."""
        self.emit(PhaseBegan(Phase.JOURNALING))
        written = waited_out(
            lambda: self.tables.journals.put(journal),
            f"the journal of batch {journal.key} cannot be written",
            wait=self.wait,
            report=self._report_outage,
        )
        if not written:
            raise Fenced(
                f"batch {journal.key} of stream {self.spec.name!r} is already journaled or closed: another writer "
                "took over"
            )
        self.emit(PhaseBegan(Phase.COMMITTING))
        committing = time.monotonic()
        self.marker = self.committer.commit(journal)
        if self.route:
            self.route.decided()
        return time.monotonic() - committing

    def _check_not_replaced(self, error: Exception) -> None:
        """Raise `Fenced` from `error` if another writer took over and deleted the files staged here.

        Otherwise return.
        """
        if isinstance(error, FrazilError):
            return
        try:
            marker = self.tables.marker()
        except Exception as unknown:
            log.warning("whether another writer took over is unknown: %r", unknown)
            return
        try:
            check_fence(marker, stream=self.spec.name, epoch=self.committer.epoch)
        except Fenced as fenced:
            raise fenced from error

    def _give_back(self, key: BatchKey) -> None:
        """Delete the files that this fenced writer staged and that no writer will commit.

        The next start handles all other files.
        """
        try:
            delete_fenced_batch(self.tables, key)
        except Exception as error:
            log.warning("files of the fenced batch %s were left to the next start: %r", key, error)

    def _staged(
        self, stage: Stage, key: BatchKey, end: Position, *, tasks: int
    ) -> tuple[tuple[TaskAnswer, ...], Journal]:
        """Call `staged`, and retry while a catalog or storage is unavailable or its credentials have expired.

        Every attempt loads the tables, and so gets fresh credentials.
        """

        def again() -> None:
            self._discard(key)
            self._clear_progress()
            self.emit(PhaseBegan(Phase.STAGING, key))

        return waited_out(
            lambda: self.staged(stage, key, end, tasks=tasks),
            f"batch {key} cannot be staged",
            wait=self.wait,
            report=self._report_outage,
            again=again,
        )

    def _report_outage(self, sentence: str) -> None:
        self.emit(OutageMet(sentence))

    def staged(
        self, stage: Stage, key: BatchKey, end: Position, *, tasks: int
    ) -> tuple[tuple[TaskAnswer, ...], Journal]:
        """Stage the batch, and return the tasks' answers and the batch's journal.

        Stages again if a table evolved, or if records need new tables, up to `MAX_RESTAGES` times. Schema drift that
        remains after the last attempt is left to the next batch with such records. Raises StaleBatch if records still
        need new tables.
        """
        context, answers = self._staged_once(stage, key, tasks=tasks)
        for _ in range(MAX_RESTAGES):
            grown, values = self._evolved(context, answers), _values(answers)
            if not (grown or values):
                break
            if self.route:
                self.route.make(values, self.marker)
            self._discard(key)
            self._clear_progress()
            self.emit(PhaseBegan(Phase.STAGING, key))
            context, answers = self._staged_once(stage, key, tasks=tasks)
        if _values(answers):
            raise StaleBatch(
                f"records of batch {key} of stream {self.spec.name!r} still need tables; it is staged again"
            )
        return answers, self._journal(context, answers, end)

    def _staged_once(self, stage: Stage, key: BatchKey, *, tasks: int) -> tuple[StageContext, tuple[TaskAnswer, ...]]:
        context = self._context(key)
        progress = dataclasses.replace(self.progress, io=context.main.io)
        shuffle = self._shuffle(context, tasks=tasks)
        try:
            answers = stage(StageRows(dataclasses.replace(context, shuffle=shuffle), progress))
        except RecordSuspected as error:
            log.warning("batch %s is staged again without a shuffle, to find the record that caused: %s", key, error)
            answers = stage(StageRows(context, progress))
        return context, answers

    def _report_ignored(self, refused: Iterable[Refusal], table: str) -> None:
        """Report each ignored field once in this epoch."""
        new = [refusal for refusal in refused if (table, *refusal.path) not in self.ignored]
        if new and len(self.ignored) < MAX_IGNORED_FIELDS:
            self.emit(NoticeGiven(ignored(new, table=table)))
            for refusal in new[MAX_NAMED:MAX_IGNORED_FIELDS]:  # one line for each, only in writer.log
                log.info("ignored: %r %s", ".".join(refusal.path)[:100], refusal.reason)
            self.ignored |= {(table, *refusal.path) for refusal in new}

    def _evolved(self, context: StageContext, answers: Sequence[TaskAnswer]) -> bool:
        """Evolve tables by the answers' schema drift.

        Returns whether a table now accepts more of the batch's records, whichever writer evolved it.
        """
        drift: dict[Target, list[SchemaDrift]] = {}
        for target, found in (item for answer in answers for item in answer.result.drift.items() if item[1].is_change):
            waits = self.route is not None and self.route.is_absent(target)
            drift.setdefault("main" if waits else target, []).append(found)
        grown = False
        if drift:
            with catalog_errors(self.tables.main.catalog_name):
                main = self.tables.main.refresh()
                if "main" in drift:
                    grown = self._grown(context, "main", evolved(main, self.spec, drift.pop("main")))
                for target, result in self.route.evolved(drift, main) if self.route else ():
                    grown |= result is None or self._grown(context, target, result)
        return grown

    def _grown(self, context: StageContext, target: Target, found: Evolved) -> bool:
        """Report how a table evolved. Returns whether its columns differ from those with which the rows were staged."""
        handle = self.tables.handle(target)
        self._report_ignored(found.refused, handle.identifier)
        if found.changes:
            table = "the table" if target == "main" else f"table {target}"
            self.emit(TableEvolved(BatchKey(context.epoch, context.batch), found.changes, table))
        staged_id: int = Schema.model_validate_json(context.targets[target].schema_json).schema_id
        return handle.refresh().schema().schema_id != staged_id

    def _shuffle(self, context: StageContext, *, tasks: int) -> Shuffle | None:
        """Return how the batch's rows are shuffled; None if they are not shuffled. Emits the reason."""
        if self.spec.distribution == "none" or not tasks:
            return None
        spec = self.tables.main.current().metadata.spec()
        if self.recent is None or self.recent.spec_id != spec.spec_id:
            self.recent = self._read_recent(spec.spec_id)
        key = BatchKey(context.epoch, context.batch)
        chosen = self.distribution = decide(
            self.spec.distribution,
            self.recent,
            partitioned=bool(spec.fields),
            tasks=tasks,
            target_file_bytes=context.main.target_file_bytes,
            before=self.distribution,
        )
        counts = (chosen.partitions, chosen.files_alone, chosen.files_shuffled)
        self.emit(DistributionChosen(key, chosen.shuffled, chosen.reason, *counts))
        return chosen.shuffle

    def _read_recent(self, spec_id: int) -> Recent:
        """Return the average bytes per table partition that earlier writers' last batches wrote, from their commit
        records.
        """
        recent = Recent(spec_id)
        newest = [*islice(self.tables.journals.records(newest_first=True), RECENT_BATCHES)]
        for journal in reversed(newest):
            recent = recent.after(journal.staged_for("main"), partitions=journal.partitions)
        return recent

    def _sweep(self, journal: Journal) -> None:
        """Delete the files that failed task attempts of a committed batch left.

        After an error here, the next start deletes them.
        """
        try:
            sweep_batch(self.tables, journal)
        except Exception as error:  # catalogs' clients raise anything; this error must not replace the current one
            log.warning("files that failed tries of batch %s left are left to the next start: %r", journal.key, error)

    def _discard(self, key: BatchKey) -> None:
        """Delete the files of a failed batch. After an error here, the next start deletes them."""
        try:
            discard_batch(self.tables, key)
        except Exception as error:
            log.info("files of the failed batch %s were left to the next start: %r", key, error)

    def _clear_progress(self) -> None:
        """Restart the progress count at 0 for the batch's next attempt.

        Otherwise the heartbeat would not change until the new count exceeds the old one.
        """
        self.progress = dataclasses.replace(self.progress, attempt=self.progress.attempt + 1)
        try:
            dataclasses.replace(self.progress, io=self.tables.main.io_properties).clear()
        except Exception as error:
            log.info("the progress of the failed try was left behind: %r", error)

    def _context(self, key: BatchKey) -> StageContext:
        context = stage_context(
            self.spec, self.tables, key, kafka_properties=self.kafka_properties, topic_ids=self._topic_ids()
        )
        if self.route:
            self.route.try_again(self.marker)
            context = self.route.placed(context, key)
        held = self.committer.existing_dead_letters(self.marker)
        window_us = None if self.spec.window is None else Grain(self.spec.window).us
        return dataclasses.replace(
            context,
            existing_dead_letters=held,
            window_us=window_us,
            rejects_accepted=self.rejects_accepted,
            evolution=self.spec.evolution.mode,
        )

    def _topic_ids(self) -> Mapping[str, str]:
        """Return the id of each topic that is read.

        If the stream has a topic pattern, the ids are fetched from Kafka: the marker does not have topics that began to
        match the pattern later.
        """
        known = self.marker.source
        if self.spec.source.topic_pattern is None:
            return known.topic_ids
        found = self.kafka.describe().identity
        check_same_source(known, found, stream=self.spec.name)
        return merge_identities(known, found).topic_ids

    def _journal(self, context: StageContext, answers: Sequence[TaskAnswer], end: Position) -> Journal:
        """Build the batch's journal.

        Fetches the topic ids again. Raises an error if a topic was recreated while it was read.
        """
        source = self.kafka.describe().identity
        read = SourceIdentity(self.marker.source.cluster_id, context.topic_ids)
        check_same_source(read, source, stream=self.spec.name)
        results = [a.result for a in answers]
        return Journal(
            stream=self.spec.name,
            key=BatchKey(context.epoch, context.batch),
            table_uuid=str(self.tables.main.current().metadata.table_uuid),
            created_at_ms=self.tables.clock_ms(),
            source=source,
            progress=join_ranges(p for result in results for p in result.progress),
            files=tuple(f for result in results for f in result.files),
            newest_dead_letters=self.committer.newest_dead_letters(),
            idle=end.idle,
            offsets_after=end.offsets,
            leader_epochs=end.leader_epochs,
            transaction=end.transaction,
            windows=None if context.window_us is None else _summed(result.windows for result in results),
            partitions=sum(a.partitions or 0 for a in answers) or None,
            with_ignored=sum(drift.records for result in results for drift in result.drift.values()),
            without_columns=sum(drift.unknown for result in results for drift in result.drift.values()),
            cast=sum(sum(drift.cast.values()) for result in results for drift in result.drift.values()),
            other_events=sum(result.other_events for result in results),
            reasons=count_reasons(join_rejects(result.rejects for result in results)),
        )

    def _observe(self, journal: Journal, answers: Sequence[TaskAnswer], *, batch_s: float, commit_s: float) -> None:
        """Record the batch's rates and the size of the table's metadata, which the planner needs for the next batches.

        A failure is only logged, because the batch is already committed.
        """
        try:
            write_rates_of(open_exchange(self.run_folder), journal, answers, batch_s=batch_s)
            if self.recent is not None:
                self.recent = self.recent.after(journal.staged_for("main"), partitions=journal.partitions)
            if self.spec.commit.throttle != "off":
                self._measure_metadata(commit_s)
        except Exception as error:  # storages and full disks raise anything
            log.warning("the planner did not get the rates of batch %s: %r", journal.key, error)

    def _measure_metadata(self, commit_s: float) -> None:
        """Set the factor by which the planner stretches the commit interval, and emit the reason."""
        measure = metadata_of(self.tables.main.current(), commit_s=commit_s, at_ms=self.tables.clock_ms())
        before, now = self.throttle, throttle(self.throttle, measure, Bounds.for_stream(self.spec))
        self.throttle = now
        pressed = before is not None and before.reason is not None
        if pressed or now.reason:
            self.emit(ThrottleEvaluated(now.reason, stretch=now.stretch, was_under_pressure=pressed))
        exchange = open_exchange(self.run_folder)
        write_rates(exchange, dataclasses.replace(read_rates(exchange), stretch=now.stretch))


def _merged(table: Table, marker: Marker) -> dict[str, int]:
    """Return the merge counts in the summary of the marker's snapshot."""
    made = table.metadata.snapshot_by_id(marker.snapshot_id)
    return merge_counts(made.summary if made else None)


def _values(answers: Sequence[TaskAnswer]) -> set[str]:
    """Return the route values whose tables do not exist. Their records were left out of the staged files."""
    return {value for answer in answers for value in answer.result.values}


def _summed(counts: Iterable[Mapping[int, int] | None]) -> dict[int, int] | None:
    """Sum the counts by key. Returns None if a task did not count."""
    total: Counter[int] = Counter()
    for count in counts:
        if count is None:
            return None
        total.update(count)
    return dict(total)
