"""`frazil doctor`: checks whether this machine, and the services that streams use, meet frazil's requirements."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import click

from frazil.cli.options import json_option, streams_option
from frazil.cli.output import echo, echo_json, echo_line
from frazil.doctor import Check, CheckState, Finding, host, run_checks
from frazil.doctor.streams import check_connections, check_stream_clocks, load_declarations

SIGNS = {
    CheckState.OK: ("✓", "green"),
    CheckState.WARNING: ("!", "yellow"),
    CheckState.WRONG: ("✗", "red"),
    CheckState.SKIPPED: ("–", "dim"),
}


@click.command()
@streams_option
@json_option
def doctor(streams_folder: Path, *, as_json: bool) -> None:
    """Check this machine, and the services that streams need.

    Checks Python, Java, jars, folders, ports, the tasks' Python, declarations, Kafka, catalogs and their storage
    (conditional put included), clocks, and Airflow. Shows how to fix each fault. To test catalog and storage, it
    creates a table and an object and removes them again; it changes nothing else.

    Exits with 1 if something is wrong. Warnings do not count.

    \b
    Example:
      frazil doctor --streams include/streams
    """
    streams, declared = load_declarations(streams_folder)
    environment, default_ports, used_ports = _dev_environment()
    checks = {
        "python": Check(host.check_python),
        "java": Check(host.check_java, timeout_s=65),
        "pyspark": Check(host.check_pyspark),
        "jars": Check(host.check_jars),
        "folders": Check(host.check_folders),
        "tasks' python": Check(host.check_task_python, timeout_s=65),
        **({"ports": Check(partial(host.check_ports, default_ports, used_ports))} if default_ports else {}),
        "declarations": Check(lambda: declared),
        "connections": Check(partial(check_connections, streams), timeout_s=180),
        "clock": Check(partial(check_stream_clocks, streams), timeout_s=60),
        "api server": Check(host.check_api_servers),
        "airflow": Check(partial(host.check_airflow, streams_folder, environment), timeout_s=host.AIRFLOW_TIMEOUT_S),
    }
    findings = []
    for finding in run_checks(checks):
        findings.append(finding)
        if not as_json:
            _print_finding(finding)
    counts = Counter(finding.state for finding in findings)
    if as_json:
        echo_json({"findings": findings, "counts": {state.value: counts[state] for state in CheckState}})
    else:
        skipped_text = f", {counts[CheckState.SKIPPED]} not checked" if counts[CheckState.SKIPPED] else ""
        count_text = (
            f"{counts[CheckState.WRONG]} wrong, {counts[CheckState.WARNING]} with a warning, {counts[CheckState.OK]} OK"
        )
        echo(f"\n{count_text}{skipped_text}")
    if counts[CheckState.WRONG]:
        raise SystemExit(1)


def _print_finding(finding: Finding) -> None:
    sign, style = SIGNS[finding.state]
    echo_line(f"{sign} {finding.subject:<14} {finding.message}", style=style, head=len(sign))
    if finding.fix:
        echo(f"  {'':<14} → {finding.fix}")


def _dev_environment() -> tuple[dict[str, str], dict[str, int], Mapping[str, int]]:
    """Return Airflow's environment, the default ports of `frazil dev up`, and the ports of its running servers."""
    environment = dict(os.environ)
    if find_spec("httpx") is None:  # these servers only exist with frazil[dev]
        return environment, {}, {}
    from frazil.cli.dev import DEFAULT_AIRFLOW_PORT, DEFAULT_KAFKA_PORT, find_dev_servers

    dev = find_dev_servers()
    servers = dev.servers()
    used = {"kafka": dev.kafka.port} if servers["kafka"] else {}
    if servers["api-server"]:
        used["airflow"] = dev.airflow.port
        environment = dev.airflow.environment()
    return environment, {"kafka": DEFAULT_KAFKA_PORT, "airflow": DEFAULT_AIRFLOW_PORT}, used
