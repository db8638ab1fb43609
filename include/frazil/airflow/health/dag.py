"""The DAG `frazil_health`, which measures all tables every minute. `changed` sends an event with the alerts that fired
or resolved. `alerts` fails while an alert is active; notifiers are called only when an alert fires. `resolved` succeeds
if an alert resolved.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, get_current_context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from frazil import clock
from frazil.aggregate.spec import AGGREGATIONS
from frazil.airflow.dag_ids import HEALTH, again_asset
from frazil.airflow.dag_profile import OnFailure, OnLate, build_notifiers, dag_profile, deadline, read_interval, task
from frazil.airflow.notifications import failure_message
from frazil.airflow.page.address import page_url
from frazil.airflow.untrusted_values import check_xcom
from frazil.operations.message import Message, build_message
from frazil.spec.last_valid import find_declared

DAG_ID = "frazil_health"
DEFAULT_INTERVAL, INTERVAL_VARIABLE = timedelta(minutes=1), "FRAZIL_HEALTH_EVERY"
LATE_AFTER = timedelta(minutes=15)
LATE_MESSAGE = f"a run of {DAG_ID} has not ended within {LATE_AFTER}, so no alert can fire: check its task measure"
DOC_MD = """
Checks all streams and tables every minute (or `FRAZIL_HEALTH_EVERY`), and reads only metadata.

- **A failed run means that an alert is active.** The log of its task `alerts` has a line per alert: what is wrong, and
  what to do. The runbook has an entry per rule.
- Alerts that fire because one stream does not write are one incident, with one notification.
- An alert is reported once when it fires and once when it resolves (`resolved`). Until then, each run fails.
- A failed `measure` means that nothing could be checked: its log shows the reason.
"""

log = logging.getLogger(__name__)

AlertLists = dict[str, Any]
"""The result of `measure`: the `fired`, `resolved` and `active` alerts, as `Alert.to_json` writes them."""
ALERT_LIST_TYPES = dict.fromkeys(("fired", "resolved", "active"), list)


def health_dag(  # noqa: PLR0913 - keywords, each with a default
    streams: str | Path,
    *,
    aggregations: str | Path | None = None,
    expectations: str | Path | None = None,
    every: timedelta | None = None,
    on_failure: OnFailure | None = None,
    on_resolved: OnFailure | None = None,
    on_late: OnLate | None = None,
) -> DAG:
    """Return the DAG that watches every table of the declared streams.

    :param streams: folder of the declared streams.
    :param aggregations: folder of the declared aggregations, whose days are watched too.
    :param expectations: folder of the quality gates' suites. An alert fires for a suite that gates no table.
    :param every: interval between runs; by default FRAZIL_HEALTH_EVERY, or a minute.
    :param on_failure: notifiers, called when an alert fires, and when health cannot be measured.
    :param on_resolved: notifiers, called when an alert resolves.
    :param on_late: called when a measurement hangs; by default the triggerer logs it.
    """
    folder = str(Path(streams).absolute())
    aggregated = str(Path(aggregations).absolute()) if aggregations else None
    suites = str(Path(expectations).absolute()) if expectations else None
    declared = find_declared(Path(aggregations), AGGREGATIONS, now_ms=clock.now_ms()) if aggregations else ()
    names = [stream.spec.name for stream in declared if stream.spec and not stream.removed]
    with DAG(
        DAG_ID,
        description="Measures every table: small files, manifests, metadata, freshness. Fires and resolves alerts",
        doc_md=DOC_MD,
        schedule=every or read_interval(INTERVAL_VARIABLE, DEFAULT_INTERVAL),
        max_active_runs=1,
        deadline=deadline(LATE_AFTER, sentence=LATE_MESSAGE, on_late=on_late),
        **dag_profile("Health of all tables and streams", purpose="maintenance", on_failure=on_failure),
    ) as dag:
        measured: Any = task(inlets=[HEALTH, *map(again_asset, names)])(measure)(folder, aggregated, names, suites)
        task(outlets=[HEALTH])(changed)(measured)
        task(on_failure_callback=build_notifiers(on_failure, _fired_message))(alerts)(measured)
        notifiers = build_notifiers(on_resolved, partial(_message, kind="resolved"), "FRAZIL_ON_RESOLVED")
        task(on_success_callback=notifiers)(resolved)(measured)
    return dag


def measure(streams: str, aggregations: str | None, names: list[str], expectations: str | None = None) -> AlertLists:
    """Measure all tables and other watched subjects, and update the alerts. `names` are the aggregations' names."""
    from frazil.airflow.health import subjects as watched  # a parsed DAG file needs no PyIceberg
    from frazil.airflow.health import tasks as table_health

    stores = get_current_context()["asset_state_store"]
    return table_health.measure_all(
        Path(streams),
        stores[HEALTH],
        aggregations=Path(aggregations) if aggregations else None,
        expectations=Path(expectations) if expectations else None,
        again={name: stores[again_asset(name)] for name in names},
        failed=watched.failed_runs,
        is_paused=watched.is_dag_paused,
    )


def changed(measured: AlertLists) -> None:
    measured = check_xcom(measured, "measure", ALERT_LIST_TYPES)
    extra = {key: measured[key] for key in ("fired", "resolved")}
    if not any(extra.values()):
        raise AirflowSkipException("no alert fired, and none resolved")
    get_current_context()["outlet_events"][HEALTH].extra = extra


def alerts(measured: AlertLists) -> None:
    active = check_xcom(measured, "measure", ALERT_LIST_TYPES)["active"]
    if not active:
        raise AirflowSkipException("no alert is active")
    for alert in active:
        # Each gets a log line, because Airflow truncates long texts of exceptions.
        log.error("%s", alert["sentence"])
    rules = sorted({alert["rule"] for alert in active})
    raise AirflowFailException(
        f"active alerts ({len(active)}): {', '.join(rules)}. The lines above say what is wrong and what to do, and the "
        "runbook has an entry for each rule"
    )


def resolved(measured: AlertLists) -> None:
    if not check_xcom(measured, "measure", ALERT_LIST_TYPES)["resolved"]:
        raise AirflowSkipException("no alert resolved")


def _fired_message(context: Any) -> Message | None:
    try:
        return _message(context, "fired")
    except Exception:  # Airflow did not answer: the task failed, which is reported
        return failure_message(context)


def _message(context: Any, kind: str) -> Message | None:
    measured = check_xcom(context["ti"].xcom_pull(task_ids="measure"), "measure", ALERT_LIST_TYPES)
    alerts = [alert for alert in measured[kind] if isinstance(alert, dict)]
    active = [alert for alert in measured["active"] if isinstance(alert, dict)]
    return build_message(alerts, is_over=kind == "resolved", active=active, overview=page_url())
