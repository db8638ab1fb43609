"""Checks with a test table whether a catalog and its storage can hold a stream, before its first writer.

Some catalogs silently ignore branches or properties, or accept commits that are based on an outdated state. Each host
records which catalogs passed the check.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import SetPropertiesUpdate, TableUpdate
from pyiceberg.types import NestedField, TimestamptzType
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from frazil.commit.marked_update import BranchRemoval
from frazil.commit.snapshot import PreparedSnapshot, SnapshotWriter
from frazil.errors import AccessDenied, CommitRefused
from frazil.home import home, make_folder
from frazil.spec.model import StreamSpec
from frazil.table.branches import head_of
from frazil.table.catalog_errors import configuration_error
from frazil.table.catalogs import CatalogConfig, catalog_config, translate_catalog_errors
from frazil.table.declared_tables import DEFAULT_PROPERTIES, FORMAT_VERSION
from frazil.table.lost_tables import STATE_FOLDER
from frazil.table.storage import open_store

log = logging.getLogger(__name__)

PROBE_VERSION = 2
"""Version of the probe's checks. A higher version makes every host probe its catalogs again."""
PREFIX = "frazil_probe_"
BRANCH = "frazil-probe"
PROPERTY = "frazil.probe"
ABANDONED_AFTER_MS = 15 * 60_000
"""Age at which a test table counts as abandoned."""

_SCHEMA = Schema(NestedField(1, "at", TimestamptzType()))  # a type that Hive 2 does not have
_NAME = re.compile(rf"{PREFIX}(\d+)_[0-9a-f]+")


def check_catalog_guarantees(catalog: Catalog, spec: StreamSpec, *, now_ms: int) -> None:
    """Raise CommitRefused if the catalog cannot hold a stream. Skips embedded and already checked catalogs."""
    config = catalog_config(spec.table.catalog)
    record = _record_path(config)
    if config.embedded or record.exists():
        return
    try:
        missing = probe(catalog, spec, now_ms=now_ms)
    except AccessDenied as error:
        log.warning("could not check whether the catalog %r can hold a stream: %s", catalog.name, error)
        return
    if missing:
        raise CommitRefused(
            f"the catalog {catalog.name!r} cannot hold a stream: {'; '.join(missing)}. Nothing was written to the "
            "stream's table. Declare the table in another catalog",
            stream=spec.name,
        )
    make_folder(record.parent)
    record.write_text(json.dumps({"catalog": catalog.name, "probed-at-ms": now_ms}))


def probe(catalog: Catalog, spec: StreamSpec, *, now_ms: int) -> tuple[str, ...]:
    """Return a message for each missing feature of the catalog or its storage. Removes its test table."""
    with (
        translate_catalog_errors(catalog.name),
        _create_namespace(catalog, spec.table.identifier.rpartition(".")[0]) as namespace,
    ):

        def sweep() -> None:
            for identifier in catalog.list_tables(namespace):
                match = _NAME.fullmatch(identifier[-1])
                if match and int(match[1]) < now_ms - ABANDONED_AFTER_MS:
                    _drop_with_files(catalog, catalog.load_table(identifier))

        _try_to("remove the tables of earlier probes", sweep)
        version = spec.table.properties.get("format-version", str(FORMAT_VERSION))
        with _create_table(catalog, namespace, location=spec.table.location, version=version, now_ms=now_ms) as table:
            if str(table.metadata.format_version) != version:
                return (f"it does not create tables of Iceberg format version {version}",)
            missing = (*_Probe(catalog, table, now_ms).run(), *_missing_in_storage(table))
    return tuple(dict.fromkeys(missing))


@dataclass(slots=True)
class _Probe:
    catalog: Catalog
    table: Table
    now_ms: int

    def run(self) -> Iterator[str]:
        first = self._commit(self.table, value="first")
        base = self._load()
        second = self._commit(base, value="second")
        yield from self._check_history(first, second)
        yield from self._check_conditional(base, second)
        yield from self._check_branch()

    def _commit(self, table: Table, *, value: str) -> PreparedSnapshot:
        prepared = SnapshotWriter(()).prepare(table, summary={}, now_ms=self.now_ms)
        self._swap(table, prepared, SetPropertiesUpdate(updates={PROPERTY: value}))
        return prepared

    def _swap(self, table: Table, prepared: PreparedSnapshot, *more: TableUpdate) -> None:
        self.catalog.commit_table(table, prepared.requirements, (*prepared.updates, *more))

    def _load(self) -> Table:
        """Load the table as a reader does, because a commit's response may differ from what the catalog stored."""
        return self.catalog.load_table(self.table.name())

    def _check_history(self, first: PreparedSnapshot, second: PreparedSnapshot) -> Iterator[str]:
        table = self._load()
        ids = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
        head = head_of(table.metadata)
        if not {first.snapshot.snapshot_id, second.snapshot.snapshot_id} <= ids or (
            head is None or head.parent_snapshot_id != first.snapshot.snapshot_id
        ):
            yield "it does not keep the snapshot history: after two commits the table shows only the last"
        if table.properties.get(PROPERTY) != "second":
            yield "it drops table properties that are set with a commit"

    def _check_conditional(self, base: Table, second: PreparedSnapshot) -> Iterator[str]:
        stale = SnapshotWriter(()).prepare(base, summary={}, now_ms=self.now_ms)
        try:
            self._swap(base, stale)
        except Exception as error:  # any error may mean a refusal: the table's state decides
            log.debug("the second commit from one base was refused: %r", error)
            refused = True
        else:
            refused = False
        if not refused or self._head() != second.snapshot.snapshot_id:
            yield "its commits are not conditional: two commits from the same base both succeeded"

    def _check_branch(self) -> Iterator[str]:
        table = self._load()
        head = self._head()
        prepared = SnapshotWriter((), branch=BRANCH).prepare(table, summary={}, now_ms=self.now_ms)
        try:
            self._swap(table, prepared)
        except Exception as error:
            yield f"it refuses branches: {' '.join(str(error).split())}"
            return
        now = self._load()
        if self._head(now) != head:
            yield "a commit to a branch replaces main's data"
        branch = head_of(now.metadata, BRANCH)
        if branch is None or branch.snapshot_id != prepared.snapshot.snapshot_id:
            yield "it ignores branches: after a commit to a branch, the branch does not exist"
            return
        self.catalog.commit_table(now, (), BranchRemoval(BRANCH).updates(now))
        if BRANCH in self._load().metadata.refs:
            yield "it does not remove branches"

    def _head(self, table: Table | None = None) -> int | None:
        head = head_of((table or self._load()).metadata)
        return head.snapshot_id if head else None


