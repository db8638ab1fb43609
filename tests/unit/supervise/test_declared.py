"""A declaration that is sound, broken, removed or missing for a moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from frazil.spec.load import find_stream
from frazil.supervise.declared import Declaration
from frazil.supervise.observed import Declared, Removed, Unreadable


class Times:
    now_ms = 1_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def times() -> Times:
    return Times()


def test_a_stream_is_declared_broken_or_removed_and_these_are_three_things(streams: Path, times: Times) -> None:
    declaration = Declaration("ticks", streams, clock=times)
    file = streams / "ticks.yaml"
    sound = file.read_text()
    (streams / "others.yaml").write_text(sound.replace("ticks", "others"))
    assert declaration.read() == Declared(find_stream(streams, "ticks").fingerprint())
    for broken in (sound.replace("event-time", "event-tmie"), "name: ticks\nschema: {", "- a list\n"):
        file.write_text(broken)
        found: Any = declaration.read()
        assert isinstance(found, Unreadable), broken
        assert "ticks.yaml" in found.problem
    assert declaration.spec is not None, "the last sound one is remembered"
    file.unlink()
    assert declaration.read() == Removed(1_000)
    times.now_ms = 5_000
    assert declaration.read() == Removed(1_000)
    file.write_text(sound)
    assert isinstance(declaration.read(), Declared)
    file.unlink()
    assert declaration.read() == Removed(5_000)


def test_a_stream_whose_file_may_be_the_broken_one_is_not_removed(streams: Path, times: Times) -> None:
    declaration = Declaration("ticks", streams, clock=times)
    (streams / "ticks.yaml").rename(streams / "renamed.yaml")
    assert isinstance(declaration.read(), Declared), "the name in the file counts, not the file's"
    (streams / "renamed.yaml").write_text("name: [")
    assert isinstance(declaration.read(), Unreadable)


def test_a_folder_that_is_away_is_not_a_removed_stream(streams: Path, times: Times) -> None:
    declaration = Declaration("ticks", streams, clock=times)
    streams.rename(streams.with_name("away"))
    assert isinstance(declaration.read(), Unreadable)
