"""A FRAZIL_HOME for each test, with one stream, and only the embedded catalog."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.made_batches import MadeStream
from tests.unit.maintenance.day_by_day import made_stream


@pytest.fixture
def made(tmp_path: Path, frazil_home: Path, monkeypatch: pytest.MonkeyPatch) -> MadeStream:  # noqa: ARG001
    for variable in [name for name in os.environ if name.upper().startswith("PYICEBERG")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("HOME", str(tmp_path))
    return made_stream(tmp_path)
