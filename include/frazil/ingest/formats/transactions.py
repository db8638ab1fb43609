"""What Debezium's records say of transactions: which one an event is of, and how many events a transaction had."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.types import ListType, LongType, NestedField, StringType, StructType

from frazil.ingest.chunk import Chunk
from frazil.ingest.decode import Decoder
from frazil.ingest.formats import FORMATS
from frazil.spec.formats import AvroFormat, JsonFormat

_OF_POSTGRES = re.compile(r"(\d+):\d+")
"""PostgreSQL's transaction and, behind the colon, the position of the single event."""
_COMMIT_BEFORE = re.compile(r'\["(\d+)"')
"""In `source.sequence` of PostgreSQL, a JSON array as text."""
_CHANGES = frozenset("cudt")


class Said(NamedTuple):
    """What a record says. A tombstone, a snapshot's row and what cannot be read say nothing."""

    transaction: str = ""
    """Empty if the record is of none."""
    order: int = 0
    """Of an event: which one of its transaction's events in this table it is, from 1."""
    place: tuple[str, int] | None = None
    """Of an event: where its transaction lies in the source's log, in a later one greater or equal. The place of the
    commit before, of PostgreSQL, where places of single events mix; a binlog's file and place, of MySQL."""
    tables: tuple[str, ...] = ()
    """Of an event: the names by which an end may call its table."""
    unmarked: bool = False
    """Whether this is a change of a row that does not tell its transaction."""


class Ended(NamedTuple):
    """The end of a transaction."""

    transaction: str
    events: dict[str, int]
    """How many events it had, by table."""


class TransactionDecoder:
    """Reads the records of a table's topic, and those of the topic of transactions."""

    def __init__(self, declared: JsonFormat | AvroFormat) -> None:
        content = declared.model_copy(update={"envelope": None})
        self._decode: Decoder = FORMATS[declared.type](content, _schema(), {})

    def events(self, chunk: Chunk) -> list[Said]:
        """Of each record, in their order."""
        said = [Said()] * len(chunk)
        for records, rows in self._forms(chunk):
            of = [_inside(rows, "transaction", name) for name in ("id", "data_collection_order")]
            source = [_inside(rows, "source", name) for name in ("sequence", "file", "pos", "db", "schema", "table")]
            ops = rows["op"].to_pylist()
            for i, op, transaction, order, *told in zip(records, ops, *of, *source, strict=True):
                if transaction is None or order is None:
                    said[i] = Said(unmarked=op in _CHANGES)
                else:
                    said[i] = Said(_known_as(transaction), order, _place(*told[:3]), _tables(*told[3:]))
        return said

    def ends(self, chunk: Chunk) -> list[Ended]:
        """Those among the records."""
        return [
            Ended(_known_as(row["id"]), {of["data_collection"]: of["event_count"] for of in row["data_collections"]})
            for _, rows in self._forms(chunk)
            for row in rows.select(["status", "id", "data_collections"]).to_pylist()
            if row["status"] == "END" and row["id"] is not None and row["data_collections"]
        ]

    def _forms(self, chunk: Chunk) -> Iterator[tuple[list[int], pa.Table]]:
        """The readable records by their form, as they are and within `payload`, each with their numbers."""
        decoded = self._decode(chunk)
        wrapped = decoded.rows["payload"].is_valid().combine_chunks()
        for form, rows in ((pc.invert(wrapped), decoded.rows), (wrapped, _of_payload(decoded.rows))):
            if pc.any(form).as_py():
                yield pa.array(decoded.kept).filter(form).to_pylist(), rows.filter(form)


def _of_payload(rows: pa.Table) -> pa.Table:
    payload: pa.ChunkedArray = rows["payload"]
    return pa.table({field.name: pc.struct_field(payload, field.name) for field in payload.type})


def _inside(rows: pa.Table, struct: str, name: str) -> list[Any]:
    found: list[Any] = pc.struct_field(rows[struct], name).to_pylist()
    return found


@lru_cache(maxsize=4096)
def _known_as(transaction: str) -> str:
    found = _OF_POSTGRES.fullmatch(transaction)
    return found[1] if found else transaction


def _place(sequence: str | None, file: str | None, pos: int | None) -> tuple[str, int] | None:
    if file is not None and pos is not None:
        return file, pos
    found = _COMMIT_BEFORE.match(sequence or "")
    return None if found is None else ("", int(found[1]))


@lru_cache
def _tables(db: str | None, schema: str | None, table: str | None) -> tuple[str, ...]:
    """`schema.table` of PostgreSQL, `db.table` of MySQL, and all three of others."""
    ways = ((schema, table), (db, schema, table)) if schema else ((db, table),)
    return tuple(".".join(filter(None, parts)) for parts in ways if all(parts))


def _schema() -> Schema:
    """Of both kinds of records, as they are and within `payload`."""
    return Schema(*_fields(1), NestedField(100, "payload", StructType(*_fields(101)), required=False))


def _fields(first: int) -> list[NestedField]:
    def struct(at: int, name: str, **kinds: Any) -> NestedField:
        fields = [NestedField(at + 1 + i, field, kind, required=False) for i, (field, kind) in enumerate(kinds.items())]
        return NestedField(at, name, StructType(*fields), required=False)

    text, count = StringType(), LongType()
    element = struct(first + 21, "element", data_collection=text, event_count=count).field_type
    return [
        NestedField(first, "op", text, required=False),
        struct(first + 1, "transaction", id=text, data_collection_order=count),
        struct(first + 5, "source", db=text, schema=text, table=text, sequence=text, file=text, pos=count),
        NestedField(first + 15, "status", text, required=False),
        NestedField(first + 16, "id", text, required=False),
        NestedField(first + 20, "data_collections", ListType(first + 30, element, False), required=False),
    ]
