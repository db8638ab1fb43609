"""The lineage events of a day's run: the snapshot that it read, and the rows that it wrote."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from frazil.aggregate.day_input import DayInput, input_summary
from frazil.aggregate.run import DayRun
from frazil.lineage.facts import LineageState, RunFacts
from frazil.lineage.jobs import openlineage_jobs
from frazil.table.catalogs import load_catalog
from tests.unit.aggregate.test_day_input import DAY, SPEC

ROWS = pa.table({"amount": pa.array([1, 2], pa.int64())})
ON = {"OPENLINEAGE_URL": "http://127.0.0.1:1"}


class Backend:
    def __init__(self) -> None:
        self.events: list[tuple[LineageState, RunFacts]] = []
        self.job = ""

    def connect(self, _: object, job: str) -> Any:
        self.job = job
        return self

    def send(self, state: LineageState, at_ms: int, reported: RunFacts) -> None:  # noqa: ARG002
        self.events.append((state, reported))

    def close(self, timeout_s: float) -> None: ...


@pytest.fixture
def catalog(frazil_home: Path) -> Catalog:  # noqa: ARG001
    catalog = load_catalog(None)
    catalog.create_namespace("shop")
    return catalog


@pytest.fixture
def source(catalog: Catalog) -> Table:
    table = catalog.create_table(SPEC.source, ROWS.schema)
    table.append(ROWS)
    return table


def given(source: Table) -> DayInput:
    snapshot = source.current_snapshot()
    assert snapshot is not None
    return DayInput(snapshot.snapshot_id, 1, "1")


def test_a_day_that_was_written_is_reported_with_the_snapshot_that_it_was_read_from(
    catalog: Catalog, source: Table
) -> None:
    backend, read = Backend(), given(source)
    source.append(ROWS)
    with openlineage_jobs(ON, connect=backend.connect) as jobs, DayRun(catalog, SPEC, DAY, read).report(jobs):
        target = catalog.create_table(SPEC.target, ROWS.schema)
        target.append(ROWS, snapshot_properties=input_summary(SPEC, DAY, read))
        written = target.current_snapshot()
        target.append(ROWS)
    (_, before), (state, after) = backend.events
    assert (backend.job, state) == ("aggregation.sales", LineageState.COMPLETE)
    assert [(one.identifier, one.snapshot_id) for one in before.inputs] == [(SPEC.source, read.snapshot_id)]
    assert before.output is None
    assert after.inputs == before.inputs
    assert after.output is not None
    assert after.totals is not None
    assert written is not None
    assert (after.output.identifier, after.totals.snapshot_id) == (SPEC.target, written.snapshot_id)
    assert (after.totals.records, after.totals.files, after.day) == (2, 1, DAY)
    assert after.totals.bytes > 0


def test_a_run_whose_target_already_has_a_newer_input_reports_no_written_rows(catalog: Catalog, source: Table) -> None:
    backend, read = Backend(), given(source)
    target = catalog.create_table(SPEC.target, ROWS.schema)
    target.append(ROWS, snapshot_properties=input_summary(SPEC, DAY, replace(read, snapshot_id=77)))
    with openlineage_jobs(ON, connect=backend.connect) as jobs, DayRun(catalog, SPEC, DAY, read).report(jobs):
        pass
    state, after = backend.events[-1]
    assert (state, after.totals) == (LineageState.COMPLETE, None)


def test_a_failed_aggregation_run_reports_its_error_and_raises_it_again(catalog: Catalog, source: Table) -> None:
    backend, run = Backend(), DayRun(catalog, SPEC, DAY, given(source))
    with (
        pytest.raises(ValueError, match="no such column"),
        openlineage_jobs(ON, connect=backend.connect) as jobs,
        run.report(jobs),
    ):
        raise ValueError("no such column")
    assert [(state, reported.error) for state, reported in backend.events] == [
        (LineageState.START, None),
        (LineageState.FAIL, "ValueError: no such column"),
    ]


def test_an_unresponsive_catalog_removes_only_the_tables_from_lineage_events() -> None:
    backend = Backend()
    run = DayRun(object(), SPEC, DAY, DayInput(1, 1, "1"))  # type: ignore[arg-type]
    with openlineage_jobs(ON, connect=backend.connect) as jobs, run.report(jobs):
        pass
    assert [(state, reported.inputs, reported.output) for state, reported in backend.events] == [
        (LineageState.START, (), None),
        (LineageState.COMPLETE, (), None),
    ]


def test_without_a_backend_the_catalog_is_not_asked() -> None:
    with DayRun(object(), SPEC, DAY, DayInput(1, 1, "1")).report(None):  # type: ignore[arg-type]
        pass
