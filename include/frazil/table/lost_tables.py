"""Distinguishes tables that their catalog has lost from tables that were never created."""

from __future__ import annotations

import copy
import gzip
import json
import logging
import re
import shlex
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import BadRequestError, NoSuchNamespaceError, RESTError, TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from frazil.errors import SpecError, TableLost
from frazil.spec.model import StreamSpec
from frazil.spec.units import format_count
from frazil.table.catalogs import (
    MISSING_FILE,
    catalog_name,
    list_namespaces,
    list_table_names,
    open_existing_catalog,
    translate_catalog_errors,
)
from frazil.table.declared_tables import DeclaredTable, declared_dead_letters, declared_table
from frazil.table.object_store import FileInfo, ObjectStore
from frazil.table.parallel import run_in_parallel
from frazil.table.storage import open_store
from frazil.timetext import format_utc

log = logging.getLogger(__name__)

METADATA_SUFFIX = ".metadata.json"
STATE_FOLDER = "_frazil"
"""The folder of the streams' state, below a table's location."""
_VERSION = re.compile(r"v?(\d+)")


def find_remains(catalog: Catalog, declared: DeclaredTable) -> Remains | None:
    location, properties = declared.location, declared.properties
    folder = find_new_folder(catalog, declared.identifier, declared.schema, location=location, properties=properties)
    return read_remains(folder) if folder else None


def explain_lost_table(catalog: Catalog, identifier: str, remains: Remains) -> str:
    uuid = remains.newest.uuid if remains.newest else None
    if name := find_other_name(catalog, identifier, location=remains.location, uuid=uuid):
        return (
            f"the table {identifier} is not in the catalog {catalog.name!r}, and its location {remains.location} holds "
            f"the table {name}. If {identifier} was renamed, rename {name} back to {identifier} or declare "
            f"`table: {name}`; otherwise declare another `table.location`"
        )
    ways = ["Check that FRAZIL_HOME or .pyiceberg.yaml names the right catalog"]
    new, cause = describe_new_catalog(catalog), "The catalog may have been lost or replaced"
    if new:
        cause = "Another catalog may still have the table"
        newest = f"; its newest metadata file is {remains.newest.path}" if remains.newest else ""
        ways.append(f"restore it. If it is lost, see `A lost catalog` in docs/how-to/operate-writers.md{newest}")
    elif metadata := remains.newest:
        ways.append(f"register the table again: `{registration_command(catalog.name, identifier, metadata.path)}`")
    return (
        f"{f'{new}, so ' if new else ''}the table {identifier} is not in the catalog {catalog.name!r}, but its "
        f"location {remains.location} has files of a table: {remains}. {cause}. {', or '.join(ways)}. If the table was "
        "dropped on purpose, move the folder away, or declare another `table.location`"
    )


def describe_new_catalog(catalog: Catalog) -> str | None:
    """Return why the catalog seems to be new, moved or emptied; None if it has tables, or if they cannot be listed."""
    if file := catalog.properties.get(MISSING_FILE):
        return f"the catalog's file {file} does not exist"
    try:
        has_tables = any(map(catalog.list_tables, list_namespaces(catalog)))
    except Exception:  # a catalog may refuse to list
        return None
    return None if has_tables else "the catalog has no tables"


def find_other_name(catalog: Catalog, identifier: str, *, location: str, uuid: str | None) -> str | None:
    """Return another name of the table with this folder or UUID.

    Searches the namespace of `identifier`, and the namespace in the folder's path.
    """
    folder = _strip_file_scheme(location)
    above = folder.split("/")[-2:-1]
    namespaces = {identifier.rpartition(".")[0], *(name.removesuffix(".db") for name in above if name)}
    names = sorted({name for namespace in namespaces for name in list_table_names(catalog, namespace)} - {identifier})

    def is_same(name: str) -> bool:
        try:
            metadata = catalog.load_table(name).metadata
        except Exception:  # a table that cannot be loaded does not count
            return False
        return str(metadata.table_uuid) == uuid or _strip_file_scheme(metadata.location) == folder

    matches = run_in_parallel(is_same, names) if names else []
    return next((name for name, matched in zip(names, matches, strict=True) if matched), None)


def _strip_file_scheme(location: str) -> str:
    return location.removeprefix("file://").rstrip("/")


def missing_table_error(spec: StreamSpec) -> TableLost | None:
    catalog = open_existing_catalog(spec.table.catalog)
    with translate_catalog_errors(catalog.name):
        if catalog.table_exists(spec.table.identifier):
            return None
    return TableLost(find_lost_table(spec) or explain_dropped_table(spec, catalog))


def check_own_folder(catalog: Catalog, table: Table) -> None:
    """Raise TableLost if another table of the catalog has files in this table's folder."""
    identifier = ".".join(table.name())
    other = find_other_table(open_store(table.location(), table.io.properties), table)
    name = other and find_other_name(catalog, identifier, location=table.location(), uuid=other.uuid)
    if name:
        raise TableLost(
            f"the folder {table.location()} of table {identifier} also holds the table {name}, which was "
            f"renamed before {identifier} was created again: each table would delete the other's files. Drop "
            f"{identifier} without purging it and rename {name} back, or declare another `table.location`"
        )


def registration_command(catalog: str, identifier: str, metadata: str) -> str:
    flag = "" if catalog == catalog_name(None) else f" --catalog {shlex.quote(catalog)}"
    return f"frazil register {identifier} {shlex.quote(metadata)}{flag}"


