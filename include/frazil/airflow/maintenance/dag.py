"""One DAG per table, `frazil_maintenance_<table>`, that keeps it in shape; hourly by default, one run at a time.

- `look` measures the table and its dead-letter tables from metadata, and says for each action whether it is due and
  why. No JVM starts if nothing is due.
- `rewrite` is the Spark application, in the pool that limits Spark's work: compaction, manifests, snapshot expiry. It
  decides again, from all manifests.
- `orphans` deletes, once a day, files that no snapshot, journal or backfill refers to.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG, Param, get_current_context, task
from airflow.sdk.exceptions import AirflowSkipException

from frazil.airflow.assets import HEALTH
from frazil.airflow.dag_profile import OnFailure, dag_profile
from frazil.airflow.deadlines import OnLate, deadline
from frazil.airflow.declared import declared_streams
from frazil.airflow.spark import PROPERTIES_FILE, SPARK_CONNECTION, spark_pool
from frazil.maintenance.due import Action
from frazil.maintenance.tables import MaintainedTable, TableKind, maintained_tables
from frazil.spark_apps import MAINTAIN_TABLE

ACTIONS = (*map(str, Action), "orphans")
LATE_AFTER = timedelta(hours=2)
RETRIES, RETRY_DELAY = 1, timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class _App:
    """The Spark application."""

    path: str
    conf: dict[str, str]


def maintenance_dag_id(table: str) -> str:
    return f"frazil_maintenance_{table}"


def maintenance_dags(
    streams: str | Path,
    *,
    application: str | Path = MAINTAIN_TABLE,
    spark: Mapping[str, str] | None = None,
    on_failure: OnFailure | None = None,
    on_late: OnLate | None = None,
) -> dict[str, DAG]:
    """The maintenance DAGs by DAG id: one for each table that streams feed, with their dead-letter tables, and one for
    `frazil.signals`. A DAG runs as soon as it is unpaused, and then at its interval. If that is in whole hours,
    each table has its own minute.

    :param streams: folder of the declared streams.
    :param application: the PySpark file, by default the package's own.
    :param spark: Spark properties of the application, such as `spark.driver.memory`, over those of the connection.
    :param on_failure: notifiers, called when a run needs a person.
    :param on_late: called when a run has not ended in time; by default the triggerer logs it.
    """
    folder = Path(streams).absolute()
    app = _App(str(Path(application).absolute()), dict(spark or {}))
    tables = maintained_tables(found.spec for found in declared_streams(folder) if found.spec is not None)
    dags = {}
    for table in tables:
        if table.kind is not TableKind.DEAD_LETTERS:
            beside = [t for t in tables if table.kind is TableKind.MAIN and _dead_letters_of(t, table)]
            dag = _dag([table, *beside], folder, app, on_failure, on_late)
            dags[dag.dag_id] = dag
    return dags


def _dead_letters_of(table: MaintainedTable, main: MaintainedTable) -> bool:
    """A dead-letter table that several tables' streams share is maintained with the first table."""
    return table.kind is TableKind.DEAD_LETTERS and table.streams[0] in main.streams


def _dag(
    tables: Sequence[MaintainedTable],
    streams: Path,
    app: _App,
    on_failure: OnFailure | None,
    on_late: OnLate | None,
) -> DAG:
    dag_id, names = maintenance_dag_id(tables[0].name), [table.name for table in tables]
    with DAG(
        dag_id,
        description=f"Keeps {tables[0].name} in shape: few files, manifests and snapshots, no orphans",
        doc_md=f"{_page(tables[0])}\n{__doc__}",
        schedule=_schedule(tables[0]),
        max_active_runs=1,
        deadline=deadline(
            LATE_AFTER,
            sentence=f"{dag_id} has not ended in {LATE_AFTER}: it hangs, or waits for its pool",
            on_late=on_late,
        ),
        params={
            "actions": Param(list(ACTIONS), type="array", items={"enum": list(ACTIONS)}, description="What to do."),
            "dry-run": Param(False, type="boolean", description="Say what would be done, and stop there."),
        },
        **dag_profile(
            f"Maintenance: {tables[0].name}",
            purpose="maintenance",
            specs=tables[0].streams,
            tables=names,
            on_failure=on_failure,
            retries=RETRIES,
            retry_delay=RETRY_DELAY,
        ),
    ) as dag:
        # Orphans are cleaned up even if nothing is rewritten, but never during a rewrite of the same table.
        looked: Any = task.short_circuit(ignore_downstream_trigger_rules=False)(look)(names, str(streams))
        cleaned: Any = task(trigger_rule="none_failed", inlets=[HEALTH])(orphans)(names, str(streams))
        looked >> _rewrite(dag_id, names, streams, app) >> cleaned
    return dag


def _rewrite(dag_id: str, names: Sequence[str], streams: Path, app: _App) -> SparkSubmitOperator:
    return SparkSubmitOperator(
        task_id="rewrite",
        conn_id=SPARK_CONNECTION,
        name=dag_id,
        application=app.path,
        conf=app.conf,
        properties_file=PROPERTIES_FILE,
        pool=spark_pool(),
        application_args=[
            *(*names, "--streams", str(streams)),
            *("--actions", "{{ params.actions | reject('equalto', 'orphans') | join(',') }}"),
        ],
    )


def look(tables: list[str], streams: str) -> list[str]:
    """What is due, a sentence each; empty in a dry run, which only logs it."""
    from frazil.airflow.maintenance import tasks as table_care  # noqa: PLC0415 - a DAG file that is parsed needs no PyIceberg

    params = get_current_context()["params"]
    return table_care.look(tables, Path(streams), actions=params["actions"], dry_run=params["dry-run"])


def orphans(tables: list[str], streams: str) -> dict[str, Any]:
    """Delete orphan files unless today's clean-up is done; returns what was found, by table."""
    from frazil.airflow.maintenance import tasks as table_care  # noqa: PLC0415 - as above

    context = get_current_context()
    params, store = context["params"], context["asset_state_store"][HEALTH]
    if "orphans" not in params["actions"]:
        raise AirflowSkipException("this run was not asked to look for orphans")
    return table_care.orphans(tables, Path(streams), store, dry_run=params["dry-run"])


def _schedule(table: MaintainedTable) -> str | timedelta:
    """For whole hours, each table has its own minute, so that they do not all ask for Spark at once."""
    hours, rest = divmod(table.settings.every, timedelta(hours=1))
    if rest or 24 % max(hours, 1) or not hours:
        return table.settings.every
    return f"{zlib.crc32(table.name.encode()) % 60} {'*' if hours == 1 else f'*/{hours}' if hours < 24 else 0} * * *"


def _page(table: MaintainedTable) -> str:
    """The DAG's page; it begins with what is declared."""
    settings = table.settings.model_dump(mode="json", by_alias=True)
    rows = [f"| {name} | {_words(settings[name])} |" for name in ACTIONS]
    return "\n".join([f"### {table.name}", "", "| action | declared |", "|---|---|", *rows, ""])


def _words(action: dict[str, Any]) -> str:
    return ", ".join(f"{k}: {v}" for k, v in action.items() if k != "enabled") if action["enabled"] else "off"
