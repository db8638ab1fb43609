"""Generates docs/reference/alerts.md from the rules, with the thresholds, hold times and ends that the code applies.

`python -m tests.alerts_page > docs/reference/alerts.md` updates the page. Each rule is evaluated in a situation in
which it fires, with the default thresholds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from enum import StrEnum

from frazil.aggregate.day_input import WaitingDay
from frazil.commit.dead_letter_counts import Reason
from frazil.errors import Failure
from frazil.host.heartbeat import Stall, StallKind
from frazil.maintenance.alerts import CLEAR_RATIO, MIN_FILE_DIVISOR, Reading, evaluate_table_rules
from frazil.maintenance.health import StreamHealth, TableHealth
from frazil.maintenance.stream_rules import (
    MIN_BAD_RECORDS,
    MIN_SMALL_SAMPLE_PERCENT,
    IncompleteWindow,
    aggregation_reading,
    audit_reading,
    evaluate_stream_rules,
    held_reading,
    runs_reading,
    window_reading,
)
from frazil.spec.maintenance import MIN_STALE_INTERVALS, Alerts, Maintenance
from frazil.spec.units import format_duration, format_rounded_bytes
from frazil.spec.values import SIZE_FORM
from frazil.status.recent_commits import MIN_RECORDS, CommitSums, RecentCommits
from frazil.status.state import StreamState, WriterProcess


class Hold(StrEnum):
    """How long a value must be beyond its threshold before the alert fires."""

    DECLARED = "hold"
    """The time in `maintenance.alerts.hold`."""
    NONE = "at once"


@dataclass(frozen=True, slots=True)
class Rule:
    """The settings of one rule."""

    threshold: str | None
    """Key of the threshold in `maintenance.alerts`; None for a rule about a fact, which has no threshold."""
    hold: Hold = Hold.DECLARED


RULES = {
    "manifest-list": Rule("manifest-list-bytes-per-file"),
    "manifests": Rule("manifests"),
    "snapshots": Rule("snapshots"),
    "metadata": Rule("metadata-bytes"),
    "small-files": Rule("small-files"),
    "delete-files": Rule("delete-files"),
    "deleted-rows": Rule("deleted-rows"),
    "since-compaction": Rule("since-compaction"),
    "freshness": Rule("freshness", Hold.NONE),
    "lag": Rule("lag"),
    "declaration": Rule(None, Hold.NONE),
    "table": Rule(None, Hold.NONE),
    "writer": Rule("writer-down", Hold.NONE),
    "restarts": Rule("restarts", Hold.NONE),
    "registry": Rule(None),
    "stall": Rule(None),
    "waiting-batches": Rule("waiting-batches"),
    "dead-letters": Rule("dead-letters"),
    "stale-changes": Rule("stale-changes"),
    "audit": Rule(None, Hold.NONE),
    "late-window": Rule("late-window"),
    "held": Rule(None, Hold.NONE),
    "aggregation": Rule(None, Hold.NONE),
    "runs": Rule("failed-runs"),
    "unmeasured": Rule(None),
}

NOW_MS = 2_000_000_000_000
HOUR_MS = 3_600_000
MIB = 2**20
NO_DEFAULT = {"lag": 100_000, "dead-letters-per-minute": 60}
"""Thresholds without a default, as the examples declare them."""
RATE = "dead-letters:<error class>"
_INTRODUCTION = """\
# Alerts

