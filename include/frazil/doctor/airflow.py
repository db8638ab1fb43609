"""Checks this machine's Airflow in a separate process, because frazil's commands never import Airflow."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from frazil.doctor.finding import Finding, State

WITHIN_S = 90.0
"""Timeout in seconds: importing Airflow takes some seconds, and longer on a busy host."""


def airflow(streams: Path, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the findings of `frazil.airflow.doctor` about the Airflow that this environment configures."""
    if find_spec("airflow") is None:
        yield Finding("airflow", State.SKIPPED, "Airflow is not installed in this Python")
        return
    if not _is_set_up(environment):
        yield Finding("airflow", State.SKIPPED, "no Airflow is set up for this user: AIRFLOW_HOME has no airflow.cfg")
        return
    command = [sys.executable, "-m", "frazil.airflow.doctor", str(streams.absolute())]
    ran = subprocess.run(
        command, env=dict(environment), capture_output=True, text=True, timeout=WITHIN_S - 5, check=False
    )
    if ran.returncode != 0:
        last = ran.stderr.strip().splitlines()[-1:] or [f"it ended with {ran.returncode}"]
        yield Finding("airflow", State.WRONG, f"Airflow cannot be asked: {last[0]}", "airflow db check")
        return
    for one in json.loads(ran.stdout.strip().splitlines()[-1]):
        yield Finding(one["subject"], State(one["state"]), one["said"], one["fix"])


def _is_set_up(environment: Mapping[str, str]) -> bool:
    """Whether an Airflow is configured. Without this check, importing Airflow would create a configuration file."""
    if any(name.startswith("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN") for name in environment):
        return True
    folder = Path(environment.get("AIRFLOW_HOME") or "~/airflow").expanduser()
    return (folder / "airflow.cfg").is_file()
