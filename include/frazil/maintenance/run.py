"""Maintains one table: compaction, then manifests, then expiry. Each action is planned from current metadata. Writers'
commits always win. A failed action does not stop the next one. `run_maintenance` maintains all tables of a PySpark
process.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from frazil import clock
from frazil.commit.history import ancestors, count_ancestors
from frazil.errors import EnvironmentUnusable, FrazilError
from frazil.host.process_log import log_to_stderr
from frazil.lineage.jobs import openlineage_jobs
from frazil.maintenance.compaction import CompactionPlan
from frazil.maintenance.due import Action, is_enabled
from frazil.maintenance.measure import load_maintained
from frazil.maintenance.outcomes import Ending, Outcome, load_and_store_outcomes, report_maintenance
from frazil.maintenance.plans import MaintenancePlanner, estimate_bytes, find_missing_defaults
from frazil.maintenance.spark_actions import LostRace, RewriteResult, SparkFailed, SparkTable
from frazil.maintenance.tables import MaintainedTable, find_maintained
from frazil.spark.application import start_session
from frazil.spec.load import load_valid_streams
from frazil.spec.property_rules import PAGE_VERSION_PROPERTY
from frazil.spec.units import format_count
from frazil.table.catalogs import open_existing_catalog, translate_catalog_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


def maintain(
    spark: Callable[[], SparkSession],
    catalog: Catalog,
    maintained: MaintainedTable,
    *,
    actions: Collection[Action] = tuple(Action),
    now_ms: int,
) -> tuple[Outcome, ...]:
    """Run the actions that have useful work, and store their outcomes. Raises only EnvironmentUnusable."""
    run = _ActionRunner(spark, catalog, maintained, now_ms)
    outcomes = tuple(run.outcome(action) for action in Action if action in actions)
    load_and_store_outcomes(catalog, maintained.identifier, outcomes, now_ms=now_ms)
    return outcomes


@dataclass(frozen=True, slots=True)
class _ActionRunner:
    spark: Callable[[], SparkSession]
    catalog: Catalog
    maintained: MaintainedTable
    now_ms: int

    def outcome(self, action: Action) -> Outcome:
        do = {
            Action.COMPACTION: self._compact,
            Action.MANIFESTS: self._rewrite_manifests,
            Action.EXPIRY: self._expire,
        }[action]
        if not is_enabled(self.maintained.settings, action):
            return self._make_outcome(action, Ending.SKIPPED, "it is switched off")
        try:
            result = do()
        except LostRace as conflict:
            result = self._make_outcome(action, Ending.GAVE_UP, f"another commit won: {conflict}")
        except NoSuchTableError:
            result = self._make_outcome(action, Ending.SKIPPED, "the table does not exist yet")
        except EnvironmentUnusable:
            raise
        except FrazilError as error:
            reason = f"{type(error).__name__}: {error}"
            result = self._make_outcome(action, Ending.FAILED, reason, exit_code=error.exit_code)
        except SparkFailed as error:
            log.debug("%s failed", action, exc_info=True)
            result = self._make_outcome(action, Ending.FAILED, str(error), exit_code=1)
        except Exception as error:  # the next action and the next table still get their turn
            log.exception("%s of %s failed", action, self.maintained.identifier)
            result = self._make_outcome(action, Ending.FAILED, repr(error), exit_code=1)
        log.log(logging.ERROR if result.exit_code else logging.INFO, "%s", result)
        return result

    def _compact(self) -> Outcome:
        table, plan = self._planner.compaction()
        if not plan.rewrites and not plan.dangling:
            return self._make_outcome(Action.COMPACTION, Ending.SKIPPED, plan.sentence)
        dangling, outcome = plan.dangling, None
        if plan.rewrites:
            outcome = self._rewrite(table, plan)
            if any(r.partition.delete_files for r in plan.rewrites):
                dangling = self._planner.compaction()[1].dangling  # with those whose data files were just rewritten
        outcome = outcome or self._make_outcome(Action.COMPACTION, Ending.DONE, plan.sentence)
        if not dangling:
            return outcome
        dropped = self._open(table).drop_deletes(dangling)
        sentence = f"{outcome.sentence}; also dropped {format_count(dropped, 'delete file')} whose data files are gone"
        return dataclasses.replace(outcome, sentence=sentence, numbers={**outcome.numbers, "deletes-dropped": dropped})

    def _rewrite(self, table: Table, plan: CompactionPlan) -> Outcome:
        sort = self.maintained.settings.compaction.strategy == "sort" and not table.sort_order().is_unsorted
        began = time.monotonic()
        opened, expiry = self._open(table), self.maintained.settings.expiry
        may_expire = expiry.enabled and count_ancestors(table.metadata) > expiry.at_most // 2
        with opened.keep_history() if may_expire else nullcontext():
            done = opened.rewrite(plan.rewrites, sort=sort)
        seconds = time.monotonic() - began
        missing = plan.files - done.removed
        with translate_catalog_errors(self.catalog.name):
            metadata = load_maintained(self.catalog, self.maintained).metadata
        newer = takewhile(lambda s: s.snapshot_id != table.metadata.current_snapshot_id, ancestors(metadata))
        summaries = [s.summary for s in newer if s.summary and s.summary.get("frazil.operation") == Action.COMPACTION]
        numbers = {
            "partitions": len(plan.rewrites),
            "files-removed": done.removed,
            "files-added": done.added,
            "files-missed": max(missing, 0),
            "bytes": done.bytes,
            "bytes-added": sum(int(summary.get("added-files-size") or 0) for summary in summaries),
            "seconds": round(seconds, 3),
            "mb-per-second": round(done.bytes / 1e6 / seconds, 2),
        }
        ending, reason = rewrite_ending(done)
        deletes = sum(int(summary.get("removed-delete-files") or 0) for summary in summaries)
        deletes_text = f", and {format_count(deletes, 'delete file', 'was|were')} removed," if deletes else ""
        data_files = f"{format_count(done.removed, 'data file')} became {done.added:,}"
        result = data_files if done.removed else "no data file was rewritten"
        sentence = f"{plan.sentence}: {result}{deletes_text} in {seconds:.1f} s"
        sentence += f"; {missing:,} were not rewritten: {reason}" if missing > 0 or ending is not Ending.DONE else ""
        sentence += growth_note(done.bytes, numbers["bytes-added"], table.properties)
        return self._make_outcome(Action.COMPACTION, ending, sentence, numbers, exit_code=int(ending is Ending.FAILED))

    def _rewrite_manifests(self) -> Outcome:
        table, plan = self._planner.manifests()
        if not plan.spec_ids:
            return self._make_outcome(Action.MANIFESTS, Ending.SKIPPED, plan.sentence)
        began, opened = time.monotonic(), self._open(table)
        counts = [opened.rewrite_manifests(spec_id) for spec_id in plan.spec_ids]
        removed, added = (sum(column) for column in zip(*counts, strict=True))
        seconds = time.monotonic() - began
        if not removed:
            sentence = f"{plan.sentence}: another program rewrote them first"
            return self._make_outcome(Action.MANIFESTS, Ending.SKIPPED, sentence)
        numbers = {"manifests-removed": removed, "manifests-added": added, "seconds": round(seconds, 3)}
        sentence = f"{plan.sentence}: {removed:,} became {added:,} in {seconds:.1f} s"
        return self._make_outcome(Action.MANIFESTS, Ending.DONE, sentence, numbers)

    def _expire(self) -> Outcome:
        table, plan = self._planner.expiry()
        if plan.refused:
            return self._make_outcome(Action.EXPIRY, Ending.REFUSED, plan.sentence, exit_code=FrazilError.exit_code)
        unset = find_missing_defaults(table.metadata)
        if unset:
            with table.transaction() as change:
                change.set_properties(unset)
        if not plan.expire:
            return self._make_outcome(Action.EXPIRY, Ending.SKIPPED, plan.sentence)
        began = time.monotonic()
        expired = self._open(table).expire(plan.expire)
        seconds = time.monotonic() - began
        numbers = {
            "snapshots-expired": len(plan.expire),
            "snapshots-kept-beyond": len(plan.retained_reasons),
            **{f"{kind}-removed": count for kind, count in expired.items()},
            "bytes-about": estimate_bytes(
                table.metadata, plan.expire, files=expired["data-files"] + expired["delete-files"]
            ),
            "seconds": round(seconds, 3),
        }
        files = ", ".join(f"{count:,} {kind}" for kind, count in expired.items())
        return self._make_outcome(Action.EXPIRY, Ending.DONE, f"{plan.sentence}; files removed: {files}", numbers)

    @property
    def _planner(self) -> MaintenancePlanner:
        return MaintenancePlanner(self.catalog, self.maintained, self.now_ms)

    def _open(self, table: Table) -> SparkTable:
        return SparkTable.load(self.spark(), self.catalog, table)

    def _make_outcome(
        self,
        action: Action,
        ending: Ending,
        sentence: str,
        numbers: dict[str, float] | None = None,
        *,
        exit_code: int = 0,
    ) -> Outcome:
        return Outcome(self.maintained.identifier, action, ending, sentence, numbers or {}, exit_code)


def rewrite_ending(result: RewriteResult) -> tuple[Ending, str]:
    """Return how a rewrite ended, and why some files remain."""
    if result.errors:
        return Ending.FAILED, "; ".join(dict.fromkeys(result.errors))
    failed = [f"{result.failed:,} failed before their commit, see Spark's log"] if result.failed else []
    lost = [f"another commit won: {text}" for text in dict.fromkeys(result.lost)]
    if result.removed:
        return Ending.DONE, "; ".join(failed + lost) or "another commit won, or the files are gone"
    if failed or lost:
        return Ending.FAILED if failed else Ending.GAVE_UP, "; ".join(failed + lost)
    return Ending.FAILED, "Iceberg does not find the files by their partitions. Rewrite them by hand, and report this"


def growth_note(old_size: float, new_size: float, properties: Mapping[str, str]) -> str:
    """Return a note if the rewritten files take at least twice the bytes, or ""."""
    if new_size < 2 * old_size or not old_size:
        return ""
    note = f"; they are now {new_size / old_size:.0f} times as large"
    if properties.get(PAGE_VERSION_PROPERTY) == "v2":
        return note
    return f"{note}, in Parquet's older encodings: see `{PAGE_VERSION_PROPERTY}` in docs/explanation/performance.md"


MAX_LISTED = 3
"""Maximum number of tables in the Spark application's name."""


