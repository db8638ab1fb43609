"""One stream as its users see it: YAML, a topic, the `frazil` command on one or two hosts, and readers of its table.

A `World` also records what Kafka has had, so it can compute at any time what the tables must contain.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import duckdb
from confluent_kafka import Producer
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from frazil.dev.kafka import EmbeddedKafka
from frazil.partitions.windows import Window
from frazil.signals.signal_table import Signal, TableSignals
from frazil.spec.load import load_stream
from frazil.spec.route import derive_name_part
from frazil.table.catalogs import load_catalog
from tests.acceptance.airflow_server import AirflowServer, DagRun
from tests.acceptance.command_server import CommandServer, Done, Running
from tests.acceptance.truth import Fields, Record, read_topic, read_value, watermark
from tests.polling import eventually

BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
STEP = timedelta(minutes=20)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
BEGIN_US = (BEGIN - EPOCH) // MICROSECOND
MAX_TIMESTAMP_MS = "9223372036854775807"

Coordinates = tuple[int, int]
Landed = tuple[Coordinates, Fields]


@dataclass(frozen=True, slots=True)
class Shape:
    """How a stream and its table are laid out."""

    name: str
    partitions: int
    yaml: str
    properties: str = "{}"
    """The table's properties."""
    keeps: Literal["all", "first", "newest"] = "all"
    """The records of an id that become rows. Unless it is `all`, each record is sent in two versions."""
    routed: Literal["id", "note", "room"] | None = None
    """The column that chooses the table. `id` uses `ROUTED`, `room` is computed from the id by a transform, and `note`
    creates a table for each value by a template. All other records stay in the default table.
    """
    transformed: bool = False
    """Whether a transform drops some records and computes columns."""
    has_rest: bool = False
    """Whether a variant has all fields without a column. PyIceberg cannot read it."""

    def __str__(self) -> str:
        return self.name


ROUTED = {number: f"_{'odd' if number % 2 else 'even'}" for number in range(60) if number % 3}
"""The ids that a route sends to another table, with the suffix of its name."""
NOTES = ("x", "", None, "naïve ☃", 'a "quoted"\nline', "\u0000")

COLUMNS = ("id", "at", "note", "fare", "tags", "place")
FIELDS = (
    '{id: {type: long, required: true}, at: {type: timestamptz, required: true}, note: string, fare: "decimal(9, 2)", '
    'tags: "list<string>", place: "struct<city: string, zip: int>"}'
)
"""A record's fields, for a stream whose transform computes the columns."""

FORMAT_3 = '{format-version: "3"}'
SHAPES = (
    Shape("by day", 4, "partition-by: [day(at)]\ncommit: {interval: 1s}\n"),
    Shape("one partition, sorted", 1, "partition-by: [hour(at)]\nsort-by: [note, id desc]\ncommit: {interval: 1s}\n"),
    Shape(
        "buckets, small and shuffled batches",
        3,
        "partition-by: [bucket(2, id)]\ndistribution: hash\ncommit: {interval: 1s, max-records: 40}\n",
        '{write.target-file-size-bytes: "1024"}',
    ),
    Shape("whole windows", 2, "partition-by: [hour(at)]\ncommit: {interval: 1s, align: watermark}\n"),
    Shape(
        "upserted by id", 2,
        "mode: upsert\nkey: [id]\npartition-by: [day(at)]\ncommit: {interval: 1s}\n", keeps="newest",
    ),
    Shape(
        "without repeats", 3,
        "dedupe: {key: id, within: 1h}\npartition-by: [hour(at)]\ncommit: {interval: 1s}\n", keeps="first",
    ),
    Shape("routed", 3, "partition-by: [day(at)]\ncommit: {interval: 1s}\n", routed="id"),
    Shape("routed by a template", 2, "partition-by: [day(at)]\ncommit: {interval: 1s}\n", routed="note"),
    Shape(
        "routed and upserted", 2,
        "mode: upsert\nkey: [id]\npartition-by: [bucket(2, id)]\ncommit: {interval: 1s}\n",
        keeps="newest", routed="id",
    ),
    Shape(
        "routed without repeats", 2,
        "dedupe: {key: id, within: 1h}\npartition-by: [hour(at)]\ncommit: {interval: 1s}\n",
        keeps="first", routed="id",
    ),
    Shape("transformed", 2, "partition-by: [hour(at)]\ncommit: {interval: 1s}\n", transformed=True),
    Shape(
        "routed by a computed column", 3, "partition-by: [day(at)]\ncommit: {interval: 1s}\n",
        routed="room", transformed=True,
    ),
    Shape("of format version 3", 3, "partition-by: [day(at)]\ncommit: {interval: 1s}\n", FORMAT_3),
    Shape(
        "whole windows of format version 3", 2,
        "partition-by: [hour(at)]\ncommit: {interval: 1s, align: watermark}\n", FORMAT_3,
    ),
    Shape(
        "upserted with deletion vectors", 2,
        "mode: upsert\nmerge: merge-on-read\nkey: [id]\npartition-by: [day(at)]\ncommit: {interval: 1s}\n", FORMAT_3,
        keeps="newest",
    ),
    Shape(
        "of semi-structured values", 2,
        "rest: other\npartition-by: [day(at)]\ncommit: {interval: 1s}\n", FORMAT_3, has_rest=True,
    ),
)  # fmt: skip


