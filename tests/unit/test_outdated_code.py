"""Files that are replaced while a process runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from frazil import outdated_code

CODE = ImportError("cannot import name 'route_of'")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "one.py").write_text("a = 1")
    monkeypatch.setattr(outdated_code, "FOLDER", tmp_path)
    monkeypatch.setattr(outdated_code, "_starts", [])
    return tmp_path


def test_an_import_error_counts_as_outdated_code_only_after_a_file_changed(package: Path):
    assert outdated_code.explain_outdated(CODE) is None, "a process that does not go on for long"
    outdated_code.remember_files("API server")
    (package / "room" / "one.pyc").write_text("compiled")
    assert outdated_code.explain_outdated(CODE) is None
    os.utime(package / "room" / "one.py", ns=(1, 1))  # an older one, as of a rollback
    said = str(outdated_code.explain_outdated(CODE))
    assert said.startswith("frazil's files were replaced after this API server started")
    assert said.endswith(str(CODE)), "which may be a fault of a catalog"
    assert outdated_code.explain_outdated(OSError("no route to host")) is None
    outdated_code.remember_files("API server")
    assert outdated_code.explain_outdated(CODE) is None


def test_an_added_or_removed_file_is_a_change(package: Path):
    outdated_code.remember_files("API server")
    (package / "two.py").write_text("b = 2")
    assert outdated_code.explain_outdated(AttributeError("b"))
    (package / "two.py").unlink()
    assert outdated_code.explain_outdated(AttributeError("b")) is None
    (package / "room" / "one.py").unlink()
    assert outdated_code.explain_outdated(AttributeError("a"))
