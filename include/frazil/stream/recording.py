"""Connects a writer with the recorders of its events: the stream's history, and OpenLineage if it is declared."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from frazil.commit.stream_tables import StreamTables
from frazil.events import Events
from frazil.history.objects import HistoryStore, history_location
from frazil.history.recorder import Recorder
from frazil.history.recording_threads import RecordingThreads
from frazil.lineage.facts import Settings
from frazil.lineage.stream import Sender, StreamLineage
from frazil.spec.model import StreamSpec
from frazil.spec.references import kafka_properties
from frazil.stream.stall_history import Limits
from frazil.table.catalogs import open_existing_catalog
from frazil.table.storage import open_store

log = logging.getLogger(__name__)

LINEAGE = "openlineage"
"""The thread that sends to OpenLineage. It is separate from the threads that write to storages."""


@dataclass(frozen=True, slots=True)
class Recording:
    """The recorders of one writer."""

    recorder: Recorder
    lineage: StreamLineage | None
    recording_threads: RecordingThreads

    def opens(self, tables: StreamTables) -> None:
        """Start to record, once the tables exist. The history is written with the main table's latest credentials."""
        main = tables.main
        table = main.current()
        location, uuid = history_location(table, tables.stream), str(table.metadata.table_uuid)
        self.recorder.opens(lambda: HistoryStore(open_store(location, main.io_properties), location, uuid))
        where = urlsplit(location)
        self.recording_threads.add(self.recorder, storage=f"{where.scheme}://{where.netloc}")
        if self.lineage is not None:
            catalog, identifier = table.catalog.name, main.identifier
            self.lineage.opens(lambda: open_existing_catalog(catalog).load_table(identifier))
            self.recording_threads.add(self.lineage, storage=LINEAGE)

    def ended(self, error: BaseException | None, *, at_ms: int) -> None:
        """Record that the writer has ended, with the error that ended it, if any.

        Returns when the last entries are written, or after some seconds.
        """
        words = None if error is None else f"{type(error).__name__}: {error}"
        if words is not None:
            self.recorder.ended(words, at_ms=at_ms)
        self.recording_threads.remove(self.recorder)
        if self.lineage is not None:
            self.lineage.ended(words, at_ms=at_ms)
            self.recording_threads.remove(self.lineage)


@contextmanager
def recorded(spec: StreamSpec, events: Events, recording_threads: RecordingThreads) -> Iterator[Recording]:
    """Record the events of a writer from its start to its end."""
    lineage = _lineage(spec)
    recording = Recording(
        Recorder(spec.name, interval_ms=Limits.for_stream(spec).interval_ms), lineage, recording_threads
    )
    events.add(recording.recorder.take)
    if lineage is not None:
        events.add(lineage.take)
    try:
        yield recording
    except BaseException as error:
        recording.ended(error, at_ms=events.clock_ms())
        raise
    else:
        recording.ended(None, at_ms=events.clock_ms())


def _lineage(spec: StreamSpec) -> StreamLineage | None:
    settings = Settings.load(os.environ)
    for problem in settings.problems:
        log.warning("stream %s: %s", spec.name, problem)
    if not settings.on:
        return None

    def connect() -> Sender:
        try:
            from frazil.lineage.client import Client  # noqa: PLC0415 - needs the extra, and no one else does
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"{error}. Install frazil[lineage]") from error
        return Client(settings, spec.name)

    bootstrap = str(kafka_properties(spec, os.environ).get("bootstrap.servers", ""))
    return StreamLineage(spec.name, settings=settings, bootstrap=bootstrap, topics=spec.source.topics, connect=connect)
