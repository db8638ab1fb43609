"""Measures a committed batch, for planning the next batches."""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.table import Table

from frazil.commit.history import ancestors
from frazil.commit.journal import Journal
from frazil.commit.manifest_lists import manifests_of
from frazil.host.exchange import Exchange
from frazil.stream.engine import TaskAnswer
from frazil.stream.plan import learned
from frazil.stream.planner_exchange import read_rates, write_rates
from frazil.stream.throttle import Measure


def write_rates_of(exchange: Exchange, journal: Journal, answers: Sequence[TaskAnswer], *, batch_s: float) -> None:
    """Update the planner's rates after a batch whose total duration was `batch_s`."""
    task_s = [a.seconds for a in answers]
    rates = learned(
        read_rates(exchange),
        records=journal.records,
        written_bytes=sum(f.bytes for f in journal.staged_for("main")),
        task_s=sum(task_s),
        overhead_s=batch_s - max(task_s, default=0.0),
    )
    write_rates(exchange, rates)


def metadata_of(table: Table, *, commit_s: float, at_ms: int) -> Measure:
    """Measure a table's metadata after a commit.

    Counts only main's snapshots, as maintenance does: an open branch has one snapshot for each of main's.
    """
    main = list(ancestors(table.metadata))
    manifests = len(manifests_of(main[0], table.io)) if main else 0
    return Measure(len(main), manifests, commit_s, at_ms)
