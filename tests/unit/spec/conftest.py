"""A folder for declarations, and the smallest valid stream."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

SMALLEST: dict[str, Any] = {
    "name": "flights",
    "source": {"bootstrap-servers": "127.0.0.1:9092", "topics": "flights"},
    "table": "demo.flights",
    "schema": {"carrier": "string not null", "departed": "timestamptz not null", "delay": "int"},
    "event-time": "departed",
}


@pytest.fixture
def declare(tmp_path: Path) -> Callable[..., Path]:
    """Write a stream's file: the smallest stream, with some keys (in snake case) replaced, or removed if None."""

    def write(file: str = "flights.yaml", **changes: Any) -> Path:
        declared = copy.deepcopy(SMALLEST)
        for key, value in changes.items():
            declared[key.replace("_", "-")] = value
        path = tmp_path / file
        path.write_text(yaml.safe_dump({k: v for k, v in declared.items() if v is not None}, sort_keys=False))
        return path

    return write
