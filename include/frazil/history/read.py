"""Reads a stream's history for display. Read errors are returned as text in `History.problem`."""

from __future__ import annotations

from pyiceberg.table import Table

from frazil.errors import FrazilError
from frazil.history.objects import HistoryStore
from frazil.history.past import Part, StreamHistory
from frazil.history.points import History, HistoryEvent
from frazil.history.supervision import ActionLog, read_actions
from frazil.spec.model import StreamSpec
from frazil.table.tables import load_stream_table

READ_ATTEMPTS = 2
"""Number of read attempts. A writer that takes over may delete the listed objects between listing and reading."""


def read_history(spec: StreamSpec, *, since_ms: int) -> History:
    """Return a stream's history after `since_ms`. Never raises; may block as long as catalog and storage do.

    Without a table, or before the first minute, the history is empty and has no problem.
    """
    try:
        table = load_stream_table(spec)
    except Exception as error:  # catalogs raise what their clients raise
        return History(problem=f"cannot read the table: {_error_text(error)}")
    return History() if table is None else read_table_history(table, spec.name, since_ms=since_ms)


def read_table_history(table: Table, stream: str, *, since_ms: int) -> History:
    """Return the history stored next to a loaded table, like `read_history`."""
    try:
        objects = HistoryStore.open(table, stream)
        past, problems = _read(objects, since_ms=since_ms)
        by_others = [read_actions(objects, recorded) for recorded in ActionLog]
    except Exception as error:  # storages raise what their clients raise
        return History(problem=f"cannot read the history: {_error_text(error)}")
    recorded = [what for found, _ in by_others for what in found]
    problems += [problem for _, more in by_others for problem in more]
    happened: list[HistoryEvent] = sorted((*past.happened, *recorded), key=lambda what: what.at_ms)
    return History(
        tuple(point for point in past.points() if point.end_ms > since_ms),
        tuple(what for what in happened if what.at_ms >= since_ms),
        "; ".join(problems) or None,
    )


def _read(objects: HistoryStore, *, since_ms: int) -> tuple[StreamHistory, list[str]]:
    past, problems = StreamHistory(), list[str]()
    for _ in range(READ_ATTEMPTS):
        found = objects.list_objects()
        past, problems = objects.read(found, (Part.MINUTES, Part.HAPPENED))
        if min(past.minutes, default=since_ms + 1) > since_ms:
            older, more = objects.read(found, (Part.TENS,))
            past.tens, problems = older.tens, problems + more
        if not found or past != StreamHistory():
            break
    return past, problems


def _error_text(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, FrazilError) else f"{type(error).__name__}: {text}"
