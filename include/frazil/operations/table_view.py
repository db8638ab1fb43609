"""Builds the page's view of one table: files, snapshots, windows, past and due maintenance. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from frazil.commit.history import is_compaction, is_fold, is_replace, parse_number
from frazil.maintenance.alerts import MIN_FILE_DIVISOR
from frazil.maintenance.due import Action as DueAction
from frazil.maintenance.due import DueCheck, is_enabled
from frazil.maintenance.health import TableHealth
from frazil.maintenance.outcomes import Ending, PastOutcome
from frazil.operations.calendar import Calendar
from frazil.operations.overview import ActiveAlert, Health, combine_health
from frazil.spec.maintenance import Maintenance
from frazil.status.state import Level, StreamState
from frazil.table.branches import snapshot_summary

MIN_BUCKET_BYTES = 16 * 1024
MAX_SNAPSHOTS = 600
MAX_PAST_RUNS = 12
MAX_LOST_CHARACTERS = 200
DEAD_LETTER_OPERATIONS = {"replay": "replayed", "discard-dead-letters": "discarded"}
KIND_LABELS = {
    "batch": "batch",
    "merge": "merge",
    "backfill": "backfill",
    "compaction": "compaction",
    "fold": "folding by writers",
    "manifests": "manifests rewritten",
    "expiry": "expiry",
    "dead-letters": "replay or discard",
    "others": "other programs",
}
MARKER_OPERATIONS = {
    "take-over": ("start", "writer started", "a new epoch"),
    "settle": ("start", "writer started", "a batch of an earlier epoch was discarded"),
    "follow": ("start", "table joined", "receives rows from the stream's next batch on"),
    "reset": ("position", "offsets reset", "the stream continues from other offsets"),
    "adopt": ("position", "table adopted", "the stream appends to the existing rows"),
    "forget": ("position", "stream forgotten", "its marker was removed"),
    "skip-gap": ("position", "gap skipped", "Kafka deleted unread records"),
    "give-up": ("position", "rows given up", "the table continues without its pending rows"),
    "align": ("open", "open windows", ""),
    "release": ("open", "rows moved to main", ""),
}
"""Kind, label and effect. If the effect is empty, the page shows the number of files instead."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Number and total size of the files with `at_least` bytes or more, but less than `below` bytes."""

    at_least: int
    below: int
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """One snapshot, or an expiry of snapshots. `kind` is a key of KIND_LABELS, or start, position or open."""

    at_ms: int
    kind: str
    label: str
    stream: str | None
    files: int
    message: str


@dataclass(frozen=True, slots=True)
class ActionStatus:
    name: str
    due: bool
    enabled: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Shape:
    """A table's size and files. `limit` is the maximum number of manifest-list bytes per data file."""

    rows: int
    files: int
    bytes: int
    delete_files: int
    manifests: int
    snapshots: int
    metadata_bytes: int
    target_bytes: int
    list_bytes_per_file: float
    limit: int
    histogram: tuple[Bucket, ...]
    """Files by size; empty if the table has too many files to read all its manifests."""
    marks: tuple[TimelineEvent, ...]
    past: tuple[PastOutcome, ...]
    actions: tuple[ActionStatus, ...]


@dataclass(frozen=True, slots=True)
class WindowRun:
    dag: str
    run: str
    state: str


@dataclass(frozen=True, slots=True)
class TableView:
    at_ms: int
    table: str
    kind: str
    """A value of `frazil.maintenance.tables.TableKind`."""
    level: Level
    word: str
    streams: tuple[str, ...]
    every: str
    shape: Shape | None = None
    calendar: Calendar | None = None
    alerts: tuple[ActiveAlert, ...] = ()
    route_problems: tuple[str, ...] = ()
    dags: Mapping[str, bool] | None = None
    runs: Mapping[str, Sequence[WindowRun]] | None = None
    """The runs that each window started, by the window's key, oldest first; None while unknown."""
    pending: bool = False
    may_act: bool = False
    problems: tuple[str, ...] = ()
    airflow: tuple[str, ...] = ()


def build_shape(  # noqa: PLR0913 - all facts about a table
    metadata: TableMetadata,
    health: TableHealth,
    actions: Mapping[DueAction, DueCheck],
    *,
    sizes: Iterable[int],
    past: Sequence[PastOutcome],
    settings: Maintenance,
) -> Shape:
    statuses = (
        ActionStatus(name, action.due, is_enabled(settings, name), action.reason) for name, action in actions.items()
    )
    return Shape(
        rows=health.rows,
        files=health.data_files,
        bytes=health.data_bytes,
        delete_files=health.delete_files,
        manifests=health.manifests,
        snapshots=health.snapshots,
        metadata_bytes=health.metadata_bytes,
        target_bytes=health.target_file_bytes,
        list_bytes_per_file=health.manifest_list_bytes / max(health.data_files, MIN_FILE_DIVISOR),
        limit=settings.alerts.manifest_list_bytes_per_file,
        histogram=build_histogram(sizes),
        marks=build_timeline(metadata, past),
        past=tuple(past[: -MAX_PAST_RUNS - 1 : -1]),
        actions=tuple(statuses),
    )


