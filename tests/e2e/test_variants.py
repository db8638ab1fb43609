"""Spark reads a variant's values unchanged after any change of the stream or its table."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pyiceberg.table import Table

from frazil.backfill.request import parse_request
from frazil.backfill.run import open_backfill
from frazil.backfill.stage import run
from frazil.maintenance.due import Action
from frazil.maintenance.orphan_cleanup import clean_orphans
from frazil.maintenance.outcomes import Ending
from frazil.maintenance.run import maintain
from frazil.maintenance.tables import find_maintained
from frazil.table.catalogs import load_catalog
from tests.in_process_engine import InProcessEngine
from tests.polling import eventually

VALUES: list[Any] = [{"b": [1, None, 2.5]}, "text", None, 10**30, {"deep": {"a": "x" * 100_000}}, True, []]
HOUR_MS, DAY_S = 3_600_000, 86_400
MODES: dict[str, dict[str, Any]] = {
    "append": {},
    "whole windows": {"commit": {"interval": "1s", "align": "watermark"}, "watermark": {"idle-timeout": "1h"}},
    "shuffle": {"distribution": "hash"},
    "dedupe": {"dedupe": {"key": "id", "within": "1h"}},
    "route": {"route": {"by": "field", "name": "note", "template": "test.NAME_of_{value}"}},
    "transform": {
        "transform": "SELECT id, \"at\", note, raw, json_object('more', other->'$.more') AS other FROM records "
        "WHERE raw IS DISTINCT FROM 'true'"
    },
    "evolution": {"evolution": "additive"},
    "upsert": {"mode": "upsert", "key": "id"},
    "merge-on-read": {"mode": "upsert", "key": "id", "merge": "merge-on-read"},
}


class Life:
    """A stream with a variant for one field, and one for the rest, and the rows that it must have."""

    def __init__(self, stream: Any, spark: Any, mode: str) -> None:
        self.stream, self.spark, self.mode = stream, spark, mode
        self.expected: dict[int, tuple[Any, Any]] = {}
        self.made = self.sent = 0

    @property
    def merges(self) -> bool:
        return "mode" in MODES[self.mode]

    def declare(self, **more: Any) -> None:
        self.stream.declare("")
        path = self.stream.streams / f"{self.stream.name}.yaml"
        text = path.read_text().replace("long not null", "long").replace("timestamptz not null", "timestamptz")
        declared = yaml.safe_load(text)
        declared["schema"] |= {"raw": "variant", "other": "variant"}
        declared["table"] = {"identifier": declared["table"], "properties": {"format-version": 3}}
        declared["maintenance"] = {"compaction": {"min-files": 2}, "expiry": {"keep": "1ms", "at-least": 1}}
        if self.mode == "dedupe" or self.merges:
            declared["schema"]["id"] += " not null"
        if self.mode == "transform":
            strings = {"raw": {"type": "string", "as": "json"}, "other": "string"}
            declared["source"]["schema"] = declared["schema"] | strings
        declared |= {"rest": "other", "commit": {"interval": "1s"}, **MODES[self.mode], **more}
        path.write_text(yaml.safe_dump(declared).replace("NAME", self.stream.name))

    def send(self, count: int, *, lands: bool = True, **more: Any) -> list[dict[str, Any]]:
        """Send records, and return them with their coordinates.

        Each is sent twice if the stream drops repeats. If it merges, an update of the first row comes before each.
        """
        sent = []
        for number in range(self.made, self.made + count):
            value = {"id": number, "at": f"2024-01-01T00:00:{number:02d}Z", "note": "ab"[number % 2]}
            value |= {"raw": VALUES[number % len(VALUES)], "more": number, "odd.name": [number], **more}
            if self.merges:
                update = {**value, "id": 0, "raw": {"update": number}}
                self.stream.produce([json.dumps(update).encode()])
                self.sent += 1
                self.expect(update)
            place = {"kafka_topic": self.stream.topic, "kafka_partition": 0, "kafka_offset": self.sent}
            sent.append({**value, **place})
            times = 1 + (self.mode == "dedupe")
            self.stream.produce([json.dumps(value).encode()] * times)
            self.sent += times
            if lands:
                self.expect(value)
        self.made += count
        return sent

    def expect(self, value: dict[str, Any]) -> None:
        if self.mode == "transform":
            rest = {"more": value["more"]}
        else:
            rest = {name: value[name] for name in ("more", "odd.name") if self.mode != "evolution" or "." in name}
        if self.mode != "transform" or value["raw"] is not True:
            self.expected[int(value["id"])] = value["raw"], rest

    @property
    def identifiers(self) -> list[str]:
        names = [name for _, name in load_catalog(None).list_tables("test") if name.startswith(self.stream.name)]
        return [f"test.{name}" for name in names if "dead_letters" not in name]

    def check(self) -> None:
        found = []
        for identifier in self.identifiers:
            self.spark.sql(f"REFRESH TABLE default.{identifier}")
            for ref in load_catalog(None).load_table(identifier).metadata.refs:  # the open branch has open windows
                query = f"SELECT id, raw, other FROM default.{identifier} VERSION AS OF '{ref}'"
                found += self.spark.sql(query).collect()
        rows = [(row.id, tuple(part and part.toPython() for part in (row.raw, row.other))) for row in found]
        assert len(rows) == len(self.expected)
        assert dict(rows) == self.expected

    def archive(self, line: dict[str, Any], row: dict[str, Any], *, folder: Path) -> None:
        """Write one record as a JSON line, and one as a row of Parquet, where a variant is JSON text."""
        folder.mkdir()
        (folder / "one.jsonl").write_text(json.dumps(line))
        left = {name: row[name] for name in ("more", "odd.name") if self.mode != "evolution" or "." in name}
        columns = {name: value for name, value in row.items() if name == "note" or name.startswith(("id", "kafka"))}
        columns |= {"raw": json.dumps(row["raw"]), "other": json.dumps(left)}
        at = pa.array([row["at"]]).cast(pa.timestamp("us", "UTC"))
        pq.write_table(pa.Table.from_pylist([columns]).append_column("at", at), folder / "one.parquet")

    def backfill(self, **request: str) -> None:
        with open_backfill(self.stream.spec, parse_request({"stream": self.stream.name, **request})) as backfill:
            run(backfill, InProcessEngine())

    def maintain(self) -> None:
        for identifier in self.identifiers:
            table = find_maintained([self.stream.spec], identifier)
            outcomes = maintain(
                lambda: self.spark, load_catalog(None), table, actions=tuple(Action), now_ms=time.time_ns() // 10**6
            )
            assert all(outcome.ending is not Ending.FAILED for outcome in outcomes), outcomes

    @property
    def table(self) -> Table:
        return self.stream.table("_of_a" if self.mode == "route" else "")

    def leave_orphan(self) -> None:
        stray = Path(self.table.location().removeprefix("file://")) / "data" / "stray.parquet"
        stray.touch()
        os.utime(stray, (time.time() - 9 * DAY_S,) * 2)

    def clean_orphans(self, *, hours: int) -> int:
        table = find_maintained([self.stream.spec], ".".join(self.table.name()))
        now_ms = time.time_ns() // 10**6 + hours * HOUR_MS
        report = clean_orphans(load_catalog(None), table, now_ms=now_ms)
        assert not report.refused, report
        return report.deleted


@pytest.fixture
def requested_spark(mode: str, spark: Any) -> Any:
    """Writers of other modes run without a JVM, which takes less CPU time."""
    return spark if mode == "shuffle" else None


@pytest.mark.rotates(2)
@pytest.mark.parametrize("mode", MODES)
def test_variants_keep_their_values_through_the_life_of_a_stream(
    in_sparks_catalog: Any, spark: Any, frazil: Callable[..., Any], mode: str, tmp_path: Path
) -> None:
    life = Life(in_sparks_catalog, spark, mode)
    stream = life.stream

    def command(*arguments: str) -> str:
        done = frazil(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return str(done.stdout)

    life.declare()
    life.send(4)
    (letter,) = life.send(1, lands=False, id="4")
    stream.catch_up()
    life.check()

    life.declare(cast="lenient")
    assert "dead letter" in command("dlq", "replay", stream.name)
    life.expect(letter)
    life.check()

    command("reset", stream.name, "--to", "latest", "--yes")
    life.send(2)
    archived = life.send(2)
    command("reset", stream.name, "--to", "latest", "--yes")
    life.archive(*archived, folder=tmp_path / "archive")
    life.backfill(files=str(tmp_path / "archive"))
    life.backfill()
    life.check()

    records = json.loads(command("preview", stream.name, "--json"))["records"]
    shown = {row["id"]: row["raw"] and json.loads(row["raw"]) for record in records for row in record["rows"]}
    assert {number: raw for number, (raw, _) in life.expected.items()}.items() >= shown.items()
    command("audit", stream.name, "--source")
    command("status", stream.name)

    life.leave_orphan()
    assert life.clean_orphans(hours=0) == 0
    life.maintain()
    life.check()

    with stream.writing():
        life.send(3)
        life.send(1, note="c")
        eventually(lambda: mode != "route" or f"test.{stream.name}_of_c" in life.identifiers, within_s=60)
    stream.catch_up()
    life.check()
    life.maintain()
    assert life.clean_orphans(hours=2) == 1
    life.check()
    command("audit", stream.name, "--source")
