"""Stages from a real broker: each committed record of a range lands once, despite gaps between offsets."""

from __future__ import annotations

import dataclasses
import json
import socket
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyiceberg import types as t
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import DayTransform
from pyroaring import BitMap64

from frazil.dev.kafka import EmbeddedKafka
from frazil.errors import KafkaUnavailable, OffsetGap, SpecError
from frazil.ingest.binary_arrays import header_column
from frazil.ingest.contract import OffsetRange, StageContext, StageResult, StageTask, TargetTable
from frazil.ingest.kafka_columns import ColumnReader
from frazil.ingest.stage import stage
from frazil.spec.iceberg import DEAD_LETTER_PARTITION_SPEC, DEAD_LETTER_SCHEMA
from tests.polling import eventually

TopicFactory = Callable[..., str]

SCHEMA = Schema(
    t.NestedField(1, "id", t.LongType(), required=True),
    t.NestedField(2, "at", t.TimestamptzType(), required=True),
    t.NestedField(3, "kafka_topic", t.StringType(), required=True),
    t.NestedField(4, "kafka_partition", t.IntegerType(), required=True),
    t.NestedField(5, "kafka_offset", t.LongType(), required=True),
    t.NestedField(6, "kafka_timestamp", t.TimestamptzType()),
)
BY_DAY = PartitionSpec(PartitionField(2, 1000, DayTransform(), "day"))
REJECTED_AT_US = 1_790_000_000_000_000


def target(folder: Path, schema: Schema, spec: PartitionSpec) -> TargetTable:
    return TargetTable(
        schema_json=schema.model_dump_json(),
        spec_json=spec.model_dump_json(),
        sort_order_json=UNSORTED_SORT_ORDER.model_dump_json(),
        properties={},
        folder=str(folder),
        target_file_bytes=128 * 2**20,
    )


@pytest.fixture
def context(kafka: EmbeddedKafka, tmp_path: Path) -> StageContext:
    return StageContext(
        stream="test",
        epoch=1,
        batch=1,
        kafka={"bootstrap.servers": kafka.bootstrap},
        format="json",
        event_time_column="at",
        coordinates=True,
        targets={
            "main": target(tmp_path / "main", SCHEMA, BY_DAY),
            "dead-letters": target(tmp_path / "dead", DEAD_LETTER_SCHEMA, DEAD_LETTER_PARTITION_SPEC),
        },
        topic_ids={},
    )


def event(number: int) -> bytes:
    return json.dumps({"id": number, "at": f"2026-01-0{1 + number % 2}T00:00:00.{number:06}Z"}).encode()


def produce(
    kafka: EmbeddedKafka, topic: str, values: Iterable[bytes | None], *, partition: int = 0, **settings: Any
) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 5, **settings})
    for value in values:
        producer.produce(topic, value, key=b"k", partition=partition)
        producer.poll(0)
    assert producer.flush(30) == 0


