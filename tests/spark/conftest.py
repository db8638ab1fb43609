"""These tests share one FRAZIL_HOME, because Spark opens the embedded catalog once and keeps it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def shared_home(spark_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set FRAZIL_HOME to the home of Spark's catalog, and remove all other catalog configuration."""
    for variable in [name for name in os.environ if name.upper().startswith("PYICEBERG")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("HOME", str(spark_home))
    monkeypatch.setenv("FRAZIL_HOME", str(spark_home))
    return spark_home
