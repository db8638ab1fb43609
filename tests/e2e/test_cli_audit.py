"""`frazil audit` of a stream that `frazil run` wrote from a real broker: intact, then damaged on purpose."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

Frazil = Callable[..., subprocess.CompletedProcess[str]]


def test_a_table_that_frazil_run_wrote_is_clean_and_every_later_damage_is_found(
    stream: Any, events: Any, frazil: Frazil
):
    stream.produce([*events(range(2000)), b"not json", *events(range(2000, 3000))], partitions=4)
    stream.catch_up()
    assert len(stream.ids()) == 3000

    clean = frazil("audit", stream.name, "--source", "--json")
    found = json.loads(clean.stdout)
    assert clean.returncode == 0, clean.stdout + clean.stderr
    assert found["clean"] is True
    assert found["findings"] == []
    assert sum(p["rows"] for p in found["partitions"]) == 3000
    assert sum(p["dead-letters"] for p in found["partitions"]) == 1
    assert {p["gaps"] for p in found["partitions"]} == {0}

    table = stream.table()
    row = table.scan(row_filter="kafka_partition = 1 and kafka_offset = 7").to_arrow()
    table.append(row)
    doubled = frazil("audit", stream.name, "--json")
    assert doubled.returncode == 1
    assert _findings(doubled) == {("duplicates", f"{stream.topic}-1", 1)}

    table.overwrite(row, "kafka_partition = 1 and kafka_offset = 7")
    repaired = frazil("audit", stream.name)
    assert repaired.returncode == 0
    assert re.search(r"removed \d rows?\b.*, and the snapshot after it, \d+, added 1 row", repaired.stdout)

    table.delete("kafka_partition = 2 and kafka_offset >= 10 and kafka_offset < 15")
    lost = frazil("audit", stream.name, "--source", "--json")
    assert lost.returncode == 1
    assert _findings(lost) == {("missing", f"{stream.topic}-2", 5)}
    assert "10 to 14" in json.loads(lost.stdout)["findings"][0]["sentence"]
    assert "commits of other programs deleted or overwrote rows" in json.loads(lost.stdout)["findings"][-1]["sentence"]
    by_records = frazil("audit", stream.name, "--json")
    assert by_records.returncode == 1
    assert _findings(by_records) == {("miscounted", f"{stream.topic}-2", 5)}

    dead_letters = stream.table("_dead_letters")
    dead_letters.delete(f"kafka_topic = '{stream.topic}'")
    assert ("missing", f"{stream.topic}-0", 1) in _findings(frazil("audit", stream.name, "--source", "--json"))


def test_an_hour_is_audited_independently_of_other_hours(stream: Any, events: Any, frazil: Frazil):
    stream.produce([*events(range(100)), b"not json"], partitions=4)
    stream.catch_up()
    between = datetime.now(UTC)
    stream.produce(events(range(100, 200)), partitions=4)
    stream.catch_up()
    early = ("--from", "2013-12-30T00:00:00Z", "--to", between.isoformat())

    first = json.loads(frazil("audit", stream.name, *early, "--source", "--json").stdout)
    assert (first["clean"], first["findings"]) == (True, [])
    assert (_total(first, "rows"), _total(first, "dead-letters"), _total(first, "gaps")) == (100, 1, 0)
    assert first["window"]["to-ms"] == round(between.timestamp() * 1000)
    later = json.loads(frazil("audit", stream.name, "--from", between.isoformat(), "--json").stdout)
    assert (_total(later, "rows"), _total(later, "dead-letters")) == (100, 0)
    both = frazil("audit", stream.name, "--last", "1h")
    assert both.returncode == 0, both.stdout
    assert "is clean: 200 rows, committed from" in both.stdout
    nothing = frazil("audit", stream.name, "--from", "2013-12-30T00:00:00Z", "--to", "2013-12-30T01:00:00Z")
    assert (nothing.returncode, "committed nothing from 2013-12-30" in nothing.stdout) == (0, True)

    stream.table().delete("kafka_partition = 2 and kafka_offset >= 10 and kafka_offset < 15")
    harmed = frazil("audit", stream.name, *early, "--source", "--json")
    assert harmed.returncode == 1
    assert _findings(harmed) == {("missing", f"{stream.topic}-2", 5)}
    assert frazil("audit", stream.name, "--from", between.isoformat()).returncode == 0


@pytest.mark.rotates(2)
def test_a_backfill_of_one_offset_hides_no_missing_row_of_the_batch_that_committed_it(
    stream: Any, events: Any, frazil: Frazil
):
    stream.produce(events(range(100)), partitions=1)
    stream.catch_up()
    stream.table().delete("kafka_offset < 20")
    brought = frazil("backfill", stream.name, "--from", json.dumps({stream.topic: {"0": 19}}), "--yes")
    assert brought.returncode == 0, brought.stderr
    assert len(stream.ids()) == 81
    for options in ((), ("--last", "1h")):
        by_records = frazil("audit", stream.name, *options, "--json")
        assert _findings(by_records) == {("miscounted", f"{stream.topic}-0", 19)}
        assert by_records.returncode == 1
    assert _findings(frazil("audit", stream.name, "--source", "--json")) == {("missing", f"{stream.topic}-0", 19)}
    admin = AdminClient({"bootstrap.servers": stream.bootstrap})
    (deleted,) = admin.delete_records([TopicPartition(stream.topic, 0, 20)]).values()
    deleted.result(30)
    retained = frazil("audit", stream.name, "--source", "--json")
    assert ("miscounted", f"{stream.topic}-0", 19) in _findings(retained)
    assert retained.returncode == 1


def test_the_audit_refuses_conflicting_period_options(frazil: Frazil):
    for options, said in {
        ("--last", "1h", "--from", "2013-12-30T00:00:00Z"): "give one period",
        ("--to", "2013-12-30T00:00:00Z"): "--to",
        ("--from", "2013-12-30T01:00:00Z", "--to", "2013-12-30T00:00:00Z"): "ends before it begins",
        ("--last", "an hour"): "is not a duration",
    }.items():
        refused = frazil("audit", "events", *options)
        assert (refused.returncode, said in refused.stderr) == (2, True), refused.stderr


def test_a_stream_without_coordinates_is_audited_by_count(stream: Any, events: Any, frazil: Frazil):
    stream.declare("commit: {interval: 1s}\ncoordinates: false\n")
    stream.produce(events(range(100)), partitions=4)
    stream.catch_up()
    clean = frazil("audit", stream.name)
    assert clean.returncode == 0, clean.stdout
    assert "cannot be audited by offset" in clean.stdout
    table = stream.table()
    table.append(table.scan(row_filter="id = 3").to_arrow())
    harmed = frazil("audit", stream.name, "--json")
    assert harmed.returncode == 1
    assert ("miscounted", stream.name, 1) in _findings(harmed)


def _total(found: dict[str, Any], number: str) -> int:
    return sum(p[number] for p in found["partitions"])


def _findings(done: subprocess.CompletedProcess[str]) -> set[tuple[str, str, int]]:
    """Return all findings except notes on foreign commits, which caused the damage."""
    found = json.loads(done.stdout)["findings"]
    return {(f["kind"], f["where"], f["count"]) for f in found if f["kind"] != "changed"}
