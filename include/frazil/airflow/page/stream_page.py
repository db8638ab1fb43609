"""Builds the page's view of one stream."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self, TypeVar
from urllib.parse import quote

from frazil import clock
from frazil.airflow.dag_ids import AUDITS_DAG, MAINTENANCE_DAG, STREAM_TASK_PREFIX, writer_dag_id
from frazil.airflow.declared_streams import DeclaredStream
from frazil.airflow.page import views
from frazil.airflow.page.airflow_database import Measurement, newest_run_id, read_pauses
from frazil.airflow.page.views import (
    CACHE_S,
    RESPONSE_TIMEOUT_S,
    SelectVisible,
    answer_cache,
    build_reading,
    cached_declarations,
    group_of,
    status_key,
)
from frazil.airflow.writers.dag import TASK_ID
from frazil.history.points import drop_unfinished
from frazil.host.launcher import Observation
from frazil.host.local import LocalLauncher
from frazil.maintenance.tables import template_table
from frazil.offsets.spans import TopicPartition
from frazil.operations.fetch import fetch_daily_costs, fetch_end_offsets, fetch_history, fetch_routed_names
from frazil.operations.overview import RelatedState, build_line
from frazil.operations.rates import DayCost, add_arrivals, compute_trend, mean_rates
from frazil.operations.read_cache import Answer, PendingAnswer
from frazil.operations.stream_actions import build_action_state, possible_actions
from frazil.operations.stream_view import (
    KAFKA,
    MAX_STREAM_EVENTS,
    Period,
    StreamView,
    TableHistory,
    describe_stream,
    downsample,
    limit_partitions,
    list_partitions,
    list_runs,
    list_topics,
    total_lag,
    unreported_problems,
)
from frazil.operations.table_view import RoutedTables, search_routed
from frazil.spec.model import StreamSpec
from frazil.spec.routed_stream import partitions_dag_id
from frazil.status.state import Level, StreamState

T = TypeVar("T")

TOPIC_URL_VARIABLE = "FRAZIL_TOPIC_URL"
"""Environment variable with the URL of a topic viewer; {topic} in it stands for the topic's name."""
COSTS_CACHE_S = 120.0
"""Seconds for which costs are cached: long, because the costs of the last days need the whole recorded history."""


@dataclass(frozen=True, slots=True)
class ViewOptions:
    hours: int = 6
    tables: str = ""
    begin_ms: int | None = None
    end_ms: int | None = None


def build_stream_view(
    name: str, view_options: ViewOptions, select_visible: SelectVisible, may_act: Callable[[str], bool]
) -> StreamView | None:
    """Return the view, if the user may see the stream. `may_act` decides actions, by the writer's DAG id."""
    stream = next((stream for stream in cached_declarations().value or () if stream.name == name), None)
    if stream is None or not select_visible({name: views.writer_dag_of(stream)}):
        return None
    if stream.spec is None:
        now_ms = clock.now_ms()
        line = build_line(name, None, build_reading(stream, None), RelatedState(), now_ms=now_ms)
        return StreamView(now_ms, line, {})
    return _build_view(stream, stream.spec, view_options, may_act=may_act(views.writer_dag_of(stream)))


@dataclass(frozen=True, slots=True)
class PendingReads:
    status: PendingAnswer[StreamState]
    history: PendingAnswer[TableHistory | None]
    ends: PendingAnswer[Mapping[TopicPartition, int]]
    writers: PendingAnswer[Observation]
    dags: PendingAnswer[dict[str, bool]]
    run: PendingAnswer[str | None]
    routed: PendingAnswer[dict[str, str]] | None
    costs: PendingAnswer[tuple[DayCost, ...]]

    @classmethod
    def begin(cls, spec: StreamSpec, view_options: ViewOptions, period: Period) -> Self:
        request, group, key, name = answer_cache().request, group_of(spec), status_key(spec), spec.name
        history_key = ("history", period.hours, view_options.begin_ms, *key)
        past = partial(fetch_history, spec, lookback_ms=clock.now_ms() - period.begin_ms)
        specs = [stream.spec for stream in cached_declarations().value or () if stream.spec]
        tables = partial(fetch_routed_names, spec, specs)
        return cls(
            status=views.request_status(spec, is_first=True),
            history=request(group, history_key, past, keep_s=CACHE_S, first=True),
            ends=request(f"Kafka of {name}", ("topics", *key), partial(fetch_end_offsets, spec), keep_s=CACHE_S),
            writers=request("this host", ("writers", name), LocalLauncher(name).observe, keep_s=CACHE_S),
            dags=request("Airflow", ("dags", name), partial(read_pauses, _dag_ids(spec)), keep_s=CACHE_S),
            run=request("Airflow", ("run", name), partial(newest_run_id, _dag_ids(spec)[0]), keep_s=CACHE_S),
            routed=request(group, ("routed", *key), tables, keep_s=15.0) if spec.sinks.has_routed_tables else None,
            costs=request(group, ("costs", *key), partial(fetch_daily_costs, spec), keep_s=COSTS_CACHE_S),
        )


