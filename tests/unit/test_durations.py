"""CPU seconds of test functions are stored by file; other files' entries are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import durations


def test_a_test_run_replaces_the_durations_of_its_files_and_keeps_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durations, "PATH", tmp_path / "durations.json")
    durations.write({"tests/a.py::test_old": 2.0, "tests/b.py::test_b@tests/b.py": 1.0})
    durations.write(
        {"tests/a.py::test_x[a::b-1@y]@airflow": 0.12, "tests/a.py::test_x[2]": 0.12, "tests/a.py::test_y": 0}
    )
    assert durations.read() == {"tests/a.py::test_x": 0.2, "tests/b.py::test_b": 1.0}


def test_stored_durations_belong_to_existing_test_functions() -> None:
    stored = durations.read()
    assert stored
    assert {name: found for name, found in stored.items() if durations.function_of(name) != name} == {}
    assert min(stored.values()) >= durations.MIN_S
