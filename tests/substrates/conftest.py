"""One stream in a catalog and a storage of each kind that users have."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from frazil import clock
from frazil.dev.object_store import WAREHOUSE
from frazil.spec.model import StreamSpec
from tests.made_batches import MadeStream

SUBSTRATES = ("sqlite+local", "postgres+local", "postgres+s3", "rest+s3")
NOW_MS = clock.now_ms()
"""Not a made-up time: a server refuses a change that is dated before the last one, and dates some by its own clock."""

_serial = itertools.count(1)


def _properties(name: str, folder: Path, request: pytest.FixtureRequest) -> dict[str, str]:
    kind, storage = name.split("+")
    if kind == "rest":
        found: dict[str, str] = request.getfixturevalue("object_store").rest_catalog()
        return found
    uri = request.getfixturevalue("postgres").uri if kind == "postgres" else f"sqlite:///{folder}/catalog.db"
    if storage == "s3":
        placed = {"warehouse": f"s3://{WAREHOUSE}/", **request.getfixturevalue("object_store").s3_properties()}
    else:
        placed = {"warehouse": (folder / "warehouse").as_uri()}
    return {"type": "sql", "uri": uri, **placed}


def configure(monkeypatch: pytest.MonkeyPatch, properties: Mapping[str, str]) -> None:
    """Make them the catalog `lake`."""
    for key, value in properties.items():
        variable = key.upper().replace(".", "__").replace("-", "_")
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{variable}", value)


@pytest.fixture(params=SUBSTRATES)
def substrate(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    frazil_home: Path,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """The name of the substrate, which is configured as the catalog `lake`."""
    name: str = request.param
    configure(monkeypatch, _properties(name, tmp_path, request))
    return name


@pytest.fixture
def stream_spec(substrate: str) -> StreamSpec:  # noqa: ARG001 - it sets the environment
    """A stream whose table no other test has: the servers serve them all."""
    name = f"events_{next(_serial)}"
    return StreamSpec.model_validate(
        {
            "name": name,
            "source": {"topics": [name], "format": "json", "bootstrap-servers": "127.0.0.1:1"},
            "table": {"identifier": f"substrates.{name}", "catalog": "lake"},
            "schema": {"at": "timestamptz not null"},
            "event-time": "at",
            "partition-by": ["day(at)"],
        }
    )


def _columns(rows: int) -> dict[str, pa.Array]:
    return {"at": pa.array(np.full(rows, NOW_MS * 1000, np.int64)).cast(pa.timestamp("us", "UTC"))}


@pytest.fixture
def made(stream_spec: StreamSpec) -> Callable[[], MadeStream]:
    """`made()` is one writer's view of the test's stream: call it again for another process's."""
    return lambda: MadeStream(stream_spec, now_ms=NOW_MS, partitions=2, columns=_columns)
