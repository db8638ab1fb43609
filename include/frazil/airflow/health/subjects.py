"""Reads what `frazil_health` watches besides tables: streams, windows, gates, routes, aggregations, DAGs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any, Self

from airflow.sdk import DagRunState
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import DagResult, GetDag, GetPreviousDagRun, PreviousDagRunResult

from frazil.aggregate.day_input import find_open_day, find_waiting_days, select_overdue_days
from frazil.aggregate.spec import AGGREGATIONS, AggregationSpec
from frazil.airflow.aggregations.dag import reconcile_dag_id
from frazil.airflow.dag_ids import SHARED_DAGS
from frazil.airflow.declared_streams import DeclaredStream
from frazil.errors import error_text
from frazil.maintenance.alerts import UNMEASURED_RULE as UNMEASURED
from frazil.maintenance.alerts import Reading, evaluate_table_rules, unmeasured_reading
from frazil.maintenance.measure import NotMadeByRoute, find_template_tables, measure
from frazil.maintenance.stream_rules import (
    aggregation_reading,
    audit_reading,
    boolean_reading,
    evaluate_stream_rules,
    read_window_rules,
    runs_reading,
)
from frazil.maintenance.tables import routes_by_name
from frazil.spec.last_valid import DeclaredFile, find_declared
from frazil.spec.maintenance import Alerts
from frazil.spec.model import StreamSpec
from frazil.spec.routed_stream import is_template_view, list_windowed_views, partitions_dag_of
from frazil.spec.units import format_count
from frazil.status.stream import read_stream_state
from frazil.table.catalogs import open_existing_catalog
from frazil.table.parallel import read_in_parallel, run_in_parallel
from frazil.table.unresponsive import Unresponsive

RUNS_PER_ROUND = 60
"""Number of runs that together measure each table once: an hour with a run per minute."""
MIN_TABLES_PER_RUN = 50
MAX_LISTED_TABLES = 5


@dataclass(frozen=True, slots=True)
class RouteFindings:
    beyond: Mapping[str, Sequence[str]]
    """The rules whose thresholds each table exceeded at its last measurement. Healthy tables have no entry."""
    after: str = ""
    """The last measured table, after which the next run continues."""

    def to_json(self) -> dict[str, Any]:
        return {"after": self.after, "beyond": {table: list(rules) for table, rules in self.beyond.items()}}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Parse the result of `to_json`. Ignores invalid content, because other users can write the store."""
        last_table, beyond = value.get("after"), value.get("beyond")
        rules_by_table = beyond.items() if isinstance(beyond, Mapping) else ()
        listed = {table: rules for table, rules in rules_by_table if isinstance(rules, list)}
        valid = {table: [rule for rule in rules if isinstance(rule, str)] for table, rules in listed.items()}
        return cls(valid, last_table if isinstance(last_table, str) else "")


def measure_route_share(
    spec: StreamSpec, specs: Sequence[StreamSpec], previous: RouteFindings, *, now_ms: int
) -> tuple[RouteFindings, list[Reading]]:
    """Return the findings about all tables of the route, and a reading for each rule."""
    catalog = open_existing_catalog(spec.table.catalog)
    tables = find_template_tables(catalog, spec, specs)
    share = select_share(previous.after, [table.name for table in tables])
    by_name = {table.name: table for table in tables}

    def measure_table(name: str) -> list[Reading] | None:
        table = by_name[name]
        try:
            health = measure(catalog, table, now_ms=now_ms)
        except NotMadeByRoute:
            return None
        except Exception as error:  # anything that a catalog or storage raises: the others are still measured
            text = error_text(error)
            return [Reading(UNMEASURED, 1, 0, text, f"{name} cannot be measured: {text}")]
        return None if health is None else [*evaluate_table_rules(health, table.settings, now_ms=now_ms)]

    read = dict(zip(share, run_in_parallel(measure_table, share), strict=True))
    for reading in (reading for found in read.values() for reading in found or () if reading.is_beyond):
        log.warning("%s", reading.sentence)
    rules = {name: found for name, found in previous.beyond.items() if name in by_name and name not in read}
    rules |= {name: beyond for name, found in read.items() if (beyond := [r.rule for r in found or () if r.is_beyond])}
    evaluated = {UNMEASURED, *(reading.rule for found in read.values() for reading in found or ())}
    evaluated |= {rule for found in rules.values() for rule in found}
    findings = RouteFindings(rules, share[-1] if share else "")
    return findings, [_reading(spec, rule, rules) for rule in sorted(evaluated)]


def select_share(last: str, names: Sequence[str]) -> list[str]:
    """Return the next names to measure, in alphabetical order after `last`, and then from the start."""
    share = max(MIN_TABLES_PER_RUN, ceil(len(names) / RUNS_PER_ROUND))
    ordered = sorted(names)
    return [*(name for name in ordered if name > last), *(name for name in ordered if name <= last)][:share]


