"""A driver in a Kubernetes pod, controlled through the Kubernetes API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import requests

from frazil.cluster.api import Silent, body, call
from frazil.cluster.driver import DriverState, DriverStatus
from frazil.cluster.kubernetes_access import KubernetesAccess
from frazil.errors import AccessDenied, EnvironmentUnusable

WHO = "the Kubernetes API"
CONTAINER = "spark-kubernetes-driver"
"""The name that Spark gives the driver's container. An admission controller may have added other containers to
the pod.
"""
_WAITING_REASONS: dict[str, str] = {
    "ImagePullBackOff": "its image cannot be pulled",
    "ErrImagePull": "its image cannot be pulled",
    "InvalidImageName": "its image name is invalid",
    "CreateContainerConfigError": "a secret or config map that it names is missing",
    "CreateContainerError": "its container cannot be created",
    "CrashLoopBackOff": "its container ends again and again",
}
_OUT_OF_MEMORY = "its container exceeded its memory: raise resources.driver-memory, or spark.driver.memoryOverhead"


class DriverPod:
    """The pod of a driver in cluster mode. Spark creates the pod with `restartPolicy: Never`, so the driver runs
    once.
    """

    def __init__(self, name: str, *, namespace: str, access: KubernetesAccess) -> None:
        self._name, self._namespace, self._access = name, namespace, access

    def status(self) -> DriverStatus:
        """See `Driver.status`."""
        try:
            answer = self._ask("GET")
            if answer.status_code in {404, 410}:
                reason = f"the pod {self._name} does not exist in the namespace {self._namespace}: it was deleted"
                return DriverStatus(DriverState.GONE, reason)
            if answer.status_code != 200:
                return DriverStatus(DriverState.UNKNOWN, self._refused(answer, "get"))
            return pod_status(body(answer, who=WHO))
        except Silent as silent:
            return DriverStatus(DriverState.UNKNOWN, str(silent))

    def kill(self) -> None:
        """See `Driver.kill`."""
        try:
            answer = self._ask("DELETE", json={"gracePeriodSeconds": 0, "propagationPolicy": "Background"})
        except Silent as silent:
            raise EnvironmentUnusable(f"the pod {self._name} was not deleted: {silent}") from silent
        if answer.status_code not in {200, 202, 404, 410}:
            raise AccessDenied(f"the pod {self._name} was not deleted: {self._refused(answer, 'delete')}")

    def log(self, *, limit_bytes: int) -> str | None:
        """See `Driver.log`."""
        try:
            # The limit of the API counts from the beginning, so the end is asked for by lines.
            answer = self._ask("GET", "/log", params={"container": CONTAINER, "tailLines": max(1, limit_bytes // 100)})
        except Silent:
            return None
        return answer.text[-limit_bytes:] or None if answer.status_code == 200 else None

    def _ask(self, method: str, part: str = "", **how: Any) -> requests.Response:
        path = f"/api/v1/namespaces/{self._namespace}/pods/{self._name}{part}"
        try:
            session = self._access.session()
        except EnvironmentUnusable as error:
            raise Silent(str(error)) from error
        with session:
            return call(session, method, f"{self._access.address}{path}", who=WHO, **how)

    def _refused(self, answer: requests.Response, verb: str) -> str:
        if answer.status_code == 401:
            return f"{WHO} does not accept our token: it is expired, or of another cluster"
        if answer.status_code == 403:
            rights = f"the Role of its service account needs the verb {verb} for pods, and get for pods/log"
            return f"{WHO} denies access in the namespace {self._namespace}: {rights}"
        try:
            said = body(answer, who=WHO).get("message")
        except Silent as silent:
            return str(silent)
        return f"{WHO} answered {answer.status_code}: {said or answer.reason}"


def pod_status(pod: Mapping[str, Any]) -> DriverStatus:
    """Return the driver's status from a pod object, mostly from the state of the driver's own container.

    Raises Silent if `pod` is not a pod object.
    """
    status = pod.get("status")
    if pod.get("kind", "Pod") != "Pod" or not isinstance(status, dict):
        raise Silent(f"{WHO} did not answer with a pod")
    phase = status.get("phase")
    container = _driver_container(status)
    ended = container.get("state", {}).get("terminated")
    if ended:  # containers of others, a mesh's proxy for one, may keep the pod in the phase Running
        return _terminated_status(ended)
    if phase == "Succeeded":
        return DriverStatus(DriverState.SUCCEEDED, "it ended in order", 0)
    if phase == "Failed":
        said = ": ".join(str(status[key]) for key in ("reason", "message") if status.get(key))
        return DriverStatus(DriverState.FAILED, said or "Kubernetes does not say why the pod failed")
    if phase == "Unknown":
        return DriverStatus(DriverState.UNKNOWN, "its node does not answer")
    if phase == "Running":
        deleted = pod.get("metadata", {}).get("deletionTimestamp")
        return DriverStatus(DriverState.RUNNING, "it is being deleted" if deleted else "its pod runs")
    return DriverStatus(DriverState.WAITING, _why_pending(status, container))


def _driver_container(status: Mapping[str, Any]) -> Mapping[str, Any]:
    found = status.get("containerStatuses") or [{}]
    return next((each for each in found if each.get("name") == CONTAINER), found[0])


def _terminated_status(ended: Mapping[str, Any]) -> DriverStatus:
    code, reason = ended.get("exitCode"), ended.get("reason")
    if code == 0:
        return DriverStatus(DriverState.SUCCEEDED, "it ended in order", 0)
    if reason == "OOMKilled":
        return DriverStatus(DriverState.FAILED, _OUT_OF_MEMORY, code)
    said = f" ({reason})" if reason and reason != "Error" else ""
    return DriverStatus(DriverState.FAILED, f"its container ended with exit code {code}{said}", code)


def _why_pending(status: Mapping[str, Any], container: Mapping[str, Any]) -> str:
    waiting = container.get("state", {}).get("waiting") or {}
    if said := _WAITING_REASONS.get(waiting.get("reason", "")):
        return f"{said}: {waiting.get('message') or waiting['reason']}"
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"no node takes its pod: {condition.get('message') or condition.get('reason')}"
    return f"its pod waits: {waiting.get('reason') or 'it is not placed yet'}"
