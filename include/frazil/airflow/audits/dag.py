"""One DAG per declared stream that audits, hour by hour, what its writer committed.

Three tasks, for Airflow sends asset events only of tasks that succeed, and only a task that fails calls notifiers:

- `audit` looks, and hands on what it found. It fails only where it cannot look, and is tried again.
- `announce` sends the asset event of what was found. Where all is well it is skipped: its success would send one.
- `verdict` fails, with the sentences of what was found. So a DAG run that succeeded is an hour that is well.
"""

from __future__ import annotations

import zlib
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, Param, get_current_context, task
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from frazil.airflow.declared import DeclaredStream, declared_streams
from frazil.airflow.untrusted import handed_on
from frazil.airflow.writers.dag import START_DATE, OnFailure

FIRST_MINUTE = 15
"""A commit bears the time at which it was tried, and may land ten minutes later (`Patience`): then its hour is over."""
MINUTES = 30
"""Streams are spread over so many minutes of the hour, each always at the same one."""
RETRIES = 3
RETRY_DELAY = timedelta(minutes=5)
FOUND = {"stream": str, "from": str, "to": str, "findings": int, "sentences": list}
"""What `audit` hands on."""


def audit_dag_id(stream: str) -> str:
    return f"frazil_audit_{stream}"


def audit_asset(stream: str) -> Asset:
    """Gets an event for each audit that found something; its extra is what `audit_hours` answers."""
    return Asset(f"frazil.audit.{stream}")


def audit_dags(streams: str | Path, *, on_failure: OnFailure | None = None) -> dict[str, DAG]:
    """The audits' DAGs by DAG id, one for each declared stream of the folder.

    Each runs hourly, for the last complete hour. Hours that were missed, while Airflow was down or the DAG paused, are
    made up for by a backfill, or by a run with more `hours`. A declaration that cannot be read fails its own DAG's
    runs, and takes no other DAG with it.

    :param streams: folder of the declared streams.
    :param on_failure: notifiers, called when an audit finds something, or cannot be made.
    """
    folder = Path(streams)
    return {audit_dag_id(found.name): _audit_dag(found, folder, on_failure) for found in declared_streams(folder)}


def _audit_dag(found: DeclaredStream, streams: Path, on_failure: OnFailure | None) -> DAG:
    with DAG(
        audit_dag_id(found.name),
        description=f"Whether what {found.name} committed in the last complete hour landed exactly once",
        doc_md=_page(found),
        schedule=f"{FIRST_MINUTE + zlib.crc32(found.name.encode()) % MINUTES} * * * *",
        start_date=START_DATE,
        catchup=False,
        max_active_runs=1,
        default_args={"on_failure_callback": on_failure},
        params={
            "hours": Param(1, type="integer", minimum=1, description="How many complete hours to audit."),
            "source": Param(False, type="boolean", description="Read the records from Kafka as well."),
        },
        tags={"frazil", "audit", *(["broken"] if found.problem else [])},
    ) as dag:
        # Typed as what the tasks get when they run.
        seen: Any = task(retries=RETRIES, retry_delay=RETRY_DELAY)(audit)(found.name, str(streams.absolute()))
        task(outlets=[audit_asset(found.name)])(announce)(seen)
        task(verdict)(seen)
    return dag


def audit(stream: str, streams: str) -> dict[str, Any]:
    """Audit the complete hours before this run's time. A stream that has not begun is skipped, and so are the rest."""
    from frazil.airflow.audits.tasks import audit_hours  # noqa: PLC0415 - a DAG file that is parsed needs no PyIceberg

    context = get_current_context()
    run, params = context["dag_run"], context["params"]
    moment = run.logical_date or run.run_after
    return audit_hours(stream, Path(streams), moment, hours=params["hours"], with_source=params["source"])


def announce(found: dict[str, Any]) -> None:
    """Send the asset event, if anything was found."""
    found = handed_on(found, "audit", FOUND)
    if not found["findings"]:
        raise AirflowSkipException("nothing was found: there is nothing to announce")
    get_current_context()["outlet_events"][audit_asset(found["stream"])].extra = found


def verdict(found: dict[str, Any]) -> None:
    """Fail, if anything was found."""
    found = handed_on(found, "audit", FOUND)
    if found["findings"]:
        raise AirflowFailException(
            f"{found['stream']}, committed from {found['from']} to {found['to']}: {found['findings']} findings. "
            f'{"; ".join(found["sentences"])}. What to do is in docs/how-to/operate-writers.md, "The hourly audit"'
        )


def _page(found: DeclaredStream) -> str:
    """The DAG's page: what a run says, and what a person does then."""
    lines = [f"### Audit of {found.name}", ""]
    if found.problem:
        lines += ["**This declaration has a problem:**", "", "```", found.problem, "```", ""]
    return "\n".join(lines) + (
        f"""Every hour, for the last complete one: does each record that was committed in it stand in the table, or in
the dead-letter table, exactly once? A run that failed says what is off, and so does the event of the asset
`{audit_asset(found.name).name}`.

- `frazil audit {found.name}`: the whole table, now.
- `frazil audit {found.name} --from … --to … --source`: the same hour, held against Kafka's own records.
- A run with `hours: 24` or `source: true`: the same from here.
"""
    )