def _reading(spec: StreamSpec, rule: str, beyond: Mapping[str, Sequence[str]]) -> Reading:
    names = sorted(name for name, rules in beyond.items() if rule in rules)
    limit_text = f"{'is' if len(names) == 1 else 'are'} over the threshold of {rule}"
    problem = "cannot be measured" if rule == UNMEASURED else limit_text
    names_text = ", ".join(names[:MAX_LISTED_TABLES]) + (", and others" if len(names) > MAX_LISTED_TABLES else "")
    sentence = (
        f"{format_count(len(names), 'table')} of the route of stream {spec.name} {problem}: {names_text}. "
        f"Run `frazil health {names[0] if names else 'TABLE'}`. The DAG frazil_maintenance should fix "
        "this: check its last runs"
    )
    return Reading(rule, len(names), 0, format_count(len(names), "table"), sentence)


log = logging.getLogger(__name__)

FailedRuns = Callable[[str, int], int | None]
"""Counts the newest consecutive failed runs of a DAG, up to a limit (the second argument)."""
IsPaused = Callable[[str], bool]
FirstDays = dict[str, date | None]
"""The first watched day of each aggregation; None if not set yet."""


@dataclass(frozen=True, slots=True)
class StoredState:
    """State that outlives a run. Reading a subject may change `first_days` and `routes`."""

    first_days: FirstDays
    routes: dict[str, RouteFindings]
    audits: Mapping[str, str]
    """A sentence about the uncleared audit findings of each stream."""
    audited: Mapping[str, str]
    """The last audit of each stream, as a sentence."""


@dataclass(frozen=True, slots=True)
class WatchedSubject:
    alerts: Alerts
    read: Callable[[], Iterable[Reading]]
    dags: tuple[str, ...] = ()
    catalog: str = ""


def read_subjects(
    subjects: Mapping[str, WatchedSubject],
    failed: FailedRuns,
    is_paused: IsPaused = lambda _: False,
    *,
    timeout_s: float,
) -> dict[str, list[Reading] | str]:
    """Return each subject's readings, or why it cannot be read. `timeout_s` is the limit for one catalog."""
    # A task may talk to Airflow from one thread only.
    runs = {
        name: [
            reading for dag_id in subject.dags for reading in _dag_reading(dag_id, subject.alerts, failed, is_paused)
        ]
        for name, subject in subjects.items()
        if subject.alerts.enabled
    }

    def readings(name: str, answer: list[Reading] | Exception) -> list[Reading] | str:
        if isinstance(answer, Exception):
            return f"{type(answer).__name__}: {answer}"
        return [*answer, *runs.get(name, [])]

    group = {name: subject.catalog for name, subject in subjects.items()}.__getitem__
    read = read_in_parallel(subjects, lambda name: [*subjects[name].read()], timeout_s=timeout_s, group=group)
    return {name: readings(name, found) for name, found in read.items()}


def _dag_reading(dag_id: str, alerts: Alerts, failed: FailedRuns, is_paused: IsPaused) -> Iterator[Reading]:
    """Evaluate a DAG's runs. Only a shared DAG's pause counts: the pause of one table's DAG delays its windows."""
    paused = dag_id in SHARED_DAGS and is_paused(dag_id)
    runs = failed(dag_id, alerts.failed_runs + 1)
    yield runs_reading(dag_id, runs, alerts.failed_runs, is_paused=paused)
    problem = "Airflow does not respond; the log of frazil_health has the error" if runs is None else None
    yield unmeasured_reading(dag_id, f"state of the DAG {dag_id}", problem)


def build_watched_subjects(
    declared: Iterable[DeclaredStream],
    aggregations: Path | None,
    stored: StoredState,
    *,
    now_ms: int,
    expectations: Path | None = None,
) -> dict[str, WatchedSubject]:
    """Return all watched subjects by their name in alerts. Reading an aggregation or a route updates `stored`."""
    declared, catalogs = list(declared), Unresponsive()
    subjects = {f"the DAG {dag_id}": WatchedSubject(Alerts(), list, (dag_id,)) for dag_id in SHARED_DAGS}
    subjects |= {f"stream {stream.name}": _stream_subject(stream, stored, catalogs, now_ms) for stream in declared}
    valid = [stream.spec for stream in declared if stream.spec is not None]
    feeds = [windowed for spec in valid for windowed in list_windowed_views(spec)]
    specs: dict[str, StreamSpec] = {}
    for windowed in feeds:
        specs.setdefault(windowed.table.identifier, windowed)
    if expectations is not None:
        gated = {table for table, spec in specs.items() if spec.window is not None}
        subjects["the quality gates"] = WatchedSubject(Alerts(), lambda: [_unused_suites(expectations, gated)])
    for table, spec in specs.items():
        if spec.window is not None:
            fed = [view for view in feeds if view.table.identifier == table]
            read_rules, own_dag = partial(read_window_rules, table, fed, now_ms=now_ms), partitions_dag_of(fed[0])
            windows = WatchedSubject(fed[0].maintenance.alerts, read_rules, (own_dag,), _catalog_of(fed[0]))
            subjects[f"route of {spec.name}" if is_template_view(spec) else f"windows of {table}"] = windows
    for name, spec in routes_by_name(valid).items():
        if spec.sinks.template is not None:
            windows = subjects.get(name) or WatchedSubject(Alerts(), list)
            read = partial(_route_readings, name, spec, valid, stored.routes, windows, now_ms=now_ms)
            subjects[name] = WatchedSubject(spec.maintenance.alerts, read, windows.dags, _catalog_of(spec))
    for file in find_declared(aggregations, AGGREGATIONS, now_ms=now_ms) if aggregations else ():
        if not file.removed:
            source = specs.get(file.spec.source) if file.spec else None
            alerts = source.maintenance.alerts if source else Alerts()
            watched = partial(_aggregation_readings, file, stored.first_days, now_ms) if alerts.enabled else list
            dags, catalog = (reconcile_dag_id(file.path.stem),), (file.spec.catalog if file.spec else None) or "default"
            subjects[f"aggregation {file.path.stem}"] = WatchedSubject(alerts, watched, dags, catalog)
    return subjects


