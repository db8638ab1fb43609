"""Evaluates the alert rules of a table. An alert fires after its value has been beyond the threshold for the hold time,
and resolves at 80 % of the threshold. Pure. Each evaluation gets the previous `AlertStates`, a small JSON value, so any
process can run it. Unknown values change nothing. The hold time restarts after a gap that exceeds it and three
measurement intervals.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, field, replace
from datetime import timedelta
from typing import Any, Self

import msgspec

from frazil.maintenance.health import StreamHealth, TableHealth
from frazil.spec.maintenance import Alerts, Maintenance
from frazil.spec.units import format_rounded_bytes
from frazil.status.freshness import freshness_ms, late_message
from frazil.timetext import format_utc
from frazil.typed_json import convert

DEFAULT_RUNBOOK = "docs/runbook.md"
CLEAR_RATIO = 0.8
"""An alert ends at this share of its threshold, which prevents flapping."""

UNMEASURED_RULE = "unmeasured"
NO_LONGER_WATCHED = "no longer watched"
MIN_FILE_DIVISOR = 256
"""Minimum divisor for a manifest list's bytes per data file. Each list has a schema of 4 KiB, even in small tables."""


@dataclass(frozen=True, slots=True)
class Reading:
    rule: str
    """The rule's name, such as `manifests`. A stream's rule also names the stream: `freshness:<stream>`."""
    value: float | None
    threshold: float
    shown: str
    sentence: str
    """What is wrong and what to do, if the value is beyond the threshold."""
    hold_ms: int | None = None
    """How long the value must stay beyond the threshold; None for `maintenance.alerts.hold`."""
    is_unreadable: bool = False
    """Whether the value's source could not be read. Values of rules `<rule>:<subject>` are then unknown, too."""

    @property
    def is_beyond(self) -> bool:
        return self.value is not None and self.value > self.threshold

    @property
    def is_clear(self) -> bool:
        return self.value is not None and self.value <= CLEAR_RATIO * self.threshold


def evaluate_table_rules(health: TableHealth, settings: Maintenance, *, now_ms: int) -> tuple[Reading, ...]:
    """Return the readings of all rules of the table, unless its alerts are off."""
    if not settings.alerts.enabled:
        return ()
    return (
        *_metadata_readings(health, settings),
        *_file_readings(health, settings),
        *_stream_readings(health, settings, now_ms),
    )


def _metadata_readings(health: TableHealth, settings: Maintenance) -> Iterator[Reading]:
    limits, table = settings.alerts, health.table
    rewrite = _remedy(table, "manifests", settings.manifests.enabled, "rewrite_manifests")
    expire = _remedy(table, "expiry", settings.expiry.enabled, "expire_snapshots")
    sizes = f"{format_rounded_bytes(health.manifest_list_bytes)} of manifest list for {health.data_files:,} data files"
    per_file = health.manifest_list_bytes / max(health.data_files, MIN_FILE_DIVISOR)
    sentence = f"{table} has {sizes}: every query reads all of it during planning. {rewrite}"
    yield Reading("manifest-list", per_file, limits.manifest_list_bytes_per_file, sizes, sentence)
    sentence = f"{table} has {health.manifests:,} manifests; each query opens them during planning. {rewrite}"
    yield Reading("manifests", health.manifests, limits.manifests, f"{health.manifests:,} manifests", sentence)
    oldest = f"the oldest from {format_utc(health.oldest_snapshot_at_ms)}"
    sentence = f"{table} has {health.snapshots:,} snapshots, {oldest}: they slow down every commit. {expire}"
    yield Reading("snapshots", health.snapshots, limits.snapshots, f"{health.snapshots:,} snapshots", sentence)
    size = format_rounded_bytes(health.metadata_bytes)
    sentence = (
        f"{table} has a metadata.json of {size}, which every commit reads and writes. Most of it describes the "
        f"{health.snapshots:,} snapshots. {expire}"
    )
    yield Reading("metadata", health.metadata_bytes, limits.metadata_bytes, f"{size} of metadata.json", sentence)


