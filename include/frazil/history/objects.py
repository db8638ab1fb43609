"""Stores and reads a stream's history as objects: `<location>/_frazil/_history/<stream>/<epoch>-<part>.json`. Each
write replaces the whole object of a part. A writer loads the objects of earlier epochs, then deletes them; readers use
the highest epoch. Other tables' objects in the folder are ignored.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pyiceberg.table import Table

from frazil.errors import error_text
from frazil.history.points import EventKind, HistoryEvent, HistoryPart, Point, RecordedHistory, StreamHistory
from frazil.spec.model import StreamSpec
from frazil.table.lost_tables import STATE_FOLDER
from frazil.table.object_store import ObjectStore
from frazil.table.storage import open_store
from frazil.table.tables import load_stream_table

FORMAT_VERSION = 1
READ_ATTEMPTS = 2
_NAME = re.compile(rf"(\d{{8,}})-({'|'.join(HistoryPart)})\.json")
_COLUMNS = tuple(field.name for field in dataclasses.fields(Point))
_OPTIONAL = frozenset(field.name for field in dataclasses.fields(Point) if field.default is None)


class ActionLog(StrEnum):
    SUPERVISION = "supervision"
    USERS = "acts"
    """Actions of users on the stream."""


class HistoryUnreadable(Exception):
    """An object of a history has unexpected content."""


def history_location(table: Table, stream: str) -> str:
    """Return the folder of a stream's history. No stream is called `_history`: names never begin with an underscore."""
    return f"{table.location().rstrip('/')}/{STATE_FOLDER}/_history/{stream}"


@dataclass(frozen=True, slots=True)
class HistoryObject:
    epoch: int
    part: HistoryPart
    path: str

    @classmethod
    def from_path(cls, path: str) -> HistoryObject | None:
        name = _NAME.fullmatch(path.rsplit("/", 1)[-1])
        return cls(int(name[1]), HistoryPart(name[2]), path) if name else None


@dataclass(frozen=True, slots=True)
class HistoryStore:
    """A stream's history in the storage. Methods raise the storage's errors."""

    store: ObjectStore
    location: str
    table_uuid: str

    @classmethod
    def open(cls, table: Table, stream: str) -> HistoryStore:
        location = history_location(table, stream)
        return cls(open_store(location, table.io.properties), location, str(table.metadata.table_uuid))

    def put(self, epoch: int, past: StreamHistory, part: HistoryPart) -> None:
        self.store.put(f"{self.location}/{epoch:08d}-{part}.json", encode_part(past, part, self.table_uuid))

    def list_objects(self) -> list[HistoryObject]:
        objects = (HistoryObject.from_path(file.path) for file in self.store.list_files(self.location))
        return [stored for stored in objects if stored is not None]

    def delete(self, objects: Iterable[HistoryObject]) -> None:
        self.store.delete([stored.path for stored in objects])

    def read(
        self, objects: Iterable[HistoryObject], parts: Iterable[HistoryPart] = HistoryPart
    ) -> tuple[StreamHistory, list[str]]:
        """Return the history, and messages about unreadable objects, which earlier objects replace."""
        past, problems = StreamHistory(), []
        newest_first = sorted(objects, key=lambda stored: stored.epoch, reverse=True)
        for part in parts:
            for stored in newest_first:
                if stored.part is not part or (data := self.store.get(stored.path)) is None:
                    continue
                try:
                    if decode_part(data, part, past, self.table_uuid):
                        break
                except HistoryUnreadable as error:
                    problems.append(f"{stored.path}: {error}")
        return past, problems

    def read_actions(self, action_log: ActionLog) -> tuple[list[HistoryEvent], list[str]]:
        past, path = StreamHistory(), self._action_path(action_log)
        try:
            if (data := self.store.get(path)) is not None:
                decode_part(data, HistoryPart.EVENTS, past, self.table_uuid)
        except HistoryUnreadable as error:
            return [], [f"{path}: {error}"]
        return past.events, []

    def put_actions(self, action_log: ActionLog, past: StreamHistory) -> None:
        self.store.put(self._action_path(action_log), encode_part(past, HistoryPart.EVENTS, self.table_uuid))

    def _action_path(self, action_log: ActionLog) -> str:
        return f"{self.location}/{action_log}.json"


