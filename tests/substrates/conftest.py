"""One stream in each combination of catalog and storage that users have (a substrate)."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from frazil import clock
from frazil.dev.object_store import WAREHOUSE, EmbeddedObjectStore
from frazil.spec.model import StreamSpec
from frazil.table.catalogs import spark_properties
from tests.conftest import TEST_SEED
from tests.made_batches import MadeStream
from tests.substrates import servers

SUBSTRATES = ("sqlite+local", "postgres+local", "postgres+s3", "rest+s3")
FOREIGN = ("iceberg+s3", "polaris+s3", "hive+local", "postgres+gcs", "postgres+adls")
"""Substrates of tests/substrates/servers.py, whose servers are downloaded: in `make soak` alone."""
WITHOUT_SPARK = ("gcs", "adls")
"""Storages for which the tests' Spark has no jars."""
ARCHIVES = {"s3": f"s3://{WAREHOUSE}", "gcs": f"gs://{WAREHOUSE}", "adls": f"abfss://{WAREHOUSE}@{servers.AZURE_HOST}"}
NOW_MS = clock.now_ms()
"""The real time, because servers date some changes by their own clocks, and refuse changes with an older date."""

VERSION = 2 + int(os.environ[TEST_SEED]) % 2
"""The tables' format version, the other one for the next commit."""

_serial = itertools.count(1)


def soaked_but(*names: str, needs_spark: bool = False) -> pytest.MarkDecorator:
    """Run the test on these substrates in `make test`, and on the others only in `make soak`."""
    without = WITHOUT_SPARK if needs_spark else ()
    cells = [name if name in names else _soaked(name, *without) for name in (*SUBSTRATES, *FOREIGN)]
    return pytest.mark.parametrize("substrate", cells, indirect=True)


def _soaked(name: str, *skipped: str) -> Any:
    storage = name.partition("+")[2]
    reason = f"frazil does not download the jars that Spark needs for {storage}"
    return pytest.param(name, marks=[pytest.mark.soak, pytest.mark.skipif(storage in skipped, reason=reason)])


def catalog_of(substrate: str) -> str:
    """Return a substrate's own catalog name, because Spark never closes a catalog that it has opened under a name."""
    return substrate.replace("+", "")


def _properties(name: str, folder: Path, request: pytest.FixtureRequest) -> dict[str, str]:
    kind, storage = name.split("+")
    if kind == "rest":
        found: dict[str, str] = request.getfixturevalue("object_store").rest_catalog()
        return found
    if kind in ("iceberg", "polaris"):
        return dict(request.getfixturevalue(kind))
    if storage == "s3":
        placed = {"warehouse": f"s3://{WAREHOUSE}/", **request.getfixturevalue("object_store").s3_properties()}
    elif storage in ("gcs", "adls"):
        placed = request.getfixturevalue(storage)
    else:
        placed = {"warehouse": (folder / f"{kind}-warehouse").as_uri()}
    if kind == "hive":
        uri = request.getfixturevalue("hive_metastore")
        return {"type": "hive", "uri": uri, "hive.hive2-compatible": "true", **placed}
    uri = request.getfixturevalue("postgres").uri if kind == "postgres" else f"sqlite:///{folder}/catalog.db"
    return {"type": "sql", "uri": uri, **placed}


@pytest.fixture(scope="session")
def iceberg(object_store: EmbeddedObjectStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The properties of a catalog in Iceberg's own REST server."""
    with servers.rest_catalog_server(tmp_path_factory.mktemp("iceberg-rest"), object_store) as server:
        yield servers.rest_properties(server, object_store)


@pytest.fixture(scope="session")
def polaris(object_store: EmbeddedObjectStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The properties of a catalog in Apache Polaris."""
    with servers.polaris(tmp_path_factory.mktemp("polaris"), object_store) as server:
        yield servers.polaris_properties(server, object_store)


@pytest.fixture(scope="session")
def hive_metastore(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers.hive_metastore(tmp_path_factory.mktemp("hive-metastore")) as uri:
        yield uri


@pytest.fixture(scope="session")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The catalog properties for tables in an emulated GCS."""
    with servers.fake_gcs(tmp_path_factory.mktemp("gcs")) as server:
        yield servers.gcs_properties(server)


@pytest.fixture(scope="session")
def adls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The catalog properties for tables in an emulated Azure Blob Storage."""
    with servers.azurite(tmp_path_factory.mktemp("azurite")) as server:
        yield servers.azure_properties(server)


def configure(monkeypatch: pytest.MonkeyPatch, substrate: str, properties: Mapping[str, str]) -> None:
    """Set the properties of the substrate's catalog."""
    for key, value in properties.items():
        variable = key.upper().replace(".", "__").replace("-", "_")
        monkeypatch.setenv(f"PYICEBERG_CATALOG__{catalog_of(substrate).upper()}__{variable}", value)


@pytest.fixture(scope="session")
def local_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for SQLite's file, and for tables that are not in an object store."""
    return tmp_path_factory.mktemp("substrates")


@pytest.fixture(params=(*SUBSTRATES, *map(_soaked, FOREIGN)))
def substrate(
    request: pytest.FixtureRequest,
    local_folder: Path,
    frazil_home: Path,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """The name of the substrate, which is configured as the catalog `catalog_of(name)`."""
    name: str = request.param
    configure(monkeypatch, name, _properties(name, local_folder, request))
    return name


@pytest.fixture
def declare(substrate: str) -> Callable[..., StreamSpec]:
    """`declare(**keys)` returns a stream with a unique table name, because all tests share the servers."""

    def made(**keys: object) -> StreamSpec:
        name = f"events_{next(_serial)}"
        return StreamSpec.model_validate(
            {
                "name": name,
                "source": {"topics": [name], "format": "json", "bootstrap-servers": "127.0.0.1:1"},
                "table": {
                    "identifier": f"substrates.{name}",
                    "catalog": catalog_of(substrate),
                    "properties": {"format-version": VERSION},
                },
                "schema": {"at": "timestamptz not null"},
                "event-time": "at",
                "partition-by": ["hour(at)"],
                **keys,
            }
        )

    return made


@pytest.fixture
def stream_spec(declare: Callable[..., StreamSpec]) -> StreamSpec:
    return declare()


def view_of(spec: StreamSpec) -> MadeStream:
    """Return a writer's own view of a stream."""
    return MadeStream(spec, now_ms=NOW_MS, partitions=2, columns=_columns)


def _columns(rows: int) -> dict[str, pa.Array]:
    return {"at": pa.array(np.full(rows, NOW_MS * 1000, np.int64)).cast(pa.timestamp("us", "UTC"))}


@pytest.fixture
def made(stream_spec: StreamSpec) -> Callable[[], MadeStream]:
    """`made()` returns a writer's view of the test's stream. Call it again for another process's view."""
    return lambda: view_of(stream_spec)


@pytest.fixture
def spark_here(spark: Any, substrate: str) -> Any:
    """Let the session's Spark open the substrate's catalog, with the same properties as PyIceberg."""
    for key, value in spark_properties(catalog_of(substrate)).items():
        spark.conf.set(key, value)
    return spark


@pytest.fixture
def archive(substrate: str, stream_spec: StreamSpec, tmp_path: Path) -> str:
    """Return a folder in the substrate's storage, outside all tables."""
    storage = substrate.partition("+")[2]
    return f"{ARCHIVES[storage]}/archive/{stream_spec.name}" if storage in ARCHIVES else str(tmp_path / "archive")
