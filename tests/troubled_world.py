"""A shop's streams, half of them in trouble, with everything that the operations page shows about them.

The real code makes the batches (`tests.made_batches`), histories, signals and desired states. Kafka has the committed
records, and unread ones. No writer runs: one idle process stands for all writers, and this module writes their
heartbeats.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
from confluent_kafka import Producer

from frazil import clock
from frazil.dev.kafka import EmbeddedKafka
from frazil.errors import AccessDenied, CommitUnavailable
from frazil.history.objects import HistoryStore
from frazil.home import run_folder
from frazil.host.heartbeat import Stall, StallKind
from frazil.host.records import GivenUp, SupervisorNotes, write_notes
from frazil.kafka.admin import KafkaAdmin
from frazil.maintenance.outcomes import Ending, PastOutcome
from frazil.spec.load import load_stream
from frazil.supervise.desired_state import DesiredStore
from tests.made_batches import MadeStream
from tests.made_history import HOUR_MS, MINUTE_MS, MadeHistory
from tests.silent_server import silent_server

HISTORY_HOURS = 50
"""Enough hours to make yesterday complete at any time of day."""
HEARTBEAT_INTERVAL_S = 3.0
SILENT = "far"
"""The catalog that hangs."""
DECLARED = """\
name: {name}
source: {{topics: [shop.{name}], bootstrap-servers: "{kafka}"}}
table: {table}
schema: {{id: long not null, at: timestamptz not null, token: string}}
event-time: at
{extra}
"""
HOURS = "partition-by: [day(at)]\ncomplete: hour\ncomplete-from: {begin}\n"
FULL = AccessDenied("the storage refuses to write to the bucket of shop.payments (403): its key has expired")
GONE = CommitUnavailable("the catalog refuses the commit to shop.inventory: the disk of its database is full")


@dataclass
class TroubledWorld:
    """The streams of the shop. Their writers seem to run during `alive`."""

    folder: Path
    kafka: EmbeddedKafka
    commits: int
    """Commits of each stream, one a minute."""
    silent_port: int
    now_ms: int = field(default_factory=clock.now_ms)
    _heartbeats: list[Callable[[int], None]] = field(default_factory=list)

    @property
    def streams(self) -> Path:
        return self.folder / "streams"

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which a process sees this world."""
        return {
            "FRAZIL_HOME": str(self.folder / "home"),
            "FRAZIL_STREAMS": str(self.streams),
            f"PYICEBERG_CATALOG__{SILENT.upper()}__TYPE": "rest",
            f"PYICEBERG_CATALOG__{SILENT.upper()}__URI": f"http://127.0.0.1:{self.silent_port}",
        }

    def declare(self, name: str, extra: str = "", *, table: str | None = None) -> Path:
        """Write a stream's file, even if the stream never begins."""
        file = self.streams / f"{name}.yaml"
        begin = clock_text(self.now_ms - HISTORY_HOURS * HOUR_MS)
        text = DECLARED.format(name=name, kafka=self.kafka.bootstrap, table=table or f"shop.{name}", extra=extra)
        file.write_text(text.replace("{begin}", begin))
        return file

    def begin(self, name: str, extra: str = "", *, partitions: int = 4) -> MadeHistory:
        """Declare and begin a stream."""
        spec = load_stream(self.declare(name, extra))
        self.kafka.create_topic(f"shop.{name}", partitions)
        with KafkaAdmin({"bootstrap.servers": self.kafka.bootstrap}, spec.source.reads) as kafka:
            known = kafka.describe().identity
        return self.history(
            MadeStream(spec, self.now_ms - self.commits * MINUTE_MS, partitions=partitions, known=known)
        )

    def history(self, made: MadeStream) -> MadeHistory:
        with ExitStack() as dated:  # PyIceberg dates a new table by the host's clock
            for module in ("pyiceberg.table.metadata", "pyiceberg.table.update"):
                dated.enter_context(patch(f"{module}.datetime_to_millis", lambda _: made.now_ms))
            return MadeHistory(made, [0] * made.partitions, made.now_ms, self._heartbeats.append)

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Write heartbeats within the block, as if the writers ran."""
        over = threading.Event()

        def heartbeat() -> None:
            while True:
                for one in self._heartbeats:
                    one(clock.now_ms())
                if over.wait(HEARTBEAT_INTERVAL_S):
                    return

        thread = threading.Thread(target=heartbeat, name="heartbeats", daemon=True)
        thread.start()
        yield
        over.set()
        thread.join()


def clock_text(at_ms: int) -> str:
    return np.datetime_as_string(np.datetime64(at_ms // HOUR_MS * HOUR_MS, "ms"), unit="s") + "Z"


@contextmanager
def troubled_world(
    folder: Path, kafka: EmbeddedKafka, *, commits: int = 16, streams: int | None = None
) -> Iterator[TroubledWorld]:
    """Yield the world while its writers run.

    `commits` is the number of minutes that its streams have run. `streams` is the number of streams; a large number
    adds healthy ones. By default, the world has all streams that this module defines.
    """
    with ExitStack() as stack:
        world = TroubledWorld(folder, kafka, commits, stack.enter_context(silent_server()).port)
        world.streams.mkdir()
        # It ends with its input, and so with this process, however that ends.
        writers = stack.enter_context(subprocess.Popen(["cat"], stdin=subprocess.PIPE))
        with patch.dict(os.environ, world.environment):
            histories = [make(world, writers.pid) for make in TROUBLES[:streams]]
            if streams is None or streams > len(TROUBLES):
                _others(world)
            for number in range(len(TROUBLES) + OTHERS, streams or 0):
                _small(world, f"shop{number:03}", writers.pid)
            _fill(world.kafka, histories)
            stack.enter_context(world.alive())
        yield world


def wave(limit: int, partitions: int = 4) -> Callable[[int], list[int]]:
    """Return a function from a minute to each partition's number of records, which goes up and down like real sales."""
    return lambda minute: [int(limit * (0.8 + 0.2 * np.sin(minute / 5 + p))) for p in range(partitions)]


