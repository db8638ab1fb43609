"""Alert rules of a stream; `frazil.maintenance.alerts` has the rules of its table. Pure, except
`read_window_rules`. Rules about events, such as `restarts`, have no hold time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import islice

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from frazil.aggregate.day_input import WaitingDay
from frazil.commit.journal import JournalStore
from frazil.host.heartbeat import StallKind
from frazil.maintenance.alerts import Reading
from frazil.partitions.completeness import feeds_behind, waiting_text
from frazil.partitions.windows import Grain, Window, microseconds
from frazil.signals.completion import find_feeds
from frazil.signals.signal_table import TableSignals
from frazil.spec.maintenance import Alerts
from frazil.spec.model import StreamSpec
from frazil.spec.routed_stream import RoutedStream, is_template_view
from frazil.spec.units import format_count, format_duration
from frazil.status.derive import OUTAGES
from frazil.status.recent_commits import HOUR_MS, MIN_RECORDS, RecentCommits
from frazil.status.state import State, StreamState
from frazil.table.catalogs import find_table
from frazil.table.declared_tables import list_matching_names
from frazil.table.lost_tables import open_stream_catalog
from frazil.timetext import format_elapsed, format_utc

MIN_BAD_RECORDS = 10
"""A percentage needs this many bad records if there are fewer than `MIN_RECORDS` records."""
MIN_SMALL_SAMPLE_PERCENT = 50
"""The threshold is at least this percentage if there are fewer than `MIN_RECORDS` records."""
MAX_LISTED = 5
"""Maximum number of windows or days in a message."""
RULES_FROM_TABLE = ("table", "waiting-batches", "dead-letters", "stale-changes")
RULES_FROM_RUN_FOLDER = ("restarts", "registry", "stall")


@dataclass(frozen=True, slots=True)
class IncompleteWindow:
    """A table's first window without a signal. It is late only if it is also due."""

    window: str
    due_ms: int
    """The window's end plus the largest lateness; before the first signal, at least the first commit."""
    waits_for: str
    """What the window waits for, as text; "" if it is not due yet."""
    is_history: bool = False
    """Whether the window ended before the table's first commit, as with old records."""


def evaluate_stream_rules(state: StreamState, alerts: Alerts, *, now_ms: int) -> tuple[Reading, ...]:
    """Return the readings of all rules of a stream, unless alerts are off."""
    if not alerts.enabled:
        return ()
    unread = RULES_FROM_TABLE if state.table_exists is None else ()
    unknown = {*unread, *(RULES_FROM_RUN_FOLDER if state.writer.state == "unknown" else ())}
    readings = _stream_readings(state, alerts, now_ms)
    text = f"of stream {state.name} was active when it was last measured; its value is unknown now"
    return tuple(
        replace(r, value=None, shown="unknown", sentence=f"{r.rule} {text}", is_unreadable=True)
        if r.rule in unknown
        else r
        for r in readings
    )


def _stream_readings(state: StreamState, alerts: Alerts, now_ms: int) -> Iterator[Reading]:
    name, hold_ms = state.name, min(alerts.stall, alerts.hold) // timedelta(milliseconds=1)
    sentence = (
        f"the declaration of stream {name} is broken, or conflicts with another stream's. A running writer and the "
        "DAGs continue unchanged, but a new writer may be refused. Correct the files that the problem names, and check "
        f"them with `frazil validate`: {state.problem}"
    )
    yield boolean_reading("declaration", state.problem is not None, sentence)
    yield boolean_reading("table", state.missing is not None, f"stream {name}: {state.missing}")
    yield _unmeasured_reading(state, hold_ms)
    yield _writer_reading(state, alerts, now_ms)
    waits = state.registry or state.state is State.REGISTRY_UNREACHABLE
    cause = state.last_words if state.registry else f"{state.sentence}."
    sentence = (
        f"stream {name} waits for its schema registry, and cannot decode records until then. {cause} "
        "`frazil validate --connect` shows whether the registry answers. Once it does, the writer continues "
        "automatically, and nothing is lost"
    )
    value = "the schema registry does not answer" if waits else "no writer waits for a schema registry"
    yield Reading("registry", int(waits), 0, value, sentence, hold_ms=hold_ms)
    yield _stall_reading(state, alerts, hold_ms)
    yield from _batch_readings(state, alerts)


