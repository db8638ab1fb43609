"""The reader of Kafka's ranges, with a fake librdkafka: messages lie in memory as `rd_kafka_message_t`.

`tests/e2e/test_ingest_kafka.py` has the tests with a real broker.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from frazil.errors import (
    AccessDenied,
    EnvironmentUnusable,
    FrazilError,
    KafkaUnavailable,
    OffsetGap,
    SpecError,
    TopicMissing,
)
from frazil.ingest import kafka_columns, kafka_loop, readers
from frazil.ingest.binary_arrays import header_column
from frazil.ingest.chunk import RecordChunk, unpack_headers
from frazil.ingest.contract import OffsetRange
from frazil.ingest.kafka_columns import ColumnReader
from frazil.ingest.range_reader import MAX_CHUNK_BYTES, MAX_CHUNK_RECORDS
from frazil.kafka.librdkafka import ErrorCallback, Message, ThrottleCallback, librdkafka

EOF = KafkaError._PARTITION_EOF
Headers = list[tuple[str, bytes | None]]
Record = tuple[str, int, int, bytes | None, bytes | None, int]
"""Topic, partition, offset, key, value, timestamp."""


@dataclass(frozen=True)
class Sent:
    """A message, or an event if it has an error."""

    topic: str
    partition: int
    offset: int
    key: bytes | None = None
    value: bytes | None = None
    timestamp_ms: int = -1
    error: int = 0
    headers: tuple[tuple[str, bytes | None], ...] = ()
    leader_epoch: int = 3
    hides_headers: bool = False
    """The byte behind the value does not say how many there are."""


def text_of(code: int) -> str:
    return f"error {code}"


Trouble = int | tuple[int, ...]
"""Codes of errors of the client, at each fetch."""


class MadeLibrary:
    """The functions that `ColumnReader` calls. Counts how often each message is destroyed."""

    def __init__(self, sent: Sequence[Sent], trouble: Trouble = 0) -> None:
        self._trouble = trouble
        self.throttle_ms = 0
        self._topics = {name: ctypes.create_string_buffer(name.encode()) for name in {m.topic for m in sent}}
        self._texts: list[Any] = []
        self._by_address: dict[int, Sent] = {}
        self._structs = [self._laid_out(m) for m in sent]
        self._next = 0
        self.destroyed: Counter[int] = Counter()
        self.requested = 0
        self.unassigned: list[tuple[str, int]] = []
        destroy = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.message_destroy)
        stamp = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)(self._timestamp)
        headers = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(self._headers)
        of_one = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_void_p] * 3]
        header = ctypes.CFUNCTYPE(ctypes.c_int, *of_one)(self._header)
        epoch = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)(self._leader_epoch)
        self._held = (destroy, stamp, epoch, headers, header)
        self.addresses = {
            "message_destroy": ctypes.cast(destroy, ctypes.c_void_p).value,
            "message_timestamp": ctypes.cast(stamp, ctypes.c_void_p).value,
            "message_leader_epoch": ctypes.cast(epoch, ctypes.c_void_p).value,
            "message_headers": ctypes.cast(headers, ctypes.c_void_p).value,
            "header_get_all": ctypes.cast(header, ctypes.c_void_p).value,
        }

    def _laid_out(self, sent: Sent) -> Message:
        def held(data: bytes | None) -> int | None:
            """Followed by the number of headers, as the value of a real record is."""
            if data is None:
                return None
            self._texts.append(
                ctypes.create_string_buffer(data + bytes([0 if sent.hides_headers else 2 * len(sent.headers)]))
            )
            return ctypes.addressof(self._texts[-1])

        message = Message()
        message.err, message.partition, message.offset = sent.error, sent.partition, sent.offset
        message.rkt = ctypes.addressof(self._topics[sent.topic])
        message.payload, message.len = held(sent.value), len(sent.value or b"")
        message.key, message.key_len = held(sent.key), len(sent.key or b"")
        self._by_address[ctypes.addressof(message)] = sent
        return message

    def message_destroy(self, address: int) -> None:
        self.destroyed[address] += 1

    def _timestamp(self, address: int, _: int) -> int:
        return self._by_address[address].timestamp_ms

    def _leader_epoch(self, address: int, _: int) -> int:
        return self._by_address[address].leader_epoch

    def _headers(self, address: int, to: int) -> int:
        self.requested += 1
        if not self._by_address[address].headers:
            return KafkaError._NOENT
        ctypes.c_int64.from_address(to).value = address  # in place of the list's own address
        return 0

    def _header(self, address: int, index: int | None, name: int, value: int, size: int) -> int:
        headers = self._by_address[address].headers
        if (index or 0) >= len(headers):
            return KafkaError._NOENT
        text, data = headers[index or 0]
        for to, held in ((name, text.encode()), (value, data)):
            if held is not None:
                self._texts.append(ctypes.create_string_buffer(held))
            ctypes.c_int64.from_address(to).value = 0 if held is None else ctypes.addressof(self._texts[-1])
        ctypes.c_int64.from_address(size).value = len(data or b"")
        return 0

    def consume_batch_queue(self, _: int, __: int, into: int, wanted: int) -> int:
        for code in troubles(self._trouble):
            self._on_error(0, code, text_of(code).encode(), 0)
        self._on_throttle(0, b"broker", 1, self.throttle_ms, 0)
        batch = self._structs[self._next : self._next + wanted]
        self._next += len(batch)
        for place, message in enumerate(batch):
            ctypes.c_int64.from_address(into + 8 * place).value = ctypes.addressof(message)
        return len(batch)

    def topic_name(self, rkt: int) -> bytes:
        return next(name for name, buffer in self._topics.items() if ctypes.addressof(buffer) == rkt).encode()

    def message_errstr(self, address: int) -> bytes:
        return text_of(self._by_address[address].error).encode()

    def watermarks(self, *_: object, **__: object) -> tuple[int, int]:
        return 7, 9

    def consumer(
        self, _: object, on_error: Callable[..., None], on_throttle: Callable[..., None], on_token: object = None
    ) -> int:
        assert on_token is None, "no test has a token function"
        self._on_error, self._on_throttle = on_error, on_throttle
        return 1

    def incremental_unassign(self, _: int, partitions: list[Any]) -> int:
        self.unassigned += [place[:2] for place in partitions]
        return 0

    partitions = staticmethod(list)

    def __getattr__(self, _: str) -> Callable[..., int]:
        return lambda *_: 0

    def all_destroyed_once(self) -> bool:
        fetched = [ctypes.addressof(m) for m in self._structs[: self._next]]
        return self.destroyed == Counter(fetched)


def troubles(code: Trouble) -> tuple[int, ...]:
    return code if isinstance(code, tuple) else (code,) * bool(code)


def clock() -> Iterator[float]:
    yield from (10.0 * n for n in range(100_000))


Outcome = tuple[list[Record], str]
Read = tuple[Outcome, list[tuple[str, int]]]
"""And the topic-partitions that were given back."""


def outcome(reader: ColumnReader, ranges: Sequence[OffsetRange]) -> Outcome:
    """Return all records, and the error that ended the read."""
    records: list[Record] = []
    try:
        with reader:
            for chunk in reader:
                assert 0 < len(chunk) <= MAX_CHUNK_RECORDS + 2000
                records += rows(chunk, ranges)
    except FrazilError as error:
        return records, f"{type(error).__name__}: {error}"
    return records, ""


def rows(chunk: RecordChunk, ranges: Sequence[OffsetRange]) -> list[Record]:
    for column in (chunk.values, chunk.keys):
        ends = column.starts + column.lengths.clip(0)
        assert (column.data[ends] == ord("\n")).all()
    columns = (
        chunk.range_index.tolist(),
        chunk.offsets.tolist(),
        chunk.keys,
        chunk.values,
        chunk.timestamps_ms.tolist(),
    )
    return [(ranges[r].topic, ranges[r].partition, o, k, v, t) for r, o, k, v, t in zip(*columns, strict=True)]


def read(
    sent: Sequence[Sent],
    ranges: Sequence[OffsetRange],
    trouble: Trouble = 0,
    *,
    throttle_ms: int = 0,
    on_read: Any = lambda *_: None,
) -> Read:
    library = MadeLibrary(sent, trouble)
    library.throttle_ms = throttle_ms
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kafka_columns, "librdkafka", lambda: library)
        reader = ColumnReader({}, ranges, monotonic=clock().__next__)
        reader.on_read = on_read
        found = outcome(reader, ranges)
    assert library.all_destroyed_once()
    return found, library.unassigned


SIZES = st.sampled_from([0] * 14 + [2**16, 2**20])
TEXTS = st.none() | st.binary(max_size=40) | st.builds(lambda size: b"x" * size, SIZES)
ERRORS = st.sampled_from([KafkaError._TRANSPORT, KafkaError._AUTO_OFFSET_RESET, KafkaError.TOPIC_AUTHORIZATION_FAILED])
PLACES = [("a", 0), ("a", 3), ("b", 0), ("c", 1)]


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[OffsetRange], list[Sent]]:
    """Ranges, and a consumer's answers: records with gaps, some past the end, ends, and errors."""
    ranges, queues = [], []
    for topic, partition in draw(st.lists(st.sampled_from(PLACES), unique=True, min_size=1)):
        start = draw(st.integers(0, 5))
        ranges.append(OffsetRange(topic, partition, start, start + draw(st.integers(0, 6))))
        offset, queue = start, []
        for step in draw(st.lists(st.integers(1, 3), max_size=8)):
            record = (draw(TEXTS), draw(TEXTS), draw(st.integers(-1, 2**62)))
            queue.append(Sent(topic, partition, offset, *record))
            offset += step
        queue.append(Sent(topic, partition, offset, error=EOF))
        if draw(st.integers(0, 5)) == 0:
            at = draw(st.integers(0, len(queue)))
            queue.insert(at, Sent(topic, partition, -1001, error=draw(ERRORS)))
        queues.append(queue)
    order = draw(st.permutations([i for i, queue in enumerate(queues) for _ in queue]))
    iterators = [iter(queue) for queue in queues]
    return ranges, [next(iterators[i]) for i in order]