def _orders(world: TroubledWorld, pid: int) -> MadeHistory:
    """Healthy: complete hours, one of them reopened by late rows, and a compaction."""
    orders = world.begin("orders", HOURS)
    orders.batch([1500] * 4, hours=HISTORY_HOURS - 1)
    orders.signalled()
    orders.batch([12, 0, 0, 0], ago_hours=5)
    orders.compacted_between(world.commits - 2, wave(300))
    orders.signalled()
    orders.runs(pid=pid)
    return orders


def _clicks(world: TroubledWorld, pid: int) -> MadeHistory:
    """Lagging: most of the unread records are in one of its eight topic-partitions."""
    lag = "maintenance: {alerts: {lag: 20000}}\n"
    clicks = world.begin("clicks", f"partition-by: [day(at)]\ncomplete: none\n{lag}", partitions=8)
    clicks.waits = {p: 31_000 if p == 5 else 700 + 90 * p for p in range(8)}
    batches, waiting = world.commits // 2, sum(clicks.waits.values())
    for n in range(1, batches + 1):
        lag, seconds = waiting * n // batches, 60 + 30 * n / batches
        clicks.batch(wave(400, 8)(n), lag=lag, seconds=seconds, behind={5: 2}, every=2)
    clicks.runs(pid=pid, backpressure_ms=52_000)
    return clicks


def _sensors(world: TroubledWorld, pid: int) -> MadeHistory:
    """Late: one topic-partition holds its windows back."""
    sensors = world.begin("sensors", HOURS)
    sensors.batch([900] * 4, hours=HISTORY_HOURS - 1, behind={3: 5})
    sensors.minutes(world.commits - 1, wave(150), behind={3: 5})
    sensors.signalled()
    since_ms = world.now_ms - 5 * HOUR_MS
    said = (
        "the watermark has not moved for 5 h: shop.sensors-3 has records, and none of them is newer than "
        f"{clock_text(since_ms)}. See what its producer sends, or let it count as idle with watermark.idle-timeout"
    )
    sensors.runs(pid=pid, stall=Stall(StallKind.WATERMARK, since_ms, "shop.sensors-3", said))
    return sensors


def _shipments(world: TroubledWorld, pid: int) -> MadeHistory:
    """Held: a quality gate holds one of its hours. An operator has released another."""
    shipments = world.begin("shipments", HOURS)
    shipments.batch([600] * 4, hours=HISTORY_HOURS - 1)
    note = "expect_column_values_to_not_be_null(carrier): 412 of 960 rows are null (/frazil/data-docs/shipments.html)"
    shipments.signalled(held={3: note, 9: note})
    shipments.released(9, "released by ada, Airflow: the carrier was not known that night")
    shipments.batch([0, 9, 0, 0], ago_hours=12)
    shipments.compacted_between(world.commits - 2, wave(80))
    shipments.signalled()
    shipments.runs(pid=pid)
    return shipments


def _signups(world: TroubledWorld, pid: int) -> MadeHistory:
    """Rejecting: a producer sends invalid records."""
    signups = world.begin("signups", "partition-by: [day(at)]\ncomplete: none\n")
    half = world.commits // 2
    signups.minutes(half, wave(90))
    signups.minutes(world.commits - half, wave(90), bad={"NotJson": 31, "MissingField": 12, "OutOfRange": 3})
    signups.runs(pid=pid)
    return signups


