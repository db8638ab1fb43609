"""Builds the page's view of one table: a stream's own table, a dead-letter table, or a routed table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial

from frazil import clock
from frazil.airflow.dag_ids import MAINTENANCE_DAG
from frazil.airflow.page.airflow_database import read_last_measurement, read_pauses, read_window_runs
from frazil.airflow.page.views import (
    CACHE_S,
    RESPONSE_TIMEOUT_S,
    WINDOWS_CACHE_S,
    SelectVisible,
    answer_cache,
    cached_declarations,
    group_of,
    request_status,
    unreadable_parts,
    writer_dag_of,
)
from frazil.errors import SpecError
from frazil.maintenance.tables import MaintainedTable, TableKind, find_maintained
from frazil.operations.calendar import SHOWN_PERIODS, Calendar, merge_calendars
from frazil.operations.fetch import fetch_calendar, fetch_shape
from frazil.operations.overview import ActiveAlert
from frazil.operations.read_cache import Answer
from frazil.operations.table_view import TableView, WindowRun, route_problems, table_health
from frazil.partitions.windows import Grain
from frazil.spec.model import StreamSpec
from frazil.spec.routed_stream import partitions_dag_id, partitions_dag_of, view_from_table
from frazil.spec.units import format_duration


def find_table(name: str) -> MaintainedTable | None:
    """Return a table that streams write to, or None. A routed table may not exist yet."""
    try:
        maintained = find_maintained([stream.spec for stream in cached_declarations().value or () if stream.spec], name)
    except SpecError:
        return None
    return None if maintained.kind is TableKind.SIGNALS else maintained


def specs_for_table(table: MaintainedTable) -> tuple[StreamSpec, ...]:
    """Return the table's streams; none for dead-letter tables, and for a template's tables without windows."""
    return tuple(view for spec in table.streams if (view := view_from_table(spec, table.identifier)) is not None)


def find_visible_streams(table: MaintainedTable, select_visible: SelectVisible) -> set[str]:
    names = {spec.name for spec in table.streams}
    feeding = [stream for stream in cached_declarations().value or () if stream.name in names]
    return set(select_visible({stream.name: writer_dag_of(stream) for stream in feeding}))


def build_table_view(name: str, select_visible: SelectVisible, may_act: Callable[[str], bool]) -> TableView | None:
    maintained = find_table(name)
    if maintained is None:
        return None
    visible = find_visible_streams(maintained, select_visible)
    if not visible:
        return None
    answers, group, specs = answer_cache(), group_of(maintained.streams[0]), specs_for_table(maintained)
    key = tuple(stream.fingerprint() for stream in maintained.streams)
    fetch = partial(fetch_shape, maintained)
    shape = answers.request(group, ("shape", name, key), fetch, keep_s=WINDOWS_CACHE_S, first=True)
    calendar = partial(fetch_calendar, specs) if specs and specs[0].window else None
    windows = answers.request(group, ("calendar", name, key), calendar, keep_s=WINDOWS_CACHE_S) if calendar else None
    routes = [request_status(spec) for spec in maintained.streams if spec.sinks.has_routed_tables]
    measured = answers.request("Airflow", "alerts", read_last_measurement, keep_s=CACHE_S)
    windows_dag = partitions_dag_of(specs[0]) if specs else partitions_dag_id(maintained.identifier)
    read_dags = partial(read_pauses, (windows_dag, MAINTENANCE_DAG))
    dags = answers.request("Airflow", ("dags", name), read_dags, keep_s=CACHE_S)
    started_by = partial(_fetch_runs, specs[0]) if calendar else None
    runs = answers.request("Airflow", ("runs", name, key), started_by, keep_s=CACHE_S) if started_by else None
    (answer,) = answers.gather([shape], timeout_s=RESPONSE_TIMEOUT_S)
    complete: Answer[Calendar | None] = answers.gather([windows], timeout_s=0.3)[0] if windows else Answer()
    (alerts,) = answers.gather([measured], timeout_s=0.2)
    (paused,) = answers.gather([dags], timeout_s=0.2)
    started = answers.gather([runs], timeout_s=0.2)[0].value if runs else None
    standing = _alerts_about(maintained, alerts.value.alerts if alerts.value else ())
    differences = route_problems(
        maintained.identifier, (answer.value for answer in answers.gather(routes, timeout_s=0.2) if answer.value)
    )
    files, partitions = answer.value or (None, None)
    shown_windows = merge_calendars(complete.value, partitions)
    unknown = [complete.problem] if complete.problem and not complete.outdated else []
    state = table_health(None if answer.problem else files, shown_windows, standing, [*differences, *unknown])
    return TableView(
        at_ms=clock.now_ms(),
        table=name,
        kind=maintained.kind,
        level=state.level,
        word=state.word,
        streams=tuple(sorted(visible)),
        every=format_duration(maintained.settings.every),
        shape=files,
        calendar=shown_windows,
        alerts=standing,
        route_problems=differences,
        dags=paused.value,
        runs=None if started is None else _visible_runs(started, select_visible),
        pending=answer.pending or (windows is not None and complete.pending),
        may_act=may_act(MAINTENANCE_DAG),
        problems=tuple(dict.fromkeys(unreadable_parts({"The table": answer, "Its windows": complete}).values())),
    )


def _fetch_runs(spec: StreamSpec) -> dict[str, list[WindowRun]]:
    signals, since = spec.signal_name, datetime.now(UTC) - SHOWN_PERIODS[Grain(spec.window or "")]
    window_runs = read_window_runs(signals, since=since)
    if signals == spec.table.identifier:
        return window_runs
    suffix = f"|{spec.table.identifier}"
    return {key.removesuffix(suffix): runs for key, runs in window_runs.items() if key.endswith(suffix)}


def _visible_runs(runs: Mapping[str, Sequence[WindowRun]], select_visible: SelectVisible) -> dict[str, list[WindowRun]]:
    may = set(select_visible({run.dag: run.dag for window_runs in runs.values() for run in window_runs}))
    return {key: [run for run in window_runs if run.dag in may] for key, window_runs in runs.items()}


def _alerts_about(table: MaintainedTable, alerts: Sequence[ActiveAlert]) -> tuple[ActiveAlert, ...]:
    """Return the table's alerts; for a stream's own table, also the alerts of its dead-letter table."""
    subjects = {table.name, f"windows of {table.identifier}"}
    if table.kind is TableKind.MAIN:
        subjects |= {spec.dead_letter_table for spec in table.streams}
    return tuple(alert for alert in alerts if alert.subject in subjects)
