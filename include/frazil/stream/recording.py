"""Connects a writer with the recorders of its events: the stream's history, and OpenLineage if declared."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit

from frazil.commit.stream_tables import StreamTables
from frazil.events import (
    BatchCommitted,
    CommitRecordsFolded,
    DistributionChosen,
    EpochBegan,
    Event,
    EventDispatcher,
    FutureEventTimes,
    NoticeIssued,
    RecordsSkipped,
    StallBegan,
    StallEnded,
    TableEvolved,
    ThrottleEvaluated,
)
from frazil.history.objects import HistoryStore, history_location
from frazil.history.recorder import Recorder, RecordingThreads
from frazil.lineage.facts import LineageSettings
from frazil.lineage.jobs import connect
from frazil.lineage.stream import StreamLineage
from frazil.spec.model import StreamSpec
from frazil.spec.references import resolve_kafka_properties
from frazil.stream.stall import StallLimits
from frazil.table.catalogs import open_existing_catalog
from frazil.table.storage import open_store
from frazil.timetext import format_elapsed

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WriterRecorders:
    recorder: Recorder
    lineage: StreamLineage | None
    recording_threads: RecordingThreads

    def start(self, tables: StreamTables) -> None:
        """Start to record, with the main table's latest credentials. Call this once the tables exist."""
        main = tables.main
        table = main.current()
        location, uuid = history_location(table, tables.stream), str(table.metadata.table_uuid)
        self.recorder.opens(lambda: HistoryStore(open_store(location, main.io_properties), location, uuid))
        where = urlsplit(location)
        self.recording_threads.add(self.recorder, storage=f"{where.scheme}://{where.netloc}")
        if self.lineage is not None:
            catalog, identifier = table.catalog.name, main.identifier
            self.lineage.opens(lambda: open_existing_catalog(catalog).load_table(identifier))
            self.recording_threads.add(self.lineage, storage="openlineage")

    def finish(self, error: BaseException | None, *, at_ms: int) -> None:
        """Record that the writer has ended, and why. Waits at most a few seconds until the last entries are written."""
        words = None if error is None else f"{type(error).__name__}: {error}"
        if words is not None:
            self.recorder.ended(words, at_ms=at_ms)
        self.recording_threads.remove(self.recorder)
        if self.lineage is not None:
            self.lineage.ended(words, at_ms=at_ms)
            self.recording_threads.remove(self.lineage)


@contextmanager
def record_events(
    spec: StreamSpec, events: EventDispatcher, recording_threads: RecordingThreads
) -> Iterator[WriterRecorders]:
    lineage = _create_lineage(spec)
    recording = WriterRecorders(
        Recorder(spec.name, interval_ms=StallLimits.for_stream(spec).interval_ms), lineage, recording_threads
    )
    events.add(recording.recorder.take)
    if lineage is not None:
        events.add(lineage.take)
    try:
        yield recording
    except BaseException as error:
        recording.finish(error, at_ms=events.clock_ms())
        raise
    else:
        recording.finish(None, at_ms=events.clock_ms())


def _create_lineage(spec: StreamSpec) -> StreamLineage | None:
    settings = LineageSettings.load(os.environ)
    for problem in settings.problems:
        log.warning("stream %s: %s", spec.name, problem)
    if not settings.on:
        return None

    client = partial(connect, settings, spec.name, streaming=True)
    bootstrap = str(resolve_kafka_properties(spec, os.environ).get("bootstrap.servers", ""))
    return StreamLineage(spec.name, settings=settings, bootstrap=bootstrap, topics=spec.source.topics, connect=client)


_batch = logging.getLogger("frazil.stream.batch")
_writer = logging.getLogger("frazil.stream.writer")
_stalls = logging.getLogger("frazil.stream.stall")
_folding = logging.getLogger("frazil.stream.record_folding")
"""Logger names that must not change, because users search for them."""


def log_event(event: Event) -> None:
    stream, fact = event.stream, event.payload
    match fact:
        case EpochBegan():
            _writer.info("a writer took over (epoch %d): %s", fact.epoch, fact.settled)
        case RecordsSkipped():
            _writer.warning(
                "Kafka's retention deleted records that stream %r had not read. They are skipped: %s", stream, fact.lost
            )
        case BatchCommitted():
            _batch.info(
                "batch %s: %d records, %d dead letters, %d files; staged in %.2f s, committed in %.3f s",
                fact.key, fact.records, fact.rejected, fact.files, fact.stage_s, fact.commit_s,
            )  # fmt: skip
        case FutureEventTimes():
            _batch.warning("batch %s: %s", fact.key, fact.describe())
        case ThrottleEvaluated(reason=str()) if not fact.was_under_pressure:
            _batch.warning("stream %s: %s", stream, fact.reason)
        case ThrottleEvaluated(reason=None) if fact.was_under_pressure:
            _batch.info("stream %s: the table's metadata no longer grows; commits follow the declared interval", stream)
        case DistributionChosen():
            _batch.info(
                "batch %s: rows are %s: %s", fact.key, "shuffled" if fact.shuffled else "not shuffled", fact.reason
            )
        case StallBegan():
            _stalls.warning("stream %s: stalled (%s): %s", stream, fact.stall.kind, fact.stall.failure)
        case StallEnded(is_over=True):
            _stalls.info(
                "stream %s: the stall (%s) is over after %s", stream, fact.kind, format_elapsed(fact.lasted_ms)
            )
        case TableEvolved():
            _batch.info(
                "batch %s: %s evolves, and the batch is staged again: %s", fact.key, fact.table, "; ".join(fact.changes)
            )
        case NoticeIssued(replaces=""):
            _writer.warning("stream %s: %s", stream, fact.sentence)
        case CommitRecordsFolded():
            _folding.info("stream %r: %d old commit records were folded", stream, fact.records)
