"""Speeds up commits by keeping parsed metadata and the JSON of snapshots.

PyIceberg parses and copies metadata and snapshots for each commit. With hundreds of snapshots, this takes two thirds of
the time. The catalog still decides each load and commit. Small files reach S3 in one request instead of three.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.io import FileIO
from pyiceberg.serializers import Compressor
from pyiceberg.table import StagedTable, Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataV1
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import RemoveSnapshotsUpdate, TableUpdate
from pyiceberg.utils.config import Config

from frazil.table.object_store import count_request

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import IcebergTables, SqlCatalog


Value = TypeVar("Value")
MAX_CACHED_METADATA = 8
"""Maximum number of cached versions of table metadata."""
MAX_CACHED_TEXTS = 2**14
"""Maximum number of snapshots, of all tables, whose JSON is cached."""


class BoundedCache(Generic[Value]):
    """A thread-safe cache that evicts the oldest values, up to a number or a weight of `limit`."""

    def __init__(self, limit: int, weigh: Callable[[Value], int] = lambda _: 1) -> None:
        self._limit, self._weigh, self._weight = limit, weigh, 0
        self._kept: dict[str, Value] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, name: str) -> Value | None:
        return self._kept.get(name)

    def keep(self, name: str, value: Value) -> None:
        with self._lock:
            self._remove(name)
            self._kept[name] = value
            self._weight += self._weigh(value)
            while self._weight > self._limit:
                self._remove(next(iter(self._kept)))

    def forget(self, name: str) -> None:
        with self._lock:
            self._remove(name)

    def _remove(self, name: str) -> None:
        if name in self._kept:
            self._weight -= self._weigh(self._kept.pop(name))


def reuse_metadata(catalog: Catalog) -> Catalog:
    """Let commits of a SQL, Hive or Glue catalog share snapshots. A SQL catalog also parses each file only once."""
    if isinstance(catalog, MetastoreCatalog):
        _share_snapshots(catalog)
        _configure_once(catalog)
    # Importing the module takes long. If it was never imported, the catalog is not a SQL catalog.
    sql = sys.modules.get("pyiceberg.catalog.sql")
    if sql is not None and isinstance(catalog, sql.SqlCatalog):
        _parse_once(catalog)
    return catalog


def _share_snapshots(catalog: MetastoreCatalog) -> None:
    """Share the metadata's snapshots and schemas between commits, without copies."""
    stage = catalog._update_and_stage_table

    def stage_whole(current: Table | None, *change: Any) -> StagedTable:
        staged = stage(current, *change)
        if current is not None:
            staged.metadata = _complete_expiry(current.metadata, staged.metadata, change[-1])
        return staged

    def stage_shared(current: Table | None, *change: Any) -> StagedTable:
        if current is None:
            return stage_whole(current, *change)
        shared = _change_class(_sharing_class(type(current.metadata)), current.metadata)
        staged = stage_whole(
            Table(current.name(), shared, current.metadata_location, current.io, catalog, current.config), *change
        )
        if type(staged.metadata) is type(shared):
            staged.metadata = _change_class(type(current.metadata), staged.metadata)
        return staged

    catalog._update_and_stage_table = stage_shared  # type: ignore[method-assign, assignment]


def _complete_expiry(previous: TableMetadata, staged: TableMetadata, updates: Iterable[TableUpdate]) -> TableMetadata:
    """Return `staged` without the partition statistics of expired snapshots, and without the snapshot log up to the
    newest expired snapshot. Iceberg's Java library removes the same.
    """
    removed = {id_ for update in updates if isinstance(update, RemoveSnapshotsUpdate) for id_ in update.snapshot_ids}
    if not removed:
        return staged
    stays = [entry.snapshot_id not in removed for entry in previous.snapshot_log]
    last = max((index for index, stay in enumerate(stays) if not stay), default=0)
    log = staged.snapshot_log[sum(stays[:last]) :]
    statistics = [file for file in staged.partition_statistics if file.snapshot_id not in removed]
    return staged.model_copy(update={"snapshot_log": log, "partition_statistics": statistics})


@cache
def _sharing_class(kind: type[TableMetadata]) -> type[TableMetadata]:
    """Return a subclass whose deep copies share snapshots and schemas. Lookups begin with the newest snapshot."""

    def deepcopy(self: TableMetadata, memo: dict[int, Any] | None = None) -> TableMetadata:  # noqa: ARG001
        values = {name: copy.copy(value) for name, value in self.__dict__.items() if isinstance(value, list | dict)}
        return self.model_copy(update=values)

    def snapshot_by_id(self: TableMetadata, snapshot_id: int) -> Snapshot | None:
        return next((snapshot for snapshot in reversed(self.snapshots) if snapshot.snapshot_id == snapshot_id), None)

    attributes = {"__deepcopy__": deepcopy, "snapshot_by_id": snapshot_by_id, "__module__": __name__}
    return type(f"Sharing{kind.__name__}", (kind,), attributes)


