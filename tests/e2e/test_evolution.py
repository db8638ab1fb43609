"""Tables that evolve with their records: a few changes through a real broker, by real writers without a JVM."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest
from pyiceberg.types import DoubleType, LongType, StringType

from frazil.stream.batch import BatchRunner
from frazil.table.catalogs import load_catalog
from tests.polling import eventually

INTERVAL = "commit: {interval: 1s}\n"


def record(number: int, **more: object) -> bytes:
    return json.dumps({"id": number, "at": f"2024-01-01T00:00:{number % 60:02d}Z", **more}).encode()


def rows(stream: Any, *columns: str) -> list[tuple[Any, ...]]:
    found = stream.table().scan().to_arrow().to_pylist()
    return sorted((row["id"], *(row[name] for name in columns)) for row in found)


def dead_letters(stream: Any) -> list[tuple[str, str]]:
    found = stream.table("_dead_letters").scan().to_arrow().to_pylist()
    return sorted((dead_letter["error_class"], dead_letter["error"]) for dead_letter in found)


def schemas(stream: Any) -> int:
    return len(stream.table().metadata.schemas)


@pytest.fixture
def evolving(stream: Any) -> Callable[[str], Any]:
    """`evolving("full")`: the test's stream, with that evolution."""

    def make(evolution: str) -> Any:
        stream.declare(f"evolution: {evolution}\n{INTERVAL}")
        return stream

    return make


def test_a_new_field_becomes_an_optional_column_in_one_commit_before_the_batch(
    evolving: Callable[[str], Any], frazil: Callable[..., Any]
):
    stream = evolving("additive")
    stream.produce([record(0)])
    stream.catch_up()
    assert schemas(stream) == 1
    stream.produce(
        [
            record(1, gate="A1", load={"bags": 3}),
            record(2, load={"bags": 4, "doors": [True]}),
            record(3, gate=None, weight=1.5),
            record(4, weight=2),
            record(5, never=None),
        ],
        partitions=4,
    )
    stream.catch_up()
    assert schemas(stream) == 2
    assert rows(stream, "gate", "weight", "load") == [
        (0, None, None, None),
        (1, "A1", None, {"bags": 3, "doors": None}),
        (2, None, None, {"bags": 4, "doors": [True]}),
        (3, None, 1.5, None),
        (4, None, 2.0, None),
        (5, None, None, None),
    ]
    schema = stream.table().schema()
    assert "never" not in schema.column_names
    assert [schema.find_type(name) for name in ("gate", "weight")] == [StringType(), DoubleType()]
    assert not any(field.required for field in schema.fields if field.name in {"gate", "weight", "load"})

    stream.produce([record(6, gate="B2", load={"bags": 1, "more": {"deep": 1}}), record(7, weight="heavy")])
    assert "\nundeclared    gate: string, load: 'struct<" in frazil("status", "events").stdout
    stream.catch_up()  # another process continues with the columns, without a change of the declaration
    assert schemas(stream) == 3
    assert rows(stream, "gate", "load")[-1] == (6, "B2", {"bags": 1, "doors": None, "more": {"deep": 1}})
    assert dead_letters(stream) == [("TypeMismatch", "weight: expected a number (double), got the string 'heavy'")]


def test_without_evolution_a_new_field_is_ignored(stream: Any):
    stream.produce([record(0, gate="A1")])
    stream.catch_up()
    assert "gate" not in stream.table().schema().column_names
    assert rows(stream) == [(0,)]


