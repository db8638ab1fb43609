"""Builds the page's overview: one line per stream, with streams that need attention first. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from frazil.maintenance.alerts import runbook_link
from frazil.maintenance.stream_rules import RULES_FROM_RUN_FOLDER
from frazil.operations.calendar import DelayReason
from frazil.spec.model import StreamSpec
from frazil.spec.units import format_count
from frazil.status.freshness import freshness_limit_ms, freshness_ms
from frazil.status.state import Level, State, StreamState
from frazil.timetext import format_utc

NOT_MEASURED = "not measured"
TABLE_RULES = {
    *("manifest-list", "manifests", "snapshots", "metadata", "small-files", "delete-files", "deleted-rows"),
    *("since-compaction", "unmeasured"),
}
WRITER_RULES = {"writer", "restarts"}
MAX_ERRORS = 5
GRACE_MS = 10_000
"""Milliseconds after which an unresponsive read needs attention: shorter delays occur on a busy host."""


@dataclass(frozen=True, slots=True)
class ActiveAlert:
    subject: str
    """A table, `stream <name>`, `windows of <table>`, `route of <stream>` and so on."""
    rule: str
    since_ms: int
    sentence: str
    runbook: str | None = None


@dataclass(frozen=True, slots=True)
class OpenProblem:
    """A problem that an operator should fix. `runbook` is the URL or path of its runbook entry."""

    sentence: str
    runbook: str | None = None
    dag: str | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """The state of a table's files and metadata. `causes` names active alerts or due actions."""

    level: Level
    word: str
    causes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Windows:
    """The completeness of a table's windows. Times are ISO 8601, UTC."""

    grain: str
    complete_to: str | None
    """The end of the last window before the first window that is open or held."""
    waits_for: str
    held: tuple[str, ...] = ()
    holders: tuple[DelayReason, ...] = ()
    unsignalled: str = ""
    """Why complete windows are not signalled yet; "" if they are."""


@dataclass(frozen=True, slots=True)
class StreamReading:
    """`status` is the state at `at_ms`. `silent_since_ms` is when a read began that does not respond."""

    status: StreamState | None = None
    at_ms: int | None = None
    silent_since_ms: int | None = None
    problem: str | None = None
    """The error of the last read. `status`, if set too, comes from an earlier read."""
    broken: str = ""
    """Errors in the stream's file, one per line."""
    conflict: str = ""
    """Conflicts with other declarations, one per line. This declaration is valid, and in use."""
    last_known: bool = False
    """Whether `status` is from an earlier process, and is being read again."""
    outdated: str | None = None
    """The fix, if the read failed because frazil was upgraded while this process runs."""


@dataclass(frozen=True, slots=True)
class OverviewLine:
    stream: str
    table: str | None
    level: Level
    word: str
    needs: tuple[OpenProblem, ...] = ()
    notes: tuple[str, ...] = ()
    application: str | None = None
    freshness_ms: int | None = None
    promise_ms: int | None = None
    """Maximum allowed age of the oldest record that waits in Kafka."""
    lag: int | None = None
    records_per_s: float | None = None
    rate_ms: int | None = None
    last_hour: tuple[int, ...] = ()
    backpressure_ms: int | None = None
    rejected_last_day: int | None = None
    rejected_since_ms: int | None = None
    rejected_since_reset: bool = False
    windows: Windows | None = None
    has_windows: bool = True
    """Whether windows are declared. If they are, `windows` is None only while they are unknown."""
    health: Health | None = None
    rows: int | None = None
    at_ms: int | None = None
    last_known: bool = False


@dataclass(frozen=True, slots=True)
class Overview:
    at_ms: int
    lines: tuple[OverviewLine, ...]
    pending: bool = False
    notes: tuple[str, ...] = ()
    needs: tuple[OpenProblem, ...] = ()
    airflow: tuple[str, ...] = ()
    """A sentence for each silent Airflow component."""
    headline: str = ""
    """A summary without a full stop; empty without streams."""


@dataclass(frozen=True, slots=True)
class RelatedState:
    windows: Windows | None = None
    alerts: Sequence[ActiveAlert] = ()
    health: Health | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    paused_dag: str | None = None
    windows_problem: str | None = None


def build_headline(lines: Sequence[OverviewLine], *, airflow: Collection[str] = ()) -> str:
    levels = Counter(line.level for line in lines)
    needing, total = levels[Level.BROKEN] + levels[Level.TROUBLE], format_count(len(lines), "stream")
    if not lines:
        return ""
    if needing:
        return f"{needing:,} of {total} {'needs' if needing == 1 else 'need'} attention"
    if loading := levels[Level.UNKNOWN]:
        return f"Loading {format_count(loading, 'stream')}"
    return "No stream needs attention, but Airflow does" if airflow else _headline_without_problems(lines)


