"""Reports an aggregation run to an OpenLineage backend. Errors of the report never stop the run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from frazil import clock
from frazil.aggregate.day_input import DayInput
from frazil.aggregate.spec import AggregationSpec
from frazil.commit.history import ancestors
from frazil.lineage.facts import RunFacts, Totals, table_dataset
from frazil.lineage.jobs import JobRun, Jobs

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DayRun:
    """An aggregation run for one day, which reads one snapshot of the source."""

    catalog: Catalog
    spec: AggregationSpec
    day: date
    given: DayInput

    @contextmanager
    def report(self, jobs: Jobs | None) -> Iterator[None]:
        """Report START before the run, and COMPLETE or FAIL after it; report nothing if no backend is declared."""
        if jobs is None:
            yield
            return
        run, before = jobs.run(f"aggregation.{self.spec.name}"), self._start_facts()
        run.started(clock.now_ms(), before)
        try:
            yield
        except BaseException as error:
            run.ended(clock.now_ms(), replace(before, error=f"{type(error).__name__}: {error}"))
            raise
        self._complete(run, before)

    def _start_facts(self) -> RunFacts:
        try:
            source = table_dataset(self.catalog.load_table(self.spec.source))
        except Exception as error:  # catalogs' clients raise anything; the run will report the same error
            log.info("could not report the source to the OpenLineage backend: %r", error)
            return RunFacts(day=self.day)
        return RunFacts(inputs=(replace(source, snapshot_id=self.given.snapshot_id),), day=self.day)

    def _complete(self, run: JobRun, before: RunFacts) -> None:
        try:
            target = self.catalog.load_table(self.spec.target)
            snapshot = self._written(target)
            totals = None if snapshot is None else added_totals(snapshot)
            after = replace(before, output=table_dataset(target), totals=totals)
        except Exception as error:  # as above
            log.info("could not report the target to the OpenLineage backend: %r", error)
            after = before
        run.ended(clock.now_ms(), after)

    def _written(self, target: Table) -> Snapshot | None:
        """Return the snapshot that this run wrote; None if the target already had a newer input."""
        expected = {"frazil.aggregation": self.spec.name, "frazil.day": str(self.day)}
        for snapshot in ancestors(target.metadata):
            summary = snapshot.summary
            if summary is not None and all(summary.get(key) == value for key, value in expected.items()):
                mine = summary.get("frazil.input-snapshot-id") == str(self.given.snapshot_id)
                return snapshot if mine and summary.get("frazil.input-revisions") == self.given.revisions else None
        return None


def added_totals(snapshot: Snapshot) -> Totals:
    """Return the rows, bytes and files that a snapshot added, according to its summary."""
    summary = snapshot.summary
    keys = ("added-records", "added-files-size", "added-data-files")
    rows, size, files = (int((summary.get(key) if summary else None) or 0) for key in keys)
    return Totals(rows, size, files, snapshot.snapshot_id)
