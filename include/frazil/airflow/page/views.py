"""Builds the page's views from declarations, catalogs and Airflow, each within a deadline."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from frazil import clock
from frazil.airflow.dag_ids import SHARED_DAGS, writer_dag_id
from frazil.airflow.declared_streams import DeclaredStream, declared_streams
from frazil.airflow.health.dag import DAG_ID as HEALTH_DAG
from frazil.airflow.page.airflow_database import (
    Measurement,
    last_heartbeats,
    read_last_measurement,
    read_pauses,
    silent_components,
)
from frazil.home import home, streams_folder
from frazil.maintenance.tables import TableKind, maintained_tables
from frazil.operations.fetch import fetch_stream, fetch_windows
from frazil.operations.overview import (
    ActiveAlert,
    OpenProblem,
    Overview,
    RelatedState,
    StreamReading,
    Windows,
    build_headline,
    build_line,
    combine_health,
    group_by_stream,
    sort_lines,
)
from frazil.operations.page_actions import MissingComponent
from frazil.operations.read_cache import Answer, AnswerCache, PendingAnswer, SavedStatus, load_statuses, save_statuses
from frazil.spec.model import StreamSpec
from frazil.status.state import StreamState
from frazil.table.catalogs import keep_catalogs
from frazil.timetext import format_utc

RESPONSE_TIMEOUT_S = 1.3
"""Maximum wait for a response, in seconds: slightly longer than `UNRESPONSIVE_AFTER_S`."""
# The wait is short: the page refreshes soon, and one stream that hangs must not delay the others.
FIRST_OVERVIEW_TIMEOUT_S, OVERVIEW_TIMEOUT_S = 0.4, 0.2
SAVE_INTERVAL_S, FOREVER_S = 60.0, 1e9
CACHE_S, DECLARED_CACHE_S, WINDOWS_CACHE_S = 8.0, 8.0, 30.0
"""Seconds for which answers are cached: most answers; declarations; windows."""
MAX_FINGERPRINTS = 5_000
MAX_MEASUREMENT_AGE_MS = 20 * 60_000
"""Maximum age of the last health measurement: while it is older, no alert can fire."""
SelectVisible = Callable[[Mapping[str, str]], Collection[str]]
"""Returns the streams that the signed-in user may see, from a mapping of streams to their writers' DAGs."""


@cache
def answer_cache() -> AnswerCache:
    return AnswerCache(around=keep_catalogs)


def cached_declarations() -> Answer[list[DeclaredStream]]:
    fetch = partial(declared_streams, streams_folder())
    return answer_cache().fetch_one(
        "declarations", "declarations", fetch, keep_s=DECLARED_CACHE_S, timeout_s=RESPONSE_TIMEOUT_S
    )


def build_overview(select_visible: SelectVisible, *, airflow: tuple[str, ...] = ()) -> Overview:
    declarations = cached_declarations()
    streams = declarations.value or []
    may = set(select_visible({stream.name: writer_dag_of(stream) for stream in streams}))
    visible = [stream for stream in streams if stream.name in may]
    answers, keep_s = answer_cache(), max(CACHE_S, len(visible) / 5)  # refreshes at most 5 streams per second
    measured = answers.request("Airflow", "alerts", read_last_measurement, keep_s=CACHE_S)
    writers = sorted({writer_dag_of(stream) for stream in streams})
    known_by = [*writers, *SHARED_DAGS]
    dags = answers.request("Airflow", ("dags of all", *known_by), partial(read_pauses, known_by), keep_s=CACHE_S)
    _load_saved_overview(streams)
    statuses = {stream.name: request_status(stream.spec, keep_s=keep_s) for stream in visible if stream.spec}
    feeds = streams_by_table(streams)
    windows = {table: request_windows(specs, keep_s) for table, specs in feeds.items() if specs[0].window}
    known_now = any(answer.at_ms for answer in answers.gather(statuses.values(), timeout_s=0))
    timeout_s = OVERVIEW_TIMEOUT_S if known_now else FIRST_OVERVIEW_TIMEOUT_S
    answered = dict(zip(statuses, answers.gather(statuses.values(), timeout_s=timeout_s), strict=True))
    _save_overview(visible, answered)
    known = dict(zip(windows, answers.gather(windows.values(), timeout_s=0), strict=True))
    (alerts,), (paused,) = answers.gather([measured], timeout_s=0.2), answers.gather([dags], timeout_s=0.1)
    health_of_stream = group_health_by_stream(alerts.value, streams)
    now_ms = clock.now_ms()
    lines = []
    for stream in visible:
        complete = known.get(table_key(stream.spec)) if stream.spec else None
        around = health_of_stream(stream, complete, paused.value)
        lines.append(
            build_line(
                stream.name, stream.spec, build_reading(stream, answered.get(stream.name)), around, now_ms=now_ms
            )
        )
    pending = any(answer.pending for answer in answered.values()) or any(answer.pending for answer in known.values())
    notes = tuple(_notes(declarations, alerts, paused.value or {}))
    # A user who may not see all streams does not see alerts that several streams share.
    shared = health_of_stream.active_alerts.get("", ()) if len(visible) == len(streams) else ()
    needs = tuple(OpenProblem(alert.sentence, alert.runbook) for alert in shared)
    needs += find_measurement_problem(alerts.value, now_ms=now_ms) if visible else ()
    text = build_headline(lines, airflow=airflow)
    return Overview(now_ms, sort_lines(lines), pending, notes, needs, airflow, text)


