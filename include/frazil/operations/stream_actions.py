"""Finds which actions are possible on a stream, and why others are not. Resets streams, and abandons backfills."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from frazil.backfill.commit import abandon
from frazil.backfill.request import check_coordinates
from frazil.backfill.rules import check_no_backfill, check_no_replay, require_marker
from frazil.clock import epoch_ms
from frazil.commit import marker_changes
from frazil.commit.backfill_records import BackfillMarker, BackfillState
from frazil.commit.marker import Marker, keep_same_topics, keep_topics, require_own_marker
from frazil.commit.open_streams import open_kafka, open_read_only, open_stream
from frazil.commit.reset_plan import (
    AvailableOffsets,
    OffsetMove,
    StateBeforeReset,
    clamp_to_available,
    clamp_to_truncations,
    list_moves,
    read_state_before_reset,
)
from frazil.commit.stream_tables import StreamTables
from frazil.errors import AdoptionRequired, FrazilError, MarkerUnreadable, RolledBack, SpecError
from frazil.history.recorder import record_action
from frazil.kafka.admin import KafkaAdmin
from frazil.kafka.logs import find_truncations
from frazil.offsets.spans import Offsets, TopicPartition
from frazil.operations.page_actions import PageAction, PreparedAction
from frazil.operations.stream_view import TableHistory
from frazil.spec.model import StreamSpec
from frazil.spec.units import format_count
from frazil.status.state import State, StreamState
from frazil.timetext import format_utc


class NotInKafka(ValueError):
    """Kafka does not have a requested offset."""


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """The position requested for a reset. Raises ValueError if the fields contradict each other."""

    to: str
    at: datetime | None = None
    offsets: Offsets | None = None

    def __post_init__(self) -> None:
        if (self.at is not None) != (self.to == "timestamp"):
            raise ValueError("--at TIME and --to timestamp need each other: give both or neither")
        if (self.offsets is not None) != (self.to == "offsets"):
            raise ValueError("--offsets and --to offsets need each other: give both or neither")


def fetch_available(kafka: KafkaAdmin, marker: Marker | None) -> AvailableOffsets:
    """Return the offsets that Kafka has, and where its logs were truncated before the marker's offsets."""
    topics = kafka.describe()
    first, end = kafka.earliest(topics.partitions), kafka.ends(topics.partitions)
    if marker is None:
        return AvailableOffsets(topics.identity, first, end)
    same = keep_same_topics(keep_topics(marker.offsets, topics.identity.topic_ids), marker.source, topics.identity)
    existing = {tp: offset for tp, offset in same.items() if tp in first}
    truncated_at = find_truncations(kafka, existing, marker.leader_epochs)
    return AvailableOffsets(topics.identity, first, end, truncated_at)


def find_target_offsets(
    target: ResetTarget, *, state: StateBeforeReset, available: AvailableOffsets, kafka: KafkaAdmin
) -> dict[TopicPartition, int]:
    """Return the offset at which each topic-partition continues. Raises MarkerUnreadable, RolledBack and NotInKafka."""
    if target.to == "earliest":
        return dict(available.first)
    if target.to == "latest":
        return dict(available.end)
    if target.to == "timestamp" and target.at is not None:
        return clamp_to_available(kafka.offsets_at(target.at, available.first), available)
    if target.to == "table":
        if state.unknown:
            raise RolledBack(state.unknown)
        return clamp_to_available(
            clamp_to_truncations(keep_same_topics(state.held, state.source, available.source), available), available
        )
    if target.to == "offsets" and target.offsets is not None:
        check_available(target.offsets, available)
        return {**_offsets_from_marker(state, available, ends=target.offsets), **target.offsets}
    return _offsets_from_marker(state, available)


def _offsets_from_marker(
    state: StateBeforeReset, available: AvailableOffsets, *, ends: Offsets | None = None
) -> dict[TopicPartition, int]:
    """Return the marker's offsets that Kafka has. Raises MarkerUnreadable unless `ends` has all topic-partitions."""
    if state.marker is None:
        if ends is not None and ends.keys() == available.first.keys():
            return {}
        raise MarkerUnreadable(
            "the marker cannot be read, so it names no offsets: choose --to table, earliest, latest or timestamp, or "
            "--to offsets with every partition"
        )
    same = keep_same_topics(state.marker.offsets, state.marker.source, available.source)
    return clamp_to_available(clamp_to_truncations(same, available), available)