@given(logs())
def test_each_record_of_a_range_is_read_once_in_order(made: tuple[list[OffsetRange], list[Sent]]) -> None:
    ranges, sent = made
    ends = {(r.topic, r.partition): r.end for r in ranges}
    wanted = [m for m in sent if not m.error and m.offset < ends[m.topic, m.partition]]
    reached = {(m.topic, m.partition): m.offset for m in sent if m.error == EOF}
    (records, error), ended = read(sent, ranges)
    expected = [(m.topic, m.partition, m.offset, m.key, m.value, m.timestamp_ms) for m in wanted]
    assert records == expected[: len(records)]
    if not error:  # of a task that fails nothing lands
        assert len(records) == len(expected)
    if not {m.error for m in sent} - {0, EOF}:
        assert (error == "") == all(reached[place] >= end for place, end in ends.items())
    assert len({*ended} & ends.keys()) == len(ended)


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)
SOME_HEADERS = st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=9)), max_size=4)


@given(st.lists(SOME_HEADERS, max_size=20), NAMES)
def test_headers_are_kept_and_the_last_of_a_name_is_found(made: list[Headers], name: str) -> None:
    sent = [Sent("a", 0, n, None, b"v", n, headers=tuple(headers)) for n, headers in enumerate(made)]
    wanted = next((found for headers in made for found, _ in headers), name)
    chunks: list[RecordChunk] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "rows", lambda chunk, _, chunks=chunks: [chunks.append(chunk)])
        read(sent, [OffsetRange("a", 0, 0, len(sent))])
    found: list[Headers] = []
    last: list[bytes | None] = []
    for chunk in chunks:
        packed = [None] * len(chunk) if chunk.headers is None else chunk.headers
        found += map(unpack_headers, packed)
        last += header_column(chunk.headers, wanted, len(chunk))
    assert found == made
    assert last == [dict(headers).get(wanted) for headers in made]


