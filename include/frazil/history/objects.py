"""Stores a stream's history as objects: `<location>/_frazil/_history/<stream>/<epoch>-<part>.json`.

A history has several parts (`Part`), and each write replaces the whole object of a part. The writer of an epoch starts
with the existing objects, so its objects contain all data of earlier epochs. Readers use the objects of the highest
epoch and ignore those that a replaced writer still writes. The writer deletes the objects of earlier epochs. `frazil
forget` keeps the folder. Objects of another table that used the same folder are ignored.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pyiceberg.table import Table

from frazil.history.past import Part, StreamHistory
from frazil.history.points import EventKind, HistoryEvent, Point
from frazil.table.object_store import ObjectStore
from frazil.table.remains import STATE
from frazil.table.storage import open_store

FORMAT_VERSION = 1
_NAME = re.compile(rf"(\d{{8,}})-({'|'.join(Part)})\.json")
_COLUMNS = tuple(field.name for field in dataclasses.fields(Point))
_OPTIONAL = frozenset(field.name for field in dataclasses.fields(Point) if field.default is None)


class HistoryUnreadable(Exception):
    """An object of a history has unexpected content."""


def history_location(table: Table, stream: str) -> str:
    """Return the folder of a stream's history. Stream names never begin with an underscore."""
    return f"{table.location().rstrip('/')}/{STATE}/_history/{stream}"


@dataclass(frozen=True, slots=True)
class HistoryObject:
    """An object of the history: the epoch and part in its name, and its path."""

    epoch: int
    part: Part
    path: str

    @classmethod
    def from_path(cls, path: str) -> HistoryObject | None:
        """Return None if the path is not one of a history object."""
        named = _NAME.fullmatch(path.rsplit("/", 1)[-1])
        return cls(int(named[1]), Part(named[2]), path) if named else None


@dataclass(frozen=True, slots=True)
class HistoryStore:
    """A stream's history in the storage. Methods raise the storage's errors."""

    store: ObjectStore
    location: str
    table_uuid: str

    @classmethod
    def open(cls, table: Table, stream: str) -> HistoryStore:
        """Return the history stored next to a loaded table."""
        location = history_location(table, stream)
        return cls(open_store(location, table.io.properties), location, str(table.metadata.table_uuid))

    def put(self, epoch: int, past: StreamHistory, part: Part) -> None:
        self.store.put(f"{self.location}/{epoch:08d}-{part}.json", encode(past, part, self.table_uuid))

    def list_objects(self) -> list[HistoryObject]:
        return [found for file in self.store.list_files(self.location) if (found := HistoryObject.from_path(file.path))]

    def delete(self, objects: Iterable[HistoryObject]) -> None:
        self.store.delete([one.path for one in objects])

    def read(self, objects: Iterable[HistoryObject], parts: Iterable[Part] = Part) -> tuple[StreamHistory, list[str]]:
        """Return the history in these objects, and a message for each unreadable object.

        In place of an unreadable object, the object of the next earlier epoch is used.
        """
        past, problems = StreamHistory(), []
        newest_first = sorted(objects, key=lambda one: one.epoch, reverse=True)
        for part in parts:
            for one in newest_first:
                if one.part is not part or (data := self.store.get(one.path)) is None:
                    continue
                try:
                    if decode(data, part, past, self.table_uuid):
                        break
                except HistoryUnreadable as error:
                    problems.append(f"{one.path}: {error}")
        return past, problems


def encode(past: StreamHistory, part: Part, table_uuid: str) -> bytes:
    """Return one part of a history as JSON."""
    value: dict[str, Any] = {"format": FORMAT_VERSION, "table-uuid": table_uuid}
    if part is Part.HAPPENED:
        value["happened"] = [[what.at_ms, what.kind, what.sentence] for what in past.happened]
    else:
        points = past.tens if part is Part.TENS else past.minutes
        value["columns"] = _COLUMNS
        value["points"] = [[getattr(p, name) for name in _COLUMNS] for _, p in sorted(points.items())]
    return json.dumps(value, separators=(",", ":")).encode()


def decode(data: bytes, part: Part, past: StreamHistory, table_uuid: str) -> bool:
    """Load a part into `past`. Return False if the object belongs to another table.

    Raises HistoryUnreadable if the object is invalid. Fields of later versions are ignored.
    """
    try:
        value = json.loads(data)
        if value["format"] != FORMAT_VERSION:
            raise HistoryUnreadable(
                f"unsupported format {value['format']}; this version of frazil reads format {FORMAT_VERSION}"
            )
        if value["table-uuid"] != table_uuid:
            return False
        if part is Part.HAPPENED:
            kinds = set(EventKind)
            past.happened = [
                HistoryEvent(int(at), EventKind(k), str(s)) for at, k, s in value["happened"] if k in kinds
            ]
            return True
        points = {p.at_ms: p for p in _points(value)}
    except (ValueError, LookupError, TypeError) as error:
        raise HistoryUnreadable(f"not a valid history ({type(error).__name__}: {error})") from error
    if part is Part.TENS:
        past.tens = points
    else:
        past.minutes = points
    return True


def _points(value: Mapping[str, Any]) -> Iterable[Point]:
    known_columns = [(index, name) for index, name in enumerate(value["columns"]) if name in _COLUMNS]
    for row in value["points"]:
        numbers = {name: row[index] for index, name in known_columns}
        if not all(isinstance(n, int) or (n is None and name in _OPTIONAL) for name, n in numbers.items()):
            raise TypeError("a point has a value that is not an integer")
        yield Point(**numbers)
