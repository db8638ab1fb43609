"""Files that are replaced whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from frazil.host.json_file import replace_json


def test_a_file_that_cannot_be_replaced_leaves_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "exit.json").mkdir()
    with pytest.raises(OSError, match=r"exit\.json"):
        replace_json(tmp_path / "exit.json", {})
    assert [one.name for one in tmp_path.iterdir()] == ["exit.json"]
