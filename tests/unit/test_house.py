"""House rules that no linter checks."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("frazil.ingest.stage", ["pyspark", "airflow", "pyiceberg.catalog"]),
        ("frazil.host.heartbeat", ["pyspark", "pyarrow", "pyiceberg"]),
        ("frazil.spec.load", ["pyspark", "pyarrow", "pyiceberg", "airflow"]),
        ("frazil.cli.main", ["pyspark", "pyarrow", "pyiceberg", "airflow"]),
    ],
)
def test_a_room_loads_nothing_that_its_process_does_not_need(module: str, unwanted: list[str]):
    program = f"import sys, {module}; print([m for m in {unwanted!r} if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"