def _headline_without_problems(lines: Sequence[OverviewLine]) -> str:
    is_single, total = len(lines) == 1, format_count(len(lines), "stream")
    well = sum(line.level is Level.WELL for line in lines)
    if all(line.word == State.NOT_BEGUN for line in lines):
        return "The stream has not started yet" if is_single else f"None of {total} has started yet"
    if well < len(lines):
        return (
            f"The stream is {lines[0].word}"
            if is_single
            else f"No stream needs attention: {well:,} of {total} are healthy"
        )
    return "The stream is healthy" if is_single else f"All {total} are healthy"


def build_line(
    name: str, spec: StreamSpec | None, reading: StreamReading, related: RelatedState, *, now_ms: int
) -> OverviewLine:
    """Build the line of one stream. `related.alerts` are the alerts of the stream and of its table."""
    windows = related.windows
    if spec is None:
        errors = _limit_errors(reading.broken.splitlines())
        needs = tuple(OpenProblem(line, runbook_link("declaration")) for line in errors)
        return OverviewLine(name, None, Level.BROKEN, "declaration broken", needs)
    status = reading.status
    state = _shown_state(spec, reading, now_ms=now_ms)
    needs = (*_open_problems(state, reading, related), *_paused_dag_problem(state, status, related.paused_dag))
    line = OverviewLine(
        name,
        related.names.get(spec.table.identifier, spec.table.identifier),
        min(state.level, Level.TROUBLE) if needs else state.level,
        state.state,
        needs,
        application=spec.application,
        promise_ms=freshness_limit_ms(spec),
        windows=windows,
        has_windows=spec.window is not None,
        health=None if reading.outdated or reading.problem else related.health,
        at_ms=reading.at_ms,
        last_known=reading.last_known,
    )
    if status is None:
        return replace(line, notes=_informational_notes(state))
    commits = status.recent_commits
    return replace(
        line,
        notes=tuple(dict.fromkeys((*_informational_notes(state), *status.notices))),
        freshness_ms=freshness_ms(status, now_ms=now_ms if reading.at_ms is None else reading.at_ms),
        lag=status.lag,
        records_per_s=commits.records_per_s if commits else None,
        rate_ms=commits.rate_ms if commits else None,
        last_hour=commits.last_hour if commits else (),
        backpressure_ms=status.backpressure_ms,
        rejected_last_day=commits.rejected_last_day if commits else None,
        rejected_since_ms=commits.rejected_since_ms if commits else None,
        rejected_since_reset=commits is not None and commits.rejected_since_reset,
        rows=status.rows,
        health=related.health if status.table_exists and not reading.outdated else None,
    )


def _shown_state(spec: StreamSpec, reading: StreamReading, *, now_ms: int) -> StreamState:
    make_state = partial(StreamState, spec.name, spec.table.identifier)
    if reading.outdated:
        return make_state(State.RESTART_NEEDED, Level.TROUBLE, reading.outdated)
    waited_ms = 0 if reading.silent_since_ms is None else now_ms - reading.silent_since_ms
    if reading.silent_since_ms is not None and (reading.status is None or waited_ms >= GRACE_MS):
        sources = f"The catalog {spec.table.catalog or 'default'}, its storage, or Kafka"
        level = Level.TROUBLE if waited_ms >= GRACE_MS else Level.UNKNOWN
        sentence = f"{sources} has not responded since {format_utc(reading.silent_since_ms)}"
        return make_state(State.NO_ANSWER, level, sentence, "unmeasured")
    if reading.status is not None:
        return reading.status
    if reading.problem:
        return make_state(State.UNREADABLE, Level.BROKEN, reading.problem, "unmeasured")
    return make_state(State.LOADING)


def _informational_notes(state: StreamState) -> tuple[str, ...]:
    return (state.sentence,) if state.sentence and state.level > Level.TROUBLE else ()


def _open_problems(state: StreamState, reading: StreamReading, related: RelatedState) -> tuple[OpenProblem, ...]:
    needs, windows, status = {}, related.windows, reading.status
    is_wrong, unmeasured = state.level <= Level.TROUBLE, runbook_link("unmeasured")
    if is_wrong:
        needs[state.sentence or state.state] = runbook_link(state.rule) if state.rule else None
    needs |= dict.fromkeys(_declaration_problems(reading), runbook_link("declaration"))
    if status is not None and reading.problem:
        since_text = f" since {format_utc(reading.at_ms)}" if reading.at_ms is not None else ""
        sentence = f"The stream's state could not be read{since_text}; an older state is shown: {reading.problem}"
        needs[sentence] = unmeasured
    if status is not None and is_wrong:
        needs |= dict.fromkeys(str(problem) for problem in status.problems if problem.headline not in state.sentence)
    if related.windows_problem is not None and reading.problem is None and status and status.table_exists:
        sentence = "Cannot read the table's windows, so complete and held windows are unknown"
        needs[f"{sentence}: {related.windows_problem}"] = unmeasured
    if windows is not None and windows.held:
        more = f" and {len(windows.held) - 1} more" if len(windows.held) > 1 else ""
        sentence = f"A quality gate holds the window {windows.held[0]}{more}: check it, then release it or fix the data"
        needs[sentence] = next(
            (alert.runbook for alert in related.alerts if alert.rule == "held"), runbook_link("held")
        )
    first = next(iter(needs), "") if is_wrong else ""
    needs |= {
        alert.sentence: alert.runbook
        for alert in related.alerts
        if not (_repeats_state(alert, state, first) or _repeats_reading(alert, windows) or _has_ended(alert, state))
    }
    return tuple(OpenProblem(sentence, runbook) for sentence, runbook in needs.items())


