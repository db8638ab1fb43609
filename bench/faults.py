"""How soon the page and alerts name ten faults, and report their end: `python -m bench.faults [NAME…]`.

Each fault has its own stream with 20 records per second, whose writer runs without a JVM under the real supervisor. The
stream's line on the page is read every two seconds, as the API server builds it. The alerts are measured every 60
seconds, as `frazil_health` does, but without the delays of Airflow's scheduler and tasks. All faults begin at the same
time, right after a measurement, which is the worst moment, and end together. Prints the seconds until page, alert and
notification name the cause and, after the fix, until the line is green and the alert has ended; `-` if never.

Needs root, because the read-only storage is a separate file system. The times depend on the load of the host: report
both.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException, Producer

from frazil.operations.overview import ActiveAlert

CHECKOUT = Path(__file__).resolve().parents[1]
EVERY_S, READ_S, RECORDS_PER_S, START_WITHIN_S = 60, 2, 20, 300
NAMED_WITHIN_S, OVER_WITHIN_S = 200, 150
STREAM = """
name: {name}
source: {{topics: [{name}], format: {format}, bootstrap-servers: "{bootstrap}"}}
table: {{identifier: test.{name}, catalog: {catalog}}}
schema: {{id: long not null, at: timestamptz not null}}
event-time: at
complete: none
commit: {{interval: 5s}}
"""
SCHEMA = (
    '{"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}, '
    '{"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}%s]}'
)


@dataclass
class Fault:
    """A fault of one stream. Texts that name the cause contain `word`; `alerts` tells whether an alert is expected."""

    name: str
    word: str
    alerts: bool = True
    yaml: str = ""
    format: str = "json"
    begin: Callable[[], None] = lambda: None
    end: Callable[[], None] = lambda: None
    broker: Any = None
    catalog: str = "well"
    value: Callable[[int], bytes] = lambda n: b'{"id": %d, "at": "%s"}' % (n, moment())
    per_s: int = RECORDS_PER_S
    seen: dict[str, float] = field(default_factory=dict)
    """Seconds until each was first seen: `page`, `alert`, `notified`, `green`, `over`."""
    said: str = ""
    last: str = ""
    """The last texts of page and alerts before the fix."""


def moment() -> bytes:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()).encode()


def varint(value: int) -> bytes:
    value, found = value << 1, bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


class World:
    """The streams, their brokers, catalogs, supervisors and producers, below one folder."""

    def __init__(self, folder: Path, exits: ExitStack) -> None:
        from frazil.dev.kafka import EmbeddedKafka
        from tests.made_registry import made_registry

        self.folder, self.streams, self.ended = folder, folder / "streams", threading.Event()
        self.streams.mkdir()
        self.kafka, self.other = EmbeddedKafka(folder / "kafka"), EmbeddedKafka(folder / "other-kafka")
        for broker in (self.kafka, self.other):
            exits.callback(broker.stop)
            broker.start()
        self.registry = exits.enter_context(made_registry())
        self.mount = folder / "read-only"
        self.mount.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(self.mount)], check=True)
        exits.callback(partial(subprocess.run, ["umount", "-l", str(self.mount)], check=False))
        places = {"well": folder / "well", "locked": folder / "locked", "disk": self.mount / "lake"}
        lines = ["legacy-current-snapshot-id: false", "catalog:"]
        for name, place in places.items():
            (folder / name).mkdir(exist_ok=True)
            uri, lake = f"sqlite:///{folder / name}/catalog.db", place.as_uri()
            lines += [f"  {name}:", "    type: sql", f"    uri: {uri}", f"    warehouse: {lake}"]
        (folder / ".pyiceberg.yaml").write_text("\n".join(lines))
        self.faults = {fault.name: fault for fault in self._faults()}

    def _faults(self) -> Iterator[Fault]:
        killing, locked = threading.Event(), threading.Event()
        yield Fault("broker", "Kafka at", broker=self.other, begin=self.other.stop, end=self.other.start)
        begin = partial(self.thread, self._lock_catalog, locked)
        yield Fault("catalog", "locked", catalog="locked", begin=begin, end=locked.set)
        yield Fault(
            "storage",
            "storage",
            catalog="disk",
            begin=partial(self._remount, "ro"),
            end=partial(self._remount, "rw"),
        )
        yield Fault("declaration", "tabel", begin=partial(self._declare, "tabel: x\n"), end=partial(self._declare, ""))
        begin = partial(self.thread, self._kill_writers, killing)
        yield Fault("crashing", "signal 9", begin=begin, end=partial(self._end_kills, killing))
        url = self.registry.url
        yield Fault(
            "registry",
            "registry",
            format=f"{{type: avro, registry: {{url: '{url}'}}}}",
            value=self._avro,
            begin=self._forget_schemas,
            end=self._know_schemas,
        )
        yield Fault("flood", "dead letters", begin=partial(self._flood, yes=True), end=self._accept_flood)
        command = partial(self.command, "pause", "paused", "--reason", "a test")
        yield Fault("paused", "a test", alerts=False, begin=command, end=partial(self.command, "resume", "paused"))
        yield Fault("topic", "no topic", begin=self._delete_topic, end=self._make_topic_again)
        alerts = "maintenance: {alerts: {lag: 2000, hold: 1m}}\ncommit: {interval: 5s, max-records: 100}\n"
        yield Fault("slow", "records wait", yaml=alerts, begin=partial(self._rate, 1_000), end=partial(self._rate, 1))

    def start(self, names: list[str]) -> None:
        self.faults = {name: fault for name, fault in self.faults.items() if not names or name in names}
        self._know_schemas()
        for fault in self.faults.values():
            fault.broker = fault.broker or self.kafka
            fault.broker.create_topic(fault.name)
            self._write(fault, "")
            self.thread(self._produce, fault)
            self.thread(self._supervise, fault)

    def end(self) -> None:
        from frazil.host.local import LocalLauncher

        self.ended.set()
        time.sleep(5)  # writers end after their batch
        for name in self.faults:
            LocalLauncher(name).stop(force=True)

    def thread(self, work: Callable[..., None], *arguments: Any) -> None:
        threading.Thread(target=work, args=arguments, daemon=True).start()

    def command(self, *arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "frazil", *arguments, "--streams", str(self.streams)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            print(f"frazil {' '.join(arguments)}: {done.stderr.strip()}", file=sys.stderr)

    def _write(self, fault: Fault, extra: str) -> None:
        facts = {"name": fault.name, "format": fault.format, "catalog": fault.catalog}
        text = STREAM.format(bootstrap=fault.broker.bootstrap, **facts)
        if "commit:" in fault.yaml:
            text = text.replace("commit: {interval: 5s}\n", "")
        (self.streams / f"{fault.name}.yaml").write_text(text + fault.yaml + extra)

    def _produce(self, fault: Fault) -> None:
        producer, number = Producer({"bootstrap.servers": fault.broker.bootstrap, "log_level": 0}), 0
        while not self.ended.wait(0.2):
            for _ in range(max(fault.per_s // 5, 1)):
                number += 1
                with suppress(BufferError, KafkaException):  # the topic may be gone
                    producer.produce(fault.name, fault.value(number))
            producer.poll(0)

    def _supervise(self, fault: Fault) -> None:
        from frazil.supervise.supervised import Program, SupervisedStream
        from frazil.supervise.supervisor import Supervisor

        main = CHECKOUT / "tests" / "writer_without_jvm.py"
        supervisor = Supervisor(SupervisedStream(Program(fault.name, self.streams, main)))
        while not self.ended.wait(1):
            supervisor.step()
        supervisor.stop("the bench has ended")

    def _lock_catalog(self, until: threading.Event) -> None:
        with sqlite3.connect(self.folder / "locked" / "catalog.db", isolation_level=None) as held:
            held.execute("BEGIN EXCLUSIVE")
            until.wait()
            held.execute("ROLLBACK")

    def _remount(self, mode: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{mode}", str(self.mount)], check=True)

    def _declare(self, extra: str) -> None:
        self._write(self.faults["declaration"], extra)

    def _kill_writers(self, until: threading.Event) -> None:
        from frazil.host.local import LocalLauncher

        while not until.wait(0.5):
            launch = LocalLauncher("crashing").observe().launch
            if launch is not None and launch.writer is not None:
                with suppress(ProcessLookupError):
                    os.kill(launch.writer.pid, signal.SIGKILL)

    def _end_kills(self, until: threading.Event) -> None:
        until.set()
        self.command("resume", "crashing")  # the supervisor has given up

    _schema = 1

    def _avro(self, number: int) -> bytes:
        more = varint(1) if self._schema == 2 else b""
        return b"\0" + self._schema.to_bytes(4, "big") + varint(number) + varint(int(time.time() * 1000)) + more

    def _know_schemas(self) -> None:
        more = ', {"name": "more", "type": "long"}'
        for number, text in ((1, SCHEMA % ""), (2, SCHEMA % more)):
            self.registry.answers[f"/schemas/ids/{number}"] = [(200, {"schema": text})]

    def _forget_schemas(self) -> None:
        for number in (1, 2):
            self.registry.answers[f"/schemas/ids/{number}"] = [(503, {"error_code": 503, "message": "down"})]
        self._schema = 2

    def _flood(self, *, yes: bool) -> None:
        self.faults["flood"].value = (lambda _: b"no JSON") if yes else Fault("", "").value
        self.faults["flood"].per_s = 1_000 if yes else RECORDS_PER_S

    def _accept_flood(self) -> None:
        self._flood(yes=False)
        self.command("resume", "flood", "--accept")

    def _delete_topic(self) -> None:
        admin = self.kafka.admin()  # a client that is dropped cancels what it was asked for
        admin.delete_topics(["topic"])["topic"].result(timeout=30)

    def _make_topic_again(self) -> None:
        with suppress(Exception):  # a producer may have made it
            self.kafka.create_topic("topic")
        self.command("pause", "topic", "--reason", "reset")
        self.command("reset", "topic", "--to", "marker", "--yes")
        self.command("resume", "topic")

    def _rate(self, per_s: int) -> None:
        self.faults["slow"].per_s = per_s


class Watch:
    """Records when page and alerts first name each fault, and when they first show that it has ended."""

    def __init__(self, world: World) -> None:
        self.world, self.begun_s, self.fixed_s = world, 0.0, 0.0
        self.store: dict[str, Any] = {}
        self.last: dict[str, str] = {}
        """The last words of each line."""
        self.alerts: dict[str, list[ActiveAlert]] = {}
        """The active alerts of each stream, which its line shows until the fix."""

    def green(self, name: str) -> bool:
        from frazil import clock
        from frazil.airflow.declared_streams import declared_streams
        from frazil.airflow.page.views import RESPONSE_TIMEOUT_S, answer_cache, build_reading, request_status
        from frazil.operations.overview import RelatedState, build_line
        from frazil.status.state import Level

        one = next((one for one in declared_streams(self.world.streams) if one.name == name), None)
        if one is None or one.spec is None:
            return False
        (answer,) = answer_cache().gather([request_status(one.spec)], timeout_s=RESPONSE_TIMEOUT_S)
        around = RelatedState(alerts=() if self.fixed_s else self.alerts.get(name, ()))
        line = build_line(name, one.spec, build_reading(one, answer), around, now_ms=clock.now_ms())
        fault = self.world.faults[name]
        said = " ".join([line.word, *(need.sentence for need in line.needs), *line.notes])
        self.last[name] = said
        if self.begun_s and not self.fixed_s and fault.word in said and line.level != Level.WELL:
            self.note(fault, "page", self.begun_s)
            fault.said = fault.said or f"{line.word}: {said.removeprefix(line.word).strip()}"
        return line.level == Level.WELL and answer.value is not None and answer.value.last_commit_at_ms is not None

    def note(self, fault: Fault, what: str, since_s: float) -> None:
        fault.seen.setdefault(what, time.monotonic() - since_s)

    def read(self, name: str) -> None:
        while not self.world.ended.wait(READ_S):
            if self.green(name) and self.fixed_s:
                self.note(self.world.faults[name], "green", self.fixed_s)

    def measure(self) -> None:
        """Measure once, as `frazil_health` does."""
        from frazil.airflow.health.tasks import measure_all
        from frazil.operations.message import build_message

        class Store:
            get, set = self.store.get, self.store.__setitem__

        found = measure_all(self.world.streams, Store)  # type: ignore[arg-type]
        message = build_message(found["fired"], is_over=False, active=found["active"], overview="")
        for name, fault in self.world.faults.items():
            active = [a for a in found["active"] if name in re.split(r"[ .:]", f"{a['table']} {a['rule']}")]
            of = [a["sentence"] for a in active]
            self.alerts[name] = [ActiveAlert(a["table"], a["rule"], a["since_ms"], a["sentence"]) for a in active]
            if not self.fixed_s:
                fault.last = " | ".join([f"page: {self.last.get(name)}", *(f"alert: {sentence}" for sentence in of)])
            if self.begun_s and not self.fixed_s and any(fault.word in sentence for sentence in of):
                self.note(fault, "alert", self.begun_s)
                if message and any(fault.word in one.sentence and name in one.about for one in message.problems):
                    self.note(fault, "notified", self.begun_s)
            if self.fixed_s and not of:
                self.note(fault, "over", self.fixed_s)

    def until(self, done: Callable[[], bool], within_s: float, begin: Callable[[], None]) -> None:
        """Call `begin` right after a measurement, and measure every minute until it is done."""
        self.measure()
        begin()
        deadline = time.monotonic() + within_s
        due = time.monotonic()
        while not done() and time.monotonic() < deadline:
            due = max(due + EVERY_S, time.monotonic())
            while time.monotonic() < due and not done():
                time.sleep(0.5)
            self.measure()


def show(faults: Iterable[Fault], load: float) -> None:
    columns = ("page", "alert", "notified", "green", "over")
    print(f"seconds; load {load:.1f} before, {os.getloadavg()[0]:.1f} at the end")
    print(f"{'fault':<12}" + "".join(f"{name:>10}" for name in columns) + "  the page's words")
    for fault in faults:
        times = "".join(f"{fault.seen[n]:>10.0f}" if n in fault.seen else f"{'-':>10}" for n in columns)
        print(f"{fault.name:<12}{times}  {fault.said[:110]}")
        if not {"page", "green"} <= fault.seen.keys() or (fault.alerts and "alert" not in fault.seen):
            print(f"{'':<12}before the fix: {fault.last[:600]}")


def main(names: list[str]) -> None:
    load = os.getloadavg()[0]
    with ExitStack() as exits:
        folder = Path(tempfile.mkdtemp(prefix="frazil-faults-"))
        exits.callback(shutil.rmtree, folder, ignore_errors=True)
        os.environ |= {"FRAZIL_HOME": str(folder / "home"), "PYICEBERG_HOME": str(folder)}
        os.environ |= {"AIRFLOW_HOME": str(folder / "airflow"), "FRAZIL_STREAMS": str(folder / "streams")}
        # Before any thread uses SQLAlchemy: its lock and the import of Airflow's models wait for each other.
        import frazil.airflow.health.tasks  # it also sets up Airflow's log, which does not belong here
        import frazil.airflow.page.views  # noqa: F401

        logging.disable(logging.CRITICAL)
        world = World(folder, exits)
        exits.callback(world.end)
        world.start(names)
        watch, faults = Watch(world), world.faults.values()
        deadline = time.monotonic() + START_WITHIN_S
        while waiting := [name for name in world.faults if not watch.green(name)]:
            if time.monotonic() > deadline:
                said = {name: watch.last.get(name, "its declaration is invalid") for name in waiting}
                raise SystemExit(f"not green before any fault: {said}")
            time.sleep(READ_S)
        for name in world.faults:
            world.thread(watch.read, name)

        def begin() -> None:
            watch.begun_s = time.monotonic()
            for fault in faults:
                world.thread(fault.begin)

        def fix() -> None:
            watch.fixed_s = time.monotonic()
            for fault in faults:
                world.thread(fault.end)

        def named() -> bool:
            return all({"page", *(("alert",) if f.alerts else ())} <= f.seen.keys() for f in faults)

        try:
            watch.until(named, NAMED_WITHIN_S, begin)
            watch.until(lambda: all({"green", "over"} <= f.seen.keys() for f in faults), OVER_WITHIN_S, fix)
        finally:
            show(faults, load)


if __name__ == "__main__":
    main(sys.argv[1:])
