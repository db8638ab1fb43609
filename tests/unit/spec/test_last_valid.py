"""The streams of a folder while one of its files is invalid, removed, or briefly missing."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frazil.spec import last_valid
from frazil.spec.last_valid import (
    MAX_FILE_ABSENCE_MS,
    MAX_FOLDER_ABSENCE_MS,
    REMOVED_FILE_REPORT_MS,
    STREAMS,
    DeclaredFile,
    find_declared,
    recall_declaration,
)
from frazil.spec.load import load_stream
from frazil.spec.model import StreamSpec

STREAM = """
name: {name}
source: {{topics: [{name}], bootstrap-servers: "127.0.0.1:1"}}
table: demo.{name}
schema: {{ts: timestamptz not null, "price €": double}}
event-time: ts
lateness: 7m
maintenance: {{expiry: off}}
"""
NOW = 1_000_000_000_000


@pytest.fixture
def folder(frazil_home: Path, tmp_path: Path) -> Path:  # noqa: ARG001
    made = tmp_path / "streams"
    made.mkdir()
    for name in ("a", "b"):
        (made / f"{name}.yaml").write_text(STREAM.format(name=name))
    return made


def check(folder: Path, now_ms: int = NOW) -> dict[str, DeclaredFile[StreamSpec]]:
    return {one.path.stem: one for one in find_declared(folder, STREAMS, now_ms=now_ms)}


def test_a_file_that_was_never_valid_has_no_spec(folder: Path) -> None:
    (folder / "a.yaml").write_text("name: a\n")
    found = check(folder)
    assert found["a"].spec is None
    assert "source" in (found["a"].problem or "")
    assert found["b"].problem is None


@pytest.mark.parametrize("broken", ["{", "", "name: a\n", "name: other\nmaintenance: {on: 1}\n"])
def test_a_broken_file_yields_its_last_valid_declaration(folder: Path, broken: str) -> None:
    valid = load_stream(folder / "a.yaml")
    check(folder)
    (folder / "a.yaml").write_text(broken)
    for _ in range(2):
        found = check(folder)
        assert (found["a"].spec, found["a"].removed) == (valid, False)
        assert str(folder / "a.yaml") in (found["a"].problem or "")
    assert recall_declaration(folder, "a", STREAMS) == valid
    (folder / "a.yaml").write_text(STREAM.format(name="a").replace("7m", "8m"))
    assert check(folder)["a"].problem is None
    assert check(folder)["a"].spec != valid


def test_a_name_that_its_file_no_longer_declares_is_removed_like_a_deleted_file(folder: Path) -> None:
    def names(now_ms: int = NOW) -> dict[str, DeclaredFile[StreamSpec]]:
        return {one.spec.name: one for one in find_declared(folder, STREAMS, now_ms=now_ms) if one.spec}

    before = names()["a"].spec
    (folder / "a.yaml").write_text(STREAM.format(name="c"))
    found = names()
    assert (set(found), found["a"].spec, found["a"].removed) == ({"a", "b", "c"}, before, False)
    assert (found["a"].problem or "").startswith(f"{folder / 'a.yaml'}: a is missing")
    assert [name for name, one in names(NOW + MAX_FILE_ABSENCE_MS).items() if one.removed] == ["a"]
    assert set(names(NOW + MAX_FILE_ABSENCE_MS + REMOVED_FILE_REPORT_MS)) == {"b", "c"}
    (folder / "b.yaml").write_text(STREAM.format(name="c"))
    (folder / "a.yaml").write_text(STREAM.format(name="b"))
    assert set(names()) == {"b", "c"}, "two swapped their names"


def test_records_written_by_another_process_are_read(folder: Path, frazil_home: Path) -> None:
    check(folder)
    (record,) = (frazil_home / "declared").glob("*/a.yaml.json")
    record.write_text(json.dumps({**json.loads(record.read_text()), "missing-since-ms": 1}))
    check(folder)
    (folder / "a.yaml").unlink()
    assert not check(folder)["a"].removed, "it was back since"


def test_another_process_validates_a_recorded_declaration_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(folder)
    monkeypatch.setattr(last_valid, "_known_records", {})
    validated: list[Path] = []
    validate = STREAMS.validate

    def counted(declared: Mapping[str, Any], path: Path) -> StreamSpec:
        validated.append(path)
        return validate(declared, path)

    kind = replace(STREAMS, validate=counted, load=lambda path: counted(STREAMS.read(path), path))
    assert [one.problem for one in find_declared(folder, kind, now_ms=NOW)] == [None, None]
    assert sorted(path.stem for path in validated) == ["a", "b"]


@pytest.mark.parametrize("mode", [0o700, 0o555])
def test_a_frazil_home_closed_to_this_user_removes_no_declaration(mode: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read twice in a process, also if a record is to be forgotten.

    Root, to whom nothing is closed, becomes another user; anybody else takes from himself what another may not.
    """
    is_root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as made:  # pytest's own folders are closed to others
        Path(made).chmod(0o755)
        home, folder = Path(made) / "home", Path(made) / "streams"
        monkeypatch.setenv("FRAZIL_HOME", str(home))
        folder.mkdir(mode=0o755)
        (folder / "a.yaml").write_text(STREAM.format(name="a"))
        check(folder)
        (folder / "a.yaml").rename(folder / "z.yaml")
        for path in reversed([home, *home.rglob("*")]):
            path.chmod(mode if is_root else mode % 8 * 0o111)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                if is_root:
                    os.setgid(65534)
                    os.setuid(65534)
                checks = [check(folder) for _ in range(2)]
                code = 0 if all(set(found) == {"z"} for found in checks) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_invalid_defaults_invalidate_all_files_but_each_keeps_its_last_valid_declaration(folder: Path) -> None:
    before = check(folder)
    (folder / "_defaults.yaml").write_text("latenes: 5m\n")
    found = check(folder)
    assert {name: one.spec for name, one in found.items()} == {name: one.spec for name, one in before.items()}
    assert all("latenes" in (one.problem or "") for one in found.values())


