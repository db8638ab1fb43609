"""Results of maintenance actions, stored in `<location>/_frazil/_maintenance/past.json` for operators, and reported to
OpenLineage. Two concurrent writes may lose a result.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Self

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from frazil import clock
from frazil.lineage.facts import RunFacts, table_dataset
from frazil.lineage.jobs import JobReporter
from frazil.maintenance.due import Action
from frazil.maintenance.tables import MaintainedTable
from frazil.safe_text import shorten
from frazil.table.catalogs import open_existing_catalog
from frazil.table.storage import open_store
from frazil.table.tables import state_location
from frazil.typed_json import convert


class Ending(StrEnum):
    DONE = "done"
    SKIPPED = "skipped"
    """The action had no useful work, or is switched off."""
    GAVE_UP = "gave up"
    """Another commit won the race; the next run tries again."""
    REFUSED = "refused"
    """The action is unsafe, or the table's settings forbid it. An operator must check."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    table: str
    action: Action
    ending: Ending
    sentence: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    exit_code: int = 0
    """Exit code of a failure or a refusal, as in `frazil.errors`."""

    def __str__(self) -> str:
        return f"{self.table}: {self.action} {self.ending}: {self.sentence}"


log = logging.getLogger(__name__)

MAINTENANCE_FOLDER = "_maintenance"
"""Folder of maintenance outcomes, next to the streams' folders. No stream's name begins with `_`."""
FORMAT_VERSION = 1
MAX_OUTCOMES_PER_KIND = 12
"""Maximum number of stored results per action and ending."""
MAX_OUTCOME_AGE_MS = 90 * 24 * 3_600_000
"""Age at which an outcome is removed from the history."""
MAX_SENTENCE_CHARACTERS = 400
ORPHAN_CLEANUP = "orphans"
"""Name of the orphan clean-up in stored outcomes. It is not an `Action`."""


@dataclass(frozen=True, slots=True)
class PastOutcome:
    at_ms: int
    action: str
    ending: Ending
    sentence: str
    numbers: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, outcome: Outcome, *, at_ms: int) -> Self:
        return cls(at_ms, str(outcome.action), outcome.ending, outcome.sentence, dict(outcome.numbers))


def store_outcomes(table: Table, outcomes: Iterable[PastOutcome], *, now_ms: int) -> None:
    """Add the results to the table's stored history. Omits skipped actions. Never raises."""
    worth = [outcome for outcome in outcomes if outcome.ending is not Ending.SKIPPED]
    if not worth:
        return
    try:
        past = (*read_outcomes(table), *worth)
        open_store(_path(table), table.io.properties).put(_path(table), encode(table, past, now_ms=now_ms))
    except Exception as error:  # storages raise what their clients raise
        log.warning("the maintenance results of %s could not be stored: %s", ".".join(table.name()), error)


def load_and_store_outcomes(catalog: Catalog, identifier: str, outcomes: Iterable[Outcome], *, now_ms: int) -> None:
    """Load the table, and store the results like `store_outcomes`. Never raises."""
    past = [PastOutcome.of(outcome, at_ms=now_ms) for outcome in outcomes if outcome.ending is not Ending.SKIPPED]
    try:
        if past:
            store_outcomes(catalog.load_table(identifier), past, now_ms=now_ms)
    except Exception as error:  # catalogs raise what their clients raise
        log.warning("the maintenance results of %s could not be stored: %s", identifier, error)


def read_outcomes(table: Table) -> tuple[PastOutcome, ...]:
    """Return the stored results of this table, oldest first. Raises storage errors."""
    data = open_store(_path(table), table.io.properties).get(_path(table))
    if data is None:
        return ()
    try:
        raw = json.loads(data)
        is_own = (raw["format"], raw["table-uuid"]) == (FORMAT_VERSION, str(table.metadata.table_uuid))
        return convert(raw["outcomes"], tuple[PastOutcome, ...]) if is_own else ()
    except (ValueError, LookupError, TypeError) as error:
        log.warning("%s is not in maintenance's format, and is ignored: %r", _path(table), error)
        return ()


def encode(table: Table, past: Iterable[PastOutcome], *, now_ms: int) -> bytes:
    """Encode the newest results of each action and ending. Skips results more than `MAX_OUTCOME_AGE_MS` from now."""
    counts: Counter[tuple[str, Ending, bool]] = Counter()
    retained = []
    for outcome in sorted(past, key=lambda outcome: outcome.at_ms, reverse=True):
        # Only the newest run that found nothing to do is kept. It shows when the table was last checked.
        found_nothing = outcome.ending is Ending.DONE and bool(outcome.numbers) and not any(outcome.numbers.values())
        kind = outcome.action, outcome.ending, found_nothing
        counts[kind] += 1
        if (
            counts[kind] <= (1 if found_nothing else MAX_OUTCOMES_PER_KIND)
            and abs(now_ms - outcome.at_ms) <= MAX_OUTCOME_AGE_MS
        ):
            retained.append(asdict(replace(outcome, sentence=shorten(outcome.sentence, MAX_SENTENCE_CHARACTERS))))
    content = {"format": FORMAT_VERSION, "table-uuid": str(table.metadata.table_uuid), "outcomes": retained[::-1]}
    return json.dumps(content).encode()


def _path(table: Table) -> str:
    return f"{state_location(table, MAINTENANCE_FOLDER)}/past.json"


def report_maintenance(
    jobs: JobReporter | None, table: MaintainedTable, outcomes: Sequence[Outcome], *, began_ms: int
) -> None:
    """Report a finished run to OpenLineage, if an action did work or failed. Never raises."""
    worth = [outcome for outcome in outcomes if outcome.ending in {Ending.DONE, Ending.FAILED}]
    if jobs is None or not worth:
        return
    try:
        loaded = open_existing_catalog(table.catalog).load_table(table.identifier)
        dataset, snapshot = table_dataset(loaded), loaded.current_snapshot()
    except Exception as error:  # anything that the catalog raises; the log has what was done
        log.info("could not report the maintenance of %s to the OpenLineage backend: %r", table.name, error)
        return
    failed = [f"{outcome.action}: {outcome.sentence}" for outcome in worth if outcome.ending is Ending.FAILED]
    facts = RunFacts(
        inputs=(dataset,),
        output=replace(dataset, snapshot_id=snapshot.snapshot_id if snapshot else None),
        error="; ".join(failed) or None,
        actions=tuple(
            {"action": str(o.action), "ending": str(o.ending), "sentence": o.sentence, "numbers": dict(o.numbers)}
            for o in worth
        ),
    )
    run = jobs.run(f"maintenance.{table.name}")
    run.started(began_ms, RunFacts(inputs=(dataset,)))
    run.ended(clock.now_ms(), facts)