def _batch_readings(state: StreamState, alerts: Alerts) -> Iterator[Reading]:
    name, status = state.name, f"`frazil status {state.name}`"
    sentence = (
        f"the writer of stream {name} ended {state.crashes} times in a row without a commit, so a restart does not "
        f"help. {state.last_words} {status} and its writer.log have details"
    )
    value = f"{format_count(state.crashes, 'start')} without a commit"
    # A service that does not answer is reported by the rule `stall` or `registry`.
    crashes = 0 if state.unreachable_since_ms is not None else state.crashes
    yield Reading("restarts", crashes, alerts.restarts, value, sentence, hold_ms=0)
    waiting, commits = state.waiting_batches or 0, state.recent_commits or RecentCommits(None, (), 0)
    total, period = commits.measured, "hour" if commits.measured_ms == HOUR_MS else format_elapsed(commits.measured_ms)
    sentence = (
        f"{format_count(waiting, 'batch')} of stream {name} {'is' if waiting == 1 else 'are'} staged, but not "
        f"committed to {state.table}: the catalog refuses the commit, or no writer runs. {status} shows which"
    )
    value = f"{format_count(waiting, 'batch', 'waits for its|wait for their')} commit"
    yield Reading("waiting-batches", state.waiting_batches, alerts.waiting_batches, value, sentence)
    replayed = format_count(total.replayed, "dead letter", "was|were")
    remedy = (
        f"Within this time, {replayed} replayed into the table: `frazil dlq list {name}` counts those that are left"
        if total.replayed
        else "The dead-letter table has each reason in error_class. Correct the producer, or the declared schema"
    )
    sentence = (
        f"{total.rejected:,} of the {total.records:,} records that stream {name} committed within the last {period} "
        f"{'became' if total.replayed else 'are'} dead letters. {remedy}"
    )
    value = _share_text(total.rejected, total.records)
    share = _share_and_threshold(total.rejected, total.records, alerts.dead_letters)
    yield Reading("dead-letters", *share, value, sentence)
    sentence = (
        f"{total.stale:,} of the {total.records:,} records that stream {name} committed within the last {period} were "
        f"dropped, because the rows of {state.table} have newer values of order-by. The source's log may have been "
        "recreated, its clock may be behind, or a producer sends old records again. `frazil audit` uses the same "
        "order, so compare the rows with the source database itself"
    )
    value = _share_text(total.stale, total.records)
    share = _share_and_threshold(total.stale, total.records, alerts.stale_changes)
    yield Reading("stale-changes", *share, value, sentence)
    if alerts.dead_letters_per_minute is not None:
        yield from _rate_readings(state.name, commits, alerts.dead_letters_per_minute)


def _share_and_threshold(count: int, records: int, limit: float) -> tuple[float | None, float]:
    """Return a percentage (None for too few records), and the threshold that applies to it."""
    share = 100 * count / max(records, 1)
    if records >= MIN_RECORDS or not count:
        return share, limit
    return share if count >= MIN_BAD_RECORDS else None, max(limit, MIN_SMALL_SAMPLE_PERCENT)


def _share_text(count: int, records: int) -> str:
    return f"{100 * count / max(records, 1):.1f} % of {format_count(records, 'record')}"


def _rate_readings(name: str, commits: RecentCommits, limit: int) -> Iterator[Reading]:
    """Yield one reading per error class. These readings have no hold time."""
    for reason, rejected in sorted(commits.recent_reasons.items()):
        a_minute, share = rejected.count / commits.recent_minutes, 100 * rejected.count / max(commits.recent.records, 1)
        minutes = format_count(round(commits.recent_minutes), "minute")
        count_text = f"{rejected.count:,} in {minutes}, {share:.1f} % of the records"
        examples = f". Examples: {', '.join(rejected.coordinates)}" if rejected.coordinates else ""
        sentence = (
            f"stream {name} produces {a_minute:,.0f} {reason} dead letters a minute, more than {limit:,}: {count_text} "
            f"that it committed{examples}. `frazil dlq show {name} --reason {reason}` shows them"
        )
        yield Reading(f"dead-letters:{reason}", a_minute, limit, count_text, sentence, hold_ms=0)


