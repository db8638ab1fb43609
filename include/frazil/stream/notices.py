"""The notices that a writer shows to operators, shared by its epochs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from frazil.events import NoticeIssued, StreamEvent
from frazil.ingest.schema_drift import NO_DRIFT, SchemaDrift, join_drift
from frazil.stream.engine import TaskAnswer
from frazil.stream.evolve import (
    MAX_NAMED,
    casts_notice,
    ignored_fields_notice,
    unmatched_records_notice,
    unplaced_changes_notice,
)
from frazil.table.evolution import RefusedField

log = logging.getLogger(__name__)

MAX_IGNORED_FIELDS = 100
"""Number of ignored fields after which a writer stops reporting them."""


@dataclass(slots=True)
class Notices:
    """A writer's published notices, and the counts in them."""

    emit: Callable[[StreamEvent], None]
    table: str
    of_tasks: frozenset[str] = frozenset()
    """Notices of the last batch's tasks."""
    committed: SchemaDrift = NO_DRIFT
    """Counts over committed batches: records that fill no column, cast values, changes without a position."""
    counted: SchemaDrift = NO_DRIFT
    """`committed`, plus the counts of the last staged batch."""
    reported: SchemaDrift = NO_DRIFT
    """The part of `counted` that published notices have reported."""
    ignored: frozenset[tuple[str, ...]] = frozenset()
    """Reported ignored fields: the table's name, followed by the field's path."""

    def publish_drift(self, answers: Sequence[TaskAnswer]) -> None:
        """Publish the counts, including a staged batch's.

        Casts and unplaced changes are published again when doubled.
        """
        drifts = (drift.without_changes() for answer in answers for drift in answer.result.drift.values())
        self.counted = joined = join_drift([self.committed, *drifts])
        reported = self.reported
        if joined.unknown > reported.unknown:
            self.reported = replace(self.reported, unknown=joined.unknown, names=joined.names)
        if joined.unplaced > 2 * reported.unplaced:
            self.reported = replace(self.reported, unplaced=joined.unplaced)
        was, total = sum(reported.cast.values()), sum(joined.cast.values())
        if joined.cast.keys() > reported.cast.keys() or total > 2 * was:
            self.reported = replace(self.reported, cast=joined.cast)
        for notice in (unmatched_records_notice, casts_notice, unplaced_changes_notice):
            earlier, text = notice(reported, table=self.table), notice(self.reported, table=self.table)
            if text != earlier:
                self.emit(NoticeIssued(text, replaces=earlier))

    def publish_committed(self, answers: Sequence[TaskAnswer]) -> None:
        """Publish the notices of a committed batch's tasks. Withdraw all earlier task notices."""
        self.committed = self.counted
        if not answers:
            return
        notices = frozenset(notice for answer in answers for notice in answer.result.notices)
        for notice in sorted(notices - self.of_tasks):
            self.emit(NoticeIssued(notice))
        for notice in sorted(self.of_tasks - notices):
            self.emit(NoticeIssued("", replaces=notice))
        self.of_tasks = notices

    def publish_ignored(self, refused: Sequence[RefusedField], *, table: str) -> None:
        new = [refusal for refusal in refused if (table, *refusal.path) not in self.ignored]
        if not new or len(self.ignored) >= MAX_IGNORED_FIELDS:
            return
        self.emit(NoticeIssued(ignored_fields_notice(new, table=table)))
        for refusal in new[MAX_NAMED:MAX_IGNORED_FIELDS]:  # one line for each, only in writer.log
            log.info("ignored: %r %s", ".".join(refusal.path)[:100], refusal.reason)
        self.ignored |= {(table, *refusal.path) for refusal in new}
