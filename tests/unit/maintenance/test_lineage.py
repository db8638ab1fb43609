"""Lineage events of maintenance: one run for each changed table, and none for the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from frazil.lineage.facts import LineageState
from frazil.lineage.jobs import openlineage_jobs
from frazil.maintenance.due import Action
from frazil.maintenance.outcomes import Ending, Outcome, report_maintenance
from frazil.maintenance.tables import MaintainedTable, TableKind
from frazil.spec.maintenance import Maintenance
from frazil.table.catalogs import load_catalog
from tests.unit.aggregate.test_day_run import ON, ROWS, Backend

TABLE = MaintainedTable("shop.sales", "shop.sales", None, TableKind.MAIN, Maintenance(), ())


def outcome(action: Action, ending: Ending, **numbers: float) -> Outcome:
    return Outcome("shop.sales", action, ending, f"{action} {ending}", numbers)


@pytest.fixture
def backend(frazil_home: Path) -> Backend:  # noqa: ARG001
    catalog = load_catalog(None)
    catalog.create_namespace("shop")
    catalog.create_table("shop.sales", ROWS.schema).append(ROWS)
    return Backend()


def reported(backend: Backend, *outcomes: Outcome, table: MaintainedTable = TABLE) -> Backend:
    with openlineage_jobs(ON, connect=backend.connect) as jobs:
        report_maintenance(jobs, table, outcomes, began_ms=1_000)
    return backend


def test_a_changed_table_is_input_and_output_of_a_lineage_run_with_the_action_as_its_result(backend: Backend) -> None:
    done = outcome(Action.COMPACTION, Ending.DONE, **{"files-removed": 9})
    reported(backend, done, outcome(Action.EXPIRY, Ending.SKIPPED))
    (started, _), (state, after) = backend.events
    assert (backend.job, started, state) == ("maintenance.shop.sales", LineageState.START, LineageState.COMPLETE)
    snapshot = load_catalog(None).load_table("shop.sales").current_snapshot()
    assert snapshot is not None
    assert after.output is not None
    assert after.output.snapshot_id == snapshot.snapshot_id
    assert [one.name for one in after.inputs] == [after.output.name]
    assert after.totals is None
    assert list(after.actions) == [
        {
            "action": "compaction",
            "ending": "done",
            "sentence": "compaction done",
            "numbers": {"files-removed": 9},
        }
    ]


def test_an_action_that_failed_fails_the_run(backend: Backend) -> None:
    reported(backend, outcome(Action.COMPACTION, Ending.DONE), outcome(Action.EXPIRY, Ending.FAILED))
    state, after = backend.events[-1]
    assert (state, after.error) == (LineageState.FAIL, "expiry: expiry failed")
    assert [one["action"] for one in after.actions] == ["compaction", "expiry"]


def test_maintenance_lineage_is_not_reported_if_nothing_changed_or_the_table_cannot_be_read(backend: Backend) -> None:
    idle = [outcome(Action.EXPIRY, ending) for ending in (Ending.SKIPPED, Ending.GAVE_UP, Ending.REFUSED)]
    gone = MaintainedTable("shop.gone", "shop.gone", None, TableKind.MAIN, Maintenance(), ())
    reported(reported(backend, *idle), outcome(Action.EXPIRY, Ending.DONE), table=gone)
    assert backend.events == []
    report_maintenance(None, TABLE, [outcome(Action.EXPIRY, Ending.DONE)], began_ms=0)
