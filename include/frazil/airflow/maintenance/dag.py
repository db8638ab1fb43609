"""The DAG `frazil_maintenance`, which maintains all tables.

- `check_due` measures, in parallel and from metadata, every table that is due for a check. It logs for each action
  whether it is due and why, and returns the names of the tables with due actions. No JVM starts for the other tables.
- `table` is a group of tasks for each returned table. `rewrite` is a Spark application in the pool that limits Spark's
  work: compaction, manifests, snapshot expiry. It checks again, from all manifests, which actions are due. `orphans`
  deletes files that no snapshot, journal or backfill refers to. It runs once a day, and never during a rewrite of the
  same table.

If the rewrite of a table takes hours, other tables are not delayed: the next runs check them. A route may have
thousands of tables, so it has one name and one task. The task rewrites the tables in the greatest need, and the next
run continues with the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param, get_current_context, task_group
from airflow.sdk.exceptions import AirflowSkipException

from frazil.airflow.dag_ids import HEALTH, MAINTENANCE_DAG
from frazil.airflow.dag_profile import (
    OnFailure,
    OnLate,
    dag_profile,
    deadline,
    names_param,
    report,
    reported_errors,
    task,
)
from frazil.airflow.declared_streams import valid_specs
from frazil.airflow.spark import SubmitOperator, spark_arguments
from frazil.maintenance.due import Action
from frazil.maintenance.tables import group_by_session, maintained_tables, routes_by_name
from frazil.spark_apps import MAINTAIN_TABLE

ACTIONS = (*map(str, Action), "orphans")
MIN_INTERVAL, MAX_INTERVAL = timedelta(minutes=1), timedelta(hours=1)
LATE_AFTER = timedelta(hours=2)
MAX_ACTIVE_RUNS = 32
"""Maximum number of concurrent runs: a run lasts as long as its slowest table."""


def dag_interval(intervals: Iterable[timedelta]) -> timedelta:
    return max(MIN_INTERVAL, min([MAX_INTERVAL, *intervals]))


def maintenance_dag(
    streams: str | Path,
    *,
    application: str | Path = MAINTAIN_TABLE,
    spark: Mapping[str, str] | None = None,
    on_failure: OnFailure | None = None,
    on_late: OnLate | None = None,
) -> DAG:
    """Return the DAG that maintains every table that streams feed, their dead-letter tables, and `frazil.signals`.

    It runs hourly, or more often if a table's `maintenance.every` is shorter. Each table is checked at its own
    interval.

    :param streams: folder of the declared streams.
    :param application: the PySpark file, by default the package's own.
    :param spark: Spark properties of the application, which override the connection's.
    :param on_failure: notifiers, called once for each table that needs attention.
    :param on_late: called when a run has not ended in time; by default the triggerer logs it.
    """
    folder = str(Path(streams).absolute())
    specs = valid_specs(Path(streams))
    routed = routes_by_name(specs)
    names = [*group_by_session(specs), *routed]
    tables = maintained_tables(specs)
    with DAG(
        MAINTENANCE_DAG,
        description="Compacts files, rewrites manifests, expires snapshots and deletes orphan files",
        doc_md=__doc__,
        schedule=dag_interval([*(t.settings.every for t in tables), *(s.maintenance.every for s in routed.values())]),
        max_active_runs=MAX_ACTIVE_RUNS,
        deadline=deadline(LATE_AFTER, sentence=_LATE_MESSAGE, on_late=on_late),
        params=_form(names),
        **dag_profile(
            "Maintenance of all tables",
            purpose="maintenance",
            specs=specs,
            tables=[table.name for table in tables],
            on_failure=on_failure,
            retries=1,
            retry_delay=timedelta(minutes=5),
        ),
    ) as dag:
        # The types are those that the tasks get when they run.
        due: Any = task(inlets=[HEALTH], max_active_tis_per_dag=1)(check_due)(names, folder)
        app = {"application": str(Path(application).absolute()), "conf": dict(spark or {})}
        _table_tasks.partial(folder=folder, app=app).expand(name=due)
    return dag


class RewriteOperator(SubmitOperator):
    """Measures tables again, and runs their due rewrites in one Spark session.

    Skipped if no rewrite is due, and in a dry run. Retried if a table cannot be measured.

    :param table: a table, whose dead-letter tables are rewritten too; or the name of a route.
    :param streams: folder of the declared streams.
    """

    template_fields = (*SubmitOperator.template_fields, "table")

    def __init__(self, *, table: str, streams: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.streams = streams

    def execute(self, context: Any) -> None:
        from frazil.airflow.maintenance import tasks as table_tasks  # a DAG file that is parsed needs no PyIceberg

        params, folder = context["params"], Path(self.streams)
        with reported_errors():
            actions, dry_run = params["actions"], params["dry-run"]
            names = table_tasks.find_tables_with_due_rewrites(self.table, folder, actions=actions, dry_run=dry_run)
        actions = ",".join(action for action in params["actions"] if action != "orphans")
        self.application_args = [*names, "--streams", str(folder), "--actions", actions]
        super().execute(context)
        report(f"The due rewrites of {self.table} are done: its page lists them as past maintenance")


@task_group(group_id="table")
def _table_tasks(name: Any, folder: str, app: dict[str, Any]) -> None:
    rewritten = RewriteOperator(
        task_id="rewrite",
        table=name,
        streams=folder,
        name=MAINTENANCE_DAG,
        **spark_arguments("maintenance"),
        map_index_template="{{ task.table }}",
        **app,
    )
    # Orphans are cleaned up even if nothing is rewritten.
    cleaned = task(trigger_rule="none_failed", inlets=[HEALTH], map_index_template="{{ task.op_args[0] }}")(orphans)
    rewritten >> cleaned(name, folder)


def _form(names: list[str]) -> dict[str, Param]:
    return {
        "tables": names_param(names, "Tables to maintain, each with its dead-letter tables. Empty: all."),
        "actions": Param(list(ACTIONS), type="array", items={"enum": list(ACTIONS)}, description="Actions"),
        "dry-run": Param(False, type="boolean", description="Only log what would be done."),
    }


def check_due(names: list[str], streams: str) -> list[str]:
    """Return the tables and routes with due actions."""
    from frazil.airflow.maintenance import due  # a DAG file that is parsed needs no PyIceberg

    context = get_current_context()
    run, params = context["dag_run"], context["params"]
    request = due.MaintenanceRun(
        run_id=run.run_id,
        moment_ms=(run.run_after - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1),
        chosen=params["tables"],
        actions=params["actions"],
        dry_run=params["dry-run"],
        is_manual=run.run_type == "manual",
    )
    states = partial(context["ti"].get_task_states, MAINTENANCE_DAG, task_ids=list(due.TASKS))
    store = context["asset_state_store"][HEALTH]
    due_names = due.due_tables(names, Path(streams), request, store, lambda run_ids: states(run_ids=run_ids))
    if not due_names:
        report("No table needs maintenance")
    return due_names


def orphans(table: str, streams: str) -> dict[str, Any]:
    """Delete orphan files, unless that was already done today. Return the reports by table."""
    from frazil.airflow.maintenance import tasks as table_tasks

    context = get_current_context()
    params, store = context["params"], context["asset_state_store"][HEALTH]
    if "orphans" not in params["actions"]:
        raise AirflowSkipException("this run's `actions` do not include orphans")
    return table_tasks.clean(table, Path(streams), store, dry_run=params["dry-run"])


_LATE_MESSAGE = (
    f"a run of {MAINTENANCE_DAG} has not ended within {LATE_AFTER}: check for a table's task that hangs or is queued"
)
