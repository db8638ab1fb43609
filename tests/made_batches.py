"""Makes batches whose records were never in Kafka, and commits them with the real code: for tests and benchmarks.

A batch may damage its table on purpose: its commit record says what should have landed, but its files have other rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.table import Table

from frazil.commit.committer import Committer
from frazil.commit.dead_letter_counts import Reasons
from frazil.commit.journal import BatchCost, Journal
from frazil.commit.marker import BatchKey, Marker
from frazil.commit.marker_changes import reset
from frazil.commit.merging import UPSERT_MODE, MergeConfig, build_merge_rules, run_in_process
from frazil.commit.reset_plan import read_state_before_reset
from frazil.commit.staging_targets import target_table
from frazil.commit.stream_tables import StreamTables
from frazil.commit.sweep import batch_folder, sweep_batch
from frazil.ingest.contract import RangeProgress, StagedFile, Target
from frazil.ingest.table_writer import TableWriter, file_namer
from frazil.offsets.spans import SourceIdentity
from frazil.partitions.completeness import Alignment
from frazil.spec.model import StreamSpec
from frazil.table.catalogs import load_catalog
from frazil.table.tables import ensure_dead_letters, ensure_table

FETCHED = 500

Offsets = Mapping[int, npt.ArrayLike]
"""Offsets by partition."""


@dataclass(frozen=True, slots=True)
class EventTimes:
    """Event times that staging would have found in a batch, in microseconds since 1970."""

    newest_us: Mapping[int, int] = field(default_factory=dict)
    """Newest event times by partition."""
    windows: Mapping[int, int] | None = None
    """Rows by their window's start; None for a writer that does not count them."""


NO_TIMES = EventTimes()
NO_REASONS: Reasons = {}


