"""Stages one task of a batch on an executor: reads Kafka or a backfill's files, and writes Parquet files. `stage` does
a whole task; `stage_before_shuffle` decodes, and `stage_after_shuffle` writes.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np

from frazil.errors import SpecError
from frazil.ingest.arrow_values import default_row
from frazil.ingest.changes import reject_no_ops
from frazil.ingest.chunk import NULL, RecordChunk
from frazil.ingest.contract import StageContext, StagedFile, StageResult, StageTask, Target
from frazil.ingest.dead_letters import DeadLetterTable, ExistingDeadLetters, RejectSplitter
from frazil.ingest.decode import DecodedChunk, Decoder, Rejection, bisect_failures, is_environment_error, join_results
from frazil.ingest.destinations import UNKNOWN_TARGET, DividedRows, RowDivider
from frazil.ingest.isolate import CRASHED, IsolatedDecoder
from frazil.ingest.partitioning import Parcel, Shuffler, unpack_parcel
from frazil.ingest.progress import OnProgress, ProgressCounter, ProgressReporter, compilation
from frazil.ingest.readers import open_reader
from frazil.ingest.record_files import RowChunk
from frazil.ingest.routed_writers import RoutedWriters, fit_rows
from frazil.ingest.sensitive import Protector, to_safe_error
from frazil.ingest.shaper import Shaper
from frazil.ingest.table_writer import file_namer, open_writer
from frazil.ingest.target_decoders import FIRST_PASS, TargetDecoder, context_for_target, find_equal_targets

log = logging.getLogger(__name__)

UNWRITABLE = "Unwritable"


def _now_us() -> int:
    return time.time_ns() // 1000


class PossibleRecordError(Exception):
    """Wraps an error that a record may have caused. Raised only before or after a shuffle."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def stage(  # noqa: PLR0913 - each choice is an argument
    context: StageContext,
    task: StageTask,
    *,
    attempt: int = 0,
    isolated: bool = False,
    on_progress: OnProgress = lambda *_: None,
    now_us: Callable[[], int] = _now_us,
) -> StageResult:
    """Read the task's ranges, then decode, split, sort and write their records.

    `isolated` decodes in a child process, because a record or a transform's memory limit may crash the decoder.
    `attempt` counts from 0. Later attempts are isolated too, because a record may have crashed the first one.
    `on_progress` is called about once a second; an Exception that it raises is logged.

    After an error that a record may have caused, the ranges are read again, and each chunk is first written in memory.
    A record that cannot be written on its own becomes a dead letter. Other errors of this second run are raised.

    Raises OffsetGap, KafkaUnavailable, AccessDenied, SpecError, EnvironmentUnusable, and storage errors. A failed stage
    removes its files, if possible.
    """

    def run(*, with_trial: bool) -> StageResult:
        staging = _Stage(context, task, attempt=attempt, isolated=isolated, now_us=now_us)
        (result,) = _stage_ranges(staging, on_progress, with_trial=with_trial)
        assert isinstance(result, StageResult)  # without a shuffle, there are no parcels
        return result

    try:
        return run(with_trial=False)
    except PossibleRecordError as suspect:
        cause = to_safe_error(suspect.error, context)
        log.warning(
            "task %d failed. It runs again and writes each chunk in memory first, to find a record that causes this",
            task.index,
            exc_info=cause,
        )
    try:
        return run(with_trial=True)
    except PossibleRecordError as suspect:
        raise to_safe_error(suspect.error, context) from None


