"""Compiled loops: processes share their code, and a broken cache costs only time."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from frazil.ingest import compiled as compiled_module
from frazil.ingest.compiled import compiled, compiler_notices, load32, load64, memcpy
from frazil.ingest.progress import compilation


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's cache of this test alone, with nothing in it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(compiled_module, "_warned", False)
    monkeypatch.setattr(compiled_module, "_notice", None)
    monkeypatch.setattr(compiled_module, "_compiled", None)
    compiled_module.code_folder.cache_clear()
    yield tmp_path / "cache"
    compiled_module.code_folder.cache_clear()


def test_memory_is_read_and_copied_where_it_lies() -> None:
    data = np.arange(32, dtype=np.uint8)
    to = np.zeros(8, np.uint8)

    @compiled
    def loop(address: int, to: int) -> tuple[int, int]:
        memcpy(to, address + 3, 5)
        return load32(address + 1), load64(address + 1)

    assert loop(data.ctypes.data, to.ctypes.data) == (0x04030201, 0x0807060504030201)
    assert to.tolist() == [3, 4, 5, 6, 7, 0, 0, 0]


def test_without_a_folder_code_is_compiled_in_memory_with_one_warning(
    cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache.write_text("not a folder")
    (cache.parent / f"frazil-{os.getuid()}").write_text("nor is this one")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):

            @compiled
            def loop(x: int) -> int:
                return x + 1

            assert loop(1) == 2
    assert [r.getMessage()[:30] for r in caplog.records] == ["compiled code cannot be cached"]
    (notice,) = compiler_notices()
    assert notice.startswith("compiled code cannot be cached")
    assert "XDG_CACHE_HOME" in notice


@pytest.mark.usefixtures("cache")
def test_compilation_at_run_time_causes_one_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    @compiled
    def loop(x: int) -> int:
        return x + 3

    running: list[bool] = []
    monkeypatch.setattr(compilation, "on_change", lambda: running.append(compilation.is_running))
    assert compiler_notices() == ()
    assert loop(1) == 4
    (notice,) = compiler_notices()
    assert "had to be compiled while a batch waited" in notice
    assert running == [True, False]
    assert loop(2) == 5
    assert compiler_notices() == ()


def test_a_failed_compilation_is_no_longer_reported_as_running() -> None:
    running: list[bool] = []
    compilation.on_change = lambda: running.append(compilation.is_running)
    try:
        with pytest.raises(Exception, match="unknown_name"):
            compiled(lambda: unknown_name)()  # type: ignore[name-defined]  # noqa: F821
    finally:
        compilation.on_change = lambda: None
    assert running == [True, False]


def test_a_folder_that_other_users_may_write_is_not_used(cache: Path) -> None:
    (cache / "frazil" / "compiled").mkdir(parents=True)
    (cache / "frazil" / "compiled").chmod(0o777)
    folder = compiled_module.code_folder()
    assert folder is not None
    assert cache not in folder.parents


@pytest.mark.usefixtures("cache")
def test_the_compiled_code_folder_of_the_python_installation_comes_first_whatever_its_permissions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.prefix", str(tmp_path / "python"))
    kept = tmp_path / "python" / compiled_module.PREFIX_FOLDER
    kept.mkdir(parents=True)
    kept.chmod(0o777)
    folder = compiled_module.code_folder()
    assert folder is not None
    assert folder.parent == kept


def test_folders_are_made_for_the_user_alone(cache: Path) -> None:
    before = os.umask(0o002)
    try:
        folder = compiled_module.code_folder()
    finally:
        os.umask(before)
    assert folder is not None
    assert folder.is_relative_to(cache)
    assert [stat.S_IMODE(made.stat().st_mode) for made in (folder, *folder.parents[:2])] == [0o700] * 3


@pytest.mark.parametrize(
    ("group", "is_used"),
    [
        (("me", 7, []), True),
        (("me", 7, ["me"]), True),
        (("me", 7, ["other"]), False),
        (("users", 7, []), False),
        (("me", 8, []), False),
    ],
)
def test_a_folder_that_a_group_may_write_is_used_if_the_group_is_the_users_own(
    cache: Path, monkeypatch: pytest.MonkeyPatch, group: tuple[str, int, list[str]], is_used: bool
) -> None:
    name, gid, members = group
    (cache / "frazil").mkdir(parents=True)
    (cache / "frazil").chmod(0o775)
    monkeypatch.setattr("pwd.getpwuid", lambda _: SimpleNamespace(pw_gid=7, pw_name="me"))
    monkeypatch.setattr("grp.getgrgid", lambda _: SimpleNamespace(gr_name=name, gr_mem=members))
    real = compiled_module._is_private
    monkeypatch.setattr(compiled_module, "_is_private", lambda _: real(gid))
    folder = compiled_module.code_folder()
    assert folder is not None
    assert folder.is_relative_to(cache) == is_used


def test_a_group_of_a_user_without_a_name_is_not_private(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    assert not compiled_module._is_private(os.getgid())


@pytest.mark.parametrize("flag", ["BOUNDSCHECK", "OPT", "DEBUGINFO_DEFAULT"])
def test_other_numba_flags_use_another_compile_folder(flag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"numba.config.{flag}", 1)
    assert compiled_module._digest() != compiled_module._DIGEST


def test_code_of_old_versions_is_removed_when_a_new_one_begins(cache: Path) -> None:
    old, recent = (cache / "frazil" / "compiled" / name for name in ("old", "recent"))
    for folder in (old, recent):
        folder.mkdir(parents=True)
    os.utime(old, (1, 1))
    compiled_module.code_folder()
    assert (old.exists(), recent.exists()) == (False, True)


def test_a_cache_that_is_damaged_is_fixed(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    def add(x: int) -> int:
        return x + 1

    def hits() -> int:
        loop: Any = compiled(add)
        assert loop(1) == 2
        return sum(loop.stats.cache_hits.values())

    assert (hits(), hits()) == (0, 1)
    for damaged in cache.rglob("*.nb?"):
        damaged.write_bytes(b"\x80")
    assert (hits(), hits()) == (0, 1)
    assert not caplog.records


def test_a_process_that_outlives_an_upgrade_caches_no_compiled_code_for_the_new_sources(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = compiled_module.code_folder()
    assert before is not None
    assert before.is_relative_to(cache)
    compiled_module.code_folder.cache_clear()
    monkeypatch.setattr(compiled_module, "_sources", lambda _: iter([b"what was installed since"]))

    assert compiled_module.code_folder() == before


@pytest.mark.parametrize("package", ["frazil.ingest", "frazil.kafka"])
def test_other_sources_use_another_compile_folder(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = compiled_module._sources
    changed = resources.files(package)
    monkeypatch.setattr(
        compiled_module, "_sources", lambda folder: [*sources(folder), *([b"changed"] if folder == changed else [])]
    )

    assert compiled_module._digest() != compiled_module._DIGEST
