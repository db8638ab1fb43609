"""Derives a table's signals from the streams that feed it: which windows are complete, and how many rows they have.

An assessment reads markers, and the summaries of commits since the last signal. It reads manifests only if necessary.
Rows are counted, and gates run, only for windows that get a signal. All steps from a marker to a signal are in this
module, for tables with and without a route.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from itertools import accumulate

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from frazil import clock
from frazil.commit.commit_checks import check_ancestry
from frazil.commit.followers import decided_journals
from frazil.commit.history import commit_records, commits_after, late_rows
from frazil.commit.journal import Journal, later_journals, parse_key
from frazil.commit.marker import BatchKey, Marker, keep_topics, read_marker, read_markers
from frazil.commit.open_branch import earliest_waiting_us
from frazil.commit.stream_tables import StreamTables
from frazil.errors import CommitUnavailable, RolledBack, SpecError, TableLost
from frazil.partitions.completeness import (
    MAX_WINDOWS,
    Cursor,
    Feed,
    WindowDecision,
    complete_until_us,
    decide_windows,
    never_signalled_text,
    slowest_partition,
    waiting_text,
)
from frazil.partitions.window_rows import count_rows, earliest_us
from frazil.partitions.windows import Grain, Window, microseconds, windows_between
from frazil.signals.signal_table import Append, Signal, SignalState, TableSignals, append_signals
from frazil.spec.model import StreamSpec
from frazil.spec.routed_stream import RoutedStream, never_complete_message, partitions_dag_of
from frazil.spec.units import format_count
from frazil.table.branches import head_of, summary_value
from frazil.table.catalogs import find_table, open_existing_catalog, translate_catalog_errors
from frazil.table.declared_tables import list_matching_names, load_route_tables
from frazil.table.lost_tables import find_lost_table
from frazil.table.parallel import run_in_parallel

log = logging.getLogger(__name__)

MAX_SIGNAL_DELAY_US = timedelta(minutes=5) // timedelta(microseconds=1)
"""How far (us) the watermark may be past an unsignalled window's end. A DAG checks this every minute."""


@dataclass(frozen=True, slots=True)
class GateOutcome:
    passed: bool
    note: str | None = None


RunGates = Callable[["Assessment", Sequence[Window]], Mapping[Window, GateOutcome]]
"""Runs the gate on windows with rows, in the table's current snapshot. Called at most once per assessment."""


@dataclass(frozen=True, slots=True)
class Assessment:
    """A table, its feeds and its signals, as read at one time, and the decision about which windows to signal."""

    table: Table
    specs: tuple[StreamSpec, ...]
    grain: Grain
    feeds: tuple[Feed, ...]
    signals: TableSignals
    decision: WindowDecision

    @property
    def cursor(self) -> Cursor | None:
        """The cursor after this decision; the existing cursor if the decision has none."""
        decision, current = self.decision, self.signals.cursor
        head = head_of(self.table.metadata)
        if decision.from_us is None or decision.through_us is None or head is None:
            return current
        held_us = current.held if current and current.grain is self.grain else frozenset()
        uuid = str(self.table.metadata.table_uuid)
        return Cursor(self.grain, decision.from_us, decision.through_us, head.sequence_number or 0, held_us, uuid)

    def describe_delay(self) -> str:
        """Return why waiting DAGs have no event for complete windows; "" if the next check may still send the event."""
        pending, bound_us, cursor = self.decision.complete, complete_until_us(self.feeds), self.signals.cursor
        dag = partitions_dag_of(self.specs[0])
        if pending and bound_us is not None and bound_us - pending[0].end_us >= MAX_SIGNAL_DELAY_US:
            count = (bound_us - pending[0].start_us) // self.grain.us  # `pending` may have reached its limit
            state = "has not run" if cursor is None else "is behind"
            waiting = format_count(count, "complete window", "has no signal yet|have no signal yet")
            return f"{waiting}, the first {pending[0]}: the DAG {dag} {state}"
        if cursor is None and not pending and self.decision.from_us is not None:
            before_ms = clock.now_ms() - MAX_SIGNAL_DELAY_US // 1000
            old = (s for s in self.table.metadata.snapshots if s.timestamp_ms < before_ms)
            if any(summary_value(snapshot, "frazil.watermark-ms") for snapshot in old):  # so a check was due since
                return (
                    f"the DAG {dag} has not run, so the first window is not set: its first run begins with the window "
                    "that is then open. To signal earlier windows, declare complete-from"
                )
        return ""

    @property
    def has_work(self) -> bool:
        """Whether windows can be signalled, or the table's first cursor can be written."""
        return bool(self.decision.windows) or (self.signals.cursor is None and self.cursor is not None)