def _writer_reading(state: StreamState, alerts: Alerts, now_ms: int) -> Reading:
    name, down_s = state.name, _down_time_s(state, now_ms)
    if state.given_up and down_s:
        sentence = (
            f"stream {name} has no writer, and its supervisor gave up: {state.given_up}. `frazil status {name}` shows "
            f"details. Fix the cause, then run `frazil resume {name}`. `frazil pause {name}` ends the alert"
        )
        return boolean_reading("writer", True, sentence, "the supervisor gave up")
    if state.needs_operator and state.desired != "paused":
        sentence = (
            f"stream {name} is stopped: {state.sentence}. No writer starts until the cause is fixed; "
            f"`frazil pause {name}` ends the alert"
        )
        return boolean_reading("writer", True, sentence, f"stopped: {state.writer.exit_name}")
    if down_s != math.inf:
        condition = f"has run for {format_elapsed(int((down_s or 0) * 1000))}"
    elif state.writer.has_ended:
        condition = "runs, and the reason why the last one ended is unknown"
    else:
        condition = "has ever run on this host"
    last_words = f" {state.last_words}" if state.last_words else ""
    supervisor_text = (
        f"If Airflow supervises it, its DAG frazil_writer_{name} must be unpaused, and a triggerer must run. "
        f"`frazil resume {name}` makes the supervisor try again; "
    )
    sentence = (
        f"stream {name} should run, but no writer {condition}.{last_words} `frazil status {name}` shows details. "
        f"`frazil run {name}` starts one in a terminal. "
        f"{'' if state.writer.only_users_start else supervisor_text}"
        f"`frazil pause {name}` ends the alert"
    )
    value = "a writer runs, or the stream is paused" if not down_s else f"no writer {condition}"
    down_s = 0 if state.unreachable_since_ms is not None else down_s
    # Without a known end, the time without a writer is the alert's own; a new stream has time for its first start.
    unknown = alerts.writer_down if state.writer.has_ended else alerts.hold
    hold_ms = unknown // timedelta(milliseconds=1) if down_s == math.inf else 0
    return Reading("writer", down_s, alerts.writer_down.total_seconds(), value, sentence, hold_ms=hold_ms)


def _unmeasured_reading(state: StreamState, hold_ms: int) -> Reading:
    if state.writer.state == "unknown":
        sentence = (
            f"the run folder of stream {state.name} cannot be read, so no alert about its writer can fire: "
            f"{next(iter(state.problems), 'unknown')}"
        )
        return Reading("unmeasured", 1, 0, "its run folder cannot be read", sentence)
    if state.state is State.TABLE_UNREADABLE and not _is_stalled(state):
        return Reading("unmeasured", 1, 0, str(state.state), f"stream {state.name}: {state.sentence}", hold_ms=hold_ms)
    return Reading("unmeasured", 0, 0, "its run folder was read", "")


def _is_stalled(state: StreamState) -> bool:
    """Whether a service's outage stalls the stream. An unreadable table counts only with a writer on this host."""
    outage = state.state in OUTAGES - {State.REGISTRY_UNREACHABLE}
    return outage or (state.state is State.TABLE_UNREADABLE and state.writer.pid is not None)


def _stall_reading(state: StreamState, alerts: Alerts, hold_ms: int) -> Reading:
    stall, name = state.stall, state.name
    if _is_stalled(state):
        return Reading("stall", 1, 0, str(state.state), f"stream {name}: {state.sentence}", hold_ms=hold_ms)
    if stall is None:
        return Reading("stall", 0, 0, "the writer is not stalled", "")
    # A watermark may advance again by itself once a topic-partition becomes idle, and rows are still written.
    hold_ms = alerts.hold // timedelta(milliseconds=1) if stall.kind is StallKind.WATERMARK else hold_ms
    value = f"stalled ({stall.kind}) since {format_utc(stall.since_ms)}"
    return Reading("stall", 1, 0, value, f"the writer of stream {name} is stalled: {stall.failure}", hold_ms=hold_ms)


