"""Upserts through a real broker: the table has the newest version of each key, whichever process is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from frazil.errors import SchemaIncompatible
from frazil.home import run_folder
from tests.faults.exactness import parquet_files
from tests.lineage_backend import tracing
from tests.polling import eventually

CRASHING = Path(__file__).parents[1] / "faults" / "crashing_writer.py"
UPSERT = """\
mode: upsert
key: [id]
order-by: at
delete: {column: note, values: [gone]}
commit: {interval: 1s}
"""
START = datetime(2026, 1, 1, tzinfo=UTC)


class Source:
    """Sends random changes, and knows what they make of a table. Records of a key are in one Kafka partition."""

    def __init__(self, stream: Any, seed: int) -> None:
        self.stream, self.draw = stream, random.Random(seed)
        self.rows: dict[int, tuple[datetime, str | None]] = {}
        self.sent = 0

    def send(self, count: int) -> None:
        producer = Producer({"bootstrap.servers": self.stream.bootstrap, "linger.ms": 5, "max.in.flight": 1})
        for _ in range(count):
            self.sent += 1
            key = self.draw.randrange(60)
            at, note = START + timedelta(minutes=self.sent), self.draw.choice(["gone", None, "a", "b"])
            if (known := self.rows.get(key)) and (odd := self.draw.random()) < 0.4:
                at, note = known if odd < 0.2 else (known[0] - timedelta(hours=1), note)
            value = {"id": key, "at": at.isoformat(), "note": note}
            producer.produce(self.stream.topic, json.dumps(value), partition=key % 4)
            if known is None or at >= known[0]:
                self.rows[key] = (at, note)
                if note == "gone":
                    del self.rows[key]
        assert producer.flush(30) == 0

    def check(self) -> None:
        found = self.stream.table().scan().to_arrow().to_pylist()
        assert sorted((row["id"], row["at"], row["note"]) for row in found) == sorted(
            (key, *row) for key, row in self.rows.items()
        )


@pytest.fixture
def source(stream: Any) -> Source:
    stream.declare(UPSERT)
    return Source(stream, seed=1)


def counts(stream: Any) -> dict[str, int]:
    """Return the summed counts that the batches report."""
    names = ("inserted", "updated", "deleted", "stale", "superseded", "unchanged")
    reported = [snapshot.summary for snapshot in stream.table().metadata.snapshots if snapshot.summary]
    return {name: sum(int(one.get(f"frazil.{name}") or 0) for one in reported) for name in names}


def test_the_table_has_the_newest_version_of_each_key(
    stream: Any, source: Source, frazil: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with tracing(monkeypatch) as traced:
        for count in (200, 1, 150):
            source.send(count)
            stream.catch_up()
            source.check()
    stream.catch_up()  # nothing new
    source.check()
    reported = counts(stream)
    assert sum(reported.values()) == source.sent
    assert min(reported.values()) > 0
    merged = [e["run"]["facets"]["frazil_changes"]["counts"] for e in traced if e["eventType"] == "COMPLETE"]
    assert {name: sum(run.get(name, 0) for run in merged) for name in reported} == reported
    assert "last changes" in frazil("status", "events").stdout
    assert frazil("audit", "events", "--last", "1h").returncode == 3, "only --source compares rows"
    audited = frazil("audit", "events", "--source")
    assert (audited.returncode, "each key matches its newest change in Kafka" in audited.stdout) == (0, True)
    reset = frazil("reset", "events", "--to", "earliest", "--yes")
    assert "their changes are merged again" in reset.stdout
    stream.catch_up()
    source.check()
    again = frazil("audit", "events", "--source")
    assert "committed more than once, by a backfill or a reset: their changes and dead letters" in again.stdout
    assert f"{2 * source.sent} changes, and each key matches its newest change in Kafka" in again.stdout


def test_the_audit_finds_rows_that_other_programs_changed(
    stream: Any, source: Source, frazil: Callable[..., Any]
) -> None:
    source.send(100)
    stream.catch_up()
    gone, changed = sorted(source.rows)[:2]
    stream.table().delete(f"id == {gone}")
    row = stream.table().scan(f"id == {changed}").to_arrow()
    note = row.schema.get_field_index("note")
    stream.table().overwrite(row.set_column(note, row.schema.field(note), [["odd"]]), f"id == {changed}")
    found = frazil("audit", "events", "--source")
    assert found.returncode == 1
    not_there = "is not in the table, although the key's newest change in Kafka is not a delete"
    assert f"1 key (id {gone}): each {not_there}" in found.stdout
    assert (
        f"1 key (id {changed}): each has other values in the table than in the key's newest change in Kafka"
        in found.stdout
    )
    assert not [*run_folder("events").glob("audit-*")]
    assert frazil("reset", "events", "--to", "earliest", "--yes").returncode == 0
    moved_back = frazil("audit", "events", "--source")
    assert "the stream was moved back and has not yet read" in moved_back.stdout
    assert "clean" not in moved_back.stdout, "nothing of that was compared"
    as_json = json.loads(frazil("audit", "events", "--source", "--json").stdout)
    assert (as_json["clean"], as_json["complete"]) == (False, False)


def test_only_kafka_proves_values_and_a_reset_to_earliest_restores_them(
    stream: Any, frazil: Callable[..., Any]
) -> None:
    """Rows that another engine overwrote keep their coordinates, and are as many as the changes."""
    stream.declare("mode: upsert\nkey: id\ncommit: {interval: 1s}\n")
    stream.produce(json.dumps({"id": n, "at": START.isoformat(), "note": "a"}).encode() for n in range(10))
    stream.catch_up()
    not_compared = (
        "10 changes are counted in commit records; values were not compared with Kafka (--source compares them)"
    )
    for _ in range(2):
        audited = frazil("audit", "events")
        assert (audited.returncode, not_compared in audited.stdout) == (3, True), audited.stdout
        assert "clean" not in audited.stdout
        as_json = json.loads(frazil("audit", "events", "--json").stdout)
        assert (as_json["clean"], as_json["complete"]) == (False, False)
        rows = stream.table().scan().to_arrow()
        note = rows.schema.get_field_index("note")
        stream.table().overwrite(rows.set_column(note, rows.schema.field(note), [["odd"] * 10]))
    found = frazil("audit", "events", "--source")
    assert found.returncode == 1
    assert "run `frazil reset events --to earliest`, then start the stream" in found.stdout
    assert frazil("reset", "events", "--to", "earliest", "--yes").returncode == 0
    stream.catch_up()
    healed = frazil("audit", "events", "--source")
    assert (healed.returncode, "OFF" in healed.stdout) == (0, False)


def test_the_audit_does_not_compare_values_that_an_earlier_declaration_wrote(
    stream: Any, frazil: Callable[..., Any]
) -> None:
    def declare(columns: str) -> None:
        stream.declare("mode: upsert\nkey: id\ncommit: {interval: 1s}\n")
        path = stream.streams / "events.yaml"
        path.write_text(path.read_text().replace("note: string}", f"note: string{columns}}}"))

    def send(*ids: int) -> None:
        records = [{"id": n, "at": START.isoformat(), "note": "x", "other": "y"} for n in ids]
        stream.produce(json.dumps(record).encode() for record in records)
        stream.catch_up()

    first = ", kind: {type: string, default: a}, remark: {type: string, from: other}"
    declare(first)
    send(1, 2)
    declare(first.replace("default: a", "default: b"))
    send(3)
    found = frazil("audit", "events", "--source")
    former = "that an earlier declaration of the stream, or a backfill of files, wrote"
    assert (found.returncode, f"2 keys (id 1; id 2): each has values of kind {former}" in found.stdout) == (3, True)
    declare(", kind: {type: string, default: b}")
    found = frazil("audit", "events", "--source")
    assert found.returncode == 3, found.stdout
    assert f"3 keys (id 1; id 2; id 3): each has values of kind, remark {former}" in found.stdout
    assert "earliest" not in found.stdout, "a reset would remove the values of remark"
    rows = stream.table().scan("id == 3").to_arrow()
    kind = rows.schema.get_field_index("kind")
    stream.table().overwrite(rows.set_column(kind, rows.schema.field(kind), [["odd"]]), "id == 3")
    found = frazil("audit", "events", "--source")
    assert (found.returncode, "1 key (id 3): each has other values in the table" in found.stdout) == (1, True)
    assert "A reset also replaces values of kind, remark that an earlier declaration wrote" in found.stdout
    declare(first)
    assert "1 key (id 3)" in frazil("audit", "events", "--source").stdout, "rules that are back are compared again"


def test_the_audit_does_not_compare_keys_that_an_earlier_declaration_found_or_deleted_otherwise(
    stream: Any, frazil: Callable[..., Any]
) -> None:
    def declare(deleted: str = "gone", key: str = "id", size: str = "int", more: str = "") -> None:
        rules = (
            f"mode: upsert\nkey: id\ndelete: {{column: note, values: [{deleted}]}}\n{more}commit: {{interval: 1s}}\n"
        )
        stream.declare(rules)
        path = stream.streams / "events.yaml"
        text = path.read_text().replace("note: string}", f"note: string, size: {size}}}")
        path.write_text(text.replace("id: long not null", f"id: {{type: long, required: true, from: {key}}}"))

    def send(*records: dict[str, Any]) -> None:
        stream.produce(json.dumps({"at": START.isoformat(), **record}).encode() for record in records)
        stream.catch_up()

    def check_not_compared(keys: str) -> None:
        found = frazil("audit", "events", "--source")
        differs = f"{keys}: each differs from its newest change in Kafka under the current declaration"
        advises = "frazil reset" in found.stdout
        assert (found.returncode, advises, differs in found.stdout) == (3, False, True), found.stdout

    declare()
    send({"id": 1, "note": "gone", "other": 7}, {"id": 2, "note": "left", "other": 8}, {"id": 3, "size": 2**32})
    assert frazil("audit", "events", "--source").returncode == 0
    declare(deleted="left")
    check_not_compared("2 keys (id 1; id 2)")
    declare(key="other")
    check_not_compared("1 key (id 8)")
    declare(size="long")
    stream.catch_up()
    assert frazil("audit", "events", "--source").returncode == 0, "the record of key 3 has a dead letter"
    declare(size="{type: long, cast: lenient}")
    send({"id": 4, "note": "a"}, {"id": 4, "note": "b", "size": "1"})
    send({"id": 6, "at": "2026-01-02T00:00:00Z"}, {"id": 6})
    declare(size="long")
    check_not_compared("1 key (id 4)")
    declare(size="{type: long, cast: lenient}", more="order-by: at\n")
    check_not_compared("1 key (id 6)")
    send({"id": 5}, {"id": 7})
    stream.table().delete("id == 5 or id == 7")
    found = frazil("audit", "events", "--source")
    assert (found.returncode, "2 keys (id 5; id 7): each is not in the table" in found.stdout) == (1, True), (
        found.stdout
    )
    assert "A reset also inserts, replaces or deletes rows of 1 key under the current declaration" in found.stdout


def test_the_audit_compares_a_row_by_the_declaration_that_wrote_it_last(
    stream: Any, frazil: Callable[..., Any]
) -> None:
    def declare(default: str, kind: str) -> None:
        stream.declare("mode: upsert\nkey: id\ncommit: {interval: 1s}\n")
        path = stream.streams / "events.yaml"
        columns = f", kind: {{type: string, default: {default}}}, size: {kind}}}"
        path.write_text(path.read_text().replace("note: string}", f"note: string{columns}"))

    declare("a", "int")
    stream.produce(json.dumps({"id": n, "at": START.isoformat(), "size": 3_000_000_000 * n}).encode() for n in (0, 1))
    stream.catch_up()
    declare("b", "long")
    stream.catch_up()
    assert frazil("dlq", "replay", "events").stdout == "Stream events: 1 dead letter is merged now; 0 failed again.\n"
    declare("a", "long")
    found = frazil("audit", "events", "--source")
    assert (found.returncode, "1 key (id 1): each has values of kind" in found.stdout) == (3, True), found.stdout
    frazil("reset", "events", "--to", "earliest", "--yes")
    stream.catch_up()
    assert {row["kind"] for row in stream.table().scan().to_arrow().to_pylist()} == {"a"}
    rows = stream.table().scan("id == 0").to_arrow()
    kind = rows.schema.get_field_index("kind")
    stream.table().overwrite(rows.set_column(kind, rows.schema.field(kind), [["odd"]]), "id == 0")
    found = frazil("audit", "events", "--source")
    assert (found.returncode, "1 key (id 0): each has other values" in found.stdout) == (1, True), found.stdout


def test_the_audit_does_not_compare_rows_that_another_stream_of_the_table_changed_later(
    stream: Any, declared_stream: Any, topic: Callable[..., str], frazil: Callable[..., Any]
) -> None:
    declared = "mode: upsert\nkey: id\ncommit: {interval: 1s}\n"
    stream.declare(declared)
    other = declared_stream(stream.streams.parent, name="others", topic=topic(1), bootstrap=stream.bootstrap)
    other.declare(declared)
    path = other.streams / "others.yaml"
    path.write_text(path.read_text().replace("table: test.others", "table: test.events"))
    for of, ids in ((stream, range(4)), (other, range(2, 6))):
        of.produce(json.dumps({"id": n, "at": START.isoformat(), "note": of.name}).encode() for n in ids)
        of.catch_up()
    found = frazil("audit", "events", "--source")
    assert found.returncode == 3, found.stdout
    assert "2 keys were not compared: their rows come from records that this audit does not read" in found.stdout
    stream.table().delete("id == 1")
    assert frazil("audit", "events", "--source").returncode == 1
    assert frazil("audit", "others", "--source").returncode == 0


def test_the_audit_does_not_compare_keys_that_another_stream_of_the_table_may_have_deleted(
    stream: Any, declared_stream: Any, topic: Callable[..., str], frazil: Callable[..., Any]
) -> None:
    stream.declare(UPSERT)
    other = declared_stream(stream.streams.parent, name="others", topic=topic(1), bootstrap=stream.bootstrap)
    other.declare(UPSERT)
    path = other.streams / "others.yaml"
    path.write_text(path.read_text().replace("table: test.others", "table: test.events"))
    for of, ids, note in ((stream, range(4), "a"), (other, [3], "gone"), (other, [5], "a")):
        of.produce(json.dumps({"id": n, "at": START.isoformat(), "note": note}).encode() for n in ids)
        of.catch_up()
    found = frazil("audit", "events", "--source")
    assert found.returncode == 3, found.stdout
    assert "1 key (id 3): each is not in the table; another stream of the table may have deleted it" in found.stdout
    assert frazil("audit", "others", "--source").returncode == 0
    stream.table().delete("id == 1")
    both = frazil("audit", "events", "--source")
    assert (both.returncode, "2 keys (id 1; id 3): each is not in the table, although" in both.stdout) == (1, True)
    assert "This also restores 1 row that other streams of the table deleted" in both.stdout
    head = stream.table().metadata.current_snapshot_id
    stream.table().maintenance.expire_snapshots().by_ids(
        [s.snapshot_id for s in stream.table().metadata.snapshots if s.snapshot_id != head]
    ).commit()
    assert frazil("audit", "events", "--source").returncode == 3, "how many keys others deleted is no longer known"


def test_a_record_without_its_key_is_a_dead_letter(stream: Any) -> None:
    stream.declare(UPSERT)
    stream.produce([b'{"at": "2026-01-01T00:00:00Z"}', b'{"id": 1, "note": "gone"}', None, b'{"id": 2, "note": "a"}'])
    stream.catch_up()
    assert stream.ids() == []
    dead_letters = stream.table("_dead_letters").scan().to_arrow().to_pylist()
    assert sorted(dead_letter["kafka_offset"] for dead_letter in dead_letters) == [0, 2, 3]


def test_the_audit_reports_a_deleted_dead_letter_as_missing(stream: Any, frazil: Callable[..., Any]) -> None:
    stream.declare(UPSERT)
    records = [{"id": 7, "at": START.isoformat(), "note": "kept"}, {"at": START.isoformat()}, {"id": "x"}]
    stream.produce([json.dumps(record).encode() for record in records])
    stream.catch_up()
    assert frazil("audit", "events", "--source").returncode == 0

    stream.table("_dead_letters").delete("kafka_offset = 1")

    for options in ((), ("--source",), ("--last", "1h")):
        audited = frazil("audit", "events", *options)
        assert audited.returncode == 1, audited.stdout
        assert "is missing 1 dead letter that the commit records count" in audited.stdout


def test_a_merge_succeeds_after_concurrent_foreign_commits(stream: Any, source: Source) -> None:
    source.send(100)
    stream.catch_up()
    with stream.writing():
        for _ in range(5):
            source.send(40)
            rows = stream.table().scan(limit=3).to_arrow()
            # Foreign commits, each of which may make a merge begin again.
            stream.table().append(rows.slice(0, 0))
        eventually(lambda: sum(counts(stream).values()) == source.sent, within_s=60)
    source.check()


def test_dead_letters_are_merged_in_their_order_once_the_declaration_is_fixed(
    stream: Any, frazil: Callable[..., Any]
) -> None:
    def sent(key: int, at: object, note: str) -> bytes:
        return json.dumps({"id": key, "at": at, "note": note}).encode()

    stream.declare(UPSERT)
    in_seconds = int(START.timestamp())
    stale, new = sent(1, in_seconds, "stale"), sent(2, in_seconds + 120, "new")
    good = [sent(key, (START + timedelta(minutes=1)).isoformat(), "good") for key in (1, 2)]
    stream.produce([stale, new, sent(3, in_seconds, "gone"), *good, b"no JSON"])
    stream.catch_up()
    declared = stream.streams / "events.yaml"
    declared.write_text(declared.read_text().replace("event-time: at", "event-time: {column: at, unit: s}"))
    done = frazil("dlq", "replay", "events")
    assert done.stdout == "Stream events: 3 dead letters are merged now; 1 failed again.\n"
    rows = stream.table().scan().to_arrow().to_pylist()
    assert sorted((row["id"], row["note"]) for row in rows) == [(1, "good"), (2, "new")]
    assert frazil("audit", "events", "--last", "1h").returncode == 3, "only --source compares rows"
    assert frazil("dlq", "replay", "events").stdout.startswith("Stream events: 0 dead letters are merged now; 1 failed")
    frazil("reset", "events", "--to", "earliest", "--yes")
    left = frazil("dlq", "replay", "events", "--dry-run")
    assert "1 dead letter of stream events is left out: the stream's writer will read its record" in left.stderr
    assert left.stdout == "Stream events: nothing to replay, because all dead letters are left out.\n"


def test_a_key_change_that_would_allow_two_rows_per_key_is_refused(stream: Any, source: Source) -> None:
    source.send(20)
    stream.produce([b"no JSON"])
    stream.catch_up()
    stream.declare(UPSERT.replace("key: [id]", "key: [id, at]"))
    stream.produce([b"no JSON either"])
    with pytest.raises(SchemaIncompatible, match=r"the identifier fields of table test\.events are id"):
        stream.catch_up()
    source.check()


POINTS = ["after-journal", "while-merging", "after-commit", "after-stage", "after-dead-letters"]


@pytest.mark.parametrize(
    "point", [point if point == "while-merging" else pytest.param(point, marks=pytest.mark.soak) for point in POINTS]
)
def test_a_deduplicating_writer_killed_at_any_point_leaves_correct_rows(
    stream: Any, source: Source, point: str, tmp_path: Path
) -> None:
    source.send(200)
    stream.catch_up()
    source.send(200)
    command = [*stream.command("--until-caught-up")]
    command[1] = str(CRASHING)
    (tmp_path / "points").write_text(point)
    environment = {**os.environ, "FRAZIL_TEST_CRASHES": str(tmp_path / "points"), "FRAZIL_TEST_ENGINE": "python"}
    crashed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert crashed.returncode == -signal.SIGKILL, crashed.stderr[-3000:]
    source.send(50)
    stream.catch_up()
    source.check()
    assert sum(counts(stream).values()) == source.sent
    referenced = {task.file.file_path for task in stream.table().scan().plan_files()}
    deletes = {d.file_path for task in stream.table().scan().plan_files() for d in task.delete_files}
    assert parquet_files(stream) >= {path.removeprefix("file://") for path in referenced | deletes}


@pytest.mark.usefixtures("spark")
def test_spark_runs_the_tasks_of_a_merge(stream: Any, source: Source) -> None:
    for _ in range(2):
        source.send(150)
        stream.catch_up()
        source.check()
