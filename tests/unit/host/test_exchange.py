"""Documents that processes of one host exchange: always whole, and replaced as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from frazil.json_files import read_json, replace_json


def test_a_document_contains_the_value_that_was_written_last(tmp_path: Path):
    file = tmp_path / "made" / "later" / "planner.json"
    assert read_json(file) is None
    for value in ({"ends": 1}, {"ends": [2]}):
        replace_json(file, value)
        assert read_json(file) == value
    assert list(file.parent.iterdir()) == [file]


def test_invalid_json_in_an_exchanged_file_raises_an_error(tmp_path: Path):
    (tmp_path / "status.json").write_text("{")
    with pytest.raises(ValueError, match="Expecting"):
        read_json(tmp_path / "status.json")
