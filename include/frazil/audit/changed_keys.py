"""Finds the keys that a merge inserted, updated and deleted, from the files that the merge wrote."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema

from frazil.ingest.no_rows import no_rows
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


def changed_keys(done: Iterable[tuple[MergeTask, MergeResult]], reader: Reader, keys: Schema) -> ChangedKeys:
    """Return the keys that a merge changed.

    The merge must not have rewritten data files to keep other rows. `keys` is the schema of the key columns. Each
    written row is an insert or an update, and each row removed from a file is an update or a delete.
    """
    counts, none = Counts(), no_rows(arrow_schema(keys))
    written, left = [none], [none]
    for task, result in done:
        counts += result.counts
        written += [reader.whole(file.path, keys) for file in result.files if file.content == "data"]
        left += _left(task, result, reader, keys)
    new, old, names = _plain(pa.concat_tables(written)), _plain(pa.concat_tables(left)), list(keys.column_names)
    inserted, updated = (new.join(old, names, join_type=f"left {how}") for how in ("anti", "semi"))
    return ChangedKeys(
        _first(inserted, counts.inserted, none.schema),
        _first(updated, counts.updated, none.schema),
        _first(old.join(new, names, join_type="left anti"), counts.deleted, none.schema),
    )


def _left(task: MergeTask, result: MergeResult, reader: Reader, keys: Schema) -> Iterable[pa.Table]:
    """Return the keys of the rows that this merge removed from the task's files."""
    by_path = {file.path: file for file in task.files}
    for path in result.replaced:
        with reader.open(path) as data:
            gone = np.arange(data.starts[-1])
            yield data.at(keys, np.setdiff1d(gone, reader.deleted(by_path[path])))
    for file in result.files:
        if file.content == "position-deletes":
            for path, gone in reader.deletes(file.path).items():
                with reader.open(path) as data:
                    yield data.at(keys, np.setdiff1d(gone, reader.deleted(by_path[path])))


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
