"""The writer of one stream: take over, settle, stream; begin the next epoch when a batch turns out stale.

Spark's checkpoint is scratch: every epoch opens the query in a new folder with the marker's offsets as its start.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from frazil import errors
from frazil.commit.committer import Committer, StreamTables
from frazil.commit.marker import Marker
from frazil.commit.settle import highest_epoch, settle
from frazil.commit.swap import TableHandle
from frazil.commit.target import target_file_bytes
from frazil.errors import FrazilError, OffsetGap, StaleBatch
from frazil.home import run_folder
from frazil.ingest.contract import TopicPartition
from frazil.ingest.decode import check_supported
from frazil.partitions.open_windows import Alignment
from frazil.spec.model import StreamSpec
from frazil.spec.references import kafka_properties
from frazil.stream.batch import BatchRunner
from frazil.stream.kafka import KafkaOffsets, Topics
from frazil.stream.plan import Policy
from frazil.stream.planner import (
    PlannerSettings,
    Position,
    check_no_gap,
    clear_report,
    lost_ranges,
    read_rates,
    read_report,
    write_rates,
)
from frazil.stream.progress import ProgressFolder
from frazil.stream.reporter import Reporter
from frazil.stream.session import start_session, warm_up, with_source
from frazil.stream.source import FORMAT
from frazil.supervise.heartbeat import Phase
from frazil.supervise.stall_history import Limits
from frazil.table.catalogs import load_catalog
from frazil.table.storage import ObjectStore, open_store
from frazil.table.tables import ensure_dead_letters, ensure_table, state_location

log = logging.getLogger(__name__)

TRIGGER_MOST_S = 0.5
LOOK_S = 0.2
QUIET_WITHIN_S = 2.0
QUIET_LOOK_S = 0.02
STALE_LIMIT = 3
"""Epochs in a row that end stale before the writer ends too: something else changes the stream under it."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class Writer:
    """One process's work for one stream. `stop` may be called from a signal handler."""

    spec: StreamSpec
    until_caught_up: bool = False
    session: SparkSession | None = None
    """One to use and leave running; without it the run starts its own, and ends it."""
    stopping: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        """End after the batch at hand has committed."""
        self.stopping.set()

    def run(self) -> Marker | None:
        """Write until stopped, or until everything is committed that was in Kafka at the start.

        Returns the last marker. Raises the error that no restart of the query mends.
        """
        folder = run_folder(self.spec.name)
        with Reporter(
            stream=self.spec.name,
            fingerprint=self.spec.fingerprint(),
            folder=folder,
            limits=Limits.for_stream(self.spec),
            clock_ms=now_ms,
        ) as reporter:
            return self._run(folder, reporter)

    def _run(self, folder: Path, reporter: Reporter) -> Marker | None:
        properties = kafka_properties(self.spec, os.environ)
        # The JVM takes seconds to start, which the take-over needs as well; and off the main thread Spark leaves
        # our signal handlers alone.
        with ThreadPoolExecutor(1, "spark") as pool, KafkaOffsets(properties, self.spec.source.topics) as kafka:
            session = pool.submit(self._start_session)
            pool.submit(warm_up, session, self.spec.resources.cores)
            try:
                tables, store, progress = self._open(reporter)
                return self._epochs(
                    EpochParts(self.spec, session, kafka, properties, tables, store, progress, folder, reporter)
                )
            finally:
                if not self.session:
                    session.result().stop()

    def _start_session(self) -> SparkSession:
        return with_source(self.session) if self.session else start_session(self.spec)

    def _epochs(self, parts: EpochParts) -> Marker | None:
        goal = parts.kafka.ends(parts.kafka.describe().partitions) if self.until_caught_up else None
        stale = 0
        while True:
            epoch = Epoch(parts, goal=goal, stopping=self.stopping)
            try:
                return epoch.run()
            except StaleBatch as error:
                stale = 1 if epoch.commits else stale + 1
                if stale >= STALE_LIMIT:
                    raise
                log.warning("%s: beginning a new epoch", error)
            except OffsetGap as error:
                if self.spec.source.on_gap == "fail":
                    raise
                log.warning("%s: beginning a new epoch after it", error)

    def _open(self, reporter: Reporter) -> tuple[StreamTables, ObjectStore, ProgressFolder]:
        catalog = load_catalog(self.spec.table.catalog)
        main = ensure_table(catalog, self.spec)
        check_supported(main.schema(), self.spec.source.format)
        dead_letters = ensure_dead_letters(catalog, self.spec)
        state = state_location(main, self.spec.name)
        handle = TableHandle.of(main)
        store = open_store(main.location(), handle.io_properties)
        progress = ProgressFolder(f"{state}/progress", handle.io_properties)
        reporter.table(main.location(), progress)
        align = Alignment.of(self.spec)
        tables = StreamTables.of(self.spec.name, main, dead_letters, store=store, clock_ms=now_ms, align=align)
        return replace(tables, main=handle), store, progress


