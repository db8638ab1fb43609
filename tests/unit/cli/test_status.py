"""`frazil status`: what the run folder and the table contain, even if one of them cannot be read."""

from __future__ import annotations

import dataclasses
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from frazil.cli import run
from frazil.cli.main import frazil
from frazil.cli.marker import describe_next_step
from frazil.cli.status import StatusReport, _count_dead_letters_left
from frazil.commit.dead_letter_counts import Reason
from frazil.errors import (
    MAX_ERROR_CHARACTERS,
    CommitUnavailable,
    Failure,
    OffsetGap,
    WriterBusy,
    explain,
    shorten_error,
)
from frazil.home import run_folder
from frazil.host.heartbeat import Heartbeat, Phase, Stall, StallKind
from frazil.host.launcher import Observation, ProcessState
from frazil.host.lock import WriterLock
from frazil.host.processes import identify_process
from frazil.host.records import ExitRecord, Launch, LaunchKind, ProcessMark, append_exit
from frazil.json_files import replace_json
from frazil.spec.load import load_stream
from frazil.status.derive import derive_from_decision, describe_writer_process
from frazil.status.state import StreamState
from frazil.status.stream import read_stream_state
from frazil.supervise.decision import HEARTBEAT_TTL_MS, DecisionInput, DesiredState, ValidDeclaration
from frazil.supervise.decision_rules import decide
from frazil.supervise.desired_state import open_desired_store
from frazil.table import catalogs
from frazil.table.catalog_errors import CATALOG_REMEDY
from frazil.table.catalogs import load_catalog
from frazil.table.tables import ensure_table, load_stream_table
from tests.made_batches import MadeStream
from tests.polling import eventually
from tests.silent_server import silent_server
from tests.unit.maintenance import day_by_day

NOW_MS = 1_700_000_000_000
YAML = """
name: {name}
source: {{topics: [ticks], bootstrap-servers: "127.0.0.1:1"}}
table: {table}
schema: {{ts: timestamptz not null}}
event-time: ts
"""


@pytest.fixture
def streams(tmp_path: Path, frazil_home: Path) -> Path:  # noqa: ARG001
    folder = tmp_path / "streams"
    folder.mkdir()
    (folder / "ticks.yaml").write_text(YAML.format(name="ticks", table="demo.ticks"))
    return folder


def heartbeat(**changes: Any) -> Heartbeat:
    values: dict[str, Any] = {
        "stream": "ticks", "pid": 7, "spec_fingerprint": "f", "phase": Phase.WAITING,
        "written_at_ms": NOW_MS, "advanced_at_ms": NOW_MS,
    }  # fmt: skip
    return Heartbeat(**{**values, **changes})


def launch(kind: LaunchKind = LaunchKind.SUPERVISED) -> Launch:
    return Launch("launch-1", kind, NOW_MS - 60_000, writer=identify_process(os.getpid()))


def ticks() -> Path:
    return run_folder("ticks")


