"""An object store that is slow, fails or expires credentials: whole batches are staged, journaled and committed on it.

All of a batch is real but Kafka and Spark: the records are made, and its tasks run in this process.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from frazil.dev.object_store import REGION, EmbeddedObjectStore
from frazil.errors import CommitUnavailable
from frazil.events import Event, EventDispatcher, OutageReported, PhaseBegan
from frazil.host.heartbeat import Heartbeat, Phase
from frazil.ingest import readers
from frazil.ingest.chunk import BinaryColumn, RecordChunk
from frazil.ingest.contract import OffsetRange, StageTask
from frazil.kafka.admin import KafkaAdmin
from frazil.stream import outage
from frazil.stream.batch import BatchRunner
from frazil.stream.notices import Notices
from frazil.stream.plan import Position
from frazil.stream.progress import ProgressFolder
from frazil.stream.reporter import Reporter
from frazil.stream.route import StreamRoute
from frazil.stream.stall import StallLimits
from tests.in_process_engine import InProcessEngine
from tests.made_batches import MadeStream
from tests.substrates.conftest import NOW_MS, catalog_of, configure
from tests.substrates.test_bad_catalog import SUBSTRATE, check_each_landed_once
from tests.substrates.test_behaviour import Made, offsets, rows
from tests.troubled_proxy import (
    Answer,
    Call,
    Dropped,
    Forward,
    Trouble,
    TroubledProxy,
    drop_answer,
    every,
    instead,
    none,
    proxy,
    s3_error,
    signed_again,
    slow,
)


@dataclass
class Writer:
    """Writes one batch of ten records after another, with a visible heartbeat."""

    made: MadeStream
    folder: Path
    waits: list[float] = field(default_factory=list)
    reported: list[str] = field(default_factory=list)
    """The sentences of outages."""
    while_staging: Any = None
    """Called before a task's records are read."""

    def __post_init__(self) -> None:
        self.events = EventDispatcher(self.made.spec.name, self._hear, clock_ms=lambda: NOW_MS)
        limits = StallLimits.for_stream(self.made.spec)
        self.reporter = Reporter(self.events, fingerprint="f", folder=self.folder, limits=limits)
        self.engine = InProcessEngine()

    def _hear(self, event: Event) -> None:
        if isinstance(event.payload, OutageReported):
            self.reported.append(event.payload.sentence)

    def begin(self) -> Writer:
        made, tables = self.made, self.made.tables
        committer = made.begin()
        marker = tables.marker()
        assert marker is not None
        self.runner = BatchRunner(
            spec=made.spec,
            kafka=cast(KafkaAdmin, SimpleNamespace(describe=lambda: SimpleNamespace(identity=made.source))),
            kafka_properties={},
            tables=tables,
            committer=committer,
            marker=marker,
            emit=self.events.emit,
            run_folder=self.folder,
            progress=ProgressFolder(f"{tables.state}/progress", tables.main.io_properties),
            wait=self.waits.append,
            route=StreamRoute.begin(made.spec, tables, marker, None, self.events.emit),
            notices=Notices(self.events.emit, tables.main.identifier),
        )
        return self

    def run(self) -> None:
        start = self.runner.marker.offsets[self.made.topic, 0]
        task = StageTask(0, (OffsetRange(self.made.topic, 0, start, start + 10),))
        end = Position({**self.runner.marker.offsets, (self.made.topic, 0): start + 10})
        self.runner.run(lambda work: self.engine.run([json.dumps(task.to_json())], work), end, tasks=1)

    def read(self, _: object, ranges: tuple[OffsetRange, ...], **__: object) -> AbstractContextManager[Any]:
        """Yield generated records instead of Kafka's."""
        if self.while_staging:
            self.while_staging()
        (one,) = ranges
        count = one.end - one.start
        values = BinaryColumn.of([b'{"at": "2026-01-01T00:00:00Z"}'] * count)
        chunk = RecordChunk(
            values,
            BinaryColumn.of([None] * count),
            np.zeros(count, np.int32),
            np.arange(one.start, one.end),
            np.full(count, NOW_MS, np.int64),
        )
        return nullcontext(Reader([chunk]))

    def heartbeat(self) -> Heartbeat:
        self.reporter.send_heartbeat()
        found = Heartbeat.read(self.folder)
        assert found is not None
        return found


