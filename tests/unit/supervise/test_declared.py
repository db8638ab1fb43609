"""A declaration that is valid, broken, removed or missing for a moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from frazil.spec import load as stream_files
from frazil.spec import yaml_file
from frazil.spec.load import FolderIndex, find_stream
from frazil.supervise.decision import RemovedDeclaration, UnreadableState, ValidDeclaration
from frazil.supervise.supervised import Declaration


class Times:
    now_ms = 1_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def times() -> Times:
    return Times()


def test_a_valid_a_broken_and_a_removed_declaration_are_distinguished(streams: Path, times: Times) -> None:
    declaration = Declaration("ticks", streams, clock=times)
    file = streams / "ticks.yaml"
    valid = file.read_text()
    (streams / "others.yaml").write_text(valid.replace("ticks", "others"))
    assert declaration.read() == ValidDeclaration(find_stream(streams, "ticks").fingerprint())
    for broken in (valid.replace("event-time", "event-tmie"), "name: ticks\nschema: {", "- a list\n"):
        file.write_text(broken)
        found: Any = declaration.read()
        assert isinstance(found, UnreadableState), broken
        assert "ticks.yaml" in found.problem
    assert declaration.spec is not None, "the last valid one is remembered"
    file.unlink()
    assert declaration.read() == RemovedDeclaration(1_000)
    times.now_ms = 5_000
    assert declaration.read() == RemovedDeclaration(1_000)
    file.write_text(valid)
    assert isinstance(declaration.read(), ValidDeclaration)
    file.unlink()
    assert declaration.read() == RemovedDeclaration(5_000)


def test_a_stream_that_a_broken_file_may_declare_is_not_removed(streams: Path, times: Times) -> None:
    declaration = Declaration("ticks", streams, clock=times)
    (streams / "ticks.yaml").rename(streams / "renamed.yaml")
    assert isinstance(declaration.read(), ValidDeclaration), "the name in the file counts, not the file's"
    (streams / "renamed.yaml").write_text("name: [")
    assert isinstance(declaration.read(), UnreadableState)


def test_a_missing_streams_folder_is_not_a_removed_stream(streams: Path, times: Times) -> None:
    declaration = Declaration("ticks", streams, clock=times)
    streams.rename(streams.with_name("away"))
    assert isinstance(declaration.read(), UnreadableState)


class Seconds:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    """The clock of a fresh index that all declarations of the test share."""
    seconds = Seconds()
    monkeypatch.setattr("frazil.supervise.supervised.FOLDER_INDEX", FolderIndex(clock=seconds))
    return seconds


def test_the_cost_of_a_check_of_one_stream_does_not_depend_on_the_number_of_streams(
    streams: Path, times: Times, index: Seconds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each read checks its own file and the defaults in the file system; the others only once a second."""
    monkeypatch.setattr(yaml_file, "MIN_UNCHANGED_AGE_NS", -(10**12))
    text = (streams / "ticks.yaml").read_text()
    for number in range(40):
        (streams / f"s{number}.yaml").write_text(text.replace("ticks", f"s{number}"))
    parsed, load, stat, requested = [], yaml.load, yaml_file.read_signature, []

    def counted(path: Path) -> Any:
        requested.append(path.name)
        return stat(path)

    monkeypatch.setattr(yaml, "load", lambda *a, **n: parsed.append(1) or load(*a, **n))
    monkeypatch.setattr(yaml_file, "read_signature", counted)
    declarations = [Declaration(f"s{number}", streams, clock=times) for number in range(40)]
    assert all(isinstance(declaration.read(), ValidDeclaration) for declaration in declarations)
    assert len(parsed) == 41
    requested.clear()
    for declaration in declarations:
        declaration.read()
    assert len(requested) == 2 * len(declarations)
    index.now_s += stream_files.MAX_LISTING_AGE_S
    requested.clear()
    for declaration in declarations:
        declaration.read()
    assert len(requested) == 41 + 2 * len(declarations)
    assert len(parsed) == 41


@pytest.mark.usefixtures("index")
def test_an_edit_within_one_tick_of_the_clock_is_seen_at_the_next_check(
    streams: Path, times: Times, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = streams / "ticks.yaml"
    declaration = Declaration("ticks", streams, clock=times)
    before = declaration.read()
    tick, stat = file.stat(), Path.stat
    monkeypatch.setattr(Path, "stat", lambda self, **n: tick if self == file else stat(self, **n))
    file.write_text(file.read_text().replace("schema: {ts", "schema: {tt").replace("event-time: ts", "event-time: tt"))
    after = declaration.read()
    assert isinstance(after, ValidDeclaration)
    assert after != before


def test_a_second_file_of_the_stream_is_noticed_with_the_next_listing(
    streams: Path, times: Times, index: Seconds
) -> None:
    declaration = Declaration("ticks", streams, clock=times)
    assert isinstance(declaration.read(), ValidDeclaration)
    (streams / "again.yaml").write_text((streams / "ticks.yaml").read_text())
    index.now_s += stream_files.MAX_LISTING_AGE_S
    found: Any = declaration.read()
    assert isinstance(found, UnreadableState)
    assert "declared twice" in found.problem
    (streams / "again.yaml").unlink()
    assert isinstance(declaration.read(), ValidDeclaration), "at once, without waiting for the listing"


def test_another_file_that_is_broken_changes_nothing(streams: Path, times: Times, index: Seconds) -> None:
    declaration = Declaration("ticks", streams, clock=times)
    (streams / "broken.yaml").write_text("name: [")
    for _ in range(2):
        assert isinstance(declaration.read(), ValidDeclaration)
        index.now_s += stream_files.MAX_LISTING_AGE_S
