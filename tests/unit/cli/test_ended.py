"""What commands report about a stream whose last writer has ended, until the cause is fixed and a writer runs."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from click.testing import CliRunner
from pyiceberg.table import Table

from frazil import home
from frazil.cli.main import frazil
from frazil.commit.marker_changes import reset
from frazil.commit.reset_plan import read_state_before_reset
from frazil.doctor import CheckState as Result
from frazil.doctor.streams import check_connections
from frazil.errors import CommitUnavailable, Fenced, FrazilError, KafkaUnavailable, OffsetGap, TopicRecreated, explain
from frazil.home import run_folder
from frazil.host.records import ExitRecord, Launch, LaunchKind, append_exit
from frazil.json_files import replace_json
from frazil.kafka.admin import KafkaAdmin, Topics
from frazil.maintenance.stream_rules import evaluate_stream_rules
from frazil.offsets.spans import SourceIdentity
from frazil.spec.maintenance import Alerts
from frazil.spec.model import StreamSpec
from frazil.status import stream as status_stream
from frazil.status import table as status_table
from frazil.status.stream import read_stream_state
from frazil.table import catalogs
from frazil.table.tables import load_stream_table
from frazil.table.unresponsive import Unresponsive
from tests.made_batches import MadeStream
from tests.unit.maintenance.day_by_day import land, made_stream

WORDS = "topic plant's id a became b: it was made again. `frazil reset made --to marker` begins at its first record"


@pytest.fixture
def made(tmp_path: Path, frazil_home: Path) -> MadeStream:  # noqa: ARG001
    stream = made_stream(tmp_path)
    stream.now_ms = now() - 130_000
    land(stream, 1)
    return stream


def now() -> int:
    return time.time_ns() // 1_000_000


def ends(
    code: int, error: FrazilError | None = None, *, kind: LaunchKind = LaunchKind.FOREGROUND, ago_ms: int = 0
) -> None:
    folder = run_folder("made")
    folder.mkdir(parents=True, exist_ok=True)
    replace_json(folder / "lock", dataclasses.asdict(Launch("l", kind, now() - 120_000)))
    fields = ExitRecord.fields_of(explain(error) if error else None)
    append_exit(folder, ExitRecord("l", code, now() - 120_000, now() - ago_ms, "", 0, committed=True, **fields))


def call(folder: Path, *arguments: str) -> str:
    return CliRunner().invoke(frazil, [*arguments, "--streams", str(folder)]).stdout


def state(folder: Path) -> str:
    return str(json.loads(call(folder, "status", "--json"))["streams"][0]["state"])


def faults(folder: Path, made: MadeStream) -> list[str]:
    found = check_connections({folder / "made.yaml": made.spec})
    return [one.message for one in found if one.state is Result.WRONG and "Kafka" not in one.message]


@pytest.mark.parametrize("error", [OffsetGap, TopicRecreated])
def test_an_exit_after_which_no_writer_starts_is_an_immediate_alert(
    made: MadeStream, tmp_path: Path, error: type[OffsetGap]
) -> None:
    ends(error.exit_code, error(WORDS, stream="made"))
    said = f"the last writer ended with {error.exit_code} ({error.__name__}): {WORDS}"
    (rule,) = json.loads(call(tmp_path, "health", "--json"))["streams"][0]["beyond"]
    assert (rule["rule"], rule["shown"], rule["hold-ms"]) == ("writer", f"stopped: {error.__name__}", 0)
    for words in (("health",), ("health", "demo.made")):
        assert call(tmp_path, *words).count(f"stream made is stopped: {said}") == 1
    assert faults(tmp_path, made) == [f"made: stopped: {said}"]


def test_a_table_whose_read_hangs_hides_no_stopped_stream_of_the_same_catalog(
    made: MadeStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends(OffsetGap.exit_code, OffsetGap(WORDS, stream="made"))
    hanging, released = made.spec.model_copy(update={"name": "hanging"}), threading.Event()

    def load(spec: StreamSpec) -> Table | None:
        if spec.name == hanging.name:
            released.wait()
        return load_stream_table(spec)

    monkeypatch.setattr(catalogs, "ANSWER_TIMEOUT_S", 3)
    monkeypatch.setattr(status_table, "load_stream_table", load)
    try:
        found = [*check_connections({tmp_path / "hanging.yaml": hanging, tmp_path / "made.yaml": made.spec})]
    finally:
        released.set()
    said = f"made: stopped: the last writer ended with {OffsetGap.exit_code} (OffsetGap): {WORDS}"
    assert said in [one.message for one in found]


def test_an_exit_that_a_restart_may_fix_is_not_an_immediate_alert(made: MadeStream, tmp_path: Path) -> None:
    ends(CommitUnavailable.exit_code, CommitUnavailable("the catalog does not answer"))
    assert json.loads(call(tmp_path, "health", "--json"))["streams"][0]["beyond"] == []
    assert made.spec.name in call(tmp_path, "status")


def test_a_writer_replaced_by_another_host_is_not_an_alert(made: MadeStream, tmp_path: Path) -> None:
    ends(Fenced.exit_code, Fenced("it was replaced"), ago_ms=90_000)
    assert json.loads(call(tmp_path, "health", "--json"))["streams"][0]["beyond"] == []
    assert faults(tmp_path, made) == []


def test_doctor_names_a_recreated_topic_as_status_does(
    made: MadeStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frazil.doctor.connections._check_kafka", lambda _: "topic plant: 2 partitions")
    monkeypatch.setattr(status_stream, "BROKERS", Unresponsive())  # the shared one remembers earlier tests' brokers
    now_there = SourceIdentity(made.source.cluster_id, dict.fromkeys(made.source.topic_ids, "another"))
    monkeypatch.setattr(KafkaAdmin, "describe", lambda _: Topics(now_there, ((made.topic, 0),)))
    (said,) = faults(tmp_path, made)
    assert "was deleted and recreated" in said
    assert "`frazil reset made --to marker`" in said
    assert "was deleted and recreated" in " ".join(call(tmp_path, "status", "made").split())
    monkeypatch.setattr(KafkaAdmin, "describe", Mock(side_effect=KafkaUnavailable("slow")))
    assert faults(tmp_path, made) == []


def test_the_last_writers_error_is_shown_once_until_the_stream_is_reset(
    made: MadeStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = explain(TopicRecreated(WORDS), status_stream.LAG_UNKNOWN)
    monkeypatch.setattr(status_stream, "fetch_lag", lambda *_: (None, unknown))
    ends(TopicRecreated.exit_code, TopicRecreated(WORDS))
    assert state(tmp_path) == "stopped"
    assert " ".join(call(tmp_path, "status", "made").split()).count("it was made again") == 1
    monkeypatch.setattr(status_stream, "fetch_lag", lambda *_: (4, None))
    made.now_ms = now() + 1_000
    reset(made.tables, target={("made", 0): 0}, source=made.source, seen=read_state_before_reset(made.tables))
    assert state(tmp_path) == "stopped"
    shown = " ".join(call(tmp_path, "status", "made").split())
    assert "it was made again" not in shown
    assert "ago; start a writer: frazil run made" in shown
    assert json.loads(call(tmp_path, "health", "--json"))["streams"][0]["beyond"] == []
    assert faults(tmp_path, made) == []


def test_a_writer_whose_exit_could_not_be_recorded_is_known_to_have_run_on_this_host(
    made: MadeStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_folder("made").mkdir(parents=True, exist_ok=True)
    replace_json(run_folder("made") / "lock", dataclasses.asdict(Launch("l", LaunchKind.FOREGROUND, now())))
    monkeypatch.setattr(home.shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    shown = " ".join(call(tmp_path, "status", "made").split())
    assert f"ended, and the reason is not recorded: the disk of {home.home()} is full: free some space" in shown
    lost = read_stream_state(made.spec, now_ms=now() + 24 * 3_600_000)
    unknown = {one.rule: one for one in evaluate_stream_rules(replace(lost, alive=False), Alerts(), now_ms=now())}
    assert "no writer runs, and the reason why the last one ended is unknown" in unknown["writer"].sentence


def test_no_writer_starts_after_one_that_a_user_ran_to_its_end(made: MadeStream, tmp_path: Path) -> None:
    ends(0)
    assert state(tmp_path) == "stopped"
    ends(0, kind=LaunchKind.SUPERVISED)
    assert state(tmp_path) == "starting"
    assert made.spec.name in call(tmp_path, "status")
