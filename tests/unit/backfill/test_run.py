"""What travels to a backfill's tasks."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.cloudpickle import dumps

from frazil.backfill.request import parse_request
from frazil.backfill.run import open_backfill
from frazil.commit.marker import BatchKey
from frazil.ingest import stage as stage_module
from frazil.ingest.contract import OffsetRange, StageTask
from frazil.table.catalogs import load_catalog
from frazil.table.tables import ensure_table
from tests.unit.stream_with_secret import SPEC


def test_the_closure_of_a_chunk_holds_references_that_tasks_resolve(
    frazil_home: Path,  # noqa: ARG001 - it sets the environment
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "hunter2")
    ensure_table(load_catalog(None), SPEC)
    with open_backfill(SPEC, parse_request({"stream": "flights"})) as backfill:
        context = backfill.context(backfill.opened.tables, BatchKey(1, 1), {})
    assert b"hunter2" not in dumps(context)

    opened: list[dict[str, str]] = []
    monkeypatch.setattr(stage_module, "kafka_reader", lambda properties, _: opened.append(properties))
    stage_module._reader(context, StageTask(0, (OffsetRange("flights", 0, 0, 1),)))
    assert opened == [{"bootstrap.servers": "127.0.0.1:1", "sasl.password": "hunter2"}]
