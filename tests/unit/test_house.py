"""House rules that no linter checks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

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


def test_the_readme_names_each_room_of_the_package_and_no_other():
    rooms = {folder.parent.name for folder in Path("include/frazil").glob("*/__init__.py")}
    named = re.findall(r"^  (\w+)/ +\S", Path("README.md").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(rooms)