def test_full_evolution_widens_columns_and_makes_them_optional_where_a_valid_record_needs_it(
    evolving: Callable[[str], Any],
):
    stream = evolving("full")
    yaml = stream.streams / "events.yaml"
    yaml.write_text(yaml.read_text().replace("note: string", "'count': int, fare: 'decimal(4, 2)', note: string"))
    stream.produce([record(0, count=1, fare=1.25)])
    stream.catch_up()
    stream.produce(
        [
            record(1, count=3_000_000_000),
            record(2, fare=12345.5),
            record(3, count="many"),
            json.dumps({"at": "2024-01-01T00:00:04Z", "note": "without id"}).encode(),
            json.dumps({"id": 5}).encode(),
        ]
    )
    for _ in range(2):  # a restart takes the table as it is
        stream.catch_up()
    table = stream.table()
    assert schemas(stream) == 2
    assert table.schema().find_type("count") == LongType()
    assert str(table.schema().find_type("fare")) == "decimal(7, 2)"
    required = {field.name for field in table.schema().fields if field.required}
    assert "id" not in required
    assert "at" in required
    found = [(row["id"], row["count"], row["fare"]) for row in table.scan().to_arrow().to_pylist()]
    assert {(i, c, None if f is None else float(f)) for i, c, f in found} == {
        (0, 1, 1.25),
        (1, 3_000_000_000, None),
        (2, None, 12345.5),
        (None, None, None),
    }
    assert dead_letters(stream) == [
        ("MissingRequired", "at: required, and missing or null"),
        ("TypeMismatch", "count: expected a whole number (long), got the string 'many'"),
    ]


def test_a_column_added_by_another_program_is_filled_from_the_next_batch(evolving: Callable[[str], Any]):
    stream = evolving("additive")
    with stream.writing():
        stream.produce([record(0)])
        eventually(lambda: stream.has_rows(1))
        with stream.table().update_schema() as update:
            update.add_column("gate", StringType())
        stream.produce([record(1, gate="A1")])
        eventually(lambda: stream.has_rows(2))
    assert rows(stream, "gate") == [(0, None), (1, "A1")]
    assert schemas(stream) == 2


def test_fields_that_cannot_become_columns_are_ignored_and_reported_once(
    evolving: Callable[[str], Any], caplog: pytest.LogCaptureFixture
):
    stream = evolving("{mode: additive, max-columns: 9}")
    odd: dict[str, object] = {"Note": "x", "a.b": 1, "at_day": 2, "mixed": "x", "kafka_topic": "y"}
    stream.produce([record(0, **odd), record(1, mixed=1), record(2, gate="A1", load=2, more=3)])
    with stream.writing():
        eventually(lambda: stream.has_rows(3))
        stream.produce([record(3, more=4, **odd)])
        eventually(lambda: stream.has_rows(4))
    assert stream.ids() == [0, 1, 2, 3]
    assert [name for name in stream.table().schema().column_names if not name.startswith("kafka_")] == [
        "id", "at", "note", "gate", "load",
    ]  # fmt: skip
    newest = stream.table().current_snapshot()
    assert newest.summary["frazil.with-ignored-fields"] == "1"
    for words in (
        "'Note' has the same name as the column note",
        "'a.b' has a dot",
        "'at_day' has the name of a partition field",
        "max-columns is 9",
        "'mixed' has values that no column",
    ):
        assert caplog.text.count(words) == 1


def test_two_streams_that_evolve_one_table_converge(
    evolving: Callable[[str], Any], declared_stream: Any, topic: Any, tmp_path: Any
):
    one = evolving("additive")
    two = declared_stream(tmp_path, name="others", topic=topic(1), bootstrap=one.bootstrap)
    two.declare(f"evolution: additive\n{INTERVAL}")
    yaml = two.streams / "others.yaml"
    yaml.write_text(yaml.read_text().replace("test.others", "test.events"))
    one.produce([record(0)])
    two.produce([record(1)])
    one.catch_up()
    two.catch_up()
    with one.writing(), two.writing():
        for number in range(5):
            fields = {f"f{number}": number, f"g{number}": "x"}
            one.produce([record(10 + number, **fields)])
            two.produce([record(20 + number, **fields)])
        eventually(lambda: one.has_rows(12))
    assert one.ids() == [0, 1, *range(10, 15), *range(20, 25)]
    table = load_catalog(None).load_table("test.events")
    assert all(str(table.schema().find_type(f"f{number}")) == "long" for number in range(5))
    assert schemas(one) <= 11
    filled = {row["id"]: row["f3"] for row in table.scan().to_arrow().to_pylist()}
    assert filled[13] == filled[23] == 3