class Reader(list[RecordChunk]):
    notice = None


@pytest.fixture
def bucket(object_store: EmbeddedObjectStore) -> Iterator[TroubledProxy]:
    """A proxy in front of SeaweedFS's S3."""
    with proxy(object_store.endpoint) as bucket:
        yield bucket


@pytest.fixture
def gateway(object_store: EmbeddedObjectStore) -> Iterator[TroubledProxy]:
    """A proxy in front of SeaweedFS's REST catalog."""
    with proxy(object_store.catalog_uri) as gateway:
        yield gateway


@pytest.fixture
def substrate(
    object_store: EmbeddedObjectStore,
    bucket: TroubledProxy,
    gateway: TroubledProxy,
    frazil_home: Path,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    configure(monkeypatch, SUBSTRATE, {**object_store.rest_catalog(), "uri": gateway.uri, "s3.endpoint": bucket.uri})
    return SUBSTRATE


@pytest.fixture
def writer(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Writer:
    found = Writer(made(), tmp_path)
    monkeypatch.setattr(readers, "create_kafka_reader", found.read)
    return found


def slow_down(call: Call, forward: Forward) -> Answer:  # noqa: ARG001 - a trouble
    return s3_error(503, "SlowDown", "Please reduce your request rate.")


def reset(call: Call, forward: Forward) -> Answer:  # noqa: ARG001 - a trouble
    raise Dropped


def is_put(call: Call) -> bool:
    return call.method == "PUT"


def is_upload(call: Call) -> bool:
    """Whether a data file is uploaded: Arrow tries it three times within a second."""
    return call.method in ("PUT", "POST") and ".parquet" in call.path


def of_uploads(trouble: Trouble) -> Trouble:
    return lambda call, forward: trouble(call, forward) if is_upload(call) else forward(call)


@pytest.mark.parametrize(
    "trouble",
    [
        pytest.param(every(12, instead(s3_error(500, "InternalError"))), marks=pytest.mark.soak),
        pytest.param(every(4, reset), marks=pytest.mark.soak),
        every(2, drop_answer, of=is_put),
    ],
    ids=["500", "reset", "the answer of a put lost"],
)
def test_a_storage_with_occasional_failures_loses_and_repeats_nothing(
    writer: Writer, bucket: TroubledProxy, trouble: Trouble
) -> None:
    writer.begin()
    bucket.trouble = trouble
    for _ in range(2):
        writer.run()
    bucket.trouble = none
    check_each_landed_once(writer.made, 2)
    assert writer.reported == [], "the clients' own retries are enough"


@pytest.mark.soak
@pytest.mark.parametrize("trouble", [slow_down, reset, instead(s3_error(500, "InternalError"))])
def test_a_slow_storage_that_fails_five_percent_of_all_calls_loses_and_repeats_nothing(
    writer: Writer, bucket: TroubledProxy, trouble: Trouble
) -> None:
    writer.begin()
    draw = random.Random(1)

    def now_and_then(call: Call, forward: Forward) -> Answer:
        return (trouble if draw.random() < 0.05 else none)(call, forward)

    bucket.trouble = slow(0.2, now_and_then)
    for _ in range(20):
        writer.run()
    bucket.trouble = none
    check_each_landed_once(writer.made, 20)


def test_a_lasting_storage_error_turns_the_status_red_and_green_again_after_its_end(
    writer: Writer, bucket: TroubledProxy, caplog: pytest.LogCaptureFixture
) -> None:
    writer.begin().run()
    bucket.trouble = of_uploads(slow_down)
    seen = []

    def wait(_: float) -> None:
        seen.append(writer.heartbeat().outage)
        bucket.trouble = none

    writer.runner.wait = wait
    writer.run()
    (said,) = writer.reported
    assert re.search(r"batch \S+ cannot be staged: .*the object store fails: .*; trying again in \d+ s, for", said)
    assert said in caplog.text
    assert seen == [said]
    assert writer.heartbeat().outage is None
    check_each_landed_once(writer.made, 2)


def test_a_storage_that_stays_unavailable_ends_the_writer_and_the_next_writer_continues(
    writer: Writer, bucket: TroubledProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage, "OUTAGE_TIMEOUT_S", 0.0)
    writer.begin().run()
    bucket.trouble = of_uploads(reset)
    with pytest.raises(CommitUnavailable, match="the object store fails"):
        writer.run()
    bucket.trouble = none
    writer.made.committer = None
    writer.begin().run()
    assert rows(writer.made.tables) == offsets(0, 0, 20)


# Credentials that the catalog vends


class Vending:
    """A REST catalog that hands out credentials with each table, and the S3 that takes them until they expire.

    They expire when the test says so, and not by a clock.
    """

    def __init__(self, store: EmbeddedObjectStore) -> None:
        self._real = store.s3_properties()
        self.endpoint = ""
        self.serial = itertools.count(1)
        self.valid: set[str] = set()
        self.refused = 0

    def catalog(self, call: Call, forward: Forward) -> Answer:
        answer = forward(call)
        if answer.status != 200 or call.is_commit or b'"metadata-location"' not in answer.body:
            return answer
        assert call.header("X-Iceberg-Access-Delegation") == "vended-credentials"
        token = f"token-{next(self.serial)}"
        self.valid.add(token)
        vended = {
            "s3.endpoint": self.endpoint,
            "s3.region": REGION,
            "s3.access-key-id": "vended",
            "s3.secret-access-key": "vended-secret",
            "s3.session-token": token,
        }
        return dataclasses.replace(answer, body=json.dumps({**json.loads(answer.body), "config": vended}).encode())

    def storage(self, call: Call, forward: Forward) -> Answer:
        if call.header("x-amz-security-token") not in self.valid:
            self.refused += 1
            return s3_error(403, "ExpiredToken", "The provided token has expired.")
        key, secret = self._real["s3.access-key-id"], self._real["s3.secret-access-key"]
        return forward(signed_again(call, service="s3", key=key, secret=secret, region=REGION))

    def expire(self) -> None:
        """Expire all credentials that were issued until now."""
        self.valid.clear()


@pytest.fixture
def vending(
    substrate: str,  # noqa: ARG001 - configured before its keys are taken away
    object_store: EmbeddedObjectStore,
    bucket: TroubledProxy,
    gateway: TroubledProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> Vending:
    found = Vending(object_store)
    found.endpoint = bucket.uri
    bucket.trouble, gateway.trouble = found.storage, found.catalog
    for key in object_store.s3_properties():
        variable = key.upper().replace(".", "__").replace("-", "_")
        monkeypatch.delenv(f"PYICEBERG_CATALOG__{catalog_of(SUBSTRATE).upper()}__{variable}")
    return found


@pytest.mark.parametrize(
    "when",
    [
        pytest.param("before a batch", marks=pytest.mark.soak),
        "while it is staged",
        pytest.param("before it is journaled", marks=pytest.mark.soak),
        pytest.param("before it lands", marks=pytest.mark.soak),
    ],
)
def test_a_writer_runs_for_longer_than_vended_credentials_live(
    vending: Vending,
    writer: Writer,
    when: str,
) -> None:
    writer.begin().run()
    if when == "before a batch":
        vending.expire()
    elif when == "while it is staged":
        writer.while_staging = once(vending.expire)
    else:
        phase = Phase.JOURNALING if when == "before it is journaled" else Phase.COMMITTING
        writer.events.add(lambda event: vending.expire() if is_phase(event, phase) else None)
    writer.run()
    writer.run()
    assert vending.refused or when == "before a batch"
    assert len(writer.reported) == (when == "while it is staged")
    assert sum(writer.waits) == 0, "newer credentials are there at once"
    check_each_landed_once(writer.made, 3)


@pytest.mark.soak
def test_a_batch_that_repeatedly_outlives_its_credentials_is_reported(
    vending: Vending,
    writer: Writer,
) -> None:
    writer.begin().run()
    writer.while_staging = vending.expire
    with pytest.raises(CommitUnavailable, match=r"4 times in a row: the batch takes longer than"):
        writer.run()
    writer.while_staging = None
    writer.run()
    check_each_landed_once(writer.made, 2)


def once(operation: Callable[[], None]) -> Callable[[], None]:
    operations = [operation]

    def acted() -> None:
        if operations:
            operations.pop()()

    return acted


def is_phase(event: Event, phase: Phase) -> bool:
    return isinstance(event.payload, PhaseBegan) and event.payload.phase is phase
