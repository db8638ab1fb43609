"""A catalog for each test, without any configuration from outside."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog

from frazil.spec.model import StreamSpec
from frazil.table.catalogs import load_catalog


@pytest.fixture
def unconfigured(frazil_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set FRAZIL_HOME for this test, and hide all PyIceberg configuration."""
    for variable in [name for name in os.environ if name.upper().startswith("PYICEBERG")]:
        monkeypatch.delenv(variable)
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("HOME", str(empty))
    monkeypatch.chdir(empty)
    return frazil_home


@pytest.fixture
def catalog(unconfigured: Path) -> Catalog:  # noqa: ARG001 - it sets the environment
    """The embedded catalog."""
    return load_catalog(None)


@pytest.fixture
def stream() -> Callable[..., StreamSpec]:
    """Return the spec of a small stream with some keys replaced (in snake case)."""

    def make(**changes: Any) -> StreamSpec:
        declared: dict[str, Any] = {
            "name": "flights",
            "source": {"bootstrap-servers": "127.0.0.1:9092", "topics": "flights"},
            "table": "demo.flights",
            "schema": {"carrier": "string not null", "departed": "timestamptz not null", "delay": "int"},
            "event-time": "departed",
            "partition-by": ["day(departed)"],
        }
        declared |= {key.replace("_", "-"): value for key, value in changes.items()}
        return StreamSpec.model_validate(declared)

    return make
