"""Runs a backfill on an engine. Chunks of missing records are staged in the same way as the live stream's batches."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator

from frazil.backfill.commit import BackfillCommitter, finish_ended_backfill
from frazil.backfill.run import MAX_ATTEMPTS, Backfill, BackfillPlan
from frazil.commit.backfill_records import BackfillMarker, backfill_folder
from frazil.commit.commit_checks import check_same_source
from frazil.commit.dead_letter_counts import count_reasons
from frazil.commit.journal import NO_DEAD_LETTERS, Journal
from frazil.commit.sweep import discard_batch
from frazil.errors import Fenced, FrazilError, StaleBatch, WriterBusy
from frazil.ingest.contract import StageResult
from frazil.ingest.dead_letters import join_rejects
from frazil.offsets.spans import Spans
from frazil.stream.engine import TaskRunner
from frazil.stream.progress import ProgressFolder
from frazil.stream.stage_context import hash_rules
from frazil.stream.stage_rows import StageRows

log = logging.getLogger(__name__)


def run(
    backfill: Backfill, engine: TaskRunner, on_chunk: Callable[[BackfillMarker], None] = lambda _: None
) -> BackfillMarker | None:
    """Stage, audit and publish a backfill. If the stream changed, starts over. Returns None if no record is missing."""
    for attempt in range(MAX_ATTEMPTS):
        try:
            return backfill.publish() if stage(backfill, engine, on_chunk) else None
        except (StaleBatch, WriterBusy):
            if attempt == MAX_ATTEMPTS - 1:
                raise
    raise AssertionError


def stage(
    backfill: Backfill, engine: TaskRunner, on_chunk: Callable[[BackfillMarker], None] = lambda _: None
) -> BackfillMarker | None:
    """Stage all missing records on the branch, one chunk at a time. Returns None if no record is missing.

    Raises the errors of `Backfill.plan`, WriterBusy, Fenced and BackfillAbandoned. Raises StaleBatch if the staged
    records became unusable and were dropped, and OffsetGap if Kafka's retention deleted planned records. If the first
    chunk fails with an error that would occur again, no backfill stays open.
    """
    backfill.check_run_not_abandoned()
    backfill.check()
    # This comes first: uncommitted dead letters of a published backfill would look like missing records.
    finish_ended_backfill(backfill.opened.tables)
    last = backfill.last()
    plan = None if last and last.is_open else backfill.plan()
    if plan and not plan.spans:
        return None
    try:
        committer = backfill.begin(last)
        if plan is None or backfill.request.dead_letters:  # dead letters may be discarded until the replay begins
            plan = backfill.plan(committer.backfill)
        for marker in _stage_chunks(backfill, engine, committer, plan):
            on_chunk(marker)
        return committer.mark_staged()
    except StaleBatch:
        backfill.drop()
        raise
    except FrazilError as error:
        if not (error.restartable or isinstance(error, Fenced)):  # the same command would fail in the same way
            backfill.drop_if_empty()
        raise
    except FileNotFoundError:  # abandoning a backfill deletes its files, even those that no journal names yet
        backfill.check_run_not_abandoned()
        raise


def _stage_chunks(
    backfill: Backfill, engine: TaskRunner, committer: BackfillCommitter, plan: BackfillPlan
) -> Iterator[BackfillMarker]:
    chunks = backfill.source.chunks(plan.spans, limit=backfill.request.chunk_records)
    planned = committer.backfill.chunks + len(chunks)
    logged: set[str] = set()
    for spans in chunks:
        journal, results = _stage_chunk(backfill, engine, committer, spans, plan)
        log_notices(results, logged)
        marker = committer.commit(journal, planned=planned)
        log.info("chunk %d of %d: %d records, %d dead letters", marker.chunks, planned, marker.records, marker.rejected)
        yield marker


def log_notices(results: Iterable[StageResult], logged: set[str]) -> None:
    for notice in sorted({notice for result in results for notice in result.notices} - logged):
        log.warning("%s", notice)
        logged.add(notice)


def _stage_chunk(
    backfill: Backfill, engine: TaskRunner, committer: BackfillCommitter, spans: Spans, plan: BackfillPlan
) -> tuple[Journal, list[StageResult]]:
    opened, staging, key = backfill.opened, committer.own_tables, committer.next_key()
    context = backfill.context(staging, key, plan.source.topic_ids)
    progress = ProgressFolder(
        f"{backfill_folder(opened.tables.journals, committer.backfill.id)}/progress", context.main.io
    )
    plans = [json.dumps(task.to_json()) for task in backfill.source.tasks(spans, engine.parallelism)]
    try:
        answers = engine.run(plans, StageRows(context, progress))
        while backfill.route and (values := {v for answer in answers for v in answer.result.values}):
            backfill.route.create_tables(values)
            discard_batch(staging, key)
            context = backfill.context(staging, key, plan.source.topic_ids)
            answers = engine.run(plans, StageRows(context, progress))
        source = backfill.source.identity(plan.source)
        check_same_source(plan.source, source, stream=opened.spec.name)
    except Exception:
        discard_batch(staging, key)
        raise
    results = [answer.result for answer in answers]
    journal = Journal(
        stream=opened.spec.name,
        key=key,
        table_uuid=str(staging.main.current().metadata.table_uuid),
        created_at_ms=staging.clock_ms(),
        source=source,
        progress=tuple(p for result in results for p in result.progress),
        files=tuple(f for result in results for f in result.files),
        newest_dead_letters=NO_DEAD_LETTERS,
        idle=frozenset(),
        offsets_after={},
        cast=sum(sum(drift.cast.values()) for result in results for drift in result.drift.values()),
        rules=hash_rules(opened.spec, context, results),
        reasons=count_reasons(join_rejects(result.rejects for result in results)),
    )
    return journal, results
