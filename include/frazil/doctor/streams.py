"""Checks of everything that declared streams refer to: files, Kafka, catalogs, storage, and their clocks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from frazil.doctor.clocks import clocks
from frazil.doctor.connections import Connections
from frazil.doctor.finding import Finding, State
from frazil.errors import FrazilError
from frazil.spec.conflicts import conflicts
from frazil.spec.formats import registry_of
from frazil.spec.load import load_stream, stream_files
from frazil.spec.model import StreamSpec
from frazil.spec.references import resolve
from frazil.spec.units import counted

SHOWN = 5
"""Up to twice this number of streams have a line each; beyond that, only their count is shown."""


def declarations(folder: Path) -> tuple[dict[Path, StreamSpec], list[Finding]]:
    """Return the valid streams of a folder by file, and the errors of the other files."""
    streams: dict[Path, StreamSpec] = {}
    errors: list[str] = []
    for path in stream_files(folder) if folder.is_dir() else ():
        try:
            streams[path] = load_stream(path)
        except FrazilError as error:
            errors += str(error).splitlines()
    errors += conflicts(streams)
    if not streams and not errors:
        none = Finding(
            "declarations", State.SKIPPED, f"{folder} declares no stream",
            "name the folder with --streams or FRAZIL_STREAMS",
        )  # fmt: skip
        return streams, [none]
    found = [Finding("declarations", State.WRONG, error) for error in errors]
    sound = [Finding("declarations", State.OK, f"{counted(len(streams), 'sound stream')} in {folder}")]
    return streams, found or sound


def connections(streams: Mapping[Path, StreamSpec]) -> Iterator[Finding]:
    """Check whether all services of the streams respond and permit what a writer does: `frazil validate --connect`."""
    if not streams:
        yield Finding("connections", State.SKIPPED, "no stream is declared here")
        return
    found = Connections.of(streams)
    if len(found.good) > 2 * SHOWN:
        yield Finding("connections", State.OK, f"{counted(len(streams), 'stream')}: all that answers works")
    else:
        for good in found.good:
            yield Finding("connections", State.OK, good)
    for fault in found.faults:
        yield Finding("connections", State.WRONG, fault.said, fault.fix)


def clocks_of(streams: Mapping[Path, StreamSpec]) -> Iterator[Finding]:
    """Compare this machine's clock with registries, REST catalogs, object stores, and PostgreSQL."""
    from frazil.table.catalogs import catalog_config  # noqa: PLC0415 - PyIceberg is slow to load

    addresses: set[str] = set()
    databases: dict[str, Callable[[], int]] = {}
    for catalog in {spec.table.catalog for spec in streams.values()}:
        try:
            config = catalog_config(catalog)
        except FrazilError:
            continue  # the check of connections says so
        uri = config.properties.get("uri", "")
        addresses |= {one for one in (uri, config.properties.get("s3.endpoint", "")) if one.startswith("http")}
        if uri.startswith("postgresql"):
            databases[config.name] = _time_of(uri)
    return clocks(addresses | _registries(streams), databases)


def _registries(streams: Mapping[Path, StreamSpec]) -> set[str]:
    found = set()
    for spec in streams.values():
        registry = registry_of(spec.source.format)
        if registry is not None:
            try:
                found.add(resolve(registry.url, os.environ))
            except FrazilError:
                continue  # a missing variable: the check of connections says so
    return found


def _time_of(uri: str) -> Callable[[], int]:
    def ask() -> int:
        from sqlalchemy import create_engine, text  # noqa: PLC0415 - only where a catalog is a database

        engine = create_engine(uri, connect_args={"connect_timeout": 5})
        try:
            with engine.connect() as connection:
                seconds = connection.execute(text("select extract(epoch from clock_timestamp())")).scalar_one()
        finally:
            engine.dispose()
        return int(float(seconds) * 1000)

    return ask