def in_transactions(kafka: EmbeddedKafka, topic: str, *parts: tuple[Iterable[bytes], bool]) -> None:
    """Each part in a transaction of its own, committed or aborted."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for values, committed in parts:
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, partition=0)
        producer.flush(30)
        if committed:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)


def run(context: StageContext, *ranges: OffsetRange, attempt: int = 0) -> StageResult:
    task = StageTask(0, ranges)
    return stage(context, task, attempt=attempt, now_us=lambda: REJECTED_AT_US)


def landed(result: StageResult, kind: str = "main") -> list[dict[str, Any]]:
    rows = [row for f in result.files if f.target == kind for row in pq.read_table(f.path).to_pylist()]
    return sorted(rows, key=lambda row: (row["kafka_topic"], row["kafka_partition"], row["kafka_offset"]))


def ids(result: StageResult) -> list[int]:
    return [row["id"] for row in landed(result)]


def test_many_ranges_of_one_partition_become_one_file(
    kafka: EmbeddedKafka, topic: TopicFactory, context: StageContext
) -> None:
    name = topic(2)
    for partition in range(2):
        produce(kafka, name, map(event, range(0, 60, 2)), partition=partition)  # of one day
    holes = [OffsetRange(name, p, start, start + 4) for p in range(2) for start in range(0, 30, 5)]
    result = run(context, *holes)
    assert [(r.partition, r.start, r.records) for r in result.progress] == [(h.partition, h.start, 4) for h in holes]
    assert [row["kafka_offset"] for row in landed(result)] == [o for o in range(30) if o % 5 != 4] * 2
    assert len(result.files) == 1


def test_ranges_of_several_topics_land_with_their_coordinates(
    kafka: EmbeddedKafka, topic: TopicFactory, context: StageContext
) -> None:
    first, second = topic(2), topic(1)
    before = datetime.now(UTC)
    produce(kafka, first, map(event, range(10)), partition=0)
    produce(kafka, first, map(event, range(10, 20)), partition=1)
    produce(kafka, second, map(event, range(20, 30)))
    result = run(
        context,
        OffsetRange(first, 0, 2, 5),
        OffsetRange(first, 1, 0, 10),
        OffsetRange(second, 0, 9, 10),
        OffsetRange(second, 1, 0, 0),
    )
    rows = landed(result)
    assert sorted(row["id"] for row in rows) == [2, 3, 4, *range(10, 20), 29]
    for row in rows:
        base = {(first, 0): 0, (first, 1): 10, (second, 0): 20}[row["kafka_topic"], row["kafka_partition"]]
        assert row["id"] == base + row["kafka_offset"]
        assert abs((row["kafka_timestamp"] - before).total_seconds()) < 60
    assert [(p.records, p.rejected) for p in result.progress] == [(3, 0), (10, 0), (1, 0), (0, 0)]
    assert [p.max_event_time_us for p in result.progress] == [
        int(datetime(2026, 1, 2, microsecond=3, tzinfo=UTC).timestamp() * 1e6),
        int(datetime(2026, 1, 2, microsecond=19, tzinfo=UTC).timestamp() * 1e6),
        int(datetime(2026, 1, 2, microsecond=29, tzinfo=UTC).timestamp() * 1e6),
        None,
    ]
    assert len(result.files) == 2  # one a day, however many Kafka partitions
    assert StageResult.from_json(json.loads(json.dumps(result.to_json()))) == result


def test_aborted_transactions_and_their_markers_are_gaps(
    kafka: EmbeddedKafka, topic: TopicFactory, context: StageContext
) -> None:
    name = topic()
    in_transactions(
        kafka,
        name,
        (map(event, range(5)), True),
        (map(event, range(5, 10)), False),
        (map(event, range(10, 12)), True),
        (map(event, range(12, 15)), False),
    )
    assert ids(run(context, OffsetRange(name, 0, 0, 19))) == [0, 1, 2, 3, 4, 10, 11]


def test_a_range_that_ends_in_an_offset_gap_completes(
    kafka: EmbeddedKafka, topic: TopicFactory, context: StageContext
) -> None:
    """Offsets 3 to 7 were aborted: only a later record or the partition's end shows that 5 was passed."""
    name = topic()
    in_transactions(kafka, name, (map(event, range(2)), True), (map(event, range(2, 6)), False))
    result = run(context, OffsetRange(name, 0, 0, 5))
    assert ids(result) == [0, 1]
    assert result.progress[0].end == 5
    produce(kafka, name, [event(6)])
    assert ids(run(context, OffsetRange(name, 0, 3, 8))) == []


def test_the_remaining_records_of_a_compacted_topic_land(
    kafka: EmbeddedKafka, topic: TopicFactory, context: StageContext
) -> None:
    name = topic(
        1, cleanup_policy="compact", segment_ms="50", min_cleanable_dirty_ratio="0.01", delete_retention_ms="0"
    )
    produce(kafka, name, map(event, range(50)))
    numbers = count(50)

    def is_compacted() -> bool:
        number = next(numbers)
        produce(kafka, name, [event(number)])
        seen = ids(run(context, OffsetRange(name, 0, 0, number + 1)))
        assert seen == sorted(seen)
        assert seen[-1] == number
        return len(seen) <= number

    eventually(is_compacted, within_s=60, every_s=0.5)


def test_records_that_kafka_deleted_are_an_offset_gap_with_its_numbers(
    kafka: EmbeddedKafka, topic: TopicFactory, context: StageContext
) -> None:
    name = topic(2)
    produce(kafka, name, map(event, range(10)), partition=1)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for future in admin.delete_records([TopicPartition(name, 1, 4)]).values():
        future.result(30)
    with pytest.raises(OffsetGap, match=rf"{name}\[1\]: offset 2 .* 2 to 9.* 4 to 9"):
        run(context, OffsetRange(name, 1, 2, 10))
    assert not list(Path(context.main.folder).rglob("*.parquet"))


