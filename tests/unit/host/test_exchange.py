"""Documents that processes of one host exchange: whole, replaced whole, and gone when cleared."""

from __future__ import annotations

from pathlib import Path

import pytest

from frazil.host.exchange import open_exchange


def test_a_document_contains_the_value_that_was_written_last(tmp_path: Path):
    exchange = open_exchange(tmp_path / "made" / "later")
    assert exchange.read("planner.json") is None
    exchange.clear("planner.json")
    for value in ({"ends": 1}, {"ends": [2]}):
        exchange.write("planner.json", value)
        assert open_exchange(str(tmp_path / "made" / "later")).read("planner.json") == value
    exchange.clear("planner.json")
    assert exchange.read("planner.json") is None
    assert list((tmp_path / "made" / "later").iterdir()) == []


def test_invalid_json_in_an_exchanged_file_raises_an_error(tmp_path: Path):
    (tmp_path / "status.json").write_text("{")
    with pytest.raises(ValueError, match="Expecting"):
        open_exchange(tmp_path).read("status.json")
