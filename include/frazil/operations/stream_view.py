"""Builds the page's view of one stream: its history, topic partitions, writers and rejected records. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from urllib.parse import quote

from pyiceberg.table.metadata import TableMetadata

from frazil.commit.backfill_records import BackfillMarker, read_backfill
from frazil.commit.history import commit_records, merge_counts
from frazil.commit.marker import Marker, keep_topics, property_name
from frazil.errors import MarkerUnreadable
from frazil.history.points import MINUTE_MS, TENS_RETENTION_MS, HistoryEvent, Point, span_start
from frazil.history.points import RecordedHistory as StreamHistory
from frazil.host.launcher import Observation, ProcessState
from frazil.host.records import ExitRecord, LaunchKind
from frazil.offsets.spans import TopicPartition
from frazil.operations.dead_letters import (
    RejectedRecords,
    count_rejected,
    find_treatments,
    merge_treatments,
    published_summaries,
)
from frazil.operations.overview import OverviewLine
from frazil.operations.page_actions import PageAction
from frazil.operations.rates import DayCost, Rate, Trend
from frazil.operations.table_view import RoutedTables
from frazil.partitions.completeness import slowest_partition
from frazil.spec.model import StreamSpec
from frazil.spec.units import format_bytes, format_duration
from frazil.status.recent_commits import DAY_MS
from frazil.status.state import StreamState
from frazil.status.stream import LAG_UNKNOWN
from frazil.supervise.decision import error_name
from frazil.table.branches import count_live_rows, head_of, snapshot_summary
from frazil.table.landed_offsets import has_coordinates

MAX_SHOWN_RUNS = 12
MAX_PARTITIONS = 256
MAX_STREAM_EVENTS = 30
MAX_TOPICS = 20
EMPTY_HISTORY = StreamHistory()
KAFKA = "Kafka"
HOURS = (6, 24, 7 * 24, 14 * 24)


@dataclass(frozen=True, slots=True)
class Period:
    begin_ms: int
    end_ms: int
    hours: int = 0
    """Length in hours, if the period ends now; 0 if the user chose its start and end."""

    @classmethod
    def of(cls, hours: int, begin_ms: int | None, end_ms: int | None, *, now_ms: int) -> Period:
        """Return the period between two times. If it is empty, return the last `hours`, or else the default period."""
        begin_ms = max(begin_ms or now_ms, now_ms - TENS_RETENTION_MS)
        if begin_ms < (end := min(end_ms or now_ms, now_ms)):
            return cls(begin_ms, end)
        hours = hours if hours in HOURS else HOURS[0]
        return cls(now_ms - hours * 60 * MINUTE_MS, now_ms, hours)

    @property
    def span_ms(self) -> int:
        """The time span of one point: a chart has a few hundred points."""
        hours = -((self.begin_ms - self.end_ms) // (60 * MINUTE_MS))
        return next((n for max_hours, n in ((6, 1), (24, 10), (7 * 24, 60)) if hours <= max_hours), 120) * MINUTE_MS

    def contains(self, at_ms: int) -> bool:
        return self.begin_ms <= at_ms < self.end_ms


@dataclass(frozen=True, slots=True)
class OpenBackfill:
    id: str
    replays: bool
    chunks: int
    planned: int
    rows: int
    state: str


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic, with its URL in the configured topic viewer, if any."""

    name: str
    address: str | None = None


@dataclass(frozen=True, slots=True)
class TableHistory:
    has_commits: bool = False
    rejected: tuple[RejectedRecords, ...] = ()
    """Error classes, most frequent first."""
    changes: Mapping[str, int] = field(default_factory=dict)
    """Counts of the last day's changes, by a key of `frazil.commit.history.RECORD_OUTCOMES`."""
    marker: Marker | None = None
    past: StreamHistory = EMPTY_HISTORY
    last_backfill: BackfillMarker | None = None
    has_dead_letters: bool = False
    unreadable: bool = False
    coordinates: bool = True

    @property
    def backfill(self) -> OpenBackfill | None:
        last = self.last_backfill
        if last is None or not last.is_open:
            return None
        planned = max(last.planned, last.chunks)
        return OpenBackfill(last.id, last.replays, last.chunks, planned, last.records, last.state)


@dataclass(frozen=True, slots=True)
class Partition:
    """One topic-partition of a stream. `lag` is None while Kafka does not respond."""

    topic: str
    partition: int
    offset: int | None
    lag: int | None
    newest_ms: int | None
    """The newest event time that counts for the watermark."""
    idle: bool
    holds: bool


