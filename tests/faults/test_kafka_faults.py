"""What Kafka does to a running writer: brokers that die or fall silent, partitions, transactions, retention, topics."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.cimpl import NewPartitions, NewTopic

from frazil.cli.main import frazil
from frazil.commit.marker import read_marker
from frazil.dev.kafka import EmbeddedKafka
from frazil.dev.process import choose_free_port
from frazil.errors import KafkaUnavailable, OffsetGap, TopicRecreated, brokers_remedy
from frazil.home import run_folder
from frazil.host.heartbeat import Heartbeat, Stall, StallKind
from frazil.ingest.contract import OffsetRange
from frazil.ingest.kafka_columns import ColumnReader
from frazil.stream import stall as stall_module

from .exactness import check_exact, parquet_files, referenced_files
from .outages import for_a_while, silent


@pytest.fixture(scope="module")
def own_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A broker that these tests may kill, next to the session's."""
    with EmbeddedKafka(tmp_path_factory.mktemp("faulty-kafka")) as broker:
        yield broker


@pytest.fixture
def faulty(
    own_kafka: EmbeddedKafka,
    frazil_home: Path,
    declared_stream: Any,
    requested_spark: Any,
    request: pytest.FixtureRequest,
) -> Any:
    """A stream over a topic of four partitions of that broker."""
    assert not frazil_home.exists()
    topic = re.sub(r"[^a-z0-9]", "-", request.node.name)
    own_kafka.create_topic(topic, 4)
    stream = declared_stream(
        frazil_home.parent, name="events", topic=topic, bootstrap=own_kafka.bootstrap, spark=requested_spark
    )
    stream.broker = own_kafka
    return stream


@pytest.fixture
def second_broker(own_kafka: EmbeddedKafka, tmp_path: Path) -> Iterator[EmbeddedKafka]:
    """Another broker of the same cluster, with logs of its own."""
    cluster = re.search(r"cluster\.id=.*", (own_kafka.folder / "data/meta.properties").read_text())
    voters = re.search(r"controller\.quorum\.voters=.*", (own_kafka.folder / "server.properties").read_text())
    assert cluster is not None
    assert voters is not None
    folder, port = tmp_path / "second-broker", choose_free_port()
    (folder / "data").mkdir(parents=True)
    identity = f"version=1\nnode.id=2\n{cluster[0]}\ndirectory.id=c2Vjb25kLWJyb2tlci0wMQ\n"
    (folder / "data/meta.properties").write_text(identity)
    listeners = dict.fromkeys(("listeners", "advertised.listeners"), f"PLAINTEXT://127.0.0.1:{port}")
    quorum = dict([voters[0].split("=")])
    settings = {"process.roles": "broker", "node.id": "2", **quorum, **listeners}
    with EmbeddedKafka(folder, port=port, settings=settings) as broker:
        yield broker


@pytest.mark.rotates(3)
def test_a_partition_without_a_leader_holds_its_windows_and_no_other_partition(  # noqa: PLR0913, PLR0917
    own_kafka: EmbeddedKafka,
    second_broker: EmbeddedKafka,
    declared_stream: Any,
    frazil_home: Path,
    event: Callable[[int], bytes],
    eventually: Any,
    monkeypatch: pytest.MonkeyPatch,
):
    """The partition may have unread records, so it is not idle either."""
    monkeypatch.setattr(stall_module, "MIN_STALL_MS", 4_000)
    topic, admin = NewTopic("leaderless", num_partitions=2, replica_assignment=[[1], [2]]), own_kafka.admin()
    admin.create_topics([topic], operation_timeout=30)["leaderless"].result(30)
    stream = declared_stream(frazil_home.parent, name="events", topic="leaderless", bootstrap=own_kafka.bootstrap)
    stream.declare("commit: {interval: 1s}\nwatermark: {idle-timeout: 2s}\n")
    properties = {"bootstrap.servers": own_kafka.bootstrap}

    def produce(partition: int, *numbers: int) -> None:
        producer = Producer({**properties, "log_level": 0})
        for number in numbers:
            producer.produce(stream.topic, event(number), partition=partition)
        assert producer.flush(60) == 0

    def missing_leader() -> Stall | None:
        heartbeat = Heartbeat.read(run_folder(stream.name))
        stall = heartbeat and heartbeat.stall
        return stall if stall and stall.kind is StallKind.LEADER else None

    def watermark() -> datetime:
        marker = read_marker(stream.table().metadata.properties, stream.name)
        assert marker is not None
        assert marker.watermark_ms is not None
        return datetime.fromtimestamp(marker.watermark_ms / 1000, UTC)

    produce(0, 1)
    produce(1, 2)
    with stream.writing() as writer:
        eventually(lambda: stream.has_rows(2) or not writer.runs)
        second_broker.kill()
        produce(0, 36_001)  # an hour later
        eventually(lambda: stream.has_rows(3) or not writer.runs)
        assert "leaderless-1 has had no leader since" in eventually(missing_leader).reason
    newer = declared_stream(frazil_home.parent, name="newer", topic="leaderless", bootstrap=own_kafka.bootstrap)
    for needs_all_leaders in (stream.catch_up, newer.catch_up, newer.writer().run):
        with pytest.raises(KafkaUnavailable, match=r"no leader for leaderless-1 \(1 in all\). Start the brokers"):
            needs_all_leaders()
    for command in ("reset events --to earliest --yes", "backfill events --dry-run"):
        refused = CliRunner().invoke(frazil, [*command.split(), "--streams", str(stream.streams)])
        assert "no leader for leaderless-1 (1 in all). Start the brokers" in str(refused.exception), command
    with stream.writing() as writer:  # one that starts meanwhile
        produce(0, 36_002)
        eventually(lambda: stream.has_rows(4) or not writer.runs)
        assert watermark() == datetime(2024, 1, 1, tzinfo=UTC)
        audit = CliRunner().invoke(frazil, ["audit", "events", "--source", "--streams", str(stream.streams)])
        assert (audit.exit_code, "leaderless-1: no leader" in audit.output) == (3, True), audit.output
        second_broker.start()
        produce(1, 36_003)
        eventually(lambda: stream.has_rows(5) or not writer.runs)
        eventually(lambda: missing_leader() is None)
    assert watermark() == datetime(2024, 1, 1, 1, tzinfo=UTC)
    assert stream.ids() == [1, 2, 36_001, 36_002, 36_003]


