"""Writes events to the log."""

from __future__ import annotations

import logging

from frazil.events import (
    BatchCommitted,
    CommitRecordsFolded,
    DistributionChosen,
    EpochBegan,
    Event,
    FutureEventTimes,
    NoticeGiven,
    RecordsSkipped,
    StallBegan,
    StallEnded,
    TableEvolved,
    ThrottleEvaluated,
)
from frazil.spec.units import counted
from frazil.timetext import ago

_batch = logging.getLogger("frazil.stream.batch")
_writer = logging.getLogger("frazil.stream.writer")
_stalls = logging.getLogger("frazil.stream.stall")
_folding = logging.getLogger("frazil.stream.record_folding")
"""Stable logger names, because users search their logs for them."""


def log_event(event: Event) -> None:
    """Log one event. Each kind of event that is logged has a case."""
    stream, what = event.stream, event.what
    match what:
        case EpochBegan():
            _writer.info("epoch %d begins: %s", what.epoch, what.settled)
        case RecordsSkipped():
            _writer.warning(
                "Kafka's retention deleted records that stream %r had not read, and skips now: %s", stream, what.lost
            )
        case BatchCommitted():
            _batch.info(
                "batch %s: %d records, %d dead letters, %d files; staged in %.2f s, committed in %.3f s",
                what.key, what.records, what.rejected, what.files, what.stage_s, what.commit_s,
            )  # fmt: skip
        case FutureEventTimes():
            _batch.warning(
                "batch %s: %s an event time more than %s ahead of Kafka's timestamp, most of them in %s-%d: such rows "
                "land, but do not move the watermark. Check the producers' clocks",
                what.key, counted(what.rows, "row", "has|have"), what.max_future, *what.furthest,
            )  # fmt: skip
        case ThrottleEvaluated(reason=str()) if not what.was_under_pressure:
            _batch.warning("stream %s: %s", stream, what.reason)
        case ThrottleEvaluated(reason=None) if what.was_under_pressure:
            _batch.info("stream %s: the table's metadata no longer grows; commits follow the declared interval", stream)
        case DistributionChosen():
            _batch.info(
                "batch %s: rows are %s: %s", what.key, "shuffled" if what.shuffled else "not shuffled", what.reason
            )
        case StallBegan():
            _stalls.warning("stream %s: stalled (%s): %s", stream, what.stall.kind, what.stall.reason)
        case StallEnded():
            _stalls.info("stream %s: the stall (%s) is over after %s", stream, what.kind, ago(what.lasted_ms))
        case TableEvolved():
            _batch.info(
                "batch %s: %s evolves, and the batch is staged again: %s", what.key, what.table, "; ".join(what.changes)
            )
        case NoticeGiven(replaces=""):
            _writer.warning("stream %s: %s", stream, what.sentence)
        case CommitRecordsFolded():
            _folding.info("stream %r: %d old commit records were folded", stream, what.records)
