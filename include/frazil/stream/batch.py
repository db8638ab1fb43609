"""Runs one batch: stage, journal, commit. The engine runs the staging tasks. Batches share the epoch's state: the
marker and the last batch.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from pyiceberg.table import Table

from frazil.commit.commit_checks import check_fence, check_same_source
from frazil.commit.committer import Committer
from frazil.commit.dead_letter_counts import count_reasons
from frazil.commit.history import merge_counts
from frazil.commit.journal import BatchCost, Journal
from frazil.commit.marker import BatchKey, Marker, merge_identities, read_marker
from frazil.commit.stream_tables import StreamTables
from frazil.commit.sweep import delete_fenced_batch, discard_batch, sweep_batch
from frazil.commit.writer_folding import WriterFolding
from frazil.errors import Fenced, FrazilError, StaleBatch
from frazil.events import (
    BatchCommitted,
    DistributionChosen,
    FutureEventTimes,
    OutageReported,
    PhaseBegan,
    StreamEvent,
    TableEvolved,
    ThrottleEvaluated,
)
from frazil.host.heartbeat import Phase
from frazil.ingest.contract import Shuffle, StageContext, Target
from frazil.ingest.dead_letters import join_rejects
from frazil.ingest.schema_drift import SchemaDrift
from frazil.kafka.admin import KafkaAdmin
from frazil.offsets.spans import Offsets, SourceIdentity
from frazil.partitions.windows import Grain
from frazil.spec.model import StreamSpec
from frazil.spec.units import format_duration
from frazil.stream.circuit_breaker import check_circuit_breaker
from frazil.stream.distribution import Distributor
from frazil.stream.engine import RecordSuspected, Stage, TaskAnswer
from frazil.stream.evolve import EvolutionResult, evolve_table
from frazil.stream.fence_watch import FenceWatch
from frazil.stream.notices import Notices
from frazil.stream.outage import retry_during_outage
from frazil.stream.plan import Position, join_ranges, update_rates
from frazil.stream.progress import ProgressFolder
from frazil.stream.route import StreamRoute
from frazil.stream.session import cost_meter
from frazil.stream.stage_context import build_stage_context, hash_rules
from frazil.stream.stage_rows import StageRows
from frazil.stream.throttle import MetadataBounds, Throttle, measure_metadata, throttle
from frazil.table.catalogs import translate_catalog_errors
from frazil.table.object_store import upload_requests

log = logging.getLogger(__name__)

T = TypeVar("T")
Answers = tuple[TaskAnswer, ...]

MAX_RESTAGES = 10
"""Maximum number of times that one batch is restaged because tables evolved or were missing."""


@dataclass(slots=True)
class BatchRunner:
    spec: StreamSpec
    kafka: KafkaAdmin
    kafka_properties: Mapping[str, str]
    tables: StreamTables
    committer: Committer
    marker: Marker
    emit: Callable[[StreamEvent], None]
    run_folder: Path
    progress: ProgressFolder
    wait: Callable[[float], object] = time.sleep
    rejects_accepted: Offsets = field(default_factory=dict)
    """The circuit breaker ignores rejected records before these offsets."""
    throttle: Throttle | None = None
    distributor: Distributor = field(default_factory=Distributor)
    last_journal: Journal | None = None
    folding: WriterFolding | None = None
    """Folds the main table's small files; None if maintenance alone rewrites files."""
    route: StreamRoute = field(kw_only=True)
    notices: Notices = field(kw_only=True)
    fence: FenceWatch = field(default_factory=FenceWatch)

    def run(self, stage: Stage, end: Position, *, tasks: int) -> None:
        """Stage, journal and commit one batch that ends at `end`. If `tasks` is 0, only commit the new position."""
        key = BatchKey(self.committer.epoch, self.marker.key.batch + 1)
        began = time.monotonic()
        self.emit(PhaseBegan(Phase.STAGING, key))
        try:
            answers, journal = self._stage_with_retries(stage, key, end, tasks=tasks)
            self.notices.publish_drift(answers)
            rejects = join_rejects(a.result.rejects for a in answers)
            check_circuit_breaker(
                self.spec, rejects, records=journal.records + journal.dropped, journals=self.tables.journals
            )
        except Exception as error:
            self._discard(key)
            self._raise_if_fenced(error)
            raise
        staged = time.monotonic()
        try:
            commit_s = self._journal_and_commit(journal)
        except Fenced:
            with _log_delete_errors(f"files of the fenced batch {key}"):
                delete_fenced_batch(self.tables, key)
            raise
        except Exception as error:
            self._raise_if_fenced(error)
            raise
        self.notices.publish_committed(answers)
        self.report(journal, stage_s=staged - began, commit_s=time.monotonic() - staged)
        self.emit(PhaseBegan(Phase.WAITING))
        self._record_rates(journal, answers, batch_s=time.monotonic() - began, commit_s=commit_s)
        if self.tables.main.expiry is not None:
            self.tables.main.expiry.continue_after(self.tables.main.current())
        if self.folding is not None:
            self.folding.continue_after(journal.staged_for("main"))
        self._delete_obsolete_files(journal)
        self.sweep_stragglers()
        self.last_journal = journal
        self.fence.postpone()
        self.route.report()

    def follow(self) -> None:
        """Check the fence and retry commits to routed tables. Called between batches. Raises RouteBehind and Fenced."""
        self.fence.check(self.tables, epoch=self.committer.epoch)
        self.route.follow()

    def sweep_stragglers(self) -> None:
        """Delete files of the last batch's failed attempts again. On a cluster, attempts may write files later."""
        if self.last_journal is not None and self.spec.resources.on_cluster:
            self._delete_obsolete_files(self.last_journal)

    def report(self, journal: Journal, *, stage_s: float = 0, commit_s: float = 0) -> None:
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
                changes=self._total_merge_counts(journal),
                cost=journal.cost or BatchCost(),
            )
        )
        if journal.future_rows:
            by_partition = {p.topic_partition: p.future for p in journal.progress if p.future}
            newest_ms = max((p.newest_future_us // 1000 for p in journal.progress if p.newest_future_us), default=None)
            limit = format_duration(self.spec.watermark.max_future)
            self.emit(FutureEventTimes(key, by_partition, limit, newest_ms))

    def _total_merge_counts(self, journal: Journal) -> dict[str, int]:
        """Return the merge counts by outcome, summed over the tables that have the batch."""
        if self.tables.merging is None:
            return {"dropped": journal.dropped} if journal.dropped else {}
        total = Counter(_merge_counts(self.tables.main.current(), self.marker))
        for target in journal.routed - self.route.followers.waiting.keys():
            table = self.tables.handle(target).current()
            marker = read_marker(table.properties, self.spec.name)
            if marker is not None and marker.settled == journal.key:
                total.update(_merge_counts(table, marker))
        return dict(total)

    def _journal_and_commit(self, journal: Journal) -> float:
        self.emit(PhaseBegan(Phase.JOURNALING))
        failure = f"the journal of batch {journal.key} cannot be written"
        if not self._retry_during_outage(lambda: self.tables.journals.put(journal), failure):
            raise Fenced(
                f"batch {journal.key} of stream {self.spec.name!r} is already journaled or closed: another writer "
                "took over"
            )
        self.emit(PhaseBegan(Phase.COMMITTING))
        committing = time.monotonic()
        self.marker = self.committer.commit(journal)
        self.route.commit_batch()
        return time.monotonic() - committing

    def _raise_if_fenced(self, error: Exception) -> None:
        """Raise `Fenced` from `error` if another writer took over: its deletion of files may have caused `error`."""
        if isinstance(error, FrazilError):
            return
        try:
            marker = self.tables.marker()
        except Exception as unknown:
            log.warning("cannot check whether another writer took over: %r", unknown)
            return
        try:
            check_fence(marker, stream=self.spec.name, epoch=self.committer.epoch)
        except Fenced as fenced:
            raise fenced from error

    def _stage_with_retries(self, stage: Stage, key: BatchKey, end: Position, *, tasks: int) -> tuple[Answers, Journal]:
        attempt, restage = partial(self.stage, stage, key, end, tasks=tasks), partial(self._prepare_restage, key)
        return self._retry_during_outage(attempt, f"batch {key} cannot be staged", restage)

    def _retry_during_outage(self, work: Callable[[], T], failure: str, again: Callable[[], None] = lambda: None) -> T:
        report: Callable[[str, int], None] = lambda *failed: self.emit(OutageReported(*failed))  # noqa: E731
        return retry_during_outage(work, failure, wait=self.wait, report=report, prepare_retry=again)

    def stage(self, stage: Stage, key: BatchKey, end: Position, *, tasks: int) -> tuple[Answers, Journal]:
        """Stage the batch, again if tables changed. Returns the tasks' answers and the journal. Raises StaleBatch."""
        context, answers = self._stage_once(stage, key, tasks=tasks)
        for _ in range(MAX_RESTAGES):
            has_evolved, values = self._evolve_tables(context, answers), _missing_route_values(answers)
            if not (has_evolved or values):
                break
            self.route.create_tables(values, self.marker)
            self._prepare_restage(key)
            context, answers = self._stage_once(stage, key, tasks=tasks)
        if _missing_route_values(answers):
            raise StaleBatch(
                f"records of batch {key} of stream {self.spec.name!r} still need new tables; the batch is staged again"
            )
        return answers, self._build_journal(context, answers, end)

    def _prepare_restage(self, key: BatchKey) -> None:
        self._discard(key)
        self.progress = dataclasses.replace(self.progress, attempt=self.progress.attempt + 1)
        try:
            dataclasses.replace(self.progress, io=self.tables.main.io_properties).clear()
        except Exception as error:
            log.info("progress files of the failed attempt were not deleted: %r", error)
        self.emit(PhaseBegan(Phase.STAGING, key))

    def _stage_once(self, stage: Stage, key: BatchKey, *, tasks: int) -> tuple[StageContext, Answers]:
        """Stage the batch. If a shuffled task suspects a record, stage the batch again without a shuffle."""
        context = self._build_context(key)
        progress = dataclasses.replace(self.progress, io=context.main.io)
        shuffle = self._decide_shuffle(context, tasks=tasks)
        try:
            answers = stage(StageRows(dataclasses.replace(context, shuffle=shuffle), progress))
        except RecordSuspected as error:
            log.warning("batch %s is staged again without a shuffle, to find the record that caused: %s", key, error)
            answers = stage(StageRows(context, progress))
        return context, answers

    def _evolve_tables(self, context: StageContext, answers: Answers) -> bool:
        """Evolve the tables by the tasks' schema drift. Returns whether the batch must be staged again."""
        drift: dict[Target, list[SchemaDrift]] = {}
        for target, found in (item for answer in answers for item in answer.result.drift.items() if item[1].is_change):
            drift.setdefault("main" if self.route.is_absent(target) else target, []).append(found)
        has_evolved = False
        if drift:
            with translate_catalog_errors(self.tables.main.catalog_name):
                main = self.tables.main.refresh()
                if "main" in drift:
                    result = evolve_table(main, self.spec, drift.pop("main"))
                    has_evolved = self._report_evolution(context, "main", result)
                for target, routed in self.route.evolve_tables(drift, main):
                    has_evolved |= routed is None or self._report_evolution(context, target, routed)
        return has_evolved

    def _report_evolution(self, context: StageContext, target: Target, result: EvolutionResult) -> bool:
        """Report how a table evolved. Returns whether its schema now differs from the schema of the staged rows."""
        handle = self.tables.handle(target)
        self.notices.publish_ignored(result.refused, table=handle.identifier)
        if result.changes:
            table = "the table" if target == "main" else f"table {target}"
            self.emit(TableEvolved(BatchKey(context.epoch, context.batch), result.changes, table))
        staged_id: int = context.targets[target].schema.schema_id
        return handle.refresh().schema().schema_id != staged_id

    def _decide_shuffle(self, context: StageContext, *, tasks: int) -> Shuffle | None:
        if self.spec.distribution == "none" or not tasks:
            return None
        chosen = self.distributor.decide(
            self.spec.distribution,
            self.tables.main.current().metadata.spec(),
            partial(self.tables.journals.records, newest_first=True),
            tasks=tasks,
            target_file_bytes=context.main.target_file_bytes,
        )
        counts = (chosen.partitions, chosen.files_alone, chosen.files_shuffled)
        key = BatchKey(context.epoch, context.batch)
        self.emit(DistributionChosen(key, chosen.shuffled, chosen.reason, *counts))
        return chosen.shuffle

    def _delete_obsolete_files(self, journal: Journal) -> None:
        with _log_delete_errors(f"files of failed attempts of batch {journal.key}"):
            sweep_batch(self.tables, journal)

    def _discard(self, key: BatchKey) -> None:
        with _log_delete_errors(f"files of the failed batch {key}", logging.INFO):
            discard_batch(self.tables, key)

    def _build_context(self, key: BatchKey) -> StageContext:
        topic_ids = self.marker.source.topic_ids
        if self.spec.source.topic_pattern is not None:  # a new topic is not in the marker yet
            cluster = self.kafka.describe().identity
            check_same_source(self.marker.source, cluster, stream=self.spec.name)
            topic_ids = merge_identities(self.marker.source, cluster).topic_ids
        context = build_stage_context(
            self.spec, self.tables, key, kafka_properties=self.kafka_properties, topic_ids=topic_ids
        )
        return dataclasses.replace(
            self.route.add_targets(context, key, self.marker),
            existing_dead_letters=self.committer.existing_dead_letters(self.marker),
            window_us=None if self.spec.window is None else Grain(self.spec.window).us,
            rejects_accepted=self.rejects_accepted,
            evolution=self.spec.evolution.mode,
        )

    def _build_journal(self, context: StageContext, answers: Sequence[TaskAnswer], end: Position) -> Journal:
        source = self.kafka.describe().identity
        read = SourceIdentity(self.marker.source.cluster_id, context.topic_ids)
        check_same_source(read, source, stream=self.spec.name)
        results = [a.result for a in answers]
        cpu_s, requests = cost_meter.take_usage()
        uploads = (upload_requests(file.path, file.bytes) for answer in answers for file in answer.result.files)
        cpu_ms = round(1000 * (cpu_s + sum(answer.cpu_s for answer in answers)))
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
            windows=None if context.window_us is None else _sum_counts(result.windows for result in results),
            partitions=sum(a.partitions or 0 for a in answers) or None,
            with_ignored=sum(drift.records for result in results for drift in result.drift.values()),
            without_columns=sum(drift.unknown for result in results for drift in result.drift.values()),
            cast=sum(sum(drift.cast.values()) for result in results for drift in result.drift.values()),
            other_events=sum(result.other_events for result in results),
            cost=BatchCost(cpu_ms, requests.writes + sum(uploads), requests.reads),
            reasons=count_reasons(join_rejects(result.rejects for result in results)),
            accepted=count_reasons(join_rejects(result.accepted for result in results)),
            rules=hash_rules(self.spec, context, results),
        )

    def _record_rates(
        self, journal: Journal, answers: Sequence[TaskAnswer], *, batch_s: float, commit_s: float
    ) -> None:
        """Record rates and the metadata's size for the planner. Only logs errors."""
        try:
            stretch = None
            self.distributor.continue_after(journal)
            if self.spec.commit.throttle != "off":
                measure = measure_metadata(self.tables.main.current(), commit_s=commit_s, at_ms=self.tables.clock_ms())
                old, new = self.throttle, throttle(self.throttle, measure, MetadataBounds.for_stream(self.spec))
                self.throttle = new
                pressed = old is not None and old.reason is not None
                if pressed or new.reason:
                    self.emit(ThrottleEvaluated(new.reason, stretch=new.stretch, was_under_pressure=pressed))
                stretch = new.stretch
            task_s = [answer.seconds for answer in answers]
            update_rates(self.run_folder, journal, task_s, batch_s=batch_s, stretch=stretch)
        except Exception as error:  # storages and full disks raise anything
            log.warning("the rates of batch %s cannot be recorded for the planner: %r", journal.key, error)


@contextmanager
def _log_delete_errors(files: str, level: int = logging.WARNING) -> Iterator[None]:
    """Log errors in deleting `files`, instead of raising them. The next start deletes the files."""
    try:
        yield
    except Exception as error:  # catalogs' clients raise anything
        log.log(level, "%s could not be deleted; the next start deletes them: %r", files, error)


def _merge_counts(table: Table, marker: Marker) -> dict[str, int]:
    snapshot = table.metadata.snapshot_by_id(marker.snapshot_id)
    return merge_counts(snapshot.summary if snapshot else None)


def _missing_route_values(answers: Sequence[TaskAnswer]) -> set[str]:
    return {value for answer in answers for value in answer.result.values}


def _sum_counts(counts: Iterable[Mapping[int, int] | None]) -> dict[int, int] | None:
    total: Counter[int] = Counter()
    for count in counts:
        if count is None:
            return None
        total.update(count)
    return dict(total)
