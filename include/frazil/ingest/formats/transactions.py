"""Reads transaction metadata from Debezium records: each event's transaction, and a transaction's number of events."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from frazil.ingest.arrow_values import combine_chunks
from frazil.ingest.chunk import NULL, RecordChunk
from frazil.ingest.decode import Decoder
from frazil.ingest.formats import make_format_decoder
from frazil.ingest.formats.json.types import inner_fields
from frazil.ingest.source_log import encode_positions
from frazil.spec.formats import AvroFormat, JsonFormat
from frazil.spec.iceberg import iceberg_type

_POSTGRES_ID_PATTERN = re.compile(r"(\d+):\d+")
"""Pattern of PostgreSQL's ids: the transaction id, a colon, and the event's log position."""
_PREVIOUS_COMMIT = r'^\["(?P<lsn>[0-9]{1,18})"'
"""Pattern of PostgreSQL's `source.sequence`, a JSON array. Its first element is the previous commit's log position."""
_SOURCE = (
    "db: string, schema: string, table: string, sequence: string, file: string, pos: long, ts_ms: long, server_id: long"
)
_METADATA = (
    f"op: string, transaction: struct<id: string, data_collection_order: long>, source: struct<{_SOURCE}>, "
    "status: string, id: string, "
    "data_collections: list<struct<data_collection: string, event_count: long>>"
)
"""The fields of a record, or of its `payload`: of a change event, then of transaction metadata."""
_CHANGE_OPERATIONS = frozenset("cudt")
MAX_ID_CHARACTERS = 200
"""Maximum length of a transaction id in markers and messages. Longer ids end with a hash of the whole id."""


class EventTransaction(NamedTuple):
    """The transaction of a record. Tombstones and snapshot events belong to no transaction."""

    transaction: str = ""
    """The transaction's id; empty if the record belongs to no transaction."""
    order: int = 0
    """The event's number among the transaction's events for this table, starting at 1."""
    position: str | None = None
    """Position of the transaction in the source's log (`frazil.ingest.source_log`); None if unknown.

    For PostgreSQL, the previous commit's position, because events of concurrent transactions interleave.
    """
    tables: tuple[str, ...] = ()
    """Names that the transaction's end event may use for this event's table."""
    unmarked: bool = False
    """Whether the record changes a row without naming its transaction."""
    unreadable: bool = False


class TransactionEnd(NamedTuple):
    transaction: str
    events: dict[str, int]


class TransactionDecoder:
    def __init__(self, declared: JsonFormat | AvroFormat) -> None:
        content = declared.model_copy(update={"envelope": None})
        records = iceberg_type(f"struct<{_METADATA}, payload: struct<{_METADATA}>>")
        self._decode: Decoder = make_format_decoder(content, Schema(*inner_fields(records)), {})
        self.unreadable = 0
        """Number of records that `read_ends` could not read. Each may be a transaction's end."""

    def read_transactions(self, chunk: RecordChunk) -> list[EventTransaction]:
        transactions = [EventTransaction(unreadable=has_value) for has_value in (chunk.values.lengths != NULL).tolist()]
        for records, rows in self._decode_forms(chunk):
            parts = [_nested_column(rows, "transaction", name).to_pylist() for name in ("id", "data_collection_order")]
            names = [_nested_column(rows, "source", name).to_pylist() for name in ("db", "schema", "table")]
            source = {name: _nested_column(rows, "source", name) for name in ("file", "pos", "ts_ms", "server_id")}
            sequence = _nested_column(rows, "source", "sequence")
            commit_before = pc.struct_field(pc.extract_regex(sequence, _PREVIOUS_COMMIT), "lsn").cast(pa.int64())
            ops, positions = (
                rows["op"].to_pylist(),
                encode_positions({**source, "lsn": commit_before, "row": pa.nulls(len(rows), pa.int64())}).to_pylist(),
            )
            for i, op, transaction, order, position, *name in zip(records, ops, *parts, positions, *names, strict=True):
                if transaction is None or order is None:
                    transactions[i] = EventTransaction(unmarked=op in _CHANGE_OPERATIONS)
                else:
                    transactions[i] = EventTransaction(
                        _shorten_id(transaction), order, position, _possible_table_names(*name)
                    )
        return transactions

    def read_ends(self, chunk: RecordChunk) -> list[TransactionEnd]:
        """Return the ends of transactions among the records. Adds the number of unreadable records to `unreadable`."""
        forms = [rows for _, rows in self._decode_forms(chunk)]
        self.unreadable += int((chunk.values.lengths != NULL).sum()) - sum(rows.num_rows for rows in forms)
        return [
            TransactionEnd(
                _shorten_id(row["id"]), {c["data_collection"]: c["event_count"] for c in filter(None, counts)}
            )
            for rows in forms
            for row in rows.select(["status", "id", "data_collections"]).to_pylist()
            if row["status"] == "END" and row["id"] is not None and (counts := row["data_collections"])
        ]

    def _decode_forms(self, chunk: RecordChunk) -> Iterator[tuple[list[int], pa.Table]]:
        """Yield indexes and rows: first of plain records, then of records in a `payload`."""
        decoded = self._decode(chunk)
        wrapped = decoded.rows["payload"].is_valid().combine_chunks()
        payload: pa.ChunkedArray = decoded.rows["payload"]
        for form, rows in (
            (pc.invert(wrapped), decoded.rows),
            (wrapped, pa.table({field.name: pc.struct_field(payload, field.name) for field in payload.type})),
        ):
            if pc.any(form).as_py():
                yield pa.array(decoded.record_indexes).filter(form).to_pylist(), rows.filter(form)


def _nested_column(rows: pa.Table, struct: str, name: str) -> pa.Array:
    return combine_chunks(pc.struct_field(rows[struct], name))


@lru_cache(maxsize=4096)
def _shorten_id(transaction: str) -> str:
    match = _POSTGRES_ID_PATTERN.fullmatch(transaction)
    shortened = match[1] if match else transaction
    if len(shortened) <= MAX_ID_CHARACTERS:
        return shortened
    digest = sha256(shortened.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{shortened[: MAX_ID_CHARACTERS - len(digest) - 1]}…{digest}"


@lru_cache
def _possible_table_names(db: str | None, schema: str | None, table: str | None) -> tuple[str, ...]:
    """Return the names of a table in transaction metadata: `db.table` (MySQL), `schema.table`, `db.schema.table`."""
    ways = ((schema, table), (db, schema, table)) if schema else ((db, table),)
    return tuple(".".join(filter(None, parts)) for parts in ways if all(parts))
