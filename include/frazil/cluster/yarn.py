"""Controls a driver in a YARN cluster, through the REST APIs of the ResourceManagers and NodeManagers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import requests

from frazil.cluster.driver import ApiUnavailable, DriverState, DriverStatus, ask_any, parse_json_object, send_request
from frazil.errors import AccessDenied, EnvironmentUnusable

API_NAME = "YARN's ResourceManager"
_SUBMITTED_PATTERN = re.compile(r"\bSubmitted application (application_\d+_\d+)")
_PYTHON_EXIT_CODE = re.compile(r"User application exited with status (\d+)")
_ENDED_BEFORE_SPARK = "User did not initialize spark context!"
"""The error of Spark's ApplicationMaster if Python exited with code 0 before it started Spark."""
_CONTAINER_EXIT_CODE = re.compile(r"exited with\s+exitCode: (-?\d+)")
_EXIT_CODE_REASONS = {
    -103: "the container exceeded its virtual memory limit",
    -104: "the container exceeded its memory limit: raise resources.driver-memory, or spark.driver.memoryOverhead",
    -100: "the container's node was lost",
    -102: "the container was pre-empted",
    137: "the container was killed",
    143: "the container was terminated",
}
_LOGIN_REQUIRED = "requires Kerberos or another login, which frazil does not support"


def parse_application_id(output: str) -> str | None:
    match = _SUBMITTED_PATTERN.search(output)
    return match[1] if match else None


def read_resource_managers(configuration: Path) -> tuple[str, ...]:
    """Return the addresses in yarn-site.xml of the folder `configuration`. Raises EnvironmentUnusable."""
    file = configuration / "yarn-site.xml"
    try:
        conf = {
            (each.findtext("name") or "").strip(): (each.findtext("value") or "").strip()
            for each in ElementTree.parse(file).iter("property")
        }
    except (OSError, ElementTree.ParseError) as error:
        raise EnvironmentUnusable(f"cannot read {file}, which defines YARN's address: {error}") from error
    secure = conf.get("yarn.http.policy") == "HTTPS_ONLY"
    key, port = ("webapp.https.address", 8090) if secure else ("webapp.address", 8088)
    ids = [f".{each.strip()}" for each in conf.get("yarn.resourcemanager.ha.rm-ids", "").split(",") if each.strip()]
    addresses = []
    for suffix in ids or [""]:
        host = conf.get(f"yarn.resourcemanager.hostname{suffix}", "localhost")
        address = conf.get(f"yarn.resourcemanager.{key}{suffix}", f"{host}:{port}")
        address = address.replace("${yarn.resourcemanager.hostname}", host)
        addresses.append(f"{'https' if secure else 'http'}://{address}")
    return tuple(addresses)


def find_application(tag: str, *, addresses: Sequence[str], user: str | None = None) -> str | None:
    """Return the id of the newest application with this tag, or None. Raises ApiUnavailable."""
    parameters = {"applicationTags": tag, **({"user.name": user} if user else {})}

    def find(address: str) -> str | None:
        with requests.Session() as session:
            response = send_request(session, "GET", f"{address}/ws/v1/cluster/apps", api=API_NAME, params=parameters)
        applications = parse_json_object(response, api=API_NAME).get("apps") or {}
        if response.status_code != 200:
            answered = f"{API_NAME} answered {response.status_code}"
            raise ApiUnavailable(_describe_denial(response) if response.status_code in {401, 403} else answered)
        ids = (str(app["id"]) for app in applications.get("app") or ())
        return max(ids, key=lambda each: [int(number) for number in each.split("_")[1:]], default=None)

    return ask_any(addresses, find, api=API_NAME)