def check_available(offsets: Offsets, available: AvailableOffsets) -> None:
    """Raise NotInKafka unless each offset is from `first` to `end`, inclusive."""
    for (topic, partition), offset in offsets.items():
        tp = (topic, partition)
        if tp not in available.first:
            names = ", ".join(sorted(f"{t}-{p}" for t, p in available.first))
            raise NotInKafka(f"Kafka has no {topic}-{partition}; it has: {names}")
        if not available.first[tp] <= offset <= available.end[tp]:
            raise NotInKafka(
                f"{topic}-{partition}: {offset} is not in the range that Kafka has, "
                f"{available.first[tp]} to {available.end[tp]}"
            )


_REPEATED_TEXTS: Mapping[str, str] = {
    "no": "the table will have their rows twice, unless you delete the rows first.",
    "dropped": "their rows are dropped as repeats. Only rows without an event time land again.",
    "by order": "their changes are merged again, and a change that is older than the table's row is dropped.",
    "by arrival": "until the writer has caught up, the rows that their changes replace have old values.",
}


def describe_consequences(
    spec: StreamSpec, plan: Sequence[OffsetMove], *, state: StateBeforeReset, available: AvailableOffsets
) -> list[str]:
    sentences = []
    if state.rolled_back:
        sentences.append(
            "The table was rolled back to before the marker, so its rows, not the marker, show which records it has."
        )
    if state.unknown:
        sentences.append(
            "It is unknown which records the table has, and therefore which will be skipped or repeated: "
            f"{state.unknown}."
        )
    for topic in _recreated_topics(state, available):
        sentences.append(f"Topic {topic} was recreated after the marker: its offsets count from its beginning.")
    skipped, missing = sum(m.skipped for m in plan), sum(m.deleted for m in plan)
    repeated = sum(m.repeated for m in plan)
    for m in plan:
        if m.rewritten:
            sentences.append(
                f"Kafka's log of {m.topic}-{m.partition} was truncated at offset {m.truncated_at:,}. From there on, "
                f"Kafka has or will have new records at {m.rewritten:,} offsets whose old records are in the table. "
                "After the reset, the table gets the new records and keeps the old ones."
            )
    if skipped:
        note = f"; Kafka has already deleted {missing:,} of them" if missing else ""
        sentences.append(f"It skips {format_count(skipped, 'offset')}{note}: their records never reach the table.")
    if repeated:
        merged = "by order" if spec.order_by else spec.sinks.mode.repeats
        sentences.append(
            f"It reads {format_count(repeated, 'offset')} again, although the table has them: {_REPEATED_TEXTS[merged]}"
        )
    if not skipped and not repeated and not state.unknown:
        sentences.append("It skips no records, and reads no records again.")
    return sentences


def _recreated_topics(state: StateBeforeReset, available: AvailableOffsets) -> list[str]:
    if state.source is None:
        return []
    topics = sorted(available.source.topic_ids)
    if state.source.cluster_id != available.source.cluster_id:
        return topics
    return [
        t
        for t in topics
        if state.source.topic_ids.get(t, available.source.topic_ids[t]) != available.source.topic_ids[t]
    ]


@dataclass(frozen=True, slots=True)
class ActionState:
    paused: bool = False
    given_up: bool = False
    is_read: bool = False
    """Whether the table was read or does not exist. If False, only the declaration is checked."""
    marker: Marker | None = None
    backfill: BackfillMarker | None = None
    has_dead_letters: bool = True
    coordinates: bool = True
    """Whether the table has the columns for topic, partition and offset; True if unknown."""


def build_action_state(status: StreamState | None, history: TableHistory | None, *, is_read: bool) -> ActionState:
    if status is not None and status.table_exists is False:
        history, is_read = None, True
    table_history = history or TableHistory(has_dead_letters=not is_read)
    return ActionState(
        paused=status is not None and status.desired == "paused",
        given_up=status is not None and status.state is State.GIVEN_UP,
        is_read=is_read and not table_history.unreadable,
        marker=table_history.marker,
        backfill=table_history.last_backfill,
        has_dead_letters=table_history.has_dead_letters,
        coordinates=table_history.coordinates,
    )


def possible_actions(spec: StreamSpec, state: ActionState) -> tuple[PageAction, ...]:
    return tuple(action for action in _list_candidates(state) if find_refusal(action, spec, state) is None)


def _list_candidates(state: ActionState) -> Iterator[PageAction]:
    yield PageAction.RESUME if state.paused else PageAction.PAUSE
    if state.given_up and not state.paused:
        yield PageAction.RESUME
    yield PageAction.RESTART
    if state.marker is not None or not state.is_read:
        yield PageAction.RESET
    yield PageAction.BACKFILL
    if state.backfill is not None and state.backfill.is_open:
        yield PageAction.ABANDON
    if state.has_dead_letters:
        yield PageAction.REPLAY


