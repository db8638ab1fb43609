"""The declaration that `frazil infer` proposes for Debezium's events: an upsert that accepts their rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from frazil.infer.proposal import StreamNames, decode_sample, propose_declaration
from frazil.infer.sample import Sample
from frazil.spec.formats import envelope_of
from frazil.spec.load import validate_stream
from frazil.spec.model import StreamSpec
from frazil.spec.upsert import Delete
from tests.unit.infer.test_infer import NOW_MS, sample, types
from tests.unit.ingest.test_envelope import event, wrapped

COUNT = 120
MYSQL = {"connector": "mysql", "file": "binlog.000003", "pos": 484, "row": 0, "ts_ms": NOW_MS}


def proposed(of: Sample) -> tuple[str, StreamSpec]:
    text = propose_declaration(of, StreamNames("t", "demo.t", "127.0.0.1:9092"))
    return text, validate_stream(yaml.safe_load(text), Path("t.yaml"))


def row(n: int) -> dict[str, Any]:
    return {"id": n, "shop": "a", "total": "12.50", "at": NOW_MS + n, "committed_at": "x", "note": None}


def changes(form: Callable[..., Any] = dict, *, keyed: bool = True, **source: Any) -> Sample:
    more = {"source": source} if source else {}
    made = [event("c" if n % 2 else "u", after=row(n), **more) for n in range(COUNT)]
    made[7] = event("u", after={**row(7), "note": "__debezium_unavailable_value"}, **more)
    made.append(event("d", before={"id": 7, "shop": "a"}, **more))
    of = sample([*(json.dumps(form(one)).encode() for one in made), None])
    keys = [json.dumps(form({"id": n, "shop": "a"})).encode() if keyed else None for n in range(len(of.records))]
    return replace(of, records=tuple(replace(r, key=k) for r, k in zip(of.records, keys, strict=True)))


@pytest.mark.parametrize("form", [dict, wrapped], ids=["plain", "with its schema"])
def test_events_are_proposed_as_an_upsert_of_their_rows(form: Callable[..., Any]) -> None:
    of = changes(form)
    text, spec = proposed(of)
    assert types(spec) == {
        "id": "long not null",
        "shop": "string not null",
        "total": "decimal(10, 2)",
        "at": "timestamptz",
        "committed_at": "string",
        "note": "string",
        "place": "string",
        "source_committed_at": "timestamptz",
    }
    assert (spec.mode, spec.key, spec.order_by) == ("upsert", ("id", "shop"), "place")
    assert spec.event_time.column == "source_committed_at"
    envelope = envelope_of(spec.source.format)
    assert envelope is not None
    assert envelope.metadata == {"place": "position", "source_committed_at": "source.ts_ms"}
    assert not decode_sample(yaml.safe_load(text), of).rejections
    assert "Debezium's events" in "".join(text.splitlines()[:4])


@pytest.mark.parametrize(("source", "order_by"), [(MYSQL, "place"), ({"connector": "mongodb", "ts_ms": 1}, None)])
def test_infer_proposes_order_by_only_if_every_event_has_a_log_position(
    source: dict[str, Any], order_by: str | None
) -> None:
    text, spec = proposed(changes(**source))
    assert spec.order_by == order_by
    assert ("Not all events have a position" in text) == (order_by is None)


def test_without_keys_of_records_the_key_is_called_a_guess() -> None:
    text, spec = proposed(changes(keyed=False))
    assert spec.key == ("id",)
    assert "key: [id]    # a guess: the record keys do not show it" in text


@pytest.mark.parametrize(
    ("make_key", "key", "whole_key"),
    [
        (lambda n: b'{"id": %d}' % n, ("id",), None),
        (lambda n: b'{"no": %d}' % n, ("record_key",), "string"),
        (lambda n: b'{"id": %d}' % (n + 1), ("record_key",), "string"),
        (lambda n: b'{"id": %s}' % (b"%d" % n if n < COUNT else b"null"), ("record_key",), "string"),
        (lambda n: b"%d" % n, ("id",), "json"),
        (lambda n: b"%d" % n if n < COUNT else b"k%d" % n, ("record_key",), "string"),
        (lambda n: b"n%d" % n, ("name",), "string"),
        (lambda n: b"n%d" % n if n < COUNT else b"\xff", ("record_key",), "bytes"),
        (lambda n: b"k%d" % n, ("record_key",), "string"),
        (lambda n: b"\xff%d" % n, ("record_key",), "bytes"),
    ],
    ids=[
        *("fields of records", "other fields", "fields with other values", "a null in a tombstone's key"),
        *("a number", "a text in a tombstone's key", "a text", "bytes in a tombstone's key", "other texts", "bytes"),
    ],
)
def test_records_without_a_value_are_proposed_as_deletes_of_their_key(
    make_key: Callable[[int], bytes], key: tuple[str, ...], whole_key: str | None
) -> None:
    values = [json.dumps({"id": n, "at": NOW_MS + n, "name": f"n{n}"}).encode() for n in range(COUNT)]
    of = sample([*values, None, None])
    of = replace(of, records=tuple(replace(r, key=make_key(n)) for n, r in enumerate(of.records)))
    text, spec = proposed(of)
    assert (spec.mode, spec.key, spec.delete) == ("upsert", key, Delete(tombstones=True))
    assert (spec.source.key and spec.source.key.format) == whole_key
    assert spec.event_time.column == "at"
    assert "# 2 records have a key and no value. With delete: tombstones, such a record deletes the row" in text
    assert "dead letters:" not in text
    assert not decode_sample(yaml.safe_load(text), of).rejections
    keyless = replace(of, records=(*of.records, replace(of.records[0], key=None)))
    assert proposed(keyless)[1].mode == "append"


def test_records_that_only_resemble_debezium_events_stay_plain_rows() -> None:
    of = sample([json.dumps({"op": "c", "after": n, "source": "x"}).encode() for n in range(COUNT)])
    text, spec = proposed(of)
    assert (spec.mode, "Debezium" in text) == ("append", False)
