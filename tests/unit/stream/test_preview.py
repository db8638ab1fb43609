"""A preview shows what would become of each record."""

from __future__ import annotations

import pytest

from frazil.ingest.contract import OffsetRange
from frazil.stream import preview
from tests.unit.ingest.test_key_columns import stream as without_transform
from tests.unit.ingest.test_transform import Reader, stream


def test_a_record_for_which_the_transform_raises_is_shown_as_the_dead_letter_that_it_would_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = stream("SELECT n AS a FROM records WHERE txt LIKE 'a' ESCAPE tags[1]", schema={"a": "long"})
    values = [b'{"txt": "a", "tags": ["x"]}', b'{"txt": "a", "tags": ["too long"]}', b'{"txt": "b", "tags": ["x"]}']
    monkeypatch.setattr(preview, "create_kafka_reader", lambda *_, **__: Reader(values, 10))
    monkeypatch.setattr(preview, "_newest_ranges", lambda *_: [OffsetRange("t", 0, 0, 3)])
    found = preview.preview(spec, limit=3)
    assert [(one.offset, one.outcome) for one in found] == [(0, "row"), (1, "dead letter"), (2, "dropped")]
    assert found[1].error.startswith("TransformFailed: the transform failed: Syntax Error: ")


@pytest.mark.parametrize(
    "more", [{"tables": {"a": "shop.a"}, "otherwise": "dead-letters"}, {"template": "shop.{value}", "allow": ["a"]}]
)
def test_a_value_that_the_route_gives_no_table_is_a_dead_letter(
    more: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = without_transform({"kind": "string"}, {}, route={"by": "field", "name": "kind", **more})
    values = [b'{"kind": "a"}', b'{"kind": "b"}']
    monkeypatch.setattr(preview, "create_kafka_reader", lambda *_, **__: Reader(values, 10))
    monkeypatch.setattr(preview, "_newest_ranges", lambda *_: [OffsetRange("t", 0, 0, 2)])
    good, bad = preview.preview(spec, limit=2)
    assert (good.outcome, bad.outcome, bad.rows) == ("row", "dead letter", ())
    assert bad.error.startswith("NoTable: field kind: 'b' ")


def test_a_record_that_changes_nothing_and_a_rejected_one_have_other_outcomes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = {"format": {"type": "json", "envelope": "debezium"}}
    spec = without_transform({"id": "long not null", "n": "long"}, source, mode="upsert", key="id")
    other = b'{"op": "m", "message": {}}'
    values = [b'{"op": "c", "after": {"id": 1, "n": 2}}', other, b'{"op": "c", "after": {"n": 2}}']
    values += [b'{"op": "d", "before": {"id": 1}}', b'{"op": "u", "before": {"id": 1}, "after": {"id": 2, "n": 2}}']
    monkeypatch.setattr(preview, "create_kafka_reader", lambda *_, **__: Reader(values, 10))
    monkeypatch.setattr(preview, "_newest_ranges", lambda *_: [OffsetRange("t", 0, 0, 5)])
    found = preview.preview(spec, limit=5)
    assert [(one.outcome, bool(one.error)) for one in found] == [
        ("row", False),
        ("no change", False),
        ("dead letter", True),
        ("delete", False),
        ("row", False),
    ]