def _payments(world: TroubledWorld, _: int) -> MadeHistory:
    """Stopped: its supervisor has given up."""
    payments = world.begin("payments", "partition-by: [day(at)]\ncomplete: none\n")
    payments.minutes(world.commits - 8, wave(120))
    payments.waits = dict.fromkeys(range(4), 900)
    now_ms = world.now_ms
    launch = payments.ended([(7, 16, str(FULL))], now_ms=now_ms)
    write_notes(run_folder("payments"), SupervisorNotes(given_up=GivenUp(launch.id, now_ms - 7 * MINUTE_MS, str(FULL))))
    payments.supervised((7, f"the supervisor gives up; an operator must fix the cause (failed): {FULL}"), now_ms=now_ms)
    return payments


def _inventory(world: TroubledWorld, _: int) -> MadeHistory:
    """Crashing: a crash loop, in which each exit has its reason."""
    inventory = world.begin("inventory", "partition-by: [day(at)]\ncomplete: none\n")
    inventory.minutes(world.commits - 12, wave(60))
    inventory.waits = dict.fromkeys(range(4), 400)
    full = f"CommitUnavailable: {GONE}"
    ends = [(11, 21, full), (9, 137, None), (6, 21, full), (2, 21, full)]
    inventory.ended(ends, now_ms=world.now_ms)
    restarts = [(m, f"the writer is restarted (crashed): it ended with exit code {code}") for m, code, _ in ends]
    inventory.supervised(*restarts, now_ms=world.now_ms)
    return inventory


def _pageviews(world: TroubledWorld, pid: int) -> MadeHistory:
    """Badly shaped: its table has many small files."""
    extra = "partition-by: [hour(at), 'bucket(8, id)']\ncomplete: none\n"
    alerts = "{small-files: 300, manifest-list-bytes-per-file: 16}"
    limits = f"maintenance: {{alerts: {alerts}, expiry: {{at-least: 5, at-most: 10}}}}\n"
    views = world.begin("pageviews", extra + limits)
    views.batch([2500] * 4, hours=HISTORY_HOURS - 1)
    views.minutes(world.commits - 1, wave(200))
    failed = "SparkFailed: java.lang.OutOfMemoryError: Java heap space. Give the application more spark.driver.memory"
    views.cared_for(*(PastOutcome(0, "compaction", Ending.FAILED, failed) for _ in range(2)), minutes=60)
    views.runs(pid=pid)
    return views


def _customers(world: TroubledWorld, pid: int) -> MadeHistory:
    """Healthy: upserts by key."""
    customers = world.begin("customers", "mode: upsert\nkey: id\ncomplete: none\n", partitions=2)
    customers.minutes(min(world.commits, 12), wave(60, 2))
    customers.runs(pid=pid)
    return customers


def _refunds(world: TroubledWorld, _: int) -> MadeHistory:
    """Paused by an operator."""
    refunds = world.begin("refunds", "partition-by: [day(at)]\ncomplete: none\n")
    refunds.minutes(world.commits - 4, wave(30))
    refunds.waits = dict.fromkeys(range(4), 150)
    DesiredStore("refunds", refunds.made.tables.main.current()).pause(by="ada", reason="until the new schema is out")
    return refunds


def _returns(world: TroubledWorld, _: int) -> MadeHistory:
    """Healthy: its writer runs on another host, and a backfill is in progress."""
    returns = world.begin("returns", HOURS, partitions=2)
    returns.batch([300] * 2, hours=HISTORY_HOURS - 1)
    returns.minutes(world.commits - 1, wave(40, 2))
    returns.signalled()
    returns.backfills(20, 400)
    return returns


TROUBLES = (
    _orders, _clicks, _sensors, _shipments, _signups, _payments, _inventory, _pageviews, _customers, _refunds, _returns,
)  # fmt: skip


OTHERS = 3


def _others(world: TroubledWorld) -> None:
    """Add a stream whose catalog hangs, one that never began, and one whose file is broken."""
    world.declare("suppliers", table=f"{{identifier: shop.suppliers, catalog: {SILENT}}}")
    world.declare("vouchers")
    (world.streams / "wishes.yaml").write_text("name: wishes\nschema: {id: lung}\n")


def _small(world: TroubledWorld, name: str, pid: int) -> None:
    """Add a healthy stream with two batches. Its topic does not exist in Kafka."""
    spec = load_stream(world.declare(name, "partition-by: [day(at)]\ncomplete: none\n"))
    small = world.history(MadeStream(spec, world.now_ms - 2 * MINUTE_MS, partitions=2))
    small.minutes(2, wave(50, 2))
    small.runs(pid=pid)


def _fill(kafka: EmbeddedKafka, histories: Sequence[MadeHistory]) -> None:
    """Produce each stream's committed and unread records to Kafka, and write its history."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 50, "queue.buffering.max.messages": 10**6})
    for history in histories:
        for partition, end in enumerate(history.read):
            for _ in range(end + history.waits.get(partition, 0)):
                producer.produce(history.made.topic, b"{}", partition=partition)
        history.recorder.opens(partial(HistoryStore.open, history.made.tables.main.current(), history.name))
        history.recorder.write(clock.now_ms())
    assert producer.flush(60) == 0
