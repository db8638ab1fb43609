"""Carries out each entry of the runbook: the alert fires for its cause, and its commands resolve the alert.

Entries that need Kafka or Spark are in tests/e2e/test_runbook.py and tests/spark/test_runbook.py.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from frazil import clock
from frazil.airflow.audits.findings import store_audits
from frazil.airflow.audits.tasks import audit_all
from frazil.airflow.health.tasks import measure_all
from frazil.cli.main import frazil
from frazil.doctor import connections
from frazil.errors import FrazilError, RegistryUnavailable
from frazil.host.heartbeat import Heartbeat, Phase, Stall, StallKind
from frazil.host.processes import identify_process
from frazil.host.records import ExitRecord, Launch, LaunchKind, ProcessMark, append_exit
from frazil.maintenance import measure
from frazil.partitions.windows import Window
from frazil.signals.completion import GateOutcome, assess_table, signal_windows
from frazil.spec.load import load_stream
from frazil.table.catalogs import load_catalog
from tests.dags.test_maintenance import Store
from tests.made_batches import EventTimes, MadeStream
from tests.made_registry import made_registry
from tests.runbook import commands, part

STREAM = """
name: rides
source: {topics: [rides], bootstrap-servers: "127.0.0.1:1"}
table: city.rides
schema: {at: timestamptz}
event-time: at
partition-by: [hour(at)]
complete: hour
"""
BEGIN = datetime(2033, 5, 18, 8, 30, tzinfo=UTC)
"""Later than this machine's clock: no commit is older than its table."""
EVERY = timedelta(minutes=5)


class Shift:
    """A stream, its monitoring, and an operator who follows the runbook."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.store, self.landed = folder, Store(), 0
        self.now = BEGIN
        self.file = folder / "streams" / "rides.yaml"
        self.file.parent.mkdir()
        self.file.write_text(STREAM)
        self.made = MadeStream(load_stream(self.file), self.now_ms, partitions=1, columns=self._columns)
        self.run_folder = Path(os.environ["FRAZIL_HOME"], "streams", "rides")
        self.run_folder.mkdir(parents=True)
        self.failed_runs = 0
        self.aggregations: Path | None = None
        self.again = {"daily": Store()}
        patch.setenv("FRAZIL_STREAMS", str(self.file.parent))
        patch.setattr(clock, "now_ms", lambda: self.now_ms)
        patch.setattr(measure, "kafka_lag", lambda *_: None)  # there is no Kafka: the lag stays unknown

    @property
    def now_ms(self) -> int:
        return int(self.now.timestamp() * 1_000)

    def _columns(self, rows: int) -> dict[str, pa.Array]:
        return {"at": pa.array([self.now_ms * 1_000] * rows, pa.int64()).cast(pa.timestamp("us", tz="UTC"))}

    def land(self, records: int = 100, *, bad: int = 0) -> None:
        self.made.now_ms, begin = self.now_ms, self.landed
        self.landed += records
        self.made.land(
            {0: (begin, self.landed)},
            rejected={0: range(begin, begin + bad)},
            times=EventTimes({0: self.now_ms * 1_000}),
        )

    def later(self, by: timedelta) -> None:
        self.now += by

    def red(self) -> set[str]:
        """Return the rules of the active alerts, as `frazil_health` finds them now."""
        failed = {"frazil_audits": self.failed_runs}
        found = measure_all(
            self.file.parent,
            self.store,
            aggregations=self.aggregations,
            again=self.again,
            failed=lambda dag_id, _: failed.get(dag_id, 0),
        )
        named = {alert["rule"]: alert["runbook"] for alert in found["active"]}
        assert named == {rule: f"docs/runbook.md#{rule.partition(':')[0]}" for rule in named}
        return {rule.partition(":")[0] for rule in named}

    def red_after_the_hold(self) -> set[str]:
        """Every five minutes, as the DAG looks."""
        for _ in range(8):
            self.red()
            self.later(EVERY)
        return self.red()

    def show(self, rule: str, *, but: str = " ") -> str:
        """Give the commands of the entry's *Check*."""
        return give(rule, "Check", but)

    def do(self, rule: str) -> str:
        """Give those of its *Fix*."""
        return give(rule, "Fix")

    def be_sure(self, rule: str) -> str:
        """Run the commands under *Verify*; all must succeed."""
        return give(rule, "Verify", fails=False)

    def ended(
        self, number: int, error: str = "MemoryError: no room", *, code: int = 1, committed: bool = False
    ) -> None:
        """A writer of this host that Airflow had started."""
        at_ms, declared = self.now_ms, load_stream(self.file).fingerprint()
        launch = Launch(f"l{number}", LaunchKind.SUPERVISED, at_ms - 1_000, writer=ProcessMark(2**22 + 1, 0))
        append_exit(
            self.run_folder, ExitRecord(launch.id, code, at_ms - 1_000, at_ms, declared, 0, committed, error=error)
        )
        (self.run_folder / "lock").write_text(json.dumps(dataclasses.asdict(launch)))


