"""Append with dedupe through a real broker: a record and its repeats are one row, whichever process is killed."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

CRASHING = Path(__file__).parents[1] / "faults" / "crashing_writer.py"
DEDUPE = """\
dedupe: {key: id, within: 1h}
complete: hour
commit: {interval: 1s}
"""
MISSING = "[0-9] missing|is missing"
LOST = r"records? in Kafka (has no row and is not a repeat|have no row and are not repeats): .+ at offsets? \d+"
START = datetime(2026, 1, 1, tzinfo=UTC)


class Source:
    """Sends each record one to three times, into one partition for each key, and knows which rows that makes."""

    def __init__(self, stream: Any, seed: int) -> None:
        self.stream, self.draw = stream, random.Random(seed)
        self.rows: dict[int, list[datetime]] = {}
        self.sent = 0

    def send(self, count: int) -> None:
        producer = Producer({"bootstrap.servers": self.stream.bootstrap, "linger.ms": 5, "max.in.flight": 1})
        for _ in range(count):
            key, at = self.draw.randrange(40), START + timedelta(minutes=self.draw.randrange(300))
            for _ in range(self.draw.choice([1, 1, 2, 3])):
                self.sent += 1
                value = {"id": key, "at": at.isoformat(), "note": str(self.sent)}
                producer.produce(self.stream.topic, json.dumps(value), partition=key % 4)
                kept = self.rows.setdefault(key, [])
                if not any(abs(at - one) <= timedelta(hours=1) for one in kept):
                    kept.append(at)
        assert producer.flush(30) == 0

    def check(self) -> None:
        found = self.stream.table().scan().to_arrow().to_pylist()
        assert sorted((row["id"], row["at"]) for row in found) == sorted(
            (key, at) for key, times in self.rows.items() for at in times
        )


@pytest.fixture
def source(stream: Any) -> Source:
    stream.declare(DEDUPE)
    return Source(stream, seed=2)


def test_repeats_are_dropped_although_rows_are_shuffled(stream: Any, source: Source) -> None:
    stream.declare(DEDUPE + "distribution: hash\n")
    path = stream.streams / "events.yaml"
    table = "table: {identifier: test.events, properties: {write.target-file-size-bytes: '1024'}}"
    path.write_text(path.read_text().replace("table: test.events", table))  # a batch has several tasks
    for count in (120, 80):
        source.send(count)
        stream.catch_up()
        source.check()


def repeated(stream: Any) -> int:
    reported = [snapshot.summary for snapshot in stream.table().metadata.snapshots if snapshot.summary]
    return sum(int(one.get("frazil.repeated") or 0) for one in reported)


def test_a_record_and_its_repeats_are_one_row(stream: Any, source: Source, frazil: Callable[..., Any]) -> None:
    for count in (120, 1, 80):
        source.send(count)
        stream.catch_up()
        source.check()
    stream.catch_up()  # nothing new
    source.check()
    rows = sum(map(len, source.rows.values()))
    assert repeated(stream) == source.sent - rows > 0
    assert "repeated" in frazil("status", "events").stdout
    for options in ((), ("--last", "1h"), ("--source",)):
        audited = frazil("audit", "events", *options)
        assert audited.returncode == 0, audited.stdout + audited.stderr
        assert f"dropped as repeats: {source.sent - rows} records" in audited.stdout
    reset = frazil("reset", "events", "--to", "earliest", "--yes")
    assert "their rows are dropped as repeats" in reset.stdout
    stream.catch_up()
    source.check()


def test_the_audit_finds_rows_that_are_lost_or_doubled(stream: Any, source: Source, frazil: Callable[..., Any]) -> None:
    source.send(60)
    stream.catch_up()
    row = stream.table().scan(limit=1).to_arrow()
    stream.table().append(row)
    assert "1 too many" in frazil("audit", "events").stdout
    key = row["id"][0].as_py()
    stream.table().delete(f"id == {key}")
    for options, said in (((), MISSING), (("--last", "1h"), MISSING), (("--source",), LOST)):
        found = frazil("audit", "events", *options)
        assert found.returncode == 1
        assert re.search(said, found.stdout), found.stdout


def test_the_audit_does_not_compare_records_that_an_earlier_declaration_dropped_as_repeats(
    stream: Any, frazil: Callable[..., Any]
) -> None:
    def send(key: int) -> None:
        times = (START + timedelta(minutes=minute) for minute in (0, 2))
        stream.produce(json.dumps({"id": key, "at": at.isoformat()}).encode() for at in times)
        stream.catch_up()

    stream.declare(DEDUPE)
    send(1)
    assert frazil("audit", "events", "--source").returncode == 0
    stream.declare(DEDUPE.replace("1h", "1m"))
    found = frazil("audit", "events", "--source")
    dropped = "1 record in Kafka has no row and is not a repeat under the current declaration"
    assert (found.returncode, dropped in found.stdout) == (3, True), found.stdout
    send(2)
    stream.table().delete("id == 2 and at > '2026-01-01T00:01:00+00:00'")
    found = frazil("audit", "events", "--source")
    assert (found.returncode, bool(re.search(LOST, found.stdout))) == (1, True), found.stdout


def test_rows_without_event_time_cause_no_finding_and_restoring_a_row_makes_the_audit_clean(
    stream: Any, source: Source, frazil: Callable[..., Any]
) -> None:
    path = stream.streams / "events.yaml"
    path.write_text(path.read_text().replace("at: timestamptz not null", "at: timestamptz"))
    source.send(60)
    stream.produce([b'{"id": 1000, "note": "no time"}'])
    stream.catch_up()
    clean = frazil("audit", "events", "--source", "--json")
    assert (clean.returncode, json.loads(clean.stdout)["clean"]) == (0, True), clean.stdout
    key = stream.table().scan("id < 1000", limit=1).to_arrow()["id"][0].as_py()
    stream.table().delete(f"id == {key}")
    assert frazil("audit", "events").returncode == 1
    assert frazil("audit", "events", "--source").returncode == 1
    stream.table().delete("id == 1000")  # a row without an event time lands again
    assert "Only rows without an event time land again" in frazil("reset", "events", "--to", "earliest", "--yes").stdout
    stream.catch_up()
    restored = frazil("audit", "events", "--source")
    assert restored.returncode == 0, restored.stdout


POINTS = ["after-journal", "while-merging", "after-commit", "after-stage"]


@pytest.mark.parametrize(
    "point", [point if point == "while-merging" else pytest.param(point, marks=pytest.mark.soak) for point in POINTS]
)
def test_a_deduplicating_writer_killed_at_any_point_leaves_correct_rows(
    stream: Any, source: Source, point: str, tmp_path: Path
) -> None:
    source.send(100)
    stream.catch_up()
    source.send(100)
    command = [*stream.command("--until-caught-up")]
    command[1] = str(CRASHING)
    (tmp_path / "points").write_text(point)
    environment = {**os.environ, "FRAZIL_TEST_CRASHES": str(tmp_path / "points"), "FRAZIL_TEST_ENGINE": "python"}
    crashed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert crashed.returncode == -signal.SIGKILL, crashed.stderr[-3000:]
    source.send(50)
    stream.catch_up()
    source.check()
    assert repeated(stream) == source.sent - sum(map(len, source.rows.values()))


@pytest.mark.usefixtures("spark")
def test_spark_drops_repeats(stream: Any, source: Source) -> None:
    for _ in range(2):
        source.send(100)
        stream.catch_up()
        source.check()
