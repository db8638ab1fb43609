"""The writer as a user runs it: a process over a real broker, a real catalog and real Spark."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

from frazil.audit.declared_stream import audit_declared_stream
from frazil.commit.marker import Marker, read_marker
from frazil.commit.stream_tables import StreamTables
from frazil.errors import Fenced, SchemaIncompatible, TopicMissing
from frazil.history.objects import read_history
from frazil.home import run_folder
from frazil.host.heartbeat import Heartbeat, Phase
from frazil.table.catalogs import load_catalog
from frazil.table.tables import ensure_table, load_stream_table
from tests.lineage_backend import tracing
from tests.otlp_collector import collecting

Events = Callable[[Iterable[int]], Iterator[bytes]]


RECORDS = 5000
BAD = (b"not json", None, b'{"id": 1}', b'{"id": "x", "at": "2024-01-01T00:00:00Z"}')


@pytest.fixture(scope="module")
def landed(
    tmp_path_factory: pytest.TempPathFactory, kafka: Any, declared_stream: Any, event: Any, spark: Any
) -> Iterator[Any]:
    """A stream of four partitions with a bad record at the end of each, as one run of the writer left it."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("landed")
        patch.setenv("FRAZIL_HOME", str(folder / "home"))
        kafka.create_topic("landed", 4)
        stream = declared_stream(folder, name="events", topic="landed", bootstrap=kafka.bootstrap, spark=spark)
        stream.produce([*map(event, range(RECORDS)), *BAD], partitions=4)
        stream.catch_up()
        yield stream