def _declaration_problems(reading: StreamReading) -> Iterator[str]:
    for problem, lines in (
        ("The last valid declaration is in use, because the file has a problem", reading.broken.splitlines()),
        ("The declaration is in use, but conflicts with another", reading.conflict.splitlines()),
    ):
        yield from _limit_errors([f"{problem}: {line}" for line in lines])


def _limit_errors(errors: Sequence[str]) -> Iterator[str]:
    yield from errors[:MAX_ERRORS]
    if hidden := len(errors[MAX_ERRORS:]):
        yield f"{format_count(hidden, 'more error')}: run `frazil validate`"


def _paused_dag_problem(
    state: StreamState, status: StreamState | None, paused_dag: str | None
) -> tuple[OpenProblem, ...]:
    if status is None or status.writer.pid is not None or state.level > Level.TROUBLE or paused_dag is None:
        return ()
    sentence = f"The writer's DAG {paused_dag} is paused in Airflow: unpause it so that a writer starts"
    return (OpenProblem(sentence, dag=paused_dag),)


def _has_ended(alert: ActiveAlert, state: StreamState) -> bool:
    """Whether the state, which is newer than the alert's measurement, shows that the problem of its writer is over."""
    is_well = state.level is Level.WELL and state.writer.pid is not None
    return is_well and alert.rule in {"writer", "table", *RULES_FROM_RUN_FOLDER}


def _repeats_reading(alert: ActiveAlert, windows: Windows | None) -> bool:
    """Whether the page already shows the alert's held windows or declaration errors, which the page reads itself."""
    if alert.rule == "held":
        return windows is not None and bool(windows.held)
    return alert.rule == "declaration"


def _repeats_state(alert: ActiveAlert, state: StreamState, first: str) -> bool:
    """Whether an alert only repeats the state: it quotes `first`, or is about the failure that the state shows."""
    is_stopped = state.state is State.STOPPED
    is_named = is_stopped or state.level is Level.BROKEN or state.unreachable_since_ms is not None
    rule = alert.rule.partition(":")[0]
    if is_named and (state.rule == rule or {state.rule, rule} <= WRITER_RULES or (is_stopped and rule == "freshness")):
        return True
    return bool(first) and first in alert.sentence


def sort_lines(lines: Iterable[OverviewLine]) -> tuple[OverviewLine, ...]:
    return tuple(sorted(lines, key=lambda line: (line.level, -len(line.needs), line.stream)))


def group_by_stream(alerts: Iterable[ActiveAlert], tables: Mapping[str, Sequence[str]]) -> dict[str, list[ActiveAlert]]:
    """Group alerts by stream; alerts about no stream have an empty name. `tables` maps tables to streams."""
    by_stream: dict[str, list[ActiveAlert]] = {}
    for alert in alerts:
        for stream in _streams_about(alert, tables) or ("",):
            by_stream.setdefault(stream, []).append(alert)
    return by_stream


def _streams_about(alert: ActiveAlert, tables: Mapping[str, Sequence[str]]) -> Sequence[str]:
    rule, _, subject = alert.rule.partition(":")
    if rule == "freshness" and subject:
        return (subject,)
    for prefix in ("stream ", "route of "):
        if alert.subject.startswith(prefix):
            return (alert.subject.removeprefix(prefix),)
    return tables.get(alert.subject.removeprefix("windows of "), ())


def combine_health(
    tables: Collection[str], alerts: Iterable[ActiveAlert], due: Mapping[str, Sequence[str]] | None
) -> Health | None:
    """Return the worst health of the tables. `due` has their due actions; None if nothing was measured."""
    of_tables = (alert for alert in alerts if not alert.subject.startswith(("stream ", "windows of ")))
    rules = sorted({alert.rule for alert in of_tables} & TABLE_RULES)
    if rules:
        return Health(Level.TROUBLE, "alert", tuple(rules))
    if due is None:
        return None
    actions = dict.fromkeys(action for table in sorted(tables) for action in due.get(table, ()))
    if NOT_MEASURED in actions or not due.keys() >= set(tables):
        return Health(Level.UNKNOWN, NOT_MEASURED)
    return Health(Level.QUIET, "maintenance due", tuple(actions)) if actions else Health(Level.WELL, "in shape")