def test_bad_records_are_dead_letters_and_good_ones_do_not_wait(
    kafka: EmbeddedKafka, topic: TopicFactory, context: StageContext
) -> None:
    name = topic()
    produce(kafka, name, [event(0), b"{", None, event(3), b'{"id":4}', b"\xff"])
    result = run(context, OffsetRange(name, 0, 0, 6))
    assert ids(result) == [0, 3]
    dead_letters = landed(result, "dead-letters")
    assert [(row["kafka_offset"], row["key"], row["value"], row["error_class"]) for row in dead_letters] == [
        (1, b"k", b"{", "InvalidJson"),
        (2, b"k", None, "Tombstone"),
        (4, b"k", b'{"id":4}', "MissingRequired"),
        (5, b"k", b"\xff", "NotAnObject"),
    ]
    assert dead_letters[2]["error"] == "at: required, and missing or null"
    assert {row["rejected_at"] for row in dead_letters} == {datetime.fromtimestamp(REJECTED_AT_US / 1e6, UTC)}
    assert [(p.records, p.rejected) for p in result.progress] == [(2, 4)]


def test_keys_and_headers_are_columns_and_stay_with_dead_letters(
    kafka: EmbeddedKafka, topic: TopicFactory, context: StageContext, tmp_path: Path
) -> None:
    name = topic()
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    sent: list[tuple[bytes | None, bytes, list[tuple[str, str | bytes | None]]]] = [
        (b"k0", event(0), [("trace", b"one"), ("trace", b"two"), ("raw", b"\xff")]),
        (None, event(1), []),
        (b"\xff", event(2), [("trace", b"three")]),
        (b"k3", b"{", [("trace", b"\xff"), ("none", None)]),
        (b"k4", event(4), [("trace", None), ("raw", b"x" * 2**17)]),
        (b"k5", b"{", []),
    ]
    for key, value, headers in sent:
        producer.produce(name, value, key=key, headers=headers, partition=0)
    assert producer.flush(30) == 0
    kinds = {"user": t.StringType(), "trace": t.StringType(), "raw": t.BinaryType()}
    beside = [t.NestedField(7 + i, column, kind) for i, (column, kind) in enumerate(kinds.items())]
    wider = dataclasses.replace(
        context,
        targets={**context.targets, "main": target(tmp_path / "main", Schema(*SCHEMA.fields, *beside), BY_DAY)},
        key_header_columns={"user": None, "trace": "trace", "raw": "raw"},
    )
    result = run(wider, OffsetRange(name, 0, 0, 6))
    assert [(r["id"], r["user"], r["trace"], r["raw"]) for r in landed(result)] == [
        (0, "k0", "two", b"\xff"),
        (1, None, None, None),
        (4, "k4", None, b"x" * 2**17),
    ]
    dead_letters = landed(result, "dead-letters")
    assert [(r["kafka_offset"], r["error_class"]) for r in dead_letters] == [
        (2, "InvalidUtf8"),
        (3, "InvalidJson"),
        (5, "InvalidJson"),
    ]
    assert dead_letters[0]["error"].startswith("user: the key is not UTF-8 (byte 0)")
    assert dead_letters[0]["headers"] == [{"name": "trace", "value": b"three"}]
    assert dead_letters[2]["headers"] is None
    assert dead_letters[1]["headers"] == [{"name": "trace", "value": b"\xff"}, {"name": "none", "value": None}]


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_every_header_is_found_among_records_without_any(
    kafka: EmbeddedKafka, topic: TopicFactory, compression: str
) -> None:
    name = topic()
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "compression.type": compression, "linger.ms": 50})
    for i in range(1000):
        producer.produce(name, b"v" * (i % 7), headers=[("n", b"%d" % i)] if i % 3 == 0 else None, partition=0)
    assert producer.flush(30) == 0
    with ColumnReader({"bootstrap.servers": kafka.bootstrap}, [OffsetRange(name, 0, 0, 1000)]) as chunks:
        found = [value for chunk in chunks for value in header_column(chunk.headers, "n", len(chunk))]
    assert found == [b"%d" % i if i % 3 == 0 else None for i in range(1000)]


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_kafka_timestamp_is_log_append_time_if_the_topic_uses_it_and_null_if_a_record_has_none(
    kafka: EmbeddedKafka, topic: TopicFactory, context: StageContext, compression: str
) -> None:
    """See zendesk/ruby-kafka#706: with LogAppendTime, one time of the batch counts for all of its records."""
    before = datetime.now(UTC)
    names = topic(message_timestamp_type="LogAppendTime"), topic()
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 50, "compression.type": compression})
    for name, first_ms, step_ms in [(names[0], 1_000, 60_000), (names[1], -1, 0)]:
        for number in range(20):
            producer.produce(name, event(number), partition=0, timestamp=first_ms + number * step_ms)
    assert producer.flush(30) == 0
    result = run(context, *(OffsetRange(name, 0, 0, 20) for name in names))
    times = {name: [row["kafka_timestamp"] for row in landed(result) if row["kafka_topic"] == name] for name in names}
    assert all(abs((time - before).total_seconds()) < 60 for time in times[names[0]])
    assert (len(times[names[0]]), times[names[1]]) == (20, [None] * 20)


