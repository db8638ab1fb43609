"""A file is read once, until it changes in any way, however soon."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from frazil.errors import SpecError
from frazil.spec import yaml_file
from frazil.spec.load import find_stream, load_stream

Declare = Callable[..., Path]


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The parsed files in order, by the name in them."""
    seen: list[str] = []
    load = yaml.load

    def counted(text: str, **options: object) -> object:
        seen.append(text.partition("\n")[0])
        return load(text, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(yaml, "load", counted)
    return seen


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all files older than a tick of the file system's clock."""
    monkeypatch.setattr(yaml_file, "MIN_UNCHANGED_AGE_NS", -(10**12))


@pytest.mark.usefixtures("settled")
def test_supervisors_that_check_again_and_again_parse_each_file_once(
    declare: Declare, tmp_path: Path, parses: list[str]
) -> None:
    for number in range(30):
        declare(f"s{number}.yaml", name=f"s{number}", table=f"demo.s{number}")
    for _ in range(10):
        for number in range(30):
            assert find_stream(tmp_path, f"s{number}").name == f"s{number}"
    assert len(parses) == 30


@pytest.mark.usefixtures("settled")
def test_a_read_that_fails_is_tried_again(declare: Declare, monkeypatch: pytest.MonkeyPatch) -> None:
    path = declare()

    def fails(*_: object, **__: object) -> str:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", fails)
        with pytest.raises(SpecError, match=r"flights\.yaml: cannot be read: Too many open files"):
            load_stream(path)
    assert load_stream(path).commit.max_records == 20_000_000


@pytest.mark.usefixtures("settled")
def test_a_changed_file_and_changed_defaults_are_seen(declare: Declare, tmp_path: Path, parses: list[str]) -> None:
    path = declare()
    assert load_stream(path).commit.max_records == 20_000_000
    (tmp_path / "_defaults.yaml").write_text("commit: {max-records: 5}\n")
    assert load_stream(path).commit.max_records == 5
    (tmp_path / "_defaults.yaml").write_text("commit: {max-records: 6}\n")
    assert load_stream(path).commit.max_records == 6
    (tmp_path / "_defaults.yaml").unlink()
    assert load_stream(path).commit.max_records == 20_000_000
    declare(commit={"max-records": 7})
    assert load_stream(path).commit.max_records == 7
    before = len(parses)
    load_stream(path)
    assert len(parses) == before


@pytest.mark.usefixtures("settled")
def test_a_mistake_is_reported_again_without_a_parse_until_it_is_fixed(declare: Declare, parses: list[str]) -> None:
    path = declare(lateness="x")
    for _ in range(3):
        with pytest.raises(SpecError, match="lateness"):
            load_stream(path)
    assert len(parses) == 1
    declare()
    assert load_stream(path).name == "flights"


def test_a_file_that_is_replaced_within_one_tick_of_the_clock_is_seen(
    declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file system knows seconds only: the same size, the same inode, the same times."""
    path = declare(commit={"max-records": 5})
    tick, stat = path.stat(), Path.stat
    monkeypatch.setattr(Path, "stat", lambda self, **how: tick if self == path else stat(self, **how))
    assert load_stream(path).commit.max_records == 5
    path.write_text(path.read_text().replace("max-records: 5", "max-records: 6"))
    assert load_stream(path).commit.max_records == 6


def test_a_file_is_cached_once_its_last_change_is_old_enough(
    declare: Declare, monkeypatch: pytest.MonkeyPatch, parses: list[str]
) -> None:
    path = declare()
    load_stream(path)
    load_stream(path)
    assert len(parses) == 2
    later_ns = time.time_ns() + yaml_file.MIN_UNCHANGED_AGE_NS + 1
    monkeypatch.setattr(time, "time_ns", lambda: later_ns)
    load_stream(path)
    load_stream(path)
    assert len(parses) == 3


@pytest.mark.usefixtures("settled")
def test_a_replaced_file_with_equal_timestamps_is_loaded_again(declare: Declare, tmp_path: Path) -> None:
    path = declare(commit={"max-records": 5})
    assert load_stream(path).commit.max_records == 5
    times = path.stat()
    other = tmp_path / "_other"
    other.write_text(path.read_text().replace("max-records: 5", "max-records: 6"))
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    other.replace(path)
    assert load_stream(path).commit.max_records == 6
