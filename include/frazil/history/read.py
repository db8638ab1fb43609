"""Reads a stream's history for people: a read error becomes a sentence."""

from __future__ import annotations

from pyiceberg.table import Table

from frazil.errors import FrazilError
from frazil.history.objects import Objects
from frazil.history.past import Part, Past
from frazil.history.points import Happened, History
from frazil.history.supervision import ActionLog, read_actions
from frazil.spec.model import StreamSpec
from frazil.table.tables import load_stream_table

TRIES = 2
"""Attempts to read: a writer that takes over deletes the listed objects after it has written its own."""


def read_history(spec: StreamSpec, *, since_ms: int) -> History:
    """Return a stream's history after `since_ms`. Never raises; may block as long as catalog and storage do.

    Without a table, or before the first minute, the history is empty and has no problem.
    """
    try:
        table = load_stream_table(spec)
    except Exception as error:  # catalogs raise what their clients raise
        return History(problem=f"the table cannot be read: {_words(error)}")
    return History() if table is None else history_of(table, spec.name, since_ms=since_ms)


def history_of(table: Table, stream: str, *, since_ms: int) -> History:
    """Return the history as `read_history` does, for a loaded table."""
    try:
        objects = Objects.of(table, stream)
        past, problems = _read(objects, since_ms=since_ms)
        by_others = [read_actions(objects, recorded) for recorded in ActionLog]
    except Exception as error:  # storages raise what their clients raise
        return History(problem=f"the history cannot be read: {_words(error)}")
    recorded = [what for found, _ in by_others for what in found]
    problems += [problem for _, more in by_others for problem in more]
    happened: list[Happened] = sorted((*past.happened, *recorded), key=lambda what: what.at_ms)
    return History(
        tuple(point for point in past.points() if point.end_ms > since_ms),
        tuple(what for what in happened if what.at_ms >= since_ms),
        "; ".join(problems) or None,
    )


def _read(objects: Objects, *, since_ms: int) -> tuple[Past, list[str]]:
    past, problems = Past(), list[str]()
    for _ in range(TRIES):
        found = objects.found()
        past, problems = objects.read(found, (Part.MINUTES, Part.HAPPENED))
        if min(past.minutes, default=since_ms + 1) > since_ms:
            older, more = objects.read(found, (Part.TENS,))
            past.tens, problems = older.tens, problems + more
        if not found or past != Past():
            break
    return past, problems


def _words(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, FrazilError) else f"{type(error).__name__}: {text}"
