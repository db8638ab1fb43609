"""One DAG per declared stream that audits what its writer committed, hour by hour.

It has three tasks, because only a task that succeeds sends asset events, and only one that fails calls notifiers:

- `audit` audits and hands on what it found. It fails only if the audit itself is impossible, and is retried.
- `announce` sends the asset event for the findings. It is skipped if there are none: its success would send one.
- `verdict` fails with the findings as its message. A DAG run that succeeds thus stands for a clean hour.
"""

from __future__ import annotations

import zlib
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, Param, get_current_context, task
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from frazil.airflow.assets import GROUP
from frazil.airflow.dag_profile import OnFailure, dag_profile
from frazil.airflow.declared import DeclaredStream, declared_streams
from frazil.airflow.untrusted import handed_on

FIRST_MINUTE = 15
"""A commit is dated when it is first tried and may land ten minutes later (`Patience`), after its hour has ended."""
MINUTES = 30
"""The audits of all streams are spread over this many minutes; each stream keeps its minute."""
RETRIES = 3
RETRY_DELAY = timedelta(minutes=5)
FOUND = {"stream": str, "from": str, "to": str, "findings": int, "sentences": list}
"""What `audit` hands on."""


def audit_dag_id(stream: str) -> str:
    return f"frazil_audit_{stream}"


def audit_asset(stream: str) -> Asset:
    """Receives an event for each audit that found something; its extra is what `audit_hours` returns."""
    return Asset(f"frazil.audit.{stream}", group=GROUP)


def audit_dags(streams: str | Path, *, on_failure: OnFailure | None = None) -> dict[str, DAG]:
    """The audits' DAGs by DAG id, one for each declared stream of the folder.

    Each runs hourly for the last complete hour. Hours missed while Airflow was down or the DAG was paused are made up
    for by an Airflow backfill, or by a run with more `hours`. A declaration that cannot be read fails the runs of its
    own DAG only.

    :param streams: folder of the declared streams.
    :param on_failure: notifiers, called when an audit finds something or is impossible.
    """
    folder = Path(streams)
    return {audit_dag_id(found.name): _audit_dag(found, folder, on_failure) for found in declared_streams(folder)}


def _audit_dag(found: DeclaredStream, streams: Path, on_failure: OnFailure | None) -> DAG:
    with DAG(
        audit_dag_id(found.name),
        description=f"Whether what {found.name} committed in the last complete hour landed exactly once",
        doc_md=_page(found),
        schedule=f"{FIRST_MINUTE + zlib.crc32(found.name.encode()) % MINUTES} * * * *",
        max_active_runs=1,
        params={
            "hours": Param(1, type="integer", minimum=1, description="How many complete hours to audit."),
            "source": Param(False, type="boolean", description="Read the records from Kafka as well."),
        },
        **dag_profile(
            f"Audit: {found.name}",
            purpose="audit",
            streams=[found.name],
            specs=[found.spec] if found.spec else [],
            tables=[found.spec.table.identifier] if found.spec else [],
            marks=["broken"] if found.problem else [],
            on_failure=on_failure,
        ),
    ) as dag:
        # Typed as what the tasks get when they run.
        seen: Any = task(retries=RETRIES, retry_delay=RETRY_DELAY)(audit)(found.name, str(streams.absolute()))
        task(outlets=[audit_asset(found.name)])(announce)(seen)
        task(verdict)(seen)
    return dag


def audit(stream: str, streams: str) -> dict[str, Any]:
    """Audit the complete hours before this run. All tasks are skipped if the stream has not begun."""
    from frazil.airflow.audits.tasks import audit_hours  # noqa: PLC0415 - a DAG file that is parsed needs no PyIceberg

    context = get_current_context()
    run, params = context["dag_run"], context["params"]
    moment = run.logical_date or run.run_after
    return audit_hours(stream, Path(streams), moment, hours=params["hours"], with_source=params["source"])


def announce(found: dict[str, Any]) -> None:
    """Send the asset event, if anything was found."""
    found = handed_on(found, "audit", FOUND)
    if not found["findings"]:
        raise AirflowSkipException("there are no findings to announce")
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
