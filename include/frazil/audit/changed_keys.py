"""Finds the keys that a merge inserted, updated and deleted, from the files that it wrote."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from frazil.ingest.arrow_values import empty_table
from frazil.merge.changes import TOPIC
from frazil.merge.contract import MergeCounts, MergeResult, MergeTask
from frazil.merge.table_files import TableFileReader, nullable_arrow_schema

MAX_LISTED_KEYS = 10
"""Maximum number of keys in each list of `ChangedKeys`."""

Key = Mapping[str, Any]
"""Values by column, as stored: sensitive ones as hashes or tokens, bytes as hexadecimal."""


@dataclass(frozen=True, slots=True)
class ChangedKeys:
    inserted: tuple[Key, ...] = ()
    updated: tuple[Key, ...] = ()
    deleted: tuple[Key, ...] = ()
    others_updated: int = 0
    """Number of updated keys that are not listed: keys with rows of topics that were not read."""
    others_deleted: int = 0
    """Number of deleted keys that are not listed: keys with rows of topics that were not read."""


def find_changed_keys(  # noqa: PLR0913 - each source is an argument
    done: Iterable[tuple[MergeTask, MergeResult]],
    reader: TableFileReader,
    schema: Schema,
    key: Sequence[str],
    topics: Collection[str],
    *,
    shared: bool = False,
) -> ChangedKeys:
    """Return the first keys of `topics` that a merge-on-read merge changed. Other streams also write to a
    `shared` table.
    """
    # Each written row is an insert or an update, and each row removed from a file is an update or a delete.
    keys, names = schema.select(*key), list(key)
    with_topic = schema.select(*dict.fromkeys((*key, *({TOPIC} & {*schema.column_names}))))
    counts, none = MergeCounts(), empty_table(nullable_arrow_schema(keys))
    written, removed = [none], [empty_table(nullable_arrow_schema(with_topic))]
    for task, result in done:
        counts += result.counts
        written += [reader.read_rows(file.path, keys) for file in result.files if file.content == "data"]
        removed += _removed_rows(task, result, reader, with_topic)
    new, old = _with_storage_types(pa.concat_tables(written)), _with_storage_types(pa.concat_tables(removed))
    others = _rows_of_other_topics(old, topics, shared=shared).select(names).group_by(names).aggregate([])
    others_updated = others.join(new, names, join_type="left semi").num_rows
    others_deleted = others.num_rows - others_updated
    new, old = (rows.select(names).join(others, names, join_type="left anti") for rows in (new, old))
    inserted, updated = (new.join(old, names, join_type=f"left {how}") for how in ("anti", "semi"))
    return ChangedKeys(
        _first_keys(inserted, counts.inserted, none.schema),
        _first_keys(updated, counts.updated - others_updated, none.schema),
        _first_keys(old.join(new, names, join_type="left anti"), counts.deleted - others_deleted, none.schema),
        others_updated,
        others_deleted,
    )


def _rows_of_other_topics(rows: pa.Table, topics: Collection[str], *, shared: bool) -> pa.Table:
    """Return the rows of other topics. Without coordinates, returns all rows of a shared table, else no rows."""
    if TOPIC not in rows.column_names:
        return rows if shared else rows.schema.empty_table()
    own = pc.is_in(rows[TOPIC], pa.array([*topics, None], rows[TOPIC].type))
    return rows.filter(pc.invert(own))


def _removed_rows(task: MergeTask, result: MergeResult, reader: TableFileReader, keys: Schema) -> Iterable[pa.Table]:
    by_path = {file.path: file for file in task.files}
    reader.keep_constants(task.files)
    for path in result.replaced:
        with reader.open(path) as data:
            removed = np.arange(data.starts[-1])
            yield data.rows_at(keys, np.setdiff1d(removed, reader.deleted_positions(by_path[path])))
    for file in result.files:
        if file.content == "position-deletes":
            for path, removed in reader.deletes(file.path).items():
                with reader.open(path) as data:
                    yield data.rows_at(keys, np.setdiff1d(removed, reader.deleted_positions(by_path[path])))


def _with_storage_types(rows: pa.Table) -> pa.Table:
    """Cast extension types, such as UUIDs, to their storage types, for joins."""
    storage = [f.type.storage_type if isinstance(f.type, pa.BaseExtensionType) else f.type for f in rows.schema]
    return rows.cast(pa.schema([f.with_type(kind) for f, kind in zip(rows.schema, storage, strict=True)]))


def _first_keys(rows: pa.Table, count: int, schema: pa.Schema) -> tuple[Key, ...]:
    """Return the first keys, in order; no keys if the number of rows is not `count`."""
    if rows.num_rows != count:
        return ()
    ordered = rows.sort_by([(name, "ascending") for name in rows.column_names]).slice(0, MAX_LISTED_KEYS)
    return tuple(
        {name: value.hex() if isinstance(value, bytes) else value for name, value in key.items()}
        for key in ordered.select(schema.names).cast(schema).to_pylist()
    )
