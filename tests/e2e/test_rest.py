"""Values kept as JSON text, and fields without a column, through a real broker by real writers without a JVM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from pyspark.sql.types import VariantVal

from frazil.backfill.request import parse_request
from frazil.backfill.run import open_backfill
from frazil.backfill.stage import run
from frazil.home import run_folder
from frazil.host.heartbeat import Heartbeat
from tests.in_process_engine import InProcessEngine
from tests.messy import events
from tests.pages import blocks

OLD = "schema: {id: long not null, at: timestamptz not null, note: string}"
NEW = OLD.replace("string}", "string, raw: {type: string, as: json}, other: string}\nrest: other")


def record(number: int, **more: object) -> bytes:
    return json.dumps({"id": number, "at": f"2024-01-01T00:00:{number % 60:02d}Z", **more}).encode()


def rows(stream: Any, *columns: str) -> list[tuple[Any, ...]]:
    found = stream.table().scan().to_arrow().to_pylist()
    return sorted(((row["id"], *(row[c] for c in columns)) for row in found), key=repr)


@pytest.fixture
def keeping(stream: Any) -> Callable[[str], Any]:
    """`keeping("evolution: additive")`: the test's stream with a column of JSON and one of all other fields."""

    def make(more: str = "") -> Any:
        stream.declare(f"commit: {{interval: 1s}}\n{more}")
        path = stream.streams / f"{stream.name}.yaml"
        path.write_text(path.read_text().replace(OLD, NEW))
        return stream

    return make


