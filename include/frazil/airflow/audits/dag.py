"""The DAG `frazil_audits`, which audits the commits of all streams, by complete hours. `audit` audits all streams in
one task. For each stream with findings, `confirm` audits again and sends an event; then `report` fails, so that Airflow
calls the notifiers. Two tasks are needed, because a failed task cannot send events. There is one `report` per stream,
because Airflow notifies per task.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, AssetAlias, Param, get_current_context, task_group
from airflow.sdk.exceptions import AirflowFailException

from frazil.airflow.dag_ids import AUDITS_DAG, GROUP, HEALTH
from frazil.airflow.dag_profile import OnFailure, dag_profile, names_param, read_interval, task
from frazil.airflow.declared_streams import declared_streams
from frazil.airflow.untrusted_values import check_xcom
from frazil.errors import SpecError
from frazil.spec.units import format_duration

AUDIT_MINUTE = 15
"""Minute of the hour at which audits run. A commit is dated by its first attempt, and may land ten minutes later."""
INTERVAL_VARIABLE = "FRAZIL_AUDIT_EVERY"
PERMITTED_INTERVALS_H = (1, 2, 3, 4, 6, 8, 12, 24)
"""Permitted intervals in hours. Each divides 24, so that every hour of a day is audited."""
MAX_ACTIVE_RUNS = 6
"""Maximum number of concurrent runs: several, so that an audit does not wait for retries of the previous audit."""
AUDITS = AssetAlias("frazil.audit", group=GROUP)
"""An alias for all audit assets, because a task's streams are known only at run time."""


def audit_asset(stream: str) -> Asset:
    """Return the asset that gets an event, with the result of `audit_hours` as extra, for each audit with findings."""
    return Asset(f"frazil.audit.{stream}", group=GROUP)


def audit_dag(streams: str | Path, *, every: timedelta | None = None, on_failure: OnFailure | None = None) -> DAG:
    """Return the DAG that audits all declared streams, for the complete hours since the previous run.

    To audit hours that were missed, use an Airflow backfill, or a run with more `hours`.

    :param streams: folder of the declared streams.
    :param every: interval between runs; by default FRAZIL_AUDIT_EVERY, or an hour.
    :param on_failure: notifiers, called once for each stream whose audit has findings or cannot run.
    """
    folder = Path(streams)
    listed = declared_streams(folder)
    hours = _to_hours(every or read_interval(INTERVAL_VARIABLE, timedelta(hours=1)))
    names, specs = [stream.name for stream in listed], [stream.spec for stream in listed if stream.spec]
    with DAG(
        AUDITS_DAG,
        description="Checks that all records committed in the last complete hours are in their tables exactly once",
        doc_md=_DOC_MD,
        schedule=f"{AUDIT_MINUTE} {_CRON_HOURS.get(hours, f'*/{hours}')} * * *",
        max_active_runs=MAX_ACTIVE_RUNS,
        params={
            "streams": names_param(names, "Streams to audit. Empty: all."),
            "hours": Param(hours, type="integer", minimum=1, description="Number of complete hours to audit."),
            "source": Param(False, type="boolean", description="Also compare with the records in Kafka."),
        },
        **dag_profile(
            "Audits of all streams",
            purpose="audit",
            streams=names,
            specs=specs,
            tables=[spec.table.identifier for spec in specs],
            on_failure=on_failure,
            retries=3,
            retry_delay=timedelta(minutes=5),
        ),
    ) as dag:
        # The types are those that the tasks get when they run.
        failing: Any = task(inlets=[HEALTH])(audit)(names, str(folder.absolute()))
        _stream_tasks.partial(folder=str(folder.absolute())).expand(name=failing)
    return dag


def _to_hours(interval: timedelta) -> int:
    hours, remainder = divmod(interval, timedelta(hours=1))
    if remainder or hours not in PERMITTED_INTERVALS_H:
        raise SpecError(
            f"audits cannot run every {format_duration(interval)}: the interval must be whole hours that divide a day. "
            f"Set {INTERVAL_VARIABLE} to one of {', '.join(f'{hours}h' for hours in PERMITTED_INTERVALS_H)}"
        )
    return hours


@task_group(group_id="stream")
def _stream_tasks(name: Any, folder: str) -> None:
    confirmed: Any = task(outlets=[AUDITS], map_index_template="{{ task.op_args[0] }}")(confirm)(name, folder)
    task(retries=0, map_index_template="{{ task.op_args[0]['stream'] }}")(report)(confirmed)


def audit(names: list[str], streams: str) -> list[str]:
    """Audit the hours before this run, and store the results. Return the streams with findings or an error. Raises
    FrazilError if there are several audits and all fail.
    """
    from frazil.airflow.audits.findings import store_audits  # a DAG file that is parsed needs no PyIceberg
    from frazil.airflow.audits.tasks import audit_all

    context = get_current_context()
    chosen, store = context["params"]["streams"], context["asset_state_store"][HEALTH]
    audits = audit_all(chosen or names, Path(streams), **_audit_arguments())
    store_audits(store, audits.audits)
    return audits.failing


def confirm(name: str, streams: str) -> dict[str, Any]:
    """Audit one stream again, and send an event if there are findings. Skipped before the stream's first commit."""
    from frazil.airflow.audits.tasks import audit_hours

    audits = audit_hours(name, Path(streams), **_audit_arguments())
    if audits["findings"]:
        get_current_context()["outlet_events"][AUDITS].add(audit_asset(name), extra=audits)
    return audits


def _audit_arguments() -> dict[str, Any]:
    context = get_current_context()
    run, params = context["dag_run"], context["params"]
    moment = run.logical_date or run.run_after
    return {"moment": moment, "hours": params["hours"], "with_source": params["source"]}


def report(audit: dict[str, Any]) -> None:
    """Fail if the audit has findings."""
    audit = check_xcom(audit, "confirm", {"stream": str, "from": str, "to": str, "findings": int, "sentences": list})
    if audit["findings"]:
        raise AirflowFailException(
            f"{audit['stream']}, committed from {audit['from']} to {audit['to']}: {audit['findings']} findings. "
            f'{"; ".join(audit["sentences"])}. See docs/how-to/operate-writers.md, "The hourly audit"'
        )


_CRON_HOURS = {1: "*", 24: "0"}
_DOC_MD = f"""### Audits

Checks the complete hours since the previous run: one hour, unless `{INTERVAL_VARIABLE}` is set. Each record that a
stream committed in these hours must be in the table or the dead-letter table exactly once. If not, the task
`stream.report` of the stream fails with the findings, and the asset `{audit_asset("<stream>").name}` gets an event.

- `frazil audit STREAM`: audits the whole table.
- `frazil audit STREAM --from … --to … --source`: compares the same hours with the records in Kafka.
- A run with `streams`, and `hours: 24` or `source: true`: the same from Airflow.
"""
