"""The DAG `frazil_dead_letters`: a form to decode a stream's dead letters again, or to discard them.

Its task runs `frazil dlq replay` or `frazil dlq discard` in a separate process. A cleared task, or a new run with the
same form, continues where the previous one was interrupted. A dry run decodes a sample and changes nothing; it fails
if the whole sample would fail again.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param, get_current_context
from airflow.sdk.exceptions import AirflowFailException

from frazil.airflow.dag_profile import OnFailure, dag_profile, report, run_name, task
from frazil.airflow.declared_streams import declared_streams

log = logging.getLogger(__name__)

DAG_ID = "frazil_dead_letters"
COMMAND = (sys.executable, "-c", "from frazil.cli.main import main; main()")
"""The command of a separate process, because decoders need libraries that Airflow must not load."""


def dead_letters_dag(streams: str | Path, *, on_failure: OnFailure | None = None) -> DAG:
    """Return the DAG that replays or discards the dead letters of any declared stream, one run at a time.

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
        params=_form([stream.name for stream in declared_streams(folder) if stream.spec is not None]),
        **dag_profile(
            "Replay or discard dead letters",
            purpose="dead letters",
            on_failure=on_failure,
            retries=2,
            retry_delay=timedelta(minutes=1),
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
        "dry-run": Param(True, type="boolean", title="Dry run", description="Only show what would fail, and why."),
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


def settle(streams: str) -> dict[str, Any]:
    """Replay or discard dead letters. Return the counts that `frazil dlq` prints. An invalid form is not retried."""
    from frazil.errors import NO_RESTART_EXIT_CODES  # not when a DAG file is parsed

    context = get_current_context()
    user = context["dag_run"].triggering_user_name
    user_text = f"{user}, Airflow" if user else f"the DAG run {context['dag_run'].run_id}"
    arguments = dlq_arguments(context["params"], run_name(context), by=user_text)
    log.info("frazil %s", " ".join(arguments))
    process = subprocess.run([*COMMAND, *arguments, "--streams", streams], capture_output=True, text=True, check=False)
    for line in process.stderr.splitlines():
        log.info("%s", line)
    if process.returncode:
        words = process.stderr.strip().rpartition("\n")[2]
        error = AirflowFailException if process.returncode in {2, *NO_RESTART_EXIT_CODES} else RuntimeError
        raise error(f"exit code {process.returncode}: {words}")
    result: dict[str, Any] = json.loads(process.stdout)
    report(_result_text(result, is_dry_run=context["params"]["dry-run"]))
    if result.get("would-fail") and not result["would-land"]:
        raise AirflowFailException(f"a replay would change nothing: all would fail again. {' '.join(result['errors'])}")
    return result


def _result_text(result: Mapping[str, Any], *, is_dry_run: bool) -> str:
    if is_dry_run and "would-land" in result:
        return (
            f"Dry run: {result['would-land']:,} dead letters would land, and {result['would-fail']:,} would fail again"
        )
    return ", ".join(f"{name}: {value:,}" for name, value in result.items() if isinstance(value, int))


def dlq_arguments(form: Mapping[str, Any], run: str, *, by: str) -> list[str]:
    discards = form["action"] == "discard"
    because = (form.get("because") or "").strip()
    if discards and not because:
        raise AirflowFailException("a discard needs a reason: fill in `because`. Nothing was changed")
    bounds = [(f"--{name}", form[name]) for name in ("from", "to") if form.get(name)]
    reasons = [("--reason", reason) for reason in form.get("reasons") or ()]
    return [
        "dlq",
        form["action"],
        form["stream"],
        *(word for option in (*reasons, *bounds) for word in option),
        *(("--because", because, "--by", by, "--yes") if discards else ("--run", run)),
        *(("--dry-run",) if form["dry-run"] else ()),
        "--json",
    ]
