"""Builds three DAGs for each declared aggregation.

- The first aggregates a day once its windows are complete.
- The second requests a day again if one of its windows reopens. With its own roll-up, Airflow
  would wait until all windows of the day had reopened.
- The third requests complete days that were not aggregated. It runs every ten minutes
  (FRAZIL_RECONCILE_EVERY).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, DayWindow, PartitionedAssetTimetable, RollupMapper, StartOfDayMapper, get_current_context
from airflow.sdk.exceptions import AirflowSkipException

from frazil import clock
from frazil.aggregate.spec import AGGREGATIONS, AggregationSpec, find_aggregation, parse_day
from frazil.airflow.dag_ids import again_asset, partition_asset, reopened_asset
from frazil.airflow.dag_profile import OnFailure, dag_profile, fail_on_user_errors, read_interval, task
from frazil.airflow.declared_streams import valid_specs
from frazil.airflow.spark import SubmitOperator, spark_arguments
from frazil.errors import SpecError
from frazil.partitions.windows import Grain
from frazil.spark_apps import AGGREGATE_DAILY
from frazil.spec.last_valid import DeclaredFile, find_declared
from frazil.spec.load import find_streams_of
from frazil.spec.model import StreamSpec
from frazil.spec.routed_stream import list_windowed_views, never_complete_message

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from frazil.signals.signal_table import Signal

RETRIES = 2
RECONCILE_INTERVAL, RECONCILE_INTERVAL_VARIABLE = timedelta(minutes=10), "FRAZIL_RECONCILE_EVERY"
_DAY_MAPPER = StartOfDayMapper(input_format=Grain.DAY.key_format)


def daily_dag_id(name: str) -> str:
    return f"frazil_daily_{name}"


def reopened_dag_id(name: str) -> str:
    return f"frazil_reopened_{name}"


def reconcile_dag_id(name: str) -> str:
    return f"frazil_reconcile_{name}"


@dataclass(frozen=True, slots=True)
class _Aggregation:
    name: str
    folder: str
    spec: AggregationSpec | None = None
    """The current or last valid declaration; None if neither can be used."""
    grain: Grain = Grain.DAY
    problem: str | None = None


def daily_dags(
    aggregations: str | Path,
    *,
    streams: str | Path,
    application: str | Path = AGGREGATE_DAILY,
    on_failure: OnFailure | None = None,
) -> dict[str, DAG]:
    """Return three DAGs for each aggregation, by DAG id.

    A declaration that cannot be used gets only its daily DAG, which shows the problem.

    :param aggregations: folder of the declared aggregations.
    :param streams: folder of the declared streams, which define whether a source's windows are hours or days.
    :param application: the PySpark file, by default the package's own.
    :param on_failure: notifiers, called when a day could not be aggregated after all retries.
    """
    dags = []
    folder = Path(aggregations)
    files = find_declared(folder, AGGREGATIONS, now_ms=clock.now_ms())
    sources = {view.table.identifier: view for spec in valid_specs(Path(streams)) for view in list_windowed_views(spec)}
    declared = [_read_aggregation(file, sources, Path(streams)) for file in files if not file.removed]
    targets = Counter(declaration.spec.target for declaration in declared if declaration.spec)
    for each in declared:
        declaration = each
        if each.spec is not None and targets[each.spec.target] > 1:  # they would overwrite each other's days
            problem = f"another aggregation has the same target {each.spec.target!r}; change one of them"
            declaration = replace(each, spec=None, problem=problem)
        dags.append(_daily_dag(declaration, Path(application), on_failure))
        if declaration.spec:
            dags.append(_reopened_dag(declaration, declaration.spec, on_failure))
            dags.append(_reconcile_dag(declaration, declaration.spec, on_failure))
    return {dag.dag_id: dag for dag in dags}


def _read_aggregation(
    file: DeclaredFile[AggregationSpec], sources: Mapping[str, StreamSpec], streams: Path
) -> _Aggregation:
    # A file's odd name must not break the other files' DAGs.
    aggregation = _Aggregation(re.sub(r"[^\w-]", "-", file.path.stem), str(file.path.parent), problem=file.problem)
    if (spec := file.spec) is None:
        return aggregation
    try:
        source = sources.get(spec.source) or find_streams_of(streams, spec.source)[0]
    except SpecError as error:
        return replace(aggregation, problem=str(error))
    if source.window is None:
        return replace(aggregation, problem=f"{file.path}: source: {never_complete_message(source)}")
    if source.signal_name != spec.source:
        text = f"{spec.source} has no signals of its own: its windows are signalled together with other tables' windows"
        declare = f"add {spec.source} to route.complete of stream {source.name!r}"
        return replace(aggregation, problem=f"{file.path}: source: {text}; {declare}")
    return replace(aggregation, spec=spec, grain=Grain(source.window))


def _daily_dag(aggregation: _Aggregation, application: Path, on_failure: OnFailure | None) -> DAG:
    spec = aggregation.spec
    with DAG(
        daily_dag_id(aggregation.name),
        description=(spec.description or f"{spec.source} by day into {spec.target}") if spec else "Invalid declaration",
        doc_md=_doc_md(aggregation),
        schedule=_schedule(aggregation.grain, spec) if spec else None,
        max_active_runs=1,
        **_profile(f"Daily: {aggregation.name}", aggregation, on_failure, retries=RETRIES),
    ) as dag:
        chosen: Any = task(inputs)(aggregation.name, aggregation.folder)
        chosen >> SubmitOperator(
            task_id="aggregate",
            name=daily_dag_id(aggregation.name),
            application=str(application.absolute()),
            **spark_arguments("aggregation"),
            application_args=[
                *(aggregation.name, "--aggregations", aggregation.folder, "--day", "{{ dag_run.partition_key }}"),
                *("--snapshot-id", "{{ ti.xcom_pull('inputs')['snapshot_id'] }}"),
                *("--revisions", "{{ ti.xcom_pull('inputs')['revisions'] }}"),
            ],
            outlets=[partition_asset(spec.target)] if spec else [],
        )
    return dag


def _reopened_dag(aggregation: _Aggregation, spec: AggregationSpec, on_failure: OnFailure | None) -> DAG:
    with DAG(
        reopened_dag_id(aggregation.name),
        description=f"Runs {daily_dag_id(aggregation.name)} again for a day that got late rows",
        schedule=PartitionedAssetTimetable(
            assets=reopened_asset(spec.source),
            default_partition_mapper=StartOfDayMapper(input_format=aggregation.grain.key_format),
        ),
        **_profile(f"Daily, reopened days: {aggregation.name}", aggregation, on_failure, retries=RETRIES),
    ) as dag:
        task(outlets=[again_asset(aggregation.name)])(again)(aggregation.name, aggregation.folder)
    return dag


def _reconcile_dag(aggregation: _Aggregation, spec: AggregationSpec, on_failure: OnFailure | None) -> DAG:
    asset = again_asset(aggregation.name)
    with DAG(
        reconcile_dag_id(aggregation.name),
        description=f"Requests complete days of {daily_dag_id(aggregation.name)} that were not aggregated",
        schedule=read_interval(RECONCILE_INTERVAL_VARIABLE, RECONCILE_INTERVAL),
        max_active_runs=1,
        **_profile(f"Daily, missed days: {aggregation.name}", aggregation, on_failure),
    ) as dag:
        requested = task(inlets=[asset, partition_asset(spec.source)], outlets=[asset])
        requested(ask_for_late_days)(aggregation.name, aggregation.folder)
    return dag


def _profile(display_name: str, item: _Aggregation, on_failure: OnFailure | None, **defaults: Any) -> dict[str, Any]:
    tables = [item.spec.source, item.spec.target] if item.spec else []
    marks = ["broken"] if item.problem else []
    return dag_profile(display_name, purpose="daily", tables=tables, marks=marks, on_failure=on_failure, **defaults)


def _schedule(grain: Grain, spec: AggregationSpec) -> PartitionedAssetTimetable:
    hours = RollupMapper(upstream_mapper=StartOfDayMapper(input_format=Grain.HOUR.key_format), window=DayWindow())
    return PartitionedAssetTimetable(
        assets=partition_asset(spec.source) | again_asset(spec.name),
        partition_mapper_config={again_asset(spec.name): _DAY_MAPPER},
        default_partition_mapper=hours if grain is Grain.HOUR else _DAY_MAPPER,
    )


def inputs(name: str, aggregations: str) -> dict[str, str]:
    """Return the source's snapshot and the day's revisions. Skips a day that a gate holds, or that is up to date."""
    # Parsing a DAG file must not load PyIceberg.
    from frazil.aggregate.day_input import choose_input, held_windows

    with fail_on_user_errors():
        day = _load_signalled_day(name, aggregations)
        if waiting := held_windows(day.signals):
            text = f"a quality gate holds {', '.join(waiting)}; {day.day} is aggregated after the release"
            raise AirflowSkipException(text)
        _check_needed(day)
        chosen = choose_input(day.catalog, day.spec, day.day, day.signals)
    # The id is text, because readers that parse JSON numbers as floats would round it.
    return {"snapshot_id": str(chosen.snapshot_id), "revisions": chosen.revisions}


def _check_needed(day: _SignalledDay) -> None:
    from frazil.aggregate.day_input import is_aggregated, is_complete

    run = get_current_context()["dag_run"]
    # A user who clears a run wants to repeat it, perhaps because the SQL changed.
    if run.run_type != "asset_triggered" or run.clear_number:
        return
    if not is_complete(day.day, day.signals):
        text = f"not every window of {day.day} is signalled: the events that started this run are not from frazil"
        raise AirflowSkipException(text)
    if is_aggregated(day.catalog, day.spec, day.day, day.signals):
        raise AirflowSkipException(f"{day.spec.target} already has the current revisions of {day.day}")


def again(name: str, aggregations: str) -> None:
    """Check that the run's day is complete. If the task succeeds, its event requests the day again. Skips the task if
    the day is not complete yet. The day's first run will read all rows.
    """
    from frazil.aggregate.day_input import is_complete

    with fail_on_user_errors():
        day = _load_signalled_day(name, aggregations)
    if not is_complete(day.day, day.signals):
        raise AirflowSkipException(
            f"nothing to repeat: a window of {day.day} is not complete, or a gate holds it. The first run of "
            "this day will read all rows"
        )


def ask_for_late_days(name: str, aggregations: str) -> None:
    """Send an event for each day that should have been aggregated by now and has no run."""
    from frazil.airflow.aggregations.reconcile import reconcile

    with fail_on_user_errors():
        reconcile(name, Path(aggregations), daily_dag_id(name), get_current_context())


@dataclass(frozen=True, slots=True)
class _SignalledDay:
    spec: AggregationSpec
    day: date
    catalog: Catalog
    signals: Sequence[Signal]


def _load_signalled_day(name: str, aggregations: str) -> _SignalledDay:
    from frazil.aggregate.day_input import load_day_signals
    from frazil.table.catalogs import open_existing_catalog

    spec = find_aggregation(Path(aggregations), name)
    day = parse_day(get_current_context()["dag_run"].partition_key)
    catalog = open_existing_catalog(spec.catalog)
    return _SignalledDay(spec, day, catalog, load_day_signals(catalog, spec, day))


def _doc_md(item: _Aggregation) -> str:
    spec = item.spec
    if spec is None:
        return f"**This declaration is invalid:**\n\n```\n{item.problem}\n```\n"
    broken = (
        f"**The last valid declaration is in use, because the file has a problem:**\n\n```\n{item.problem}\n```\n\n"
    )
    return f"""{broken if item.problem else ""}{spec.description}

From `{spec.source}` into `{spec.target}`, by UTC day of `{spec.event_time}`:

```sql
{spec.sql}
```

A day runs when its {item.grain} windows are complete, and again when one reopens (`{reopened_dag_id(item.name)}`). To
run any past day: *Trigger* with the day, such as `2013-12-30`, as the partition key. Each snapshot of the target
names the source's snapshot and revisions that it was computed from.
"""
