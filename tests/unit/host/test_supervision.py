"""What starts a stream's writers, according to the run folders of this host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from frazil.home import run_folder
from frazil.host.lock import WriterLock
from frazil.host.processes import identify_process
from frazil.host.records import Launch, LaunchKind, SupervisionTimes, write_supervision_times
from frazil.host.supervision import MAX_WATCH_AGE_MS, Starter, find_supervision
from tests.unit.ingest.test_key_columns import stream

NOW_MS = 1_700_000_000_000
SPEC = stream({"id": "long not null"}, name="ticks", application="fleet")


@pytest.fixture(autouse=True)
def _home(frazil_home: Path) -> None:  # noqa: ARG001
    run_folder("ticks").mkdir(parents=True)


def watched(last_ms: int) -> None:
    write_supervision_times(run_folder("ticks"), SupervisionTimes(last_ms=last_ms))


def test_a_supervisor_counts_while_its_record_is_fresh_and_is_then_reported_as_silent() -> None:
    assert find_supervision(SPEC, now_ms=NOW_MS).starter is Starter.NOTHING
    watched(NOW_MS)
    for age_ms, starter in ((0, Starter.SUPERVISOR), (MAX_WATCH_AGE_MS + 1, Starter.SILENT_SUPERVISOR)):
        assert find_supervision(SPEC, now_ms=NOW_MS + age_ms).starter is starter
    silent = find_supervision(SPEC, now_ms=NOW_MS + MAX_WATCH_AGE_MS + 1)
    assert "has been silent since 2023-11-14 22:13:20Z" in silent.next_start
    assert (silent.start_command, silent.how_to_renew) == ("frazil resume ticks", "`frazil restart ticks`")


def test_without_a_supervisor_the_advice_does_not_mention_airflow() -> None:
    nothing = find_supervision(SPEC, now_ms=NOW_MS)
    assert "Airflow" not in f"{nothing.next_start} {nothing.replacement}"
    assert nothing.start_command == "frazil run ticks"
    assert nothing.how_to_renew.startswith("`frazil run ticks` (or `frazil restart ticks`, if ")


def test_a_writer_in_the_foreground_is_ended_by_its_user_even_if_a_supervisor_watches() -> None:
    watched(NOW_MS)
    with WriterLock(run_folder("ticks"), streams=("ticks",)) as lock:
        lock.record(Launch("l", LaunchKind.FOREGROUND, NOW_MS, writer=identify_process(os.getpid())))
        found = find_supervision(SPEC, now_ms=NOW_MS)
    assert (found.starter, found.start_command) == (Starter.USER, "frazil run ticks")
    assert f"end it (Ctrl-C in its terminal, or `kill {os.getpid()}`), then use `frazil run ticks`" in found.replacement
    assert found.how_to_renew == f"{found.how_to_end}, then `frazil run ticks`"


def test_without_its_application_a_hosted_stream_is_started_by_the_command_of_the_application() -> None:
    run_folder("fleet").mkdir(parents=True)
    own = Launch("l", LaunchKind.HOSTED, NOW_MS, parent=identify_process(os.getpid()), application="fleet")
    with WriterLock(run_folder("ticks"), streams=("ticks",)) as lock:
        lock.record(own)
        with WriterLock(run_folder("fleet"), streams=("ticks",)) as application:
            application.record(Launch("a", LaunchKind.FOREGROUND, NOW_MS, writer=identify_process(os.getpid())))
            found = find_supervision(SPEC, now_ms=NOW_MS)
            assert (found.starter, found.name) == (Starter.APPLICATION, "fleet")
        found = find_supervision(SPEC, now_ms=NOW_MS)
        assert (found.starter, found.start_command) == (Starter.NOTHING, "frazil run fleet")
        for application in (None, "convoy"):
            left = SPEC.model_copy(update={"application": application})
            found = find_supervision(left, now_ms=NOW_MS)
            assert (found.starter, found.start_command) == (Starter.NOTHING, "frazil run ticks")
