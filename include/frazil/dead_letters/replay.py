"""Replays dead letters with the current declaration, as a backfill.

Its source is a copy of the dead letters, because the dead-letter table may change. `frazil.backfill.commit` decides
which records land, and when their dead letters leave the table.
"""

from __future__ import annotations

import json
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.parquet as pq

from frazil.backfill.commit import count_changes, find_unfinished, finish_ended_backfill
from frazil.backfill.estimate import stage_sample
from frazil.backfill.files import FileSource
from frazil.backfill.request import BackfillRequest, check_coordinates, parse_request
from frazil.backfill.routes import BackfillRoute, wait_for_routed_tables
from frazil.backfill.rules import check_no_backfill, check_run_not_abandoned
from frazil.backfill.run import Backfill
from frazil.backfill.stage import run
from frazil.commit.backfill_records import BackfillMarker, committed_chunks, list_given_up_targets
from frazil.commit.marker import require_own_marker
from frazil.commit.open_streams import OpenStream
from frazil.dead_letters.selection import (
    Selection,
    find_former_ends,
    find_left_out_reasons,
    may_omit_records,
    read_dead_letters,
)
from frazil.errors import Fenced
from frazil.ingest.contract import DEAD_LETTERS_SUFFIX, Rejects, StageTask, Target
from frazil.ingest.record_files import DEAD_LETTER_COLUMNS
from frazil.ingest.sealing import name_part, unsealer_of
from frazil.ingest.stage import stage
from frazil.stream.engine import TaskAnswer
from frazil.stream.stage_rows import StageRows

TARGET_FILE_ROWS = 100_000
COPY_RETENTION_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class ReplayResult:
    backfill: str
    landed: int
    """Dead letters that became rows or were merged, including changes that had no effect."""
    failed: int
    """Dead letters that the current declaration rejects again."""
    interrupted: bool = False
    """Whether an earlier command began this replay, with the earlier command's selection."""
    given_up: int = 0
    """Dead letters removed without a row, because an operator discarded the rows of a routed table."""
    repeated: int = 0
    """Dead letters removed without a row, because `dedupe` drops repeats."""


@dataclass(frozen=True, slots=True)
class Preview:
    """The expected result of a replay, from a sample of the dead letters. `rejects` are the replay's errors."""

    landing: int = 0
    failing: int = 0
    rejects: Rejects = field(default_factory=Rejects)


def preview(opened: OpenStream, selection: Selection, *, run: str | None = None) -> Preview:
    """Decode a sample of the selected dead letters with the current declaration. Changes nothing.

    Raises the errors with which `replay` would refuse to begin.
    """
    _find_open_replay(opened, run)
    with tempfile.TemporaryDirectory(prefix="frazil-replay-") as folder:
        if not _copy_dead_letters(opened, selection, folder, limit=TARGET_FILE_ROWS):
            return Preview()
        if opened.spec.route:
            wait_for_routed_tables(opened.tables)
        files = FileSource.open(folder, opened.tables.main.current(), opened.spec)
        request = BackfillRequest(stream=opened.spec.name, files=folder, dead_letters=str(selection))
        backfill = Backfill(files.with_listing(request), opened, files)
        backfill.check()
        result = stage_sample(backfill, backfill.plan())
    landing, failing = sum(part.records for part in result.progress), sum(part.rejected for part in result.progress)
    return Preview(landing, failing, result.rejects)


EMPTY_RESULT = ReplayResult("", 0, 0)


def replay(opened: OpenStream, selection: Selection, *, run: str | None = None) -> tuple[ReplayResult, ...]:
    """Finish an interrupted replay, then replay the selected dead letters. Returns a result for each replay that ran.

    `run` identifies the caller. Raises the errors of a backfill, and SpecError for a stream without coordinates. Raises
    RouteBehind or CommitUnavailable if a routed table cannot get its rows, WriterBusy if a backfill is open, and
    BackfillAbandoned if the replay of `run` was abandoned.
    """
    results = []
    if last := _find_open_replay(opened, run):
        if last.is_open:
            finished = _run_replay(opened, parse_request({**last.request, "run": run}))
        else:
            finish_ended_backfill(opened.tables)  # routed tables may get their rows only now
            finished = _replay_result(opened, last)
        results.append(finished and replace(finished, interrupted=True))
    finish_ended_backfill(opened.tables)
    store, before_ms = opened.tables.store, opened.tables.clock_ms() - COPY_RETENTION_MS
    store.delete([f.path for f in store.list_files(_copies_folder(opened)) if f.modified_ms < before_ms])
    folder = f"{_copies_folder(opened)}/{uuid.uuid4().hex}"
    if _copy_dead_letters(opened, selection, folder):
        request = BackfillRequest(stream=opened.spec.name, files=folder, dead_letters=str(selection), run=run)
        results.append(_run_replay(opened, request))
    return tuple(filter(None, results))


