"""A driver in a YARN cluster, controlled through the REST APIs of the ResourceManager and NodeManagers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import requests

from frazil.cluster.api import Silent, body, call
from frazil.cluster.driver import DriverState, DriverStatus
from frazil.errors import AccessDenied, EnvironmentUnusable

WHO = "YARN's ResourceManager"
_WAITING = frozenset({"NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED"})
_SUBMITTED = re.compile(r"\bSubmitted application (application_\d+_\d+)")
_PYTHON_EXIT_CODE = re.compile(r"User application exited with status (\d+)")
_ENDED_EARLY = "User did not initialize spark context!"
"""Error that Spark's ApplicationMaster reports if Python exited with code 0 before it started Spark."""
_CONTAINER_EXIT_CODE = re.compile(r"exited with\s+exitCode: (-?\d+)")
_EXIT_CODE_REASONS = {
    -103: "its container exceeded its virtual memory",
    -104: "its container exceeded its memory: raise resources.driver-memory, or spark.driver.memoryOverhead",
    -100: "its node was lost",
    -102: "its container was pre-empted",
    137: "its container was killed",
    143: "its container was ended",
}
_KERBEROS = "asks for Kerberos or another login, which frazil does not support"


def submitted_application(output: str) -> str | None:
    """Return the application's id from the output of spark-submit; None if YARN has not accepted the application
    yet.
    """
    found = _SUBMITTED.search(output)
    return found[1] if found else None


def is_submitted(output: str) -> bool:
    """Return whether spark-submit has already sent the application to YARN."""
    return "Submitting application application_" in output


def resource_managers(configuration: Path) -> tuple[str, ...]:
    """Return the web addresses of all ResourceManagers, such as `http://rm1:8088`, from yarn-site.xml in the folder.

    Raises EnvironmentUnusable if the file cannot be read.
    """
    file = configuration / "yarn-site.xml"
    try:
        found = {
            (each.findtext("name") or "").strip(): (each.findtext("value") or "").strip()
            for each in ElementTree.parse(file).iter("property")
        }
    except (OSError, ElementTree.ParseError) as error:
        raise EnvironmentUnusable(f"{file} cannot be read, and says where YARN is: {error}") from error
    secure = found.get("yarn.http.policy") == "HTTPS_ONLY"
    key, port = ("webapp.https.address", 8090) if secure else ("webapp.address", 8088)
    ids = [f".{each.strip()}" for each in found.get("yarn.resourcemanager.ha.rm-ids", "").split(",") if each.strip()]
    addresses = []
    for suffix in ids or [""]:
        host = found.get(f"yarn.resourcemanager.hostname{suffix}", "localhost")
        address = found.get(f"yarn.resourcemanager.{key}{suffix}", f"{host}:{port}")
        addresses.append(
            f"{'https' if secure else 'http'}://{address.replace('${yarn.resourcemanager.hostname}', host)}"
        )
    return tuple(addresses)


def application_of_tag(tag: str, *, addresses: Sequence[str], user: str | None = None) -> str | None:
    """Return the id of the newest application with this tag; None if YARN has no such application.

    Raises Silent if YARN gives no usable answer.
    """
    parameters = {"applicationTags": tag, **({"user.name": user} if user else {})}
    problem = Silent(f"no web address of {WHO} is known")
    for address in addresses:
        try:
            with requests.Session() as session:
                answer = call(session, "GET", f"{address}/ws/v1/cluster/apps", who=WHO, params=parameters)
            found = body(answer, who=WHO).get("apps") or {}
        except Silent as silent:
            problem = silent
            continue
        if answer.status_code != 200:
            problem = Silent(
                _refused(answer) if answer.status_code in {401, 403} else f"{WHO} answered {answer.status_code}"
            )
            continue
        ids = (str(app["id"]) for app in found.get("app") or ())
        return max(ids, key=lambda each: [int(number) for number in each.split("_")[1:]], default=None)
    raise problem


