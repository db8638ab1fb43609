"""Controls a driver in a pod, through the Kubernetes API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import requests

from frazil.cluster.api import ApiUnavailable, parse_json_object, send_request
from frazil.cluster.driver import DriverState, DriverStatus
from frazil.cluster.kubernetes_access import KubernetesAccess
from frazil.cluster.kubernetes_pod import CONTAINER
from frazil.errors import AccessDenied, EnvironmentUnusable

API_NAME = "the Kubernetes API"
_WAITING_REASONS = {
    "ImagePullBackOff": "the image cannot be pulled",
    "ErrImagePull": "the image cannot be pulled",
    "InvalidImageName": "the image name is invalid",
    "CreateContainerConfigError": "a secret or config map that the pod uses is missing",
    "CreateContainerError": "the container cannot be created",
    "CrashLoopBackOff": "the container keeps crashing",
}


class DriverPod:
    """A `Driver` in a pod, which Kubernetes does not restart (`restartPolicy: Never`)."""

    def __init__(self, name: str, *, namespace: str, access: KubernetesAccess) -> None:
        self._name, self._namespace, self._access = name, namespace, access

    def create(self, pod: Mapping[str, Any]) -> None:
        """Create the pod, unless it exists.

        Raises AccessDenied, and EnvironmentUnusable if the API refuses the pod. Raises ApiUnavailable if it is unknown
        whether the pod exists, or if it would exceed the namespace's quota now.
        """
        response = self._request("POST", json=pod)
        if response.status_code in {200, 201, 202}:
            return
        body = parse_json_object(response, api=API_NAME)
        message = str(body.get("message"))
        if response.status_code == 409 and body.get("reason") == "AlreadyExists":
            return
        if response.status_code == 409 or "exceeded quota" in message:
            raise ApiUnavailable(f"{API_NAME} does not admit the driver's pod now: {message}")
        problem = f"cannot create the pod {self._name}: {self._describe_error_response(response, 'create')}"
        raise AccessDenied(problem) if response.status_code in {401, 403} else EnvironmentUnusable(problem)

    def status(self) -> DriverStatus:
        try:
            response = self._request("GET")
            if response.status_code in {404, 410}:
                reason = f"the pod {self._name} in the namespace {self._namespace} was deleted"
                return DriverStatus(DriverState.GONE, reason)
            if response.status_code != 200:
                return DriverStatus(DriverState.UNKNOWN, self._describe_error_response(response, "get"))
            return pod_status(parse_json_object(response, api=API_NAME))
        except ApiUnavailable as error:
            return DriverStatus(DriverState.UNKNOWN, str(error))

    def kill(self) -> None:
        try:
            response = self._request("DELETE", json={"gracePeriodSeconds": 0, "propagationPolicy": "Background"})
        except ApiUnavailable as error:
            raise EnvironmentUnusable(f"cannot delete the pod {self._name}: {error}") from error
        if response.status_code not in {200, 202, 404, 410}:
            raise AccessDenied(
                f"cannot delete the pod {self._name}: {self._describe_error_response(response, 'delete')}"
            )

    def log(self, *, limit_bytes: int) -> str | None:
        try:
            # The API's byte limit counts from the beginning, so the last lines are requested.
            parameters = {"container": CONTAINER, "tailLines": max(1, limit_bytes // 100)}
            response = self._request("GET", "/log", params=parameters)
        except ApiUnavailable:
            return None
        return response.text[-limit_bytes:] or None if response.status_code == 200 else None

    def _request(self, method: str, part: str = "", **options: Any) -> requests.Response:
        pod = "" if method == "POST" else f"/{self._name}"
        path = f"/api/v1/namespaces/{self._namespace}/pods{pod}{part}"
        try:
            session = self._access.session()
        except EnvironmentUnusable as error:
            raise ApiUnavailable(str(error)) from error
        with session:
            return send_request(session, method, f"{self._access.address}{path}", api=API_NAME, **options)

    def _describe_error_response(self, response: requests.Response, verb: str) -> str:
        """Describe an error response to a request that needs the verb `verb`."""
        if response.status_code == 401:
            return f"{API_NAME} rejects frazil's token: it has expired, or belongs to another cluster"
        try:
            message = parse_json_object(response, api=API_NAME).get("message")
        except ApiUnavailable as error:
            return str(error)
        if response.status_code == 403:
            hint = f"if a permission is missing, add the verb {verb} for pods to the Role of frazil's service account"
            return f"{API_NAME} denies access in the namespace {self._namespace}: {message}; {hint}"
        return f"{API_NAME} answered {response.status_code}: {message or response.reason}"


def pod_status(pod: Mapping[str, Any]) -> DriverStatus:
    """Return the driver's status from a pod object. Raises ApiUnavailable for any other object."""
    status = pod.get("status")
    if pod.get("kind", "Pod") != "Pod" or not isinstance(status, dict):
        raise ApiUnavailable(f"{API_NAME} did not return a pod")
    phase = status.get("phase")
    found = status.get("containerStatuses") or [{}]
    container = next((each for each in found if each.get("name") == CONTAINER), found[0])
    ended = container.get("state", {}).get("terminated")
    # Why the node ended the pod, such as an eviction.
    message = ": ".join(str(status[key]) for key in ("reason", "message") if status.get(key))
    if ended:  # other containers, such as a service mesh's proxy, may keep the pod in the phase Running
        return _terminated_status(ended, message)
    if phase == "Succeeded":
        return DriverStatus(DriverState.SUCCEEDED, "the driver ended normally", 0)
    if phase == "Failed":
        return DriverStatus(DriverState.FAILED, message or "the pod failed; Kubernetes reports no reason")
    if phase == "Unknown":
        return DriverStatus(DriverState.UNKNOWN, "the pod's node does not respond")
    if phase == "Running":
        deleted = pod.get("metadata", {}).get("deletionTimestamp")
        return DriverStatus(DriverState.RUNNING, "the pod is being deleted" if deleted else "the pod is running")
    return DriverStatus(DriverState.WAITING, _pending_reason(status, container))


def _terminated_status(ended: Mapping[str, Any], pod_message: str) -> DriverStatus:
    code, reason = ended.get("exitCode"), ended.get("reason")
    if code == 0:
        normally = "the driver ended normally"
        return DriverStatus(DriverState.SUCCEEDED, f"{normally}; {pod_message}" if pod_message else normally, 0)
    if pod_message:
        return DriverStatus(DriverState.FAILED, pod_message, code)
    if reason == "OOMKilled":
        fix = "raise resources.driver-memory, or spark.driver.memoryOverhead"
        return DriverStatus(DriverState.FAILED, f"the container exceeded its memory limit: {fix}", code)
    message = f" ({reason})" if reason and reason != "Error" else ""
    return DriverStatus(DriverState.FAILED, f"the container exited with code {code}{message}", code)


def _pending_reason(status: Mapping[str, Any], container: Mapping[str, Any]) -> str:
    waiting = container.get("state", {}).get("waiting") or {}
    if message := _WAITING_REASONS.get(waiting.get("reason", "")):
        return f"{message}: {waiting.get('message') or waiting['reason']}"
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"no node accepts the pod: {condition.get('message') or condition.get('reason')}"
    return f"the pod is pending: {waiting.get('reason') or 'not scheduled yet'}"