def test_a_missing_file_keeps_its_declaration_for_a_moment_and_is_then_removed(folder: Path) -> None:
    check(folder)
    (folder / "a.yaml").unlink()
    for now_ms in (NOW, NOW + MAX_FILE_ABSENCE_MS - 1):
        assert (check(folder, now_ms)["a"].removed, check(folder, now_ms)["a"].missing) == (False, True)
    assert (
        check(folder, NOW + MAX_FILE_ABSENCE_MS)["a"].removed,
        check(folder, NOW + MAX_FILE_ABSENCE_MS)["a"].missing,
    ) == (True, False)
    assert "was removed" in (check(folder, NOW + MAX_FILE_ABSENCE_MS)["a"].problem or "")
    assert set(check(folder, NOW + MAX_FILE_ABSENCE_MS + REMOVED_FILE_REPORT_MS)) == {"b"}
    assert set(check(folder, NOW)) == {"b"}
    (folder / "a.yaml").write_text(STREAM.format(name="a"))
    assert check(folder)["a"].problem is None


def test_a_file_that_comes_back_is_treated_as_never_removed(folder: Path) -> None:
    check(folder)
    text = (folder / "a.yaml").read_text()
    (folder / "a.yaml").unlink()
    check(folder)
    (folder / "a.yaml").write_text(text)
    check(folder, NOW + MAX_FILE_ABSENCE_MS)
    (folder / "a.yaml").unlink()
    assert not check(folder, NOW + 2 * MAX_FILE_ABSENCE_MS)["a"].removed


def test_a_clock_set_back_removes_no_stream_early(folder: Path) -> None:
    check(folder)
    (folder / "a.yaml").unlink()
    check(folder, NOW)
    assert not check(folder, NOW - 10 * REMOVED_FILE_REPORT_MS)["a"].removed
    assert not check(folder, NOW - 10 * REMOVED_FILE_REPORT_MS + MAX_FILE_ABSENCE_MS - 1)["a"].removed


def test_an_empty_folder_removes_streams_later_than_a_missing_file_and_a_missing_folder_never(folder: Path) -> None:
    before = check(folder)
    kept = {file: file.read_text() for file in folder.iterdir()}
    for file in kept:
        file.unlink()
    assert not any(one.removed or one.missing for one in check(folder, NOW).values())
    assert not any(one.removed for one in check(folder, NOW + MAX_FOLDER_ABSENCE_MS - 1).values())
    folder.rmdir()
    for now_ms in (NOW + MAX_FOLDER_ABSENCE_MS, NOW + 100 * REMOVED_FILE_REPORT_MS):
        found = check(folder, now_ms)
        assert {name: one.spec for name, one in found.items()} == {name: one.spec for name, one in before.items()}
        assert all("cannot be read" in (one.problem or "") and not one.removed for one in found.values())
    folder.mkdir()
    assert all(one.removed for one in check(folder, NOW + MAX_FOLDER_ABSENCE_MS).values())


def test_a_renamed_file_is_the_same_stream(folder: Path) -> None:
    check(folder)
    (folder / "a.yaml").rename(folder / "c.yaml")
    assert {one.path.name: one.problem for one in find_declared(folder, STREAMS, now_ms=NOW)} == {
        "b.yaml": None,
        "c.yaml": None,
    }


def test_many_processes_and_foreign_records_do_no_harm(folder: Path, frazil_home: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert all(len(found) == 2 for found in pool.map(lambda _: check(folder), range(50)))
    records = sorted(frazil_home.glob("declared/*/*.json"))
    assert [record.name for record in records] == ["a.yaml.json", "b.yaml.json"]
    (folder / "a.yaml").write_text("{")
    for foreign in (
        "",
        "[]",
        "7",
        json.dumps({"format": 99, "declared": {}}),
        json.dumps({"format": 1, "declared": 1}),
    ):
        records[0].write_text(foreign)
        assert check(folder)["a"].spec is None


def test_an_unwritable_frazil_home_changes_nothing_for_valid_files(
    folder: Path, frazil_home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (frazil_home / "declared").parent.mkdir(parents=True, exist_ok=True)
    (frazil_home / "declared").write_text("a file is in the way")
    assert all(one.spec and not one.problem for one in check(folder).values())
    assert "cannot be recorded" in caplog.text
