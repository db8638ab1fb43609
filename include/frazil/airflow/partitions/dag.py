"""Builds a DAG per table with windows. `watch` waits in the triggerer and signals complete windows; `complete` and
`reopened` send their events, one partition key per window; `held` fails if a quality gate holds windows. All tables
that a route's template creates share one DAG and one asset, whose events name the table.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param, get_current_context
from airflow.sdk.exceptions import AirflowFailException

from frazil import clock
from frazil.airflow.dag_ids import partition_asset, reopened_asset
from frazil.airflow.dag_profile import OnFailure, dag_profile, report, task
from frazil.airflow.declared_streams import all_streams, streams_feeding
from frazil.airflow.partitions.sensor import CompletionOperator
from frazil.quality.gate import find_suite
from frazil.safe_text import reason_problem
from frazil.spec.model import StreamSpec
from frazil.spec.route import VALUE_PLACEHOLDER
from frazil.spec.routed_stream import list_windowed_views, partitions_dag_of

log = logging.getLogger(__name__)

DEFAULT_INTERVAL = timedelta(minutes=1)
RELEASE_DAG = "frazil_release"
MAX_LISTED_WINDOWS = 5


def partition_dags(
    streams: str | Path,
    *,
    expectations: str | Path | None = None,
    every: timedelta = DEFAULT_INTERVAL,
    on_failure: OnFailure | None = None,
) -> dict[str, DAG]:
    """Return the partition DAGs by DAG id, one for each table or template, and the DAG that releases held windows.

    :param streams: folder of the declared streams.
    :param expectations: folder of the quality gates' suites, `<table>.json`; without it no window is gated.
    :param every: how often each table is checked.
    :param on_failure: notifiers, called when a gate holds a window, or when a table cannot be read.
    """
    folder, suites = Path(streams).absolute(), Path(expectations).absolute() if expectations else None
    tables: dict[str, list[StreamSpec]] = {}
    fed = set()
    for stream in all_streams(folder):
        if stream.spec is None:
            continue
        for spec in list_windowed_views(stream.spec):
            if stream.spec.window is not None:
                tables.setdefault(spec.table.identifier, []).append(spec)
            if not stream.removed:
                fed.add(spec.table.identifier)
    dags = {}
    for table, specs in tables.items():
        poll_interval = every if table in fed else None
        dags[partitions_dag_of(specs[0])] = _partition_dag(table, specs, (folder, suites), poll_interval, on_failure)
    return {**dags, RELEASE_DAG: _release_dag(sorted(tables), folder, on_failure)} if tables else {}


def _partition_dag(
    table: str,
    specs: list[StreamSpec],
    folders: tuple[Path, Path | None],
    every: timedelta | None,
    on_failure: OnFailure | None,
) -> DAG:
    """Return the DAG of a table. Without `every`, no run starts: no stream feeds the table."""
    streams = str(folders[0])
    assets = {"complete": partition_asset(table), "reopened": reopened_asset(table)}
    with DAG(
        partitions_dag_of(specs[0]),
        description=f"Reports complete {specs[0].window}s of {table}",
        doc_md=_doc_md(table, specs, folders[1]),
        schedule="@continuous" if every else None,
        max_active_runs=1,
        **dag_profile(
            f"Partitions: {table}",
            purpose="partitions",
            specs=specs,
            tables=[table],
            marks=[] if every else ["removed"],
            on_failure=on_failure,
        ),
    ) as dag:
        watched = CompletionOperator(
            task_id="watch",
            table=table,
            streams=folders[0],
            expectations=folders[1],
            poll_seconds=(every or DEFAULT_INTERVAL).total_seconds(),
            inlets=list(assets.values()),
            # Without retries, a run that fails immediately would be followed immediately by the next run.
            retries=3,
            retry_delay=timedelta(minutes=1),
        )
        for name, asset in assets.items():
            sent: Any = task(task_id=name, inlets=[asset], outlets=[asset])(send)(table, streams, name)
            watched >> sent
        watched >> task(inlets=[assets["complete"]])(held)(table, streams)
    return dag


def send(table: str, streams: str, name: str) -> None:
    """Send the missing events of one asset. `name` is `complete` or `reopened`."""
    from frazil.airflow.partitions import tasks as windows  # a DAG file that is parsed needs no PyIceberg

    windows.send(table, Path(streams), name, get_current_context())


def held(table: str, streams: str) -> None:
    """Fail if a quality gate holds windows, with a log line for each."""
    from frazil.airflow.partitions import tasks as windows

    signals = windows.take_held_signals(table, Path(streams), get_current_context())
    if not signals:  # all were released meanwhile
        return
    for window in signals:
        # Each gets a log line, because Airflow truncates long texts of exceptions.
        log.error("%s %s is held by its quality gate: %s", window.table, window.partition, window.note)
    several = any(window.table != table for window in signals)
    keys = [
        f"{window.table} {window.partition}" if several else window.partition for window in signals[:MAX_LISTED_WINDOWS]
    ]
    names = ", ".join(keys) + (" and others" if len(signals) > MAX_LISTED_WINDOWS else "")
    raise AirflowFailException(
        f"{table}: {len(signals)} windows are held by their quality gate and not signalled: {names}. The lines above "
        f"show why. Correct the data in the table (the gate then runs again), or release the windows with {RELEASE_DAG}"
    )


def _release_dag(tables: list[str], streams: Path, on_failure: OnFailure | None) -> DAG:
    with DAG(
        RELEASE_DAG,
        description="Signals a window that its quality gate holds, with a reason that is recorded",
        schedule=None,
        params={
            "table": _table_param(tables),
            "partition": Param("", type="string", minLength=10, description="2013-12-30T15, or 2013-12-30 for a day."),
            "reason": Param("", type="string", minLength=3, description="Reason. It is stored in frazil.signals."),
        },
        **dag_profile("Release a held window", purpose="partitions", on_failure=on_failure),
        doc_md=(
            "A run signals the window with its current rows. The table's partition DAG sends its event within a minute."
        ),
    ) as dag:
        task(release)(str(streams))
    return dag


def _table_param(tables: list[str]) -> Param:
    fixed = [table for table in tables if VALUE_PLACEHOLDER not in table]
    if fixed != tables:  # the tables that a template creates are known only to the catalog
        return Param(fixed[0] if fixed else "", type="string", minLength=3, examples=fixed, description="Table")
    return Param(tables[0], type="string", enum=tables, description="Table")


def release(streams: str) -> None:
    """Release the window in the form, for the user who triggered the run."""
    from frazil.partitions.windows import Window
    from frazil.signals import completion
    from frazil.table.lost_tables import open_stream_catalog

    context = get_current_context()
    form, user = context["params"], context["dag_run"].triggering_user_name or "Airflow"
    try:
        window = Window.parse(form["partition"])
    except ValueError as error:
        raise AirflowFailException(f"partition: {error}") from error
    if problem := reason_problem(form["reason"]):
        raise AirflowFailException(f"reason: {problem}")
    spec = streams_feeding(Path(streams), form["table"])[0]
    note = f"released by {user}: {form['reason']}"
    completion.release_window(open_stream_catalog(spec), spec, window, note=note, clock_ms=clock.now_ms())
    report(f"The window {window} of {form['table']} is released: its event is sent within a minute")


def _doc_md(table: str, specs: list[StreamSpec], suites: Path | None) -> str:
    lateness = ", ".join(f"{spec.name} {spec.lateness}" for spec in specs)
    shared = VALUE_PLACEHOLDER in table
    key = ("2013-01-01T05" if specs[0].window == "hour" else "2013-01-01") + ("|namespace.table" if shared else "")
    shown_table = "TABLE" if shared else table
    return f"""### Complete {specs[0].window}s of {table}

A window (one {specs[0].window} of event time) is complete when the watermark of each stream of the table is past the
window's end by the stream's lateness ({lateness}). Then the asset `{partition_asset(table).name}` gets one event with
the window's key, such as `{key}`. The asset `{reopened_asset(table).name}` gets an event each time late rows reopen
the window. The `extra` of an event has these values for each key: revision, rows, dead letters, late rows, watermark,
snapshot.

{_gate_message(table, suites)}

- `frazil partitions {shown_table}`: the last complete window, and what the next window waits for.
- `frazil partitions {shown_table} --send-again 2013-01-01`: sends events again, for consumers that were paused.
- The DAG `{RELEASE_DAG}`: signals a window that its quality gate holds.
"""


def _gate_message(table: str, suites: Path | None) -> str:
    """Return the gate's description, in which users can notice a misspelt suite name."""
    if suites is None:
        return "Its windows have no quality gate: `partition_dags` is called without `expectations`."
    if suite := find_suite(suites, table):
        return f"The quality gate of its windows is `{suite}`."
    return f"Its windows have no quality gate: `{suites}` has no suite `{table}.json`."