def assess_table(catalog: Catalog, specs: Sequence[StreamSpec], *, limit: int = MAX_WINDOWS) -> Assessment | None:
    """Assess the table that these declared streams feed, with at most `limit` complete windows.

    Returns None if the table does not exist, or if its windows never complete. Raises SpecError if the table's name
    matches a template, but the template did not create the table. Raises MarkerUnreadable, TableLost, and the errors of
    `translate_catalog_errors`.
    """
    if specs[0].window is None:
        return None
    # The signals come first: if another process signals after this, the append finds the cursor moved.
    signals = TableSignals.load(catalog, specs[0].table.identifier)
    with translate_catalog_errors(catalog.name):
        # The default table comes first: the rows of its batches are in the table that is loaded later, or missing.
        decided = {
            spec.name: DefaultTableProgress.load(catalog, spec) for spec in specs if isinstance(spec, RoutedStream)
        }
        table = find_table(catalog, specs[0].table.identifier)
    if table is None:
        if lost := next(filter(None, map(find_lost_table, specs)), None):
            raise TableLost(lost)
        return None
    identity = specs[0].table.identifier, table.properties
    created = [spec for spec in specs if not isinstance(spec, RoutedStream) or spec.sinks.owns(*identity)]
    if not created:
        raise SpecError(f"{specs[0].name} did not create {signals.table}, so the table's windows are not signalled")
    return _assess(table, created, signals, limit=limit, decided=decided)


