"""Transforms through a real broker: dropped records are counted, failed ones are dead letters, and audits pass."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from frazil.backfill.request import parse_request
from frazil.backfill.run import open_backfill
from frazil.backfill.stage import run
from frazil.errors import SpecError
from frazil.table.catalogs import load_catalog
from tests.in_process_engine import InProcessEngine

CRASHING = Path(__file__).parents[1] / "faults" / "crashing_writer.py"
Command = Callable[..., "subprocess.CompletedProcess[str]"]

TRANSFORM = """\
transform: |
  SELECT order_id AS id,
         to_timestamp(epoch) AS at,
         upper(customer.name) || ': ' || CAST(price AS DECIMAL(9, 2)) AS note
  FROM records
  WHERE kind = 'sale'
commit: {interval: 1s}
"""


def record(number: int, **other: Any) -> bytes:
    value = {
        "order_id": number,
        "epoch": 1_767_225_600 + number,
        "customer": {"name": "ada"},
        "price": f"{number}.50",
        "kind": "sale" if number % 3 else "test",
    }
    return json.dumps({**value, **other}).encode()


def declare(stream: Any, extra: str = TRANSFORM) -> None:
    stream.declare(extra)
    path = stream.streams / f"{stream.name}.yaml"
    fields = "{order_id: long, epoch: double, customer: 'struct<name: string>', price: string, kind: string}"
    path.write_text(path.read_text().replace("format: json,", f"format: json, schema: {fields},"))


@pytest.fixture
def messy(stream: Any) -> Any:
    """300 records: a third is dropped, three fail."""
    declare(stream)
    bad = {31: {"price": "free"}, 61: {"price": "1e99"}, 91: {"epoch": 1e300}}
    stream.produce([record(n, **bad.get(n, {})) for n in range(300)], partitions=4)
    return stream


def test_records_are_filtered_renamed_and_cast_and_every_one_is_counted(messy: Any, frazil: Command) -> None:
    messy.catch_up()
    rows = messy.table().scan().to_arrow().to_pylist()
    expected = [n for n in range(300) if n % 3 and n not in {31, 61, 91}]
    assert messy.ids() == expected
    assert {row["note"] for row in rows if row["id"] == 4} == {"ADA: 4.50"}
    assert [row["kafka_offset"] for row in rows if row["id"] == 40] == [10]
    letters = messy.table("_dead_letters").scan().to_arrow().to_pylist()
    assert sorted(json.loads(row["value"])["order_id"] for row in letters) == [31, 61, 91]
    (free,) = (row["error"] for row in letters if b'"free"' in row["value"])
    assert "CAST(price AS DECIMAL(9, 2))" in free
    assert "price = 'free'" in free
    summary = messy.table().current_snapshot().summary
    assert (summary["frazil.records"], summary["frazil.rejected"], summary["frazil.dropped"]) == ("197", "3", "100")
    audit = frazil("audit", messy.name, "--source")
    assert audit.returncode == 0, audit.stdout + audit.stderr


def test_a_batch_whose_records_are_all_dropped_moves_the_position(stream: Any, frazil: Command) -> None:
    declare(stream)
    stream.produce([record(n, kind="test") for n in range(40)], partitions=4)
    stream.catch_up()
    assert stream.ids() == []
    assert stream.table().current_snapshot().summary["frazil.dropped"] == "40"
    stream.produce([record(n) for n in (1, 2)])
    stream.catch_up()
    assert stream.ids() == [1, 2]
    assert dropped(stream) == 40
    clean(stream, frazil)


def test_a_writer_with_a_refused_transform_creates_no_table(stream: Any) -> None:
    declare(stream, TRANSFORM.replace("order_id AS id", "nosuch AS id"))
    stream.produce([record(1)], partitions=1)
    with pytest.raises(SpecError, match="nosuch is not a field"):
        stream.catch_up()
    assert not load_catalog(None).table_exists(stream.spec.table.identifier)


def test_preview_shows_rows_drops_and_dead_letters_and_writes_nothing(
    messy: Any, frazil: Command, frazil_home: Path
) -> None:
    found = frazil("preview", messy.name, "--limit", "300", "--json")
    assert found.returncode == 0, found.stderr
    records = json.loads(found.stdout)["records"]
    assert Counter(one["outcome"] for one in records) == {"row": 197, "dropped": 100, "dead letter": 3}
    (one,) = (one for one in records if one["rows"] and one["rows"][0]["id"] == 4)
    assert one["rows"] == [{"id": 4, "at": "2026-01-01 00:00:04+00:00", "note": "ADA: 4.50"}]
    lines = frazil("preview", messy.name).stdout.splitlines()
    assert len(lines) == 21
    assert lines[-1] == "20 records: 14 land, 6 dropped, 0 dead letters. Nothing was written."
    assert not (frazil_home / "catalog.db").exists()


def test_preview_reports_an_empty_topic_and_a_missing_topic(stream: Any, frazil: Command) -> None:
    found = frazil("preview", stream.name)
    assert (found.returncode, found.stdout) == (0, "The topics of stream events have no records.\n")
    path = stream.streams / f"{stream.name}.yaml"
    path.write_text(path.read_text().replace(f"[{stream.topic}]", "[no-such-topic]"))
    missing = frazil("preview", stream.name)
    assert missing.returncode > 0
    assert "no-such-topic" in missing.stderr


def test_preview_shortens_long_values_and_prints_valid_json(stream: Any, topic: Any, frazil: Command) -> None:
    path, own = stream.streams / f"{stream.name}.yaml", topic(max_message_bytes="6000000")
    text = path.read_text().replace("note: string", "note: string, x: double, m: 'map<string, float>'")
    path.write_text(text.replace(stream.topic, own))
    producer = Producer({"bootstrap.servers": stream.bootstrap, "message.max.bytes": 6_000_000})
    note = b"y" * 5_000_000
    producer.produce(own, b'{"id": 1, "at": "2026-01-01", "note": "%s", "x": NaN, "m": {"a": -Infinity}}' % note)
    assert producer.flush(30) == 0
    line, _ = frazil("preview", stream.name).stdout.splitlines()
    assert len(line) < 600
    assert "(5,000,000 characters)" in line
    assert line.endswith('"x": "nan", "m": [["a", "-inf"]]}')
    (record,) = json.loads(frazil("preview", stream.name, "--json").stdout, parse_constant=pytest.fail)["records"]
    assert record["rows"][0]["x"] == "nan"
    assert len(record["rows"][0]["note"]) == 5_000_000


def clean(stream: Any, frazil: Command) -> None:
    for options in ((), ("--source",)):
        audit = frazil("audit", stream.name, *options)
        assert audit.returncode == 0, audit.stdout + audit.stderr


def dropped(stream: Any) -> int:
    return sum(int((s.summary or {}).get("frazil.dropped") or 0) for s in stream.table().metadata.snapshots)


@pytest.mark.rotates(2)
def test_a_writer_killed_before_its_commit_drops_the_same_records_after_its_restart(
    messy: Any, frazil: Command, tmp_path: Path
) -> None:
    (tmp_path / "points").write_text("after-journal")
    environment = {**os.environ, "FRAZIL_TEST_CRASHES": str(tmp_path / "points"), "FRAZIL_TEST_ENGINE": "python"}
    command = [sys.executable, str(CRASHING), messy.name, "--streams", str(messy.streams), "--until-caught-up"]
    killed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=200)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    ended = messy.run("--until-caught-up")
    assert ended.returncode == 0, ended.stderr
    assert (len(messy.ids()), dropped(messy)) == (197, 100)
    clean(messy, frazil)


def test_dead_letters_are_replayed_with_a_corrected_transform_and_those_that_it_drops_stay(
    messy: Any, frazil: Command
) -> None:
    messy.catch_up()
    corrected = TRANSFORM.replace("CAST(price", "TRY_CAST(price").replace("'sale'", "'sale' AND order_id <> 61")
    declare(messy, corrected)
    replayed = frazil("dlq", "replay", messy.name)
    assert replayed.returncode == 0, replayed.stderr
    assert "1 dead letter is a row now; 2 failed again" in replayed.stdout
    assert 31 in messy.ids()
    clean(messy, frazil)


def test_a_backfill_drops_the_same_records_as_the_stream(messy: Any, frazil: Command) -> None:
    messy.catch_up()
    assert frazil("reset", messy.name, "--to", "latest", "--yes").returncode == 0
    messy.produce([record(n) for n in range(300, 360)], partitions=4)
    assert frazil("reset", messy.name, "--to", "latest", "--yes").returncode == 0
    with open_backfill(messy.spec, parse_request({"stream": messy.name})) as backfill:
        published = run(backfill, InProcessEngine())
    assert messy.ids() == [n for n in range(360) if n % 3 and n not in {31, 61, 91}], published
    clean(messy, frazil)


def test_rows_that_another_program_deleted_come_back_by_a_backfill(messy: Any, frazil: Command) -> None:
    messy.catch_up()
    messy.table().delete("id in (4, 7, 100, 200, 250)")
    assert frazil("audit", messy.name).returncode == 1
    with open_backfill(messy.spec, parse_request({"stream": messy.name})) as backfill:
        published = run(backfill, InProcessEngine())
    assert messy.ids() == [n for n in range(300) if n % 3 and n not in {31, 61, 91}], published
    messy.produce([record(n) for n in range(300, 307)], partitions=4)
    audit = json.loads(frazil("audit", messy.name, "--source", "--json").stdout)
    assert sum(p["dropped"] for p in audit["partitions"]) == 100
    notes = {(f["kind"], f["sentence"].split(";")[0].split(",")[0]) for f in audit["findings"]}
    assert ("not committed", "7 records are not committed yet") in notes
    assert (audit["clean"], {kind for kind, _ in notes}) == (True, {"not committed", "changed"}), audit["findings"]


def test_changes_of_an_upsert_are_transformed_and_deletes_are_computed(stream: Any, frazil: Command) -> None:
    declare(
        stream,
        "mode: upsert\nkey: id\ndelete: {column: note, values: [gone]}\ncommit: {interval: 1s}\n"
        "transform: SELECT order_id // 10 AS id, to_timestamp(epoch) AS at, CASE WHEN price = '0.50' THEN 'gone' ELSE "
        "price END AS note FROM records WHERE kind = 'sale'\n",
    )
    stream.produce([record(n) for n in range(45)] + [record(21, price="0.50", kind="sale"), record(9, kind="test")])
    stream.catch_up()
    rows = stream.table().scan().to_arrow().to_pylist()
    assert sorted((row["id"], row["note"]) for row in rows) == [(0, "8.50"), (1, "19.50"), (3, "38.50"), (4, "44.50")]
    clean_by_source = frazil("audit", stream.name, "--source")
    assert clean_by_source.returncode == 0, clean_by_source.stdout


def test_dedupe_and_route_work_with_computed_columns(stream: Any, frazil: Command) -> None:
    declare(
        stream,
        "dedupe: {key: id, within: 1h}\nroute: {by: field, name: note, tables: {high: test.high}}\n"
        "commit: {interval: 1s}\n"
        "transform: SELECT order_id % 10 AS id, to_timestamp(epoch) AS at, CASE WHEN order_id % 10 > 4 THEN 'high' END "
        "AS note FROM records WHERE kind = 'sale'\n",
    )
    stream.produce([record(n) for n in range(90)])
    stream.catch_up()
    assert (stream.ids(), dropped(stream)) == ([0, 1, 2, 3, 4], 30)
    high = load_catalog(None).load_table("test.high").scan().to_arrow()
    assert sorted(high["id"].to_pylist()) == [5, 6, 7, 8, 9]
    clean_by_source = frazil("audit", stream.name, "--source")
    assert clean_by_source.returncode == 0, clean_by_source.stdout


def test_elements_of_a_list_become_rows_and_are_numbered(stream: Any, frazil: Command) -> None:
    stream.declare(
        "commit: {interval: 1s}\ntransform: SELECT id, \"at\", unnest(string_split(note, ',')) AS note FROM records\n"
    )
    at = '"at": "2026-01-01T00:00:00Z"'
    stream.produce([f'{{"id": {n}, {at}, "note": "{note}"}}'.encode() for n, note in enumerate(["a,b,c", "", "d"])])
    stream.produce([f'{{"id": 3, {at}, "note": null}}'.encode()])
    stream.catch_up()
    rows = stream.table().scan().to_arrow().to_pylist()
    assert sorted((row["id"], row["kafka_line"], row["note"]) for row in rows) == [
        (0, 0, "a"), (0, 1, "b"), (0, 2, "c"), (1, 0, ""), (2, 0, "d"),
    ]  # fmt: skip
    assert dropped(stream) == 1
    clean(stream, frazil)
