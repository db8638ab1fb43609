"""Batches of captured changes end at the source's transaction boundaries."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from frazil.errors import SpecError
from frazil.ingest.chunk import RecordChunk
from frazil.ingest.formats.transactions import MAX_ID_CHARACTERS, EventTransaction, TransactionDecoder, TransactionEnd
from frazil.spec.formats import JsonFormat
from frazil.spec.load import validate_stream
from frazil.stream import whole_transactions
from frazil.stream.whole_transactions import WARN_INTERVAL_S, KafkaTopics, WholeTransactions

TP = ("shop.public.orders", 0)
END_TP = ("shop.transaction", 0)
ORDERS = ("public.orders",)


class StandInTopics:
    """Two topics, in which a connector writes transactions of that many events."""

    def __init__(self) -> None:
        self.log: list[EventTransaction] = []
        self.ended: list[TransactionEnd] = []
        self.heard = 0
        self.slice = 100
        self.scans: list[tuple[int, int]] = []
        self.since: set[int] = set()

    def write(self, transaction: str, *orders: int, ends: int | None = None) -> None:
        self.log += [EventTransaction(transaction, order, None, ORDERS) for order in orders]
        if ends is not None:
            self.end(transaction, ends)

    def end(self, transaction: str, count: int) -> None:
        self.ended.append(TransactionEnd(transaction, {"public.orders": count, "public.other": 7}))

    def events(self, tp, start, end):
        assert tp == TP
        self.scans.append((start, end))
        chunk = RecordChunk.of_values([b""] * (end - start))
        chunk = RecordChunk(
            chunk.values, chunk.keys, chunk.range_index, chunk.offsets + start, np.full(len(chunk), 5_000)
        )
        yield chunk, self.log[start:end]

    def ends(self, since_ms):
        self.since.add(since_ms)
        found = self.ended[self.heard : self.heard + self.slice]
        self.heard += len(found)
        return found, self.heard < len(self.ended)


class Reader:
    """Asks as the planner does: for ends first, then for events."""

    def __init__(self, topics: StandInTopics, *, max_records: int = 1000) -> None:
        self.topics, self.now, self.start = topics, 0.0, 0
        self.whole = WholeTransactions(topics, "shop.transaction", max_records, lambda: self.now)

    def readable(self) -> int:
        self.whole.read_transaction_ends()
        return self.whole.find_readable_end(TP, self.start, len(self.topics.log))

    def settled(self) -> int:
        """Poll until the position no longer changes. Return it."""
        self.readable()
        return self.readable()

    def batch(self) -> int:
        """The end of a batch that is due now; it becomes the start of the next."""
        if self.settled() > self.start:
            self.start = self.whole.boundary
        return self.start


@pytest.fixture
def topics() -> StandInTopics:
    return StandInTopics()


def test_a_transaction_is_read_once_its_end_is_known(topics: StandInTopics) -> None:
    reader = Reader(topics)
    topics.write("a", 1, 2)
    assert reader.whole.boundary == 0
    assert reader.settled() == 0
    assert reader.whole.is_stuck
    topics.end("a", 2)
    assert reader.settled() == 2
    assert not reader.whole.is_stuck
    assert topics.since == {5_000}


def test_all_completed_transactions_are_read(topics: StandInTopics) -> None:
    for number in range(5):
        topics.write(f"t{number}", 1, 2, ends=2)
    topics.write("open", 1)
    reader = Reader(topics)
    assert reader.batch() == 10
    assert reader.batch() == 10
    topics.write("open", 2, ends=2)
    assert reader.batch() == 12
    assert sum(end - start for start, end in topics.scans if start < end) == 12  # each record is looked at once


def test_events_that_arrive_after_the_transactions_end_was_read_still_belong_to_it(topics: StandInTopics) -> None:
    """A connector that starts again within a transaction may count its events again."""
    reader = Reader(topics)
    topics.write("a", 1)
    topics.end("a", 1)
    assert reader.readable() == 0
    topics.write("a", 1)
    assert reader.readable() == 2


def test_a_backlog_is_read_in_bounded_batches_that_end_at_transactions(topics: StandInTopics) -> None:
    topics.slice = 3
    for number in range(50):
        topics.write(f"t{number}", 1, 2, 3, ends=3)
    reader = Reader(topics, max_records=10)
    ends = [reader.batch() for _ in range(20)]
    assert ends[-1] == 150
    assert all(end % 3 == 0 for end in ends)
    assert all(later - end <= 10 for end, later in pairwise(ends))


def test_a_backlog_is_checked_in_steps(topics: StandInTopics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_transactions, "MAX_EVENTS_PER_READ", 4)
    topics.slice = 2
    for number in range(10):
        topics.write(f"t{number}", 1, 2, 3, ends=3)
    reader = Reader(topics, max_records=20)
    assert [reader.batch() for _ in range(3)] == [18, 30, 30]
    assert max(end - start for start, end in topics.scans) == 4


def test_a_transaction_greater_than_a_batch_is_read_as_a_whole(topics: StandInTopics) -> None:
    topics.write("large", *range(1, 36), ends=35)
    for number in range(20):
        topics.write(f"t{number}", 1, ends=1)
    reader = Reader(topics, max_records=10)
    assert 35 <= reader.batch() <= 40
    assert reader.batch() <= 50


def test_a_new_writer_knows_the_transactions_that_were_read_before_its_start(topics: StandInTopics) -> None:
    for number in (1, 2, 1, 2):
        topics.log.append(EventTransaction(str(number), 1, f"{number:020}", ORDERS))
        topics.end(str(number), 1)
    reader = Reader(topics)
    reader.start = 2
    topics.log, again = topics.log[:3], topics.log
    assert reader.settled() == 2
    topics.log = again
    assert reader.settled() == 4


@pytest.mark.parametrize("between", [10, 5_000])
def test_a_new_writer_knows_the_last_transaction_regardless_of_records_read_since(
    topics: StandInTopics, between: int
) -> None:
    """Rows of a snapshot have no transaction; and retention may have removed the transaction itself."""
    for number in (1, 2):
        topics.log.append(EventTransaction(str(number), 1, f"{number:020}", ORDERS))
        topics.end(str(number), 1)
    topics.log += [EventTransaction()] * between
    before, reader = Reader(topics, max_records=10_000), Reader(topics)
    assert before.batch() == len(topics.log)
    topics.heard = 0
    reader.start, reader.whole.last_before_start = before.start, before.whole.last
    topics.log.append(EventTransaction("1", 1, f"{1:020}", ORDERS))  # which the connector sends again, and 2 soon after
    assert reader.settled() == reader.start
    assert "has not reached transaction 2 again" in reader.whole.waits_for
    topics.log.append(EventTransaction("2", 1, f"{2:020}", ORDERS))
    assert reader.settled() == len(topics.log)
    assert reader.whole.waits_for == ""


class StandInKafka:
    """Kafka with the topic of transactions, and its end."""

    def __init__(self) -> None:
        self.id, self.end = "first", 0

    def describe(self):
        return SimpleNamespace(partitions=[END_TP], identity=SimpleNamespace(topic_ids={END_TP[0]: self.id}))

    def ends(self, partitions):
        return dict.fromkeys(partitions, self.end)

    def earliest(self, partitions):
        return dict.fromkeys(partitions, 0)

    def offsets_at(self, _, partitions):
        return dict.fromkeys(partitions, 0)


def test_a_recreated_transaction_topic_is_read_from_its_beginning(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    kafka, read = StandInKafka(), []
    monkeypatch.setattr(KafkaTopics, "_chunks", lambda _, ranges: read.append([(r.start, r.end) for r in ranges]) or [])
    topics = KafkaTopics({}, kafka, TransactionDecoder(JsonFormat()), "orders")
    kafka.end = 5
    assert topics.ends(0) == ([], False)
    assert topics.ends(0) == ([], False)
    kafka.id, kafka.end = "second", 3
    topics.ends(0)
    assert read == [[(0, 5)], [], [(0, 3)]]
    assert "topic shop.transaction was recreated" in caplog.text


def test_rows_of_a_snapshot_are_read_as_they_come(topics: StandInTopics) -> None:
    topics.log = [EventTransaction()] * 7
    assert Reader(topics).readable() == 7
    assert topics.since == set()


def test_events_without_a_transaction_are_reported_once(topics: StandInTopics, caplog: Any) -> None:
    topics.log = [EventTransaction(unmarked=True)] * 7
    assert Reader(topics).readable() == 7
    assert [r.getMessage() for r in caplog.records if "provide.transaction.metadata" in r.getMessage()] != []
    assert len(caplog.records) == 1


def test_a_transaction_that_does_not_end_is_reported(topics: StandInTopics, caplog: Any) -> None:
    reader = Reader(topics)
    topics.write("a", 1, ends=1)
    topics.write("b", 1)
    assert reader.settled() == 1
    assert caplog.records == []
    for _ in range(3):
        reader.now += WARN_INTERVAL_S
        reader.readable()
    assert len(caplog.records) == 3
    assert "topic shop.public.orders: records after offset 1 have been held back for 60 s" in caplog.text
    assert "topic shop.transaction does not have the end of the source's transaction b" in caplog.text


def test_short_transactions_are_not_reported_as_one_that_does_not_end(topics: StandInTopics, caplog: Any) -> None:
    reader = Reader(topics)
    for number in range(10):
        topics.write(f"t{number}", 1)
        reader.now += WARN_INTERVAL_S
        assert reader.settled() == number
        topics.end(f"t{number}", 1)
    assert caplog.records == []


def test_a_topic_of_several_tables_is_refused(topics: StandInTopics) -> None:
    topics.log = [EventTransaction("a", 1, None, ORDERS), EventTransaction("a", 1, None, ("public.li\nes",))]
    with pytest.raises(SpecError, match=r"several tables \(public\.orders and public\.li\\nes\)"):
        Reader(topics).readable()


@pytest.mark.parametrize("wrapped", [False, True])
def test_records_are_read_as_debezium_writes_them(*, wrapped: bool) -> None:
    decoder = TransactionDecoder(JsonFormat())

    def chunk(*values: Any) -> RecordChunk:
        in_form = [{"schema": {}, "payload": v} if wrapped and isinstance(v, dict) else v for v in values]
        return RecordChunk.of_values(
            [v if v is None or isinstance(v, bytes) else json.dumps(v).encode() for v in in_form]
        )

    of = {"id": "571:53195832", "total_order": 9, "data_collection_order": 2}
    postgres = {
        "connector": "postgresql",
        "db": "shop",
        "schema": "public",
        "table": "orders",
        "lsn": 1,
        "sequence": '["24","25"]',
        "ts_ms": 7,
    }
    mysql = {"connector": "mysql", "db": "shop", "table": "orders", "file": "b.1", "pos": 4}
    events = chunk(
        {"before": None, "after": {"id": 1}, "op": "c", "source": postgres, "transaction": of},
        None,
        {
            "after": {},
            "op": "u",
            "source": mysql,
            "transaction": {**of, "id": "0e4d5dcd-a33b-11ea-80f1-02010a22a99e:10"},
        },
        {"after": {}, "op": "r", "source": mysql, "transaction": None},
        {"after": {}, "op": "c", "source": mysql},
        b"nonsense",
    )
    both = ("public.orders", "shop.public.orders")
    assert decoder.read_transactions(events) == [
        EventTransaction("571", 2, f"{24:020}@{7:013}", both),
        EventTransaction(),
        EventTransaction("0e4d5dcd-a33b-11ea-80f1-02010a22a99e:10", 2, f"b.1/{4:020}/{0:020}", ("shop.orders",)),
        EventTransaction(),
        EventTransaction(unmarked=True),
        EventTransaction(unreadable=True),
    ]
    each = [{"data_collection": "public.orders", "event_count": 2}, {"data_collection": "public.x", "event_count": 1}]
    ends = chunk(
        {"status": "BEGIN", "id": "571:53195825", "ts_ms": 1, "event_count": None, "data_collections": None},
        {"status": "END", "id": "571:53195899", "ts_ms": 1, "event_count": 3, "data_collections": each},
        {"status": "END", "id": "572:53195899", "ts_ms": 1, "event_count": 0, "data_collections": []},
    )
    assert decoder.read_ends(ends) == [TransactionEnd("571", {"public.orders": 2, "public.x": 1})]


STREAM: dict[str, Any] = {
    "name": "orders",
    "source": {
        "topics": ["shop.public.orders"],
        "bootstrap-servers": "127.0.0.1:1",
        "format": {"type": "json", "envelope": {"transactions": "shop.transaction", "metadata": {"place": "position"}}},
    },
    "table": "shop.orders",
    "schema": {"id": "long not null", "place": "string"},
    "event-time": "kafka_timestamp",
    "mode": "upsert",
    "key": "id",
    "order-by": "place",
}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"order-by": None}, "needs order-by"),
        ({"topics": ["a", "b"]}, "needs exactly one topic of events"),
        ({"topics": ["shop.transaction"]}, "is the topic of the events"),
        ({"type": "avro", "schema-text": '{"type": "record", "name": "R", "fields": []}'}, "needs a registry"),
    ],
)
def test_whole_transactions_are_refused_where_the_source_does_not_support_them(
    changed: dict[str, Any], said: str
) -> None:
    stream = json.loads(json.dumps(STREAM))
    assert validate_stream(stream, Path("orders.yaml")).name == "orders"
    of_format = {key: value for key, value in changed.items() if key in {"type", "schema-text"}}
    stream["source"]["format"].update(of_format)
    stream["source"].update({key: value for key, value in changed.items() if key == "topics"})
    if "order-by" in changed:
        del stream["order-by"]
    with pytest.raises(SpecError, match=said):
        validate_stream(stream, Path("orders.yaml"))


def test_long_transaction_ids_and_file_names_are_bounded() -> None:
    def chunk(*records: Any) -> RecordChunk:
        return RecordChunk.of_values([json.dumps(record).encode() for record in records])

    decoder = TransactionDecoder(JsonFormat())
    source = {"connector": "mysql", "db": "shop", "table": "orders", "pos": 4, "ts_ms": 7}
    ids = ["x" * 60_000, "x" * 60_001, "x" * 200]
    events = chunk(
        *(
            {"op": "c", "source": {**source, "file": one}, "transaction": {"id": one, "data_collection_order": 1}}
            for one in ids
        )
    )
    each = [{"data_collection": "shop.orders", "event_count": 1}]
    ends = decoder.read_ends(chunk(*({"status": "END", "id": one, "data_collections": each} for one in ids)))
    said = decoder.read_transactions(events)
    assert [one.transaction for one in said] == [end.transaction for end in ends]
    assert len({one.transaction for one in said}) == 3
    assert max(len(one.transaction) for one in said) == MAX_ID_CHARACTERS
    assert said[2].transaction == ids[2]
    assert [one.position is None for one in said] == [True, True, False]


def test_a_table_name_in_a_message_is_shortened_and_escaped(topics: StandInTopics) -> None:
    whole = WholeTransactions(topics, "tx", 100)
    whole._add_event(("t", 0), EventTransaction("1", 1, None, ("a",)), 0)
    with pytest.raises(SpecError) as error:
        whole._add_event(("t", 0), EventTransaction("2", 1, None, ("\x1b" + "b" * 60_000,)), 0)
    assert "\x1b" not in str(error.value)
    assert len(str(error.value)) < 1000


def test_an_unreadable_transaction_end_record_is_counted_and_hides_no_other() -> None:
    decoder = TransactionDecoder(JsonFormat(type="json"))
    end = {"status": "END", "id": "571", "data_collections": [{"data_collection": "a.b", "event_count": 2}, None]}
    found = decoder.read_ends(RecordChunk.of_values([b"{garbage", json.dumps(end).encode(), None]))
    assert found == [TransactionEnd("571", {"a.b": 2})]
    assert decoder.unreadable == 1