def _file_readings(health: TableHealth, settings: Maintenance) -> Iterator[Reading]:
    limits, table = settings.alerts, health.table
    compact = _remedy(table, "compaction", settings.compaction.enabled, "rewrite_data_files")
    average = format_rounded_bytes(health.average_file_bytes)
    sentence = (
        f"{table} has {health.data_files:,} data files of {average} on average; the target is "
        f"{format_rounded_bytes(health.target_file_bytes)}, and queries open each file. {compact}. If each partition "
        "has few bytes, declare a coarser partition-by"
    )
    value = f"{health.data_files:,} data files of {average} on average"
    yield Reading("small-files", _count_small_files(health, limits.small_files), limits.small_files, value, sentence)
    yield from _delete_readings(health, limits, compact)
    if settings.compaction.enabled:
        added = format_rounded_bytes(health.bytes_since_compaction)
        last = health.last_compaction_at_ms
        verb, since_text = "has", "without a compaction in its history"
        if last:
            verb, since_text = "has received", f"since the last compaction, at {format_utc(last)}"
        sentence = f"{table} {verb} {added} in {health.files_since_compaction:,} files {since_text}. {compact}"
        value = f"{added} not compacted"
        yield Reading("since-compaction", health.bytes_since_compaction, limits.since_compaction, value, sentence)


def _delete_readings(health: TableHealth, limits: Alerts, compact: str) -> Iterator[Reading]:
    table, beyond = health.table, health.delete_files
    origin = "frazil writes no delete files, so another engine wrote them"
    if health.merged:
        beyond = max(beyond - health.data_files, 0)
        origin = "merges leave at most one per data file; the rest belong to removed data files or another engine"
    value = f"{health.delete_files:,} delete files for {health.data_files:,} data files"
    sentence = f"{table} has {value}, which every reader must apply; {origin}. {compact}"
    yield Reading("delete-files", beyond, limits.delete_files, value, sentence)
    sentence = (
        f"{health.deleted_rows:,} rows in data files of {table} ({health.deleted_percent:.1f} %) are deleted, but "
        f"every reader still reads them. {compact}. A stream with `merge: merge-on-read` leaves them to compaction; "
        "`merge: auto` does not"
    )
    value = f"{health.deleted_percent:.1f} % of the rows are deleted"
    yield Reading("deleted-rows", health.deleted_percent, limits.deleted_rows, value, sentence)


def _count_small_files(health: TableHealth, threshold: int) -> float | None:
    """Return the number of files if they are small on average, otherwise 0; None if unknown.

    If the average is near the limit, the returned number neither fires nor resolves the alert.
    """
    if health.data_files and not health.data_bytes:
        return None
    share = health.average_file_bytes / (health.target_file_bytes / 10)
    if share < 1:
        return health.data_files
    return min(health.data_files, threshold) if share * CLEAR_RATIO < 1 else 0


def _stream_readings(health: TableHealth, settings: Maintenance, now_ms: int) -> Iterator[Reading]:
    for stream in health.streams:
        threshold_s = settings.stale_after_ms(stream.longest_interval_ms) / 1000
        age_ms = freshness_ms(stream, now_ms=now_ms)
        value = late_message(stream, age_ms, now_ms=now_ms) if age_ms else "no record waits"
        lag_text = "an unknown number of" if stream.lag is None else f"{stream.lag:,}"
        status = f"`frazil status {stream.name}`"
        sentence = (
            f"stream {stream.name} of {health.table} is late: {value}{_why_unknown(stream)}. {status} shows whether "
            "its writer is paused, and what holds it back"
        )
        unread = stream.lag is None and stream.lag_problem is None
        stale_s = None if age_ms is None or (unread and age_ms > threshold_s * 1000) else age_ms / 1000
        yield Reading(f"freshness:{stream.name}", stale_s, threshold_s, value, sentence, hold_ms=0)
        if settings.alerts.lag is not None:
            sentence = (
                f"stream {stream.name} of {health.table} lags: {lag_text} records wait in Kafka, more than "
                f"{settings.alerts.lag:,}. {status} shows whether it catches up, and how long its batches take. If it "
                "does not, give it more `resources.cores` or topic-partitions"
            )
            value = f"{lag_text} records wait"
            if stream.lag is None:
                value, sentence = "unknown", f"the lag of stream {stream.name} is unknown now: {stream.lag_problem}"
            yield Reading(f"lag:{stream.name}", stream.lag, settings.alerts.lag, value, sentence)
            yield unmeasured_reading(stream.name, f"lag of stream {stream.name}", stream.lag_problem)


