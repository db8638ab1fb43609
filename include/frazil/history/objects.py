"""The objects of a stream's history: `<location>/_frazil/_history/<stream>/<epoch>-<part>.json`, each replaced whole.

A history has several parts (`Part`). The writer of an epoch starts with the existing objects, so its object of a part
has all data of earlier epochs. Readers use the object of the highest epoch, and ignore objects that a replaced writer
still writes. The writer deletes the objects of earlier epochs. The folder survives `frazil forget`. Objects of another
table that used the same folder are ignored.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pyiceberg.table import Table

from frazil.history.past import Part, Past
from frazil.history.points import Happened, Kind, Point
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
class Found:
    """An object, described by its name."""

    epoch: int
    part: Part
    path: str

    @classmethod
    def at(cls, path: str) -> Found | None:
        named = _NAME.fullmatch(path.rsplit("/", 1)[-1])
        return cls(int(named[1]), Part(named[2]), path) if named else None


@dataclass(frozen=True, slots=True)
class Objects:
    """A stream's history in the storage. Methods raise the storage's errors."""

    store: ObjectStore
    location: str
    table_uuid: str

    @classmethod
    def of(cls, table: Table, stream: str) -> Objects:
        """Return the history stored next to a loaded table."""
        location = history_location(table, stream)
        return cls(open_store(location, table.io.properties), location, str(table.metadata.table_uuid))

    def put(self, epoch: int, past: Past, part: Part) -> None:
        self.store.put(f"{self.location}/{epoch:08d}-{part}.json", encoded(past, part, self.table_uuid))

    def found(self) -> list[Found]:
        return [found for file in self.store.list_files(self.location) if (found := Found.at(file.path))]

    def delete(self, found: Iterable[Found]) -> None:
        self.store.delete([one.path for one in found])

    def read(self, found: Iterable[Found], parts: Iterable[Part] = Part) -> tuple[Past, list[str]]:
        """Return the past in these objects, and a problem for each unreadable object. An earlier object replaces it."""
        past, problems = Past(), []
        newest_first = sorted(found, key=lambda one: one.epoch, reverse=True)
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


def encoded(past: Past, part: Part, table_uuid: str) -> bytes:
    """Return one part of a past as JSON."""
    value: dict[str, Any] = {"format": FORMAT_VERSION, "table-uuid": table_uuid}
    if part is Part.HAPPENED:
        value["happened"] = [[what.at_ms, what.kind, what.sentence] for what in past.happened]
    else:
        points = past.tens if part is Part.TENS else past.minutes
        value["columns"] = _COLUMNS
        value["points"] = [[getattr(p, name) for name in _COLUMNS] for _, p in sorted(points.items())]
    return json.dumps(value, separators=(",", ":")).encode()


def decode(data: bytes, part: Part, past: Past, table_uuid: str) -> bool:
    """Add a part to the past. Return False if the object belongs to another table. Raises HistoryUnreadable.

    Fields of later versions are ignored.
    """
    try:
        value = json.loads(data)
        if value["format"] != FORMAT_VERSION:
            raise HistoryUnreadable(f"it has the format {value['format']}, and this frazil reads {FORMAT_VERSION}")
        if value["table-uuid"] != table_uuid:
            return False
        if part is Part.HAPPENED:
            kinds = set(Kind)
            past.happened = [Happened(int(at), Kind(k), str(s)) for at, k, s in value["happened"] if k in kinds]
            return True
        points = {p.at_ms: p for p in _points(value)}
    except (ValueError, LookupError, TypeError) as error:
        raise HistoryUnreadable(f"it is not a history ({type(error).__name__}: {error})") from error
    if part is Part.TENS:
        past.tens = points
    else:
        past.minutes = points
    return True


def _points(value: Mapping[str, Any]) -> Iterable[Point]:
    places = [(at, name) for at, name in enumerate(value["columns"]) if name in _COLUMNS]
    for row in value["points"]:
        numbers = {name: row[at] for at, name in places}
        if not all(isinstance(n, int) or (n is None and name in _OPTIONAL) for name, n in numbers.items()):
            raise TypeError("a point has something other than whole numbers")
        yield Point(**numbers)
