"""Reports a table's maintenance to an OpenLineage backend: one run for all actions that changed the table or failed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from frazil import clock
from frazil.lineage.facts import RunFacts, table_dataset
from frazil.lineage.jobs import Jobs
from frazil.maintenance.outcome import Ending, Outcome
from frazil.maintenance.tables import MaintainedTable
from frazil.table.catalogs import open_existing_catalog

log = logging.getLogger(__name__)


def report_maintenance(
    jobs: Jobs | None, table: MaintainedTable, outcomes: Sequence[Outcome], *, began_ms: int
) -> None:
    """Report a finished maintenance run to OpenLineage. Never raises.

    The start of the run is reported only now, because it was not known before whether any action would have work to do.
    """
    worth = [one for one in outcomes if one.ending in {Ending.DONE, Ending.FAILED}]
    if jobs is None or not worth:
        return
    try:
        loaded = open_existing_catalog(table.catalog).load_table(table.identifier)
        found, snapshot = table_dataset(loaded), loaded.current_snapshot()
    except Exception as error:  # anything that the catalog raises; the log has what was done
        log.info("could not report the maintenance of %s to the OpenLineage backend: %r", table.name, error)
        return
    failed = [f"{one.action}: {one.sentence}" for one in worth if one.ending is Ending.FAILED]
    facts = RunFacts(
        inputs=(found,),
        output=replace(found, snapshot_id=snapshot.snapshot_id if snapshot else None),
        error="; ".join(failed) or None,
        actions=tuple(_facts_of(one) for one in worth),
    )
    run = jobs.run(f"maintenance.{table.name}")
    run.started(began_ms, RunFacts(inputs=(found,)))
    run.ended(clock.now_ms(), facts)


def _facts_of(one: Outcome) -> dict[str, object]:
    return {
        "action": str(one.action),
        "ending": str(one.ending),
        "sentence": one.sentence,
        "numbers": dict(one.numbers),
    }
