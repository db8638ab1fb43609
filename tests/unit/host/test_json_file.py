"""JSON files that are replaced as a whole."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from frazil.host.lock import WriterLock
from frazil.json_files import replace_json
from frazil.table.storage import LocalStore


def test_a_file_that_cannot_be_replaced_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "exit.json").mkdir()
    with pytest.raises(OSError, match=r"exit\.json"):
        replace_json(tmp_path / "exit.json", {})
    assert [one.name for one in tmp_path.iterdir()] == ["exit.json"]


def test_whatever_the_umask_others_write_neither_into_the_folder_nor_into_the_file(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        replace_json(tmp_path / "own" / "streams" / "ticks" / "exit.json", {})
        with WriterLock(tmp_path / "own" / "streams" / "quotes"):
            pass
        LocalStore().put(f"{tmp_path}/own/streams/clicks/desired.json", b"{}")
    finally:
        os.umask(before)
    made = list((tmp_path / "own").rglob("*"))
    assert len(made) == 7
    assert [path for path in made if path.stat().st_mode & 0o002] == []


def test_a_temporary_file_that_is_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    (tmp_path / f".exit.json.{os.getpid()}.{threading.get_ident()}").symlink_to(target)
    with pytest.raises(OSError, match="symbolic link"):
        replace_json(tmp_path / "exit.json", {})
    assert not target.exists()