def give(rule: str, name: str, but: str = " ", *, fails: bool = True) -> str:
    """Run the commands of a part of an entry. Return their output."""
    given = [words for words in commands(rule, name) if but not in words]
    assert given, f"the entry {rule} has no command to {name.lower()}"
    return "\n".join(run_command(words, fails=fails) for words in given)


def run_command(words: list[str], *, fails: bool = False) -> str:
    done = CliRunner().invoke(frazil, words)
    assert isinstance(done.exception, FrazilError | SystemExit | None), (words, done.output)
    assert fails or done.exit_code == 0, (words, done.output, done.exception)
    return f"{done.output}{done.exception if isinstance(done.exception, FrazilError) else ''}"


@pytest.fixture
def shift(frazil_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shift:  # noqa: ARG001
    return Shift(tmp_path, monkeypatch)


def test_the_runbook_for_a_stopped_stream_restarts_it_or_pauses_it(shift: Shift) -> None:
    shift.land()
    shift.later(EVERY)
    shift.ended(1)
    assert "writer" in shift.red_after_the_hold()
    assert "MemoryError: no room" in shift.show("writer", but="doctor")
    assert "rides" in shift.do("writer"), "it is resumed, and then paused"
    assert "writer" not in shift.red(), "nobody wants it to run"
    assert "paused" in shift.be_sure("writer")


def test_a_crash_looping_writer_is_reported_with_its_last_error(shift: Shift) -> None:
    shift.land()
    for number in range(4):
        shift.ended(number, "WorkerEnvironment: the workers' Python has no frazil")
    assert "restarts" in shift.red_after_the_hold()
    assert "the workers' Python has no frazil" in shift.show("restarts")
    shift.land()  # a user installed it
    shift.ended(9, committed=True)
    assert "restarts" not in shift.red()
    assert "ago" in shift.be_sure("restarts")


def test_an_unavailable_registry_is_reported(shift: Shift, monkeypatch: pytest.MonkeyPatch) -> None:
    shift.land()
    shift.ended(1, "RegistryUnavailable: http://registry does not answer", code=RegistryUnavailable.exit_code)
    assert "registry" in shift.red_after_the_hold()
    assert "http://registry does not answer" in shift.show("registry")
    monkeypatch.setattr(connections, "_check_kafka", lambda _: "topic rides: 1 partition")
    monkeypatch.setattr(connections.Connections, "_check_position", lambda *_, **__: None)
    with made_registry() as registry:
        avro = f'format: {{type: avro, registry: {{url: "{registry.url}", timeout: 200ms}}}}, bootstrap-servers'
        shift.file.write_text(STREAM.replace("bootstrap-servers", avro))
        registry.answers["/subjects/rides-value/versions/latest"] = [(503, {})]
        assert "RegistryUnavailable: the schema registry http" in give("registry", "Verify")
        registry.answers.clear()
        assert "rides: its schema registry answers" in shift.be_sure("registry")
    shift.ended(2, committed=True)
    assert "registry" not in shift.red()


def test_a_stall_is_reported_until_it_is_over(shift: Shift) -> None:
    shift.land()
    launch = Launch("l1", LaunchKind.SUPERVISED, shift.now_ms, writer=identify_process(os.getpid()))
    (shift.run_folder / "lock").write_text(json.dumps(dataclasses.asdict(launch)))

    def write_heartbeat(stall: Stall | None) -> None:
        heartbeat = Heartbeat("rides", os.getpid(), "f", Phase.WAITING, shift.now_ms, shift.now_ms, stall=stall)
        heartbeat.write(shift.run_folder)

    held_back = Stall(StallKind.OFFSETS, shift.now_ms, "rides-0", "a transaction on rides-0 is open since 08:30")
    for _ in range(8):
        write_heartbeat(held_back)
        shift.red()
        shift.later(EVERY)
    write_heartbeat(held_back)
    assert "stall" in shift.red()
    assert "a transaction on rides-0 is open" in shift.show("stall")
    write_heartbeat(None)
    assert "stall" not in shift.red()
    assert "a transaction" not in shift.be_sure("stall")


def test_an_alert_about_a_poison_producer_is_resolved_by_the_runbook(shift: Shift) -> None:
    shift.land(200, bad=50)
    assert "dead-letters" in shift.red_after_the_hold()
    assert "NotJson" in shift.show("dead-letters")
    done = shift.do("dead-letters")
    assert "50 dead letters would be decoded again" in done.replace(" of stream rides", "")
    assert "50 dead letters of stream rides discarded" in done
    shift.later(timedelta(hours=1))
    shift.land()
    assert "dead-letters" not in shift.red()
    assert "has no such dead letters" in shift.be_sure("dead-letters"), "none is left to settle"


def test_a_typo_in_a_file_is_found_and_corrected(shift: Shift) -> None:
    shift.land()
    shift.red()
    shift.file.write_text(STREAM.replace("event-time", "event-tmie"))
    assert "declaration" in shift.red()
    assert "did you mean event-time?" in shift.show("declaration")
    shift.file.write_text(STREAM)
    assert "declaration" not in shift.red()
    assert shift.be_sure("declaration")


def test_a_table_that_was_dropped_is_registered_again(shift: Shift) -> None:
    shift.land()
    shift.ended(1, committed=True)
    shift.made.tables.main.refresh()
    load_catalog(None).drop_table("city.rides")
    assert "table" in shift.red()
    (command,) = set(re.findall(r"^    (frazil register .+)$", shift.show("table"), re.MULTILINE))
    assert "city.rides is in the catalog 'default' again" in run_command(shlex.split(command)[1:])
    assert "table" not in shift.red()
    assert "each offset once" in shift.be_sure("table")


def test_rows_deleted_by_others_are_found_and_restored(shift: Shift) -> None:
    shift.land()

    def audit() -> None:
        moment = (BEGIN + timedelta(hours=1)).replace(minute=15)
        store_audits(shift.store, audit_all(["rides"], shift.file.parent, moment).audits)

    shift.made.tables.main.refresh().delete("kafka_offset < 5")
    audit()
    assert "audit" in shift.red()
    assert "the table is missing 5 rows" in shift.show("audit")
    (fix,) = re.findall(r"```python\n(.*?)```", part("audit", "Fix"), re.DOTALL)
    exec(compile(fix, "docs/runbook.md", "exec"), {})
    assert "each offset once" in shift.be_sure("audit")
    audit()
    assert "audit" not in shift.red()


def test_a_late_window_is_reported_with_what_it_waits_for(shift: Shift) -> None:
    shift.land()
    complete(shift)
    shift.later(timedelta(hours=4))
    assert "late-window" in shift.red_after_the_hold()
    assert "is from 2033-05-18T08:30:00Z" in shift.show("late-window")
    shift.land()
    complete(shift)
    assert "late-window" not in shift.red()
    assert "complete" in shift.be_sure("late-window")


def test_windows_of_long_ago_cause_no_late_window_alert(shift: Shift) -> None:
    long_ago = EventTimes({0: (shift.now_ms - 365 * 86_400_000) * 1_000})
    shift.made.land({0: (0, 10)}, times=long_ago)
    complete(shift)
    assert "late-window" not in shift.red_after_the_hold()


def test_a_held_window_is_released(shift: Shift) -> None:
    shift.land()
    complete(shift)
    shift.later(timedelta(hours=1))
    shift.land()
    shift.later(timedelta(hours=1))
    shift.land()
    complete(shift, held="2033-05-18T09", note="expect_column_values_to_be_between fare: failed in 3 rows")
    assert "held" in shift.red()
    assert "failed in 3 rows" in shift.show("held")
    shift.do("held")
    assert "held" not in shift.red()
    assert re.search(r"2033-05-18T09 +1 +released", shift.be_sure("held"))


def complete(shift: Shift, *, held: str = "", note: str = "") -> None:
    """Do what the table's partition DAG does; the gate passes all windows but one."""
    catalog, spec = load_catalog(None), load_stream(shift.file)
    seen = assess_table(catalog, [spec])
    assert seen is not None

    def gates(_: object, windows: Sequence[Window]) -> dict[Window, GateOutcome]:
        return {window: GateOutcome(window.key != held, note or None) for window in windows}

    signal_windows(catalog, seen, clock_ms=shift.now_ms, gates=gates)


def test_a_day_that_was_not_aggregated_is_reported_until_it_is(shift: Shift) -> None:
    shift.file.write_text(STREAM.replace("complete: hour", "complete: day").replace("hour(at)", "day(at)"))
    shift.land()
    complete(shift)
    shift.aggregations = shift.folder / "aggregations"
    shift.aggregations.mkdir()
    (shift.aggregations / "daily.yaml").write_text(
        "source: city.rides\nevent-time: at\ntarget: city.daily\nsql: SELECT count(*) AS n FROM source_day\n"
    )
    assert "aggregation" not in shift.red()
    shift.later(timedelta(days=1))
    shift.land()
    complete(shift)
    shift.later(timedelta(hours=3))
    assert "aggregation" in shift.red()
    source = shift.made.tables.main.refresh().current_snapshot()
    assert source is not None
    done = {
        "frazil.aggregation": "daily",
        "frazil.day": str(BEGIN.date()),
        "frazil.input-snapshot-id": str(source.snapshot_id),
        "frazil.input-sequence-number": str(source.sequence_number),
    }
    counted = pa.table({"n": [100]})
    load_catalog(None).create_table("city.daily", counted.schema).append(counted, snapshot_properties=done)
    assert "aggregation" not in shift.red()


def test_failed_runs_are_reported_until_one_succeeds(shift: Shift) -> None:
    shift.failed_runs = 2
    assert "runs" in shift.red_after_the_hold()
    shift.failed_runs = 0
    assert "runs" not in shift.red()


def test_a_table_that_cannot_be_measured_raises_an_alert_until_it_can(shift: Shift) -> None:
    shift.land()
    shift.red()
    metadata = Path(shift.made.tables.main.refresh().metadata_location.removeprefix("file://"))
    away = metadata.rename(metadata.with_suffix(".away"))
    assert "unmeasured" in shift.red_after_the_hold()
    assert metadata.name in shift.show("unmeasured")
    away.rename(metadata)
    assert "unmeasured" not in shift.red()
    assert "city.rides" in shift.be_sure("unmeasured")
