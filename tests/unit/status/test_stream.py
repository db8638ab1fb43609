"""The status of a stream where something is out of reach."""

from __future__ import annotations

from pathlib import Path

import pytest

from frazil import installed
from frazil.host.launcher import Observation, ProcessState
from frazil.host.records import Launch, LaunchKind
from frazil.spec.load import validate_stream
from frazil.status import stream
from frazil.status.stream import stream_status
from frazil.supervise.liveness import is_restarting
from frazil.supervise.observed import Desired

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


@pytest.mark.parametrize(("process", "restarts"), [(ProcessState.RUNNING, True), (ProcessState.FOREGROUND, False)])
def test_a_writer_is_restarting_from_the_act_until_its_supervisor_has_ended_it(process: ProcessState, restarts: bool):
    def observed(generation: int) -> Observation:
        return Observation(process, Launch("l", LaunchKind.SUPERVISED, 0, generation=generation), None, ())

    asked = Desired(generation=3, restart_generation=3)
    assert is_restarting(observed(2), asked) is restarts
    assert not is_restarting(observed(3), asked)
    assert not is_restarting(observed(2), Desired(generation=3))
    assert not is_restarting(Observation(ProcessState.NEVER, None, None, ()), asked)