def _load_saved_overview(streams: Iterable[DeclaredStream]) -> None:
    answers, file = answer_cache(), _overview_file()
    fetch = partial(load_statuses, file, now_ms=clock.now_ms())
    saved = answers.fetch_one("this host", ("remembered", file), fetch, keep_s=FOREVER_S, timeout_s=OVERVIEW_TIMEOUT_S)
    if not saved.value:
        return
    specs = {(stream.spec.name, fingerprint_of(stream.spec)): stream.spec for stream in streams if stream.spec}
    for state in saved.value:
        if spec := specs.get((state.stream, state.fingerprint)):
            answers.remember(group_of(spec), status_key(spec), state.status, at_ms=state.at_ms)


def _save_overview(streams: Iterable[DeclaredStream], answered: Mapping[str, Answer[StreamState]]) -> None:
    """Save the overview, in another thread, for the next API server process."""
    saved = [
        SavedStatus(stream.name, fingerprint_of(stream.spec), answer.at_ms, answer.value)
        for stream in streams
        if stream.spec and (answer := answered[stream.name]).value is not None and answer.at_ms is not None
    ]
    if saved:
        file = _overview_file()
        save = partial(save_statuses, file, saved, now_ms=clock.now_ms())
        answer_cache().request("this host", ("saved", file), save, keep_s=SAVE_INTERVAL_S)


def _overview_file() -> Path:
    return home() / "page" / "overview.json"


def writer_dag_of(stream: DeclaredStream) -> str:
    return writer_dag_id((stream.spec.application if stream.spec else None) or stream.name)


@dataclass(frozen=True, slots=True)
class HealthByStream:
    active_alerts: Mapping[str, Sequence[ActiveAlert]]
    """Active alerts by stream. Alerts that do not belong to one stream are under the empty name."""
    tables: Mapping[str, Collection[str]]
    due: Mapping[str, Sequence[str]] | None
    names: Mapping[str, Mapping[str, str]]
    """Names of tables in the maintenance DAG, by stream and table identifier."""

    def __call__(
        self, stream: DeclaredStream, windows: Answer[Windows | None] | None, dags: Mapping[str, bool] | None
    ) -> RelatedState:
        windows = windows or Answer()
        problem = None if windows.outdated else windows.problem
        writer = writer_dag_of(stream)
        alerts = self.active_alerts.get(stream.name, ())
        health = combine_health(self.tables.get(stream.name, ()), alerts, self.due)
        paused = writer if (dags or {}).get(writer) else None
        return RelatedState(windows.value, alerts, health, self.names.get(stream.name, {}), paused, problem)


def group_health_by_stream(measured: Measurement | None, streams: Iterable[DeclaredStream]) -> HealthByStream:
    written: dict[str, set[str]] = {}
    writers: dict[str, list[str]] = {}
    names: dict[str, dict[str, str]] = {}
    for table in maintained_tables(stream.spec for stream in streams if stream.spec):
        if table.kind is TableKind.SIGNALS:
            continue
        for spec in table.streams:
            written.setdefault(spec.name, set()).add(table.name)
            names.setdefault(spec.name, {})[table.identifier] = table.name
            for name in {table.name, table.identifier}:  # windows are cared for by identifier
                writers.setdefault(name, []).append(spec.name)
    measured = measured or Measurement()
    return HealthByStream(group_by_stream(measured.alerts, writers), written, measured.due, names)


def unreadable_parts(reads: Mapping[str, Answer[Any]]) -> dict[str, str]:
    return {name: text for name, answer in reads.items() if (text := _unreadable_text(name, answer))}


def _unreadable_text(name: str, answer: Answer[Any]) -> str | None:
    if answer.silent_since_ms is not None:
        return f"{name} has not responded since {format_utc(answer.silent_since_ms)}"
    if answer.problem is None or answer.outdated:
        return answer.problem
    return f"{name} cannot be read: {answer.problem}"


def request_status(spec: StreamSpec, *, keep_s: float = CACHE_S, is_first: bool = False) -> PendingAnswer[StreamState]:
    fetch = partial(fetch_stream, spec)
    return answer_cache().request(group_of(spec), status_key(spec), fetch, keep_s=keep_s, first=is_first)


