"""The writer of one stream. Each epoch takes over, settles earlier batches, and runs batches.

A stale batch ends the epoch. The next epoch begins at the marker's offsets.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pyiceberg.exceptions import NoSuchTableError

from frazil import clock, errors
from frazil.commit.catalog_probe import check_catalog_guarantees
from frazil.commit.commit_checks import check_fence
from frazil.commit.committer import Committer
from frazil.commit.compare_and_swap import RetryPolicy
from frazil.commit.expiry import Pins
from frazil.commit.followers import Followers
from frazil.commit.marker import Marker, keep_topics, property_name, read_marker
from frazil.commit.marker_changes import reset
from frazil.commit.merging import merge_config
from frazil.commit.open_streams import check_own_table
from frazil.commit.reset_plan import read_state_before_reset
from frazil.commit.settle import highest_epoch, settle
from frazil.commit.stream_tables import StreamTables
from frazil.commit.writer_expiry import WriterExpiry
from frazil.commit.writer_folding import WriterFolding
from frazil.errors import CommitUnavailable, KafkaUnavailable, OffsetGap, PythonStartTimeout, StaleBatch, TopicMissing
from frazil.events import (
    ChangesMerged,
    EpochBegan,
    EventDispatcher,
    OutageReported,
    PhaseBegan,
    RecordsSkipped,
    Sink,
    StreamEvent,
)
from frazil.home import make_folder, run_folder
from frazil.host.heartbeat import Phase
from frazil.ingest.formats import check_stream_supported
from frazil.ingest.sealing import check_secret
from frazil.kafka.admin import KafkaAdmin, Topics
from frazil.kafka.logs import check_no_gap, check_not_truncated, describe_lost_ranges, find_truncations
from frazil.offsets.spans import Offsets, TopicPartition
from frazil.partitions.completeness import Alignment
from frazil.spec.iceberg import records_schema
from frazil.spec.model import StreamSpec
from frazil.spec.references import executor_kafka_properties, resolve_kafka_properties
from frazil.stream.batch import BatchRunner
from frazil.stream.batch_loop import BatchLoop
from frazil.stream.circuit_breaker import accepted_offsets
from frazil.stream.engine import Engine
from frazil.stream.hosting import Hosting, RecordFolding
from frazil.stream.merge_tasks import MergeRunner
from frazil.stream.notices import Notices
from frazil.stream.plan import PlannerReport
from frazil.stream.planner import DESCRIBE_INTERVAL_S
from frazil.stream.progress import ProgressFolder, cluster_period_s
from frazil.stream.recording import WriterRecorders, log_event, record_events
from frazil.stream.reporter import Reporter
from frazil.stream.route import StreamRoute
from frazil.stream.routed_tables import create_missing_table
from frazil.stream.stall import StallLimits
from frazil.table.catalogs import load_catalog, open_existing_catalog, translate_catalog_errors
from frazil.table.lost_tables import check_own_folder, missing_table_error
from frazil.table.storage_errors import translate_local_failures
from frazil.table.tables import ensure_dead_letters, ensure_table, load_stream_table, state_location

log = logging.getLogger(__name__)

MAX_STALE_EPOCHS = 3
"""Number of consecutive stale epochs after which the writer ends."""
MAX_START_ATTEMPTS = 10
"""Maximum number of consecutive attempts to start Spark's Python processes."""
MAX_START_WAIT_S = 30.0