def find_lost_table(spec: StreamSpec) -> str | None:
    """Return the error text if the catalog has lost the stream's table. A lost table must not be created again."""
    catalog = open_existing_catalog(spec.table.catalog)
    with translate_catalog_errors(catalog.name):
        if catalog.table_exists(spec.table.identifier):
            return None
        remains = find_remains(catalog, declared_table(spec))
    return explain_lost_table(catalog, spec.table.identifier, remains) if remains else None


def lost_dead_letters_error(spec: StreamSpec, start_hint: Callable[[StreamSpec], str]) -> TableLost:
    catalog, identifier = open_existing_catalog(spec.table.catalog), spec.dead_letter_table
    with translate_catalog_errors(catalog.name):
        remains = find_remains(catalog, declared_dead_letters(spec))
    reason = (
        explain_lost_table(catalog, identifier, remains)
        if remains
        else f"its dead-letter table {identifier} is not in the catalog {catalog.name!r}: it was dropped or renamed. "
        f"To create an empty dead-letter table, start the writer: {start_hint(spec)}"
    )
    return TableLost(reason, stream=spec.name)


def open_stream_catalog(spec: StreamSpec) -> Catalog:
    """Open the catalog of a stream's table for reading. Raises TableLost, and the errors of `find_lost_table`."""
    if lost := find_lost_table(spec):
        raise TableLost(lost, stream=spec.name)
    return open_existing_catalog(spec.table.catalog)


def absent_table_error(identifier: str, specs: Iterable[StreamSpec]) -> TableLost | SpecError:
    """Return the error for a missing table: TableLost if these streams' catalog has lost it, else SpecError."""
    streams = tuple(specs)
    for spec in streams:
        if lost := find_lost_table(spec):
            return TableLost(lost)
    is_of_template = any(spec.sinks.matches_template(identifier) for spec in streams)
    event = "the first record of its route value" if is_of_template else "the first start of its writer"
    return SpecError(f"the table {identifier} does not exist yet: {event} creates it")


def explain_dropped_table(spec: StreamSpec, catalog: Catalog) -> str:
    """Return the error text for a missing table to which the stream's writer on this host has committed."""
    new = describe_new_catalog(catalog)
    cause = new or "the catalog was lost or replaced, or the table was dropped or renamed"
    way = "Restore the catalog, or configure the right one"
    if not new:
        way = "Configure the right catalog, or register the table's newest metadata file"
    return (
        f"a writer on this host committed to the table {spec.table.identifier}, but the catalog {catalog.name!r} does "
        f"not have the table: {cause}. {way}. If the table was dropped on purpose, run `frazil forget {spec.name}`"
    )


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
        parts = []
        if self.newest is not None:
            count = self.newest.snapshots
            snapshots = "that cannot be read" if count is None else f"with {format_count(count, 'snapshot')}"
            parts.append(f"metadata {snapshots}, last written at {format_utc(self.newest.modified_ms)}")
        if self.streams:
            parts.append(f"commit records of {', '.join(self.streams)}")
        return " and ".join(parts)


@dataclass(frozen=True, slots=True)
class TableFolder:
    location: str
    store: ObjectStore


def find_new_folder(
    catalog: Catalog, identifier: str, schema: Schema, *, location: str | None, properties: dict[str, str]
) -> TableFolder | None:
    """Return the folder in which the catalog would create the table, if known. Creates nothing."""
    if isinstance(catalog, MetastoreCatalog):
        resolved = _resolve_location(catalog, identifier, location)
        return TableFolder(resolved, open_store(resolved, catalog.properties))
    try:
        transaction = catalog.create_table_transaction(identifier, schema, location=location, properties=properties)
    except (NoSuchNamespaceError, TableAlreadyExistsError):
        return None
    except (NotImplementedError, RESTError) as error:
        if isinstance(error, RESTError) and type(error) not in {BadRequestError, RESTError}:
            raise  # refused, or unreachable
        log.info("cannot determine where the catalog %r would create table %s: %s", catalog.name, identifier, error)
        return None
    # Nothing is created before a commit, which never happens.
    table = transaction._table
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
    remains = Remains(location, newest, streams)
    return remains if remains.streams or (newest is not None and newest.snapshots != 0) else None


def find_other_table(store: ObjectStore, table: Table) -> MetadataFile | None:
    """Return the metadata file of another table, with data, in this table's folder, if one exists."""
    metadata = table.metadata
    known_files = {
        file_name(path) for path in (table.metadata_location, *(e.metadata_file for e in metadata.metadata_log))
    }
    files = store.list_files(f"{table.location().rstrip('/')}/metadata")
    others = (_read_metadata(store, file) for file in _metadata_files(files) if file_name(file.path) not in known_files)
    return next((o for o in others if o.snapshots and o.uuid != str(metadata.table_uuid)), None)


def find_newest_metadata(store: ObjectStore, location: str, uuid: str) -> MetadataFile | None:
    files = _metadata_files(store.list_files(f"{location.rstrip('/')}/metadata"))
    newest_first = (_read_metadata(store, file) for file in sorted(files, key=_version_and_time, reverse=True))
    return next((metadata for metadata in newest_first if metadata.uuid == uuid), None)


def _version_and_time(file: FileInfo) -> tuple[int, int]:
    """Return a metadata file's sort key: version, then time. A version may have several files of failed commits."""
    match = _VERSION.match(file_name(file.path))
    return int(match[1]) if match else -1, file.modified_ms


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