@dataclass(frozen=True, slots=True)
class WriterRun:
    """One run of a writer. `outcome` describes its end; `is_ok` is False if that needs attention."""

    started_at_ms: int
    ended_at_ms: int | None
    outcome: str
    is_ok: bool
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StreamView:
    at_ms: int
    line: OverviewLine
    facts: Mapping[str, str]
    has_commits: bool = False
    rejected: tuple[RejectedRecords, ...] = ()
    changes: Mapping[str, int] = field(default_factory=dict)
    last_changes: Mapping[str, int] = field(default_factory=dict)
    partitions: tuple[Partition, ...] = ()
    partitions_in_all: int = 0
    """Number of all topic-partitions; `partitions` has at most `MAX_PARTITIONS`."""
    runs: tuple[WriterRun, ...] = ()
    dags: Mapping[str, bool] | None = None
    """The stream's DAGs, each with whether it is paused."""
    audited: str | None = None
    pending: bool = False
    may_act: bool = False
    actions: tuple[PageAction, ...] = ()
    problems: tuple[str, ...] = ()
    airflow: tuple[str, ...] = ()
    points: tuple[Point, ...] = ()
    rates: tuple[Rate, ...] = ()
    events: tuple[HistoryEvent, ...] = ()
    backfill: OpenBackfill | None = None
    log: str | None = None
    topics: tuple[Topic, ...] = ()
    routes: bool = False
    """Whether the stream has a route. Rows and commits are the default table's."""
    routed: RoutedTables | None = None
    period: Period | None = None
    trend: Trend | None = None
    days: tuple[DayCost, ...] = ()


def build_table_history(  # noqa: PLR0913 - all facts about a stream's past
    metadata: TableMetadata,
    spec: StreamSpec,
    marker: Marker | None,
    past: StreamHistory = EMPTY_HISTORY,
    dead_letters: TableMetadata | None = None,
    *,
    now_ms: int,
    lookback_ms: int = DAY_MS,
) -> TableHistory:
    """Return the last day's rejected records and changes, and the events of `lookback_ms`. Reads only summaries."""
    changes, day_ms = Counter[str](), now_ms - DAY_MS
    last_day = takewhile(lambda record: record[0].timestamp_ms >= day_ms, commit_records(metadata, spec.name))
    published = published_summaries(metadata, spec.name, since_ms=day_ms)
    for summary in (*(snapshot_summary(snapshot) for snapshot, _ in last_day), *published):
        changes.update(merge_counts(summary))
    treatments = find_treatments(dead_letters, metadata, spec.name, since_ms=now_ms - max(lookback_ms, DAY_MS))
    rejected = count_rejected(metadata, spec.name, treatments, now_ms=now_ms)
    recent = (treatment for treatment in treatments if treatment.at_ms >= now_ms - lookback_ms)
    past = replace(past, events=merge_treatments(past.events, recent))
    head = head_of(dead_letters) if dead_letters else None
    return TableHistory(
        any(True for _ in commit_records(metadata, spec.name)),
        tuple(rejected),
        changes,
        marker,
        past,
        last_backfill=_last_backfill(metadata, spec.name),
        has_dead_letters=head is not None and count_live_rows(head) != 0,
        unreadable=marker is None and property_name(spec.name) in metadata.properties,
        coordinates=has_coordinates(metadata.schema()),
    )


def _last_backfill(metadata: TableMetadata, stream: str) -> BackfillMarker | None:
    try:
        return read_backfill(metadata.properties, stream)
    except MarkerUnreadable:  # an attempt to abandon or continue it reports this
        return None


def unreported_problems(unread: Mapping[str, str], status: StreamState | None) -> tuple[str, ...]:
    """Return the problems. Omits Kafka's problem if the status already reports an unknown lag."""
    reported = status is not None and any(problem.about == LAG_UNKNOWN for problem in status.problems)
    return tuple(dict.fromkeys(sentence for name, sentence in unread.items() if name != KAFKA or not reported))


def list_partitions(
    marker: Marker | None, ends: Mapping[TopicPartition, int] | None, spec: StreamSpec
) -> tuple[Partition, ...]:
    """Return each topic-partition of the marker or of Kafka. `ends` is None if Kafka does not respond."""
    offsets = keep_topics(marker.offsets, spec.source.reads) if marker else {}
    times = marker.max_event_times_us if marker else {}
    idle = marker.idle if marker else frozenset()
    holder = slowest_partition(times, partitions=offsets, idle=idle) if marker else None
    return tuple(
        Partition(
            topic=tp[0],
            partition=tp[1],
            offset=offsets.get(tp),
            lag=max(ends[tp] - offsets[tp], 0) if ends and tp in ends and tp in offsets else None,
            newest_ms=times[tp] // 1000 if tp in times else None,
            idle=tp in idle,
            holds=tp == holder,
        )
        for tp in sorted({*offsets, *(ends or ())})
    )