def test_a_field_that_becomes_a_column_is_no_longer_in_the_rest_column(
    keeping: Callable[[str], Any], frazil: Callable[..., Any]
) -> None:
    stream = keeping("evolution: additive")
    stream.produce([record(0, raw={"a": 1}), record(1, mixed=1), record(2, mixed="a", **{"bad.name": 1})])
    stream.catch_up()
    assert rows(stream, "raw", "other") == [
        (0, '{"a": 1}', None),
        (1, None, '{"mixed": 1}'),
        (2, None, '{"mixed": "a","bad.name": 1}'),
    ]
    stream.produce([record(3, gate="A1", mixed=[2]), record(4, gate=None, other=1)])
    stream.catch_up()
    assert rows(stream, "gate", "other")[3:] == [(3, "A1", None), (4, None, '{"other": 1}')]
    done = frazil("evolve", stream.name, "--rename", "gate=door", "--rename", "other=leftovers", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    done = frazil("evolve", stream.name, "--drop", "mixed", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    stream.produce([record(5, gate="B2", mixed=[3], other=2)])
    stream.catch_up()
    assert rows(stream, "door", "leftovers")[-1] == (5, "B2", '{"mixed": [3],"other": 2}')


ODD_NAMES = r"""
schema:
  ID Number: long not null
  Event Time: timestamptz not null
  App: {type: string, from: 'client.app\.version'}
  Price: "struct<Net Amount: double, currency: string>"
event-time: Event Time
partition-by: [day(Event Time), "truncate(1, App)"]
sort-by: [App desc, ID Number]
"""


def test_names_with_spaces_dots_and_capitals_are_written_as_they_are(stream: Any) -> None:
    path = stream.streams / f"{stream.name}.yaml"
    path.write_text(path.read_text().partition("schema:")[0] + ODD_NAMES + "commit: {interval: 1s}\n")
    price = {"Net Amount": 1.5, "currency": "EUR"}
    common = {"Event Time": "2024-01-01T00:00:00Z", "Price": price}
    stream.produce(
        [json.dumps({"ID Number": n, "client": {"app.version": f"{n}.0"}, **common}).encode() for n in (1, 2, 1)]
    )
    stream.catch_up()
    found = stream.table().scan().to_arrow().to_pylist()
    assert [
        (row["ID Number"], row["App"], row["Price"]) for row in sorted(found, key=lambda row: row["kafka_offset"])
    ] == [
        (1, "1.0", price),
        (2, "2.0", price),
        (1, "1.0", price),
    ]
    assert [field.name for field in stream.table().spec().fields] == ["Event Time_day", "App_trunc"]
    assert len({task.file.file_path for task in stream.table().scan().plan_files()}) == 2


@pytest.mark.parametrize(
    "mode",
    [
        "mode: upsert\nkey: id",
        "dedupe: {key: id, within: 1h}",
        "route: {by: field, name: note, tables: {a: test.of_a}}",
    ],
    ids=["upsert", "dedupe", "route"],
)
def test_rest_is_filled_in_every_mode(keeping: Callable[[str], Any], mode: str) -> None:
    stream = keeping(mode)
    stream.produce([record(0, raw=[1], more=1), record(1, note="b", more=2), record(1, note="b", raw=2, more={"x": 3})])
    stream.catch_up()
    last = [(1, "2", '{"more": {"x": 3}}')]
    of_one = last if "upsert" in mode else [(1, None, '{"more": 2}')]
    expected = [(0, "[1]", '{"more": 1}'), *(of_one if "route" not in mode else of_one + last)]
    assert rows(stream, "raw", "other") == sorted(expected, key=repr)


def test_a_dead_letter_is_replayed_once_its_column_keeps_any_value(
    keeping: Callable[[str], Any], frazil: Callable[..., Any]
) -> None:
    stream = keeping("")
    stream.produce([record(0, note={"a": [1]}, more=1.50)])
    stream.catch_up()
    assert rows(stream) == []
    path = stream.streams / f"{stream.name}.yaml"
    path.write_text(path.read_text().replace("note: string", "note: {type: string, as: json}"))
    replayed = frazil("dlq", "replay", stream.name)
    assert "1 dead letter is a row now" in replayed.stdout, replayed.stdout + replayed.stderr
    assert rows(stream, "note", "other") == [(0, '{"a": [1]}', '{"more": 1.5}')]


def test_a_backfill_from_files_keeps_undeclared_fields_in_the_rest_column_without_coordinates(
    keeping: Callable[[str], Any], tmp_path: Path
) -> None:
    stream = keeping("")
    stream.produce([record(0), record(1)])
    path = stream.streams / f"{stream.name}.yaml"
    start = datetime.now(UTC).isoformat()
    path.write_text(path.read_text().replace("format: json", f"format: json, start: '{start}'"))
    stream.produce([record(2)])
    stream.catch_up()
    place = {"kafka_topic": stream.topic, "kafka_partition": 0, "kafka_timestamp": "2024-01-01T00:00:00Z"}
    file = tmp_path / "old" / "old.jsonl"
    file.parent.mkdir()
    file.write_bytes(b"\n".join(record(i, kafka_offset=i, raw={"n": i}, more=i, **place) for i in (0, 1)))
    request = parse_request({"stream": stream.name, "files": str(file.parent)})
    with open_backfill(stream.spec, request) as backfill, InProcessEngine() as engine:
        run(backfill, engine)
    found = [(i, f'{{"n": {i}}}', f'{{"more": {i}}}') for i in (0, 1)]
    assert rows(stream, "raw", "other") == [*found, (2, None, None)]


def test_records_without_any_column_are_a_notice_until_their_wrapping_is_declared(
    stream: Any, frazil: Callable[..., Any]
) -> None:
    path = stream.streams / f"{stream.name}.yaml"
    path.write_text(path.read_text().replace(OLD, "schema: {ident: long, note: string}").replace(
        "event-time: at", "event-time: kafka_timestamp").replace("day(at)", "day(kafka_timestamp)"))  # fmt: skip
    payload = {"ident": 7, "note": "a"}
    stream.produce([json.dumps({"schema": {"type": "struct"}, "payload": payload}).encode()] * 3)
    inferred = frazil("infer", stream.topic, "--table", "a.b", "--bootstrap-servers", stream.bootstrap)
    assert '  format: {"type": "json", "unwrap": "payload"}' in inferred.stdout, inferred.stdout + inferred.stderr
    stream.catch_up()
    heartbeat = Heartbeat.read(run_folder(stream.name))
    assert heartbeat is not None
    (notice,) = [text for text in heartbeat.notices if "no field that matches a column" in text]
    found, remedy = notice.split(". Kafka Connect wraps such records: ")
    assert found == "3 records have no field that matches a column of test.events: their fields are 'payload', 'schema'"
    assert remedy == "declare source.format: {type: json, unwrap: payload}"
    assert stream.table().current_snapshot().summary["frazil.without-columns"] == "3"
    path.write_text(path.read_text().replace("format: json", "format: {type: json, unwrap: payload}"))
    stream.produce([json.dumps({"schema": {"type": "struct"}, "payload": payload}).encode()])
    stream.catch_up()
    unwrapped = stream.table().scan(row_filter="ident is not null").to_arrow().to_pylist()
    assert [(row["ident"], row["note"]) for row in unwrapped] == [(7, "a")]


def test_a_messy_topic_becomes_a_clean_table_and_cast_values_are_counted(stream: Any) -> None:
    (block,) = [one for one in blocks("docs/how-to/keep-fields-that-vary.md") if "cast: lenient" in one.text]
    declared = yaml.safe_load(block.text)
    source = {**declared["source"], "topics": [stream.topic], "bootstrap-servers": stream.bootstrap}
    declared |= {"name": stream.name, "source": source, "dead-letters": {"circuit": "off"}}
    path = stream.streams / f"{stream.name}.yaml"
    usual = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**declared, "table": usual["table"]}))
    drawn = [*events(300)]
    stream.produce([event.value for event in drawn])
    stream.catch_up()
    columns = [*declared["schema"]]
    found = stream.table().scan().to_arrow().select(columns).to_pylist()
    wanted = [event.row for event in drawn if event.row is not None]
    assert sorted(found, key=lambda row: int(row["id"])) == wanted
    summary = stream.table().current_snapshot().summary
    assert summary["frazil.cast"] == str(sum(event.casts for event in drawn))
    assert summary["frazil.rejected"] == str(len(drawn) - len(wanted))
    heartbeat = Heartbeat.read(run_folder(stream.name))
    assert heartbeat is not None
    (notice,) = [text for text in heartbeat.notices if "were cast to the column types" in text]
    assert "id " in notice


