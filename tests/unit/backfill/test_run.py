"""What a backfill sends to its tasks, and their results."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.cloudpickle import dumps

from frazil.backfill.request import parse_request
from frazil.backfill.run import open_backfill
from frazil.backfill.stage import log_notices
from frazil.commit.marker import BatchKey
from frazil.errors import SpecError
from frazil.ingest import readers
from frazil.ingest.contract import OffsetRange, StageResult, StageTask
from frazil.spec.upsert import Delete
from frazil.table.catalogs import load_catalog
from frazil.table.tables import ensure_table
from tests.unit.stream_with_secret import SPEC

NOW = "2024-01-01T00:00:00Z"


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
    monkeypatch.setattr(readers, "create_kafka_reader", lambda properties, _, **__: opened.append(properties))
    readers.open_reader(context, StageTask(0, (OffsetRange("flights", 0, 0, 1),)))
    assert opened == [{"bootstrap.servers": "127.0.0.1:1", "sasl.password": "hunter2"}]


@pytest.mark.parametrize("bound", [{"files": "/nowhere"}, {"to-time": NOW}, {"to-event-time": NOW}])
def test_a_stream_that_deletes_rows_is_backfilled_up_to_its_position_alone(bound: dict[str, str]) -> None:
    deletes = SPEC.model_copy(update={"mode": "upsert", "delete": Delete(tombstones=True)})
    request = parse_request({"stream": "flights", **bound})
    with pytest.raises(SpecError, match=f"with {next(iter(bound))}, a backfill could"), open_backfill(deletes, request):
        pass


def test_a_notice_of_tasks_is_logged_once_however_many_chunks_repeat_it(caplog: pytest.LogCaptureFixture) -> None:
    said: set[str] = set()
    for notices in (("slow",), ("slow", "other"), ()):
        log_notices([StageResult((), (), {}, notices)] * 2, said)
    assert [record.getMessage() for record in caplog.records] == ["slow", "other"]
