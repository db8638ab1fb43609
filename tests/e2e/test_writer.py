"""The writer as a user runs it: a process over a real broker, a real catalog and real Spark."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from frazil.commit.marker import read_marker
from frazil.home import run_folder
from frazil.supervise.heartbeat import Heartbeat, Phase

Events = Callable[[Iterable[int]], Iterator[bytes]]


def test_every_record_lands_once_with_its_coordinates(stream: Any, events: Events):
    stream.produce(events(range(5000)), partitions=4)
    stream.catch_up()
    rows = stream.table().scan().to_arrow().to_pylist()
    assert sorted(r["id"] for r in rows) == list(range(5000))
    assert {r["kafka_topic"] for r in rows} == {stream.topic}
    assert {(r["kafka_partition"], r["kafka_offset"]) for r in rows} == {(n % 4, n // 4) for n in range(5000)}
    assert all(r["id"] % 4 == r["kafka_partition"] and r["id"] // 4 == r["kafka_offset"] for r in rows)
    marker = read_marker(stream.table().metadata.properties, stream.name)
    assert marker is not None
    assert set(marker.offsets.values()) == {1250}
    assert marker.watermark_us is not None


def test_a_second_run_goes_on_where_the_first_ended(stream: Any, events: Events):
    stream.produce(events(range(1000)), partitions=4)
    stream.catch_up()
    stream.produce(events(range(1000, 2500)), partitions=4)
    stream.catch_up()
    stream.catch_up()
    assert stream.ids() == list(range(2500))
    epochs = [s.summary["frazil.epoch"] for s in stream.table().metadata.snapshots if s.summary]
    assert epochs == sorted(epochs)
    assert epochs[-1] == "3"


def test_one_task_reads_many_partitions_into_one_file(stream: Any, events: Events):
    stream.produce(events(range(2000)), partitions=4)
    stream.catch_up()
    assert len(stream.table().inspect.files()) == 1


def test_what_cannot_be_decoded_is_a_dead_letter_and_holds_nothing_up(stream: Any, events: Events):
    bad = [b"not json", None, b'{"id": 1}', b'{"id": "x", "at": "2024-01-01T00:00:00Z"}', b"null"]
    stream.produce([*events(range(100)), *bad, *events(range(100, 200))])
    stream.catch_up()
    assert stream.ids() == list(range(200))
    letters = stream.table("_dead_letters").scan().to_arrow().to_pylist()
    assert [x["kafka_offset"] for x in sorted(letters, key=lambda x: x["kafka_offset"])] == [100, 101, 102, 103, 104]
    assert {x["value"] for x in letters} == set(bad)
    assert all(x["error_class"] and x["error"] for x in letters)


def test_sigterm_lets_the_batch_at_hand_commit_and_ends_with_zero(stream: Any, events: Events, eventually: Any):
    stream.declare("commit: {interval: 1s}\n")
    stream.produce(events(range(3000)), partitions=4)
    writer = subprocess.Popen(stream.command(), stderr=subprocess.PIPE, text=True)
    try:
        eventually(lambda: writer.poll() is not None or (_beat(stream) and _beat(stream).last_commit_at_ms))
        writer.send_signal(signal.SIGTERM)
        _, log = writer.communicate(timeout=60)
    finally:
        writer.kill()
    assert writer.returncode == 0, log[-3000:]
    assert stream.ids() == list(range(3000))
    beat = _beat(stream)
    assert beat.phase is Phase.ENDED
    assert beat.error is None


def test_a_writer_whose_broker_is_away_says_so_and_may_be_restarted(stream: Any):
    stream.bootstrap = "127.0.0.1:1"
    stream.declare()
    done = stream.run()
    assert done.returncode == 22
    assert "Check source.bootstrap-servers and the brokers" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_topic_made_again_is_refused_and_nothing_is_written(stream: Any, events: Events, kafka: Any, eventually: Any):
    stream.produce(events(range(100)), partitions=4)
    stream.catch_up()
    admin = kafka.admin()
    admin.delete_topics([stream.topic])[stream.topic].result(30)
    eventually(lambda: _made_again(kafka, stream.topic))
    stream.produce(events(range(1000, 1200)), partitions=4)
    done = stream.run("--until-caught-up")
    assert done.returncode == 14, done.stderr[-3000:]
    assert "frazil reset events --to earliest" in done.stderr
    assert stream.ids() == list(range(100))


def test_an_unread_range_that_retention_deleted_is_named(stream: Any, events: Events, kafka: Any):
    stream.produce(events(range(100)))
    stream.catch_up()
    stream.produce(events(range(100, 200)))
    admin = kafka.admin()
    admin.delete_records([TopicPartition(stream.topic, 0, 150)])[TopicPartition(stream.topic, 0)].result(30)
    done = stream.run("--until-caught-up")
    assert done.returncode == 11, done.stderr[-3000:]
    assert f"{stream.topic}-0 offsets 100 to 149" in done.stderr


def test_rows_that_no_stream_wrote_ask_for_adoption(stream: Any, events: Events):
    stream.produce(events(range(10)))
    stream.catch_up()
    table = stream.table()
    with table.transaction() as change:
        change.remove_properties(f"frazil.stream.{stream.name}")
    done = stream.run("--until-caught-up")
    assert done.returncode == 17, done.stderr[-3000:]
    assert "frazil adopt events" in done.stderr


@pytest.mark.parametrize("change", ["schema: {id: string not null, at: timestamptz not null}"])
def test_a_schema_that_does_not_fit_the_table_is_refused(stream: Any, events: Events, change: str):
    stream.produce(events(range(10)))
    stream.catch_up()
    path = stream.streams / "events.yaml"
    lines = [change if line.startswith("schema:") else line for line in path.read_text().splitlines()]
    path.write_text("\n".join(lines))
    done = stream.run("--until-caught-up")
    assert done.returncode == 15, done.stderr[-3000:]
    assert "id" in done.stderr


def _beat(stream: Any) -> Any:
    return Heartbeat.read(run_folder(stream.name))


def _made_again(kafka: Any, topic: str) -> bool:
    """A deleted topic's name is free only after a moment."""
    try:
        kafka.create_topic(topic, 4)
    except Exception:
        return False
    return True