def test_out_of_range_times_of_records_and_of_kafka_are_dead_letters(
    kafka: EmbeddedKafka, topic: TopicFactory, context: StageContext
) -> None:
    name = topic(message_timestamp_after_max_ms=str(2**63 - 1), message_timestamp_before_max_ms=str(2**63 - 1))
    year_10000_ms = 253_402_300_800_000
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for value, stamp_ms in [
        (event(0), 1),
        (event(1), year_10000_ms),
        (b"{", 2**62),
        (b'{"id":3,"at":"9999-12-31T23:59:59-05:00"}', 1),
        (event(4), year_10000_ms - 1),
    ]:
        producer.produce(name, value, partition=0, timestamp=stamp_ms)
    assert producer.flush(30) == 0
    result = run(context, OffsetRange(name, 0, 0, 5))
    assert ids(result) == [0, 4]
    dead_letters = landed(result, "dead-letters")
    assert [(row["kafka_offset"], row["error_class"]) for row in dead_letters] == [
        (1, "OutOfRange"),
        (2, "InvalidJson"),
        (3, "OutOfRange"),
    ]
    assert [row["kafka_timestamp"] is None for row in dead_letters] == [True, True, False]
    assert f"kafka_timestamp: {2**62} milliseconds since 1970" in dead_letters[1]["error"]
    assert [(p.records, p.rejected) for p in result.progress] == [(2, 3)]


def test_records_that_are_already_dead_letters_are_counted_and_written_nowhere(
    kafka: EmbeddedKafka, topic: TopicFactory, context: StageContext
) -> None:
    name = topic()
    produce(kafka, name, [b"1", event(1), event(2), b"3"])
    held = {(name, 0): BitMap64([0, 1]).serialize(), (name, 1): BitMap64([3]).serialize()}
    again = dataclasses.replace(context, existing_dead_letters=held, topic_ids={name: "the-id"})
    result = run(again, OffsetRange(name, 0, 0, 4))
    assert ids(result) == [2]
    (dead_letter,) = landed(result, "dead-letters")
    assert (dead_letter["kafka_offset"], dead_letter["topic_id"], dead_letter["stream"]) == (
        3,
        "the-id",
        context.stream,
    )
    assert [(p.records, p.rejected) for p in result.progress] == [(1, 3)]


def test_a_later_attempt_stages_the_same_rows(kafka: EmbeddedKafka, topic: TopicFactory, context: StageContext) -> None:
    name = topic()
    produce(kafka, name, [event(0), b"{", event(2)])
    again = run(context, OffsetRange(name, 0, 0, 3), attempt=1)
    assert ids(again) == [0, 2]
    assert len(landed(again, "dead-letters")) == 1
    assert all(Path(f.path).name.startswith("00000-1-") for f in again.files)