def _change_class(kind: type[TableMetadata], metadata: TableMetadata) -> TableMetadata:
    return kind.model_construct(metadata.model_fields_set, **metadata.__dict__)


def _configure_once(catalog: MetastoreCatalog) -> None:
    """Read PyIceberg's configuration once, not for each file."""
    with_nulls = bool(Config().get_bool("legacy-current-snapshot-id"))
    cache = BoundedCache[_SnapshotTexts](MAX_CACHED_TEXTS, lambda texts: 1 + len(texts))

    def write(metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
        text = _metadata_json(metadata, cache, exclude_none=not with_nulls).encode()
        count_request("writes", metadata_path)
        with io.new_output(metadata_path).create() as stream:
            stream.write(Compressor.get_compressor(metadata_path).bytes_compressor()(text))

    catalog._write_metadata = write  # type: ignore[method-assign]


_SnapshotTexts = dict[int, tuple[Snapshot, str]]
"""Each snapshot and its JSON, by the `id()` of the snapshot object. Versions of a table's metadata share snapshots."""


def _metadata_json(metadata: TableMetadata, cache: BoundedCache[_SnapshotTexts], *, exclude_none: bool) -> str:
    """Return the JSON of `model_dump_json`. Converts each snapshot only once."""
    if type(metadata) is TableMetadataV1:  # its snapshots are written without their sequence numbers
        return metadata.model_dump_json(exclude_none=exclude_none)
    table = str(metadata.table_uuid)
    cached = cache.get(table) or {}
    texts = {
        id(snapshot): cached.get(id(snapshot)) or (snapshot, snapshot.model_dump_json(exclude_none=exclude_none))
        for snapshot in metadata.snapshots
    }
    cache.keep(table, texts)
    other_json = metadata.model_copy(update={"snapshots": []}).model_dump_json(exclude_none=exclude_none)
    # Within a JSON string, the quotes of this text would be escaped.
    head, tail = other_json.split('"snapshots":[]', 1)
    return f'{head}"snapshots":[{",".join(text for _, text in texts.values())}]{tail}'


def _parse_once(catalog: SqlCatalog) -> None:
    cache = BoundedCache[TableMetadata](MAX_CACHED_METADATA)
    convert, stage = catalog._convert_orm_to_iceberg, catalog._update_and_stage_table

    def convert_cached(row: IcebergTables) -> Table:
        location = row.metadata_location
        metadata = cache.get(location) if location else None
        if metadata is None or location is None:
            table = convert(row)
            count_request("reads", table.metadata_location)
            cache.keep(table.metadata_location, table.metadata)
            return table
        io = catalog._load_file_io(metadata.properties, location)
        name = (*Catalog.identifier_to_tuple(row.table_namespace), row.table_name)
        return Table(name, metadata, location, io, catalog)

    def stage_cached(*change: Any) -> StagedTable:
        staged = stage(*change)
        cache.keep(staged.metadata_location, staged.metadata)
        return staged

    catalog._convert_orm_to_iceberg = convert_cached  # type: ignore[method-assign, assignment]
    catalog._update_and_stage_table = stage_cached  # type: ignore[method-assign, assignment]


def write_small_objects_in_one_request(catalog: Catalog) -> Catalog:
    """Let the catalog's tables upload small files to S3 in one request, if Arrow writes them."""
    load = catalog._load_file_io

    def load_file_io(*arguments: Any, **options: Any) -> Any:
        io = load(*arguments, **options)
        # The class is compared by name, because importing it would load Arrow for catalogs that do not need it. A
        # user's own retry strategy is left alone: it would be lost when the file system is rebuilt.
        if type(io).__name__ == "PyArrowFileIO" and "s3.retry-strategy-impl" not in io.properties:
            io._initialize_s3_fs = _enable_delayed_open(io._initialize_s3_fs)  # type: ignore[attr-defined]
        return io

    catalog._load_file_io = load_file_io  # type: ignore[method-assign]
    return catalog


def _enable_delayed_open(initialize: Callable[[str | None], Any]) -> Callable[[str | None], Any]:
    def initialize_delayed(netloc: str | None) -> Any:
        # As with pickling, credentials that were not given explicitly are looked up again, not copied.
        rebuild, (settings, *more) = initialize(netloc).__reduce__()
        return rebuild({**settings, "allow_delayed_open": True}, *more)

    return initialize_delayed
