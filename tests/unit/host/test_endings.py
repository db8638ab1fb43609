"""The recorded exit of a writer that could not write why it ended."""

from __future__ import annotations

import signal
from pathlib import Path

from frazil.errors import explain
from frazil.host.exits import (
    ENDED_WITHOUT_RECORD,
    KILLED_BY_OTHERS,
    read_heartbeat,
    record_exit,
    record_unseen_exit,
)
from frazil.host.heartbeat import Heartbeat, Phase
from frazil.host.launcher import Observation, ProcessState
from frazil.host.records import Launch, LaunchKind, StopRequest, StoredError, SupervisorNotes, read_exits, write_notes
from frazil.host.writer_log import LOG_FILE
from frazil.status.derive import describe_writer_process

LAUNCH = Launch("launch-1", LaunchKind.SUPERVISED, 0)
WORKS = "2026-01-01 00:00:00,000 INFO batch 7 is staged\n"
GREETS = "WARNING: Using incubator modules: jdk.incubator.vector\n"
WARNS = "2026-01-01 00:00:01,000 WARNING the memory is nearly full\n"


def error_after(folder: Path, *, log: str, code: int = 128 + signal.SIGKILL) -> str | None:
    (folder / LOG_FILE).write_text(log)
    record_exit(folder, LAUNCH, code=code, ended_at_ms=1)
    return read_exits(folder)[-1].error


def test_a_killed_writer_is_reported_as_killed_without_lines_of_its_normal_work(tmp_path: Path):
    assert error_after(tmp_path, log=WORKS) == KILLED_BY_OTHERS
    assert error_after(tmp_path, log=WARNS + WORKS) == f"{KILLED_BY_OTHERS}. Its last warning: {WARNS.strip()}"
    fails = "%3|1796073620.476|FAIL|rdkafka#producer-1| Connect to ipv4#127.0.0.1:9092 failed: Connection refused\n"
    assert error_after(tmp_path, log=10 * GREETS + 90 * fails + 99 * WORKS) == KILLED_BY_OTHERS, "Kafka answered again"
    assert error_after(tmp_path, log=WORKS, code=1) == WORKS.strip(), "one that failed says why at the end of its log"


def test_an_error_without_a_message_is_reported_by_its_class(tmp_path: Path):
    error = StoredError.fields_of(explain(MemoryError()))
    Heartbeat("shop", 1, "f", Phase.ENDED, written_at_ms=1, advanced_at_ms=1, **error).write(tmp_path)
    seen = Observation(ProcessState.ENDED, LAUNCH, read_heartbeat(tmp_path, LAUNCH), ())
    assert describe_writer_process(seen, now_ms=1).exit_code is None, "its process has not recorded the exit yet"
    record_exit(tmp_path, LAUNCH, code=1, ended_at_ms=1)
    assert str(read_exits(tmp_path)[-1].cause) == "MemoryError"


def test_a_writer_killed_by_its_supervisor_is_reported_as_killed_after_a_stop_request(tmp_path: Path):
    write_notes(tmp_path, SupervisorNotes(stop=StopRequest("launch-1", 0, "hung", "no progress for 5 min")))
    said = "the writer was killed after a stop request: no progress for 5 min"
    assert error_after(tmp_path, log=WORKS) == said


def test_a_writer_with_an_unseen_exit_reports_only_warnings_as_its_last_output(tmp_path: Path):
    for log in (WORKS, GREETS + WORKS):
        (tmp_path / LOG_FILE).write_text(log)
        record_unseen_exit(tmp_path, LAUNCH)
        assert read_exits(tmp_path)[-1].error is None
    (tmp_path / LOG_FILE).write_text(WARNS + WORKS)
    record_unseen_exit(tmp_path, LAUNCH)
    assert read_exits(tmp_path)[-1].error == f"{ENDED_WITHOUT_RECORD}. Its last warning: {WARNS.strip()}"
    frames = "".join(f"\tat org.apache.spark.scheduler.DAGScheduler.run{n}(DAGScheduler.scala:{n})\n" for n in range(9))
    (tmp_path / LOG_FILE).write_text(WARNS + frames)
    record_unseen_exit(tmp_path, LAUNCH)
    assert read_exits(tmp_path)[-1].error == f"{ENDED_WITHOUT_RECORD}. Its last warning: {WARNS.strip()}", (
        "its beginning, no frames"
    )


def test_the_first_error_of_a_killed_writer_is_quoted_without_routine_spark_warnings(tmp_path: Path):
    native = "2026-01-01 00:00:00,000 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform\n"
    assert error_after(tmp_path, log=native + WORKS) == KILLED_BY_OTHERS
    cause = "2026-01-01 00:00:02,000 ERROR the storage refuses: 507\n"
    follows = "".join(f"2026-01-01 00:00:0{n},000 ERROR task {n} failed\n" for n in range(3, 9))
    found = error_after(tmp_path, log=native + cause + follows + WARNS)
    assert found is not None
    assert found.startswith(f"{KILLED_BY_OTHERS}. Its first error: {cause.strip()}\n")