def _stage_ranges(
    run: _Stage, on_progress: OnProgress, *, with_trial: bool
) -> Generator[Parcel | StageResult, None, None]:
    """Yield parcels for shuffle writers, then the result. `with_trial` first writes each chunk in memory."""
    report = ProgressReporter(on_progress)
    compilation.on_change = lambda: report(run.progress.records)
    try:
        if with_trial:
            with _wrap_record_errors():
                run.main.dry_write(default_row(run.main.layout.arrow_schema))
        with _pause_garbage_collection(), run.reader() as reader:
            reader.on_read = lambda records, delay_s: report.report_if_due(run.progress.records + records, delay_s)
            for chunk in reader:
                with _wrap_record_errors():
                    run.take(chunk, with_trial=with_trial)
                yield from run.take_parcels()
                report.report_if_due(run.progress.records)
        with _wrap_record_errors():
            from frazil.ingest.compiled import compiler_notices  # loads Numba, which only a reader's process has

            result = run.finish(notices=compiler_notices())
        report(run.progress.records)
    except BaseException:
        run.abort()
        raise
    finally:
        compilation.on_change = lambda: None
        run.close()
    yield result


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The result of a task before a shuffle. `result.files` has only dead-letter files: the rows were sent."""

    result: StageResult
    sent: tuple[int, ...]
    partitions: int
    """Number of table partitions among the sent rows. Without a shuffle, the task would write as many files."""


@dataclass(frozen=True, slots=True)
class WriteResult:
    files: tuple[StagedFile, ...]
    received: Mapping[int, int]


def stage_before_shuffle(
    context: StageContext,
    task: StageTask,
    *,
    attempt: int,
    on_progress: OnProgress = lambda *_: None,
    now_us: Callable[[], int] = _now_us,
) -> Iterator[Parcel | ReadResult]:
    """Stage a task like `stage`, but yield the main table's rows as parcels, and finally the result.

    Also raises PossibleRecordError. The whole batch must then be staged without a shuffle, because sent rows cannot be
    withdrawn.
    """
    run = _Stage(context, task, attempt=attempt, now_us=now_us)
    assert context.shuffle is not None
    shuffler = run.shuffler = Shuffler(context.shuffle, run.main.layout, task.ranges, task=task.index)
    with closing(_stage_ranges(run, on_progress, with_trial=False)) as parts:
        for part in parts:
            if isinstance(part, StageResult):
                yield ReadResult(part, tuple(shuffler.sent), shuffler.partitions)
            else:
                yield part


def stage_after_shuffle(
    context: StageContext,
    parcels: Iterable[Parcel],
    *,
    writer: int,
    attempt: int,
    on_progress: OnProgress = lambda *_: None,
) -> WriteResult:
    """Write the rows that tasks sent to one shuffle writer, in any order.

    `on_progress` gets the number of rows written. Raises PossibleRecordError and storage errors, after removing the
    files.
    """
    table = open_writer(context, "main", file_namer(writer, attempt))
    received: Counter[int] = Counter()
    report = ProgressReporter(on_progress)
    try:
        for parcel in parcels:
            report.report_if_due(received.total())
            received[parcel.task] += parcel.rows
            with _wrap_record_errors():
                table.add(unpack_parcel(parcel))
        with _wrap_record_errors():
            written = WriteResult(tuple(table.finish()), received)
        report(received.total())
    except BaseException:
        table.abort()
        raise
    return written


@contextmanager
def _wrap_record_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if is_environment_error(error):
            raise
        raise PossibleRecordError(error) from error


class _Stage:
    def __init__(
        self, context: StageContext, task: StageTask, *, attempt: int, now_us: Callable[[], int], isolated: bool = False
    ) -> None:
        name = file_namer(task.index, attempt)
        self._context = context
        self._ranges = task.ranges
        self.reader = partial(open_reader, context, task)
        self._now_us = now_us
        make = partial(TargetDecoder, context)
        self._decode = IsolatedDecoder(make) if isolated or attempt > 0 else make()
        self._protect = Protector(context) if context.sensitive else None
        self._alike = find_equal_targets(context)
        self._shapers: dict[Target, Shaper] = {}
        self.main = open_writer(context, "main", name)
        self._dead = open_writer(context, "dead-letters", name)
        quote = (lambda _: "its value") if context.sensitive else repr
        self._divide = RowDivider(context.destinations, task.ranges, quote=quote) if context.destinations else None
        self._routed = RoutedWriters(context, file_name=name)
        self._dead_letters = DeadLetterTable(
            context.dead_letters.schema,
            task.ranges,
            stream=context.stream,
            topic_ids=context.topic_ids,
            seal=self._protect.dead_letter_value if self._protect else None,
        )
        self._held = ExistingDeadLetters(task.ranges, context.existing_dead_letters)
        self._other_events = 0
        self._rejects = RejectSplitter(task.ranges, context.rejects_accepted)
        self.progress = ProgressCounter(task.ranges, max_future_us=context.max_future_us, window_us=context.window_us)
        self.shuffler: Shuffler | None = None
        """Sends the main table's rows to shuffle writers; None if they are written here."""
        self._parcels: list[Parcel] = []

    def take_parcels(self) -> list[Parcel]:
        parcels, self._parcels = self._parcels, []
        return parcels

    def take(self, chunk: RecordChunk, *, with_trial: bool) -> None:
        shape = self._try_records if with_trial else self._shape_chunk
        for part in self._parts(chunk, shape):
            self._land(part, shape(part))

    def _try_records(self, chunk: RecordChunk) -> DecodedChunk:
        """Write a chunk in memory first. Records that cannot be written on their own are rejected."""
        parts = []
        tries = bisect_failures(len(chunk), lambda start, end: self._dry_write(chunk.slice(start, end)))
        for start, end, result in tries:
            if isinstance(result, Exception):
                rejection = Rejection(0, UNWRITABLE, f"{type(result).__name__}: {result}")
                part = dataclasses.replace(self._shape_chunk(chunk.slice(0, 0)), rejections=[rejection])
            else:
                part = result
            parts.append(part.with_indexes(np.arange(start, end)))
        return join_results(parts)

    def _parts(self, chunk: RecordChunk, decode: Decoder) -> Iterable[RecordChunk]:
        """Split a chunk into parts: one for each table with a schema that decodes some of the records."""
        if self._divide is None or self._alike is None or isinstance(chunk, RowChunk):
            return (chunk,)
        located = DecodedChunk.without_columns(chunk)
        if self._context.destinations and self._context.destinations.by == "field":
            located = decode(dataclasses.replace(chunk, target=FIRST_PASS))
        return self._divide.divide_records(chunk, located, self._alike)

    def _shaper_for(self, target: Target) -> Shaper:
        if target not in self._shapers:
            context = context_for_target(self._context, target)
            schema = context.main.schema
            protect = Protector(context) if self._protect and target != FIRST_PASS else None
            self._shapers[target] = Shaper(context, schema, self._ranges, decode=self._decode, protect=protect)
        return self._shapers[target]

    def _shape_chunk(self, chunk: RecordChunk) -> DecodedChunk:
        shape = self._shaper_for(chunk.target)
        return shape.decode(chunk) if chunk.target == FIRST_PASS else shape(chunk)

    def _dry_write(self, chunk: RecordChunk) -> DecodedChunk:
        shaped = self._shape_chunk(chunk)
        if chunk.target == FIRST_PASS:
            return shaped
        if self._divide is None:
            self.main.dry_write(shaped.rows)
            return shaped
        divided = self._divide(chunk, shaped)
        self.main.dry_write(fit_rows(divided.main_rows, self.main.layout))
        self._routed.dry_write(divided)
        return shaped

    def _land(self, chunk: RecordChunk, shaped: DecodedChunk) -> None:
        shape, drift = self._shaper_for(chunk.target), shaped.drift
        # Their casts are not in `drift`, and the decoder may fail for them again.
        failed = [r.index for r in shaped.rejections if r.error_class in {UNWRITABLE, CRASHED}]
        if self._context.changes and self._context.replays:
            shaped = reject_no_ops(shaped, np.flatnonzero(shaped.no_result_mask(len(chunk))))
        if shaped.rejections and isinstance(chunk, RowChunk):
            rejection = shaped.rejections[0]
            range_ = self._ranges[chunk.range_index[rejection.index]]
            raise SpecError(
                f"the record {range_.topic}[{range_.partition}]@{chunk.offsets[rejection.index]} cannot be backfilled: "
                f"{rejection.error}. Rows of Parquet files have no raw bytes for a dead letter: fix the row or "
                "leave it out"
            )
        if self._protect:
            shaped = dataclasses.replace(shaped, rejections=self._protect.mask_errors(shaped.rejections))
        if self._context.replays and len(shaped.dropped):
            undropped = dataclasses.replace(shaped, dropped=np.arange(0))
            shaped = reject_no_ops(undropped, shaped.dropped, "the transform's WHERE drops the record")
        is_held = self._held(chunk)
        if is_held.any():
            self.progress.count_rejected(chunk.range_index[is_held])
            shaped = shaped.remove_records(is_held)
        self.progress.count_dropped(chunk.range_index[shaped.dropped])
        if self._context.changes:
            no_tombstones = chunk.values.lengths != NULL
            self._other_events += int((shaped.no_result_mask(len(chunk)) & no_tombstones & ~is_held).sum())
        divided = self._divide(chunk, shaped) if self._divide else None
        if divided:
            shaped = divided.decoded
            if self._context.files:
                shaped = reject_no_ops(shaped, divided.unchanged)
            else:
                self._other_events += len(divided.unchanged)
        shape.add_drift(drift, chunk, record_indexes=np.append(shaped.record_indexes, np.array(failed, np.int64)))
        self.progress.count_rows(
            chunk.range_index[shaped.record_indexes],
            shape.event_times(shaped.rows),
            timestamps_ms=chunk.timestamps_ms[shaped.record_indexes],
            now_ms=self._now_us() // 1000,
            records=shape.first_row_mask(shaped.record_indexes),
            window_mask=divided.main_mask if divided else None,
        )
        self._add(chunk, shaped, divided)
        if shaped.rejections and not self._context.event_times_us:
            rejected = np.array([r.index for r in shaped.rejections])
            self.progress.count_rejected(chunk.range_index[rejected])
            self._dead.add(self._dead_letters.rows(chunk, shaped.rejections, self._now_us()))
            self._rejects.add(chunk, shaped.rejections)

    def _add(self, chunk: RecordChunk, shaped: DecodedChunk, divided: DividedRows | None) -> None:
        if divided:
            self.main.add(fit_rows(divided.main_rows, self.main.layout))
            self._routed.add(divided)
        elif self.shuffler:
            ranges, offsets = chunk.range_index[shaped.record_indexes], chunk.offsets[shaped.record_indexes]
            self._parcels += self.shuffler(shaped.rows, range_index=ranges, offsets=offsets)
        else:
            self.main.add(shaped.rows)

    def finish(self, *, notices: tuple[str, ...]) -> StageResult:
        files = (*self.main.finish(), *self._dead.finish(), *self._routed.finish())
        drift = {target: shape.drift for target, shape in self._shapers.items() if shape.drift}
        return StageResult(
            files,
            self.progress.result(),
            self.progress.windows,
            notices,
            self._rejects.new.result(),
            {target: changes for target, changes in drift.items() if target not in {UNKNOWN_TARGET, FIRST_PASS}},
            self._other_events,
            tuple(sorted(self._divide.values)) if self._divide else (),
            self._rejects.accepted.result(),
            self._protect.secret if self._protect else "",
        )

    def close(self) -> None:
        if isinstance(self._decode, IsolatedDecoder):
            self._decode.close()

    def abort(self) -> None:
        self.main.abort()
        self._dead.abort()
        self._routed.abort()


@contextmanager
def _pause_garbage_collection() -> Iterator[None]:
    """Disable the garbage collector, which would scan all live messages and free none."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