def run_maintenance(
    identifiers: Sequence[str], *, streams: Path, actions: Collection[Action], report: Path | None = None
) -> int:
    """Maintain the tables in one Spark session, and write the outcomes to `report` as JSON. Returns the exit code."""
    log_to_stderr()
    try:
        specs, problems = load_valid_streams(streams)
        for problem in problems:
            log.warning("%s", problem)
        tables = [find_maintained(specs, identifier) for identifier in identifiers]
        more_text = f" and {len(tables) - MAX_LISTED} more" if len(tables) > MAX_LISTED else ""
        name = f"frazil maintenance of {', '.join(identifiers[:MAX_LISTED])}{more_text}"
        spark = start_session(name, *{t.catalog for t in tables})
    except FrazilError as error:
        log.error("%s: %s", type(error).__name__, error)  # noqa: TRY400
        return error.exit_code
    outcomes: list[Outcome] = []
    with openlineage_jobs() as jobs:
        try:
            for table in tables:
                now_ms, catalog = clock.now_ms(), open_existing_catalog(table.catalog)
                table_outcomes = maintain(lambda: spark, catalog, table, actions=actions, now_ms=now_ms)
                report_maintenance(jobs, table, table_outcomes, began_ms=now_ms)
                outcomes += table_outcomes
                if report:  # written after each table, so that the report of a killed run has the finished tables
                    report.write_text(json.dumps([dataclasses.asdict(outcome) for outcome in outcomes], indent=2))
        finally:
            spark.stop()
    return next((o.exit_code for o in outcomes if o.exit_code), 0)
