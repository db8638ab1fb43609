"""Changes or removes rows of a dead-letter table in one snapshot, by rewriting the files with these rows.

A replay removes the dead letters that became rows. If a dead letter fails again, the replay puts the new error in front
of the earlier errors.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.table import FileScanTask, Table
from pyroaring import BitMap64

import frazil.pyiceberg_fixes.data_files  # noqa: F401 - reads data files
from frazil.commit.dead_letter_counts import count_recent, dead_letter_summary
from frazil.commit.manifest_lists import live_manifests
from frazil.commit.snapshot import BaseManifests, PreparedSnapshot, RewriteAttempt, SnapshotWriter, base_without_files
from frazil.commit.staging_targets import target_table
from frazil.ingest.contract import StagedFile
from frazil.ingest.table_writer import TableWriter, file_namer
from frazil.offsets.spans import OffsetSets, Span, TopicPartition
from frazil.table.branches import head_of
from frazil.table.landed_offsets import COORDINATES, FileBounds, OffsetRanges
from frazil.table.storage import open_store
from frazil.table.tables import data_location

DEAD_LETTER_COLUMNS = ("kafka_topic", "kafka_partition", "topic_id", "kafka_offset")
IDENTITY_COLUMNS = (*DEAD_LETTER_COLUMNS, "stream")

DeadLetterSource = tuple[str, int, str | None]
"""Topic, partition and topic id; a recreated topic has another id."""
DeadLetterOffsets = Mapping[DeadLetterSource, BitMap64]
"""The offsets of one stream's dead letters."""

ChooseRows = Callable[[pa.Table], NDArray[np.bool_]]
"""Returns a mask of the chosen rows, given the columns in `IDENTITY_COLUMNS` and `RowChange.extra_columns`."""
ReplaceRows = Callable[[pa.Table], pa.Table]


def choose_dead_letters(stream: str, dead_letters: DeadLetterOffsets) -> ChooseRows:
    def choose(rows: pa.Table) -> NDArray[np.bool_]:
        of_dead_letters = zip(*(rows[name].to_pylist() for name in DEAD_LETTER_COLUMNS), strict=True)
        is_chosen = [
            (found := dead_letters.get((topic, partition, topic_id))) is not None and offset in found
            for topic, partition, topic_id, offset in of_dead_letters
        ]
        is_own: NDArray[np.bool_] = pc.fill_null(pc.equal(rows["stream"], stream), True).to_numpy()
        return is_own & np.array(is_chosen, np.bool_)

    return choose


def offset_spans(dead_letters: DeadLetterOffsets) -> OffsetRanges:
    """Return, for each partition, one offset span that contains all of these dead letters."""
    spans: dict[TopicPartition, Span] = {}
    for (topic, partition, _), offsets in sorted(dead_letters.items(), key=str):
        lowest, end = spans.get((topic, partition), (offsets.min(), 0))
        spans[topic, partition] = min(lowest, offsets.min()), max(end, offsets.max() + 1)
    return {tp: (span,) for tp, span in spans.items()}


@dataclass(frozen=True, slots=True)
class RowChange:
    """A change of rows. Each attempt may call its functions again, so they must have no side effects."""

    within: OffsetRanges
    """Offset spans that contain the chosen rows. Files outside these spans are not read."""
    choose: ChooseRows
    replace: ReplaceRows
    extra_columns: tuple[str, ...] = ()


@dataclass(slots=True)
class RowChangeWriter:
    """Prepares a row change's snapshot for each attempt of a swap, and deletes files of failed attempts."""

    change: RowChange
    attempts: list[RewriteAttempt] = field(default_factory=list)
    rows: int = 0

    @property
    def may_have_unused_files(self) -> bool:
        return any(attempt.writer.may_have_unused_files for attempt in self.attempts)

    def prepare(self, table: Table, *, summary: Mapping[str, str], now_ms: int) -> PreparedSnapshot:
        """Return the next attempt. Its snapshot is empty if no row is chosen."""
        head = head_of(table.metadata)
        last = self.attempts[-1] if self.attempts else None
        if last and last.is_repeatable(head):
            return last.writer.prepare(table, summary=last.reported, now_ms=now_ms)
        rewrite = _FileRewrite(table, self.change, now_ms)
        rewrite.run()
        self.rows = rewrite.chosen
        snapshot_id = table.metadata.new_snapshot_id()
        writer = SnapshotWriter(rewrite.staged, base=rewrite.base(snapshot_id), snapshot_id=snapshot_id)
        summary = {**summary, **dead_letter_summary(rewrite.dead_letters)}
        self.attempts.append(RewriteAttempt(writer, [f.path for f in rewrite.staged], head, summary))
        return writer.prepare(table, summary=summary, now_ms=now_ms)

    def delete_unused(self, table: Table) -> None:
        for attempt in self.attempts:
            attempt.writer.delete_unused(table)
            if not attempt.writer.attempts and attempt.files:
                open_store(min(attempt.files), table.io.properties).delete(attempt.files)
                attempt.files = ()


