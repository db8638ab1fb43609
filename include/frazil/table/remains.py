"""Detects a lost or replaced catalog: a table's folder has files, but the catalog does not have the table. A new table
must not use this folder, because each table would treat the other's files as its own.
"""

from __future__ import annotations

import copy
import gzip
import json
import logging
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import BadRequestError, NoSuchNamespaceError, RESTError, TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from frazil.spec.units import format_count
from frazil.table.object_store import FileInfo, ObjectStore
from frazil.table.storage import open_store
from frazil.timetext import format_utc

log = logging.getLogger(__name__)

METADATA_SUFFIX = ".metadata.json"
STATE_FOLDER = "_frazil"
"""The folder of the streams' state, below a table's location."""
_VERSION = re.compile(r"v?(\d+)")


@dataclass(frozen=True, slots=True)
class MetadataFile:
    """A metadata file. `snapshots` (their number) and `uuid` are None if it is unreadable."""

    path: str
    modified_ms: int
    uuid: str | None
    snapshots: int | None
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Remains:
    location: str
    newest: MetadataFile | None
    streams: tuple[str, ...]
    """Streams with state in the folder."""

    def __str__(self) -> str:
        found = []
        if self.newest is not None:
            count = self.newest.snapshots
            which = "that cannot be read" if count is None else f"with {format_count(count, 'snapshot')}"
            found.append(f"metadata {which}, last written at {format_utc(self.newest.modified_ms)}")
        if self.streams:
            found.append(f"commit records of {', '.join(self.streams)}")
        return " and ".join(found)


@dataclass(frozen=True, slots=True)
class TableFolder:
    location: str
    store: ObjectStore


def find_new_folder(
    catalog: Catalog, identifier: str, schema: Schema, *, location: str | None, properties: dict[str, str]
) -> TableFolder | None:
    """Return the folder in which the catalog would create the table, if known. Creates nothing."""
    if isinstance(catalog, MetastoreCatalog):
        found = _resolve_location(catalog, identifier, location)
        return TableFolder(found, open_store(found, catalog.properties))
    try:
        staged = catalog.create_table_transaction(identifier, schema, location=location, properties=properties)
    except (NoSuchNamespaceError, TableAlreadyExistsError):
        return None
    except (NotImplementedError, RESTError) as error:
        if isinstance(error, RESTError) and type(error) not in {BadRequestError, RESTError}:
            raise  # refused, or unreachable
        log.info("cannot determine where the catalog %r would create table %s: %s", catalog.name, identifier, error)
        return None
    # Nothing is created before a commit, which never happens.
    table = staged._table
    return TableFolder(table.location().rstrip("/"), open_store(table.location(), table.io.properties))


def _resolve_location(catalog: MetastoreCatalog, identifier: str, location: str | None) -> str:
    """Return the location that the catalog would choose, even if the namespace is missing."""
    namespace = Catalog.namespace_to_string(Catalog.namespace_from(identifier))
    name = Catalog.table_name_from(identifier)
    try:
        return catalog._resolve_table_location(location, namespace, name).rstrip("/")
    except NoSuchNamespaceError:  # resolve as if the namespace was created without properties
        with_namespace = copy.copy(catalog)
        with_namespace.load_namespace_properties = lambda *_: {}  # type: ignore[method-assign]
        return with_namespace._resolve_table_location(location, namespace, name).rstrip("/")


def read_remains(folder: TableFolder) -> Remains | None:
    """Return what remains of a table that had data. Metadata without a snapshot does not count."""
    store, location = folder.store, folder.location
    folders = {folder.rsplit("/", 1)[-1]: folder for folder in store.list_folders(location)}
    files = _metadata_files(store.list_files(folders["metadata"])) if "metadata" in folders else []
    newest = _read_metadata(store, max(files, key=_version_and_time)) if files else None
    states = store.list_folders(folders[STATE_FOLDER]) if STATE_FOLDER in folders else []
    streams = tuple(name for state in states if not (name := file_name(state)).startswith("_"))
    found = Remains(location, newest, streams)
    return found if found.streams or (newest is not None and newest.snapshots != 0) else None


def find_other_table(store: ObjectStore, table: Table) -> MetadataFile | None:
    """Return the metadata of another table that has data in this table's folder."""
    metadata = table.metadata
    own = {file_name(path) for path in (table.metadata_location, *(e.metadata_file for e in metadata.metadata_log))}
    files = store.list_files(f"{table.location().rstrip('/')}/metadata")
    others = (_read_metadata(store, file) for file in _metadata_files(files) if file_name(file.path) not in own)
    return next((o for o in others if o.snapshots and o.uuid != str(metadata.table_uuid)), None)


def find_newest_metadata(store: ObjectStore, location: str, uuid: str) -> MetadataFile | None:
    files = _metadata_files(store.list_files(f"{location.rstrip('/')}/metadata"))
    newest_first = (_read_metadata(store, file) for file in sorted(files, key=_version_and_time, reverse=True))
    return next((found for found in newest_first if found.uuid == uuid), None)


def _version_and_time(file: FileInfo) -> tuple[int, int]:
    """Return the sort key: version, then time. Failed commits may leave several files of a version."""
    found = _VERSION.match(file_name(file.path))
    return int(found[1]) if found else -1, file.modified_ms


def _metadata_files(files: Iterable[FileInfo]) -> list[FileInfo]:
    return [file for file in files if METADATA_SUFFIX in file_name(file.path)]


def file_name(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _read_metadata(store: ObjectStore, file: FileInfo) -> MetadataFile:
    try:
        data = store.get(file.path) or b""
        raw = json.loads(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)
        snapshots, properties = len(raw.get("snapshots") or ()), raw.get("properties") or {}
        return MetadataFile(file.path, file.modified_ms, raw["table-uuid"], snapshots, properties)
    except (EOFError, gzip.BadGzipFile, zlib.error, ValueError, KeyError, TypeError, AttributeError):
        return MetadataFile(file.path, file.modified_ms, None, None)