def _stream_subject(stream: DeclaredStream, stored: StoredState, catalogs: Unresponsive, now_ms: int) -> WatchedSubject:
    spec, problem = stream.spec, None if stream.missing else stream.problem
    if spec is None:
        text = f"the declaration of stream {stream.name} has never been valid: {problem}"
        return WatchedSubject(Alerts(), lambda: [boolean_reading("declaration", True, text)])
    alerts = spec.maintenance.alerts

    def read() -> Iterator[Reading]:
        state = read_stream_state(spec, now_ms=now_ms, problem=problem, in_full=False, catalogs=catalogs)
        yield from evaluate_stream_rules(state, alerts, now_ms=now_ms)
        if alerts.enabled:
            yield audit_reading(spec.name, stored.audits.get(spec.name), stored.audited.get(spec.name))

    return WatchedSubject(alerts, read, catalog=_catalog_of(spec))


def _catalog_of(spec: StreamSpec) -> str:
    return spec.table.catalog or "default"


def _unused_suites(folder: Path, tables: Collection[str]) -> Reading:
    unused = sorted(suite for suite in folder.glob("*.json") if suite.stem not in tables)
    sentence = (
        f"suites in {folder} that gate no window: {', '.join(suite.name for suite in unused)}. No stream declares a "
        "table of this name, or the table has no windows. Rename each suite to `<namespace.table>.json`, or remove it"
    )
    return boolean_reading("declaration", bool(unused), sentence)


def _route_readings(  # noqa: PLR0913 - each source is an argument
    name: str,
    spec: StreamSpec,
    specs: list[StreamSpec],
    findings: dict[str, RouteFindings],
    windows: WatchedSubject,
    *,
    now_ms: int,
) -> Iterator[Reading]:
    findings[name], readings = measure_route_share(spec, specs, findings.get(name, RouteFindings({})), now_ms=now_ms)
    yield from readings
    yield from windows.read()


def _aggregation_readings(file: DeclaredFile[AggregationSpec], first_days: FirstDays, now_ms: int) -> Iterator[Reading]:
    name, spec = file.path.stem, file.spec
    sentence = f"the declaration of aggregation {name} is broken; the last valid one is in use: {file.problem}"
    yield boolean_reading("declaration", file.problem is not None and not file.missing, sentence)
    if spec is None or name not in first_days:
        return
    catalog = open_existing_catalog(spec.catalog)
    first_days[name] = first = first_days[name] or find_open_day(catalog, spec)
    if first is not None:
        waiting = find_waiting_days(catalog, spec, first=first)
        overdue = select_overdue_days(waiting, within=spec.within, now_ms=now_ms)
        yield aggregation_reading(name, spec.target, overdue, spec.within)


def failed_runs(dag_id: str, limit: int) -> int | None:
    try:
        good = _newest_run_date(dag_id, DagRunState.SUCCESS, datetime.now(UTC) + timedelta(days=1))
        failed, before_date = 0, datetime.now(UTC) + timedelta(days=1)
        while (
            failed < limit
            and (bad := _newest_run_date(dag_id, DagRunState.FAILED, before_date))
            and (not good or bad > good)
        ):
            failed, before_date = failed + 1, bad
    except Exception as error:
        log.warning("cannot read the runs of the DAG %s: %s", dag_id, error)
        return None
    return failed


def is_dag_paused(dag_id: str) -> bool:
    try:
        answer = task_runner.SUPERVISOR_COMMS.send(GetDag(dag_id=dag_id))
    except Exception as error:
        log.warning("cannot read whether the DAG %s is paused: %s", dag_id, error)
        return False
    return isinstance(answer, DagResult) and answer.is_paused


def _newest_run_date(dag_id: str, state: DagRunState, before_date: datetime) -> datetime | None:
    request = GetPreviousDagRun(dag_id=dag_id, logical_date=before_date, state=state)
    answer = task_runner.SUPERVISOR_COMMS.send(request)
    if not isinstance(answer, PreviousDagRunResult):
        raise TypeError(f"{answer!r}")
    return answer.dag_run.logical_date if answer.dag_run else None