@dataclass(slots=True)
class Writer:
    """Runs one stream in one process. `stop` may be called from a signal handler."""

    spec: StreamSpec
    engine: Engine
    until_caught_up: bool = False
    sinks: tuple[Sink, ...] = ()
    """Receive the writer's events after the log and the heartbeat."""
    hosting: Hosting = field(default_factory=Hosting)
    stopping: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        """Ask the writer to end after the current batch."""
        self.stopping.set()

    def run(self) -> Marker | None:
        """Run batches until stopped or, with `until_caught_up`, until all records that are now in Kafka are committed.

        Returns the last marker; None if stopped before the take-over or during an outage. Raises errors that a new
        epoch would not fix.
        """
        folder = run_folder(self.spec.name)
        make_folder(folder)
        events = EventDispatcher(self.spec.name, log_event, clock_ms=clock.now_ms)
        fingerprint, table = self.spec.fingerprint(), self.spec.table.identifier
        limits = StallLimits.for_stream(self.spec)
        # The engine may already be started. It ends together with this context, whatever the reason.
        heartbeats = self.hosting.heartbeats
        reporter = Reporter(
            events, fingerprint=fingerprint, table=table, folder=folder, limits=limits, heartbeats=heartbeats
        )
        faults = partial(translate_local_failures, str(folder))  # outside, too: the reporter writes at its start
        with (
            faults(), reporter, record_events(self.spec, events, self.hosting.recording_threads) as recording,
            self.hosting.telemetry.sinks(self.spec) as measuring, ExitStack() as exit_callbacks, self.engine, faults(),
        ):  # fmt: skip
            for sink in (*self.sinks, *measuring):
                events.add(sink)
            try:
                return self._run(folder, events, reporter, recording, exit_callbacks)
            except (KafkaUnavailable, CommitUnavailable) as error:
                if not self.stopping.is_set():
                    raise
                log.info("the writer was asked to end, so it stops waiting: %s", error)
                return None

    def _run(
        self,
        folder: Path,
        events: EventDispatcher,
        reporter: Reporter,
        recording: WriterRecorders,
        exit_callbacks: ExitStack,
    ) -> Marker | None:
        """Wait for a topic and a slot, open the tables, and run epochs."""
        kafka_settings, hosting = resolve_kafka_properties(self.spec, os.environ), self.hosting
        if not self.spec.resources.on_cluster:  # on a cluster, executors have their own environment
            check_secret(self.spec)
        source = (kafka_settings, self.spec.source.reads)
        with KafkaAdmin(*source, stream=self.spec.name, client=hosting.kafka_client) as kafka:
            if not self._wait_for_topics(kafka, events.emit):
                return None
            starting = PhaseBegan(Phase.STARTING)  # so that a writer in the queue does not look stuck
            with hosting.slots.slot(cancelled=self.stopping.is_set, on_wait=lambda: events.emit(starting)) as admitted:
                if not admitted:
                    return None
                table = load_stream_table(self.spec)
                check_own_table(self.spec, table)
                if table is None:
                    kafka.describe()  # a mistyped topic leaves no empty table behind
                self.engine.warm_up()
                if not self.engine.ready(self.stopping.is_set):
                    return None
                tables, progress = self._open_tables(reporter, events.emit)
                recording.start(tables)
            report = reporter.set_planner_report
            notices = Notices(events.emit, tables.main.identifier)
            goal = kafka.ends(kafka.describe().partitions) if self.until_caught_up else None
            epoch = Epoch(self, kafka, tables, progress, folder, events.emit, report, exit_callbacks, notices, goal)
            with RecordFolding(self.spec, events.emit, hosting.foldings):
                try:
                    return self._run_epochs(epoch)
                finally:
                    if tables.main.expiry is not None:
                        tables.main.expiry.end()

    def _wait_for_topics(self, kafka: KafkaAdmin, emit: Callable[[StreamEvent], None]) -> bool:
        """Wait until Kafka has a topic of the pattern. Returns False if the writer is asked to end first."""
        if self.spec.source.topic_pattern is None:
            return True
        table = load_stream_table(self.spec)
        if table is not None and property_name(self.spec.name) in table.metadata.properties:
            return True
        problem = f"no topic of the cluster matches source.topic-pattern '{self.spec.source.topic_pattern}'"
        while not self.stopping.is_set():
            if kafka.describe().partitions:
                return True
            if self.until_caught_up:
                raise TopicMissing(f"{problem}: there is nothing to catch up with", stream=self.spec.name)
            emit(PhaseBegan(Phase.STARTING))
            notice = f"{problem}; the writer checks again every {DESCRIBE_INTERVAL_S:.0f} s"
            emit(OutageReported(notice, TopicMissing.exit_code))
            self.stopping.wait(DESCRIBE_INTERVAL_S)
        return False

    def _run_epochs(self, epoch: Epoch) -> Marker | None:
        stale = 0
        while True:
            try:
                return epoch.run()
            except StaleBatch as error:
                stale = 1 if epoch.commits else stale + 1
                if stale >= MAX_STALE_EPOCHS:
                    raise
                log.warning("%s: beginning a new epoch", error)
            except OffsetGap as error:
                if self.spec.source.on_gap == "fail":
                    raise
                log.warning("%s: beginning a new epoch after it", error)
            except (NoSuchTableError, CommitUnavailable) as error:
                is_missing = isinstance(error, NoSuchTableError) or isinstance(error.__cause__, NoSuchTableError)
                if is_missing and (lost := missing_table_error(self.spec)) is not None:
                    raise lost from error
                raise
            except errors.Fenced as error:
                main = epoch.tables.main
                if not main.is_other_table:
                    raise
                check_own_table(self.spec, main.refresh())
                raise errors.Fenced(
                    f"the table {main.identifier} is no longer the one that stream {self.spec.name!r} "
                    "wrote to: it was dropped or renamed, and created again. The next start begins the stream again in "
                    "an empty table. To keep the rows, restore the former table under this name first"
                ) from error

    def _open_tables(
        self, reporter: Reporter, emit: Callable[[StreamEvent], None]
    ) -> tuple[StreamTables, ProgressFolder]:
        if self.spec.transform:  # before it creates a table
            from frazil.ingest.transform_check import check_transform  # DuckDB, only where a transform is declared

            check_stream_supported(self.spec, records_schema(self.spec))
            check_transform(self.spec)
        catalog = load_catalog(self.spec.table.catalog)
        main = ensure_table(catalog, self.spec)
        if not self.spec.transform:
            check_stream_supported(self.spec, main.schema())
        resources = self.spec.resources
        period_s = cluster_period_s(resources.cores) if resources.on_cluster else 0.0
        progress = ProgressFolder(f"{state_location(main, self.spec.name)}/progress", main.io.properties, period_s)
        run = MergeRunner(self.engine.merge, progress, lambda merge_s: emit(ChangesMerged(merge_s)))
        tables = StreamTables.open(
            self.spec.name,
            {"main": main, "dead-letters": ensure_dead_letters(catalog, self.spec)},
            clock_ms=clock.now_ms,
            retry_policy=RetryPolicy(
                wait=partial(self.wait_without_slot, emit), report=lambda *failed: emit(OutageReported(*failed))
            ),
            align=Alignment.from_spec(self.spec),
            atomic=bool(self.spec.commit.atomic),
            merging=merge_config(self.spec, run, lambda: self.engine.parallelism),
        )
        if read_marker(tables.main.current().metadata.properties, self.spec.name) is None:
            check_own_folder(catalog, tables.main.current())
            check_catalog_guarantees(catalog, self.spec, now_ms=clock.now_ms())
        expiry = self.spec.maintenance.expiry
        if (read_pins := self.hosting.read_pins) is not None and expiry.enabled:

            def pins() -> Pins:  # with a client of the expiry's own thread
                catalog = open_existing_catalog(self.spec.table.catalog)
                return read_pins(catalog, self.spec.table.identifier, expiry, now_ms=clock.now_ms())

            tables.main.expiry = WriterExpiry(expiry, pins, clock.now_ms)
        reporter.set_progress(progress, merges=tables.merging is not None)
        return tables, progress

    def wait_without_slot(self, emit: Callable[[StreamEvent], None], seconds: float) -> bool:
        """Wait during an outage, without this writer's slot. Returns whether the writer must end."""
        notice = OutageReported(
            "after an outage, the writer waits for its turn among the application's streams to try again"
        )
        return self.hosting.slots.release_while(
            lambda: self.stopping.wait(seconds), cancelled=self.stopping.is_set, on_wait=lambda: emit(notice)
        )


