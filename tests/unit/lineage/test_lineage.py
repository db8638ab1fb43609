"""A writer is one run of a streaming job, even if its backend fails."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from pyiceberg.table import Table
from pyiceberg.types import StringType

from frazil.commit.marker import BatchKey, Marker
from frazil.commit.settle import SettleResult
from frazil.events import BatchCommitted, EpochBegan, Event, StreamEvent, TableEvolved
from frazil.lineage.client import LineageClient
from frazil.lineage.facts import Dataset, LineageSettings, LineageState, RunFacts, Totals, table_dataset
from frazil.lineage.stream import RETRY_INTERVAL_MS, StreamLineage
from frazil.offsets.spans import SourceIdentity
from frazil.spec.load import validate_stream
from frazil.table.catalogs import load_catalog
from frazil.table.tables import ensure_table
from tests.lineage_backend import tracing

NOW = 1_800_000_000_000
EVERY_MS = 900_000
RUN_ID = "01941f29-7c00-7000-8000-000000000001"
MARKER = Marker("ticks", BatchKey(4, 0), None, {("rides", 0): 10}, SourceIdentity("c", {}), snapshot_id=42)
EPOCH = EpochBegan(4, MARKER, SettleResult())
BATCH = BatchCommitted(BatchKey(4, 1), MARKER, 100, 3, 2, stage_s=2.0, commit_s=0.5, bytes=4_096)


@pytest.fixture
def table(frazil_home: Path) -> Table:  # noqa: ARG001 - the embedded catalog's
    declared = {
        "name": "ticks",
        "source": {"topics": ["ticks"], "bootstrap-servers": "127.0.0.1:1"},
        "table": "demo.ticks",
        "schema": {"ts": "timestamptz not null"},
        "event-time": "ts",
    }
    return ensure_table(load_catalog(None), validate_stream(declared, Path("ticks.yaml")))


@dataclass
class Sent:
    """A client that stores its events, and fails on request."""

    events: list[tuple[LineageState, int, Totals, str | None]] = field(default_factory=list)
    inputs: tuple[Dataset, ...] = ()
    output: Dataset | None = None
    fails: bool = False
    closed: bool = False

    def send(self, state: LineageState, at_ms: int, reported: RunFacts) -> None:
        if self.fails:
            raise OSError("no route to host")
        assert reported.totals is not None
        self.events.append((state, at_ms, reported.totals, reported.error))
        self.inputs, self.output = reported.inputs, reported.output

    def close(self, timeout_s: float) -> None:  # noqa: ARG002
        self.closed = True

    @property
    def states(self) -> list[LineageState]:
        return [state for state, *_ in self.events]


class Bench:
    def __init__(self, table: Table, *, begins: bool = True) -> None:
        self.sent = Sent()
        settings = LineageSettings(on=True, every_ms=EVERY_MS)
        self.lineage = StreamLineage(
            "ticks", settings=settings, bootstrap="b1:9092,b2:9092", topics=["ticks"], connect=lambda: self.sent
        )
        self.lineage.opens(lambda: table)
        if begins:
            self.record(EPOCH)

    def record(self, *what: StreamEvent, at_ms: int = NOW) -> None:
        for happening in what:
            self.lineage.take(Event("ticks", at_ms, happening))

    def passes(self, until_ms: int) -> None:
        """A scribe looks every ten seconds up to then."""
        for at in range(NOW, until_ms + 1, 10_000):
            if self.lineage.is_due(at):
                self.lineage.write(at)


def test_a_lineage_run_sends_one_start_periodic_totals_and_a_completion(table: Table) -> None:
    bench = Bench(table)
    for n in range(100):
        bench.record(BATCH, at_ms=NOW + n)
    bench.passes(NOW + EVERY_MS)
    bench.record(BATCH)
    bench.lineage.ended(None, at_ms=NOW + EVERY_MS + 5)
    bench.lineage.write(NOW + EVERY_MS + 5)
    assert bench.sent.events == [
        (LineageState.START, NOW, Totals(0, 0, 0, 42), None),
        (LineageState.RUNNING, NOW + EVERY_MS, Totals(10_000, 409_600, 200, 42), None),
        (LineageState.COMPLETE, NOW + EVERY_MS + 5, Totals(10_100, 413_696, 202, 42), None),
    ]
    assert bench.sent.closed
    assert [(one.namespace, one.name) for one in bench.sent.inputs] == [
        ("kafka://b1:9092", "rides"),
        ("kafka://b1:9092", "ticks"),
    ]


def test_the_merges_of_a_run_are_added_up(table: Table) -> None:
    bench = Bench(table)
    merged = replace(BATCH, changes={"inserted": 3, "updated": 0, "stale": 1})
    bench.record(merged, replace(BATCH, changes={}), replace(merged, changes={"inserted": 4, "updated": 2, "stale": 0}))
    bench.passes(NOW + EVERY_MS)
    assert bench.sent.events[0][2].changes == {}
    assert bench.sent.events[-1][2].changes == {"inserted": 7, "updated": 2, "stale": 1}


def test_a_second_epoch_of_a_process_belongs_to_the_same_lineage_run(table: Table) -> None:
    bench = Bench(table)
    bench.passes(NOW)
    bench.record(EPOCH, BATCH)
    bench.passes(NOW + 60_000)
    assert bench.sent.states == [LineageState.START]


def test_a_quiet_stream_sends_nothing_more(table: Table) -> None:
    bench = Bench(table)
    bench.record(BATCH)
    bench.passes(NOW + 10 * EVERY_MS)
    assert bench.sent.states == [LineageState.START, LineageState.RUNNING]


def test_a_failed_writer_sends_a_lineage_event_with_its_error(table: Table) -> None:
    bench = Bench(table)
    bench.lineage.ended("OffsetGap: records are gone", at_ms=NOW + 5)
    bench.lineage.write(NOW + 5)
    assert bench.sent.states == [LineageState.START, LineageState.FAIL]
    assert bench.sent.events[-1][-1] == "OffsetGap: records are gone"


def test_a_writer_that_never_took_over_sends_no_lineage_run(table: Table) -> None:
    bench = Bench(table, begins=False)
    assert not bench.lineage.is_due(NOW)
    bench.lineage.ended("KafkaUnavailable: no broker", at_ms=NOW)
    bench.lineage.write(NOW)
    assert bench.sent.events == []


def test_an_unreachable_lineage_backend_is_logged_once_and_later_gets_the_newest_totals(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(table)
    bench.sent.fails = True
    bench.record(BATCH)
    bench.passes(NOW + 5 * RETRY_INTERVAL_MS)
    assert [r.levelno for r in caplog.records if "OpenLineage" in r.getMessage()] == [logging.WARNING]
    bench.sent.fails = False
    bench.record(BATCH)
    bench.passes(NOW + 2 * EVERY_MS)
    assert [(state, totals.records) for state, _, totals, _ in bench.sent.events] == [
        (LineageState.START, 0),
        (LineageState.RUNNING, 200),
    ]


def test_an_evolved_table_has_its_new_columns_in_lineage_with_the_next_batch(table: Table) -> None:
    bench = Bench(table)
    bench.passes(NOW)
    assert bench.sent.output is not None
    assert ("gate", "string") not in bench.sent.output.columns
    with table.update_schema() as update:
        update.add_column("gate", StringType())
    bench.record(TableEvolved(BatchKey(4, 1), ("added column gate string",)), BATCH)
    bench.passes(NOW + EVERY_MS)
    assert ("gate", "string") in bench.sent.output.columns


def test_a_lineage_dataset_is_named_by_the_table_location_with_the_catalog_name_as_identifier(table: Table) -> None:
    found = table_dataset(table)
    assert (found.namespace, found.identifier) == ("file", "demo.ticks")
    assert found.name == table.location().removeprefix("file://")
    table.metadata = table.metadata.model_copy(update={"location": "s3://lake/demo/ticks/"})
    found = table_dataset(table)
    assert (found.namespace, found.name) == ("s3://lake", "demo/ticks")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, LineageSettings()),
        ({"OPENLINEAGE_URL": "", "OPENLINEAGE__TRANSPORT__TYPE": ""}, LineageSettings()),
        ({"OPENLINEAGE_URL": "http://b:5000"}, LineageSettings(on=True)),
        ({"OPENLINEAGE_CONFIG": "x.yml", "OPENLINEAGE_DISABLED": "True"}, LineageSettings()),
        (
            {"OPENLINEAGE__TRANSPORT__TYPE": "http", "FRAZIL_LINEAGE_EVERY": "1m", "OPENLINEAGE_NAMESPACE": "team"},
            LineageSettings(on=True, every_ms=60_000, namespace="team"),
        ),
        (
            {"OPENLINEAGE_URL": "http://b:5000", "OPENLINEAGE_PARENT_ID": f"airflow/dag.task/{RUN_ID}"},
            LineageSettings(on=True, parent=("airflow", "dag.task", RUN_ID)),
        ),
    ],
)
def test_lineage_is_off_unless_openlineage_variables_name_a_backend(
    environment: dict[str, str], expected: LineageSettings
) -> None:
    assert LineageSettings.load(environment) == expected


@pytest.mark.parametrize(("name", "value"), [("FRAZIL_LINEAGE_EVERY", "soon"), ("OPENLINEAGE_PARENT_ID", "dag")])
def test_an_invalid_lineage_setting_is_named_and_ignored(name: str, value: str) -> None:
    settings = LineageSettings.load({"OPENLINEAGE_URL": "http://b:5000", name: value})
    (problem,) = settings.problems
    assert settings == LineageSettings(on=True, problems=(problem,))
    assert problem.startswith(f"{name} is {value!r}")


def test_a_lineage_backend_gets_a_streaming_job_with_topics_table_and_parent_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = LineageSettings(on=True, namespace="team", parent=("airflow", "dag.task", RUN_ID))
    output = Dataset("s3://lake", "demo/ticks", "demo.ticks", "http://catalog", (("ts", "timestamptz"),))
    with tracing(monkeypatch) as received:
        client = LineageClient(settings, "ticks")
        inputs = (Dataset("kafka://b:9092", "rides"),)
        client.send(LineageState.START, NOW, RunFacts(inputs, output, Totals()))
        reported = RunFacts(inputs, output, Totals(7, 8, 9, 42, {"inserted": 5, "stale": 2}), error="OffsetGap: gone")
        client.send(LineageState.FAIL, NOW, reported)
        client.close(1)
    started, failed = received
    assert (started["eventType"], failed["eventType"]) == ("START", "FAIL")
    assert started["run"]["runId"] == failed["run"]["runId"] == client.run_id
    assert (failed["job"]["namespace"], failed["job"]["name"]) == ("team", "ticks")
    assert failed["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    assert failed["run"]["facets"]["parent"]["run"]["runId"] == RUN_ID
    assert failed["run"]["facets"]["errorMessage"]["message"] == "OffsetGap: gone"
    assert [(one["namespace"], one["name"]) for one in failed["inputs"]] == [("kafka://b:9092", "rides")]
    (out,) = failed["outputs"]
    assert (out["namespace"], out["name"]) == ("s3://lake", "demo/ticks")
    assert out["facets"]["symlinks"]["identifiers"] == [
        {"namespace": "http://catalog", "name": "demo.ticks", "type": "TABLE"}
    ]
    assert [(f["name"], f["type"]) for f in out["facets"]["schema"]["fields"]] == [("ts", "timestamptz")]
    assert out["facets"]["version"]["datasetVersion"] == "42"
    statistics = out["outputFacets"]["outputStatistics"]
    assert (statistics["rowCount"], statistics["size"], statistics["fileCount"]) == (7, 8, 9)
    assert not {"errorMessage", "frazil_changes", "nominalTime"} & started["run"]["facets"].keys()
    assert failed["run"]["facets"]["frazil_changes"]["counts"] == {"inserted": 5, "stale": 2}