def _find_open_replay(opened: OpenStream, run: str | None) -> BackfillMarker | None:
    """Return the unfinished replay, if any. Raises the errors of `replay` if no replay can begin or continue."""
    check_coordinates(opened.spec)
    check_run_not_abandoned(opened.tables.last_backfill(), run)
    last = find_unfinished(opened.tables)
    check_no_backfill(last)
    return last if last and last.replays else None


def _run_replay(opened: OpenStream, request: BackfillRequest) -> ReplayResult | None:
    """Run a replay as a backfill of copied dead letters. Returns None if all copied records have landed."""
    own_epoch, backfill = _last_epoch(opened) + 1, None
    try:
        files = FileSource.open(request.files or "", opened.tables.main.refresh(), opened.spec)
        route = BackfillRoute.open(opened.spec, opened.tables)
        backfill = Backfill(files.with_listing(request), opened, files, route)
        last = run(backfill, InProcessEngine())
    except Exception as error:
        if isinstance(error, Fenced) or _last_epoch(opened) <= max(own_epoch, backfill.epoch if backfill else 0):
            raise
        # The run that took over has deleted the files that this run was reading or writing.
        raise Fenced(
            f"another `frazil dlq replay {request.stream}` took over this replay: this command changes nothing more",
            remedy="Wait for the other command",
        ) from error
    if last is None:  # all of these records are already rows
        opened.tables.store.delete([f.path for f in files.files])
        return None
    return _replay_result(opened, last)


def _replay_result(opened: OpenStream, last: BackfillMarker) -> ReplayResult:
    tables, rows = opened.tables, Counter[Target]()
    for file in (file for chunk in committed_chunks(tables.journals, last) for file in chunk.files):
        rows[file.target] += file.records
    without = sum(rows[target] for target in list_given_up_targets(tables.journals, last.id))
    repeated = count_changes(tables, last)["repeated"] if opened.spec.sinks.mode.drops_repeats else 0
    return ReplayResult(last.id, last.records - without - repeated, last.rejected, given_up=without, repeated=repeated)


def _last_epoch(opened: OpenStream) -> int:
    last = opened.tables.last_backfill()
    return last.epoch if last else 0


def _copies_folder(opened: OpenStream) -> str:
    return f"{opened.tables.state}/replays"


def _copy_dead_letters(opened: OpenStream, selection: Selection, folder: str, *, limit: int | None = None) -> int:
    """Copy the selected dead letters that can be replayed, until `limit` or more are copied. Return their number."""
    marker, former = require_own_marker(opened.spec.name, opened.tables.marker()), find_former_ends(opened)
    table = opened.tables.dead_letters.refresh()
    columns = (*DEAD_LETTER_COLUMNS, "topic_id")
    unseal, may_omit = unsealer_of(opened.spec), may_omit_records(opened.spec)

    def choose(rows: pa.Table) -> pa.Table:
        is_chosen = [reason is None for reason in find_left_out_reasons(rows, marker, former, omits=may_omit)]
        chosen = rows.filter(pa.array(is_chosen, pa.bool_())).select(DEAD_LETTER_COLUMNS)
        for row in chosen.slice(0, 1).to_pylist():  # raises SpecError if the secret does not match
            unseal(row["value"], name_part(row["kafka_topic"], row["kafka_partition"], row["kafka_offset"], "value"))
        return chosen

    dead_letters = (choose(rows) for rows in read_dead_letters(table, selection.row_filter(opened.spec), columns))
    io = opened.tables.main.current().io
    count = 0
    for number, part in enumerate(_join_pieces(dead_letters)):
        with io.new_output(f"{folder}/{number:05d}{DEAD_LETTERS_SUFFIX}").create() as sink:
            pq.write_table(part, sink, compression="zstd")
        count += part.num_rows
        if limit is not None and count >= limit:
            break
    return count


def _join_pieces(pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
    parts: list[pa.Table] = []
    for piece in pieces:
        for start in range(0, piece.num_rows, TARGET_FILE_ROWS):
            parts.append(piece.slice(start, TARGET_FILE_ROWS))
            if sum(part.num_rows for part in parts) >= TARGET_FILE_ROWS:
                yield pa.concat_tables(parts)
                parts = []
    if parts:
        yield pa.concat_tables(parts)


class InProcessEngine:
    """Runs a replay's tasks in this process. A child process decodes the records, because a record may crash it."""

    parallelism = 1

    def run(self, plans: Sequence[str], work: StageRows) -> tuple[TaskAnswer, ...]:
        answers = []
        for plan in plans:
            task, began = StageTask.from_json(json.loads(plan)), time.monotonic()
            result = stage(work.context, task, isolated=True)
            answers.append(TaskAnswer(result, time.monotonic() - began))
        return tuple(answers)