class YarnDriver:
    """A Spark application in cluster mode, whose ApplicationMaster is the driver.

    If there are several ResourceManagers, the active one answers; a standby redirects to it. `user` is the user name
    that a cluster without Kerberos checks against its access lists.
    """

    def __init__(self, application: str, *, addresses: Sequence[str], user: str | None = None) -> None:
        self._application, self._addresses, self._user = application, tuple(addresses), user

    def status(self) -> DriverStatus:
        """See `Driver.status`."""
        try:
            found = self._application_now()
        except Silent as silent:
            return DriverStatus(DriverState.UNKNOWN, str(silent))
        if found is None:
            reason = f"{WHO} has no record of {self._application}: the record expired, or YARN lost its state"
            return DriverStatus(DriverState.GONE, reason)
        return application_status(found)

    def kill(self) -> None:
        """See `Driver.kill`."""
        try:
            answer = self._ask("PUT", "/state", json={"state": "KILLED"})
        except Silent as silent:
            raise EnvironmentUnusable(f"{self._application} was not killed: {silent}") from silent
        if answer.status_code in {401, 403}:
            raise AccessDenied(f"{self._application} was not killed: {_refused(answer)}")
        # 404: nothing is left to kill. 400: it ended meanwhile.

    def log(self, *, limit_bytes: int) -> str | None:
        """See `Driver.log`. The NodeManager keeps the log until the application ends; afterwards, try `yarn logs`."""
        try:
            found = self._application_now() or {}
            container = re.search(r"container_[\w]+", found.get("amContainerLogs") or "")
            node = found.get("amHostHttpAddress")
            if container is None or not node:
                return None
            scheme = found["amContainerLogs"].partition(":")[0]
            folder = f"{scheme}://{node}/ws/v1/node/containerlogs/{container[0]}"
            # Python's own output comes last, so that a reader of the end sees it.
            parts = [self._file(f"{folder}/{name}", limit_bytes // 2) for name in ("stderr", "stdout")]
        except Silent:
            return None
        return "".join(part for part in parts if part) or None

    def _file(self, url: str, limit_bytes: int) -> str | None:
        with requests.Session() as session:
            answer = call(
                session, "GET", url, who="YARN's NodeManager", params={**self._user_parameters(), "size": -limit_bytes}
            )
        return contents(answer.text) if answer.status_code == 200 else None

    def _application_now(self) -> dict[str, Any] | None:
        answer = self._ask("GET")
        if answer.status_code == 404:
            return None
        if answer.status_code in {401, 403}:
            raise Silent(_refused(answer))
        found = body(answer, who=WHO).get("app")
        if not isinstance(found, dict):
            raise Silent(f"{WHO} answered {answer.status_code} without an application")
        return found

    def _ask(self, method: str, part: str = "", **how: Any) -> requests.Response:
        """Send a request to each ResourceManager in turn; return the first usable answer."""
        problem = Silent(f"no web address of {WHO} is known")
        for address in self._addresses:
            url = f"{address}/ws/v1/cluster/apps/{self._application}{part}"
            try:
                with requests.Session() as session:
                    answer = call(session, method, url, who=WHO, params=self._user_parameters(), **how)
                if answer.status_code not in {401, 403, 404}:
                    body(answer, who=WHO)
            except Silent as silent:
                problem = silent
            else:
                return answer
        raise problem

    def _user_parameters(self) -> dict[str, str]:
        return {"user.name": self._user} if self._user else {}


def application_status(found: Mapping[str, Any]) -> DriverStatus:
    """Convert YARN's report of an application to a driver's status."""
    state, final = str(found.get("state")), str(found.get("finalStatus"))
    said = str(found.get("diagnostics") or "").strip()
    first = said.partition("\n")[0][:300]
    if state in _WAITING:
        return DriverStatus(DriverState.WAITING, first or f"YARN has the application as {state}")
    if state == "RUNNING":
        return DriverStatus(DriverState.RUNNING, "YARN runs its ApplicationMaster")
    if state == "KILLED" or final == "KILLED":
        return DriverStatus(DriverState.KILLED, first or "it was killed in YARN")
    if state == "FINISHED" and final == "SUCCEEDED":
        return DriverStatus(DriverState.SUCCEEDED, "it ended in order", 0)
    if state in {"FINISHED", "FAILED"}:
        return _failure(said, first)
    return DriverStatus(DriverState.UNKNOWN, f"YARN has the application as {state}, which frazil does not know")


def _failure(said: str, first: str) -> DriverStatus:
    """Return the status of a failed application. The last exit code in the text belongs to the last attempt."""
    if codes := _PYTHON_EXIT_CODE.findall(said):
        return DriverStatus(DriverState.FAILED, f"its Python ended with exit code {codes[-1]}", int(codes[-1]))
    if _ENDED_EARLY in said:
        return DriverStatus(DriverState.SUCCEEDED, "it ended in order, before it started Spark", 0)
    if codes := _CONTAINER_EXIT_CODE.findall(said):
        return DriverStatus(
            DriverState.FAILED, _EXIT_CODE_REASONS.get(int(codes[-1]), f"its container ended with {codes[-1]}")
        )
    return DriverStatus(DriverState.FAILED, first or "YARN gives no reason")


def contents(answer: str) -> str:
    """Return the text of a log, without the NodeManager's header and footer."""
    _, begins, rest = answer.partition("LogContents:\n")
    return re.sub(r"\nEnd of LogType:[^\n]*\n\**\s*\Z", "\n", rest) if begins else answer


def _refused(answer: requests.Response) -> str:
    if answer.status_code == 401:
        return f"{WHO} {_KERBEROS}"
    return f"{WHO} refuses it to this user: check the queue ACLs, or yarn.admin.acl"
