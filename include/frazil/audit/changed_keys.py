"""Finds the keys that a merge inserted, updated and deleted, from the files that the merge wrote."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from frazil.ingest.no_rows import no_rows
from frazil.merge.changes import TOPIC
from frazil.merge.contract import Counts, MergeResult, MergeTask
from frazil.merge.table_files import Reader, arrow_schema

KEYS_NAMED = 10

Key = Mapping[str, Any]
"""The values of one key by column, as stored: sensitive values are hashed or are tokens. Bytes are hexadecimal."""


@dataclass(frozen=True, slots=True)
class ChangedKeys:
    """The first keys that were inserted, updated and deleted, in key order.

    A list is empty if its keys do not match the counted rows one to one, because another writer stored a key twice. The
    audit then names no key rather than a wrong key.
    """

    inserted: tuple[Key, ...] = ()
    updated: tuple[Key, ...] = ()
    deleted: tuple[Key, ...] = ()
    others_updated: int = 0
    """Updated keys whose row is of a record of another topic. They are not among the keys of a kind."""
    others_deleted: int = 0


def changed_keys(
    done: Iterable[tuple[MergeTask, MergeResult]],
    reader: Reader,
    schema: Schema,
    key: Sequence[str],
    topics: Collection[str],
) -> ChangedKeys:
    """Return the keys that a merge changed.

    The merge must not have rewritten data files to keep other rows. `schema` is the table's, and `topics` are those of
    the changes. Each written row is an insert or an update, and each row removed from a file is an update or a delete.
    """
    keys, names = schema.select(*key), list(key)
    placed = schema.select(*dict.fromkeys((*key, *({TOPIC} & {*schema.column_names}))))
    counts, none, unplaced = Counts(), no_rows(arrow_schema(keys)), no_rows(arrow_schema(placed))
    written, left = [none], [unplaced]
    for task, result in done:
        counts += result.counts
        written += [reader.read_all(file.path, keys) for file in result.files if file.content == "data"]
        left += _left(task, result, reader, placed)
    new, old = _plain(pa.concat_tables(written)), _plain(pa.concat_tables(left))
    others = _of_others(old, topics).select(names).group_by(names).aggregate([])
    others_updated = others.join(new, names, join_type="left semi").num_rows
    others_deleted = others.num_rows - others_updated
    new, old = (rows.select(names).join(others, names, join_type="left anti") for rows in (new, old))
    inserted, updated = (new.join(old, names, join_type=f"left {how}") for how in ("anti", "semi"))
    return ChangedKeys(
        _first(inserted, counts.inserted, none.schema),
        _first(updated, counts.updated - others_updated, none.schema),
        _first(old.join(new, names, join_type="left anti"), counts.deleted - others_deleted, none.schema),
        others_updated,
        others_deleted,
    )


def _of_others(rows: pa.Table, topics: Collection[str]) -> pa.Table:
    """Return the rows of records of other topics. A row without coordinates is not known to be one."""
    if TOPIC not in rows.column_names:
        return rows.slice(0, 0)
    own = pc.is_in(rows[TOPIC], pa.array([*topics, None], rows[TOPIC].type))
    return rows.filter(pc.invert(own))


def _left(task: MergeTask, result: MergeResult, reader: Reader, keys: Schema) -> Iterable[pa.Table]:
    """Return the keys of the rows that this merge removed from the task's files."""
    by_path = {file.path: file for file in task.files}
    for path in result.replaced:
        with reader.open(path) as data:
            gone = np.arange(data.starts[-1])
            yield data.rows_at(keys, np.setdiff1d(gone, reader.deleted_positions(by_path[path])))
    for file in result.files:
        if file.content == "position-deletes":
            for path, gone in reader.deletes(file.path).items():
                with reader.open(path) as data:
                    yield data.rows_at(keys, np.setdiff1d(gone, reader.deleted_positions(by_path[path])))


def _plain(rows: pa.Table) -> pa.Table:
    """Cast extension types, such as UUIDs, to their storage types, because joins do not support extension types."""
    storage = [f.type.storage_type if isinstance(f.type, pa.BaseExtensionType) else f.type for f in rows.schema]
    return rows.cast(pa.schema([f.with_type(kind) for f, kind in zip(rows.schema, storage, strict=True)]))


def _first(rows: pa.Table, count: int, schema: pa.Schema) -> tuple[Key, ...]:
    if rows.num_rows != count:
        return ()
    ordered = rows.sort_by([(name, "ascending") for name in rows.column_names]).slice(0, KEYS_NAMED)
    return tuple(
        {name: value.hex() if isinstance(value, bytes) else value for name, value in key.items()}
        for key in ordered.select(schema.names).cast(schema).to_pylist()
    )