@pytest.mark.parametrize(("leader_epoch", "value"), [(3, b""), (3, b"some"), (-1, b"some"), (3, None)])
def test_headers_are_read_only_where_records_may_have_some(leader_epoch: int, value: bytes | None) -> None:
    sent = [Sent("a", 0, n, b"k", value, n, leader_epoch=leader_epoch) for n in range(1000)]
    library = MadeLibrary(sent)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kafka_columns, "librdkafka", lambda: library)
        with ColumnReader({}, [OffsetRange("a", 0, 0, 1000)]) as reader:
            assert [chunk.headers for chunk in reader] == [None]
    known = leader_epoch >= 0 and value is not None
    assert library.requested == (16 if known else 1000)


def test_after_a_record_with_unexpected_headers_the_headers_of_every_record_are_read() -> None:
    some = (("h", b"x"),)
    sent = [Sent("a", 0, n, None, b"v", n, headers=some, hides_headers=True) for n in range(1, 1000)]
    library = MadeLibrary(sent)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kafka_columns, "librdkafka", lambda: library)
        with ColumnReader({}, [OffsetRange("a", 0, 0, 1000)]) as reader:
            (chunk,) = reader
    assert [unpack_headers(headers) for headers in chunk.headers or ()][63:] == [[*some]] * (999 - 63)


