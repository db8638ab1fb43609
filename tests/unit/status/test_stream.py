"""The status of a stream if a service is unavailable."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import yaml
from click.testing import CliRunner
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from frazil import outdated_code
from frazil.cli.main import frazil
from frazil.cli.status import _overview_cells
from frazil.commit.dead_letter_counts import Reason
from frazil.commit.marker import Marker, first_marker
from frazil.errors import Failure, KafkaUnavailable
from frazil.home import run_folder
from frazil.host.heartbeat import Heartbeat, Phase
from frazil.host.launcher import Observation, ProcessState
from frazil.host.lock import WriterLock
from frazil.host.processes import identify_process
from frazil.host.records import ExitRecord, Launch, LaunchKind, append_exit
from frazil.json_files import replace_json
from frazil.offsets.spans import SourceIdentity
from frazil.operations.dead_letters import count_rejected
from frazil.operations.overview import OverviewLine, RelatedState, StreamReading, build_line
from frazil.spec.load import load_stream, validate_stream
from frazil.spec.model import StreamSpec
from frazil.status import stream, table
from frazil.status.derive import derive_from_decision, refine_state
from frazil.status.state import Level, State, StreamState
from frazil.status.stream import fetch_lag, read_stream_state
from frazil.stream.circuit_breaker import AcceptedRejects, store_acceptance
from frazil.supervise.decision import DecisionInput, DesiredState, ValidDeclaration
from frazil.supervise.decision_rules import decide
from frazil.supervise.desired_state import open_desired_store
from frazil.table.catalogs import load_catalog
from frazil.table.unresponsive import Unresponsive
from tests.made_batches import MadeStream

DECLARED = {
    "name": "ticks",
    "source": {"topics": ["ticks"], "bootstrap-servers": "127.0.0.1:1"},
    "table": "demo.ticks",
    "schema": {"ts": "timestamptz not null"},
    "event-time": "ts",
}


@pytest.mark.usefixtures("frazil_home")
def test_a_failed_table_read_is_unreadable_except_after_an_upgrade_under_the_running_process(
    monkeypatch: pytest.MonkeyPatch,
):
    spec = validate_stream(DECLARED, Path("ticks.yaml"))

    def fails(_: object) -> None:
        raise ImportError("cannot import name 'x'")

    monkeypatch.setattr(table, "load_stream_table", fails)
    found = read_stream_state(spec, now_ms=0)
    assert (found.table_exists, found.problems) == (
        None,
        (Failure("cannot import name 'x'", error="ImportError", about="the table cannot be read"),),
    )
    monkeypatch.setattr(outdated_code, "_starts", [outdated_code.ProcessStart("API server", frozenset())])
    with pytest.raises(ImportError):
        read_stream_state(spec, now_ms=0)


@pytest.mark.usefixtures("frazil_home")
def test_a_table_that_could_not_be_read_needs_an_operator_only_if_reads_fail_for_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec, fails = validate_stream({**DECLARED, "name": "flaky"}, Path("flaky.yaml")), True

    def load(_: object) -> None:
        if fails:
            raise OSError("no answer")

    monkeypatch.setattr(table, "load_stream_table", load)
    levels = [read_stream_state(spec, now_ms=at_ms).level for at_ms in (1_000, 60_999, 61_000)]
    assert levels == [Level.TROUBLE, Level.TROUBLE, Level.BROKEN]
    fails = False
    assert read_stream_state(spec, now_ms=62_000).level is Level.QUIET
    fails = True
    found = read_stream_state(spec, now_ms=63_000)
    assert (found.state, found.level) == (State.TABLE_UNREADABLE, Level.TROUBLE)
    assert found.sentence == "the table cannot be read: OSError: no answer"
    hours_later = read_stream_state(spec, now_ms=10_800_000)
    assert hours_later.level is Level.TROUBLE, "the table was not read again in these hours"


@pytest.mark.parametrize(("process", "restarts"), [(ProcessState.RUNNING, True), (ProcessState.FOREGROUND, False)])
def test_a_writer_is_shown_as_restarting_from_the_request_until_its_supervisor_has_ended_it(
    process: ProcessState, restarts: bool
):
    spec = validate_stream(DECLARED, Path("ticks.yaml"))

    def is_restarting(writer: Observation, desired: DesiredState) -> bool:
        observed = DecisionInput(writer, ValidDeclaration("f"), desired)
        decision = decide(observed, now_ms=1)
        known = derive_from_decision(StreamState("ticks", table_exists=True), observed, decision, now_ms=1)
        return refine_state(known, spec, now_ms=1).state is State.RESTARTING

    def observed(generation: int) -> Observation:
        return Observation(
            process, Launch("l", LaunchKind.SUPERVISED, 0, "f", generation, identify_process(os.getpid())), None, ()
        )

    requested = DesiredState(generation=3, restart_generation=3)
    assert is_restarting(observed(2), requested) is restarts
    assert not is_restarting(observed(3), requested)
    assert not is_restarting(observed(2), DesiredState(generation=3))
    assert not is_restarting(Observation(ProcessState.NEVER_LAUNCHED, None, None, ()), requested)


@pytest.fixture
def spec(tmp_path: Path, frazil_home: Path) -> StreamSpec:  # noqa: ARG001
    (tmp_path / "ticks.yaml").write_text(yaml.safe_dump(DECLARED))
    return load_stream(tmp_path / "ticks.yaml")


def now() -> int:
    return time.time_ns() // 1_000_000


def on_page(spec: StreamSpec, state: StreamState) -> OverviewLine:
    return build_line(spec.name, spec, StreamReading(state, now()), RelatedState(), now_ms=now())


def in_status(folder: Path) -> dict[str, str]:
    said = CliRunner().invoke(frazil, ["status", "ticks", "--streams", str(folder)]).stdout
    fields = (line.split(maxsplit=1) for line in said.splitlines())
    return {name: words.strip() for name, words in (one for one in fields if len(one) == 2)}


def test_a_writer_waiting_for_the_first_topic_of_its_pattern_is_not_reported_without_a_table(spec: StreamSpec) -> None:
    waits = "no topic of the cluster matches source.topic-pattern 'ticks-.*'; the writer checks again every 30 s"
    with WriterLock(run_folder("ticks")):
        fingerprint = spec.fingerprint()
        Heartbeat("ticks", os.getpid(), fingerprint, Phase.STARTING, now(), now(), outage=waits).write(
            run_folder("ticks")
        )
        line = on_page(spec, read_stream_state(spec, now_ms=now()))
    assert (line.word, line.level) == ("has a problem", Level.TROUBLE)
    assert [need.sentence for need in line.needs] == [waits]


@pytest.mark.parametrize("paused", [False, True])
def test_the_page_and_status_agree_about_a_stream_that_never_had_a_writer(
    spec: StreamSpec, tmp_path: Path, paused: bool
) -> None:
    if paused:
        open_desired_store(spec).pause(by="ana", reason="not yet")
    word = on_page(spec, read_stream_state(spec, now_ms=now())).word
    assert word == in_status(tmp_path)["state"] == ("paused" if paused else "not begun")


def test_a_renamed_table_is_reported_as_renamed_and_not_as_not_yet_created(spec: StreamSpec, tmp_path: Path) -> None:
    MadeStream(spec, now(), partitions=1).begin()
    load_catalog(None).rename_table("demo.ticks", "demo.tocks")
    found = read_stream_state(spec, now_ms=now())
    assert (found.state, on_page(spec, found).word) == (State.NO_TABLE, "no table")
    assert "rename demo.tocks back to demo.ticks or declare `table: demo.tocks`" in found.sentence
    assert in_status(tmp_path)["rows"] == "missing"


def test_the_lag_of_a_rolled_back_table_is_unknown_with_the_reason(spec: StreamSpec) -> None:
    made = MadeStream(spec, now(), partitions=1)
    made.begin()
    first = made.tables.main.refresh().current_snapshot()
    made.reset({0: 5})
    assert first is not None
    made.tables.main.refresh().manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    found = read_stream_state(spec, now_ms=now())
    assert (found.lag, found.rolled_back) == (None, True)
    unknown = "the lag is unknown: the table was rolled back to a snapshot before the marker's"
    assert unknown in map(str, found.problems)
    assert not any("did not answer" in str(one) for one in found.problems), "the marker says nothing about it"


@pytest.mark.parametrize(
    ("silent", "requested"),
    [(True, ["a", "c", "d"]), (False, ["a", "b", "c", "d"])],
    ids=["silent brokers", "one silent leader"],
)
def test_silent_brokers_are_not_asked_again_for_other_streams_with_the_same_settings(
    spec: StreamSpec, monkeypatch: pytest.MonkeyPatch, *, silent: bool, requested: list[str]
) -> None:
    calls = []

    def time_out(of: StreamSpec, _: Marker) -> int:
        calls.append(of.name)
        error = KafkaUnavailable("Kafka did not answer")
        error.all_brokers = silent
        raise error

    monkeypatch.setattr(stream, "count_lag", time_out)
    monkeypatch.setattr(stream, "BROKERS", Unresponsive())
    secured = spec.source.model_copy(update={"properties": {"security.protocol": "SSL"}})
    elsewhere = spec.source.model_copy(update={"bootstrap_servers": "elsewhere:9092"})
    marker = first_marker("a", epoch=1, offsets={}, source=SourceIdentity("c", {}))
    for name, source in (("a", spec.source), ("b", spec.source), ("c", secured), ("d", elsewhere)):
        lag, why = fetch_lag(spec.model_copy(update={"name": name, "source": source}), marker)
        assert (lag, str(why)) == (None, "the lag is unknown: KafkaUnavailable: Kafka did not answer")
    assert calls == requested


@pytest.mark.parametrize(("after_ms", "runs"), [(0, True), (86_400_000, None)])
def test_a_fresh_commit_shows_a_writer_on_another_host(spec: StreamSpec, after_ms: int, runs: bool | None) -> None:
    made = MadeStream(spec, now(), partitions=1, columns=lambda n: {"ts": pa.array([0] * n, pa.timestamp("us", "UTC"))})
    made.land({0: (0, 10)})
    assert read_stream_state(spec, now_ms=now() + after_ms, in_full=False).alive is runs


def test_the_counts_of_a_merge_are_those_of_the_streams_last_one() -> None:
    def snapshot(stream: str, **counts: int) -> Snapshot:
        summary = {"frazil.stream": stream, **{f"frazil.{name}": str(count) for name, count in counts.items()}}
        return Snapshot(snapshot_id=1, timestamp_ms=1, manifest_list="l", summary=Summary(Operation.APPEND, **summary))

    made = [
        snapshot("ticks", updated=1),
        snapshot("ticks", updated=2),
        snapshot("ticks"),
        snapshot("others", updated=3),
    ]
    metadata: Any = SimpleNamespace(snapshots=made)
    assert table._last_merge_counts(metadata, "ticks") == {"updated": 2}
    assert table._last_merge_counts(metadata, "none") == {}


def test_accepted_rejects_are_shown_until_the_stream_has_read_their_records(spec: StreamSpec, tmp_path: Path) -> None:
    made = MadeStream(spec, now(), partitions=1, columns=lambda n: {"ts": pa.array([0] * n, pa.timestamp("us", "UTC"))})
    made.begin()
    accepted = AcceptedRejects({("ticks", 0): 10}, made.source, "ana", "a test", now() - 30_000)
    for reason, by in (("", "by ana"), ("a test", "by ana (a test)")):
        store_acceptance(made.tables, replace(accepted, reason=reason))
        assert f"{by}; 10 more offsets are covered" in in_status(tmp_path)["accepted"]
    replace_json(run_folder("ticks") / "lock", asdict(Launch("l", LaunchKind.SUPERVISED, now() - 60_000)))
    error = "CircuitOpen: `frazil resume ticks --accept` stores its records"
    end = ExitRecord("l", 27, now() - 60_000, now() - 1_000, "f", 0, committed=False, error=error)
    append_exit(run_folder("ticks"), end)
    open_desired_store(spec).pause(by="ana", reason="later records were rejected")
    assert "resume ticks --accept" in CliRunner().invoke(frazil, ["status", "ticks", "--streams", str(tmp_path)]).stdout
    store_acceptance(made.tables, replace(accepted, at_ms=now()))
    open_desired_store(spec).resume(by="ana", reason="a test")
    for command in (["status", "ticks"], ["status"]):
        said = CliRunner().invoke(frazil, [*command, "--streams", str(tmp_path)]).stdout
        assert "--accept" not in said
        assert "27 (CircuitOpen): rejected records were accepted" in said
        assert "The next writer stores them as dead letters" in said
    made.land({0: (0, 10)})
    assert "accepted" not in in_status(tmp_path)


def test_status_shows_the_tables_newest_snapshot_and_does_not_report_zero_routed_rows(
    spec: StreamSpec, tmp_path: Path
) -> None:
    made = MadeStream(spec, now(), partitions=1, columns=lambda n: {"ts": pa.array([0] * n, pa.timestamp("us", "UTC"))})
    made.begin()
    made.land({0: (0, 10)})
    table = made.tables.main.refresh()
    table.append(table.scan().to_arrow())
    found = read_stream_state(spec, now_ms=now())
    newest = made.tables.main.refresh().current_snapshot()
    assert newest is not None
    assert (found.snapshot_id, in_status(tmp_path)["rows"]) == (newest.snapshot_id, "20")
    assert _overview_cells(replace(found, rows=0, routed=True), now_ms=now())["rows"] == "0 + routed"


def test_records_read_again_after_a_reset_are_counted_as_rejected_once(spec: StreamSpec, tmp_path: Path) -> None:
    made = MadeStream(spec, now(), partitions=1, columns=lambda n: {"ts": pa.array([0] * n, pa.timestamp("us", "UTC"))})
    made.begin()
    reasons = {"TypeMismatch": Reason(3)}
    for _ in range(2):
        made.land({0: (0, 10)}, rejected={0: [1, 2, 3]}, reasons=reasons)
        made.reset({0: 0})
    made.land({0: (0, 10)}, rejected={0: [1, 2, 3]}, reasons=reasons)
    found = read_stream_state(spec, now_ms=now()).recent_commits
    assert found is not None
    assert (found.rejected_last_day, found.rejected_since_reset) == (3, True)
    assert "when the stream was reset" in in_status(tmp_path)["rejected"]
    metadata = made.tables.main.refresh().metadata
    assert [one.count for one in count_rejected(metadata, "ticks", [], now_ms=now())] == [3]