class YarnDriver:
    """A `Driver` that is an ApplicationMaster. Without Kerberos, YARN's access lists apply to `user`."""

    def __init__(self, application: str, *, addresses: Sequence[str], user: str | None = None) -> None:
        self._application, self._addresses, self._user = application, tuple(addresses), user

    def status(self) -> DriverStatus:
        try:
            application = self._fetch_application()
        except ApiUnavailable as error:
            return DriverStatus(DriverState.UNKNOWN, str(error))
        if application is None:
            reason = f"{API_NAME} has no record of {self._application}: the record expired, or YARN lost its state"
            return DriverStatus(DriverState.GONE, reason)
        return to_driver_status(application)

    def kill(self) -> None:
        try:
            response = self._request("PUT", "/state", json={"state": "KILLED"})
        except ApiUnavailable as error:
            raise EnvironmentUnusable(f"cannot kill {self._application}: {error}") from error
        if response.status_code in {401, 403}:
            raise AccessDenied(f"cannot kill {self._application}: {_describe_denial(response)}")
        # 404: the application is gone. 400: it has ended.

    def log(self, *, limit_bytes: int) -> str | None:
        """Return the end of the log, or None. The NodeManager keeps the log until the application ends."""
        try:
            application = self._fetch_application() or {}
            container = re.search(r"container_[\w]+", application.get("amContainerLogs") or "")
            node = application.get("amHostHttpAddress")
            if container is None or not node:
                return None
            scheme = application["amContainerLogs"].partition(":")[0]
            folder = f"{scheme}://{node}/ws/v1/node/containerlogs/{container[0]}"
            # Python's output is last, so that the end of the log shows it.
            parts = [self._fetch_log_file(f"{folder}/{name}", limit_bytes // 2) for name in ("stderr", "stdout")]
        except ApiUnavailable:
            return None
        return "".join(part for part in parts if part) or None

    def _fetch_log_file(self, url: str, limit_bytes: int) -> str | None:
        with requests.Session() as session:
            params = {**self._user_parameters(), "size": -limit_bytes}
            response = send_request(session, "GET", url, api="YARN's NodeManager", params=params)
        return strip_log_envelope(response.text) if response.status_code == 200 else None

    def _fetch_application(self) -> dict[str, Any] | None:
        response = self._request("GET")
        if response.status_code == 404:
            return None
        if response.status_code in {401, 403}:
            raise ApiUnavailable(_describe_denial(response))
        application = parse_json_object(response, api=API_NAME).get("app")
        if not isinstance(application, dict):
            raise ApiUnavailable(f"{API_NAME} answered {response.status_code} without an application")
        return application

    def _request(self, method: str, part: str = "", **options: Any) -> requests.Response:
        def ask(address: str) -> requests.Response:
            url = f"{address}/ws/v1/cluster/apps/{self._application}{part}"
            with requests.Session() as session:
                response = send_request(session, method, url, api=API_NAME, params=self._user_parameters(), **options)
            if response.status_code not in {401, 403, 404}:
                parse_json_object(response, api=API_NAME)
            return response

        return ask_any(self._addresses, ask, api=API_NAME)

    def _user_parameters(self) -> dict[str, str]:
        return {"user.name": self._user} if self._user else {}


def to_driver_status(application: Mapping[str, Any]) -> DriverStatus:
    state, final = str(application.get("state")), str(application.get("finalStatus"))
    message = str(application.get("diagnostics") or "").strip()
    first = message.partition("\n")[0][:300]
    if state in {"NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED"}:
        return DriverStatus(DriverState.WAITING, first or f"YARN reports the state {state}")
    if state == "RUNNING":
        return DriverStatus(DriverState.RUNNING, "the ApplicationMaster is running")
    if state == "KILLED" or final == "KILLED":
        return DriverStatus(DriverState.KILLED, first or "the application was killed in YARN")
    if state == "FINISHED" and final == "SUCCEEDED":
        return DriverStatus(DriverState.SUCCEEDED, "the driver ended normally", 0)
    if state in {"FINISHED", "FAILED"}:
        return _failed_status(message, first)
    return DriverStatus(DriverState.UNKNOWN, f"YARN reports the state {state}, which frazil does not recognise")


def _failed_status(message: str, first: str) -> DriverStatus:
    """Return the status of a failed application, with the last exit code in its diagnostics."""
    if codes := _PYTHON_EXIT_CODE.findall(message):
        return DriverStatus(DriverState.FAILED, f"the driver's Python exited with code {codes[-1]}", int(codes[-1]))
    if _ENDED_BEFORE_SPARK in message:
        return DriverStatus(DriverState.SUCCEEDED, "the driver ended normally before it started Spark", 0)
    if codes := _CONTAINER_EXIT_CODE.findall(message):
        first = _EXIT_CODE_REASONS.get(int(codes[-1]), f"the container exited with code {codes[-1]}")
    return DriverStatus(DriverState.FAILED, first or "YARN reports no reason")


def strip_log_envelope(response: str) -> str:
    _, begins, text = response.partition("LogContents:\n")
    return re.sub(r"\nEnd of LogType:[^\n]*\n\**\s*\Z", "\n", text) if begins else response


def _describe_denial(response: requests.Response) -> str:
    if response.status_code == 401:
        return f"{API_NAME} {_LOGIN_REQUIRED}"
    return f"{API_NAME} denies access to this user: check the queue ACLs, or yarn.admin.acl"