def total_lag(partitions: Sequence[Partition]) -> int | None:
    lags = [partition.lag for partition in partitions if partition.lag is not None]
    return sum(lags) if partitions and len(lags) == len(partitions) else None


def limit_partitions(partitions: Sequence[Partition]) -> tuple[Partition, ...]:
    """Return at most `MAX_PARTITIONS`, sorted by name: watermark holders first, then the largest lags."""
    if len(partitions) <= MAX_PARTITIONS:
        return tuple(partitions)
    worst = sorted(partitions, key=lambda partition: (not partition.holds, -(partition.lag or 0)))[:MAX_PARTITIONS]
    return tuple(sorted(worst, key=lambda partition: (partition.topic, partition.partition)))


def list_runs(observation: Observation | None) -> tuple[WriterRun, ...]:
    if observation is None:
        return ()
    ended = [_ended_run(exit_record) for exit_record in reversed(observation.exits)]
    launch = observation.launch
    if launch is None or not observation.process.is_alive:
        return tuple(ended[:MAX_SHOWN_RUNS])
    outcome = {
        LaunchKind.SUPERVISED: "runs, supervised by Airflow",
        LaunchKind.FOREGROUND: "runs in a user's terminal; nothing restarts it",
        LaunchKind.HOSTED: f"runs in the application {launch.application}",
    }[launch.kind]
    outcome = "has ended; its other processes are ending" if observation.process is ProcessState.ENDING else outcome
    return (WriterRun(launch.launched_at_ms, None, outcome, is_ok=True), *ended[: MAX_SHOWN_RUNS - 1])


def _ended_run(end: ExitRecord) -> WriterRun:
    if end.stopped_for:
        outcome = f"stopped: {end.stopped_for}"
    elif end.code == 0:
        outcome = "ended normally"
    elif end.code is None:
        outcome = "was killed, or its host went down"
    elif end.code > 128:
        outcome = f"was ended by signal {end.code - 128}"
    else:
        name = error_name(end.code)
        outcome = f"failed with {name} ({end.code})" if name else f"failed with exit code {end.code}"
    is_ok = end.code == 0 or bool(end.stopped_for)
    cause = None if is_ok else end.cause
    return WriterRun(end.started_at_ms, end.ended_at_ms, outcome, is_ok=is_ok, error=str(cause) if cause else None)


def describe_stream(spec: StreamSpec, names: Mapping[str, str]) -> dict[str, str]:
    commit = f"every {format_duration(spec.commit.interval)}, or {format_bytes(spec.commit.size)}"
    return {
        "Topics": spec.source.topics_text,
        **({"Route": " ".join(filter(None, ("by", spec.route.by, spec.route.name)))} if spec.route else {}),
        "Default table" if spec.sinks.has_routed_tables else "Table": names.get(
            spec.table.identifier, spec.table.identifier
        ),
        "Mode": spec.mode,
        "Event time": spec.event_time.column,
        "Partitioned by": ", ".join(map(str, spec.partition_by)) or "nothing",
        "Commits": commit,
        "Lateness": format_duration(spec.lateness),
        "Dead letters": names.get(spec.dead_letter_table, spec.dead_letter_table),
        **({"Application": spec.application} if spec.application else {}),
    }


def downsample(points: Sequence[Point], period: Period) -> tuple[Point, ...]:
    """Merge the period's points into one point per `span_ms`, oldest first. The last point may cover less time."""
    sampled: dict[int, Point] = {}
    points = [point for point in points if period.contains(point.at_ms)]
    for point in points:
        span_ms = max(period.span_ms, point.span_ms)
        at_ms = span_start(point.at_ms, span_ms)
        earlier = sampled.get(at_ms)
        sampled[at_ms] = earlier.add(point) if earlier else replace(point, at_ms=at_ms, span_ms=span_ms)
    if sampled:
        at_ms, last = sampled.popitem()
        sampled[at_ms] = replace(last, span_ms=min(last.span_ms, points[-1].end_ms - at_ms))
    return tuple(sampled.values())


def list_topics(spec: StreamSpec, partitions: Iterable[Partition], address: str) -> tuple[Topic, ...]:
    """Return at most `MAX_TOPICS` topics. `address` is the topic viewer's URL with {topic} for the name, or empty."""
    names = sorted({*spec.source.topics, *(partition.topic for partition in partitions)})[:MAX_TOPICS]
    is_web = address.startswith(("https://", "http://"))
    return tuple(Topic(name, address.replace("{topic}", quote(name, safe="")) if is_web else None) for name in names)