`frazil_health` evaluates these rules. Each links to its entry in the runbook.
[`maintenance.alerts`](configuration.md#maintenancealerts) declares thresholds and the hold time.

An alert fires when all measurements within `hold` were beyond the threshold, or *at once*. It ends at {clears:.0f} % of
the threshold, or when the problem is over.

| rule | threshold | default | fires after |
|---|---|---|---|
"""

_NOTES = """\

- `freshness` is at least {intervals} times the longest declared commit interval.
- `writer` fires at once if the writer is not [started again](exit-codes.md), and after `hold` if none has run on this
  host yet.
- `stall` fires after `hold` if the watermark stands still while the writer commits.
- `unmeasured` fires after 45s if a stream's table cannot be read and this host has no writer of the stream.
- `table`, `stall`, `registry`, `writer`, `restarts`, `waiting-batches`, `freshness` and `lag` of one stream are one
  incident: one notification when the first fires, one when the last has ended.
- For `manifest-list`, bytes are divided by at least {files} files.
- `dead-letters` and `stale-changes` measure the last hour or, with fewer than {records} records, up to a day. If a
  day has fewer, at least {bad} and over {large} % must be bad. If snapshots expired, the time since the oldest counts.
- `aggregation` uses its own `within`.
- `FRAZIL_RUNBOOK` names another runbook, by address or path, for events, notifiers and the page.
"""


def examples() -> dict[str, Reading]:
    """Return, for each rule, a reading that is beyond the rule's threshold."""
    found = {reading.rule.partition(":")[0]: reading for reading in _beyond() if reading.rule not in _rates()}
    return {rule: found[rule] for rule in RULES if rule != "unmeasured"} | {RATE: next(iter(_rates().values()))}


def render() -> str:
    """Return the page as Markdown."""
    seen = examples()
    rows = []
    for rule in [*RULES, RATE]:
        anchor = rule.partition(":")[0]
        rows.append(" | ".join([f"| [`{rule}`](../runbook.md#{anchor})", *_row(rule, seen.get(rule))]) + " |\n")
    few = {"records": MIN_RECORDS, "bad": MIN_BAD_RECORDS, "large": MIN_SMALL_SAMPLE_PERCENT}
    notes = _NOTES.format(intervals=MIN_STALE_INTERVALS, files=MIN_FILE_DIVISOR, **few)
    return "".join([_INTRODUCTION.format(clears=100 * CLEAR_RATIO), *rows, notes])


def _row(rule: str, reading: Reading | None) -> tuple[str, str, str]:
    own_ms = None if reading is None else reading.hold_ms
    after = Alerts().hold if own_ms is None else timedelta(milliseconds=own_ms)
    hold = format_duration(after) if after else Hold.NONE
    key = "dead-letters-per-minute" if rule == RATE else RULES[rule].threshold
    if reading is None or key is None:
        return "–", "–", hold
    return f"`{key}`", "none" if key in NO_DEFAULT else shown(key, reading.threshold), hold


def shown(key: str, value: float) -> str:
    """Return a value as text, in the unit of the threshold with which it is compared."""
    field = Alerts.model_fields[key.replace("-", "_")]
    if isinstance(field.default, timedelta):
        return format_duration(timedelta(seconds=value))
    return format_rounded_bytes(value) if SIZE_FORM in field.metadata else f"{math.floor(value):,}"


def _beyond() -> Iterator[Reading]:
    settings = Maintenance(alerts=Alerts(lag=NO_DEFAULT["lag"]))
    yield from (one for one in evaluate_table_rules(_table(), settings, now_ms=NOW_MS) if one.is_beyond)
    yield from (one for one in _of_stream() if one.is_beyond)
    late = IncompleteWindow(
        "2033-05-18T00", NOW_MS - 3 * HOUR_MS, "the watermark of rides is 2033-05-17T23:41:07Z: rides-3"
    )
    yield window_reading(late, Alerts(), table="city.rides", now_ms=NOW_MS)
    note = "expect_column_values_to_be_between fare: failed in 3 rows"
    yield from held_reading("city.rides", [("2033-05-18T00", note)], Alerts())
    yield audit_reading("rides", "the table is missing 5 rows of rides-3, offsets 100 to 104")
    waits = WaitingDay(date(2033, 5, 17), "", NOW_MS - 3 * HOUR_MS)
    yield aggregation_reading("daily", "city.daily", [waits], timedelta(hours=2))
    yield runs_reading("frazil_maintenance", 2, Alerts().failed_runs)


def _table() -> TableHealth:
    waits = StreamHealth("rides", 250_000, NOW_MS - 20 * 60_000, None)
    return TableHealth(
        table="city.rides", at_ms=NOW_MS, snapshot_id=1, target_file_bytes=512 * MIB, data_files=5_001,
        data_bytes=5_001 * 9 * MIB, rows=600_000, delete_files=101, manifests=501, manifests_bytes=501 * MIB,
        manifest_list_bytes=6 * MIB, metadata_bytes=9 * MIB, snapshots=2_001, oldest_snapshot_at_ms=NOW_MS - HOUR_MS,
        last_compaction_at_ms=NOW_MS - 30 * HOUR_MS, files_since_compaction=4_800,
        bytes_since_compaction=101 * 1024 * MIB, recent=None, streams=(waits,), deleted_rows=400_000,
    )  # fmt: skip


def _of_stream() -> Iterator[Reading]:
    reported = Failure("http://registry:8081 does not answer", error="RegistryUnavailable")
    reasons = {"NotJson": Reason(400, ("rides[3]@104",))}
    broken = StreamState(
        "rides",
        "city.rides",
        problem="streams/rides.yaml:5: event-tmie: unknown key; did you mean event-time?",
        missing=Failure("city.rides is not in the catalog 'lake', and its location holds one", error="TableLost"),
        desired="running",
        table_exists=False,
        alive=False,
        writer=WriterProcess("ended", ended_at_ms=NOW_MS - 6 * 60_000),
        last_error=reported,
        crashes=4,
        registry=True,
        stall=Stall(StallKind.OFFSETS, NOW_MS, "rides-3", "a transaction on rides-3 is open since 03:12"),
        waiting_batches=4,
        recent_commits=RecentCommits(
            None, (), 0, measured=CommitSums(1_000, 51, 300, reasons), recent=CommitSums(500, reasons=reasons)
        ),
    )
    yield from evaluate_stream_rules(broken, _with_rate(), now_ms=NOW_MS)


def _with_rate() -> Alerts:
    return Alerts(dead_letters_per_minute=NO_DEFAULT["dead-letters-per-minute"])


def _rates() -> dict[str, Reading]:
    return {one.rule: one for one in _of_stream() if one.rule.startswith("dead-letters:")}


if __name__ == "__main__":
    print(render(), end="")