@dataclass
class MadeStream:
    """One stream that reads one topic, in the embedded catalog of FRAZIL_HOME."""

    spec: StreamSpec
    now_ms: int
    """The time of the next commit. Tests set it."""
    partitions: int = 4
    topic_id: str = "topic-1"
    columns: Callable[[int], Mapping[str, pa.Array]] = lambda rows: {}  # noqa: ARG005 - nothing but coordinates
    """Values of the declared columns for `count` rows; for an upsert stream, also those that its changes add."""
    known: SourceIdentity | None = None
    """The topic's identity in Kafka, if the topic exists."""
    cost: BatchCost | None = None
    """The cost of each of the next batches."""
    committer: Committer | None = field(default=None, init=False)

    @property
    def topic(self) -> str:
        return self.spec.source.topics[0]

    @cached_property
    def tables(self) -> StreamTables:
        catalog = load_catalog(self.spec.table.catalog)
        main, dead_letters = ensure_table(catalog, self.spec), ensure_dead_letters(catalog, self.spec)
        targets: dict[Target, Table] = {"main": main, "dead-letters": dead_letters}
        align = Alignment.from_spec(self.spec)
        merges = self.spec.mode == "upsert"
        merging = MergeConfig(partial(build_merge_rules, self.spec), run_in_process, lambda: 1) if merges else None
        return StreamTables.open(self.spec.name, targets, clock_ms=lambda: self.now_ms, align=align, merging=merging)

    @property
    def source(self) -> SourceIdentity:
        return self.known or SourceIdentity("cluster-1", {self.topic: self.topic_id})

    def begin(self) -> Committer:
        """Take over the stream. Every partition begins at offset 0."""
        initial = {(self.topic, p): 0 for p in range(self.partitions)}
        self.committer = Committer.take_over(self.tables, source=self.source, initial=lambda: initial)
        return self.committer

    def reset(self, target: Mapping[int, int]) -> Committer:
        """Move the stream as `frazil reset` does, and take it over again."""
        offsets = {(self.topic, p): offset for p, offset in target.items()}
        reset(self.tables, target=offsets, source=self.source, seen=read_state_before_reset(self.tables))
        return self.begin()

    def land(  # noqa: PLR0913 - keywords, each with a default
        self,
        ranges: Mapping[int, tuple[int, int]],
        *,
        records: Offsets | None = None,
        rejected: Offsets | None = None,
        written: Offsets | None = None,
        times: EventTimes = NO_TIMES,
        reasons: Reasons = NO_REASONS,
    ) -> Marker:
        """Write, journal and commit the next batch.

        `records` are the offsets in the ranges that have records; by default, all. `rejected` are those that become
        dead letters, with `reasons`. `written` are the offsets of the rows in the files, if they differ from the
        accepted records.
        """
        committer = self.committer or self.begin()
        bad = {p: np.asarray(of, np.int64) for p, of in (rejected or {}).items()}
        good = {
            p: np.setdiff1d(np.asarray((records or {}).get(p, np.arange(*r)), np.int64), bad.get(p, []))
            for p, r in ranges.items()
        }
        progress = [
            RangeProgress(self.topic, p, *r, len(good[p]), len(bad.get(p, ())), times.newest_us.get(p))
            for p, r in ranges.items()
        ]
        rows = good if written is None else written
        journal = self.stage(progress, rows, bad, windows=times.windows, reasons=reasons)
        marker = committer.commit(journal)
        if self.tables.merging is not None:
            sweep_batch(self.tables, journal)
        return marker

    def stage(  # noqa: PLR0913 - as above
        self,
        progress: Sequence[RangeProgress],
        rows: Offsets,
        dead_letters: Offsets,
        *,
        windows: Mapping[int, int] | None = None,
        ahead: int = 0,
        reasons: Reasons = NO_REASONS,
    ) -> Journal:
        """Write and journal the next batch, or the one `ahead` batches later. `Committer.commit` lands it."""
        committer, marker = self.committer or self.begin(), self.tables.marker()
        key = BatchKey(committer.epoch, 1 + ahead + (marker.key.batch if marker else 0))
        main = self.tables.main.refresh()
        journal = Journal(
            stream=self.spec.name,
            key=key,
            table_uuid=str(main.metadata.table_uuid),
            created_at_ms=self.now_ms,
            source=self.source,
            progress=tuple(progress),
            files=(
                *self.write(main, key, "main", rows),
                *self.write(self.tables.dead_letters.refresh(), key, "dead-letters", dead_letters),
            ),
            newest_dead_letters=committer.newest_dead_letters(),
            idle=frozenset(),
            offsets_after={p.topic_partition: p.end for p in progress},
            windows=windows,
            cost=self.cost,
            reasons=reasons,
        )
        if not self.tables.journals.put(journal):
            raise RuntimeError(f"batch {key} was journaled already")
        return journal

    def write(
        self, table: Table, key: BatchKey, target: Target, offsets: Offsets, *, folder: str | None = None
    ) -> tuple[StagedFile, ...]:
        """Write one task's files, with rows in the order of Kafka fetches: some hundred of each partition at a time."""
        if not any(np.size(of) for of in offsets.values()):
            return ()
        into = target_table(table, folder=folder or batch_folder(table, self.spec.name, key))
        changes = target != "dead-letters" and self.tables.merging is not None
        if changes:
            into = UPSERT_MODE.staging_target(into, self.spec.key)
        writer = TableWriter(into, target, io=table.io, file_name=file_namer(0, 0))
        writer.add(self._rows(writer.layout.arrow_schema, offsets, dead_letters=target == "dead-letters"))
        files = writer.finish()
        return tuple(dataclasses.replace(file, content="changes") for file in files) if changes else tuple(files)

    def _rows(self, schema: pa.Schema, offsets: Offsets, *, dead_letters: bool) -> pa.Table:
        runs = sorted(
            (place, p, values[place : place + FETCHED])
            for p, of in offsets.items()
            for values in [np.asarray(of, np.int64)]
            for place in range(0, len(values), FETCHED)
        )  # no two have the same place and partition, so arrays are never compared
        count = sum(len(values) for _, _, values in runs)
        known = {
            "kafka_topic": pa.array(_repeated(self.topic, count), pa.large_string()),
            "kafka_partition": pa.array(np.concatenate([np.full(len(values), p, np.int32) for _, p, values in runs])),
            "kafka_offset": pa.array(np.concatenate([values for _, _, values in runs])),
            **(self._rejections(count) if dead_letters else self.columns(count)),
        }
        arrays = [known[f.name].cast(f.type) if f.name in known else pa.nulls(count, f.type) for f in schema]
        return pa.Table.from_arrays(arrays, schema=schema)

    def _rejections(self, count: int) -> Mapping[str, pa.Array]:
        texts = {"stream": self.tables.stream, "topic_id": self.topic_id, "value": "{"}
        reason = {"error_class": "NotJson", "error": "it is not JSON"}
        stamps = pa.array(np.full(count, self.now_ms * 1000)).cast(pa.timestamp("us", "UTC"))
        return {**{name: pa.array([text] * count) for name, text in (texts | reason).items()}, "rejected_at": stamps}


def _repeated(text: str, count: int) -> Sequence[str]:
    return [text] * count