def unmeasured_reading(subject: str, label: str, problem: str | None) -> Reading:
    """Return the reading of the rule `unmeasured` for a value that could not be read because of `problem`."""
    value = f"the {label} was read" if problem is None else f"the {label} is unknown"
    sentence = f"the {label} cannot be read, so no alert about it fires: {problem}"
    return Reading(f"{UNMEASURED_RULE}:{subject}", int(problem is not None), 0, value, sentence)


def _why_unknown(stream: StreamHealth) -> str:
    if stream.lag is None and stream.lag_problem is not None:
        return f"; the lag is unknown ({stream.lag_problem.rstrip('.')})"
    return ""


def _remedy(table: str, action: str, is_enabled: bool, procedure: str) -> str:
    if is_enabled:
        return (
            f"`frazil maintain {table} --actions {action}` fixes it now. The DAG frazil_maintenance should have done "
            "this: check its last run"
        )
    return f"`maintenance.{action}` is off for this table: switch it on, or call {procedure} yourself"


def runbook_link(rule: str) -> str:
    return f"{os.environ.get('FRAZIL_RUNBOOK') or DEFAULT_RUNBOOK}#{rule.partition(':')[0]}"


MAX_MISSED_MEASUREMENTS = 3
"""Number of missed measurement intervals after which the hold time restarts."""
DEFAULT_GAP_MS = 300_000
"""Minimum measurement interval (ms) that is assumed."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule's alert about one subject, such as a table or a stream."""

    rule: str
    table: str
    value: str
    """The last measured value, as text."""
    since_ms: int
    """When the value was first beyond the threshold."""
    sentence: str
    """What is wrong and what to do; for a resolved alert, that it has ended."""
    alone: bool = True
    """Whether this alert opens an incident of its own (see `mark_reported_together`)."""

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON, with a link to the runbook's section about the rule."""
        return {**asdict(self), "runbook": runbook_link(self.rule)}


@dataclass(frozen=True, slots=True)
class AlertState:
    """A rule's state while its value is beyond the threshold, or its alert is active."""

    since_ms: int
    active: bool
    """Whether the alert has fired and has not resolved yet."""
    seen_ms: int | None = None
    """When the value was last measured beyond the threshold, before the alert fired."""
    gap_ms: int = 0
    """Time between the last two measurements beyond the threshold."""
    alone: bool = True
    """The value of `Alert.alone`. An alert that was reported alone also ends alone."""


@dataclass(frozen=True, slots=True)
class AlertStates:
    """One subject's states by rule. Rules with normal values have no state."""

    rules: Mapping[str, AlertState] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {rule: list(astuple(state)) for rule, state in sorted(self.rules.items())}

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> Self:
        """Parse stored states. Drops invalid ones."""
        states = {}
        for rule, fields in (value or {}).items():
            with suppress(msgspec.ValidationError):
                states[rule] = AlertState(*convert(fields, tuple[int, bool, int | None, int, bool]))
        return cls(states)


@dataclass(frozen=True, slots=True)
class AlertStep:
    """One measurement's new states, and the alerts that fired, resolved and are active (including `fired`)."""

    states: AlertStates
    fired: tuple[Alert, ...]
    resolved: tuple[Alert, ...]
    active: tuple[Alert, ...]


