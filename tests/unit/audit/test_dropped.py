"""An audit counts the records that a transform drops, whatever the other records are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from frazil.audit import source_records
from frazil.audit.source_records import dropped_offsets
from frazil.ingest import transform
from tests.unit.ingest.test_transform import Reader, context_of, stream


@pytest.mark.processes
def test_a_record_for_which_the_transform_raises_leaves_the_others_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = stream("SELECT n AS a FROM records WHERE txt LIKE 'a' ESCAPE tags[1]", schema={"a": "long"})
    values = [b'{"txt": "a", "tags": ["x"]}', b'{"txt": "a", "tags": ["too long"]}', b'{"txt": "b", "tags": ["x"]}']
    context = context_of(spec)
    # Its memory limit may abort a process that also reads.
    monkeypatch.setattr(transform, "limit_memory", lambda _: pytest.fail("the transform runs in the audit's process"))
    monkeypatch.setattr(source_records, "build_stage_context", lambda *_, **__: context)
    monkeypatch.setattr(source_records, "executor_kafka_properties", lambda *_: {})
    monkeypatch.setattr(source_records, "open_reader", lambda *_: Reader(values, 10))
    found = dropped_offsets(spec, cast("Any", SimpleNamespace()), {("t", 0): (0, 3)})
    assert {tp: [*offsets] for tp, offsets in found.items()} == {("t", 0): [2]}
    monkeypatch.setattr(source_records, "open_reader", lambda *_: Reader(values[1:2], 10))
    assert dropped_offsets(spec, cast("Any", SimpleNamespace()), {("t", 0): (0, 1)}) == {}