def _build_view(stream: DeclaredStream, spec: StreamSpec, view_options: ViewOptions, *, may_act: bool) -> StreamView:
    period = Period.of(view_options.hours, view_options.begin_ms, view_options.end_ms, now_ms=clock.now_ms())
    requests = PendingReads.begin(spec, view_options, period)
    answer = _gather(requests.status, RESPONSE_TIMEOUT_S)
    history, ends, runs = _gather(requests.history), _gather(requests.ends), _gather(requests.writers)
    costs, dags = _gather(requests.costs), _gather(requests.dags).value
    table_past, around = history.value or TableHistory(), _related_state(stream, dags)
    recorded = drop_unfinished(table_past.past.points, clock.now_ms())
    points = downsample(recorded, period)
    parts: dict[str, Answer[Any]] = {KAFKA: ends, "The table": history, "The run folder": runs, "The cost": costs}
    unreadable_parts = views.unreadable_parts(parts)
    if "The table" in unreadable_parts:
        unreadable_parts.pop("The cost", None)  # for the same reason
    is_back = answer.value is not None and answer.value.rolled_back
    partitions = list_partitions(table_past.marker, None if is_back or KAFKA in unreadable_parts else ends.value, spec)
    line = build_line(spec.name, spec, build_reading(stream, answer), around, now_ms=clock.now_ms())
    if (waiting := total_lag(partitions)) is not None:  # the total agrees with the shown partitions
        line = replace(line, lag=waiting)
    events = [event for event in table_past.past.events if period.contains(event.at_ms)]
    is_read = history.at_ms is not None and not history.problem
    audited = (views.last_measurement() or Measurement()).audited
    return StreamView(
        at_ms=clock.now_ms(),
        line=line,
        facts=describe_stream(spec, around.names),
        has_commits=table_past.has_commits,
        rejected=table_past.rejected,
        changes=table_past.changes,
        last_changes=answer.value.changes if answer.value else {},
        backfill=table_past.backfill,
        partitions=limit_partitions(partitions),
        partitions_in_all=len(partitions),
        runs=list_runs(runs.value),
        dags=dags,
        audited=None if audited is None else audited.get(spec.name, "none yet"),
        log=_log_path(spec, _gather(requests.run).value),
        topics=list_topics(spec, partitions, os.environ.get(TOPIC_URL_VARIABLE, "")),
        routes=spec.sinks.has_routed_tables or (answer.value is not None and answer.value.routed),
        routed=_routed_tables(spec, requests.routed, answer.value, view_options.tables, line.level)
        if requests.routed
        else None,
        pending=history.pending or answer.pending or ends.pending,
        may_act=may_act,
        actions=possible_actions(spec, build_action_state(answer.value, history.value, is_read=is_read)),
        problems=unreported_problems(unreadable_parts, answer.value),
        period=period,
        points=points,
        rates=add_arrivals(mean_rates(points, recorded), points),
        trend=compute_trend(recorded, line.lag, now_ms=clock.now_ms()),
        days=costs.value or (),
        events=tuple(reversed(events[-MAX_STREAM_EVENTS:])),
    )


def _routed_tables(
    spec: StreamSpec, read: PendingAnswer[dict[str, str]], status: StreamState | None, search: str, level: Level
) -> RoutedTables | None:
    names, specs = (
        _gather(read).value or {},
        [stream.spec for stream in cached_declarations().value or () if stream.spec],
    )
    problems = {
        names.get(table) or template_table(spec, table, specs).name: text
        for table, text in (status.table_problems if status else {}).items()
    }
    return search_routed(tuple(names.values()), search, problems=problems, level=level)


def _gather(pending: PendingAnswer[T], timeout_s: float = 0.1) -> Answer[T]:
    return answer_cache().gather([pending], timeout_s=timeout_s)[0]


def _dag_ids(spec: StreamSpec) -> tuple[str, ...]:
    writer = writer_dag_id(spec.application or spec.name)
    return (writer, AUDITS_DAG, partitions_dag_id(spec.table.identifier), MAINTENANCE_DAG)


def _log_path(spec: StreamSpec, run_id: str | None) -> str | None:
    if run_id is None:
        return None
    task = f"{STREAM_TASK_PREFIX}{spec.name}" if spec.application else TASK_ID
    return f"/dags/{quote(_dag_ids(spec)[0])}/runs/{quote(run_id, safe='')}/tasks/{quote(task)}"


def _related_state(stream: DeclaredStream, dags: Mapping[str, bool] | None) -> RelatedState:
    streams = cached_declarations().value or []
    health_of_stream = views.group_health_by_stream(views.last_measurement(), streams)
    specs = views.streams_by_table(streams)[views.table_key(stream.spec)] if stream.spec else ()
    if not specs or not specs[0].window:
        return health_of_stream(stream, None, dags)
    (windows,) = answer_cache().gather([views.request_windows(specs, CACHE_S)], timeout_s=0.3)
    return health_of_stream(stream, windows, dags)
