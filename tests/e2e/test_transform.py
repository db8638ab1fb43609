"""Transforms through a real broker: what WHERE drops is counted, what fails is a dead letter, and audits hold."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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


def test_preview_shows_rows_drops_and_dead_letters_and_writes_nothing(
    messy: Any, frazil: Command, frazil_home: Path
) -> None:
    found = frazil("preview", messy.name, "--limit", "300", "--json")
    assert found.returncode == 0, found.stderr
    records = json.loads(found.stdout)["records"]
    assert Counter(one["fate"] for one in records) == {"row": 197, "dropped": 100, "dead letter": 3}
    (one,) = (one for one in records if one["rows"] and one["rows"][0]["id"] == 4)
    assert one["rows"] == [{"id": 4, "at": "2026-01-01 00:00:04+00:00", "note": "ADA: 4.50"}]
    lines = frazil("preview", messy.name).stdout.splitlines()
    assert len(lines) == 21
    assert lines[-1] == "20 records: 14 records land, 6 dropped, 0 dead letters. Nothing was written."
    assert not (frazil_home / "catalog.db").exists()