def _down_time_s(state: StreamState, now_ms: int) -> float | None:
    """Return the time (s) without a writer: 0 for a paused stream, None if unknown, infinite if given up."""
    ended_at_ms = state.writer.ended_at_ms
    if state.alive or state.desired == "paused":
        return 0
    if state.given_up:
        return math.inf
    if state.desired is None or state.alive is None:
        return None
    return math.inf if ended_at_ms is None else max(now_ms - ended_at_ms, 0) / 1000


def held_reading(table: str, windows: Sequence[tuple[str, str]], alerts: Alerts) -> tuple[Reading, ...]:
    """Return the reading of the rule `windows`, for windows whose quality gate failed, unless alerts are off."""
    if not alerts.enabled:
        return ()
    first, finding = next(iter(windows), ("KEY", ""))
    return (
        boolean_reading(
            "held",
            bool(windows),
            f"{table}: quality gates hold back {format_count(len(windows), 'window')}, the first {first}: {finding}. "
            "Correct the data: windows with late rows are checked again. Or release the windows with the DAG "
            f"frazil_release, or `frazil partitions {table} --release {first} --reason 'why'`",
            f"{format_count(len(windows), 'window')} held" + (f", the first is {first}" if windows else ""),
        ),
    )


def audit_reading(name: str, findings: str | None, last: str | None = None) -> Reading:
    """Return the reading of the rule `audit`. `findings` describes uncleared findings, `last` the last audit."""
    sentence = (
        f"{(findings or '').rstrip('.')}. Before you delete anything, find out whether rows are missing or duplicated: "
        f"`frazil audit {name} --source`"
    )
    value = "an audit found something" if findings else f"the last audit, {last}" if last else "no audit has run"
    return boolean_reading("audit", findings is not None, sentence, value)


def window_reading(late: IncompleteWindow | None, alerts: Alerts, *, table: str, now_ms: int) -> Reading:
    """Return the reading of the rule `late-window`; `late` is None without signals."""
    late_s = max(now_ms - late.due_ms, 0) / 1000 if late else 0
    value = None if late and late.is_history else late_s
    lateness = (
        f"{late.window} has been due for {format_elapsed(int(late_s * 1000))}"
        if late and late_s
        else "no window is due"
    )
    sentence = (
        f"{table}: {lateness}, but is not signalled, so jobs that wait for it do not start: "
        f"{late.waits_for if late else ''}. `frazil partitions {table}` shows the current state. A topic-partition "
        "without new records becomes idle after `idle-timeout`; run `frazil forget` for a stream that no longer runs"
    )
    return Reading("late-window", value, alerts.late_window.total_seconds(), lateness, sentence)


def aggregation_reading(name: str, target: str, late: Sequence[WaitingDay], within: timedelta) -> Reading:
    """Return the reading of the rule `aggregation`. `late` days are complete, but were not aggregated `within` this
    time.
    """
    listed = [f"{late_day.day} (complete since {format_utc(late_day.since_ms)})" for late_day in late[:MAX_LISTED]]
    days = ", ".join(listed) + _more_text(len(late))
    sentence = (
        f"{target} is missing {days}: signalled as complete for more than {format_duration(within)}, but not "
        f"aggregated by {name}. Unpause the DAGs frazil_reconcile_{name}, which requests such days, and "
        f"frazil_daily_{name}; clear their failed tasks. Or trigger frazil_daily_{name} with the day as the partition "
        "key"
    )
    return boolean_reading(f"aggregation:{name}", bool(late), sentence, f"{format_count(len(late), 'day')} late")


def runs_reading(dag_id: str, failed: int | None, limit: int, *, is_paused: bool = False) -> Reading:
    """Return the reading of the rule `runs`: a DAG's consecutive failed runs. A paused DAG is beyond the threshold."""
    if is_paused and (failed or 0) <= limit:
        sentence = f"the DAG {dag_id} is paused in Airflow, so its work is not done: unpause it"
        return Reading(f"runs:{dag_id}", limit + 1, limit, "the DAG is paused", sentence)
    sentence = (
        f"the last {failed} runs of the DAG {dag_id} failed, so its work is not done. The log of the failed task has "
        "the reason; a successful run ends the alert"
    )
    value = "the last run succeeded" if not failed else f"{failed} runs failed in a row"
    if failed is None:
        value, sentence = "unknown", f"the last runs of the DAG {dag_id} are unknown now: Airflow does not respond"
    return Reading(f"runs:{dag_id}", failed, limit, value, sentence)