def test_headers_count_in_a_chunks_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_columns, "MAX_FETCH_RECORDS", 10)
    sizes: list[int] = []

    def counted(chunk: RecordChunk, _: object) -> list[Record]:
        assert chunk.headers is not None
        sizes.append(len(chunk.headers.data))
        return []

    monkeypatch.setitem(globals(), "rows", counted)
    headers = (("h", b"x" * 2**20),)
    sent = [Sent("a", 0, n, None, None, n, headers=headers) for n in range(3 * MAX_CHUNK_BYTES // 2**20)]
    assert read(sent, [OffsetRange("a", 0, 0, len(sent))])[0] == ([], "")
    assert max(sizes) < 2 * MAX_CHUNK_BYTES


def test_null_and_empty_values_are_distinguished_and_a_missing_timestamp_stays_missing() -> None:
    sent = [Sent("a", 0, 0, None, b""), Sent("a", 0, 1, b"", None, 5), Sent("a", 0, 2, b"k", b"v", 6)]
    wanted = [("a", 0, 0, None, b"", -1), ("a", 0, 1, b"", None, 5), ("a", 0, 2, b"k", b"v", 6)]
    assert read(sent, [OffsetRange("a", 0, 0, 3)])[0] == (wanted, "")


def test_chunks_are_bounded_in_records_and_bytes_and_one_record_may_be_larger() -> None:
    sizes = [10] * (MAX_CHUNK_RECORDS + 100) + [MAX_CHUNK_BYTES + 5] + [2**20] * 40
    big = b"x" * (MAX_CHUNK_BYTES + 5)
    sent = [Sent("a", 0, n, None, big[:size], n) for n, size in enumerate(sizes)]
    (records, error), _ = read(sent, [OffsetRange("a", 0, 0, len(sizes))])
    assert error == ""
    assert [(o, len(v or b"")) for _, _, o, _, v, _ in records] == list(enumerate(sizes))


def test_a_partition_that_answers_with_errors_alone_is_unavailable() -> None:
    sent = [Sent("a", 0, 0, None, b"1", 1)] + [Sent("a", 0, -1001, error=KafkaError._BAD_MSG)] * 200
    (_, text), _ = read(sent, [OffsetRange("a", 0, 0, 2)])
    assert text.startswith("KafkaUnavailable")
    assert "a[0] at 1 of 2: error -199" in text


def test_a_partition_end_that_moves_the_position_is_progress_and_a_repeated_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka_columns, "MAX_FETCH_RECORDS", 1)
    moved = [Sent("a", 0, n, error=EOF) for n in range(1, 101)]
    assert read(moved, [OffsetRange("a", 0, 0, 100)])[0] == ([], "")
    repeated = [Sent("a", 0, 1, error=EOF)] * 100 + [Sent("a", 0, 100, error=EOF)]
    (_, text), _ = read(repeated, [OffsetRange("a", 0, 0, 100)])
    assert "a[0] at 1 of 100" in text


def test_records_outside_the_requested_ranges_are_ignored() -> None:
    strange = [Sent("a", 0, 0, None, b"x"), Sent("a", 9, 0, None, b"x"), Sent("b", 1, 0, None, b"x")]
    ranges = [OffsetRange("a", 1, 0, 1), OffsetRange("c", 0, 0, 9)]
    sent = [*strange, Sent("a", 1, 0, None, b"own", 5), Sent("c", 0, 9, error=EOF)]
    assert read(sent, ranges)[0] == ([("a", 1, 0, None, b"own", 5)], "")
    assert read(strange + sent[3:4], ranges[:1])[0] == ([("a", 1, 0, None, b"own", 5)], "")


def test_keys_count_in_a_chunks_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_columns, "MAX_FETCH_RECORDS", 10)
    sizes: list[int] = []
    made = rows

    def counted(chunk: RecordChunk, ranges: Sequence[OffsetRange]) -> list[Record]:
        sizes.append(len(chunk.keys.data))
        return made(chunk, ranges)

    monkeypatch.setitem(globals(), "rows", counted)
    key = b"k" * 2**20
    number = 3 * MAX_CHUNK_BYTES // len(key)
    sent = [Sent("a", 0, n, key, None, n) for n in range(number)]
    (records, error), _ = read(sent, [OffsetRange("a", 0, 0, number)])
    assert (len(records), error) == (number, "")
    assert max(sizes) < 2 * MAX_CHUNK_BYTES


