"""Runs the guide on fields that vary: the declaration on the page turns a messy topic into a clean table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from tests.messy import events
from tests.pages import Block, blocks
from tests.unit.ingest.test_json_texts import decode

PAGE = "docs/how-to/keep-fields-that-vary.md"


def declared() -> dict[str, Any]:
    (block,) = [one for one in of_kind("yaml") if "cast: lenient" in one.text]
    assert len(block.text.splitlines()) == 15
    found: dict[str, Any] = yaml.safe_load(block.text)
    return {**found, "source": {**found["source"], "bootstrap-servers": "broker:9092"}}


def of_kind(kind: str) -> list[Block]:
    return [block for block in blocks(PAGE) if block.kind == kind]


def test_each_event_of_a_messy_topic_is_a_clean_row_or_a_dead_letter() -> None:
    drawn = [*events(2_000)]
    decoded = decode([event.value for event in drawn], declared())
    found = dict(zip(decoded.record_indexes.tolist(), decoded.rows.to_pylist(), strict=True))
    assert {place: found.get(place) for place in range(len(drawn))} == {i: event.row for i, event in enumerate(drawn)}
    assert sorted(r.index for r in decoded.rejections) == [i for i, event in enumerate(drawn) if event.row is None]
    assert sum(decoded.drift.cast.values()) == sum(event.casts for event in drawn) > 1_000


def test_the_event_on_the_page_is_the_row_on_the_page() -> None:
    (text,) = [block.text for block in of_kind("json")]
    (line,) = [line for line in Path(PAGE).read_text().splitlines() if line.startswith("| value |")]
    (row,) = decode([json.dumps(json.loads(text)).encode()], declared()).rows.to_pylist()
    row["at"] = row["at"].strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    assert [str(value) for value in row.values()] == [cell.strip(" `") for cell in line.split("|")[2:-1]]