def test_every_record_lands_once_with_its_coordinates(landed: Any):
    rows = landed.table().scan().to_arrow().to_pylist()
    assert sorted(r["id"] for r in rows) == list(range(RECORDS))
    assert {r["kafka_topic"] for r in rows} == {"landed"}
    assert all((r["kafka_partition"], r["kafka_offset"]) == (r["id"] % 4, r["id"] // 4) for r in rows)


def test_the_marker_has_the_streams_position(landed: Any):
    marker = read_marker(landed.table().metadata.properties, "events")
    assert marker is not None
    assert set(marker.offsets.values()) == {RECORDS // 4 + 1}
    assert marker.watermark_us is not None


def test_the_history_of_a_writer_has_its_batch_and_epoch(landed: Any):
    history = read_history(landed.spec, since_ms=0)
    assert history.problem is None
    assert sum(point.records for point in history.points) == RECORDS
    assert sum(point.rejected for point in history.points) == len(BAD)
    assert sum(point.bytes for point in history.points) > 0
    assert "a writer took over (epoch 1): no unfinished batch" in [what.sentence for what in history.events]


def test_one_task_reads_many_partitions_into_one_file(landed: Any):
    assert len(landed.table().inspect.files()) == 1


def test_an_undecodable_record_is_a_dead_letter_and_delays_nothing(landed: Any):
    dead_letters = landed.table("_dead_letters").scan().to_arrow().to_pylist()
    assert {(x["kafka_partition"], x["kafka_offset"]) for x in dead_letters} == {(p, RECORDS // 4) for p in range(4)}
    assert {x["value"] for x in dead_letters} == set(BAD)
    assert all(x["error_class"] and x["error"] for x in dead_letters)


def test_duckdb_reads_the_same_rows_as_frazil(landed: Any):
    """DuckDB on the files that the table lists; Spark's reader has its own test in tests/spark."""
    rows = landed.table().scan().to_duckdb("rows").sql("select count(*), count(distinct id), sum(id) from rows")
    assert rows.fetchall() == [(RECORDS, RECORDS, RECORDS * (RECORDS - 1) // 2)]


@pytest.mark.usefixtures("landed")
def test_spark_names_a_batchs_job_after_stream_epoch_and_batch(spark: Any):
    jobs = spark.sparkContext._jsc.sc().statusStore()
    ids = spark.sparkContext.statusTracker().getJobIdsForGroup("stream events")
    assert "stream events: epoch 1, batch 1" in {jobs.job(number).description().get() for number in ids}


def test_a_second_run_continues_where_the_first_ended(stream: Any, events: Events):
    stream.produce(events(range(1000)), partitions=4)
    stream.catch_up()
    stream.produce(events(range(1000, 2500)), partitions=4)
    stream.catch_up()
    stream.catch_up()
    assert stream.ids() == list(range(2500))
    epochs = [s.summary["frazil.epoch"] for s in stream.table().metadata.snapshots if s.summary]
    assert epochs == sorted(epochs)
    assert epochs[-1] == "3"


@pytest.mark.usefixtures("spark")
def test_a_writer_without_unread_records_waits_in_one_epoch_and_reads_later_records(
    stream: Any, events: Events, eventually: Any
):
    """The topic is empty, or the stream is caught up."""
    stream.declare("commit: {interval: 1s}\nwatermark: {idle-timeout: 2s}\n")
    for epoch in (1, 2):
        known = range(1000 * (epoch - 1))
        with stream.writing():
            eventually(lambda at=epoch: _waits(stream, epoch=at))
            eventually(lambda: len(_marker(stream).idle) == 4 and _heartbeat(stream).phase is Phase.WAITING)
            heartbeat = _heartbeat(stream)
            assert (heartbeat.stall, heartbeat.lag, (heartbeat.epoch, heartbeat.batch)) == (
                None,
                0,
                _marker(stream).key,
            )
            assert stream.ids() == list(known)
            stream.produce(events(range(len(known), 1000 * epoch)), partitions=4)
            eventually(lambda at=epoch: stream.has_rows(1000 * at))
        marker = _marker(stream)
        assert marker.key.epoch == epoch
        assert sorted(marker.batches) == list(range(1, epoch + 1))
    assert stream.ids() == list(range(2000))


def test_a_writer_that_folds_its_files_leaves_few_of_them_and_an_audit_finds_each_record_once(
    stream: Any, events: Events, eventually: Any
):
    stream.declare("commit: {interval: 1s}\nmaintenance: {compaction: {fold-files: 2}}\n")
    with stream.writing():
        for batch in range(6):
            stream.produce(events(range(100 * batch, 100 * (batch + 1))), partitions=4)
            eventually(lambda rows=100 * (batch + 1): stream.has_rows(rows))
    assert stream.ids() == list(range(600))
    folds = [s for s in stream.table().metadata.snapshots if s.summary and s.summary.get("frazil.operation") == "fold"]
    assert len(folds) >= 3
    assert len(stream.table().inspect.files()) < 6
    assert audit_declared_stream(stream.spec, window=None, with_source=True).findings == ()


def test_an_idle_writer_ends_soon_after_a_reset(
    stream: Any, events: Events, eventually: Any, frazil: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("frazil.stream.fence_watch.POLL_INTERVAL_S", 0.5)
    requested, answered, marker = Event(), Event(), StreamTables.load_marker_with

    def hanging(tables: StreamTables, catalog: Catalog) -> Marker | None:
        requested.set()
        answered.wait(180)
        return marker(tables, catalog)

    monkeypatch.setattr(StreamTables, "load_marker_with", hanging)
    stream.produce(events(range(10)))
    with stream.writing() as writing:
        eventually(lambda: stream.has_rows(10) and _heartbeat(stream).phase is Phase.WAITING)
        assert requested.wait(60)
        stream.produce(events(range(10, 20)))
        eventually(lambda: stream.has_rows(20) and _heartbeat(stream).phase is Phase.WAITING)  # while the catalog hangs
        answered.set()
        assert frazil("reset", "events", "--to", "marker", "--yes").returncode == 0
        assert isinstance(writing.outcome(), Fenced)
    assert _heartbeat(stream).phase is Phase.ENDED
    stream.catch_up()
    assert stream.ids() == list(range(20))


def test_catching_up_without_records_succeeds(stream: Any):
    stream.catch_up()
    stream.catch_up()
    assert (_marker(stream).key, stream.ids()) == ((2, 0), [])


def test_a_writer_with_metrics_and_lineage_configured_sends_both(
    stream: Any, events: Events, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FRAZIL_METRICS", "otlp")
    stream.produce(events(range(1000)), partitions=4)
    with collecting(monkeypatch) as received, tracing(monkeypatch) as traced:
        done = stream.run("--until-caught-up")
    assert done.returncode == 0, done.stderr
    scopes = received[-1].resource_metrics[0].scope_metrics
    (records,) = (metric for scope in scopes for metric in scope.metrics if metric.name == "frazil.records")
    (point,) = records.sum.data_points
    assert {a.key: a.value.string_value for a in point.attributes}["stream"] == stream.name
    assert point.as_double + point.as_int == 1000
    assert [event["eventType"] for event in traced] == ["START", "COMPLETE"]
    (output,) = traced[-1]["outputs"]
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 1000
    assert [topic["name"] for topic in traced[-1]["inputs"]] == [stream.topic]


def test_rows_are_counted_by_window_in_the_snapshots_summary(stream: Any, event: Any):
    second_day = [b'{"id": %d, "at": "2024-01-02T08:00:00Z"}' % n for n in range(4)]
    stream.produce(second_day, partitions=4)
    stream.catch_up()
    stream.produce([event(7), event(8), *second_day], partitions=4)
    stream.catch_up()
    first_day_us = int(datetime(2024, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
    summary = stream.table().current_snapshot().summary
    assert json.loads(summary["frazil.windows"]) == {str(first_day_us): 2, str(first_day_us + 86_400_000_000): 4}


def test_on_sigterm_the_writer_commits_the_current_batch_and_exits_with_0(stream: Any, events: Events, eventually: Any):
    stream.declare("commit: {interval: 1s}\n")
    stream.produce(events(range(3000)), partitions=4)
    writer = subprocess.Popen(stream.command(), stderr=subprocess.PIPE, text=True)
    try:
        eventually(lambda: writer.poll() is not None or (_heartbeat(stream) and _heartbeat(stream).last_commit_at_ms))
        writer.send_signal(signal.SIGTERM)
        _, log = writer.communicate(timeout=60)
    finally:
        writer.kill()
    assert writer.returncode == 0, log[-3000:]
    assert stream.ids() == list(range(3000))
    heartbeat = _heartbeat(stream)
    assert heartbeat.phase is Phase.ENDED
    assert heartbeat.error is None


def test_a_writer_without_a_reachable_broker_reports_it_and_may_be_restarted(stream: Any):
    stream.bootstrap = "127.0.0.1:1"
    stream.declare()
    done = stream.run()
    assert done.returncode == 22
    assert "Start the brokers, make them reachable from this host, or correct source.bootstrap-servers" in done.stderr
    assert "Traceback" not in done.stderr


def test_rows_that_no_stream_wrote_ask_for_adoption(stream: Any):
    table = ensure_table(load_catalog(None), stream.spec)
    row = {
        "id": 1,
        "at": datetime(2024, 1, 1, tzinfo=UTC),
        "kafka_topic": "by hand",
        "kafka_partition": 0,
        "kafka_offset": 0,
    }
    table.append(pa.Table.from_pylist([row], schema=table.schema().as_arrow()))
    done = stream.run("--until-caught-up")
    assert done.returncode == 17, done.stderr[-3000:]
    assert "frazil adopt events" in done.stderr


def test_a_schema_that_does_not_fit_the_table_is_refused(stream: Any):
    ensure_table(load_catalog(None), stream.spec)
    path = stream.streams / "events.yaml"
    path.write_text(path.read_text().replace("id: long not null", "id: string not null"))
    with pytest.raises(SchemaIncompatible, match="id"):
        stream.catch_up()


def test_a_column_renamed_by_another_program_loses_no_value(stream: Any, events: Events, eventually: Any):
    """The running writer ends, and no start succeeds until the column has its name again."""

    def rename(old: str, new: str) -> None:
        with stream.table().update_schema() as update:
            update.rename_column(old, new)

    stream.produce(events(range(100)), partitions=4)
    with stream.writing() as writing:
        eventually(lambda: stream.has_rows(100))
        rename("note", "remark")
        stream.produce(events(range(100, 200)), partitions=4)
        ended = writing.outcome()
    assert isinstance(ended, SchemaIncompatible)
    with pytest.raises(SchemaIncompatible, match="column note was renamed to remark in the table"):
        stream.catch_up()
    rename("remark", "note")
    stream.catch_up()
    assert stream.table().scan().to_arrow()["note"].to_pylist() == ["x"] * 200


def _heartbeat(stream: Any) -> Any:
    return Heartbeat.read(run_folder(stream.name))


def _marker(stream: Any) -> Any:
    return read_marker(stream.table().metadata.properties, stream.name)


def _waits(stream: Any, *, epoch: int) -> bool:
    """Whether the writer has taken over in that epoch, and its planner has found nothing to read."""
    heartbeat = _heartbeat(stream)
    return bool(heartbeat) and (heartbeat.phase, heartbeat.epoch, heartbeat.lag) == (Phase.WAITING, epoch, 0)


def test_a_topic_that_does_not_exist_leaves_no_table_behind(stream: Any):
    stream.topic = "no-such-topic"
    stream.declare()
    with pytest.raises(TopicMissing, match="has no topic no-such-topic"):
        stream.catch_up()
    assert load_stream_table(stream.spec) is None
