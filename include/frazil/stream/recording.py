"""Connects a writer with its stream's history: a sink records the events, and a scribe's thread writes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from frazil.commit.stream_tables import StreamTables
from frazil.events import Events
from frazil.history.objects import Objects, history_location
from frazil.history.recorder import Recorder
from frazil.history.scribes import Scribes
from frazil.spec.model import StreamSpec
from frazil.stream.stall_history import Limits
from frazil.table.storage import open_store


@contextmanager
def recorded(spec: StreamSpec, events: Events, scribes: Scribes) -> Iterator[Recorder]:
    """A recorder that receives the events, from the start on, and writes its last minute in the end."""
    recorder = Recorder(spec.name, interval_ms=Limits.for_stream(spec).interval_ms)
    events.add(recorder.take)
    try:
        yield recorder
    except BaseException as error:
        recorder.ended(f"{type(error).__name__}: {error}", at_ms=events.clock_ms())
        raise
    finally:
        scribes.remove(recorder)


def record_beside(tables: StreamTables, recorder: Recorder, scribes: Scribes) -> None:
    """Let it write beside the stream's table, with its credentials as last loaded."""
    main = tables.main
    table = main.current()
    location, uuid = history_location(table, tables.stream), str(table.metadata.table_uuid)
    recorder.opens(lambda: Objects(open_store(location, main.io_properties), location, uuid))
    where = urlsplit(location)
    scribes.add(recorder, storage=f"{where.scheme}://{where.netloc}")