def boolean_reading(rule: str, is_so: bool, sentence: str, value: str | None = None) -> Reading:
    """Return the reading of a rule that is true or false, without hold time."""
    return Reading(rule, int(is_so), 0, value or ("yes" if is_so else "no"), sentence, hold_ms=0)


def _more_text(count: int) -> str:
    return f" and {count - MAX_LISTED} more" if count > MAX_LISTED else ""


def read_window_rules(table: str, specs: Sequence[StreamSpec], *, now_ms: int) -> Iterator[Reading]:
    """Yield the readings about a table's windows. `specs` are all streams of the table, or of the template `table`."""
    alerts, catalog = specs[0].maintenance.alerts, open_stream_catalog(specs[0])
    signals = TableSignals.load(catalog, table)
    if alerts.enabled:
        behind = _furthest_behind(catalog, specs, signals)
        views = [spec.for_member(behind.table) if is_template_view(spec) else spec for spec in specs]
        late = find_incomplete_window(catalog, views, behind, now_ms=now_ms)
        yield window_reading(late, alerts, table=table, now_ms=now_ms)
    held_windows = [(signals.event_key(s), s.note or "no reason given") for s in signals.held()]
    yield from held_reading(table, held_windows, alerts)


def _furthest_behind(catalog: Catalog, specs: Sequence[StreamSpec], signals: TableSignals) -> TableSignals:
    """Return the signals of the template's table that is furthest behind; for a single table, return `signals`."""
    if not is_template_view(specs[0]):
        return signals
    existing = set(list_matching_names(catalog, specs[0].sinks))
    begun = [member for member in signals.members() if member.table in existing and member.cursor is not None]
    return min(begun, key=lambda member: member.cursor.through_us if member.cursor else 0, default=signals)


def find_incomplete_window(
    catalog: Catalog, specs: Sequence[StreamSpec], signals: TableSignals, *, now_ms: int
) -> IncompleteWindow | None:
    """Return the table's first window without a signal, and what it waits for once it is due. None if unknown."""
    cursor, spec = signals.cursor, specs[0]
    if cursor is not None:
        window = Window.containing(cursor.through_us, cursor.grain)
    elif spec.complete_from is not None and spec.window is not None and not is_template_view(spec):
        window = Window.containing(microseconds(spec.complete_from), Grain(spec.window))
    else:
        return None
    due_ms = (window.end_us + max(int(spec.lateness.total_seconds() * 1_000_000) for spec in specs)) // 1_000
    if due_ms > now_ms:
        return IncompleteWindow(str(window), due_ms, "")
    if (table := find_table(catalog, signals.table)) is None:
        return None
    feeds = find_feeds(table, specs)
    begin_ms = min((snapshot.timestamp_ms for snapshot in table.metadata.snapshots), default=now_ms)
    if cursor is None or window.end_us < begin_ms * 1_000:
        begin_ms = min([begin_ms, *_first_commits_ms(table, specs)])
    is_history = window.end_us < begin_ms * 1_000
    if cursor is None and not feeds_behind(feeds, window):  # it has been late since the table exists, at most
        due_ms, is_history = max(due_ms, begin_ms), False
    return IncompleteWindow(str(window), due_ms, waiting_text(feeds, window), is_history=is_history)


def _first_commits_ms(table: Table, specs: Sequence[StreamSpec]) -> Iterator[int]:
    """Yield the time of each stream's first commit record."""
    for spec in specs:
        if not isinstance(spec, RoutedStream):  # another table has its records, and its own snapshots expire later
            records = JournalStore.of_table(table, spec.name).records(table_uuid=table.metadata.table_uuid)
            yield from (first.created_at_ms for first in islice(records, 1))