def test_a_writer_that_dies_between_evolution_and_its_batch_continues_with_the_new_columns(
    evolving: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
):
    stream = evolving("additive")
    stream.produce([record(0, gate="A1"), record(1, gate="A2")], partitions=2)

    def ends(self: BatchRunner, *of_batch: Any) -> bool:
        assert evolve(self, *of_batch)
        raise SystemExit

    evolve = BatchRunner._evolve_tables
    with monkeypatch.context() as patch:
        patch.setattr(BatchRunner, "_evolve_tables", ends)
        with pytest.raises(SystemExit):
            stream.catch_up()
    assert schemas(stream) == 2
    assert not stream.has_rows(1)
    stream.catch_up()
    assert rows(stream, "gate") == [(0, "A1"), (1, "A2")]
    assert schemas(stream) == 2


@pytest.mark.soak
def test_twenty_changes_in_a_minute_while_the_writer_is_killed_lose_and_repeat_nothing(evolving: Callable[[str], Any]):
    stream, sent, changes = evolving("full"), 0, 20
    chance, writer, kills = random.Random(14), None, 0
    stream.produce([record(0)])
    stream.catch_up()
    for change in range(changes):
        fields = {f"f{change}": change} if change % 2 else {f"f{change}": {"x": "y"}, "grows": {f"g{change}": 1.5}}
        until = time.monotonic() + 3
        killed = chance.random() < 0.6
        while time.monotonic() < until:
            stream.produce([record(sent + n + 1, **fields) for n in range(500)], partitions=4)
            sent += 500
            if writer is None or writer.poll() is not None:
                command = stream.command(without_jvm=True)
                writer = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if killed and time.monotonic() > until - chance.uniform(0, 2):
                writer.send_signal(signal.SIGKILL)
                kills, killed = kills + 1, False
                writer.wait()
            time.sleep(0.2)  # the load, not a wait
    assert writer is not None
    writer.kill()
    writer.wait()
    stream.catch_up()
    assert kills
    assert stream.ids() == [*range(sent + 1)]
    found = stream.table().scan().to_arrow().to_pylist()
    for row in found:
        filled = [change for change in range(changes) if row[f"f{change}"] is not None]
        assert len(filled) == (row["id"] > 0)
        if filled and filled[0] % 2 == 0:
            assert row["grows"][f"g{filled[0]}"] == 1.5
    assert schemas(stream) <= changes + 1
    assert dead_letters(stream) == []


def test_columns_are_renamed_and_dropped_while_the_writer_runs(
    evolving: Callable[[str], Any], frazil: Callable[..., Any]
):
    stream = evolving("additive")
    yaml = stream.streams / "events.yaml"
    yaml.write_text(yaml.read_text().replace("note: string", "'due': {type: timestamptz, unit: s}, note: string"))
    with stream.writing():
        stream.produce([record(0, note="old", due=1, gate="A1")])
        eventually(lambda: stream.has_rows(1))
        done = frazil("evolve", "events", "--rename", "note=remark", "--rename", "due=until", "--drop", "gate", "--yes")
        assert done.returncode == 0, done.stderr
        assert "rename note to remark" in done.stdout
        stream.produce(
            [record(1, note="a"), record(2, remark="b", gate="A2"), record(3, note="c", remark="d", until=2)]
        )
        stream.produce([record(4, note=1), record(5, due=3, more="x")])
        eventually(lambda: stream.has_rows(5))
    assert rows(stream, "remark", "more") == [
        (0, "old", None),
        (1, "a", None),
        (2, "b", None),
        (3, "d", None),
        (5, None, "x"),
    ]
    assert [row and row.timestamp() for _, row in rows(stream, "until")] == [1, None, None, 2, 3]
    assert "gate" not in stream.table().schema().column_names
    assert dead_letters(stream) == [("TypeMismatch", "note: expected a string, got the number 1")]

    stream.produce([record(6, note="again")])
    stream.catch_up()  # the declaration still has the old names
    yaml.write_text(yaml.read_text().replace("note: string", "remark: string").replace("'due'", "until"))
    stream.produce([record(7, note="and again", due=4)])
    stream.catch_up()
    assert rows(stream, "remark")[-2:] == [(6, "again"), (7, "and again")]

    for wrong in ("at=then", "remark=id", "remark=note.a", "nothing=x", "id=note"):
        refused = frazil("evolve", "events", "--rename", wrong, "--yes")
        assert (refused.returncode, "SchemaIncompatible" in refused.stderr) == (15, True), wrong
    assert schemas(stream) == 4
