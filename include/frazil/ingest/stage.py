"""One task of a batch, from Kafka or a backfill's files to Parquet that no table knows yet: what an executor does."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import load_file_io
from pyiceberg.schema import Schema

from frazil.ingest.contract import StageContext, StageResult, StageTask
from frazil.ingest.coordinates import Coordinates, record_schema
from frazil.ingest.dead_letters import DeadLetterTable
from frazil.ingest.decode import Decoded, Decoder, decoder
from frazil.ingest.isolate import IsolatedDecoder
from frazil.ingest.kafka import Chunk, RangeReader
from frazil.ingest.progress import ProgressCounter
from frazil.ingest.record_files import FileReader, RowChunk
from frazil.ingest.write import TableWriter, file_namer

REPORT_EVERY_S = 1.0


def _now_us() -> int:
    return time.time_ns() // 1000


def stage(
    context: StageContext,
    task: StageTask,
    *,
    attempt: int,
    on_progress: Callable[[int], None],
    now_us: Callable[[], int] = _now_us,
) -> StageResult:
    """Read the task's ranges, decode, split, sort and write them.

    `attempt` counts from 0; a later one decodes in a child process, in case a record killed the earlier. Each range is
    in the result once, empty ones too. `on_progress` gets the records read so far, about once a second. Raises
    OffsetGap, KafkaUnavailable, AccessDenied, SpecError; the files of a stage that raises are removed as far as
    possible.
    """
    run = _Stage(context, task, attempt=attempt, now_us=now_us)
    try:
        with _collector_paused(), _reader(context, task) as reader:
            report_at = time.monotonic() + REPORT_EVERY_S
            for chunk in reader:
                run.take(chunk)
                if time.monotonic() >= report_at:
                    on_progress(run.progress.records)
                    report_at = time.monotonic() + REPORT_EVERY_S
        result = run.finish()
        on_progress(run.progress.records)
    except BaseException:
        run.abort()
        raise
    else:
        return result
    finally:
        run.close()


class _Stage:
    """The parts of one stage, wired."""

    def __init__(self, context: StageContext, task: StageTask, *, attempt: int, now_us: Callable[[], int]) -> None:
        schema = Schema.model_validate_json(context.main.schema_json)
        io = load_file_io(dict(context.io), location=context.main.folder)
        name = file_namer(task.index, attempt)
        self._context = context
        self._now_us = now_us
        make = _decoder_maker(context, schema)
        self._decode = make() if attempt == 0 else IsolatedDecoder(make)
        self._coordinates = Coordinates(schema, task.ranges, wanted=context.coordinates)
        self._main = TableWriter(context.main, "main", io=io, file_name=name)
        self._dead = TableWriter(context.dead_letters, "dead-letters", io=io, file_name=name)
        self._dead_letters = DeadLetterTable(
            Schema.model_validate_json(context.dead_letters.schema_json),
            task.ranges,
            topic_ids=context.topic_ids,
            floors=context.dead_letter_floor,
        )
        self.progress = ProgressCounter(
            task.ranges,
            max_future_us=context.max_future_us,
            window_us=context.window_us,
            closed_before_us=context.closed_before_us,
        )

    def take(self, chunk: Chunk) -> None:
        if isinstance(chunk, RowChunk):
            decoded = Decoded(chunk.rows, np.arange(len(chunk)))
        else:
            decoded = self._decode(chunk.values)
        kept = decoded.kept
        rows = self._coordinates.complete(decoded.rows, chunk, kept)
        event_times = rows.column(self._context.event_time_column).combine_chunks().cast(pa.int64())
        if within := self._context.event_times_us:
            wanted = pc.and_(pc.greater_equal(event_times, within[0]), pc.less(event_times, within[1])).fill_null(False)
            rows, event_times, kept = rows.filter(wanted), event_times.filter(wanted), kept[wanted.to_numpy(False)]
        self.progress.landed(
            chunk.range_index[kept],
            event_times,
            timestamps_ms=chunk.timestamps_ms[kept],
            now_ms=self._now_us() // 1000,
        )
        self._main.add(rows)
        if decoded.rejections and not within:
            rejected = np.array([r.index for r in decoded.rejections])
            self.progress.rejected(chunk.range_index[rejected])
            self._dead.add(self._dead_letters.rows(chunk, decoded.rejections, self._now_us()))

    def finish(self) -> StageResult:
        files = (*self._main.finish(), *self._dead.finish())
        return StageResult(files, self.progress.result(), dict(self.progress.late))

    def close(self) -> None:
        if isinstance(self._decode, IsolatedDecoder):
            self._decode.close()

    def abort(self) -> None:
        self._main.abort()
        self._dead.abort()


def _reader(context: StageContext, task: StageTask) -> RangeReader | FileReader:
    if not context.files:
        return RangeReader(context.kafka, task.ranges)
    io = load_file_io(dict(context.io), location=context.files[0].path)
    schema = record_schema(Schema.model_validate_json(context.main.schema_json), context.coordinates)
    return FileReader(context.files, task.ranges, io=io, schema=schema)


def _decoder_maker(context: StageContext, schema: Schema) -> Callable[[], Decoder]:
    event_time = schema.find_field(context.event_time_column)
    units = {} if context.event_time_unit == "iso" else {event_time.field_id: context.event_time_unit}
    return partial(decoder, context.format, record_schema(schema, context.coordinates), units)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Hundreds of thousands of live messages make every collection of cyclic garbage slow, and none is cyclic."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
