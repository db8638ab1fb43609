"""The DAG `frazil_dead_letters`: a form to decode a stream's dead letters again, or to discard them.

Its task runs `frazil dlq replay` or `frazil dlq discard` in a separate process. A cleared task, or a new run with the
same form, continues where the previous one was interrupted. A dry run only counts the dead letters.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param

from frazil.airflow.dag_profile import OnFailure, dag_profile
from frazil.airflow.dead_letters.tasks import settle
from frazil.airflow.declared import declared_streams
from frazil.airflow.task import task

DAG_ID = "frazil_dead_letters"
RETRIES = 2
RETRY_DELAY = timedelta(minutes=1)


def dead_letters_dag(streams: str | Path, *, on_failure: OnFailure | None = None) -> DAG:
    """Return the DAG that replays or discards the dead letters of any declared stream. One run is active at a time.

    :param streams: folder of the declared streams.
    :param on_failure: notifiers, called when a run needs attention.
    """
    folder = Path(streams).absolute()
    with DAG(
        DAG_ID,
        description="Replays dead letters exactly once, or discards them",
        doc_md=__doc__,
        schedule=None,
        max_active_runs=1,
        params=_form([found.name for found in declared_streams(folder) if found.spec is not None]),
        **dag_profile(
            "Replay or discard dead letters",
            purpose="dead letters",
            on_failure=on_failure,
            retries=RETRIES,
            retry_delay=RETRY_DELAY,
        ),
    ) as dag:
        task(settle)(str(folder))
    return dag


def _form(streams: list[str]) -> dict[str, Param]:
    def moment(title: str) -> Param:
        return Param(None, type=["null", "string"], format="date-time", title=title, section="Rejected")

    reasons: dict[str, Any] = {"type": ["null", "array"], "items": {"type": "string", "pattern": r"^\w+$"}}
    return {
        "stream": Param(streams[0] if streams else None, type="string", enum=streams or [""], title="Stream"),
        "action": Param("replay", type="string", enum=["replay", "discard"], title="Action"),
        "dry-run": Param(True, type="boolean", title="Dry run", description="Only count the dead letters."),
        "reasons": Param(None, **reasons, title="Reasons", description="Error classes, one per line. Empty: all."),
        "from": moment("From"),
        "to": moment("To (exclusive)"),
        "because": Param(
            None,
            type=["null", "string"],
            title="Because",
            description="Reason for a discard. Stored with each dead letter.",
        ),
    }