@pytest.mark.rotates(2)
def test_a_broker_kill_and_restart_loses_and_duplicates_nothing(
    own_kafka: EmbeddedKafka, faulty: Any, events: Any, eventually: Any
):
    faulty.produce(events(range(1000)), partitions=4)
    with faulty.writing() as writer:
        eventually(lambda: faulty.has_rows(1000))
        own_kafka.kill()
        own_kafka.start()
        faulty.produce(events(range(1000, 2000)), partitions=4)
        eventually(lambda: faulty.has_rows(2000) or not writer.runs)
    check_exact(faulty, range(2000))


@pytest.mark.rotates(3)
@pytest.mark.usefixtures("spark")
@for_a_while
def test_a_writer_tolerates_silent_brokers(faulty: Any, events: Any, eventually: Any, throughout: Any, for_s: float):
    faulty.produce(events(range(1000)), partitions=4)
    with faulty.writing() as writer:
        eventually(lambda: faulty.has_rows(1000))
        faulty.produce(events(range(1000, 2000)), partitions=4)
        with silent(faulty.broker):
            throughout(lambda: writer.runs, for_s=for_s)
        faulty.produce(events(range(2000, 3000)), partitions=4)
        eventually(lambda: faulty.has_rows(3000) or not writer.runs)
    check_exact(faulty, range(3000))


def test_a_reader_closes_at_once_although_its_brokers_do_not_respond(
    own_kafka: EmbeddedKafka,
):
    own_kafka.create_topic("events", 1)
    producer = Producer({"bootstrap.servers": own_kafka.bootstrap})
    producer.produce("events", b"one", partition=0)
    assert producer.flush(30) == 0
    properties = {"bootstrap.servers": own_kafka.bootstrap, "fetch.wait.max.ms": "60000"}
    of = OffsetRange("events", 0, 0, 9)
    now_s = 0.0

    def pass_time(pending: int, _: float) -> None:
        """Let the time limit begin when the one record is read."""
        nonlocal now_s
        now_s += pending

    reader = ColumnReader(properties, [of], unreachable_limit_s=0, monotonic=lambda: now_s)
    reader.on_read = pass_time
    with reader, pytest.raises(KafkaUnavailable, match="at 1 of 9"):
        list(reader)  # the one record, then nothing: a fetch is under way
    reader = ColumnReader(properties, [of], unreachable_limit_s=0)
    with silent(own_kafka):
        with pytest.raises(KafkaUnavailable, match=r"at [01] of 9"):  # the reader may fetch it before
            list(reader)
        reader.close()


def test_a_writer_that_starts_without_brokers_reports_it_and_may_be_restarted(
    own_kafka: EmbeddedKafka, faulty: Any, events: Any, eventually: Any
):
    faulty.produce(events(range(100)), partitions=4)
    with silent(own_kafka), pytest.raises(KafkaUnavailable, match="did not answer") as error:
        faulty.catch_up()
    assert error.value.remedy == brokers_remedy()

    def restarted() -> bool:
        """A broker that comes back may answer for a moment that it does not know its partitions' leaders yet."""
        with contextlib.suppress(KafkaUnavailable):
            faulty.catch_up()
            return True
        return False

    eventually(restarted)
    check_exact(faulty, range(100))