@dataclass(slots=True)
class _FileRewrite:
    table: Table
    change: RowChange
    now_ms: int
    staged: tuple[StagedFile, ...] = ()
    replaced: set[str] = field(default_factory=set)
    chosen: int = 0
    dead_letters: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Added or removed dead letters by error class and hour."""

    def run(self) -> None:
        head = head_of(self.table.metadata)
        if head is None or not self.change.within:
            return
        bounds = FileBounds(self.table.schema(), self.change.within)
        tasks = [
            task for task in self.table.scan(snapshot_id=head.snapshot_id).plan_files() if bounds.may_hold(task.file)
        ]
        folder = f"{data_location(self.table)}/rewritten/{uuid.uuid4()}"
        target = target_table(self.table, folder=folder)
        io = load_file_io(dict(target.io), location=folder)
        writer = TableWriter(target, "dead-letters", io=io, file_name=file_namer(0, 0))
        try:
            for task in tasks:
                columns = self._read(task, [*IDENTITY_COLUMNS, *self.change.extra_columns])
                if any(self.change.choose(rows).any() for rows in columns):
                    self.replaced.add(task.file.file_path)
                    self._copy(task, writer)
            self.staged = tuple(writer.finish())
        except BaseException:
            writer.abort()
            raise

    def _copy(self, task: FileScanTask, writer: TableWriter) -> None:
        schema = writer.layout.arrow_schema
        for rows in self._read(task, None):
            chosen = self.change.choose(rows)
            self.chosen += int(chosen.sum())
            unchanged, removed = rows.filter(pa.array(~chosen)), rows.filter(pa.array(chosen))
            added = self.change.replace(removed) if removed.num_rows else removed.slice(0, 0)
            self.dead_letters.update(count_recent(added, now_ms=self.now_ms))
            self.dead_letters.subtract(count_recent(removed, now_ms=self.now_ms))
            for part in (unchanged, added):
                if part.num_rows:
                    writer.add(part.select(schema.names).cast(schema))

    def _read(self, task: FileScanTask, names: list[str] | None) -> Iterator[pa.Table]:
        schema = self.table.schema()
        if names is not None:
            schema = schema.select(*(name for name in names if name in {f.name for f in schema.fields}))
        scan = ArrowScan(self.table.metadata, self.table.io, schema, AlwaysTrue())
        for batch in scan.to_record_batches([task]):
            yield pa.Table.from_batches([batch])

    def base(self, snapshot_id: int) -> BaseManifests:
        """Return the manifests that the snapshot keeps. Manifests of replaced files are rewritten."""

        def read_entries(manifest: ManifestFile) -> list[ManifestEntry]:
            reads = self.replaced and manifest.content is ManifestContent.DATA
            return manifest.fetch_manifest_entry(self.table.io, discard_deleted=True) if reads else []

        manifests = live_manifests(head_of(self.table.metadata), self.table.io)
        return base_without_files(self.replaced, manifests, read_entries, table=self.table, snapshot_id=snapshot_id)


MAX_ERROR_CHARACTERS = 1000
Coordinates = tuple[str, int, int]
ErrorEntry = tuple[str, str]


def read_new_errors(table: Table, files: Iterable[StagedFile]) -> dict[Coordinates, ErrorEntry]:
    columns = [*COORDINATES, "error_class", "error"]
    errors: dict[Coordinates, ErrorEntry] = {}
    for file in files:
        with table.io.new_input(file.path).open() as source:
            for batch in pq.ParquetFile(source).iter_batches(columns=columns):
                for topic, partition, offset, error_class, error in zip(
                    *(column.to_pylist() for column in batch.columns), strict=True
                ):
                    errors[topic, partition, offset] = error_class, error
    return errors


def change_after_replay(
    stream: str, replayed: OffsetSets, topic_ids: Mapping[str, str], failed: Mapping[Coordinates, ErrorEntry]
) -> RowChange:
    """Return the change after a replay: gives new errors to the dead letters in `failed`, and deletes all others."""
    dead_letters = dead_letters_at(replayed, topic_ids, failed)

    def replace(rows: pa.Table) -> pa.Table:
        reasons = [failed.get(where) for where in zip(*(rows[name].to_pylist() for name in COORDINATES), strict=True)]
        kept = rows.filter(pa.array([reason is not None for reason in reasons], pa.bool_()))
        return _add_errors(kept, [reason for reason in reasons if reason is not None])

    return RowChange(offset_spans(dead_letters), choose_dead_letters(stream, dead_letters), replace)


def dead_letters_at(
    replayed: OffsetSets, topic_ids: Mapping[str, str], failed: Iterable[Coordinates] = ()
) -> DeadLetterOffsets:
    """Return the dead letters at these offsets, including dead letters without topic id of earlier versions."""
    offsets: dict[TopicPartition, BitMap64] = {tp: BitMap64(bitmap) for tp, bitmap in replayed.items()}
    for topic, partition, offset in failed:
        offsets.setdefault((topic, partition), BitMap64()).add(offset)
    dead_letters: dict[DeadLetterSource, BitMap64] = {}
    for (topic, partition), positions in offsets.items():
        if positions:
            dead_letters |= {(topic, partition, topic_id): positions for topic_id in {topic_ids.get(topic), None}}
    return dead_letters


def _add_errors(rows: pa.Table, reasons: list[ErrorEntry]) -> pa.Table:
    """Add one to the dead letters' `replays`, and put each new error in front of the earlier ones."""
    earlier_reasons = zip(rows["error_class"].to_pylist(), rows["error"].to_pylist(), strict=True)
    columns = {
        "replays": [(count or 0) + 1 for count in rows["replays"].to_pylist()],
        "error_class": [error_class for error_class, _ in reasons],
        "error": [_error_history(entry, previous) for entry, previous in zip(reasons, earlier_reasons, strict=True)],
    }
    for name, values in columns.items():
        field = rows.schema.field(name)
        rows = rows.set_column(rows.schema.get_field_index(name), field, pa.array(values, field.type))
    return rows


def _error_history(entry: ErrorEntry, previous: ErrorEntry) -> str:
    if entry == previous or previous[1].startswith(f"{entry[1]}; before, "):
        return previous[1]
    return f"{entry[1]}; before, {previous[0]}: {previous[1]}"[:MAX_ERROR_CHARACTERS]