@dataclass(slots=True)
class Epoch:
    """A writer's current epoch. Each call of `run` begins the next one."""

    writer: Writer
    kafka: KafkaAdmin
    tables: StreamTables
    progress: ProgressFolder
    folder: Path
    emit: Callable[[StreamEvent], None]
    set_planner_report: Callable[[PlannerReport | None], None]
    exit_callbacks: ExitStack
    notices: Notices
    goal: Offsets | None = None
    """Offsets at which the writer has caught up and ends; None for an endless writer."""
    number: int | None = None
    """The epoch's number. Before the epoch's take-over, the previous epoch's number."""
    commits: int = 0

    @property
    def spec(self) -> StreamSpec:
        return self.writer.spec

    def run(self) -> Marker | None:
        """Run the next epoch, and return the last marker; None if stopped before the take-over."""
        self.commits = 0
        stopping, hosting, waits = self.writer.stopping, self.writer.hosting, PhaseBegan(Phase.TAKING_OVER)
        slot = hosting.slots.slot(cancelled=stopping.is_set, on_wait=lambda: self.emit(waits))
        with translate_catalog_errors(self.tables.main.catalog_name), slot as admitted:
            if not admitted:
                return None
            runner = self._take_over()
        self.exit_callbacks.pop_all()  # of earlier epochs: only attempts of the last batch may still write
        self.exit_callbacks.callback(runner.sweep_stragglers)
        if runner.folding is not None:
            self.exit_callbacks.callback(runner.folding.end)
        late, drain = 0, self.goal is not None
        while not self._is_over(runner):
            loop = BatchLoop(self.writer.engine, runner, drain, self.set_planner_report, hosting)
            try:
                loop.run(until=partial(self._is_over, runner, loop.is_left_unread), wait=stopping.wait)
                break
            except PythonStartTimeout as error:
                # Nothing was staged or lost, so the epoch continues.
                late = 1 if loop.commits else late + 1
                if late >= MAX_START_ATTEMPTS:
                    raise
                wait_s = min(2.0**late, MAX_START_WAIT_S)
                log.warning("%s. The writer tries again in %.0f s", error, wait_s)
                self.emit(PhaseBegan(Phase.STARTING))
                stopping.wait(wait_s)
            finally:
                self.commits += loop.commits
        return runner.marker

    def _is_over(self, runner: BatchRunner, is_left_unread: Callable[[TopicPartition], bool] = lambda _: False) -> bool:
        if self.writer.stopping.is_set():
            return True
        if runner.route.behind or self.goal is None:
            return False
        return all(runner.marker.offsets.get(tp, 0) >= end or is_left_unread(tp) for tp, end in self.goal.items())

    def _take_over(self) -> BatchRunner:
        self.emit(PhaseBegan(Phase.TAKING_OVER))
        spec, tables, topics = self.spec, self.tables, self.kafka.describe()
        make = partial(create_missing_table, spec, tables)
        committer = Committer.take_over(
            tables,
            source=topics.identity,
            initial=lambda: self.kafka.starts(spec.source.start, topics.partitions),
            first_epoch=1 + highest_epoch(tables),
            after=self.number,
            load_followers=partial(Followers.load, tables, make=make, atomic=spec.commit.atomic),
        )
        self.number = committer.epoch
        settled = settle(tables, committer)
        marker = tables.marker()
        if marker is None:
            raise errors.Fenced(f"stream {spec.name!r} was forgotten while its writer started")
        self.emit(EpochBegan(committer.epoch, marker, settled))
        marker = self._handle_offset_gaps(committer, marker, topics)
        runner = BatchRunner(
            spec=spec,
            kafka=self.kafka,
            kafka_properties=executor_kafka_properties(spec, os.environ),
            tables=tables,
            committer=committer,
            marker=marker,
            emit=self.emit,
            run_folder=self.folder,
            progress=self.progress,
            wait=partial(self.writer.wait_without_slot, self.emit),
            rejects_accepted=accepted_offsets(tables, marker.source),
            route=StreamRoute.begin(spec, tables, marker, committer.followers, self.emit),
            notices=self.notices,
            folding=WriterFolding.open(spec.maintenance.compaction, tables),
        )
        for journal in settled.committed:
            runner.report(journal)
        return runner

    def _handle_offset_gaps(self, committer: Committer, marker: Marker, topics: Topics) -> Marker:
        """Raise `OffsetGap` for unread records that Kafka deleted. With `on-gap: skip`, skip their offsets instead.

        Returns the marker.
        """
        stream, available = self.spec.name, self.kafka.earliest(topics.partitions_with_leader)
        # Some topics that match the pattern may have been deleted.
        read = keep_topics(marker.offsets, topics.identity.topic_ids)
        led = {tp: offset for tp, offset in read.items() if tp not in topics.leaderless}
        truncated_at = find_truncations(self.kafka, led, marker.leader_epochs)
        if self.spec.source.on_gap == "fail":
            check_no_gap(marker.offsets, available, stream=stream)
            check_not_truncated(read, truncated_at, stream=stream)
            return marker
        if truncated_at:
            tables, state = self.tables, read_state_before_reset(self.tables)
            check_fence(state.marker, stream=stream, epoch=committer.epoch)
            target = {**read, **truncated_at}
            moved = reset(tables, target=target, source=topics.identity, seen=state, truncated_at=truncated_at)
            self.number = moved.key.epoch
            check_not_truncated(read, truncated_at, stream=stream)
        lost = describe_lost_ranges(marker.offsets, available)
        if not lost:
            return marker
        marker = committer.skip(available, lost=lost)
        self.emit(RecordsSkipped(lost, marker))
        return marker