@dataclass(frozen=True, slots=True)
class EpochParts:
    """What all epochs of one process share."""

    spec: StreamSpec
    session: Future[SparkSession]
    kafka: KafkaOffsets
    kafka_properties: Mapping[str, str]
    tables: StreamTables
    store: ObjectStore
    progress: ProgressFolder
    folder: Path
    reporter: Reporter


@dataclass(slots=True)
class Epoch:
    """From one take-over to the end of its query."""

    parts: EpochParts
    goal: Mapping[TopicPartition, int] | None
    stopping: threading.Event
    commits: int = 0
    failure: BaseException | None = None
    batch_lock: threading.Lock = field(default_factory=threading.Lock)
    ended: bool = False

    def run(self) -> Marker:
        runner = self._begin()
        if self._caught_up(runner.marker):
            return runner.marker
        query = self._open_query(runner)
        try:
            self._watch(query, runner)
        finally:
            self._close(query)
        return runner.marker

    def _begin(self) -> BatchRunner:
        """Take over and settle: after it nothing of an earlier epoch is left to be decided."""
        p = self.parts
        p.reporter.phase(Phase.TAKING_OVER)
        topics = p.kafka.describe()
        committer = Committer.take_over(
            p.tables,
            source=topics.identity,
            initial=lambda: p.kafka.starts(p.spec.source.start, topics.partitions),
            first_epoch=1 + highest_epoch(p.tables, p.store),
        )
        settled = settle(p.tables, committer, p.store)
        marker = p.tables.marker()
        if marker is None:
            raise errors.Fenced(f"stream {p.spec.name!r} was forgotten while its writer started")
        log.info("epoch %d: %s", committer.epoch, settled)
        p.reporter.committed(marker, at_ms=now_ms() if settled.committed else None)
        marker = self._after_gaps(committer, marker, topics)
        return BatchRunner(
            spec=p.spec,
            kafka=p.kafka,
            kafka_properties=p.kafka_properties,
            tables=p.tables,
            store=p.store,
            committer=committer,
            marker=marker,
            reporter=p.reporter,
            run_folder=p.folder,
            progress=p.progress,
        )

    def _after_gaps(self, committer: Committer, marker: Marker, topics: Topics) -> Marker:
        """The marker past what retention deleted, where the stream is declared to go on; raises `OffsetGap` else."""
        stream, available = self.parts.spec.name, self.parts.kafka.earliest(topics.partitions)
        if self.parts.spec.source.on_gap == "fail":
            check_no_gap(marker.offsets, available, stream=stream)
            return marker
        lost = lost_ranges(marker.offsets, available)
        if not lost:
            return marker
        log.warning("Kafka's retention deleted records that stream %r had not read, and skips now: %s", stream, lost)
        marker = committer.skip(available, lost=lost)
        # What retention deleted is no lag: nothing would ever come nearer to reading it.
        self.parts.reporter.committed(marker, at_ms=None)
        return marker

    def _open_query(self, runner: BatchRunner) -> StreamingQuery:
        p = self.parts
        for old in p.folder.glob("checkpoint-*"):
            shutil.rmtree(old, ignore_errors=True)
        clear_report(p.folder)
        # An earlier writer may have left it stretched: what the table is like is judged anew.
        write_rates(p.folder, replace(read_rates(p.folder), stretch=1.0))
        p.reporter.throttled(None, stretch=1.0)
        position = Position(runner.marker.offsets, runner.marker.idle)
        interval_s = p.spec.commit.interval / timedelta(seconds=1)
        ranges = (
            p.session.result()
            .readStream.format(FORMAT)
            .option("spec", p.spec.model_dump_json(by_alias=True))
            .option("settings", self._settings(interval_s).to_json())
            .option("source", json.dumps(asdict(runner.marker.source)))
            .option("position", json.dumps(position.to_json()))
            .load()
        )
        query = (
            ranges.writeStream.foreachBatch(self._batch_function(runner))
            .queryName(p.spec.name)
            .trigger(processingTime=f"{int(min(TRIGGER_MOST_S, interval_s / 10) * 1000)} milliseconds")
            .option("checkpointLocation", (p.folder / f"checkpoint-{runner.committer.epoch}").as_uri())
            .start()
        )
        p.reporter.phase(Phase.WAITING)
        return query

    def _settings(self, interval_s: float) -> PlannerSettings:
        spec = self.parts.spec
        return PlannerSettings(
            stream=spec.name,
            topics=spec.source.topics,
            policy=Policy(
                interval_s=interval_s,
                longest_interval_s=spec.commit.longest_interval / timedelta(seconds=1),
                size_bytes=spec.commit.size,
                max_records=spec.commit.max_records,
                target_file_bytes=target_file_bytes(self.parts.tables.main.current()),
                parallelism=spec.resources.cores,
                drain=self.goal is not None,
            ),
            idle_timeout_s=spec.watermark.idle_timeout / timedelta(seconds=1),
            run_folder=self.parts.folder,
        )

    def _batch_function(self, runner: BatchRunner) -> Callable[[DataFrame, int], None]:
        def run_batch(ranges: DataFrame, batch_id: int) -> None:  # noqa: ARG001
            with self.batch_lock:
                if self.ended or self.failure:
                    return
                try:
                    runner.run(ranges)
                    self.commits += 1
                except BaseException as error:
                    self.failure = error
                    raise

        return run_batch

    def _watch(self, query: StreamingQuery, runner: BatchRunner) -> None:
        """Wait for the query's end, for the stop, or for the goal. Raises what ended the query."""
        while True:
            try:
                over = query.awaitTermination(LOOK_S)  # type: ignore[arg-type]  # takes fractions of a second
            except StreamingQueryException as error:
                raise self._cause(error) from error
            if self.failure:
                raise self.failure
            if over or self.stopping.is_set() or self._caught_up(runner.marker):
                return

    def _caught_up(self, marker: Marker) -> bool:
        return self.goal is not None and all(marker.offsets.get(tp, 0) >= end for tp, end in self.goal.items())

    def _cause(self, error: StreamingQueryException) -> BaseException:
        """What really happened: the batch's own error, or the planner's, which Spark passes on as text only."""
        if self.failure:
            return self.failure
        report = read_report(self.parts.folder)
        if report and report.error_type:
            kind: type[FrazilError] = getattr(errors, report.error_type, FrazilError)
            return kind(report.error)
        return error

    def _close(self, query: StreamingQuery) -> None:
        """Stop the query between two batches: the lock is free only when no batch of ours is at hand.

        Spark then still writes its checkpoint, and would be interrupted with a page of warnings.
        """
        self.parts.reporter.phase(Phase.STOPPING)
        with self.batch_lock:
            self.ended = True
        deadline = time.monotonic() + QUIET_WITHIN_S
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
            time.sleep(QUIET_LOOK_S)
        query.stop()
