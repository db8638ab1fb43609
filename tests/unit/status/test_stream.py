"""The status of a stream where something is out of reach."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from frazil import installed
from frazil.host.launcher import Observation, ProcessState
from frazil.host.processes import mark
from frazil.host.records import Launch, LaunchKind
from frazil.spec.load import validate_stream
from frazil.status import stream
from frazil.status.derive import evaluated, of_writer
from frazil.status.state import State, StreamState
from frazil.status.stream import stream_state
from frazil.supervise.decide import decide
from frazil.supervise.observed import Declared, Desired, Observed
from frazil.supervise.policy import Policy

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
    found = stream_state(spec, now_ms=0)
    assert (found.table_exists, found.problems) == (
        None,
        ("the table cannot be read: ImportError: cannot import name 'x'",),
    )
    monkeypatch.setattr(installed, "_began", [installed.Began("API server", frozenset())])
    with pytest.raises(ImportError):
        stream_state(spec, now_ms=0)


@pytest.mark.parametrize(("process", "restarts"), [(ProcessState.RUNNING, True), (ProcessState.FOREGROUND, False)])
def test_a_writer_is_restarting_from_the_act_until_its_supervisor_has_ended_it(process: ProcessState, restarts: bool):
    spec = validate_stream(DECLARED, Path("ticks.yaml"))

    def is_restarting(writer: Observation, desired: Desired) -> bool:
        observed = Observed(writer, Declared("f"), desired)
        decision = decide(observed, now_ms=1, policy=Policy())
        known = of_writer(StreamState("ticks", table_exists=True), observed, decision, now_ms=1)
        return evaluated(known, spec, now_ms=1).state is State.RESTARTING

    def observed(generation: int) -> Observation:
        return Observation(process, Launch("l", LaunchKind.SUPERVISED, 0, "f", generation, mark(os.getpid())), None, ())

    asked = Desired(generation=3, restart_generation=3)
    assert is_restarting(observed(2), asked) is restarts
    assert not is_restarting(observed(3), asked)
    assert not is_restarting(observed(2), Desired(generation=3))
    assert not is_restarting(Observation(ProcessState.NEVER, None, None, ()), asked)
