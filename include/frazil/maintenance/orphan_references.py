"""Finds the files that a table references, and other tables inside its folders. Needs no JVM."""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchIcebergTableError, NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table, TableProperties
from pyiceberg.utils.concurrent import ExecutorFactory

from frazil.maintenance.orphans import ListedFile, References, StorePath, TableFolders, UndecidedFiles, normalise_path
from frazil.table.catalogs import list_namespaces
from frazil.table.lost_tables import METADATA_SUFFIX
from frazil.table.tables import data_location

VERSION_HINT = "version-hint.text"

_UUID = re.compile(rb'"table-uuid"\s*:\s*"([^"]+)"')


@dataclass(slots=True)
class Resolver:
    """Normalises paths to `StorePath`. Resolves local symbolic links once per folder."""

    folders: dict[str, str] = field(default_factory=dict)

    def __call__(self, path: str) -> StorePath:
        if not (path.startswith(("file:", "/")) or ":" not in path):
            return normalise_path(path)
        folder, _, name = ("/" + path.removeprefix("file:").lstrip("/")).rstrip("/").rpartition("/")
        if folder not in self.folders:
            self.folders[folder] = os.path.realpath(folder or "/")
        return normalise_path(f"{self.folders[folder]}/{name}")


def table_folders(table: Table, resolve: Callable[[str], StorePath]) -> TableFolders:
    location = table.location().rstrip("/")
    metadata = table.properties.get(TableProperties.WRITE_METADATA_PATH) or f"{location}/metadata"
    return TableFolders(".".join(table.name()), resolve(location), resolve(data_location(table)), resolve(metadata))


def load_all_tables(catalog: Catalog) -> Iterator[Table]:
    for namespace in list_namespaces(catalog):
        for identifier in catalog.list_tables(namespace):
            try:
                yield catalog.load_table(identifier)
            except (NoSuchTableError, NoSuchIcebergTableError):
                continue  # dropped meanwhile, or not an Iceberg table


def read_references(table: Table, resolve: Callable[[str], StorePath], *, loaded: Table) -> References:
    """Return all files that the table references. Its `live` files are in the newest snapshot of `loaded`."""
    snapshots, pool = table.metadata.snapshots, ExecutorFactory.get_or_create()
    lists = list(pool.map(lambda snapshot: snapshot.manifests(table.io), snapshots))
    manifests = {manifest.manifest_path: manifest for found in lists for manifest in found}
    newest = loaded.current_snapshot()
    of_newest = {
        manifest.manifest_path
        for snapshot, found in zip(snapshots, lists, strict=True)
        if newest and snapshot.snapshot_id == newest.snapshot_id
        for manifest in found
    }
    live = {resolve(path) for path in of_newest}
    paths = {
        resolve(path).path for path in (*_metadata_files(table), *manifests, *(s.manifest_list for s in snapshots))
    }
    for path, files in zip(manifests, pool.map(lambda m: _list_files(m, table.io), manifests.values()), strict=True):
        resolved = [resolve(file) for file in files]
        paths.update(found.path for found in resolved)
        if path in of_newest:
            live.update(resolved)
    checked = [resolve(path) for path in (loaded.metadata_location, *([newest.manifest_list] if newest else ()))]
    if not newest or checked[-1].path in paths:
        live.update(found for found in checked if found.path in paths)
    return References(paths, live, frozenset(manifests))


def _metadata_files(table: Table) -> Iterator[str]:
    metadata = table.metadata
    yield table.metadata_location
    yield from (entry.metadata_file for entry in metadata.metadata_log)
    yield from (file.statistics_path for file in (*metadata.statistics, *metadata.partition_statistics))
    yield f"{table.metadata_location.rsplit('/', 1)[0]}/{VERSION_HINT}"


def _list_files(manifest: ManifestFile, io: FileIO) -> list[str]:
    return [entry.data_file.file_path for entry in manifest.fetch_manifest_entry(io)]


def read_new_references(table: Table, references: References, resolve: Callable[[str], StorePath]) -> set[str]:
    """Return the paths of all metadata files, and of files in manifests that `references` does not have."""
    paths = {resolve(path).path for path in _metadata_files(table)}
    for snapshot in table.metadata.snapshots:
        if (listed := resolve(snapshot.manifest_list).path) in references.paths:
            continue
        paths.add(listed)
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in references.manifests:
                paths.add(resolve(manifest.manifest_path).path)
                paths.update(resolve(path).path for path in _list_files(manifest, table.io))
    return paths


def find_undecided_manifests(candidates: Iterable[ListedFile], table: Table, undecided: UndecidedFiles) -> set[str]:
    """Return the candidate manifests with files that may still be committed."""
    avro = [
        f.info.path for f in candidates if f.resolved.name.endswith(".avro") and not f.resolved.name.startswith("snap-")
    ]

    def names_undecided(path: str) -> bool:
        try:
            return any(undecided.holds(file) for file in _list_files(_bare_manifest(path), table.io))
        except FileNotFoundError:
            return False
        except Exception:
            _read(path, table.io)  # raises if the storage fails; otherwise the file is damaged, or is not a manifest
            return False

    answers = ExecutorFactory.get_or_create().map(names_undecided, avro)
    return {path for path, is_undecided in zip(avro, answers, strict=True) if is_undecided}


def _bare_manifest(path: str) -> ManifestFile:
    names = ("manifest_length", "partition_spec_id", "sequence_number", "min_sequence_number", "added_snapshot_id")
    zeros: dict[str, Any] = dict.fromkeys(names, 0)
    return ManifestFile.from_args(manifest_path=path, content=ManifestContent.DATA, **zeros)


def find_apart_metadata(files: Iterable[ListedFile], table: Table, resolve: Callable[[str], StorePath]) -> str | None:
    """Return the path of another table's `metadata.json`, if any: its folder never held this table's metadata."""
    folders = {resolve(path).path.rsplit("/", 1)[0] for path in _metadata_files(table)}
    folders.add(table_folders(table, resolve).metadata.path)
    candidates = (
        f for f in files if METADATA_SUFFIX in f.resolved.name and f.resolved.path.rsplit("/", 1)[0] not in folders
    )
    return next((file.info.path for file in candidates), None)


def find_foreign_metadata(candidates: Iterable[ListedFile], table: Table) -> str | None:
    """Return the path of a candidate `metadata.json` with another table's UUID, if any."""
    paths = [file.info.path for file in candidates if METADATA_SUFFIX in file.resolved.name]
    ids = ExecutorFactory.get_or_create().map(lambda path: _table_uuid(path, table.io), paths)
    own_key = (None, str(table.metadata.table_uuid))
    return next((path for path, uuid in zip(paths, ids, strict=True) if uuid not in own_key), None)


def _table_uuid(path: str, io: FileIO) -> str | None:
    try:
        data = _read(path, io)
        match = _UUID.search(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)
    except (FileNotFoundError, EOFError, gzip.BadGzipFile, zlib.error):
        return None
    return match[1].decode() if match else None


def _read(path: str, io: FileIO) -> bytes:
    with io.new_input(path).open() as stream:
        return stream.read()