@pytest.mark.rotates(2)
def test_partitions_added_while_the_writer_runs_are_read_from_their_beginning(
    kafka: EmbeddedKafka, stream: Any, events: Any, eventually: Any
):
    stream.produce(events(range(1000)), partitions=4)
    with stream.writing() as writer:
        eventually(lambda: stream.has_rows(1000))
        admin = kafka.admin()
        admin.create_partitions([NewPartitions(stream.topic, 6)])[stream.topic].result(30)
        stream.produce(events(range(1000, 2000)), partitions=6)
        eventually(lambda: stream.has_rows(2000) or not writer.runs)
    check_exact(stream, range(2000))


def test_only_records_of_committed_transactions_land(stream: Any, events: Any, kafka: EmbeddedKafka):
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": stream.topic})
    producer.init_transactions(30)
    numbers = iter(events(range(1000)))
    for round_ in range(10):
        producer.begin_transaction()
        for number in range(100):
            producer.produce(stream.topic, value=next(numbers), partition=number % 4)
        (producer.abort_transaction if round_ % 3 == 2 else producer.commit_transaction)(30)
    stream.catch_up()
    check_exact(stream, (n for n in range(1000) if n // 100 % 3 != 2))


def test_a_compacted_topic_has_gaps_and_nothing_is_missing(
    stream: Any, event: Callable[[int], bytes], kafka: EmbeddedKafka, topic: Any, eventually: Any
):
    """Compaction removes older values of a key, but never compacts the last segment."""
    stream.topic = topic(
        1, cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.001", max_compaction_lag_ms="100"
    )
    stream.declare()
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0})

    def send(number: int) -> None:
        producer.produce(stream.topic, key=str(number % 10), value=event(number), partition=0)
        assert producer.flush(30) == 0

    for number in range(100):
        send(number)
    sent = [100]

    def compacted() -> bool:
        send(sent[0])  # a new segment lets the cleaner take the one before
        sent[0] += 1
        return len(read_all(kafka, stream.topic)) < sent[0]

    eventually(compacted)
    stream.catch_up()
    ids = stream.ids()
    assert ids == sorted(set(ids))
    assert set(ids) >= {int(re.findall(rb"\d+", value)[0]) for value in read_all(kafka, stream.topic)}
    assert len(ids) < sent[0]
    assert parquet_files(stream) == referenced_files(stream)


def test_records_deleted_by_retention_are_skipped_and_named_if_the_stream_allows_it(
    stream: Any, events: Any, kafka: EmbeddedKafka
):
    stream.produce(events(range(400)), partitions=4)
    stream.catch_up()
    stream.produce(events(range(400, 800)), partitions=4)
    delete_before(kafka, stream.topic, 150)
    with pytest.raises(OffsetGap, match=f"{stream.topic}-0 offsets 100 to 149"):
        stream.catch_up()
    path = stream.streams / "events.yaml"
    path.write_text(path.read_text().replace("source: {", "source: {on-gap: skip, "))
    stream.catch_up()
    check_exact(stream, (n for n in range(800) if n % 4 or not 400 <= n < 600))
    named = [s.summary.get("frazil.lost") for s in stream.table().snapshots() if s.summary]
    assert [text for text in named if text] == [f"{stream.topic}-0 offsets 100 to 149"]


@pytest.mark.rotates(4)
@pytest.mark.parametrize("grown", [False, True])
def test_a_truncated_log_is_a_gap_however_far_it_has_grown(
    own_kafka: EmbeddedKafka, faulty: Any, events: Any, grown: bool
):
    """Truncate the log, as after an unclean leader election or a restored disk: its newest records are gone."""
    faulty.produce(events(range(400)), partitions=4)
    faulty.catch_up()
    with keeping_the_log_of(own_kafka, f"{faulty.topic}-0"):
        faulty.produce(events(range(400, 800)), partitions=4)
        faulty.catch_up()
    check_exact(faulty, range(800))
    if grown:
        faulty.produce(events(range(1000, 1150)))
    named = re.escape(f"{faulty.topic}-0 offsets 100 to 199")
    with pytest.raises(OffsetGap, match=named):
        faulty.catch_up()
    (seen,) = json.loads(command(faulty, "status", "--json").stdout)["streams"]
    assert any("OffsetGap: Kafka lost records" in problem for problem in seen["problems"])
    found = json.loads(command(faulty, "audit", "--source", "--json").stdout)
    assert [(f["kind"], f["count"]) for f in found["findings"]] == [("log truncated", 100 if grown else 1)]
    if grown:
        path = faulty.streams / "events.yaml"
        path.write_text(path.read_text().replace("source: {", "source: {on-gap: skip, "))
    else:
        done = command(faulty, "reset", "--to", "marker", "--yes")
        assert "was truncated at offset 100" in done.stdout
        assert "reads no records again" in done.stdout
        faulty.produce(events(range(1000, 1150)))
    faulty.catch_up()
    check_exact(faulty, [*range(800), *range(1000, 1150)])
    accepted = command(faulty, "audit", "--source")
    assert (accepted.exit_code, "Kafka assigned 100 offsets to a second record" in accepted.stdout) == (3, True)


