"""Prepares a reset of a stream, or the abandonment of its backfill, and carries out exactly the described effects."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from frazil.backfill.commit import abandon
from frazil.commit import marker_changes
from frazil.commit.backfill_marker import BackfillMarker, BackfillState, read_backfill
from frazil.commit.marker import Marker, keep_same_topics
from frazil.commit.open_streams import open_kafka, open_read_only, open_stream
from frazil.commit.reset_plan import (
    AvailableOffsets,
    OffsetMove,
    Offsets,
    StateBeforeReset,
    list_moves,
    read_state_before_reset,
)
from frazil.commit.stream_tables import StreamTables
from frazil.errors import AdoptionRequired, FrazilError, SpecError
from frazil.history.supervision import record_action
from frazil.operations.page_actions import PreparedAction
from frazil.spec.model import StreamSpec
from frazil.spec.units import format_count
from frazil.status.reset_target import (
    ResetTarget,
    describe_consequences,
    fetch_available,
    find_target_offsets,
)
from frazil.timetext import format_utc


def plan_reset(spec: StreamSpec, wanted: ResetTarget, *, by: str = "an unknown user") -> PreparedAction:
    """Read the table and Kafka, and return a reset's effects. Raises the errors of both, and AdoptionRequired."""
    opened = open_read_only(spec)
    with open_kafka(spec) as kafka:
        seen = read_state_before_reset(opened.tables)
        if seen.marker_text is None:
            raise AdoptionRequired(f"stream {spec.name!r} has not started, so it has no position to reset")
        now = fetch_available(kafka, seen.marker)
        target = find_target_offsets(wanted, seen=seen, now=now, kafka=kafka)
    plan = compute_moves(spec, target, seen=seen, now=now)
    says = describe_stream_consequences(spec, plan, seen=seen, now=now)
    # Without the target: the end of a topic moves while the user reads the plan.
    version_token = hashlib.sha256(f"{seen.marker_text}|{wanted.to}|{wanted.at}".encode()).hexdigest()

    def carry_out() -> object:
        return carry_out_reset(open_stream(spec).tables, wanted, target, plan=plan, seen=seen, now=now, by=by)

    return PreparedAction(tuple(says), version_token, carry_out)


def compute_moves(
    spec: StreamSpec, target: Offsets, *, seen: StateBeforeReset, now: AvailableOffsets
) -> tuple[OffsetMove, ...]:
    """Return the move of each topic-partition. Raises SpecError if rows of a route would be duplicated."""
    marker = seen.marker
    if marker and marker.routed is not None and not (spec.sinks.can_follow and spec.sinks.mode.merges):
        held = keep_same_topics(marker.offsets, marker.source, now.source)
        if again := sum(move.repeated for move in list_moves(target, held=held, available=now)):
            raise SpecError(
                f"stream {spec.name!r} has or had a route. This reset would make it read "
                f"{format_count(again, 'offset')} again, and duplicate the rows that its tables have for them. Nothing "
                f"was changed. To add rows that are missing from a table, run `frazil reset {spec.name} --to marker` "
                f"and `frazil backfill {spec.name}`"
            )
    return list_moves(target, held=keep_same_topics(seen.held, seen.source, now.source), available=now)


def describe_stream_consequences(
    spec: StreamSpec, plan: Sequence[OffsetMove], *, seen: StateBeforeReset, now: AvailableOffsets
) -> list[str]:
    """Return messages about the consequences of a reset, which depend on the stream's mode."""
    merged = "by order" if spec.order_by else spec.sinks.mode.repeats
    return describe_consequences(plan, seen=seen, now=now, merged=merged)


def carry_out_reset(  # noqa: PLR0913 - all that a reset is about
    tables: StreamTables,
    wanted: ResetTarget,
    target: Offsets,
    *,
    plan: Sequence[OffsetMove],
    seen: StateBeforeReset,
    now: AvailableOffsets,
    by: str,
) -> Marker:
    """Move the position, record it, and return the marker. Raises the errors of `marker_changes.reset`."""
    marker = marker_changes.reset(tables, target=target, source=now.source, seen=seen, cut=now.cut)
    record_action(tables.main.current(), tables.stream, reset_sentence(wanted, plan, by=by), at_ms=tables.clock_ms())
    return marker


def reset_sentence(wanted: ResetTarget, plan: Sequence[OffsetMove], *, by: str) -> str:
    skipped, repeated = sum(move.skipped for move in plan), sum(move.repeated for move in plan)
    skips = [f"skips {format_count(skipped, 'offset')}"] if skipped else []
    reads = [f"reads {format_count(repeated, 'offset')} again"] if repeated else []
    did = " and ".join(skips + reads)
    at = f" {format_utc(int(wanted.at.timestamp() * 1000))}" if wanted.at else ""
    return f"the stream was reset to {wanted.to}{at} by {by}: it {did or 'skips no offsets and rereads none'}"


def plan_abandon(spec: StreamSpec, *, by: str = "an unknown user") -> PreparedAction:
    """Read the stream's table, and return the effects of abandoning its backfill."""
    tables = open_read_only(spec).tables
    backfill = read_backfill(tables.main.refresh().metadata.properties, spec.name)
    if backfill is None or not backfill.is_open:
        return PreparedAction((), "", lambda: None, refused=f"{spec.name} has no backfill or replay in progress")

    def carry_out() -> None:
        tables = open_stream(spec).tables
        if abandon(tables, backfill, by=by).state is BackfillState.PUBLISHED:
            raise FrazilError(
                f"cannot abandon the backfill: it has just been published, and table {tables.main.identifier} has its "
                "rows"
            )

    return PreparedAction((describe_staged(backfill),), backfill.id, carry_out)


def describe_staged(backfill: BackfillMarker) -> str:
    what = "Replay" if backfill.replays else "Backfill"
    if not backfill.chunks:
        return f"{what} {backfill.id} has staged nothing yet."
    return (
        f"{what} {backfill.id} has staged {format_count(backfill.records, 'row')} in "
        f"{format_count(backfill.files, 'file')}, "
        f"{backfill.chunks:,} of about {format_count(max(backfill.planned, backfill.chunks), 'chunk')}."
    )
