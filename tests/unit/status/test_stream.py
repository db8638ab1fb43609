"""The status of a stream where something is out of reach."""

from __future__ import annotations

from pathlib import Path

import pytest

from frazil import installed
from frazil.spec.load import validate_stream
from frazil.status import stream
from frazil.status.stream import stream_status

DECLARED = {
    "name": "ticks",
    "source": {"topics": ["ticks"], "bootstrap-servers": "127.0.0.1:1"},
    "table": "demo.ticks",
    "schema": {"ts": "timestamptz not null"},
    "event-time": "ts",
}


@pytest.mark.usefixtures("frazil_home")
def test_a_table_is_unreadable_unless_frazil_was_changed_under_the_process(monkeypatch: pytest.MonkeyPatch):
    spec = validate_stream(DECLARED, Path("ticks.yaml"))

    def fails(_: object) -> None:
        raise ImportError("cannot import name 'x'")

    monkeypatch.setattr(stream, "load_stream_table", fails)
    found = stream_status(spec, now_ms=0)
    assert (found.table_exists, found.problems) == (
        None,
        ("the table cannot be read: ImportError: cannot import name 'x'",),
    )
    monkeypatch.setattr(installed, "_began", [installed.Began("API server", frozenset())])
    with pytest.raises(ImportError):
        stream_status(spec, now_ms=0)