def evaluate_readings(  # noqa: PLR0913 - keywords, one with a default
    previous: AlertStates,
    subject: str,
    measured: Iterable[Reading] | str,
    alerts: Alerts,
    *,
    now_ms: int,
    unwatched: str = NO_LONGER_WATCHED,
) -> AlertStep:
    """Evaluate the readings of a subject, or the problem that prevented them. After a problem, active alerts stay, and
    `unmeasured` may fire. `unwatched` is the reason why a rule has no reading.
    """
    readings = _unmeasured_readings(previous, subject, measured) if isinstance(measured, str) else measured
    by_rule = {r.rule: r for r in readings} if alerts.enabled else {}
    if by_rule:
        by_rule.setdefault(UNMEASURED_RULE, Reading(UNMEASURED_RULE, 0, 0, "measured again", ""))
    hold_ms = alerts.hold // timedelta(milliseconds=1)
    states: dict[str, AlertState] = {}
    fired, resolved, active = [], [], []
    for rule in sorted(by_rule.keys() | previous.rules.keys()):
        former, reading = previous.rules.get(rule), by_rule.get(rule) or _unknown_reading(by_rule, rule)
        own_ms = hold_ms if reading is None or reading.hold_ms is None else reading.hold_ms
        after = _next_state(former, reading, hold_ms=own_ms, now_ms=now_ms)
        was_active = former is not None and former.active
        if after is not None:
            states[rule] = after
        if reading is not None and after is not None and after.active:
            active.append(Alert(rule, subject, reading.shown, after.since_ms, reading.sentence, after.alone))
            fired += [] if was_active else active[-1:]
        elif former is not None and was_active:
            state = reading.shown if reading is not None else unwatched
            resolved.append(
                Alert(
                    rule, subject, state, former.since_ms, f"{subject}: the alert {rule} is over: {state}", former.alone
                )
            )
    return AlertStep(AlertStates(states), tuple(fired), tuple(resolved), tuple(active))


def _unmeasured_readings(previous: AlertStates, subject: str, problem: str) -> Iterator[Reading]:
    for rule in previous.rules:
        sentence = f"{subject}: {rule} was active when it was last measured"
        yield Reading(rule, None, 0, "unknown", sentence)
    sentence = f"{subject} cannot be measured, so no other alert can fire: {problem}"
    yield Reading(UNMEASURED_RULE, 1, 0, problem, sentence)


def _unknown_reading(by_rule: Mapping[str, Reading], rule: str) -> Reading | None:
    """Return an unknown reading for a rule `<name>:<subject>` if the common source of such rules could not be read."""
    reading = by_rule.get(rule.partition(":")[0])
    if reading is None or not reading.is_unreadable:
        return None
    sentence = f"the alert {rule} was active when it was last measured, and its value is unknown now"
    return replace(reading, rule=rule, sentence=sentence)


def mark_reported_together(steps: Mapping[str, AlertStep], limit: int) -> dict[str, AlertStep]:
    """Return the steps by subject. Alerts that fire after the first `limit` get `alone=False`."""
    fired = [(subject, alert.rule) for subject, step in steps.items() for alert in step.fired]
    together = set(fired[limit:])

    def mark(subject: str, step: AlertStep) -> AlertStep:
        def mark_alert(alert: Alert) -> Alert:
            return replace(alert, alone=alert.alone and (subject, alert.rule) not in together)

        states = {
            rule: replace(state, alone=state.alone and (subject, rule) not in together)
            for rule, state in step.states.rules.items()
        }
        fired, active = (tuple(map(mark_alert, alerts)) for alerts in (step.fired, step.active))
        return AlertStep(AlertStates(states), fired, step.resolved, active)

    return {subject: mark(subject, step) for subject, step in steps.items()}


def _next_state(former: AlertState | None, reading: Reading | None, *, hold_ms: int, now_ms: int) -> AlertState | None:
    if reading is None:
        return None
    if reading.value is None:
        return former
    if former is not None and former.active:
        return None if reading.is_clear else former
    if not reading.is_beyond:
        return None
    if former is None:
        return AlertState(now_ms, active=hold_ms == 0, seen_ms=now_ms)
    gap_ms = max(now_ms - (former.seen_ms or former.since_ms), 0)  # a clock may have been set back
    unseen = gap_ms > max(hold_ms, MAX_MISSED_MEASUREMENTS * max(former.gap_ms, DEFAULT_GAP_MS))
    since_ms = now_ms if unseen else min(former.since_ms, now_ms)
    return AlertState(since_ms, now_ms - since_ms >= hold_ms, now_ms, gap_ms)