def find_refusal(action: PageAction, spec: StreamSpec, state: ActionState) -> str | None:
    """Return why a backfill or replay is not possible now; None if it is possible, and for all other actions."""
    checks = {
        PageAction.BACKFILL: (check_no_replay, require_marker),
        PageAction.REPLAY: (check_no_backfill, lambda spec, marker: require_own_marker(spec.name, marker)),
    }
    if action not in checks:
        return None
    check_other, check_marker = checks[action]
    try:
        check_coordinates(spec, table_has_coordinates=state.coordinates)
        check_other(state.backfill)
        if state.is_read:
            check_marker(spec, state.marker)
    except FrazilError as error:
        return str(error)
    return None


def plan_reset(spec: StreamSpec, request: ResetTarget, *, by: str) -> PreparedAction:
    """Read the table and Kafka, and return a reset's effects. Raises the errors of both, and AdoptionRequired."""
    opened = open_read_only(spec)
    with open_kafka(spec) as kafka:
        state = read_state_before_reset(opened.tables)
        if state.marker_text is None:
            raise AdoptionRequired(f"stream {spec.name!r} has not started, so it has no position to reset")
        available = fetch_available(kafka, state.marker)
        target = find_target_offsets(request, state=state, available=available, kafka=kafka)
    plan = compute_moves(spec, target, state=state, available=available)
    consequences = describe_consequences(spec, plan, state=state, available=available)
    # The token omits the target: the end of a topic moves while the user reads the plan.
    version_token = hashlib.sha256(f"{state.marker_text}|{request.to}|{request.at}".encode()).hexdigest()

    def carry_out() -> object:
        return carry_out_reset(
            open_stream(spec).tables, request, target, plan=plan, state=state, available=available, by=by
        )

    return PreparedAction(tuple(consequences), version_token, carry_out)


def compute_moves(
    spec: StreamSpec, target: Offsets, *, state: StateBeforeReset, available: AvailableOffsets
) -> tuple[OffsetMove, ...]:
    """Return the move of each topic-partition. Raises SpecError if rows of a route would be duplicated."""
    marker = state.marker
    if marker and marker.routed is not None and not (spec.sinks.has_routed_tables and spec.sinks.mode.merges):
        current = keep_same_topics(marker.offsets, marker.source, available.source)
        if count := sum(move.repeated for move in list_moves(target, current=current, available=available)):
            raise SpecError(
                f"stream {spec.name!r} has or had a route. This reset would make it read "
                f"{format_count(count, 'offset')} again, and duplicate the rows that its tables have for them. Nothing "
                f"was changed. To add rows that are missing from a table, run `frazil reset {spec.name} --to marker` "
                f"and `frazil backfill {spec.name}`"
            )
    return list_moves(target, current=keep_same_topics(state.held, state.source, available.source), available=available)


def carry_out_reset(  # noqa: PLR0913 - all that a reset is about
    tables: StreamTables,
    request: ResetTarget,
    target: Offsets,
    *,
    plan: Sequence[OffsetMove],
    state: StateBeforeReset,
    available: AvailableOffsets,
    by: str,
) -> Marker:
    marker = marker_changes.reset(
        tables, target=target, source=available.source, seen=state, truncated_at=available.truncated_at
    )
    record_action(tables.main.current(), tables.stream, reset_message(request, plan, by=by), at_ms=tables.clock_ms())
    return marker


def reset_message(request: ResetTarget, plan: Sequence[OffsetMove], *, by: str) -> str:
    skipped, repeated = sum(move.skipped for move in plan), sum(move.repeated for move in plan)
    skips = [f"skips {format_count(skipped, 'offset')}"] if skipped else []
    reads = [f"reads {format_count(repeated, 'offset')} again"] if repeated else []
    did = " and ".join(skips + reads)
    time = f" {format_utc(epoch_ms(request.at))}" if request.at else ""
    return f"the stream was reset to {request.to}{time} by {by}: it {did or 'skips no offsets and rereads none'}"


def plan_abandon(spec: StreamSpec, *, by: str = "an unknown user") -> PreparedAction:
    tables = open_read_only(spec).tables
    backfill = tables.last_backfill()
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
    kind = "Replay" if backfill.replays else "Backfill"
    if not backfill.chunks:
        return f"{kind} {backfill.id} has staged nothing yet."
    return (
        f"{kind} {backfill.id} has staged {format_count(backfill.records, 'row')} in "
        f"{format_count(backfill.files, 'file')}, "
        f"{backfill.chunks:,} of about {format_count(max(backfill.planned, backfill.chunks), 'chunk')}."
    )
