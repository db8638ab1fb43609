"""The lock file and the command for jars; `tests/spark` downloads some."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from frazil.errors import EnvironmentUnusable
from frazil.spark import jars


def test_a_jar_set_missing_from_the_lock_file_is_reported_with_the_available_sets(tmp_path: Path) -> None:
    lock_file = tmp_path / "test.lock"
    lock_file.write_text("[both]\njars = []\n")
    with pytest.raises(EnvironmentUnusable, match="no set of jars 'tea'; available sets: both"):
        jars.ensure_jars("tea", lock_file)


def test_the_lock_file_pins_every_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FRAZIL_JARS_LOCK", raising=False)  # `make matrix` sets it
    for name in jars.JAR_SETS:
        pinned = {str(jar.coordinates) for jar in jars.load_locked(name)}
        assert set(jars.JAR_SETS[jars.installed_variant(name)].coordinates) <= pinned


def test_no_file_of_the_package_names_a_host() -> None:
    package = Path(jars.__file__).parent
    for file in [*package.rglob("*.py"), *package.glob("*.lock"), *package.glob("*.xml")]:
        assert "https://" not in file.read_text(), file


def test_the_command_without_arguments_prints_its_usage() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "frazil.spark.jars"], capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert done.returncode == 2
    assert "python -m frazil.spark.jars fetch" in done.stderr
