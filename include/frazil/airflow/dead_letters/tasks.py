"""Runs `frazil dlq` in a separate process, because decoders need libraries that Airflow must not load."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from airflow.sdk import get_current_context
from airflow.sdk.exceptions import AirflowFailException

from frazil.airflow.task import run_name

log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-c", "from frazil.cli.main import main; main()")


def settle(streams: str) -> dict[str, Any]:
    """Replay or discard dead letters, as the form requests. Return how many landed, failed, and so on.

    An invalid form fails the task for good; temporary errors are retried.
    """
    from frazil.errors import NO_RESTART  # noqa: PLC0415 - not when a DAG file is parsed

    context = get_current_context()
    user = context["dag_run"].triggering_user_name
    by = f"{user}, Airflow" if user else f"the DAG run {context['dag_run'].run_id}"
    arguments = dlq_arguments(context["params"], run_name(context), by=by)
    log.info("frazil %s", " ".join(arguments))
    done = subprocess.run([*COMMAND, *arguments, "--streams", streams], capture_output=True, text=True, check=False)
    for line in done.stderr.splitlines():
        log.info("%s", line)
    if done.returncode:
        words = done.stderr.strip().rpartition("\n")[2]
        error = AirflowFailException if done.returncode in {2, *NO_RESTART} else RuntimeError
        raise error(f"exit code {done.returncode}: {words}")
    result: dict[str, Any] = json.loads(done.stdout)
    log.info("%s", result)
    return result


def dlq_arguments(form: Mapping[str, Any], run: str, *, by: str) -> list[str]:
    """Return the command-line arguments of `frazil` for a filled-in form. Pure.

    Raises AirflowFailException if a field is missing. `by` is the user who requests the action.
    """
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
