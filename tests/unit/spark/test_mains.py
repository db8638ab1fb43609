"""The main programs that Spark starts, up to the point where they need Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from frazil import spark_apps
from frazil.errors import SpecError

CALLS = {
    spark_apps.WRITE_STREAM: ["ticks", "--streams", "."],
    spark_apps.WRITE_APPLICATION: ["small", "--streams", "."],
    spark_apps.MAINTAIN_TABLE: ["demo.ticks", "--streams", "."],
    spark_apps.AGGREGATE_DAILY: ["daily", "--aggregations", ".", "--day", "2013-12-30"],
    spark_apps.BACKFILL: ["ticks", "--streams", ".", "--request", "{}"],
}


@pytest.mark.parametrize("main", CALLS, ids=lambda main: main.stem)
def test_an_unreadable_catalog_configuration_is_reported_in_one_sentence(main: Path, tmp_path: Path) -> None:
    (tmp_path / ".pyiceberg.yaml").write_text("catalog: [1")
    environment = {**os.environ, "PYICEBERG_HOME": str(tmp_path)}
    command = [sys.executable, str(main), *CALLS[main]]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.stderr.startswith(f"SpecError: {tmp_path / '.pyiceberg.yaml'} is not YAML that PyIceberg can read: ")
    assert len(done.stderr.splitlines()) == 1
    assert done.returncode == SpecError.exit_code