def test_a_removed_topic_may_be_deleted_and_a_re_added_topic_continues_at_its_position(
    stream: Any, events: Any, kafka: EmbeddedKafka, topic: Any
):
    path, first, others = stream.streams / "events.yaml", stream.topic, [topic(2), topic(2)]
    declared = path.read_text()

    def read(*topics: str) -> None:
        path.write_text(declared.replace(f"topics: [{first}]", f"topics: [{', '.join(topics)}]"))
        stream.catch_up()

    def send(name: str, ids: range) -> None:
        stream.topic = name
        stream.produce(events(ids), partitions=2)

    for number, name in enumerate((first, *others)):
        send(name, range(number * 100, number * 100 + 100))
    read(first, *others)
    check_exact(stream, range(300))
    admin = kafka.admin()
    admin.delete_topics([others[0]], operation_timeout=30)[others[0]].result(30)
    send(others[1], range(300, 400))
    send(first, range(400, 500))
    read(first)
    check_exact(stream, [*range(300), *range(400, 500)])
    marker = read_marker(stream.table().properties, stream.name)
    assert marker is not None
    assert {name for name, _ in marker.idle} == set(others)
    assert marker.offsets[others[1], 0] == 50
    read(first, others[1])
    check_exact(stream, range(500))


@pytest.mark.usefixtures("spark")
def test_a_recreated_topic_filled_past_the_marker_is_refused_while_the_writer_runs(
    stream: Any, events: Any, kafka: EmbeddedKafka, eventually: Any
):
    stream.produce(events(range(100)), partitions=4)
    with stream.writing() as writer:
        eventually(lambda: stream.has_rows(100))
        admin = kafka.admin()
        admin.delete_topics([stream.topic], operation_timeout=30)[stream.topic].result(30)
        eventually(lambda: made_again(kafka, stream.topic))
        stream.produce(events(range(1000, 2000)), partitions=4)
        assert isinstance(writer.outcome(), TopicRecreated)
    check_exact(stream, range(100))


def test_an_event_time_from_a_wrong_clock_lands_and_does_not_advance_the_watermark(stream: Any, events: Any):
    stream.produce(events(range(4)), partitions=4)
    stream.produce([b'{"id": 4, "at": "2999-01-01T00:00:00Z"}'])
    stream.catch_up()
    check_exact(stream, range(5))
    marker = read_marker(stream.table().properties, stream.name)
    assert marker is not None
    assert max(marker.max_event_times_us.values()) < 2_000_000_000_000_000
    counted = [s.summary.get("frazil.future") for s in stream.table().snapshots() if s.summary]
    assert "1" in counted


def command(stream: Any, name: str, *options: str) -> Result:
    """A command of `frazil` about the stream."""
    return CliRunner().invoke(frazil, [name, stream.name, *options, "--streams", str(stream.streams)])


@contextlib.contextmanager
def keeping_the_log_of(broker: EmbeddedKafka, name: str) -> Iterator[None]:
    """Lose what is appended to a topic-partition meanwhile, like a disk that is restored from a copy."""
    log, copy = broker.folder / "data" / name, broker.folder / f"copy-of-{name}"
    broker.stop()
    shutil.copytree(log, copy)
    broker.start()
    yield
    broker.stop()
    shutil.rmtree(log)
    shutil.copytree(copy, log)
    broker.start()


def delete_before(kafka: EmbeddedKafka, topic: str, offset: int) -> None:
    admin = kafka.admin()  # held, for its answers die with it
    for answer in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        answer.result(30)


def made_again(kafka: EmbeddedKafka, topic: str) -> bool:
    """A deleted topic's name is free only after a moment."""
    try:
        kafka.create_topic(topic, 4)
    except Exception:
        return False
    return True


def read_all(kafka: EmbeddedKafka, topic: str) -> list[bytes]:
    """Every value that partition 0 has now."""
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": topic, "enable.partition.eof": True, "fetch.wait.max.ms": 10}
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        values = []
        while True:
            message = consumer.poll(30)
            assert message is not None
            if message.error():
                return values
            values.append(message.value())
    finally:
        consumer.close()