def _missing_in_storage(table: Table) -> Iterator[str]:
    store, path = open_store(table.location(), table.io.properties), f"{table.location().rstrip('/')}/data/probe"
    store.put_if_absent(path, b"first")
    if store.put_if_absent(path, b"second") or store.get(path) != b"first":
        yield (
            "its storage does not support conditional puts (If-None-Match): a second put of the same object replaced "
            "the first"
        )
    if path not in {file.path for file in store.list_files(path.rpartition("/")[0])}:
        yield "its storage does not list an object that was just written"
    store.delete([path])
    if store.get(path) is not None:
        yield "its storage does not delete objects"


@contextmanager
def _create_namespace(catalog: Catalog, name: str) -> Iterator[str]:
    created = []
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        if not catalog.namespace_exists(tuple(parts[:depth])):
            with suppress(NamespaceAlreadyExistsError):
                catalog.create_namespace(tuple(parts[:depth]))
                created.append(tuple(parts[:depth]))
    try:
        yield name
    finally:
        for namespace in reversed(created):
            _try_to("drop a namespace", lambda n=namespace: catalog.drop_namespace(n))  # type: ignore[misc]


@contextmanager
def _create_table(
    catalog: Catalog, namespace: str, *, location: str | None, version: str, now_ms: int
) -> Iterator[Table]:
    name = f"{PREFIX}{now_ms}_{uuid.uuid4().hex[:8]}"
    table_location = f"{_probe_folder(location)}/{name}" if location else None
    try:
        properties = {**DEFAULT_PROPERTIES, "format-version": version}
        table = catalog.create_table(f"{namespace}.{name}", _SCHEMA, location=table_location, properties=properties)
    except ValueError as error:
        raise configuration_error(catalog.name, error) from error
    try:
        yield table
    finally:
        _try_to("drop its table", lambda: _drop_with_files(catalog, table))


def _probe_folder(location: str) -> str:
    return f"{location.rstrip('/')}/{STATE_FOLDER}/_probe"


@contextmanager
def clean_up_probe_folders(catalog: Catalog, spec: StreamSpec) -> Iterator[None]:
    """Remove a probe's empty folders from a local warehouse. Call this only while no writer starts."""
    namespace, location = spec.table.identifier.rpartition(".")[0], spec.table.location
    uri = _probe_folder(location) if location else f"{catalog.properties.get('warehouse', '').rstrip('/')}/{namespace}"
    folder, is_local = Path(urlsplit(uri).path), urlsplit(uri).scheme in {"", "file"}
    missing = [path for path in (folder, *folder.parents) if not path.exists()] if is_local else []
    try:
        yield
    finally:
        for path in missing:
            with suppress(OSError):
                path.rmdir()


def _drop_with_files(catalog: Catalog, table: Table) -> None:
    catalog.drop_table(table.name())
    location = table.location()
    store = open_store(location, table.io.properties)
    try:
        store.delete([file.path for file in store.list_files(location)])
    except AccessDenied:
        if isinstance(catalog, MetastoreCatalog):
            raise
        # A server that removes a dropped table's files itself may deny access to the folder from then on.
    if urlsplit(location).scheme in {"", "file"}:
        with suppress(OSError):
            Path(urlsplit(location).path).rmdir()


def _try_to(purpose: str, action: Callable[[], object]) -> None:
    try:
        action()
    except Exception as error:
        log.warning("the catalog's probe could not %s: %s", purpose, " ".join(str(error).split()))


def _record_path(config: CatalogConfig) -> Path:
    uri = config.properties.get("uri", "")
    with suppress(ArgumentError):
        uri = make_url(uri).render_as_string(hide_password=True)
    keys = ("type", "warehouse", "prefix", "glue.id", "glue.region", "glue.endpoint", "s3.endpoint")
    identity = json.dumps([PROBE_VERSION, uri, *(config.properties.get(key, "") for key in keys)])
    return home() / "catalogs" / f"{hashlib.sha256(identity.encode()).hexdigest()[:16]}.json"