def status_key(spec: StreamSpec) -> tuple[str, str, str]:
    return ("status", spec.name, fingerprint_of(spec))


_fingerprints: dict[int, tuple[StreamSpec, str]] = {}


def fingerprint_of(spec: StreamSpec) -> str:
    """Return the declaration's fingerprint, computed once per loaded declaration."""
    cached = _fingerprints.get(id(spec))
    if cached is None or cached[0] is not spec:
        if len(_fingerprints) >= MAX_FINGERPRINTS:
            _fingerprints.clear()
        cached = _fingerprints[id(spec)] = (spec, spec.fingerprint())
    return cached[1]


def table_key(spec: StreamSpec) -> tuple[str | None, str]:
    return spec.table.catalog, spec.table.identifier


def streams_by_table(streams: Iterable[DeclaredStream]) -> dict[tuple[str | None, str], tuple[StreamSpec, ...]]:
    by_table: dict[tuple[str | None, str], tuple[StreamSpec, ...]] = {}
    for stream in streams:
        if stream.spec is not None:
            key = table_key(stream.spec)
            by_table[key] = (*by_table.get(key, ()), stream.spec)
    return by_table


def request_windows(specs: Sequence[StreamSpec], keep_s: float) -> PendingAnswer[Windows | None]:
    key = ("windows", *map(fingerprint_of, specs))
    fetch = partial(fetch_windows, specs)
    return answer_cache().request(group_of(specs[0]), key, fetch, keep_s=max(WINDOWS_CACHE_S, keep_s))


def group_of(spec: StreamSpec) -> str:
    """Return the group of cached reads that share the threads of the stream's catalog."""
    return f"catalog {spec.table.catalog or 'default'}"


def build_reading(stream: DeclaredStream, answer: Answer[StreamState] | None) -> StreamReading:
    problem = "" if stream.missing or not stream.problem else stream.problem.replace(f"{streams_folder()}/", "")
    file = StreamReading(conflict=problem) if stream.current else StreamReading(broken=problem)
    if answer is None:
        return file
    reading = replace(file, status=answer.value, at_ms=answer.at_ms, last_known=answer.remembered)
    if answer.outdated:
        return replace(reading, outdated=answer.problem)
    return replace(reading, silent_since_ms=answer.silent_since_ms, problem=answer.problem)


def _notes(files: Answer[list[DeclaredStream]], alerts: Answer[Measurement], dags: Mapping[str, bool]) -> Iterator[str]:
    if files.problem:
        yield f"Cannot read the declarations in {streams_folder()}: {files.problem}"
    elif not files.value and not files.pending:
        yield f"No stream is declared in {streams_folder()}: declare one, or set FRAZIL_STREAMS for the API server"
    for dag_id, undone in SHARED_DAGS.items() if files.value else ():
        if dags.get(dag_id):
            yield f"The DAG {dag_id} is paused in Airflow: {undone} until you unpause it"
    if alerts.problem:
        yield f"Cannot read the alerts from Airflow: {alerts.problem}"


def find_measurement_problem(measured: Measurement | None, *, now_ms: int) -> tuple[OpenProblem, ...]:
    if measured is None:
        return ()
    times = [at_ms for at_ms in (measured.at_ms, measured.begun_ms) if at_ms is not None]
    if not measured.is_paused and times and now_ms - max(times) <= MAX_MEASUREMENT_AGE_MS:
        return ()
    at_ms = measured.at_ms
    reason = "nothing has been measured yet" if at_ms is None else f"the last measurement was {format_utc(at_ms)}"
    fix = f"Unpause the DAG {HEALTH_DAG}" if measured.is_paused else f"Check why the DAG {HEALTH_DAG} does not run"
    return (OpenProblem(f"No alert can fire: {reason}. {fix}", dag=HEALTH_DAG),)


DATABASE_TIMEOUT_S = 0.2


def last_measurement() -> Measurement | None:
    key, read = "alerts", read_last_measurement
    return answer_cache().fetch_one("Airflow", key, read, keep_s=CACHE_S, timeout_s=DATABASE_TIMEOUT_S).value


def find_missing_components() -> tuple[MissingComponent, ...]:
    """Return the components without a recent heartbeat; empty if Airflow's database does not respond."""
    heartbeats = answer_cache().fetch_one(
        "Airflow", "components", last_heartbeats, keep_s=CACHE_S, timeout_s=DATABASE_TIMEOUT_S
    )
    if heartbeats.value is None or heartbeats.at_ms is None:
        return ()
    return silent_components(heartbeats.value, at_ms=heartbeats.at_ms)


def describe_missing_components() -> tuple[str, ...]:
    components = find_missing_components()
    if not components:
        return ()
    alerts = last_measurement()
    return tuple(alert.sentence(alerts.at_ms if alerts else None) for alert in components)