@pytest.mark.parametrize(
    ("code", "error", "said"),
    [
        (
            KafkaError._AUTO_OFFSET_RESET,
            OffsetGap,
            r"a[0]: offset 1 (of the range 0 to 8) is not in Kafka: Kafka has 7 to 8",
        ),
        (KafkaError._LOG_TRUNCATION, OffsetGap, "offset 1"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, AccessDenied, "Kafka refuses access to a[0]: error 29"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, TopicMissing, "Kafka does not know a[0]: error 3. Was the topic deleted?"),
        (KafkaError._TRANSPORT, KafkaUnavailable, "a[0] at 1 of 9: error -195"),
        (
            KafkaError._BAD_COMPRESSION,
            SpecError,
            "a[0]: a batch of records cannot be decompressed: error -198. If the batch is not damaged, raise rec",
        ),
    ],
)
def test_a_kafka_partition_error_is_reported_with_the_same_message_as_a_client_error(
    code: int, error: type[FrazilError], said: str
) -> None:
    sent = [Sent("a", 0, 0, None, b"1", 1), Sent("a", 0, -1001, error=code)]
    (_, text), _ = read(sent, [OffsetRange("a", 0, 0, 9)])
    assert text.startswith(error.__name__)
    assert said in text


@pytest.mark.parametrize(
    ("code", "error", "said"),
    [
        (KafkaError._AUTHENTICATION, AccessDenied, "Kafka refuses access to a, b: error -169. Check source.properties"),
        (KafkaError._UNKNOWN_TOPIC, TopicMissing, "Kafka does not know a, b: error -188"),
        (KafkaError._ALL_BROKERS_DOWN, KafkaUnavailable, "among them a[0] at 0 of 9: error -187. Start the brokers"),
    ],
)
def test_a_kafka_client_error_is_reported_with_the_same_message_as_a_partition_error(
    code: int, error: type[FrazilError], said: str
) -> None:
    (_, text), _ = read([], [OffsetRange("a", 0, 0, 9), OffsetRange("b", 0, 0, 9)], code)
    assert text.startswith(error.__name__)
    assert said in text