def read_history(spec: StreamSpec, *, since_ms: int) -> RecordedHistory:
    """Return a stream's history after `since_ms`. Never raises; blocks if the storage does."""
    try:
        table = load_stream_table(spec)
    except Exception as error:  # catalogs raise what their clients raise
        return RecordedHistory(problem=f"cannot read the table: {error_text(error)}")
    return RecordedHistory() if table is None else read_table_history(table, spec.name, since_ms=since_ms)


def read_table_history(table: Table, stream: str, *, since_ms: int) -> RecordedHistory:
    """Return the history after `since_ms` from the storage of a loaded table. Never raises."""
    try:
        store = HistoryStore.open(table, stream)
        past, problems = _read_recent(store, since_ms=since_ms)
        for action_log in ActionLog:
            actions, unreadable = store.read_actions(action_log)
            past.events += actions
            problems += unreadable
    except Exception as error:  # storages raise what their clients raise
        return RecordedHistory(problem=f"cannot read the history: {error_text(error)}")
    return RecordedHistory(
        tuple(point for point in past.points() if point.end_ms > since_ms),
        tuple(event for event in sorted(past.events, key=lambda event: event.at_ms) if event.at_ms >= since_ms),
        "; ".join(problems) or None,
    )


def _read_recent(store: HistoryStore, *, since_ms: int) -> tuple[StreamHistory, list[str]]:
    """Ten-minute points are read only for times before the one-minute points."""
    past, problems = StreamHistory(), list[str]()
    for _ in range(READ_ATTEMPTS):
        objects = store.list_objects()
        past, problems = store.read(objects, (HistoryPart.MINUTES, HistoryPart.EVENTS))
        if min(past.minutes, default=since_ms + 1) > since_ms:
            older, older_problems = store.read(objects, (HistoryPart.TENS,))
            past.tens, problems = older.tens, problems + older_problems
        if not objects or past != StreamHistory():
            break
    return past, problems


def encode_part(past: StreamHistory, part: HistoryPart, table_uuid: str) -> bytes:
    value: dict[str, Any] = {"format": FORMAT_VERSION, "table-uuid": table_uuid}
    if part is HistoryPart.EVENTS:
        value["happened"] = [[event.at_ms, event.kind, event.sentence] for event in past.events]
    else:
        points = past.tens if part is HistoryPart.TENS else past.minutes
        value["columns"] = _COLUMNS
        value["points"] = [[getattr(p, name) for name in _COLUMNS] for _, p in sorted(points.items())]
    return json.dumps(value, separators=(",", ":")).encode()


def decode_part(data: bytes, part: HistoryPart, past: StreamHistory, table_uuid: str) -> bool:
    """Load a part into `past`. Returns False if the part belongs to another table. Raises HistoryUnreadable."""
    try:
        value = json.loads(data)
        if value["format"] != FORMAT_VERSION:
            text = f"unsupported format {value['format']}; this version of frazil reads format {FORMAT_VERSION}"
            raise HistoryUnreadable(text)
        if value["table-uuid"] != table_uuid:
            return False
        if part is HistoryPart.EVENTS:
            kinds = set(EventKind)
            past.events = [
                HistoryEvent(int(at_ms), EventKind(k), str(s)) for at_ms, k, s in value["happened"] if k in kinds
            ]
            return True
        points = {p.at_ms: p for p in _parse_points(value)}
    except (ValueError, LookupError, TypeError) as error:
        raise HistoryUnreadable(f"not a valid history ({type(error).__name__}: {error})") from error
    if part is HistoryPart.TENS:
        past.tens = points
    else:
        past.minutes = points
    return True


def _parse_points(value: Mapping[str, Any]) -> Iterable[Point]:
    known_columns = [(index, name) for index, name in enumerate(value["columns"]) if name in _COLUMNS]
    for row in value["points"]:
        numbers = {name: row[index] for index, name in known_columns}
        if not all(isinstance(n, int) or (n is None and name in _OPTIONAL) for name, n in numbers.items()):
            raise TypeError("a point has a value that is not an integer")
        yield Point(**numbers)