CRASHING = Path(__file__).parents[1] / "faults" / "crashing_writer.py"


def test_casts_are_counted_alike_after_a_kill_in_a_backfill_and_in_a_replay(
    stream: Any, frazil: Callable[..., Any], tmp_path: Path
) -> None:
    """A third of the ids are text. A dead letter has one too, which is counted only once the letter is a row."""

    def cast(operation: str | None = None) -> list[str]:
        found = [s.summary or {} for s in stream.table().metadata.snapshots]
        return [str(s["frazil.cast"]) for s in found if "frazil.cast" in s and s.get("frazil.operation") == operation]

    def send(numbers: range) -> None:
        odd = {7: {"note": {"a": 1}}}
        stream.produce([record(n, **odd.get(n, {})) for n in numbers])

    def record(number: int, **more: object) -> bytes:
        sent = str(number) if number % 3 == 1 else number
        return json.dumps({"id": sent, "at": "2024-01-01T00:00:00Z", "note": "x", **more}).encode()

    stream.declare("cast: lenient\ncommit: {interval: 1s}\n")
    send(range(60))
    (tmp_path / "points").write_text("after-journal")
    environment = {**os.environ, "FRAZIL_TEST_CRASHES": str(tmp_path / "points"), "FRAZIL_TEST_ENGINE": "python"}
    command = [sys.executable, str(CRASHING), stream.name, "--streams", str(stream.streams), "--until-caught-up"]
    killed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=200)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    stream.catch_up()
    landed = [n for n in range(60) if n != 7]
    assert (stream.ids(), cast()) == (landed, ["19"])

    assert frazil("reset", stream.name, "--to", "latest", "--yes").returncode == 0
    send(range(60, 90))
    assert frazil("reset", stream.name, "--to", "latest", "--yes").returncode == 0
    with open_backfill(stream.spec, parse_request({"stream": stream.name})) as backfill:
        run(backfill, InProcessEngine())
    landed += range(60, 90)
    assert (stream.ids(), cast("backfill")) == (landed, ["10"])

    path = stream.streams / f"{stream.name}.yaml"
    path.write_text(path.read_text().replace("note: string", "note: {type: string, as: json, cast: strict}"))
    replayed = frazil("dlq", "replay", stream.name)
    assert "1 dead letter is a row now" in replayed.stdout, replayed.stdout + replayed.stderr
    assert stream.ids() == sorted([*landed, 7])
    assert (cast("backfill"), cast("replay")) == (["10"], ["1"])


def test_columns_added_by_evolution_are_cast_as_the_stream_declares(stream: Any) -> None:
    stream.declare("cast: lenient\nevolution: additive\ncommit: {interval: 1s}\n")
    stream.produce([record(0, gate=1)])
    stream.catch_up()
    stream.produce([record(1, gate="2"), record(2, gate="x")])
    stream.catch_up()
    assert rows(stream, "gate") == [(0, 1), (1, 2)]
    assert (stream.table().current_snapshot().summary or {})["frazil.cast"] == "1"


def test_any_value_is_kept_as_a_variant(keeping: Callable[[str], Any]) -> None:
    stream = keeping("")
    path = stream.streams / f"{stream.name}.yaml"
    declared = yaml.safe_load(path.read_text())
    declared["schema"] |= {"raw": "variant", "other": "variant"}
    declared["table"] = {"identifier": declared["table"], "properties": {"format-version": 3}}
    path.write_text(yaml.safe_dump(declared))
    values = [{"b": [1, None, 2.5]}, "text", None, 10**30, {"deep": {"a": "x" * 100_000}}]
    stream.produce([record(n, raw=value, more=n) for n, value in enumerate(values)])
    stream.produce([record(5, raw={"a": 1}).replace(b'"a": 1', b'"a": 1, "a": 2'), record(6)])
    stream.catch_up()
    assert sorted(stream.table().scan(selected_fields=("id",)).to_arrow()["id"].to_pylist()) == [0, 1, 2, 3, 4, 6]
    files = [task.file.file_path.removeprefix("file://") for task in stream.table().scan().plan_files()]
    found = [row for file in files for row in pq.read_table(file).to_pylist()]
    kept = {row["id"]: [part and VariantVal(**part).toPython() for part in (row["raw"], row["other"])] for row in found}
    assert kept == {**{n: [value, {"more": n}] for n, value in enumerate(values)}, 6: [None, None]}