def assess_group(
    catalog: Catalog, spec: RoutedStream, *, limit: int = MAX_WINDOWS, reopened: bool = True
) -> list[Assessment]:
    """Assess the tables that a route's template created, except tables that the declaration names.

    Without `reopened`, does not search for late rows, and loads only tables that may have a complete window. Logs and
    omits an unreadable table. If no table is readable, raises the error of one table.
    """
    sinks = spec.sinks
    assert spec.window is not None  # `route.complete` has the template only if the stream has windows
    grain = Grain(spec.window)
    signals = TableSignals.load(catalog, spec.table.identifier)
    with translate_catalog_errors(catalog.name):
        decided = {spec.name: DefaultTableProgress.load(catalog, spec)}  # first, as in `assess_table`
        bound_us = decided[spec.name].feed(spec).complete_until_us
        excluded = {*sinks.named_tables, sinks.default_table, sinks.dead_letter_table}
        excluded.update(spec.route.complete if spec.route else ())
        group = {name: signals.for_table(name) for name in list_matching_names(catalog, sinks) if name not in excluded}

        def may_signal(cursor: Cursor | None) -> bool:
            if bound_us is None or cursor is None or cursor.grain is not grain:
                return bound_us is not None
            return cursor.through_us + grain.us <= bound_us

        names = [name for name, its in group.items() if reopened or may_signal(its.cursor)]
        has_begun = any(its.cursor is not None for its in group.values())
        share = max(limit // max(len(names), 1), 1)

    def assess_one(name: str) -> Assessment | Exception | None:
        try:
            table = load_route_tables(catalog, sinks, names=[name]).get(name)
            if table is None:
                return None
            begin_us = None
            if has_begun and group[name].cursor is None and bound_us is not None:
                # Begin with the window of the table's first rows, but at most MAX_WINDOWS ago.
                open_us, first_us = grain.floor(bound_us), earliest_us(table, column=spec.event_time.column)
                begin_us = open_us if first_us is None else min(grain.floor(first_us), open_us)
                begin_us = max(begin_us, open_us - MAX_WINDOWS * grain.us)
            return _assess(table, [spec.for_member(name)], group[name], limit=share, decided=decided, begin_us=begin_us)
        except Exception as error:  # whatever a catalog or storage raises: the others are still signalled
            log.exception("%s: cannot read its windows", name)
            return error

    results = run_in_parallel(assess_one, names)
    assessments = [each for each in results if isinstance(each, Assessment)]
    if not assessments and (errors := [each for each in results if isinstance(each, Exception)]):
        raise errors[0]
    passed = accumulate(len(each.decision.windows) for each in assessments)
    return [each for each, windows in zip(assessments, passed, strict=True) if windows <= limit] or assessments[:1]


def _assess(  # noqa: PLR0913 - what was loaded, and how much to decide
    table: Table,
    specs: Sequence[StreamSpec],
    signals: TableSignals,
    *,
    limit: int,
    decided: Mapping[str, DefaultTableProgress],
    begin_us: int | None = None,
) -> Assessment:
    """Assess a loaded table. `begin_us` is the first window to signal, unless `complete-from` is declared."""
    spec = specs[0]
    grain, name = Grain(spec.window or ""), spec.signal_name
    group = name if name != spec.table.identifier else None
    if group != signals.group:
        signals = dataclasses.replace(signals, group=group, since=signals.number)
    feeds = find_feeds(table, specs, decided)
    cursor = _cursor_for(signals.cursor, table)
    if _is_behind(table, cursor):
        behind = WindowDecision((), {}, None, None, _behind_message(spec.table.identifier))
        return Assessment(table, tuple(specs), grain, feeds, signals, behind)
    with translate_catalog_errors(table.catalog.name):
        late = late_rows(table, cursor, column=spec.event_time.column, grain=grain)
    begin_us = begin_us if spec.complete_from is None else microseconds(spec.complete_from)
    decision = decide_windows(feeds, cursor, late, grain=grain, complete_from_us=begin_us, limit=limit)
    return Assessment(table, tuple(specs), grain, feeds, signals, decision)


def _behind_message(table: str) -> str:
    return f"the catalog returned an older state of {table} than the one already signalled; try again"


def _cursor_for(cursor: Cursor | None, table: Table) -> Cursor | None:
    if cursor is None or cursor.table_uuid in {None, str(table.metadata.table_uuid)}:
        return cursor
    return dataclasses.replace(cursor, sequence_number=0)


def _is_behind(table: Table, cursor: Cursor | None) -> bool:
    """Return whether a caching catalog returned an older state of the table than the state that signals cover."""
    metadata = table.metadata
    if cursor is None or cursor.table_uuid != str(metadata.table_uuid):
        return False
    return metadata.next_sequence_number() <= cursor.sequence_number


def find_feeds(
    table: Table, specs: Iterable[StreamSpec], decided: Mapping[str, DefaultTableProgress] | None = None
) -> tuple[Feed, ...]:
    """Return the state of each stream that has a marker in the table or is declared. Loads `decided` unless given."""
    declared = {spec.name: spec for spec in specs}
    markers = read_markers(table.metadata.properties)
    return tuple(
        _find_feed(table, stream, declared.get(stream), markers.get(stream), decided or {})
        for stream in sorted({*declared, *markers})
    )


def _find_feed(
    table: Table,
    stream: str,
    spec: StreamSpec | None,
    marker: Marker | None,
    decided: Mapping[str, DefaultTableProgress],
) -> Feed:
    """Return the state of one stream. Its watermark is None if the stream's position cannot be trusted."""
    if spec is None:
        problem = f"no valid file declares the stream: fix its file, or run `frazil forget {stream}`"
        return Feed(stream, None, problem=problem)
    lateness_us = spec.lateness // timedelta(microseconds=1)
    if marker is None:
        return Feed(stream, None, lateness_us)
    try:
        check_ancestry(table.metadata, marker, table=spec.table.identifier)
    except RolledBack as error:
        return Feed(stream, None, lateness_us, problem=str(error))
    if isinstance(spec, RoutedStream):
        return _find_routed_feed(spec, marker, decided.get(stream) or DefaultTableProgress.load(table.catalog, spec))
    return _trusted_feed(spec, marker, earliest_waiting_us(table, stream, column=spec.event_time.column))


def _trusted_feed(spec: StreamSpec, marker: Marker, waiting_us: int | None = None) -> Feed:
    offsets = keep_topics(marker.offsets, spec.source.reads)
    holder = slowest_partition(marker.max_event_times_us, partitions=offsets, idle=marker.idle)
    lateness_us = spec.lateness // timedelta(microseconds=1)
    return Feed(spec.name, marker.watermark_us, lateness_us, holder, waiting_us=waiting_us)


def signal_windows(
    catalog: Catalog, *assessments: Assessment, clock_ms: int, gates: RunGates | None = None
) -> tuple[Signal, ...]:
    """Append the windows to `frazil.signals`. Returns an empty tuple if another process was faster."""
    appends = [append for each in assessments if (append := _append(each, clock_ms=clock_ms, gates=gates)) is not None]
    if not appends or not append_signals(catalog, *appends, clock_ms=clock_ms):
        return ()
    return tuple(signal for append in appends for signal in append.signals)


def _append(seen: Assessment, *, clock_ms: int, gates: RunGates | None) -> Append | None:
    cursor = seen.cursor
    head = head_of(seen.table.metadata)
    if cursor is None or head is None or not seen.has_work:
        return None
    windows = seen.decision.windows
    rows = count_rows(seen.table, windows, column=seen.specs[0].event_time.column, snapshot_id=head.snapshot_id)
    filled = [window for window in windows if rows[window]]
    gate_results = gates(seen, filled) if gates and filled else {}
    revisions, rejected = _next_revisions(seen), _count_rejected(seen)
    signals = [
        Signal(
            table=seen.signals.table,
            partition=window.key,
            start_us=window.start_us,
            end_us=window.end_us,
            revision=revisions.get(window, 1),
            state=SignalState.COMPLETE if gate.passed else SignalState.HELD,
            rows=rows[window],
            dead_letters=rejected,
            late_rows=seen.decision.again.get(window, 0),
            watermark_us=complete_until_us(seen.feeds) or 0,
            snapshot_id=head.snapshot_id,
            sequence_number=head.sequence_number or 0,
            signalled_at_ms=clock_ms,
            note=gate.note,
        )
        for window in windows
        for gate in [gate_results.get(window, GateOutcome(passed=True))]
    ]
    held_us = (cursor.held - {s.start_us for s in signals}) | {s.start_us for s in signals if not s.sent}
    moved = dataclasses.replace(cursor, held=held_us)
    return Append(seen.signals, signals, moved)


def _next_revisions(seen: Assessment) -> dict[Window, int]:
    """Return the next revision of each reopened window. If the last revision was not sent, it is used again."""
    reopened = seen.decision.again
    if not reopened:
        return {}
    last = seen.signals.newest(from_us=min(reopened).start_us, to_us=max(reopened).end_us)
    return {w: last[w].revision + last[w].sent for w in reopened if w in last}


def _count_rejected(seen: Assessment) -> int:
    cursor = _cursor_for(seen.signals.cursor, seen.table)
    if cursor is None:
        return 0
    counts = (summary_value(s, "frazil.rejected") for s in commits_after(seen.table.metadata, cursor.sequence_number))
    return sum(int(count or 0) for count in counts)


def release_window(catalog: Catalog, spec: StreamSpec, window: Window, *, note: str, clock_ms: int) -> Signal:
    """Signal a window that its gate holds, with its current row count. Raises SpecError if it is not held."""
    table = spec.table.identifier
    while True:
        signals = TableSignals.load(catalog, table)
        cursor = signals.cursor
        signal = signals.newest(from_us=window.start_us, to_us=window.end_us).get(window)
        with translate_catalog_errors(catalog.name):
            reloaded = catalog.load_table(table)
        head = head_of(reloaded.metadata)
        if cursor is None or signal is None or signal.sent or head is None:
            raise SpecError(
                f"window {window} of {table} is not held by a gate: `frazil partitions {table}` lists the held windows"
            )
        if _is_behind(reloaded, cursor):
            raise CommitUnavailable(_behind_message(table))
        rows = count_rows(reloaded, [window], column=spec.event_time.column, snapshot_id=head.snapshot_id)
        freed = dataclasses.replace(
            signal,
            state=SignalState.RELEASED,
            rows=rows[window],
            snapshot_id=head.snapshot_id,
            sequence_number=head.sequence_number or 0,
            note=note,
            signalled_at_ms=clock_ms,
        )
        moved = dataclasses.replace(cursor, held=cursor.held - {window.start_us})
        if append_signals(catalog, Append(signals, [freed], moved), clock_ms=clock_ms):
            return freed


def resend_signals(
    catalog: Catalog, table: str, windows: Sequence[Window], *, note: str, clock_ms: int
) -> tuple[Signal, ...]:
    """Signal windows again at their current revision. Raises SpecError for a window that is held or has no signal."""
    while True:
        signals = TableSignals.load(catalog, table)
        newest = signals.newest(from_us=min(windows).start_us, to_us=max(windows).end_us)
        missing = [w.key for w in windows if w not in newest or not newest[w].sent]
        if missing or signals.cursor is None:
            reason = never_signalled_text(min(windows), signals.cursor)
            remedy = f"`frazil partitions {table}` shows what the next window waits for"
            raise SpecError(
                f"cannot send windows of {table} again that were never signalled: {', '.join(missing)}. "
                + (f"For {min(windows)}, {reason}" if reason else remedy)
            )
        resent = [
            dataclasses.replace(newest[w], state=SignalState.AGAIN, note=note, signalled_at_ms=clock_ms)
            for w in sorted(windows)
        ]
        if append_signals(catalog, Append(signals, resent, signals.cursor), clock_ms=clock_ms):
            return tuple(resent)


@dataclass(frozen=True)
class DefaultTableProgress:
    """The batches in a stream's default table. Their files for routed tables no longer change."""

    table: Table | None = None
    marker: Marker | None = None
    problem: str | None = None
    """Why the default table's watermark cannot be used."""

    @classmethod
    def load(cls, catalog: Catalog, spec: RoutedStream) -> DefaultTableProgress:
        """Load the default table. Raises MarkerUnreadable, and the errors of catalog and storage."""
        try:
            table = catalog.load_table(spec.default_table)
            marker = read_marker(table.properties, spec.name)
            if marker is None:
                return cls(problem=f"its default table {spec.default_table} has no marker")
            check_ancestry(table.metadata, marker, table=spec.default_table)
        except NoSuchTableError:
            return cls(problem=f"its default table {spec.default_table} does not exist")
        except RolledBack as error:
            return cls(problem=str(error))
        return cls(table, marker)

    @cached_property
    def _unfinished(self) -> tuple[Journal, ...]:
        """The journals of batches that routed tables may be missing, read once for all tables."""
        if self.table is None or self.marker is None:
            return ()
        tables = StreamTables.open(self.marker.stream, {"main": self.table}, clock_ms=clock.now_ms)
        return tuple(decided_journals(tables, self.marker))

    def first_missing(self, target: str, marker: Marker) -> BatchKey | None:
        """Return the first batch that a routed table with this marker is missing."""
        if self.marker is None or self.marker.routed in {None, self.marker.settled}:
            return None
        if marker.settled is not None and (self.marker.settled is None or marker.settled >= self.marker.settled):
            return None
        waiting = [journal for journal in self._unfinished if target in journal.routed]
        return min((journal.key for journal in later_journals(marker, waiting)), default=None)

    def feed(self, spec: StreamSpec) -> Feed:
        if self.marker is None:
            return Feed(spec.name, None, spec.lateness // timedelta(microseconds=1), problem=self.problem)
        return _trusted_feed(spec, self.marker)


def _find_routed_feed(spec: RoutedStream, marker: Marker, decided: DefaultTableProgress) -> Feed:
    stream, feed, first = spec.name, decided.feed(spec), decided.first_missing(spec.table.identifier, marker)
    if decided.table is None or first is None:
        return feed
    problem = f"{spec.table.identifier} is missing rows from batch {first} on: `frazil route {stream}` shows why"
    commits = commit_records(decided.table.metadata, stream)
    earlier = (snapshot for snapshot, path in commits if (key := parse_key(path)) is not None and key < first)
    watermark_ms = summary_value(next(earlier, None), "frazil.watermark-ms")
    before_us = int(watermark_ms) * 1000 if watermark_ms else None
    return Feed(stream, before_us, feed.lateness_us, problem=None if before_us is not None else problem)


@dataclass(frozen=True, slots=True)
class WindowStatus:
    signals: tuple[Signal, ...]
    waits_for: str
    """Why some signals were not sent yet; empty if all were sent."""
    never: bool = False
    """Whether the window is before the first signalled window."""


def load_window_status(specs: Sequence[StreamSpec], key: str) -> WindowStatus:
    """Return the status of an hour, or of a day with its hours. Raises the errors of `assess_table`."""
    table = specs[0].table.identifier
    window = _parse_window(key, specs[0])
    assessment = assess_table(open_existing_catalog(specs[0].table.catalog), specs)
    if assessment is None:
        return WindowStatus((), f"the table {table} does not exist yet: its writer has not committed")
    cursor = assessment.signals.cursor
    if reason := never_signalled_text(window, cursor):
        return WindowStatus((), f"{key} of {table}: {reason} (`complete-from`)", never=True)
    windows = tuple(windows_between(assessment.grain, window.start_us, window.end_us))
    newest = assessment.signals.newest(from_us=window.start_us, to_us=window.end_us)
    unsent = [w for w in windows if w not in newest or not newest[w].sent]
    if not unsent:
        return WindowStatus(tuple(newest[w] for w in windows), "")
    first, last = unsent[0], newest.get(unsent[0])
    if last is not None:
        return WindowStatus((), f"{first} is held by its quality gate: {last.note}")
    return WindowStatus((), f"{first} waits: {waiting_text(assessment.feeds, first)}")


def _parse_window(key: str, spec: StreamSpec) -> Window:
    try:
        window = Window.parse(key)
    except ValueError as error:
        raise SpecError(f"partition {error}") from error
    if spec.window is None:
        raise SpecError(never_complete_message(spec))
    if window.grain is Grain.HOUR and spec.window == "day":
        raise SpecError(f"partition {key!r} is an hour, but the windows of {spec.table.identifier} are days")
    return window
