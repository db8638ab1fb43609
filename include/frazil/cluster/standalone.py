"""Controls a driver on a standalone Spark cluster, through the REST servers of the cluster's masters. Spark cannot
submit Python drivers there. So frazil submits Spark's own class SparkSubmit as the driver, which starts Python on a
worker. If the driver is killed, only its JVM ends; the Python process must detect that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import requests

from frazil.cluster.driver import (
    ApiUnavailable,
    ApiUnreachable,
    DriverState,
    DriverStatus,
    ask_any,
    parse_json_object,
    send_request,
)
from frazil.errors import EnvironmentUnusable

API_NAME = "the Spark master's REST server"
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


def build_request(
    program: str,
    arguments: Sequence[str],
    *,
    properties: Mapping[str, str],
    environment: Mapping[str, str],
    spark_version: str,
) -> dict[str, Any]:
    """Return the request that makes a master run `program`, a Python file on the worker's host."""
    return {
        "action": "CreateSubmissionRequest",
        "clientSparkVersion": spark_version,
        "mainClass": "org.apache.spark.deploy.SparkSubmit",
        # The resource is copied to the driver's folder; the program runs from its path, next to its package.
        "appResource": f"file:{program}",
        "appArgs": ["--name", properties["spark.app.name"], program, *arguments],
        "environmentVariables": dict(environment),
        # Otherwise the master would restart the driver while the supervisor submits a new one.
        "sparkProperties": {**properties, "spark.driver.supervise": "false", "spark.submit.deployMode": "cluster"},
    }


def submit(addresses: Sequence[str], request: Mapping[str, Any]) -> str:
    """Ask the masters, one after another, to run a driver. Return its id, such as `driver-20251122013000-0000`.

    The next master is asked only if the previous one refused or could not be reached, so that no driver runs twice.
    Raises EnvironmentUnusable if all refuse. Raises ApiUnreachable if none accepted and one could not be reached, and
    ApiUnavailable if a master received the request but did not respond.
    """
    refused, unreached = [], None
    for address in addresses:
        try:
            answer = _request("POST", f"{address}/v1/submissions/create", json=dict(request))
        except ApiUnreachable as problem:
            unreached = problem
            continue
        if answer.get("success") is True and answer.get("submissionId"):
            return str(answer["submissionId"])
        refused.append(str(answer.get("message") or "no reason given").partition("\n")[0])
    if unreached is not None:
        raise unreached
    raise EnvironmentUnusable(f"the cluster refuses the driver: {'; '.join(refused) or 'no master is configured'}")


class StandaloneDriver:
    """A `Driver` on one of the cluster's workers. If there are several masters, the leader responds."""

    def __init__(self, submission: str, *, addresses: Sequence[str]) -> None:
        self._submission, self._addresses = submission, tuple(addresses)

    def status(self) -> DriverStatus:
        def ask(address: str) -> DriverStatus:
            status = to_driver_status(_request("GET", f"{address}/v1/submissions/status/{self._submission}"))
            if status.state is DriverState.UNKNOWN:
                raise ApiUnavailable(status.reason)
            return status

        try:
            return ask_any(self._addresses, ask, api=API_NAME)
        except ApiUnavailable as error:
            return DriverStatus(DriverState.UNKNOWN, str(error))

    def kill(self) -> None:
        """Kill the driver. Also succeeds if the master has no record of it."""

        def ask(address: str) -> None:
            answer = _request("POST", f"{address}/v1/submissions/kill/{self._submission}")
            message = str(answer.get("message") or "")
            if answer.get("success") is not True and "finished or does not exist" not in message:
                raise ApiUnavailable(message)

        try:
            ask_any(self._addresses, ask, api=API_NAME)
        except ApiUnavailable as error:
            raise EnvironmentUnusable(f"cannot kill {self._submission}: {error}") from error

    def log(self, *, limit_bytes: int) -> str | None:  # noqa: ARG002 - see the interface
        """Return None: only the driver's folder on its worker has the log."""
        return None


def to_driver_status(answer: Mapping[str, Any]) -> DriverStatus:
    message = str(answer.get("message") or "").partition("\n")[0]
    if answer.get("success") is not True:
        if message:  # a standby or recovering master does not know the drivers
            return DriverStatus(DriverState.UNKNOWN, f"{API_NAME} reports: {message}")
        return DriverStatus(
            DriverState.GONE, "the Spark master has no record of the driver: the master was restarted without its state"
        )
    name = str(answer.get("driverState"))
    state = _STATES.get(name, DriverState.UNKNOWN)
    where = f" on {answer['workerHostPort']}" if answer.get("workerHostPort") else ""
    if state is DriverState.WAITING:
        reason = "the driver is starting, or no worker has enough free memory and a free core"
    elif state is DriverState.RUNNING:
        reason = f"the driver runs{where}"
    elif state is DriverState.SUCCEEDED:
        return DriverStatus(state, "the driver ended normally", 0)
    elif state is DriverState.KILLED:
        reason = f"the driver was killed{where}"
    elif name == "ERROR":
        reason = f"the driver's worker was lost or could not start it{where}{f': {message}' if message else ''}"
    else:
        reason = f"the master reports the state {name}{where}{f': {message}' if message else ''}"
    return DriverStatus(state, reason)


def _request(method: str, url: str, **options: Any) -> dict[str, Any]:
    with requests.Session() as session:
        response = send_request(session, method, url, api=API_NAME, **options)
    return parse_json_object(response, api=API_NAME)