def test_a_large_range_is_read_in_chunks_and_reports_progress(
    kafka: EmbeddedKafka, topic: TopicFactory, context: StageContext
) -> None:
    name = topic(3)
    count = 150_000
    for partition in range(3):
        produce(kafka, name, (b'{"id":%d,"at":"2026-01-01"}' % n for n in range(count // 3)), partition=partition)
    reports: list[int] = []
    task = StageTask(0, tuple(OffsetRange(name, p, 0, count // 3) for p in range(3)))
    result = stage(context, task, attempt=0, on_progress=lambda records, _: reports.append(records))
    assert reports[-1] == count
    assert reports == sorted(reports)
    assert sum(p.records for p in result.progress) == count
    (staged,) = result.files
    table = pq.read_table(staged.path, columns=["kafka_partition", "kafka_offset"])
    assert len(set(zip(table["kafka_partition"].to_pylist(), table["kafka_offset"].to_pylist(), strict=True))) == count


def test_unreachable_brokers_are_reported_within_the_timeout() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        ranges = [OffsetRange("t", 0, 5, 9)]
        opened = ColumnReader({"bootstrap.servers": address}, ranges, unreachable_limit_s=1.0)
        with opened, pytest.raises(KafkaUnavailable, match=r"t\[0\] at 5 of 9"):
            list(opened)


SMALL = {"message.max.bytes": "900000", "fetch.max.bytes": "999000", "receive.message.max.bytes": "1000000"}


def test_a_record_above_the_size_limit_of_the_client_ends_the_reader_and_is_named_as_the_cause(
    kafka: EmbeddedKafka, topic: TopicFactory, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic(max_message_bytes="5000000")
    produce(kafka, name, [event(1), b"x" * 3_000_000], **{"message.max.bytes": 5_000_000})
    with (
        ColumnReader(
            {"bootstrap.servers": kafka.bootstrap, **SMALL}, [OffsetRange(name, 0, 0, 2)], unreachable_limit_s=3
        ) as ranges,
        pytest.raises(SpecError, match=r"Invalid response size .*: increase receive\.message\.max\.bytes"),
    ):
        list(ranges)
    assert "increase receive.message.max.bytes" in caplog.text


def test_a_batch_too_large_to_decompress_ends_the_reader_with_an_error_that_names_it(
    kafka: EmbeddedKafka, topic: TopicFactory
) -> None:
    """See confluentinc/librdkafka#5260, #5595 and #3935. The client limits batches of zstd only."""
    name, of_producer = topic(), {"compression.type": "zstd", "message.max.bytes": 9_000_000, "batch.size": 9_000_000}
    produce(kafka, name, [b"x" * 900_000] * 5, **of_producer, **{"linger.ms": 5000})
    with (
        ColumnReader({"bootstrap.servers": kafka.bootstrap, **SMALL}, [OffsetRange(name, 0, 0, 5)]) as ranges,
        pytest.raises(SpecError, match=r"raise receive\.message\.max\.bytes in source\.properties \(now 1000000\)"),
    ):
        list(ranges)


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_damaged_batch_is_neither_read_nor_taken_for_a_gap(
    kafka: EmbeddedKafka, topic: TopicFactory, codec: str
) -> None:
    """See confluentinc/librdkafka#1056: without `check.crcs`, the client returns the records of such a batch."""
    name = topic()
    for first in (0, 10, 20):
        produce(kafka, name, map(event, range(first, first + 10)), **{"compression.type": codec})
    (log,) = (kafka.folder / "data").glob(f"{name}-0/*.log")
    with log.open("r+b") as file:
        file.seek(log.read_bytes().index(b'{"id": 10') + 7)  # in the second batch
        file.write(b"7")
    with (
        ColumnReader({"bootstrap.servers": kafka.bootstrap}, [OffsetRange(name, 0, 0, 30)]) as ranges,
        pytest.raises(KafkaUnavailable, match=rf"{name}\[0\] at 10: a batch of records is damaged: .* leader"),
    ):
        list(ranges)


def test_a_batch_of_a_hundred_megabytes_is_read(kafka: EmbeddedKafka, topic: TopicFactory) -> None:
    """The client needs up to three times the bytes; compressed, the batch has four kilobytes."""
    name, of_producer = topic(), {"message.max.bytes": 1_000_000_000, "batch.size": 500_000_000}
    produce(kafka, name, [b"x" * 990_000] * 100, **of_producer, **{"compression.type": "zstd", "linger.ms": 9000})
    with ColumnReader({"bootstrap.servers": kafka.bootstrap}, [OffsetRange(name, 0, 0, 100)]) as ranges:
        assert sum(len(chunk) for chunk in ranges) == 100


def test_a_stage_that_fails_removes_its_files(kafka: EmbeddedKafka, topic: TopicFactory, context: StageContext) -> None:
    name = topic()
    produce(kafka, name, map(event, range(4)))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    task = StageTask(0, (OffsetRange(name, 0, 0, 4),))
    with pytest.raises(KeyboardInterrupt):
        stage(context, task, attempt=0, on_progress=interrupt)
    assert not list(Path(context.main.folder).rglob("*.parquet"))


def test_a_missing_topic_is_reported(context: StageContext) -> None:
    hasty = {**context.kafka, "topic.metadata.propagation.max.ms": "1000"}
    with pytest.raises(KafkaUnavailable, match="no-such-topic"):
        run(dataclasses.replace(context, kafka=hasty), OffsetRange("no-such-topic", 0, 0, 4))