@dataclass
class World:
    """All parts of one stream. No other world uses `folder`."""

    folder: Path
    kafka: EmbeddedKafka
    commands: CommandServer
    airflow: AirflowServer
    shape: Shape
    name: str
    spark: Callable[[], Any]
    """Returns a Spark session with Iceberg's runtime and the same catalog."""
    table_name: str = ""
    topic: str = ""
    generation: int = 0
    extra_columns: str = ""
    more: str = ""
    """More lines of the declaration."""
    grows: int = 0
    """How many undeclared fields the records have from now on."""
    idle_timeout: str = "1h"
    clock_ms: int = 0
    ahead: bool = False
    """Whether the table was written by a host whose clock was hours ahead."""
    running: Running | None = None
    produced: int = 0
    seen: dict[tuple[int, int, int], Record] = field(default_factory=dict)
    """Every record that a reader could have had, by (topic generation, partition, offset)."""
    lost: set[tuple[int, int, int]] = field(default_factory=set)
    """Records that Kafka deleted before the stream read them, with an operator's acceptance."""
    cleanups: list[Callable[[], None]] = field(default_factory=list)
    neighbour: World | None = None
    """Another stream of the same table, with a topic of its own."""
    signalled_to: datetime = BEGIN
    """All windows that end at this time or earlier were signalled."""
    pending_fix: Callable[[], None] | None = None
    """How an operator fixes the situation; see `fix`."""

    def begin(self) -> None:
        """Create the topic, and a valid declaration."""
        self.new_topic()
        self.declare()

    def new_topic(self) -> None:
        self.topic = self.topic or self.name
        settings = {
            "message.timestamp.after.max.ms": MAX_TIMESTAMP_MS,
            "message.timestamp.before.max.ms": MAX_TIMESTAMP_MS,
        }
        self.kafka.create_topic(self.topic, self.shape.partitions, settings)

    def add_neighbour(self) -> World:
        """Add another stream of the same table. Its first event times equal this stream's."""
        parts = (self.folder, self.kafka, self.commands, self.airflow, self.shape)
        made = World(*parts, f"{self.name}_b", self.spark, self.name)
        made.more = self.more  # streams of one table declare the same evolution
        made.begin()
        self.neighbour = made
        return made

    @property
    def file(self) -> Path:
        return self.folder / "streams" / f"{self.name}.yaml"

    @property
    def windows(self) -> str | None:
        """The grain of the table's windows, as in its time partition; None without windows."""
        return load_stream(self.file).window

    @property
    def identifier(self) -> str:
        return f"acceptance.{self.table_name or self.name}"

    @property
    def template(self) -> str:
        """The template of the routed tables' names. In Airflow, one DAG covers all tables of the template."""
        return f"{self.identifier}_of_{{value}}"

    @property
    def suffixes(self) -> list[str]:
        """The suffixes of all tables that the stream may have."""
        if self.shape.routed == "note":
            return ["", *(f"_of_{derive_name_part(note)}" for note in NOTES if note is not None)]
        return ["", *(sorted({*ROUTED.values()}) if self.shape.routed else ())]

    def declare(self) -> None:
        self.file.parent.mkdir(exist_ok=True)
        fields = f", schema: {FIELDS}" if self.shape.transformed else ""
        self.file.write_text(
            f"name: {self.name}\n"
            f"source: {{topics: [{self.topic}], format: json, bootstrap-servers: '{self.kafka.bootstrap}'{fields}}}\n"
            f"table: {{identifier: {self.identifier}, properties: {self.shape.properties}}}\n"
            "schema:\n"
            "  id: long not null\n"
            "  at: timestamptz not null\n"
            "  note: string\n"
            "  fare: decimal(9, 2)\n"
            "  tags: list<string>\n"
            "  place: 'struct<city: string, zip: int>'\n"
            f"{self.extra_columns}"
            f"{'  room: string' + chr(10) if self.shape.routed == 'room' else ''}"
            f"{'  other: variant' + chr(10) if self.shape.has_rest else ''}"
            "event-time: at\n"
            "lateness: 0s\n"
            f"complete-from: {BEGIN.isoformat()}\n"
            f"watermark: {{idle-timeout: {self.idle_timeout}}}\n"
            "maintenance: {alerts: {hold: 1ms, writer-down: 1ms, dead-letters: 60}}\n"
            f"{self.more}{self.shape.yaml}{self._transform()}{self._route()}"
        )

    def _transform(self) -> str:
        if not self.shape.transformed:
            return ""
        computed = [
            "CASE WHEN note = '' THEN 'none' ELSE note END AS note",
            *(["CASE WHEN id BETWEEN 0 AND 59 AND id % 3 <> 0 THEN 'of ' || (id % 2) ELSE 'others' END AS room"]
              if self.shape.routed == "room" else []),
            *(["CAST(NULL AS DOUBLE) AS surge"] if self.extra_columns else []),
        ]  # fmt: skip
        columns = ", ".join(["id", '"at"', "fare", "tags", "place", *computed])
        return f"transform: |\n  SELECT {columns} FROM records WHERE fare IS DISTINCT FROM 1\n"

    def read(self, value: bytes | None) -> Fields | None:
        """Return the row of a valid value; None if the value is a dead letter or the transform drops it."""
        row = read_value(value)
        if row is not None and self.shape.has_rest:
            record = json.loads(value or b"")
            place = {name: field for name, field in (record.get("place") or {}).items() if name not in {"city", "zip"}}
            left = {name: field for name, field in record.items() if name not in COLUMNS}
            left |= {"place": place} if place else {}
            return (*row, json.dumps(left, sort_keys=True) if left else None)
        if row is None or not self.shape.transformed:
            return row
        number, at, note, fare, *others = row
        return None if fare == 1 else (number, at, "none" if note == "" else note, fare, *others)

    def _route(self) -> str:
        if not self.shape.routed:
            return ""
        if self.shape.routed == "note":
            route = {"by": "field", "name": "note", "template": self.template, "complete": [self.template]}
            return f"route: {json.dumps(route)}\n"
        tables = {
            str(number) if self.shape.routed == "id" else f"of {number % 2}": f"{self.identifier}{suffix}"
            for number, suffix in ROUTED.items()
        }
        complete = sorted({*tables.values()}) if "(at)" in self.shape.yaml else []
        return (
            f"route: {json.dumps({'by': 'field', 'name': self.shape.routed, 'tables': tables, 'complete': complete})}\n"
        )

    # Kafka

    def value(self) -> bytes:
        """Return the next valid record. Records differ in which fields are missing, null or unusual."""
        number = self.produced
        self.produced += 1
        record: dict[str, Any] = {"id": number, "at": (BEGIN + number * STEP).isoformat().replace("+00:00", "Z")}
        optional = {
            "note": NOTES[number % len(NOTES)],
            "fare": (1, -12.5, None, 9999999.99, 0.1)[number % 5],
            "tags": ([], ["a", None], None, ["b", "b"])[number % 4],
            "place": (None, {"city": "Ur"}, {"zip": 1, "more": [{}]}, {})[number % 4],
            "ignored": {"deep": [[number]]},
        }
        record |= {key: field for n, (key, field) in enumerate(optional.items()) if (number + n) % 3}
        record |= {f"grown_{n}": {"by": number, "in": [str(n)]} for n in range(self.grows) if (number + n) % 2}
        return json.dumps(record, indent=None if number % 7 else 1).encode()

    def produce(self, count: int = 0, *, odd: Iterable[bytes | None] = (), timestamp_ms: int | None = None) -> None:
        """Send valid records and then the odd ones, round robin over the partitions."""
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap, "linger.ms": 1, "max.in.flight": 1})
        values = itertools.chain((self.value() for _ in range(count)), odd)
        for number, value in enumerate(values):
            stamped = {} if timestamp_ms is None else {"timestamp": timestamp_ms}
            for version in self.versions(value):
                producer.produce(self.topic, value=version, partition=number % self.shape.partitions, **stamped)
        assert producer.flush(30) == 0

    def versions(self, value: bytes | None) -> list[bytes | None]:
        """Return the values to send for a record. If only one row per id is kept, includes a version to be dropped."""
        if self.shape.keeps == "all" or read_value(value) is None:
            return [value]
        other = json.dumps({**json.loads(value or b""), "note": "another version"}).encode()
        return [value, other] if self.shape.keeps == "first" else [other, value]

    def witness(self) -> list[Record]:
        """Record what Kafka has now."""
        found = read_topic(self.kafka.bootstrap, self.topic, self.shape.partitions)
        self.seen |= {(self.generation, r.partition, r.offset): r for r in found}
        return found

    # The command

    def start(self, *arguments: str, host: str = "one", **how: Any) -> Running:
        home = self.folder / host
        environment = {"FRAZIL_HOME": str(home), "FRAZIL_STREAMS": str(self.file.parent)}
        return self.commands.start(*arguments, environment=environment, clock_ms=self.clock_ms, **how)

    def frazil(self, *arguments: str, host: str = "one") -> Done:
        """Run a command to its end."""
        return self.start(*arguments, host=host).end()

    def catch_up(self, *, code: int = 0) -> Done:
        done = self.frazil("run", self.name, "--until-caught-up")
        assert done.code == code, f"exit {done.code}, not {code}:\n{done.err[-3000:]}"
        assert "Traceback" not in done.err, done.err[-3000:]
        return done

    def run(self, *, host: str = "one", **how: Any) -> Running:
        """Start a writer that runs until it is stopped; `quiet` waits until it has nothing to do."""
        self.running = self.start("run", self.name, host=host, **how)
        return self.running

    def stop(self) -> None:
        """Ask a running writer to end. Its current batch commits."""
        running, self.running = self.running, None
        if running is not None:
            running.signal(signal.SIGTERM)
            done = running.end()
            assert done.code == 0, done.err[-3000:]

    def pause(self) -> None:
        """Pause the stream, so that no alert reports a missing writer."""
        done = self.frazil("pause", self.name)
        assert done.code == 0, done.err

    def status(self, host: str = "one") -> dict[str, Any]:
        """Return what `frazil status` reports about the stream, and about files that it cannot read."""
        done = self.frazil("status", "--json", host=host)
        found = done.json
        mine = [s for s in found["streams"] if s["name"] == self.name]
        return {**(mine[0] if mine else {"problems": []}), "errors": found["errors"], "code": done.code}

    def quiet(self, running: Running, host: str = "one") -> bool:
        """Wait until a writer has committed all records, or has ended. Return whether it still runs."""

        def check() -> bool:
            seen = self.status(host)
            mine = seen.get("writer", {}).get("pid") is not None
            return not running.runs or (mine and seen["lag"] == 0 and seen["writer"]["phase"] == "waiting")

        try:
            eventually(check)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.status(host)}\n{running.error_output[-3000:]}") from error
        return running.runs

    def writer_pid(self, host: str = "one") -> int:
        return int(eventually(lambda: (self.status(host).get("writer") or {}).get("pid")))

    # The tables

    def table(self, suffix: str = "") -> Table:
        return load_catalog(None).load_table(f"{self.identifier}{suffix}")

    def tables(self) -> list[Table]:
        """Return the stream's tables that exist. A route creates tables at the first start, or with a first record."""
        found = [self.table()]
        for suffix in self.suffixes[1:]:
            with contextlib.suppress(NoSuchTableError):
                found.append(self.table(suffix))
        return found

    def heads(self, table: Table) -> list[int]:
        """Return the snapshots that together contain all rows: main's head, and the head of the stream's open branch.

        Pass the same loaded table to a scan. With an older one, PyIceberg plans no files for a newer snapshot, without
        an error.
        """
        refs = table.metadata.refs
        return [ref.snapshot_id for name, ref in refs.items() if name in {"main", f"frazil-open-{self.name}"}]

    def landed(self) -> Counter[Landed]:
        """Return all rows, read by DuckDB from the Parquet files that the snapshots list."""
        files = [re.sub("^file:(//)?", "", f) for t in self.tables() for head in self.heads(t) for f in _files(t, head)]
        if not files:
            return Counter()
        rest = ", other::json" if self.shape.has_rest else ""
        rows = duckdb.sql(
            'select kafka_partition, kafka_offset, id, epoch_us("at"), note, fare, tags, place.city, place.zip,'
            f" place is null{rest} from read_parquet({files!r}, hive_partitioning = false)"
            f" where kafka_topic = '{self.topic}'"
        ).fetchall()
        return Counter(
            (
                (p, o),
                (
                    n,
                    EPOCH + timedelta(microseconds=at),
                    note,
                    fare,
                    None if tags is None else tuple(tags),
                    None if absent else (city, code),
                    *(text and json.dumps(json.loads(text), sort_keys=True) for text in other),
                ),
            )
            for p, o, n, at, note, fare, tags, city, code, absent, *other in rows
        )

    def rejected(self) -> Counter[tuple[Coordinates, bytes | None]]:
        dead_letters = self.table("_dead_letters").scan(f"kafka_topic = '{self.topic}'").to_arrow().to_pylist()
        assert all(x["error_class"] and x["error"] for x in dead_letters)
        return Counter(((x["kafka_partition"], x["kafka_offset"]), x["value"]) for x in dead_letters)

    def suffix(self, row: Fields) -> str:
        """Return the suffix of the table to which a row belongs."""
        number, note = row[0], row[2]
        if self.shape.routed == "note":
            return "" if note is None else f"_of_{derive_name_part(note)}"
        return ROUTED.get(number, "") if self.shape.routed else ""

    # The law

    def check(self) -> None:
        """Check that every record is in a table or the dead letters exactly once; and check the signals."""
        good = self._check_records()
        self._check_order_of_metadata()
        if self.generation or self.lost or self.idle_timeout != "1h":
            return
        passed = self._check_watermark()
        if self.neighbour is not None:
            good += self.neighbour._check_records()
            passed = min(passed, self.neighbour._check_watermark())
        self._check_signals(passed, good)

    def _check_records(self) -> Counter[Landed]:
        """Check the rows and dead letters. Return the rows."""
        good, bad = self.due()
        for found, due in ((self.landed(), good), (self.rejected(), bad)):
            assert found == due, self._log_findings(found, due)
        self._check_pyiceberg(good)
        return good

    def due(self) -> tuple[Counter[Landed], Counter[tuple[Coordinates, bytes | None]]]:
        """Return the rows that the tables must have, and the values that must be dead letters, once all is read."""
        self.witness()
        kept: dict[Any, Landed] = {}
        bad: Counter[tuple[Coordinates, bytes | None]] = Counter()
        for at, record in sorted(self.seen.items()):
            row, coordinates = self.read(record.value), (record.partition, record.offset)
            if at in self.lost or (row is None and read_value(record.value) is not None):
                continue
            if row is None or not _has_a_date(record.timestamp_ms):
                bad[coordinates, record.value] += 1
                continue
            key = at if self.shape.keeps == "all" else row[0]
            if self.shape.keeps == "newest" or key not in kept:
                kept[key] = coordinates, row
        return Counter(kept.values()), bad

    def _log_findings(self, found: Counter[Any], due: Counter[Any]) -> str:
        """Return a message with everything needed for a diagnosis after the tables are gone."""
        said = []
        for name, side in (("too many", found - due), ("missing", due - found)):
            said.append(f"{name}: {side.total()} of {due.total()}: {[*side][:3]}, at {sorted(row[0] for row in side)}")
        said.append(f"a second look finds {self.landed().total()} rows and {self.rejected().total()} dead letters")
        for table in (*self.tables(), self.table("_dead_letters")):
            refs = {ref: of.snapshot_id for ref, of in table.metadata.refs.items()}
            said.append(f"{table.name()}: {refs}")
            for made in table.snapshots():
                files = {
                    m.manifest_path: (m.added_files_count, m.existing_files_count) for m in made.manifests(table.io)
                }
                said.append(f"  {made.snapshot_id} after {made.parent_snapshot_id}: {files}, {made.summary}")
        return "\n".join(said)

    def _check_pyiceberg(self, good: Counter[Landed]) -> None:
        for table in self.tables():
            suffix = table.name()[-1].removeprefix(self.identifier.split(".")[1])
            columns = ("kafka_topic", "kafka_partition", "kafka_offset", "id") if self.shape.has_rest else ("*",)
            scans = [table.scan(snapshot_id=head, selected_fields=columns) for head in self.heads(table)]
            rows = [row for scan in scans for row in scan.to_arrow().to_pylist()]
            mine = [r for r in rows if r["kafka_topic"] == self.topic]
            assert Counter((r["kafka_partition"], r["kafka_offset"], r["id"]) for r in mine) == Counter(
                (*at, row[0]) for at, row in good.elements() if self.suffix(row) == suffix
            )

    def check_grown(self, *, within: int) -> None:
        """Check that each undeclared field became a column of its records' tables, in at most `within` schemas."""
        sent = {
            (r.partition, r.offset): json.loads(r.value or b"null") for r in self.seen.values() if read_value(r.value)
        }
        for table in self.tables():
            for row in (
                row for head in self.heads(table) for row in table.scan(snapshot_id=head).to_arrow().to_pylist()
            ):
                record = sent[row["kafka_partition"], row["kafka_offset"]]
                for name in ("ignored", *(f"grown_{n}" for n in range(self.grows))):
                    assert row.get(name) == record.get(name), row
            assert len(table.metadata.schemas) <= within

    def _check_order_of_metadata(self) -> None:
        """Check Java's rules: the times in both logs never decrease, and the last update is the newest time."""
        for table in (*self.tables(), self.table("_dead_letters")):
            metadata = table.metadata
            for log in (metadata.metadata_log, metadata.snapshot_log):
                times = [entry.timestamp_ms for entry in log]
                assert times == sorted(times)
                assert not times or times[-1] <= metadata.last_updated_ms

    def _check_watermark(self) -> datetime:
        expected = watermark(list(self.seen.values()), self.shape.partitions, self.read)
        assert self.status()["watermark-ms"] == (None if expected is None else int(expected.timestamp() * 1000))
        return expected or BEGIN

    def signal(self) -> dict[str, Mapping[Window, Signal]]:
        """Run the partition DAG of each table until it waits, and check that Airflow has an event for each signal.

        Returns the newest signal of each window, by the table's suffix.
        """
        if self.shape.routed != "note":
            return {suffix: self._signal(f"{self.identifier}{suffix}") for suffix in self.suffixes}
        self._signal(self.identifier)
        self._signal(self.template, dag=self.name)
        return {suffix: self._newest(f"{self.identifier}{suffix}") for suffix in self.suffixes}

    def _signal(self, identifier: str, *, dag: str = "") -> Mapping[Window, Signal]:
        """Run the DAG of a table, or of all tables of the template."""
        if self.windows is None:
            assert f"frazil_partitions_{dag or identifier}" not in self.airflow.parsed()[0]
            return {}
        eventually(lambda: self.airflow_run(f"partitions_{dag or identifier}").state == "waiting")
        signals = TableSignals.load(load_catalog(None), identifier)
        made = signals.after(0)
        newest = {(s.table, s.window): s for s in made}.values()
        assert Counter(self.airflow.published(identifier)) == Counter(
            (signals.event_key(s), s.number) for s in made if s.revision == 1
        )
        again = Counter(self.airflow.published(f"{identifier}.reopened"))
        assert again <= Counter((signals.event_key(s), s.number) for s in made if s.revision > 1)
        assert {(signals.event_key(s), s.number) for s in newest if s.revision > 1} <= set(again)
        return self._newest(identifier)

    def _newest(self, identifier: str) -> Mapping[Window, Signal]:
        return TableSignals.load(load_catalog(None), identifier).newest(from_us=0, to_us=2**62)

    def airflow_run(self, dag: str, *, hours_ahead: int = 0, **conf: Any) -> DagRun:
        """Run one of frazil's DAGs, and check that no task fails."""
        done = self.airflow.run(f"frazil_{dag}", conf=conf or None, hours_ahead=hours_ahead)
        assert done.state in {"success", "waiting"}, done
        return done

    def alerts(self) -> list[str]:
        """Run `frazil_health`, check its tasks' states, and return the messages of active alerts."""
        done = self.airflow.run("frazil_health")
        measured = done.xcom["measure"]
        said = [alert["sentence"] for alert in measured["active"]]
        changed = bool(measured["fired"] or measured["resolved"])
        assert done.tasks == {
            "measure": "success",
            "changed": "success" if changed else "skipped",
            "alerts": "failed" if said else "skipped",
            "resolved": "success" if measured["resolved"] else "skipped",
        }
        return said

    def _check_signals(self, passed: datetime, good: Counter[Landed]) -> None:
        """Check that exactly the windows that all watermarks have passed are signalled, with their numbers of rows."""
        signals, window = self.signal(), self.windows
        if window is None:
            return
        length = timedelta(days=1) if window == "day" else timedelta(hours=1)
        self.signalled_to = max(self.signalled_to, passed)
        for suffix, of_table in signals.items():
            rows = Counter((row[1] - BEGIN) // length for _, row in good.elements() if self.suffix(row) == suffix)
            complete = {number: rows[number] for number in range((self.signalled_to - BEGIN) // length)}
            if suffix.startswith("_of_") and not rows:
                continue  # no record has made this table, or none of its rows was kept
            found = {(w.start_us - BEGIN_US) // (length // MICROSECOND): s.rows for w, s in of_table.items()}
            assert found == complete, suffix

    def fix(self) -> None:
        """Fix the situation, if a fix is pending."""
        pending_fix, self.pending_fix = self.pending_fix, None
        if pending_fix:
            pending_fix()

    def check_green(self) -> None:
        """Check that `frazil status`, the DAG files and `frazil_health` show no problem, not even a pending alert."""
        seen = self.status()
        assert (seen["problems"], seen["errors"], seen["code"]) == ([], [], 0)
        assert self.airflow.parsed()[1] == ""
        assert self.alerts() == []
        states = self.airflow.alert_states()
        assert states == {}, states

    def check_red(self, word: str, *, audited: int | None) -> None:
        """Check that the problem shows in `frazil status`, the audit and the alerts, and that no other alert fires."""
        seen = self.status()
        assert any(word in problem for problem in (*seen["problems"], *seen["errors"])), seen
        if audited is not None:
            done = self.frazil("audit", self.name, "--source")
            assert done.code == audited, done.out + done.err
        self.alerts()
        said = self.alerts()  # by the second of two runs, for a rule holds until what it sees lasts
        assert any(word in sentence for sentence in said), said
        assert all(self.name in sentence for sentence in said), said

    def catalog_is_free(self) -> bool:
        """Return whether no stopped process has the embedded catalog's lock, which would block all other processes."""
        uri = self.commands.environment["PYICEBERG_CATALOG__DEFAULT__URI"]
        with closing(sqlite3.connect(uri.removeprefix("sqlite:///").partition("?")[0], timeout=0)) as database:
            try:
                database.execute("BEGIN EXCLUSIVE")
            except sqlite3.OperationalError:
                return False
            return True

    def close(self) -> None:
        """Close everything. Also works after a failed test."""
        self.commands.end_all()
        for clean in reversed(self.cleanups):
            clean()


def _files(table: Table, snapshot_id: int) -> list[str]:
    return [task.file.file_path for task in table.scan(snapshot_id=snapshot_id).plan_files()]


def _has_a_date(timestamp_ms: int) -> bool:
    """Return whether the column `kafka_timestamp` can store a Kafka timestamp."""
    return timestamp_ms <= datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp() * 1000