def status(streams: Path, *arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(frazil, ["status", *arguments, "--json", "--streams", str(streams)])
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


def test_a_check_creates_no_folder(streams: Path, frazil_home: Path):
    status(streams)
    status(streams, "ticks")
    assert not (frazil_home / "streams").exists()


def test_a_stream_that_never_ran_has_no_table_and_no_writer(streams: Path):
    (found,) = status(streams)["streams"]
    assert found["writer"]["state"] == "never launched"
    assert found["table-exists"] is False
    assert (found["desired"], found["epoch"], found["lag"], found["problems"]) == ("running", None, None, [])


def test_status_shows_the_age_of_the_last_replay_once():
    state = StreamState("ticks", "demo.ticks", replayed={"inserted": 1_200, "stale": 0}, replayed_at_ms=NOW_MS - 60_000)
    (line,) = (
        str(line) for line in StatusReport(NOW_MS, [state], [], in_full=True).lines() if "last replay" in str(line)
    )
    assert line.split(None, 2)[2] == "1 min 0 s ago: 1,200 inserted"


def test_an_unreachable_catalog_is_a_problem_of_its_stream_and_hides_no_other(
    streams: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PYICEBERG_CATALOG__AWAY__TYPE", "rest")
    monkeypatch.setenv("PYICEBERG_CATALOG__AWAY__URI", "http://127.0.0.1:9")
    table = "{identifier: demo.other, catalog: away}"
    (streams / "other.yaml").write_text(YAML.format(name="other", table=table))
    heartbeat(stream="other", epoch=4, batch=2, watermark_ms=5).write(run_folder("other"))
    replace_json(run_folder("other") / "lock", dataclasses.asdict(launch()))
    other, ticks = status(streams)["streams"]
    assert "cannot be reached" in other["problems"][-1]
    remedy = "Start the catalog and its storage, make them reachable from this host"
    assert f". {remedy}" in other["problems"][-1]
    assert f"  → {remedy}" in CliRunner().invoke(frazil, ["status", "--streams", str(streams)]).output
    assert (other["table-exists"], other["desired"]) == (None, None)
    assert (other["epoch"], other["batch"], other["watermark-ms"]) == (4, 2, 5)
    assert ticks["table-exists"] is False


def test_status_ends_although_a_catalog_answers_nothing(streams: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(catalogs, "ANSWER_TIMEOUT_S", 3.0)
    monkeypatch.setenv("PYICEBERG_CATALOG__AWAY__TYPE", "rest")
    for name in ("other", "third"):
        (streams / f"{name}.yaml").write_text(
            YAML.format(name=name, table=f"{{identifier: demo.{name}, catalog: away}}")
        )
    with silent_server() as server:
        monkeypatch.setenv("PYICEBERG_CATALOG__AWAY__URI", f"http://127.0.0.1:{server.port}")
        found = status(streams)["streams"]
    assert [(one["name"], one["table-exists"]) for one in found] == [("other", None), ("third", None), ("ticks", False)]
    assert (
        found[0]["problems"]
        == found[1]["problems"]
        == [f"the table cannot be read: CommitUnavailable: the catalog 'away' does not answer. {CATALOG_REMEDY}"]
    )


def test_the_cause_of_the_last_end_is_not_repeated_for_the_table(
    streams: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__AWAY__TYPE", "rest")
    monkeypatch.setenv("PYICEBERG_CATALOG__AWAY__URI", "http://127.0.0.1:9")
    (streams / "other.yaml").write_text(YAML.format(name="other", table="{identifier: demo.other, catalog: away}"))
    with pytest.raises(CommitUnavailable) as unreachable:
        load_stream_table(load_stream(streams / "other.yaml"))
    folder, error = run_folder("other"), f"CommitUnavailable: {unreachable.value}"
    folder.mkdir(parents=True)
    append_exit(folder, ExitRecord("launch-1", 21, NOW_MS, NOW_MS, "f", 0, committed=False, error=error))
    replace_json(folder / "lock", dataclasses.asdict(dataclasses.replace(launch(), writer=None)))
    shown = CliRunner().invoke(frazil, ["status", "--streams", str(streams)]).output
    assert shown.count("cannot be reached") == shown.count("Start the catalog and its storage") == 1


def test_an_unreadable_declaration_is_one_error_among_others(streams: Path):
    (streams / "broken.yaml").write_text("name: [")
    done = CliRunner().invoke(frazil, ["status", "--streams", str(streams)])
    assert done.exit_code == 10
    assert "ticks" in done.stdout
    assert "broken.yaml" in done.stderr


def test_an_empty_file_is_reported_in_one_sentence_with_the_remedy(streams: Path):
    (streams / "orders.yaml").touch()
    for command in (["status"], ["validate"], ["preview", "orders"]):
        done = CliRunner().invoke(frazil, [*command, "--streams", str(streams)])
        said = f"{done.stderr}{done.exception or ''}"
        assert said.count("orders.yaml: declares nothing. Write a stream into it, or delete it.") == 1, command


def test_a_stream_with_a_broken_file_shows_its_running_writer_and_the_error(streams: Path):
    before = status(streams)["streams"]
    (streams / "ticks.yaml").write_text("name: ticks\nlatenes: 5m\n")
    for arguments in ([], ["ticks"]):
        done = CliRunner().invoke(frazil, ["status", *arguments, "--json", "--streams", str(streams)])
        assert done.exit_code == 10
        reported = json.loads(done.stdout)
        assert reported["streams"] == before
        assert "latenes" in reported["errors"][0]


def test_a_user_without_a_name_can_pause_a_stream_and_is_recorded_by_number(
    streams: Path, monkeypatch: pytest.MonkeyPatch
):
    """The user of a container that runs as a number that its /etc/passwd does not have."""

    def nobody(uid: int) -> Any:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    done = CliRunner().invoke(frazil, ["pause", "ticks", "--streams", str(streams)], catch_exceptions=False)
    assert done.exit_code == 0
    assert open_desired_store(load_stream(streams / "ticks.yaml")).read().by == f"uid {os.getuid()}"


@pytest.mark.parametrize("command", ["pause", "resume", "restart"])
def test_a_launch_record_of_a_later_version_does_not_block_changes_of_the_desired_state(streams: Path, command: str):
    folder = run_folder("ticks")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lock").write_text('{"id": "l1", "kind": "of a later version", "launched_at_ms": 1}')
    done = CliRunner().invoke(frazil, [command, "ticks", "--streams", str(streams)], catch_exceptions=False)
    assert done.exit_code == 0
    assert open_desired_store(load_stream(streams / "ticks.yaml")).read().generation


@pytest.mark.parametrize("seen_by", ["status ticks", "pause ticks", "run ticks"])
def test_a_file_once_found_valid_keeps_its_writer_visible_and_pausable_after_it_breaks(
    streams: Path, seen_by: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run, "run_in_foreground", lambda *_, **__: 0)
    assert CliRunner().invoke(frazil, [*seen_by.split(), "--streams", str(streams)]).exit_code == 0
    (streams / "ticks.yaml").write_text("name: [")
    for arguments in ("status", "status ticks"):
        done = CliRunner().invoke(frazil, [*arguments.split(), "--streams", str(streams)])
        assert (done.exit_code, "demo.ticks" in done.stdout, "ticks.yaml" in done.stderr) == (10, True, True)
    done = CliRunner().invoke(frazil, ["pause", "ticks", "--streams", str(streams)])
    assert (done.exit_code, "ticks is paused" in done.stdout, "ticks.yaml" in done.stderr) == (0, True, True)


def test_a_column_renamed_by_another_program_is_a_problem_before_a_writer_uses_it(streams: Path):
    table = ensure_table(load_catalog(None), load_stream(streams / "ticks.yaml"))
    assert "column" not in str(status(streams)["streams"][0]["problems"])
    with table.update_schema() as update:
        update.rename_column("ts", "at")
    (problem,) = (p for p in status(streams)["streams"][0]["problems"] if "column" in p)
    assert problem.startswith("SchemaIncompatible: ")
    assert "column ts was renamed to at in the table" in problem


def test_a_slow_batch_reports_how_many_records_it_has_read(streams: Path):
    with WriterLock(run_folder("ticks")):
        now_ms = status(streams)["at-ms"]
        slow = heartbeat(pid=os.getpid(), phase=Phase.STAGING, written_at_ms=now_ms, backpressure_ms=12_400)
        dataclasses.replace(slow, batch_records=773).write(ticks())
        (found,) = status(streams)["streams"]
    assert found["state"] == "slow"
    assert found["sentence"].endswith("longer than its interval, and has read 773 records so far")


def test_an_unknown_stream_is_an_error_that_names_the_known_ones(streams: Path):
    done = CliRunner().invoke(frazil, ["status", "tick", "--streams", str(streams)])
    assert "did you mean ticks" in str(done.exception)


def test_a_running_writer_is_shown_with_pid_phase_and_lag(streams: Path):
    with WriterLock(run_folder("ticks")):
        now_ms = status(streams)["at-ms"]
        heartbeat(pid=os.getpid(), phase=Phase.STAGING, written_at_ms=now_ms, lag=12, batch_records=1_234).write(
            ticks()
        )
        (found,) = status(streams)["streams"]
        people = CliRunner().invoke(frazil, ["status", "ticks", "--streams", str(streams)]).stdout
    assert "staging, 1,234 records read" in people
    assert found["writer"]["state"] == "running in the foreground"
    assert (found["writer"]["pid"], found["writer"]["phase"]) == (os.getpid(), "staging")
    assert (found["lag"], found["problems"]) == (12, [])


def test_a_batch_longer_than_its_interval_is_reported_while_the_writer_lives(streams: Path):
    with WriterLock(run_folder("ticks")):
        now_ms = status(streams)["at-ms"]
        for beyond_ms, words in ((0, "none"), (12_400, "a batch takes 12 s longer than its interval")):
            heartbeat(pid=os.getpid(), written_at_ms=now_ms, backpressure_ms=beyond_ms).write(ticks())
            (found,) = status(streams)["streams"]
            people = CliRunner().invoke(frazil, ["status", "ticks", "--streams", str(streams)]).stdout
            (line,) = (line for line in people.splitlines() if line.startswith("backpressure"))
            assert (found["backpressure-ms"], found["problems"]) == (beyond_ms, [])
            assert line.endswith(f" {words}")
    assert status(streams)["streams"][0]["backpressure-ms"] is None


def test_a_stale_heartbeat_of_a_living_writer_is_reported_and_its_lag_is_ignored(streams: Path):
    with WriterLock(run_folder("ticks")):
        old_ms = status(streams)["at-ms"] - HEARTBEAT_TTL_MS - 5_000
        lock = run_folder("ticks") / "lock"
        held = json.loads(lock.read_text())
        lock.write_text(json.dumps({**held, "launched_at_ms": old_ms}))
        heartbeat(pid=os.getpid(), written_at_ms=old_ms, lag=12).write(ticks())
        (found,) = status(streams)["streams"]
        people = CliRunner().invoke(frazil, ["status", "ticks", "--streams", str(streams)]).stdout
    assert found["writer"]["stale"] is True
    assert found["lag"] is None
    assert "heartbeat is" in found["problems"][0]
    assert "no heartbeat for" in people


def test_a_stall_is_a_problem_only_while_its_writer_lives(streams: Path):
    stall = Stall(StallKind.WATERMARK, NOW_MS, "ticks-3", "ticks-3 holds the watermark back: no records arrive")
    with WriterLock(run_folder("ticks")):
        now_ms = status(streams)["at-ms"]
        heartbeat(pid=os.getpid(), written_at_ms=now_ms, stall=stall).write(ticks())
        (found,) = status(streams)["streams"]
        people = CliRunner().invoke(frazil, ["status", "--streams", str(streams)]).stdout
    assert found["problems"] == [stall.reason]
    assert found["stall"] == {
        "kind": "watermark", "since-ms": NOW_MS, "held-back-by": "ticks-3", "reason": stall.reason, "remedy": "",
    }  # fmt: skip
    assert f"ticks: {stall.reason}" in people
    replace_json(run_folder("ticks") / "lock", dataclasses.asdict(Launch("l", LaunchKind.FOREGROUND, now_ms)))
    (ended,) = status(streams)["streams"]
    assert (ended["stall"], ended["problems"]) == (None, [])


def test_the_lag_of_an_unresponsive_planner_is_queried_from_kafka_or_unknown(streams: Path):
    stall = Stall(StallKind.OFFSETS, NOW_MS, None, "Kafka has not answered the planner")
    with WriterLock(run_folder("ticks")):
        now_ms = status(streams)["at-ms"]
        heartbeat(pid=os.getpid(), written_at_ms=now_ms, lag=0, stall=stall, backpressure_ms=53_000).write(ticks())
        (found,) = status(streams)["streams"]
        people = CliRunner().invoke(frazil, ["status", "ticks", "--streams", str(streams)]).stdout
    assert (found["lag"], found["backpressure-ms"]) == (None, None)
    assert [line.split() for line in people.splitlines() if line.startswith("lag")] == [["lag", "unknown"]]


@pytest.mark.parametrize(
    ("age_ms", "committed_ago_ms", "crashes"), [(60_000, 1_000, 0), (59_999, 1_000, 0), (60_000, 60_001, 3)]
)
def test_a_writer_that_has_run_and_committed_is_not_counted_with_earlier_crashes(
    age_ms: int, committed_ago_ms: int, crashes: int
):
    failed = [
        ExitRecord(f"launch-0{n}", 1, NOW_MS - 400_000, NOW_MS - 400_000, "f", 0, committed=False) for n in range(3)
    ]
    present = dataclasses.replace(launch(), launched_at_ms=NOW_MS - age_ms, spec_fingerprint="f")
    heartbeats = heartbeat(last_commit_at_ms=NOW_MS - committed_ago_ms)
    writer = Observation(ProcessState.RUNNING, present, heartbeats, tuple(failed))
    observed = DecisionInput(writer, ValidDeclaration("f"), DesiredState())
    decision = decide(observed, now_ms=NOW_MS)
    assert derive_from_decision(StreamState("ticks"), observed, decision, now_ms=NOW_MS).crashes == crashes


def test_an_exit_is_reported_with_its_name_and_last_error():
    end = ExitRecord("launch-1", 12, NOW_MS - 60_000, NOW_MS, "f", 0, committed=True, error="it went back")
    said = describe_writer_process(Observation(ProcessState.ENDED, launch(), heartbeat(epoch=3), (end,)), now_ms=NOW_MS)
    assert (said.exit_code, said.exit_name, said.error) == (12, "RolledBack", Failure("it went back"))
    assert (said.has_ended, said.epoch) == (True, 3)
    assert said.pid is None


def test_an_exit_of_an_earlier_launch_is_not_attributed_to_this_launch():
    end = ExitRecord("launch-0", 12, 0, 1, "f", 0, committed=False, error="old")
    said = describe_writer_process(
        Observation(ProcessState.ENDED, launch(), heartbeat(phase=Phase.ENDED), (end,)), now_ms=NOW_MS
    )
    assert (said.exit_code, said.error) == (0, None)


def test_a_foreground_writer_that_died_without_a_report_has_no_exit_code():
    dead = launch(LaunchKind.FOREGROUND)
    said = describe_writer_process(
        Observation(ProcessState.ENDED, dead, heartbeat(phase=Phase.STAGING), ()), now_ms=NOW_MS
    )
    assert (said.exit_code, said.ended_at_ms) == (None, NOW_MS)


@pytest.mark.parametrize("process", [ProcessState.FOREGROUND, ProcessState.ENDED])
def test_a_writer_is_in_the_foreground_while_it_runs_and_after_its_end(process: ProcessState):
    launched = launch(LaunchKind.FOREGROUND)
    assert describe_writer_process(Observation(process, launched, heartbeat(), ()), now_ms=NOW_MS).foreground


def test_a_failed_writer_s_error_is_among_the_problems(streams: Path):
    stored = ExitRecord.fields_of(explain(OffsetGap("records lost", stream="ticks", remedy="Reset")))
    gone = Launch("launch-1", LaunchKind.SUPERVISED, NOW_MS - 60_000)
    replace_json(run_folder("ticks") / "lock", asdict(gone))
    append_exit(
        run_folder("ticks"), ExitRecord("launch-1", 11, NOW_MS - 60_000, NOW_MS, "f", 0, committed=False, **stored)
    )
    (found,) = status(streams)["streams"]
    assert found["problems"] == ["the last writer ended with 11 (OffsetGap): records lost. Reset"]


def test_a_problem_that_ended_the_writer_and_persists_in_the_table_is_reported_once(streams: Path):
    table = ensure_table(load_catalog(None), load_stream(streams / "ticks.yaml"))
    with table.update_schema() as change:
        change.rename_column("ts", "at")
    ((problem,),) = (one["problems"] for one in status(streams)["streams"])
    gone = Launch("launch-1", LaunchKind.SUPERVISED, NOW_MS - 60_000)
    replace_json(run_folder("ticks") / "lock", asdict(gone))
    error = read_stream_state(load_stream(streams / "ticks.yaml"), now_ms=NOW_MS).problems[0]
    fields = ExitRecord.fields_of(error)
    append_exit(
        run_folder("ticks"), ExitRecord("launch-1", 15, NOW_MS - 60_000, NOW_MS, "f", 0, committed=False, **fields)
    )
    (found,) = status(streams)["streams"]
    assert problem == str(error)
    assert found["problems"] == [f"the last writer ended with 15 ({str(error).replace(':', '):', 1)}"]


def test_a_writer_killed_with_its_application_is_reported_as_such(streams: Path):
    hosted = Launch("launch-1", LaunchKind.HOSTED, NOW_MS - 60_000, application="small")
    replace_json(run_folder("ticks") / "lock", asdict(hosted))
    append_exit(run_folder("ticks"), ExitRecord("launch-1", None, NOW_MS - 60_000, NOW_MS, "f", 0, committed=False))
    done = CliRunner().invoke(frazil, ["status", "ticks", "--streams", str(streams)])
    assert (
        "ago with no exit code: it was killed, with the application small, its host went down, or its disk was full"
        in done.output
    )


def test_the_status_of_a_killed_single_stream_writer_names_no_application(streams: Path):
    alone = Launch("launch-1", LaunchKind.FOREGROUND, NOW_MS - 60_000, application="ticks", streams=("ticks",))
    replace_json(run_folder("ticks") / "lock", asdict(alone))
    append_exit(run_folder("ticks"), ExitRecord("launch-1", None, NOW_MS - 60_000, NOW_MS, "f", 0, committed=False))
    done = CliRunner().invoke(frazil, ["status", "ticks", "--streams", str(streams)])
    assert "no exit code: it was killed, its host went down, or its disk was full" in done.output


def test_a_dead_writer_is_not_shown_as_running_while_its_parent_waits_for_the_jvm(streams: Path):
    parent = identify_process(os.getpid())
    killed = Launch("l", LaunchKind.FOREGROUND, NOW_MS - 60_000, parent=parent, writer=ProcessMark(parent.pid, 1.0))
    replace_json(run_folder("ticks") / "lock", asdict(killed))
    heartbeat(phase=Phase.STAGING).write(ticks())
    done = CliRunner().invoke(frazil, ["status", "ticks", "--streams", str(streams)])
    assert f"ended, and its parent (pid {parent.pid}) waits for its JVM and Python workers" in done.output
    (state,) = [line for line in done.output.splitlines() if line.startswith("state ")]
    assert "stopping" in state


def test_restarting_a_foreground_writer_is_refused_and_changes_nothing(streams: Path):
    spec = load_stream(streams / "ticks.yaml")
    open_desired_store(spec).pause(by="ana", reason="")
    before = open_desired_store(spec).read()
    with WriterLock(run_folder("ticks"), streams=("ticks",)):
        said = CliRunner().invoke(frazil, ["restart", "ticks", "--streams", str(streams)]).exception
    assert isinstance(said, WriterBusy)
    assert "ticks is not restarted, and nothing was changed; no supervisor replaces a writer in the foreg" in str(said)
    assert "end it (Ctrl-C in its terminal, or `kill " in str(said)
    assert open_desired_store(spec).read() == before


def test_a_restart_without_a_writer_resumes_the_stream_and_reports_what_starts_it(streams: Path):
    launch = Launch("l", LaunchKind.FOREGROUND, NOW_MS - 60_000)
    with WriterLock(run_folder("ticks"), streams=("ticks",)) as lock:
        lock.record(launch)
    append_exit(run_folder("ticks"), ExitRecord("l", 0, NOW_MS - 60_000, NOW_MS, "", 0, committed=False))
    spec = load_stream(streams / "ticks.yaml")
    open_desired_store(spec).pause(by="ana", reason="")
    done = CliRunner().invoke(frazil, ["restart", "ticks", "--streams", str(streams)], catch_exceptions=False)
    assert done.stdout.startswith("ticks has no writer to replace, and is resumed: ")
    assert "no supervisor has watched it on this host, so `frazil run ticks` starts its writer" in done.stdout
    assert open_desired_store(spec).read().mode == "running"


def test_a_throttle_is_a_problem_while_the_writer_lives(streams: Path):
    with WriterLock(run_folder("ticks")):
        now_ms = status(streams)["at-ms"]
        heartbeat(pid=os.getpid(), written_at_ms=now_ms, throttle="the metadata grows").write(ticks())
        (found,) = status(streams)["streams"]
    assert (found["problems"], found["throttle"]) == (["the metadata grows"], "the metadata grows")


def test_an_outage_that_the_writer_waits_for_is_a_problem(streams: Path):
    with WriterLock(run_folder("ticks")):
        now_ms = status(streams)["at-ms"]
        heartbeat(pid=os.getpid(), written_at_ms=now_ms, outage="the object store fails", backpressure_ms=53_000).write(
            ticks()
        )
        (found,) = status(streams)["streams"]
    assert found["problems"] == ["the object store fails"]
    assert found["backpressure-ms"] is None, "an outage is no backpressure"


def test_a_fenced_writer_is_reported_as_fenced_until_it_ends(streams: Path):
    made = MadeStream(load_stream(streams / "ticks.yaml"), NOW_MS)
    fenced, newest = made.begin().epoch, made.reset(dict.fromkeys(range(made.partitions), 0)).epoch
    with WriterLock(run_folder("ticks")):
        now_ms = status(streams)["at-ms"]
        heartbeat(pid=os.getpid(), written_at_ms=now_ms, epoch=fenced, lag=0).write(ticks())
        (found,) = status(streams)["streams"]
        people = CliRunner().invoke(frazil, ["status", "--streams", str(streams)]).stdout
        assert (found["writer"]["fenced"], found["lag"]) == (True, None), (
            "the lag is asked of Kafka, which is not there"
        )
        assert found["problems"][0].startswith(
            f"the writer of epoch {fenced} is fenced: a reset or another writer began epoch {newest}. "
        )
        assert f"pid {os.getpid()}, fenced" in " ".join(people.split())
        for well in ({"epoch": newest}, {"epoch": fenced, "phase": Phase.TAKING_OVER}):
            heartbeat(pid=os.getpid(), written_at_ms=now_ms, lag=0, **well).write(ticks())
            (found,) = status(streams)["streams"]
            assert (found["writer"]["fenced"], found["lag"], found["problems"]) == (False, 0, [])


@pytest.mark.parametrize(
    ("writer", "command"),
    [(ProcessState.RUNNING, "resume"), (ProcessState.FOREGROUND, "run"), (ProcessState.ORPHANED, "run")],
)
def test_after_a_reset_the_running_writer_must_exit_before_the_next_one_starts(writer: ProcessState, command: str):
    said = describe_next_step("ticks", 4, writer)
    assert "It exits with 13 (Fenced) within a minute" in said
    assert said.endswith(f"Only after that, `frazil {command} ticks` continues at the new position.")
    assert describe_next_step("ticks", 4, ProcessState.ENDED).endswith(
        "`frazil resume ticks`, or `frazil run ticks`, continues at the new position."
    )


def test_status_shows_whether_rows_are_shuffled_if_the_stream_declares_it(streams: Path):
    with WriterLock(run_folder("ticks")):
        now_ms = status(streams)["at-ms"]
        heartbeat(pid=os.getpid(), written_at_ms=now_ms, distribution="shuffled: it saves 300 files").write(ticks())
        (found,) = status(streams)["streams"]
        people = CliRunner().invoke(frazil, ["status", "ticks", "--streams", str(streams)]).stdout
    assert (found["problems"], found["distribution"]) == ([], "shuffled: it saves 300 files")
    assert "shuffled: it saves 300 files" in people


def test_a_notice_of_a_live_writer_is_shown_and_is_not_a_problem(streams: Path):
    with WriterLock(run_folder("ticks")):
        now_ms = status(streams)["at-ms"]
        now = load_stream(streams / "ticks.yaml").fingerprint()
        notices = ("reads in the slower way",)
        heartbeat(pid=os.getpid(), written_at_ms=now_ms, spec_fingerprint=now, notices=notices).write(ticks())
        (found,) = status(streams)["streams"]
        people = CliRunner().invoke(frazil, ["status", "--streams", str(streams)]).stdout
    assert (found["problems"], found["notices"]) == ([], ["reads in the slower way"])
    assert "ticks: note: reads in the slower way\n" in people
    replace_json(run_folder("ticks") / "lock", dataclasses.asdict(Launch("l", LaunchKind.FOREGROUND, now_ms)))
    (ended,) = status(streams)["streams"]
    assert ended["notices"] == ["reads in the slower way"], "after its end, too"


@pytest.mark.parametrize(
    ("kind", "how"),
    [(LaunchKind.FOREGROUND, "end it (Ctrl-C"), (LaunchKind.SUPERVISED, "its supervisor (Airflow) replaces")],
)
def test_a_writer_that_runs_with_an_older_declaration_is_reported(streams: Path, kind: LaunchKind, how: str):
    file = streams / "ticks.yaml"
    with WriterLock(run_folder("ticks"), streams=("ticks",)) as lock:
        now_ms = status(streams)["at-ms"]
        lock.record(Launch("l", kind, now_ms, writer=identify_process(os.getpid())))
        before = load_stream(file).fingerprint()
        heartbeat(pid=os.getpid(), written_at_ms=now_ms, spec_fingerprint=before).write(ticks())
        (same,) = status(streams)["streams"]
        file.write_text(f"{file.read_text()}commit: {{interval: 5s}}\n")
        (changed,) = status(streams)["streams"]
    assert (same["notices"], changed["problems"]) == ([], [])
    (note,) = changed["notices"]
    assert "started with an older declaration than the file's current one" in note
    assert how in note


def test_a_killed_writer_is_reported_in_one_line_with_its_signal_and_the_end_of_its_log(streams: Path):
    replace_json(
        run_folder("ticks") / "lock", dataclasses.asdict(Launch("launch-1", LaunchKind.FOREGROUND, NOW_MS - 60_000))
    )
    append_exit(
        run_folder("ticks"),
        ExitRecord("launch-1", 137, NOW_MS - 60_000, NOW_MS, "", 0, committed=False, error="one line\nand another"),
    )
    (found,) = status(streams)["streams"]
    assert found["problems"] == ["the last writer ended with 137 (signal 9): one line and another"]
    assert "with 137 (signal 9)" in CliRunner().invoke(frazil, ["status", "--streams", str(streams)]).stdout


@pytest.mark.processes
def test_watching_shows_the_streams_until_ctrl_c(streams: Path) -> None:
    """The command has its own terminal: a change is seen at the next poll, and Ctrl-C is no error."""
    ours, theirs = pty.openpty()
    begin = "signal.signal(signal.SIGINT, signal.default_int_handler)"  # a shell's background ignores it
    program = f"import signal; {begin}; from frazil.cli.main import main; main()"
    command = [sys.executable, "-c", program, "status", "--watch", "1"]
    environment = {**os.environ, "FRAZIL_STREAMS": str(streams), "TERM": "xterm", "COLUMNS": "160", "LINES": "40"}
    watching = subprocess.Popen(command, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""

    def shows(text: bytes) -> bool:
        nonlocal seen
        if select.select([ours], [], [], 0.1)[0]:
            with suppress(OSError):  # it has ended
                seen += os.read(ours, 65_536)
        return text in seen

    try:
        eventually(lambda: shows(b"every 1 s; Ctrl-C ends"), within_s=30)
        eventually(lambda: shows(b"ticks"), within_s=30)
        (streams / "tocks.yaml").write_text(YAML.format(name="tocks", table="demo.tocks"))
        eventually(lambda: shows(b"tocks"), within_s=30)
        watching.send_signal(signal.SIGINT)
        eventually(lambda: shows(b"ticks") and watching.poll() is not None, within_s=30)
    finally:
        watching.kill()
        watching.wait()
        os.close(ours)
    assert watching.returncode == 0


def test_status_watch_needs_a_terminal_and_cannot_be_combined_with_json(streams: Path) -> None:
    for options, reason in ((["--watch"], "needs a terminal"), (["--watch", "--json"], "combined with --json")):
        result = CliRunner().invoke(frazil, ["status", "--streams", str(streams), *options])
        assert result.exit_code == 2
        assert reason in result.output


def test_shortened_errors_never_show_part_of_a_command() -> None:
    words = (
        f"it is gone: {'x' * (MAX_ERROR_CHARACTERS - 40)} `frazil register shop.orders 's3://a bucket/of/a/long/name'`"
    )
    assert shorten_error(words).endswith("x  ...")
    assert shorten_error(words[-MAX_ERROR_CHARACTERS:]) == words[-MAX_ERROR_CHARACTERS:]
    assert shorten_error(f"`frazil status` {words}").startswith("`frazil status` it is gone")


def test_status_counts_records_rejected_in_the_last_day_and_those_that_remain(
    tmp_path: Path,
    frazil_home: Path,  # noqa: ARG001
) -> None:
    (tmp_path / "made.yaml").write_text(day_by_day.YAML)
    made = MadeStream(load_stream(tmp_path / "made.yaml"), time.time_ns() // 1_000_000, partitions=1)
    made.begin()

    def shown(*words: str, env: dict[str, str] | None = None) -> str:
        return CliRunner().invoke(frazil, ["status", *words, "--streams", str(tmp_path)], env=env).stdout

    assert "rejected      none in the last day\n" in shown("made")
    made.land({0: (0, 3)}, rejected={0: [1, 2]}, reasons={"NotJson": Reason(2, ("made-0@1",))})
    reported = "`frazil dlq list made` counts dead letters by reason"
    assert f"rejected      2 in the last day; {reported}\n" in shown("made")
    CliRunner().invoke(frazil, ["dlq", "discard", "made", "--because", "a test", "--yes", "--streams", str(tmp_path)])
    assert f"rejected      2 in the last day, 0 of them left; {reported}\n" in shown("made")
    state = read_stream_state(made.spec, now_ms=made.now_ms)
    assert state.recent_commits is not None
    expired = replace(state, recent_commits=replace(state.recent_commits, rejected_since_ms=made.now_ms))
    assert _count_dead_letters_left(made.spec, expired, now_ms=made.now_ms) is None
    made.land({0: (3, 6)}, rejected={0: [4, 5]}, reasons={"NotJson": Reason(1)})  # a person accepted the other
    assert f"rejected      4 in the last day; {reported}\n" in shown("made")
    head, row, *_ = shown().splitlines()
    assert dict(zip(re.split("  +", head), re.split("  +", row), strict=True))["rejected"] == "4"
    narrow = shown(env={"FORCE_COLOR": "1", "TERM": "dumb", "COLUMNS": "80"}).splitlines()[:2]
    assert ["watermark" in line or "demo.made" in line for line in narrow] == [False, False]


BAD = "why\ud800 \x1b[2J\u202egnp"
SHOWN = r"why\ud800 \x1b[2J\u202egnp"


def test_a_reason_that_no_terminal_can_show_is_shown_escaped(streams: Path) -> None:
    """An earlier version kept it, or another tool wrote it."""
    open_desired_store(load_stream(streams / "ticks.yaml")).pause(by="ana", reason=BAD)
    done = subprocess.run(
        [Path(sys.executable).with_name("frazil"), "status", "ticks", "--streams", str(streams)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )
    assert SHOWN in done.stdout, done.stderr
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("reason", [BAD, "a" * 1001])
def test_an_unprintable_or_overlong_pause_reason_is_refused(streams: Path, reason: str) -> None:
    done = CliRunner().invoke(frazil, ["pause", "ticks", "--reason", reason, "--streams", str(streams)])
    assert done.exit_code == 2
    assert "Invalid value for '--reason': has " in done.output
