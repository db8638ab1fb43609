"""A driver on a standalone Spark cluster, controlled through the REST servers of the cluster's masters.

Spark does not submit Python drivers to a standalone cluster. The application that frazil submits is therefore
SparkSubmit itself: SparkSubmit runs on a worker in client mode, and starts Python there. A kill ends SparkSubmit's JVM
at once; the Python process must notice by itself that its JVM is gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import requests

from frazil.cluster.api import Silent, Unreached, body, call
from frazil.cluster.driver import DriverState, DriverStatus
from frazil.errors import EnvironmentUnusable

WHO = "the Spark master's REST server"
SPARK_SUBMIT = "org.apache.spark.deploy.SparkSubmit"
_STATES = {
    "SUBMITTED": DriverState.WAITING,
    "RELAUNCHING": DriverState.WAITING,
    "RUNNING": DriverState.RUNNING,
    "FINISHED": DriverState.SUCCEEDED,
    "KILLED": DriverState.KILLED,
    "FAILED": DriverState.FAILED,
    "ERROR": DriverState.FAILED,
}


def rest_addresses(master: str, port: int) -> tuple[str, ...]:
    """Return the REST address of each master in `spark://host:port,host:port`, such as `http://host:6066`."""
    hosts = [each.rpartition(":")[0] for each in master.removeprefix("spark://").split(",")]
    return tuple(f"http://{host}:{port}" for host in hosts)


def create_request(
    program: str,
    arguments: Sequence[str],
    *,
    properties: Mapping[str, str],
    environment: Mapping[str, str],
    spark_version: str,
) -> dict[str, Any]:
    """Build the request that makes a master run `program` on a worker. `program` is a Python file on the worker's
    host.
    """
    return {
        "action": "CreateSubmissionRequest",
        "clientSparkVersion": spark_version,
        "mainClass": SPARK_SUBMIT,
        # The resource is copied to the driver's folder; the program runs from its path, next to its package.
        "appResource": f"file:{program}",
        "appArgs": ["--name", properties["spark.app.name"], program, *arguments],
        "environmentVariables": dict(environment),
        # Otherwise the master would restart it next to the one that is submitted next.
        "sparkProperties": {**properties, "spark.driver.supervise": "false", "spark.submit.deployMode": "cluster"},
    }


def submit(addresses: Sequence[str], request: Mapping[str, Any]) -> str:
    """Ask the masters, one after another, to run a driver. Returns the driver's id, such as
    `driver-20251122013000-0000`.

    The next master is tried only if the previous one refused or could not be reached. A master that does not answer may
    have accepted the driver, so asking another master could start the driver twice.

    Raises EnvironmentUnusable if all masters refuse, and Unreached if none accepted and at least one could not be
    reached. Raises Silent if a master got the request but did not answer: the driver may run.
    """
    refused, unreached = [], None
    for address in addresses:
        try:
            found = _request("POST", f"{address}/v1/submissions/create", json=dict(request))
        except Unreached as problem:
            unreached = problem
            continue
        if found.get("success") is True and found.get("submissionId"):
            return str(found["submissionId"])
        refused.append(str(found.get("message") or "it does not say why").partition("\n")[0])
    if unreached is not None:
        raise unreached
    raise EnvironmentUnusable(f"the cluster refuses the driver: {'; '.join(refused) or 'it has no master'}")


class StandaloneDriver:
    """A driver on one of the cluster's workers. If the cluster has several masters, the leader answers."""

    def __init__(self, submission: str, *, addresses: Sequence[str]) -> None:
        self._submission, self._addresses = submission, tuple(addresses)

    def status(self) -> DriverStatus:
        """See `Driver.status`."""
        reason = f"no address of {WHO} is known"
        for address in self._addresses:
            try:
                found = _request("GET", f"{address}/v1/submissions/status/{self._submission}")
            except Silent as silent:
                reason = str(silent)
                continue
            status = submission_status(found)
            if status.state is not DriverState.UNKNOWN:
                return status
            reason = status.reason
        return DriverStatus(DriverState.UNKNOWN, reason)

    def kill(self) -> None:
        """See `Driver.kill`. Succeeds also if the master does not know the driver."""
        reason = ""
        for address in self._addresses:
            try:
                found = _request("POST", f"{address}/v1/submissions/kill/{self._submission}")
            except Silent as silent:
                reason = str(silent)
                continue
            said = str(found.get("message") or "")
            if found.get("success") is True or "finished or does not exist" in said:
                return
            reason = said
        raise EnvironmentUnusable(f"{self._submission} was not killed: {reason}")

    def log(self, *, limit_bytes: int) -> str | None:  # noqa: ARG002 - see the interface
        """Return None: the REST server offers no logs. The log is in the driver's folder on its worker."""
        return None


def submission_status(found: Mapping[str, Any]) -> DriverStatus:
    """Convert a status answer of the REST server to a driver's status."""
    said = str(found.get("message") or "").partition("\n")[0]
    if found.get("success") is not True:
        if said:  # a standby, or a master that recovers, does not know its drivers
            return DriverStatus(DriverState.UNKNOWN, f"{WHO} says: {said}")
        return DriverStatus(DriverState.GONE, "the Spark master does not know it: it was started without its state")
    name = str(found.get("driverState"))
    state = _STATES.get(name, DriverState.UNKNOWN)
    where = f" on {found['workerHostPort']}" if found.get("workerHostPort") else ""
    if state is DriverState.WAITING:
        reason = "no worker has the memory and the core that the driver needs, or it is about to start"
    elif state is DriverState.RUNNING:
        reason = f"it runs{where}"
    elif state is DriverState.SUCCEEDED:
        return DriverStatus(state, "it ended in order", 0)
    elif state is DriverState.KILLED:
        reason = f"it was killed{where}"
    elif name == "ERROR":
        reason = f"its worker was lost, or could not start it{where}{f': {said}' if said else ''}"
    else:
        reason = f"the master has it as {name}{where}{f': {said}' if said else ''}"
    return DriverStatus(state, reason)


def _request(method: str, url: str, **how: Any) -> dict[str, Any]:
    with requests.Session() as session:
        answer = call(session, method, url, who=WHO, **how)
    return body(answer, who=WHO)