def test_the_cause_of_a_broken_connection_is_reported_instead_of_brokers_down(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A message beyond `receive.message.max.bytes` breaks the connection, and that is the last error, each time."""
    codes = (KafkaError._BAD_MSG, KafkaError._ALL_BROKERS_DOWN)
    (_, text), _ = read([], [OffsetRange("a", 0, 0, 9)], codes)
    assert text.startswith("KafkaUnavailable")
    assert text.endswith("a[0] at 0 of 9: error -199")
    assert [record.getMessage() for record in caplog.records] == ["a: Kafka's client reports: error -199"]


def test_the_reader_waits_for_a_quota_and_names_it_if_no_records_arrive(caplog: pytest.LogCaptureFixture) -> None:
    (_, text), _ = read([], [OffsetRange("a", 0, 0, 9)], throttle_ms=40_000)
    assert "no record arrived for 200 s" in text
    assert "the brokers do not answer; a quota of the brokers delays each fetch by 40 s. Raise the quota" in text
    assert [record.getMessage() for record in caplog.records] == ["a: a quota of the brokers delays each fetch by 40 s"]


def test_the_reader_waits_for_a_quota_although_earlier_fetched_records_arrive_after_its_event() -> None:
    now_s = iter(range(1, 10_000))
    sent = [Sent("a", 0, n, None, b"v", n) for n in range(10)]
    library = MadeLibrary(sent)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kafka_columns, "librdkafka", lambda: library)
        reader = ColumnReader({}, [OffsetRange("a", 0, 0, 100)], monotonic=now_s.__next__)
        library._on_throttle(0, b"broker", 1, 300_000, 0)
        with pytest.raises(KafkaUnavailable, match="a quota of the brokers delays each fetch by 300 s"):
            list(reader)
    assert next(now_s) > 720


def test_read_progress_is_reported_before_a_chunk_is_full() -> None:
    reported: list[tuple[int, float]] = []
    sent = [Sent("a", 0, n, None, b"v", n) for n in range(773)]
    of = [OffsetRange("a", 0, 0, 100_000)]
    read(sent, of, on_read=lambda *now: reported.append(now), throttle_ms=4_000)
    assert max(reported) == (773, 4.0)


def test_lines_of_librdkafkas_log_go_to_pythons_and_none_to_stderr(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    properties = {"bootstrap.servers": "127.0.0.1:1", "debug": "broker", "log_level": "7"}
    with (
        caplog.at_level(logging.DEBUG, kafka_columns.__name__),
        ColumnReader(properties, [OffsetRange("a", 0, 0, 9)], unreachable_limit_s=0) as reader,
        pytest.raises(KafkaUnavailable),
    ):
        list(reader)
    assert any(r.levelno == logging.DEBUG and "127.0.0.1:1" in r.getMessage() for r in caplog.records)
    assert capfd.readouterr() == ("", "")


def test_fetched_messages_are_destroyed_once_if_reading_stops_in_the_middle() -> None:
    library = MadeLibrary([Sent("a", 0, n, b"k", b"v", n) for n in range(300)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kafka_columns, "librdkafka", lambda: library)
        patch.setattr(kafka_loop, "MAX_CHUNK_RECORDS", 100)
        with ColumnReader({}, [OffsetRange("a", 0, 0, 300)]) as reader:
            assert len(next(iter(reader))) == 100
    assert library.all_destroyed_once()


def test_an_unknown_property_is_a_mistake_of_the_declaration() -> None:
    with pytest.raises(SpecError, match=r"no\.such"):
        readers.create_kafka_reader({"bootstrap.servers": "127.0.0.1:1", "no.such": "x"}, [OffsetRange("a", 0, 0, 0)])


def test_a_librdkafka_with_another_struct_layout_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Shifted(ctypes.Structure):
        _fields_ = (("more", ctypes.c_int64), *Message._fields_)

    librdkafka.cache_clear()
    monkeypatch.setattr("frazil.kafka.librdkafka.Message", Shifted)
    with pytest.raises(EnvironmentUnusable, match="fields of a message do not have the expected values") as refused:
        readers.create_kafka_reader({"bootstrap.servers": "127.0.0.1:1"}, [OffsetRange("a", 0, 0, 0)])
    assert str(refused.value).endswith("Install confluent-kafka from its wheel, in a version that frazil supports")
    monkeypatch.undo()
    assert librdkafka() is librdkafka()


def test_a_client_that_librdkafka_refuses_leaves_nothing_behind(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KafkaException, match="ssl"):
        librdkafka().consumer(
            {"group.id": "g", "security.protocol": "ssl", "ssl.ca.location": "/no/such/file"},
            ErrorCallback(),
            ThrottleCallback(),
        )
    assert capfd.readouterr() == ("", "")


def test_a_forked_child_does_not_close_the_reader_of_its_parent() -> None:
    with ColumnReader({"bootstrap.servers": "127.0.0.1:1"}, [OffsetRange("a", 0, 0, 1)]) as reader:
        child = os.fork()
        if child == 0:
            reader.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