def build_histogram(sizes: Iterable[int]) -> tuple[Bucket, ...]:
    """Count files by size. Each bucket is twice as wide as the previous one. Includes empty buckets in between."""
    files, total = Counter[int](), Counter[int]()
    for size in sizes:
        index = (size // MIN_BUCKET_BYTES).bit_length()
        files[index] += 1
        total[index] += size
    if not files:
        return ()

    def at_least(index: int) -> int:
        return MIN_BUCKET_BYTES << (index - 1) if index else 0

    return tuple(
        Bucket(at_least(index), at_least(index + 1), files[index], total[index])
        for index in range(min(files), max(files) + 1)
    )


def build_timeline(metadata: TableMetadata, past: Iterable[PastOutcome] = ()) -> tuple[TimelineEvent, ...]:
    """Return the newest snapshots of all branches, and the expiries since the oldest of these, oldest first."""
    ordered = sorted(metadata.snapshots, key=lambda snapshot: snapshot.timestamp_ms)
    newest = [_snapshot_event(snapshot) for snapshot in ordered[-MAX_SNAPSHOTS:]]
    expiries = [
        TimelineEvent(
            run.at_ms, "expiry", "expiry", None, 0, f"{run.numbers.get('snapshots-expired', 0):,.0f} snapshots expired"
        )
        for run in past
        if run.action == DueAction.EXPIRY and run.ending is Ending.DONE and newest and run.at_ms >= newest[0].at_ms
    ]
    return tuple(sorted((*newest, *expiries), key=lambda event: event.at_ms))


def _snapshot_event(snapshot: Snapshot) -> TimelineEvent:
    summary = snapshot_summary(snapshot)
    added, removed = parse_number(summary.get("added-data-files")), parse_number(summary.get("deleted-data-files"))
    kind, operation = _snapshot_kind(snapshot, summary), summary.get("frazil.operation", "")
    label, effect = KIND_LABELS.get(kind, "marker changed"), ""
    if kind == "position":
        kind, label, effect = MARKER_OPERATIONS.get(operation, (kind, label, operation))
    words = {
        "batch": f"{parse_number(summary.get('frazil.records')):,} records",
        "merge": f"{parse_number(summary.get('frazil.records')):,} changes",
        **dict.fromkeys(("compaction", "fold"), f"{removed:,} files became {added:,}"),
        "dead-letters": DEAD_LETTER_OPERATIONS.get(operation, ""),
    }
    lost_text = f": {summary['frazil.lost'][:MAX_LOST_CHARACTERS]}" if summary.get("frazil.lost") else ""
    text = f"{effect}{lost_text}" if effect else words.get(kind, f"{added:,} files added, {removed:,} removed")
    names = ("frazil.stream", "frazil.backfill-stream", "frazil.dead-letters-of")
    stream = next((summary[name] for name in names if summary.get(name)), None)
    return TimelineEvent(snapshot.timestamp_ms, kind, label, stream, added, text)


def _snapshot_kind(snapshot: Snapshot, summary: Mapping[str, str]) -> str:
    """Return a key of KIND_LABELS, or `position` for a changed marker without a batch."""
    if summary.get("frazil.stream") and summary.get("frazil.commit-record"):
        return "merge" if summary.get("frazil.inserted") is not None else "batch"
    if summary.get("frazil.operation") in DEAD_LETTER_OPERATIONS:
        return "dead-letters"
    if summary.get("frazil.backfill-stream") or summary.get("frazil.backfill"):
        return "backfill"
    if is_fold(snapshot):
        return "fold"
    if is_replace(snapshot):
        return "compaction" if is_compaction(snapshot) else "manifests"
    return "position" if summary.get("frazil.stream") and summary.get("frazil.operation") else "others"


def table_health(
    shape: Shape | None, calendar: Calendar | None, alerts: Sequence[ActiveAlert], problems: Sequence[str] = ()
) -> Health:
    """Return a table's health by the overview's rules. Any alert, route problem or held window needs attention."""
    due = {"it": [action.name for action in shape.actions if action.due]} if shape else None
    health = combine_health(["it"], alerts, due)
    if health is not None and health.level is Level.TROUBLE:
        return health
    if alerts or problems or (calendar and any(cell.state == "held" for cell in calendar.cells)):
        return Health(Level.TROUBLE, "needs attention")
    return health or Health(Level.UNKNOWN, "unknown")


def route_problems(identifier: str, statuses: Iterable[StreamState]) -> tuple[str, ...]:
    return tuple(
        f"The table differs from what the route of {status.name} expects ({status.table_problems[identifier]}): "
        f"run `frazil route {status.name}` for the remedy"
        for status in statuses
        if identifier in status.table_problems
    )


MAX_ROUTED_TABLES = 60


@dataclass(frozen=True, slots=True)
class RoutedTable:
    name: str
    problem: str = ""
    level: Level = Level.WELL


@dataclass(frozen=True, slots=True)
class RoutedTables:
    tables: tuple[RoutedTable, ...]
    found: int
    total: int


def search_routed(
    names: Sequence[str] | None, search: str, *, problems: Mapping[str, str] | None = None, level: Level = Level.TROUBLE
) -> RoutedTables | None:
    """Return the tables whose name or problem contains all words of the search, those with problems first."""
    shown_problems = problems or {}
    if not names and not shown_problems:
        return None
    listed = sorted({*(names or ()), *shown_problems}, key=lambda name: (name not in shown_problems, name))
    words = search.lower().split()
    hits = [name for name in listed if all(word in f"{name} {shown_problems.get(name, '')}".lower() for word in words)]
    marked = min(level, Level.TROUBLE)
    routed = (
        RoutedTable(name, shown_problems[name], marked) if name in shown_problems else RoutedTable(name)
        for name in hits
    )
    return RoutedTables(tuple(islice(routed, MAX_ROUTED_TABLES)), len(hits), len(listed))
